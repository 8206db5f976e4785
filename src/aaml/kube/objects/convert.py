"""API objects to the scheduler's pods and nodes, with kube-scheduler's reading of every field."""

import re
from collections.abc import Iterable, Mapping
from math import inf
from typing import Any, TypeVar, cast

import msgspec

from aaml.cluster import objects
from aaml.cluster.gpu import DEVICE_MILLI, MOST_DEVICES
from aaml.cluster.objects import Node, Pod
from aaml.cluster.quantity import LARGEST, MOST, amount
from aaml.errors import UserError
from aaml.kube.objects import wire
from aaml.kube.objects.manifest import node_to_json, pod_to_json
from aaml.kube.objects.requests import effective_requests, nonzero_container_requests, nonzero_requests
from aaml.kube.objects.selectors import label_selector, node_term
from aaml.kube.objects.volumes import VolumeLister, resolve_volumes

__all__ = ["budget_from_api", "node_from_api", "node_from_json", "node_to_json", "pod_from_api", "pod_from_json",
           "pod_group_from_api", "pod_to_json", "read_object"]  # fmt: skip

T = TypeVar("T")

_UNITS_S = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION = rf"(\d+\.?\d*|\.\d+)({'|'.join(_UNITS_S)})"  # an amount and a unit, of which Go takes several


def read_object(data: bytes | str | Mapping[str, Any], kind: type[T], what: str) -> T:
    """Return an API object of that kind from JSON, or from what JSON was read to. Raises `UserError` for none such."""
    try:
        if isinstance(data, bytes | str):
            return msgspec.json.decode(data, type=kind)
        return msgspec.convert(data, type=kind)
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise UserError(f"{what}: {error}") from error


def pod_from_json(data: bytes | str | Mapping[str, Any], volumes: VolumeLister | None = None) -> Pod:
    """Return the pod of an API object. Raises `UserError` when the object is none."""
    return pod_from_api(read_object(data, wire.PodObject, "pod"), volumes)


def node_from_json(data: bytes | str | Mapping[str, Any]) -> Node:
    """Return the node of an API object. Raises `UserError` when the object is none."""
    return node_from_api(read_object(data, wire.NodeObject, "node"))


# ---- pods ------------------------------------------------------------------------------------------------------------


def pod_from_api(pod: wire.PodObject, volumes: VolumeLister | None = None) -> Pod:
    """Return the pod; volumes are resolved when a lister is given. Raises `UserError` for an impossible quantity."""
    meta, spec, status = pod.metadata, pod.spec, pod.status
    labels = meta.labels or {}
    namespace = meta.namespace or "default"
    requests = effective_requests(pod)
    kept_s = _do_not_disrupt_s(meta.annotations or {})
    return Pod(
        name=meta.name,
        namespace=namespace,
        uid=meta.uid,
        requests=requests,
        gpu=_gpu_request(meta.annotations or {}, requests),
        labels=labels,
        scheduler_name=spec.scheduler_name or "default-scheduler",
        priority=spec.priority or 0,
        preemption_policy="Never" if spec.preemption_policy == "Never" else "PreemptLowerPriority",
        node_name=spec.node_name,
        nominated_node=status.nominated_node_name,
        node_selector=spec.node_selector or {},
        affinity=_affinity(spec.affinity, namespace, labels) if spec.affinity else objects.NO_AFFINITY,
        tolerations=tuple(map(_toleration, spec.tolerations or ())),
        spread=tuple(_spread(each, labels) for each in spec.topology_spread_constraints or ()),
        host_ports=_host_ports(spec),
        volumes=resolve_volumes(pod, volumes) if volumes is not None and spec.volumes else objects.NO_VOLUMES,
        images=tuple(each.image for each in (*(spec.init_containers or ()), *(spec.containers or ())) if each.image),
        gates=tuple(gate.name for gate in spec.scheduling_gates or ()),
        required_features=_required_features(spec),
        resource_claims=tuple(claim.name for claim in spec.resource_claims or ()),
        group=_unseen_group(spec),
        owner=next((f"{ref.kind}/{ref.name}" for ref in meta.owner_references or () if ref.controller), ""),
        phase=status.phase or "Pending",
        terminating=meta.deletion_timestamp is not None,
        preempted=meta.deletion_timestamp is not None and _preempted(status.conditions or ()),
        created_s=meta.creation_timestamp.timestamp() if meta.creation_timestamp else 0.0,
        started_s=status.start_time.timestamp() if status.start_time else 0.0,
        deadline_s=None if spec.active_deadline_seconds is None else float(spec.active_deadline_seconds),
        qos=status.qos_class or "",
        resource_version=meta.resource_version,
        do_not_disrupt=kept_s > 0.0,
        do_not_disrupt_s=kept_s or inf,
        nonzero=nonzero_requests(pod),
        nonzero_containers=nonzero_container_requests(pod),
    )


def _unseen_group(spec: wire.PodSpec) -> objects.PodGroup | None:
    """Return the group of which only the name is known, as a pod has it."""
    name = spec.scheduling_group.pod_group_name if spec.scheduling_group is not None else ""
    return objects.PodGroup(name, seen=False) if name else None


