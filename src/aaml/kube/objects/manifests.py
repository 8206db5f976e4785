"""Kubernetes objects in and out: nodes and workloads from YAML, `simon`-style configurations, placements as YAML.

Accepted kinds are Node, Pod, Deployment, ReplicaSet, StatefulSet, Job, DaemonSet, PodGroup and PriorityClass, alone or
in lists; other kinds (services, config maps ...) do not matter to scheduling and are counted. Pods have what the API
server and controllers would fill in. Files may be exported from a cluster: of a workload and its pods only these count,
and a pod that has ended does not. `simon` is the simulator of Alibaba's open-simulator and of its GPU-sharing fork
(hkust-adsl/kubernetes-scheduler-simulator).
"""

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from msgspec import structs

from aaml.cluster.objects import Node, Pod, PodGroup
from aaml.errors import UserError, bad_value
from aaml.kube.objects import strict, wire
from aaml.kube.objects.controllers import checked_count, daemon_pod, job_has_ended, job_pods, target_node
from aaml.kube.objects.convert import node_from_api, pod_from_api, pod_group_from_api
from aaml.kube.objects.defaults import PriorityClasses, with_defaults
from aaml.kube.objects.validation import refuse_pod_level
from aaml.workload.hierarchy import SUFFIX, read_documents
from aaml.workload.traces import load_pods, read_pods

_REPLICATED: Mapping[str, type[strict.Deployment | strict.ReplicaSet | strict.StatefulSet]] = {
    "Deployment": strict.Deployment, "ReplicaSet": strict.ReplicaSet, "StatefulSet": strict.StatefulSet,
}  # fmt: skip
_PRIORITIES = "PriorityClass"
_GROUPS, _TREES = "PodGroup", "CompositePodGroup"
_WORKLOADS = (*_REPLICATED, "Job", "DaemonSet")
_ENDED = ("Succeeded", "Failed")
_ENDINGS = frozenset({".yaml", ".yml", ".json"})
_log = logging.getLogger(__name__)
Object = TypeVar("Object", bound=wire.Named)


@dataclass
class Manifests:
    """What was read: nodes and pods in file order, and how many objects of other kinds were passed over."""

    nodes: list[Node] = field(default_factory=list)
    pods: list[Pod] = field(default_factory=list)
    passed_over: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class SimonConfig:
    """The parts of a `simon` configuration that are honoured."""

    cluster: Path
    apps: tuple[Path, ...] = ()
    shuffle: bool = False
    tune_ratio: float | None = None
    seed: int = 0


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise bad_value("path", str(path), "a YAML file or a folder of them")
    found = sorted(each for each in path.rglob("*") if each.suffix in _ENDINGS and each.is_file())
    originals = [each for each in found if not each.stem.endswith(SUFFIX)]
    return originals or found


def _where(path: Path, document: Mapping[str, Any], position: int) -> str:
    name = (document.get("metadata") or {}).get("name", "?") if isinstance(document.get("metadata"), dict) else "?"
    return f"{path}, object {position} ({document.get('kind', 'no kind')} {name})"


def load(paths: Iterable[Path]) -> Manifests:
    """Read files and folders (recursively, labelled `-hier` copies aside where originals are there).

    Objects of other kinds are told. Raises `UserError` with file, object, field and what is accepted.
    """
    listed = [
        (_where(path, document, position), document)
        for each in paths for path in _files(each) for position, document in enumerate(read_documents(path))
    ]  # fmt: skip
    listed = _without_doubles(listed)
    classes = [_named(strict.read_strictly(document, strict.PriorityClass, where), where)
               for where, document in listed if document.get("kind") == _PRIORITIES]  # fmt: skip
    reader = _Reader(classes)
    for where, document in listed:
        reader.take_group(document, where)
    for where, document in listed:
        try:
            reader.take(document, where)
        except UserError as error:
            raise error if str(error).startswith(where) else UserError(f"{where}: {error}") from error
    result = reader.end()
    _refuse_doubles("node", [node.name for node in result.nodes])
    _refuse_doubles("pod", [pod.key for pod in result.pods])
    if result.passed_over:
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(result.passed_over.items()))
        _log.warning("left out, for they are no nodes, pods or workloads of known kinds: %s", kinds)
    return result


_Listed = list[tuple[str, dict[str, Any]]]
_Key = tuple[Any, Any, Any]


