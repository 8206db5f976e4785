"""The descheduler's HighNodeUtilization (0.36) beside an autoscaler: it empties nodes, which the autoscaler terminates.

It evicts and does no more: where the pods go is the scheduler's choice, so it is meant to stand beside `MostAllocated`.
Names of files are those below pkg of its source. What it does that is not here: extended resources, namespaces, label
selectors, `nodeFit`, `minReplicas`, `minPodAge`, thresholds of priority, local storage (pods here tell of none).
"""

from collections import Counter, deque
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from aaml.cluster.objects import Pod
from aaml.cluster.quantity import CPU, MEMORY, PODS
from aaml.nodes.catalogue import Catalogue
from aaml.nodes.ports import Autoscaler, Command, Evict, Observed, OwnedNode
from aaml.nodes.settings import HighNodeUtilizationSettings

_RESOURCES = (CPU, MEMORY, PODS)  # those that every round weighs, in the order of a catalogue's columns
_CRITICAL = 2_000_000_000  # least priority of pods that are critical for the system (utils/priority.go)
_NEVER_EVICTED = frozenset({"", "DaemonSet", "Node"})  # owners: none, a DaemonSet, a node whose static pod it is
IntArray = npt.NDArray[np.int64]


class _Candidate(NamedTuple):
    """A pod that may be evicted, where it is, and what it takes there, [3] of `_RESOURCES`."""

    node: str
    uid: str
    request: IntArray


@dataclass
class _Round:
    """What is left of one round: pods in their order, and the room [3] on nodes that are used well."""

    room: IntArray
    left: deque[_Candidate]
    evicted: Counter[str] = field(default_factory=Counter)


@dataclass
class HighNodeUtilization:
    """Evicts the pods of nodes below the thresholds, once in an interval; all else is what `beside` orders.

    `first_look_s`: when it first looks at the cluster. It does not know Karpenter's `do-not-disrupt`, and evicts such
    pods as others, unless the settings say that they carry its own annotation too. The order of pods that are alike is
    random in the descheduler; here it is that in which they were bound.
    """

    settings: HighNodeUtilizationSettings
    beside: Autoscaler
    catalogue: Catalogue
    first_look_s: float = 0.0
    _due_s: float = field(init=False)
    _round: _Round | None = None

    def __post_init__(self) -> None:
        self._due_s = self.first_look_s

    @property
    def next_s(self) -> float:
        """The next round, or when the autoscaler wants to be asked."""
        return min(self._due_s, self.beside.next_s)

    def copy(self) -> "HighNodeUtilization":
        """Return an independent copy."""
        twin = copy(self)
        twin.beside = self.beside.copy()
        return twin

    def act(self, seen: Observed) -> Sequence[Command]:
        """Evict one pod after the other when it is time, each as the last eviction left the cluster, then the rest."""
        if self._due_s <= seen.now_s:
            self._due_s = seen.now_s + self.settings.descheduling_interval_s
            self._round = self._begun(seen)
        if self._round is not None:
            if uid := self._next(self._round, seen):
                return [Evict(uid)]
            self._round = None
        return self.beside.act(seen)

    def _begun(self, seen: Observed) -> _Round | None:
        """Tell nodes that are used too little from the others (Balance of nodeutilization/highnodeutilization.go)."""
        nodes = [node for node in seen.nodes.values() if node.initialized_s is not None]
        used = {node.name: self._requested(seen, node) for node in nodes}
        low = [node for node in nodes if self._is_low(used[node.name], self._offered(node))]
        names = {node.name for node in low}
        others = [node for node in nodes if node.name not in names]
        # Autoscalers taint nodes that go, and do not cordon them: they count as room, but no pod tolerates the taint.
        if len(low) <= self.settings.number_of_nodes or all(node.deleting for node in others):
            return None
        room = np.sum([self._offered(node) - used[node.name] for node in others], axis=0)
        low.sort(key=lambda node: (int(used[node.name].sum()), node.name))
        return _Round(room, deque(each for node in low for each in self._candidates(seen, node)))

    def _next(self, now: _Round, seen: Observed) -> str:
        """Return the next pod of a round, empty once there is none (evictPods of nodeutilization.go).

        A pod that a disruption budget protects is passed over, and tried again in the next round.
        """
        of_node = self.settings.max_no_of_pods_to_evict_per_node
        in_all = self.settings.max_no_of_pods_to_evict_total
        while now.left and now.room.min() > 0 and (in_all is None or now.evicted.total() < in_all):
            each = now.left.popleft()
            if each.uid in seen.blocked or (of_node is not None and now.evicted[each.node] >= of_node):
                continue
            now.room = now.room - each.request
            now.evicted[each.node] += 1
            return each.uid
        return ""

    def _candidates(self, seen: Observed, node: OwnedNode) -> list[_Candidate]:
        """Return the pods of a node that may go: the lowest priority first, then the lowest class (pod/pods.go)."""
        found = [pod for pod in seen.pods_on(node.name).values() if self._is_evictable(pod, seen)]
        found.sort(key=lambda pod: (pod.priority, _class(pod)))
        return [_Candidate(node.name, pod.uid, self._request(pod)) for pod in found]

    def _is_evictable(self, pod: Pod, seen: Observed) -> bool:
        """Whether the default evictor lets a pod go (framework/plugins/defaultevictor, Filter)."""
        modes, spared = self.settings.eviction_modes, self.settings.no_eviction_policy == "Mandatory"
        return not (
            pod.owner.partition("/")[0] in _NEVER_EVICTED
            or pod.priority >= _CRITICAL
            or pod.uid in seen.stopping
            or (spared and pod.do_not_disrupt)
            or ("OnlyThresholdingResources" in modes and not self.settings.percent.keys() & pod.requests.keys())
        )

    def _is_low(self, used: IntArray, offered: IntArray) -> bool:
        """Whether no resource with a threshold is used by more than that."""
        return all(100.0 * _share(used, offered, name) <= most for name, most in self.settings.percent.items())

    def _requested(self, seen: Observed, node: OwnedNode) -> IntArray:
        pods = seen.pods_on(node.name).values()
        used: IntArray = np.sum([np.zeros(len(_RESOURCES), np.int64), *map(self._request, pods)], axis=0)
        return used

    def _request(self, pod: Pod) -> IntArray:
        return self.catalogue.request(pod)[: len(_RESOURCES)]

    def _offered(self, node: OwnedNode) -> IntArray:
        return self.catalogue.room[self.catalogue.numbers[node.type.name], : len(_RESOURCES)]


def _share(used: IntArray, offered: IntArray, name: str) -> float:
    column = _RESOURCES.index(name)
    return float(used[column]) / float(offered[column]) if offered[column] else 0.0


def _class(pod: Pod) -> int:
    """Return the place of a pod's quality-of-service class: BestEffort, Burstable, Guaranteed."""
    if pod.qos == "Guaranteed":
        return 2
    return int(any(pod.requests.get(name) for name in (CPU, MEMORY)))