def pod_group_from_api(group: wire.PodGroupObject) -> objects.PodGroup:
    """Return the PodGroup. One of a composite group counts as not seen: such trees are not scheduled."""
    spec = group.spec
    topology = spec.scheduling_constraints.topology if spec.scheduling_constraints is not None else None
    gang = spec.scheduling_policy.gang if spec.scheduling_policy is not None else None
    return objects.PodGroup(
        group.metadata.name,
        min_count=None if gang is None else gang.min_count or 1,
        topology_key=topology[0].key if topology else "",
        whole=spec.disruption_mode is not None and spec.disruption_mode.all_ is not None,
        priority=spec.priority or 0,
        preemption_policy=cast("Any", spec.preemption_policy or ""),
        seen=not spec.parent_composite_pod_group_name,
    )


def _do_not_disrupt_s(annotations: Mapping[str, str]) -> float:
    """Return for how long after its start a pod may not be evicted by autoscalers: 0 for not at all, inf for good.

    Karpenter's annotation is "true" or a duration above 0; other values are ignored (its utils/pod). That of the
    Cluster Autoscaler is for good.
    """
    duration = annotations.get(wire.DO_NOT_DISRUPT, "")
    if duration == "true" or annotations.get(wire.SAFE_TO_EVICT) == "false":
        return inf
    if not re.fullmatch(rf"\+?({_DURATION})+", duration):
        return 0.0
    return sum(float(amount) * _UNITS_S[unit] for amount, unit in re.findall(_DURATION, duration))


def budget_from_api(budget: wire.BudgetObject) -> objects.DisruptionBudget:
    """Return the disruption budget with what it allows now."""
    meta, status = budget.metadata, budget.status
    selector = label_selector(budget.spec.selector)
    disrupted = frozenset(status.disrupted_pods or ())
    return objects.DisruptionBudget(meta.name, meta.namespace, selector, status.disruptions_allowed, disrupted)


def gpu_indices(pod: wire.PodObject) -> tuple[int, ...] | None:
    """Return the devices that a bound pod's annotation names ("2-3"), None without a readable one."""
    text = (pod.metadata.annotations or {}).get(wire.GPU_INDEX, "")
    parts = text.split("-")
    return tuple(map(int, parts)) if all(part.isdecimal() and len(part) < 10 for part in parts) else None


def _gpu_request(annotations: Mapping[str, str], requests: Mapping[str, int]) -> objects.GpuRequest:
    """Return the GPU request: that of the sharing annotations, or else the whole devices of `nvidia.com/gpu`."""
    whole = min(requests.get(wire.NVIDIA_GPU, 0), MOST_DEVICES + 1)
    if wire.GPU_COUNT not in annotations and wire.GPU_MILLI not in annotations:
        models = _models(annotations)
        return objects.GpuRequest(whole, DEVICE_MILLI, models) if whole else objects.NO_GPU
    count = min(amount(wire.GPU_COUNT, annotations.get(wire.GPU_COUNT, "1") or "0"), MOST_DEVICES + 1)
    milli = min(amount(wire.GPU_MILLI, annotations.get(wire.GPU_MILLI, str(DEVICE_MILLI)) or "0"), LARGEST)
    if not count:
        return objects.NO_GPU
    return objects.GpuRequest(count, DEVICE_MILLI if count > 1 and milli else milli, _models(annotations))


def _models(annotations: Mapping[str, str]) -> frozenset[str]:
    return frozenset(model for model in annotations.get(wire.GPU_MODEL, "").split("|") if model)


def _required_features(spec: wire.PodSpec) -> frozenset[str]:
    """Return what NodeDeclaredFeatures of kube-scheduler 1.37 asks for (component-helpers/nodedeclaredfeatures)."""
    rules = (
        rule.action
        for container in (*(spec.containers or ()), *(spec.init_containers or ()))
        for rule in container.restart_policy_rules or ()
    )
    needed = {
        "RestartAllContainersOnContainerExits": "RestartAllContainers" in rules,
        "UserNamespacesHostNetworkSupport": spec.host_network and spec.host_users is False,
    }
    return frozenset(name for name, needs in needed.items() if needs)


def _preempted(conditions: Iterable[wire.Condition]) -> bool:
    """Whether a scheduler has preempted the pod, by its first condition DisruptionTarget."""
    target = next((each for each in conditions if each.type == "DisruptionTarget"), None)
    return target is not None and target.status == "True" and target.reason == "PreemptionByScheduler"


def _toleration(each: wire.TolerationObject) -> objects.Toleration:
    operator = cast("Any", each.operator or "Equal")
    return objects.Toleration(each.key or "", operator, each.value or "", each.effect or "")


def _with_label_keys(
    selector: objects.LabelSelector | None,
    labels: Mapping[str, str],
    same: Iterable[str],
    different: Iterable[str] = (),
) -> objects.LabelSelector | None:
    """Merge `matchLabelKeys` and `mismatchLabelKeys`; where the API server has done so already nothing changes."""
    if selector is None:
        return None
    merged = [objects.Requirement(key, "In", (labels[key],)) for key in same if key in labels]
    merged += [objects.Requirement(key, "NotIn", (labels[key],)) for key in different if key in labels]
    new = tuple(each for each in merged if each not in selector.requirements)
    return objects.LabelSelector(selector.requirements + new) if new else selector