def _without_doubles(listed: _Listed) -> _Listed:
    """Leave out what an exported cluster has twice: workloads whose pods stand in the files too, and ended pods.

    `kubectl get all` lists a Deployment, its ReplicaSets and their pods. A DaemonSet stays for nodes without its pod.
    """
    owners, ended, kept = set[_Key](), 0, _Listed()
    for where, document in listed:
        is_over = document.get("kind") == "Pod" and _of(document, "status").get("phase") in _ENDED
        ended += is_over
        kept += [] if is_over else [(where, document)]
        owners |= {key for key in _owners(document) if key[0] != "DaemonSet" and (not is_over or key[0] == "Job")}
    left_out = Counter(str(document["kind"]) for _, document in kept if _key(document) in owners)
    if left_out:
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(left_out.items()))
        _log.warning("left out, for what they have made stands in the files too: %s", kinds)
    if ended:
        _log.warning("left out, for they have ended: %d pod%s", ended, "" if ended == 1 else "s")
    return [(where, document) for where, document in kept if _key(document) not in owners]


def _owners(document: Mapping[str, Any]) -> Iterator[_Key]:
    """Yield the workloads that have made an object; a pod's Deployment is told by its label."""
    metadata = _of(document, "metadata")
    references, suffix = metadata.get("ownerReferences"), _of(metadata, "labels").get("pod-template-hash")
    for each in references if isinstance(references, list) else ():
        if not isinstance(each, dict) or each.get("controller") is not True:
            continue
        kind, name = each.get("kind"), each.get("name")
        if kind not in _WORKLOADS or not isinstance(name, str):
            continue
        namespace = metadata.get("namespace") or "default"
        yield kind, namespace, name
        if kind == "ReplicaSet" and isinstance(suffix, str) and name.endswith(f"-{suffix}"):
            yield "Deployment", namespace, name.removesuffix(f"-{suffix}")


def _key(document: Mapping[str, Any]) -> _Key | None:
    metadata, kind = _of(document, "metadata"), document.get("kind")
    name, namespace = metadata.get("name"), metadata.get("namespace") or "default"
    return (kind, namespace, name) if kind in _WORKLOADS and isinstance(name, str) else None


def _of(document: Mapping[str, Any], field: str) -> dict[str, Any]:
    value = document.get(field)
    return value if isinstance(value, dict) else {}


def pods_like(spec: str) -> tuple[Pod, ...]:
    """Return the pods of an openb trace by name, of a pod list (.csv), or of YAML files with pods and workloads.

    Raises `UserError` for a trace or a file that is not there, and for a file that holds something else.
    """
    path = Path(spec)
    if path.suffix == ".csv" and path.is_file():
        return read_pods(path)
    if not (path.suffix or path.exists()):
        return load_pods(spec)
    found = load([path])
    if not found.pods:
        kinds = f" (it has {', '.join(sorted(found.passed_over))})" if found.passed_over else ""
        raise bad_value("expected-pods", spec, f"a file with pods or workloads such as Deployments{kinds}")
    return tuple(found.pods)


