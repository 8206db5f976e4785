"""Kueue in front of a simulated cluster: jobs wait in its queues, and their pods are told their nodes.

A pod of its own is a job, and so are the pods of a group, once all have come. The node of each pod is Kueue's choice;
what schedules the pods finds nothing else. The second in which Kueue collects what has changed is played; the half
second to a second that it then takes to let the pods go is not.
"""

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from math import inf
from typing import Literal, get_args

from aaml.cluster.gpu import DEVICE_MILLI
from aaml.cluster.objects import HOSTNAME_LABEL, RACK_LABEL, Node, Pod
from aaml.cluster.quantity import CPU, MEMORY
from aaml.errors import bad_value
from aaml.scheduling.kueue.admission import RETRY_S, Admission, Admitted
from aaml.scheduling.kueue.objects import (
    ClusterQueue,
    Flavor,
    PodSet,
    Quota,
    ResourceGroup,
    TopologyRequest,
    Workload,
    refuse,
)

QueueKind = Literal["none", "kueue", "kueue-strict"]
"""What admits jobs: nothing, or Kueue with BestEffortFIFO or StrictFIFO."""
_GPU = "nvidia.com/gpu"
_QUEUE, _FLAVOR = "all", "nodes"


class KueueGate:
    """One ClusterQueue over all nodes of a cluster, with quotas of all that they have, and racks as its topology."""

    def __init__(self, nodes: Iterable[Node], strategy: Literal["BestEffortFIFO", "StrictFIFO"]) -> None:
        known = [replace(node, allocatable={**node.allocatable, _GPU: node.gpu_count}) for node in nodes]
        racks = all(RACK_LABEL in node.labels for node in known)
        if not all(HOSTNAME_LABEL in node.labels for node in known):
            raise bad_value("nodes", len(known), f"nodes with the label {HOSTNAME_LABEL}")
        resources = (CPU, MEMORY, _GPU)
        quotas = {(_FLAVOR, name): Quota(sum(node.allocatable.get(name, 0) for node in known)) for name in resources}
        queue = ClusterQueue(_QUEUE, (ResourceGroup(resources, (_FLAVOR,)),), quotas, strategy=strategy)
        levels = (RACK_LABEL, HOSTNAME_LABEL) if racks else (HOSTNAME_LABEL,)
        self._admission = Admission([queue], [Flavor(_FLAVOR, {}, levels)], known)
        self._collected: dict[str, list[Pod]] = {}  # the pods of a group that have come so far
        self._jobs: dict[str, dict[str, Pod]] = {}  # the pods of a job that waits or runs, by uid
        self._job_of: dict[str, str] = {}
        self._retry_s = inf

    @property
    def next_s(self) -> float:
        """When jobs are tried again that did not fit; inf: when something happens."""
        return self._retry_s

    def takes(self, pod: Pod) -> bool:
        """Let a pod wait with its job, unless its job was let in already."""
        if pod.uid in self._job_of:
            return False
        key = pod.group_key or pod.uid
        pods = self._collected.setdefault(key, [])
        pods.append(pod)
        self._job_of[pod.uid] = key
        if pod.group is not None and len(pods) < (pod.group.min_count or 1):
            return True
        self._jobs[key] = {each.uid: each for each in self._collected.pop(key)}
        self._admission.submit(_workload(key, pods))
        return True

    def left(self, uid: str, now_s: float) -> None:
        """Take note that a pod is gone: with the last one its job ends, and a job that waits is incomplete again."""
        key = self._job_of.pop(uid, "")
        if key in self._collected:
            self._collected[key] = [each for each in self._collected[key] if each.uid != uid]
        if key not in self._jobs:
            return
        del self._jobs[key][uid]
        incomplete = self._admission.waits(key)
        if self._jobs[key] and not incomplete:
            return
        rest = self._jobs.pop(key)
        if incomplete:
            self._collected[key] = list(rest.values())
        self._admission.finish(key)
        self._retry_s = min(self._retry_s, now_s + RETRY_S)

    def turn(self, now_s: float) -> list[Pod]:
        """Return the pods of jobs that are let in now, each with its node."""
        if now_s >= self._retry_s:
            self._admission.retry(_QUEUE)
            self._retry_s = inf
        return [pod for admitted in self._admission.settle() for pod in self._on_their_nodes(admitted)]

    def fork(self) -> "KueueGate":
        """Return an independent copy."""
        return deepcopy(self)

    def _on_their_nodes(self, admitted: Admitted) -> Iterable[Pod]:
        left = list(self._jobs[admitted.workload.name].values())
        for given in admitted.pod_sets:
            hosts = [domain[-1] for domain, count in given.domains or () for _ in range(count)]
            alike = [pod for pod in left if _requests(pod) == given.pod_set.requests]
            for pod, host in zip(alike, hosts, strict=True):
                yield replace(pod, group=None, node_selector={**pod.node_selector, HOSTNAME_LABEL: host})


def gate_of(kind: QueueKind, nodes: Sequence[Node]) -> KueueGate | None:
    """Return what admits the jobs of a cluster, None where nothing does. Raises `UserError` for other kinds."""
    if kind not in get_args(QueueKind):
        raise bad_value("queue", kind, f"one of {', '.join(get_args(QueueKind))}")
    if kind == "none":
        return None
    return KueueGate(nodes, "StrictFIFO" if kind == "kueue-strict" else "BestEffortFIFO")


def _workload(key: str, pods: Sequence[Pod]) -> Workload:
    """Return the workload of a job's pods: a pod set for each shape, all of which ask for the group's topology."""
    first = pods[0]
    topology = None
    if first.group is not None and first.group.topology_key:
        topology = TopologyRequest("required", first.group.topology_key)
    shapes: list[tuple[Pod, Mapping[str, int], int]] = []
    for pod in pods:
        requests = _requests(pod)
        for place, (like, known, count) in enumerate(shapes):
            if known == requests:
                shapes[place] = (like, known, count + 1)
                break
        else:
            shapes.append((pod, requests, 1))
    sets = tuple(PodSet.of(pod, count, requests, topology) for pod, requests, count in shapes)
    return Workload(key, _QUEUE, sets, first.priority, first.created_s)


def _requests(pod: Pod) -> dict[str, int]:
    if pod.gpu.count and pod.gpu.milli != DEVICE_MILLI:
        raise refuse(_QUEUE, f"a share of a GPU ({pod.key})")
    requests = {name: amount for name, amount in pod.requests.items() if amount}
    return requests | ({_GPU: pod.gpu.count} if pod.gpu.count else {})