def _pod_term(term: wire.PodTerm, namespace: str, labels: Mapping[str, str]) -> objects.PodAffinityTerm:
    names = frozenset(term.namespaces or ())
    if not names and term.namespace_selector is None:
        names = frozenset({namespace})
    selector = _with_label_keys(
        label_selector(term.label_selector), labels, term.match_label_keys or (), term.mismatch_label_keys or ()
    )
    return objects.PodAffinityTerm(term.topology_key, selector, names, label_selector(term.namespace_selector))


def _affinity(affinity: wire.AffinityObject, namespace: str, labels: Mapping[str, str]) -> objects.Affinity:
    nodes = affinity.node_affinity or wire.NodeAffinity()
    near = affinity.pod_affinity or wire.PodAffinity()
    apart = affinity.pod_anti_affinity or wire.PodAffinity()
    required = nodes.required_during_scheduling_ignored_during_execution

    def terms(each: wire.PodAffinity) -> tuple[objects.PodAffinityTerm, ...]:
        listed = each.required_during_scheduling_ignored_during_execution or ()
        return tuple(_pod_term(term, namespace, labels) for term in listed)

    def weighted(each: wire.PodAffinity, sign: int) -> tuple[objects.WeightedPodAffinityTerm, ...]:
        listed = each.preferred_during_scheduling_ignored_during_execution or ()
        return tuple(
            objects.WeightedPodAffinityTerm(sign * term.weight, _pod_term(term.pod_affinity_term, namespace, labels))
            for term in listed
        )

    return objects.Affinity(
        required_nodes=None if required is None else tuple(map(node_term, required.node_selector_terms or ())),
        preferred_nodes=tuple(
            objects.PreferredNode(term.weight, node_term(term.preference))
            for term in nodes.preferred_during_scheduling_ignored_during_execution or ()
        ),
        required_pods=terms(near),
        required_anti_pods=terms(apart),
        preferred_pods=weighted(near, 1) + weighted(apart, -1),
    )


def _spread(each: wire.SpreadConstraint, labels: Mapping[str, str]) -> objects.TopologySpread:
    return objects.TopologySpread(
        max_skew=each.max_skew,
        topology_key=each.topology_key,
        selector=_with_label_keys(label_selector(each.label_selector), labels, each.match_label_keys or ()),
        hard=each.when_unsatisfiable == "DoNotSchedule",
        min_domains=each.min_domains or 1,
        honor_node_affinity=(each.node_affinity_policy or "Honor") == "Honor",
        honor_node_taints=(each.node_taints_policy or "Ignore") == "Honor",
    )


def _host_ports(spec: wire.PodSpec) -> tuple[objects.HostPort, ...]:
    """Ports of containers and sidecars; an init container's port is free again before the pod runs."""
    sidecars = (each for each in spec.init_containers or () if each.restart_policy == "Always")
    return tuple(
        objects.HostPort(port.host_port, port.protocol or "TCP", port.host_ip or "0.0.0.0")  # noqa: S104
        for container in (*(spec.containers or ()), *sidecars)
        for port in container.ports or ()
        if port.host_port > 0
    )


# ---- nodes -----------------------------------------------------------------------------------------------------------


def node_from_api(node: wire.NodeObject) -> Node:
    """Return the node, without limits of volumes, which come from its CSINode."""
    meta, status = node.metadata, node.status
    labels = meta.labels or {}
    offered = status.allocatable if status.allocatable is not None else status.capacity
    allocatable = {name: _offered(name, value) for name, value in (offered or {}).items()}
    count = min(allocatable.get(wire.GPU_COUNT, allocatable.get(wire.NVIDIA_GPU, 0)), MOST_DEVICES)
    return Node(
        name=meta.name,
        allocatable=allocatable,
        labels=labels,
        taints=tuple(
            objects.Taint(each.key, each.value or "", cast("Any", each.effect)) for each in node.spec.taints or ()
        ),
        unschedulable=node.spec.unschedulable,
        gpu_count=count,
        gpu_model=labels.get(wire.GPU_MODEL, labels.get(wire.NVIDIA_MODEL, "")) if count else "",
        images={name: image.size_bytes for image in status.images or () for name in image.names or ()},
        declared_features=frozenset(status.declared_features or ()),
        resource_version=meta.resource_version,
        created_s=meta.creation_timestamp.timestamp() if meta.creation_timestamp else 0.0,
        do_not_disrupt=(meta.annotations or {}).get(wire.DO_NOT_DISRUPT) == "true",
    )


def _offered(resource: str, quantity: str | float) -> int:
    """What leaves 64 bits is nothing: so kube-scheduler counts it, and the kubelet that admits the pod."""
    found = amount(resource, quantity)
    return min(found, LARGEST) if found <= MOST else 0