class _Reader:
    """Takes objects in; `classes` are those that pods may name for their priority, beside the system's."""

    def __init__(self, classes: Iterable[strict.PriorityClass]) -> None:
        self._result = Manifests()
        self._daemons: list[strict.DaemonSet] = []
        self._suspended: list[str] = []
        self._ended: list[str] = []
        self._classes = PriorityClasses(classes)
        self._groups: dict[str, tuple[PodGroup, str]] = {}  # "namespace/name" -> the group, and where it stands
        self._without_group: set[str] = set()

    def take_group(self, document: dict[str, Any], where: str) -> None:
        """Take a PodGroup in, before the pods that name it. Raises `UserError` for one that is none."""
        if document.get("kind") == _TREES:
            raise UserError(f"{where}: groups of groups are not scheduled; expected PodGroups without a parent")
        if document.get("kind") != _GROUPS:
            return
        group = _named(strict.read_strictly(document, wire.PodGroupObject, where), where)
        spec = self._classes.of_group(group.spec)
        key = f"{group.metadata.namespace or 'default'}/{group.metadata.name}"
        if key in self._groups:
            raise UserError(f"{where}: PodGroup {key} comes twice; expected different names")
        self._groups[key] = pod_group_from_api(structs.replace(group, spec=spec)), where

    def take(self, document: dict[str, Any], where: str) -> None:
        """Take an object in. Raises `UserError` for one that is none of its kind."""
        kind, result = document.get("kind"), self._result
        if not isinstance(kind, str):
            raise bad_value("kind", kind, "a Kubernetes kind such as Node, Pod or Deployment")
        if kind == "Node":
            result.nodes.append(node_from_api(_named(strict.read_strictly(document, wire.NodeObject, where), where)))
        elif kind == "Pod":
            result.pods.append(self._pod(_named(strict.read_strictly(document, wire.PodObject, where), where)))
        elif kind in _REPLICATED:
            workload = _named(strict.read_strictly(document, _REPLICATED[kind], where), where)
            self._replicate(workload, kind, checked_count("replicas", workload.spec.replicas))
        elif kind == "Job":
            self._take_job(_named(strict.read_strictly(document, strict.Job, where), where))
        elif kind == "DaemonSet":
            self._daemons.append(_named(strict.read_strictly(document, strict.DaemonSet, where), where))
            self._pod(_templated(self._daemons[-1], kind, "daemon"))  # on no node it would not be looked at
        elif kind not in (_PRIORITIES, _GROUPS):
            if not isinstance(document.get("apiVersion"), str):
                raise bad_value("apiVersion", document.get("apiVersion"), f"that of a {kind}, such as v1")
            result.passed_over[kind] += 1

    def _take_job(self, job: strict.Job) -> None:
        """Take the pods in that a Job wants now."""
        if job.spec.suspend:
            self._suspended.append(job.metadata.name)
        elif job_has_ended(job):
            self._ended.append(job.metadata.name)
        wanted = job_pods(job)
        if job.spec.scheduling is not None and job.spec.template.spec.scheduling_group is None:
            job = self._with_group(job)
        self._replicate(job, "Job", wanted)

    def _with_group(self, job: strict.Job) -> strict.Job:
        """Return a Job whose pods have the group that its controller makes: a gang without a number is of all pods.

        The name is no other PodGroup's, as the controller's own (NAME-HASH-NAME-pgt-...) is none.
        """
        asked = job.spec.scheduling or wire.Scheduling()
        policy = asked.scheduling_policy or wire.SchedulingPolicy(basic={})
        if policy.gang is not None:
            least = job.spec.parallelism if policy.gang.min_count is None else policy.gang.min_count
            if least > job.spec.parallelism:
                field = "spec.scheduling.schedulingPolicy.gang.minCount"
                raise bad_value(field, least, f"at most spec.parallelism ({job.spec.parallelism})")
            policy = wire.SchedulingPolicy(gang=wire.GangPolicy(max(least, 1)))
        template, meta = job.spec.template, job.metadata
        spec = wire.PodGroupSpec(
            policy, asked.scheduling_constraints, asked.disruption_mode,
            priority_class_name=template.spec.priority_class_name,
        )  # fmt: skip
        namespace = meta.namespace or "default"
        name = next(each for each in _group_names(meta.name) if f"{namespace}/{each}" not in self._groups)
        group = wire.PodGroupObject(structs.replace(meta, name=name), self._classes.of_group(spec))
        self._groups[f"{namespace}/{name}"] = pod_group_from_api(group), f"Job {meta.name}"
        in_group = structs.replace(template.spec, scheduling_group=wire.SchedulingGroup(name))
        return structs.replace(job, spec=structs.replace(job.spec, template=structs.replace(template, spec=in_group)))

    def _replicate(self, workload: strict.Workload, kind: str, count: int) -> None:
        self._result.pods += [
            self._pod(_templated(workload, kind, f"{workload.metadata.name}-{number}")) for number in range(count)
        ]

    def end(self) -> Manifests:
        """Return what was taken in, with the pods of DaemonSets for the nodes that there are."""
        self._result.pods += [pod for each in self._daemons for pod in self._daemon_pods(each)]
        for group, where in self._groups.values():
            key = group.topology_key
            if key and self._result.nodes and not any(key in node.labels for node in self._result.nodes):
                raise bad_value(f"{where}: schedulingConstraints.topology[0].key", key, "a label of a node")
        if self._without_group:
            names = ", ".join(sorted(self._without_group))
            _log.warning("pods wait for PodGroups that the files do not have: %s", names)
        if self._suspended:
            _log.warning("Jobs that are suspended have no pods: %s", ", ".join(self._suspended))
        if self._ended:
            _log.warning("Jobs that have ended have no pods: %s", ", ".join(self._ended))
        if self._classes.unknown:
            names = ", ".join(sorted(self._classes.unknown))
            _log.warning("pods name classes of priority that the files do not have, and have priority 0: %s", names)
        return self._result

    def _pod(self, pod: wire.PodObject) -> Pod:
        filled = with_defaults(pod, self._classes)
        refuse_pod_level(filled)
        found = pod_from_api(filled)
        if found.group is None:
            return found
        group, _ = self._groups.get(found.group_key, (None, ""))
        if group is None:
            self._without_group.add(found.group_key)
            return found
        if found.priority != group.priority:
            raise bad_value("spec.priority", found.priority, f"{group.priority}, as PodGroup {group.name} has it")
        return replace(found, group=group)

    def _daemon_pods(self, daemon: strict.DaemonSet) -> Iterator[Pod]:
        """Yield a DaemonSet's pods for the nodes that have none of its own and where it is to run."""
        namespace, owner = daemon.metadata.namespace or "default", f"DaemonSet/{daemon.metadata.name}"
        there = {target_node(pod) for pod in self._result.pods if (pod.namespace, pod.owner) == (namespace, owner)}
        for node in self._result.nodes:
            if node.name not in there:
                pod = self._pod(_templated(daemon, "DaemonSet", f"{daemon.metadata.name}-{node.name}"))
                found = daemon_pod(pod, node, on_the_hosts_network=daemon.spec.template.spec.host_network)
                yield from () if found is None else (found,)


def _named(found: Object, where: str) -> Object:
    if not found.metadata.name:
        raise UserError(f"{where}: metadata.name: missing; expected a name")
    return found


def _group_names(job: str) -> Iterator[str]:
    """Yield names for the group that a Job's controller makes, the first that is free to be taken."""
    digests = (blake2b(f"{job}/{number}".encode(), digest_size=5).hexdigest() for number in count())
    return (f"{job}-pgt-{digest}" for digest in digests)


def _templated(workload: strict.Workload, kind: str, name: str) -> wire.PodObject:
    """Return a pod of a workload, named and owned as its controller would."""
    template, owner = workload.spec.template, workload.metadata.name
    metadata = structs.replace(
        template.metadata, name=name, namespace=workload.metadata.namespace or "default",
        owner_references=[wire.OwnerReference(kind, owner, owner, controller=True)],
    )  # fmt: skip
    return wire.PodObject(metadata, template.spec)


def _refuse_doubles(what: str, names: Sequence[str]) -> None:
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise UserError(f"{what}: {twice[0]!r} comes {Counter(names)[twice[0]]} times; expected different names")


def _section(document: Mapping[str, Any], path: Path, *names: str) -> dict[str, Any]:
    value: Any = document
    for depth, name in enumerate(names):
        value = value.get(name)
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise bad_value(f"{path}: {'.'.join(names[: depth + 1])}", value, "a mapping")
    return dict(value)


def read_simon(path: Path) -> SimonConfig:
    """Read a `simon` configuration (kind Config); paths in it are relative to it, or else to the working directory."""
    documents = read_documents(path)
    if len(documents) != 1 or documents[0].get("kind") != "Config":
        raise UserError(f"{path}: expected one object of kind Config (simon/v1alpha1)")
    document = documents[0]

    def resolve(text: object, name: str) -> Path:
        if not isinstance(text, str) or not text:
            raise bad_value(f"{path}: {name}", text, "a path")
        beside = path.parent / text
        return beside if beside.exists() else Path(text)

    cluster = _section(document, path, "spec", "cluster")
    if "customConfig" not in cluster:
        raise UserError(f"{path}: spec.cluster.customConfig: missing; expected the folder with the cluster's objects")
    apps = _section(document, path, "spec").get("appList") or []
    if not isinstance(apps, list):
        raise bad_value(f"{path}: spec.appList", apps, "a list of name and path")
    for app in apps:
        if isinstance(app, dict) and app.get("chart"):
            raise UserError(f"{path}: spec.appList: {app.get('name')!r} is a chart; render it (helm template) first")
    custom = _section(document, path, "spec", "customConfig")
    tuning = _section(document, path, "spec", "customConfig", "workloadTuningConfig")
    ratio = tuning.get("ratio")
    if ratio is not None and not (isinstance(ratio, int | float) and ratio >= 0):
        raise bad_value(f"{path}: spec.customConfig.workloadTuningConfig.ratio", ratio, "a number from 0")
    return SimonConfig(
        cluster=resolve(cluster["customConfig"], "spec.cluster.customConfig"),
        apps=tuple(resolve((app or {}).get("path"), "spec.appList.path") for app in apps),
        shuffle=bool(custom.get("shufflePod", False)),
        tune_ratio=float(ratio) if ratio else None,
        seed=int(tuning.get("seed", 0)),
    )
