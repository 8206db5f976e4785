"""What nodes cost and what keeps them from being given back, as features; told by whoever buys the nodes of a state."""

import math
from collections import Counter
from collections.abc import Callable, Mapping
from math import inf
from typing import Protocol

import numpy as np
import numpy.typing as npt

from aaml.cluster.kernels import columns, inlined, interpreted, without_refcount
from aaml.cluster.objects import Pod
from aaml.cluster.state import CPU_COLUMN, MEMORY_COLUMN, PODS_COLUMN, ClusterState
from aaml.scheduling.remaining import log_minutes

FloatArray = npt.NDArray[np.float64]
FeatureArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]
COST_FEATURES = (
    "price", "price_for_size", "unused_price", "age", "quiet", "kept_pods", "disruption_order", "to_move", "leaving",
)  # fmt: skip
PAID = columns(("price", "launched_s", "last_event_s", "kept_pods", "leaving"))
"""What `show_costs` is told of each node; a node that nobody bought has the price 0, and the present as its times."""
PAID_COLUMNS = 5
_COST = columns(COST_FEATURES)
_FAR = 8.0


@inlined
def released_s(bound_s: float, kept_s: float) -> float:
    """Return when a pod may be evicted that may not be for `kept_s` after its start.

    It starts when it is bound, a time that the API server keeps in whole seconds.
    """
    return math.floor(bound_s) + kept_s


@inlined
def is_released(at_s: float, now_s: float) -> bool:
    """Whether a pod may be evicted now that may be from `at_s` on."""
    return at_s <= now_s


class PaidNode(Protocol):
    """A node that was bought (`aaml.nodes.ports.OwnedNode` is one); times are in seconds."""

    launched_s: float
    initialized_s: float | None
    last_pod_event_s: float | None
    deleting: bool

    @property
    def price(self) -> float:
        """Dollars an hour."""
        ...


class NodeCosts:
    """The nodes of one state that are paid for, by name; those that nobody bought cost nothing.

    `consolidatable_s`: for how long a node must have been without a pod event before it may be given back.
    `paid(now_s)` returns the dollars that the cluster has cost so far, with what long waits and evictions count.
    """

    def __init__(
        self,
        state: ClusterState,
        nodes: Mapping[str, PaidNode],
        consolidatable_s: float,
        paid: Callable[[float], float],
    ) -> None:
        self._state, self._nodes, self._consolidatable_s, self.paid = state, nodes, consolidatable_s, paid
        self._kept: Counter[str] = Counter()  # by name of the node: pods that may not be disrupted, now or once
        self.released_s: dict[str, float] = {}  # by uid: when those of them may be disrupted that are kept for a time
        for placement in state.placements.values():
            self._observe(placement.pod, placement.node_name, placed=True)
        state.observe(lambda pod, node_name, placed: self._observe(pod, node_name, placed=placed))
        state.indexes[NodeCosts] = self

    @staticmethod
    def of(state: ClusterState) -> "NodeCosts | None":
        """Return what is known of the costs of a state's nodes, None where nobody buys them."""
        found: NodeCosts | None = state.indexes.get(NodeCosts)
        return found

    def prices(self) -> FloatArray:
        """Return float64 [N], dollars an hour."""
        nodes = map(self._nodes.get, self._state.names)
        return np.array([0.0 if node is None else node.price for node in nodes], dtype=np.float64)

    def features(self, now_s: float) -> npt.NDArray[np.float32]:
        """Return float32 [N, C], `COST_FEATURES` of each node."""
        state = self._state
        paid = np.zeros((PAID_COLUMNS, len(state)))
        paid[PAID.launched_s : PAID.last_event_s + 1] = now_s
        for row, name in enumerate(state.names):
            node = self._nodes.get(name)
            if node is not None:
                last_s = node.initialized_s if node.last_pod_event_s is None else node.last_pod_event_s
                paid[PAID.price, row], paid[PAID.launched_s, row] = node.price, node.launched_s
                paid[PAID.last_event_s, row] = now_s if last_s is None else last_s
                paid[PAID.leaving, row] = node.deleting
        paid[PAID.kept_pods] = self._kept_pods(now_s)
        shown = np.zeros((len(state), len(COST_FEATURES)), dtype=np.float32)
        show_costs(paid, state.allocatable, state.requested, now_s, self._consolidatable_s, shown)
        return shown

    def faults(self) -> list[str]:
        """Return what differs from a count made anew, in words; empty when nothing does."""
        placed = ((each.node_name, each.pod.do_not_disrupt) for each in self._state.placements.values())
        counted = Counter(name for name, kept in placed if kept)
        return [] if +self._kept == counted else ["pods that may not be disrupted are counted wrongly"]

    def _observe(self, pod: Pod, node_name: str, *, placed: bool) -> None:
        if not pod.do_not_disrupt:
            return
        self._kept[node_name] += 1 if placed else -1
        if not placed:
            self.released_s.pop(pod.uid, None)
        elif pod.do_not_disrupt_s < inf:
            since_s = self._state.placements[pod.uid].since_s
            self.released_s[pod.uid] = interpreted(released_s)(since_s, pod.do_not_disrupt_s)

    def _kept_pods(self, now_s: float) -> list[int]:
        """Return how many pods of each node may not be disrupted now."""
        may_go, placements = interpreted(is_released), self._state.placements
        released = Counter(placements[uid].node_name for uid, at_s in self.released_s.items() if may_go(at_s, now_s))
        return [self._kept[name] - released[name] for name in self._state.names]


@without_refcount
def show_costs(
    paid: FloatArray, allocatable: IntArray, requested: IntArray, now_s: float, consolidatable_s: float,
    shown: FeatureArray,
) -> None:  # fmt: skip
    """Write `COST_FEATURES` into `shown` [N, C], from `paid` float64 [PAID_COLUMNS, >= N]; unpaid: price 0."""
    count, dearest, first, size_cpu, size_memory, free_cpu, free_memory = 0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    for i in range(len(shown)):
        price = paid[PAID.price, i]
        if price > 0.0:
            count += 1
            size_cpu += max(allocatable[i, CPU_COLUMN], 1)
            size_memory += max(allocatable[i, MEMORY_COLUMN], 1)
            dearest, first = max(dearest, price), max(first, price / (1.0 + requested[i, PODS_COLUMN]))
        if not paid[PAID.leaving, i]:
            free_cpu += max(allocatable[i, CPU_COLUMN] - requested[i, CPU_COLUMN], 0.0)
            free_memory += max(allocatable[i, MEMORY_COLUMN] - requested[i, MEMORY_COLUMN], 0.0)
    mean_for_size = 0.0
    for i in range(len(shown)):
        if paid[PAID.price, i] > 0.0:
            mean_for_size += _price_for_size(paid, allocatable, i, size_cpu / count, size_memory / count) / count
    for i in range(len(shown)):
        price, cpu, memory = paid[PAID.price, i], requested[i, CPU_COLUMN], requested[i, MEMORY_COLUMN]
        used = max(cpu / max(allocatable[i, CPU_COLUMN], 1), memory / max(allocatable[i, MEMORY_COLUMN], 1))
        if price > 0.0:
            relative = _price_for_size(paid, allocatable, i, size_cpu / count, size_memory / count) / mean_for_size
            shown[i, _COST.price] = price / dearest
            shown[i, _COST.price_for_size] = min(max(np.log(relative), -_FAR), _FAR)
            shown[i, _COST.unused_price] = (1.0 - min(used, 1.0)) * (price / dearest)
            shown[i, _COST.disruption_order] = price / (1.0 + requested[i, PODS_COLUMN]) / first
        shown[i, _COST.age] = log_minutes(max(now_s - paid[PAID.launched_s, i], 0.0))
        shown[i, _COST.quiet] = min((now_s - paid[PAID.last_event_s, i]) / max(consolidatable_s, 1.0), 1.0)
        shown[i, _COST.kept_pods] = np.log1p(paid[PAID.kept_pods, i]) / 3.0
        shown[i, _COST.leaving] = paid[PAID.leaving, i]
        other_cpu, other_memory = free_cpu, free_memory
        if not paid[PAID.leaving, i]:
            other_cpu -= max(allocatable[i, CPU_COLUMN] - cpu, 0.0)
            other_memory -= max(allocatable[i, MEMORY_COLUMN] - memory, 0.0)
        shown[i, _COST.to_move] = min(max(cpu / max(other_cpu, 1.0), memory / max(other_memory, 1.0)), 1.0)


@without_refcount
def _price_for_size(paid: FloatArray, allocatable: IntArray, i: int, mean_cpu: float, mean_memory: float) -> float:
    """Return the price of a node for its CPU and memory, each of a mean node's."""
    cpu, memory = max(allocatable[i, CPU_COLUMN], 1), max(allocatable[i, MEMORY_COLUMN], 1)
    return paid[PAID.price, i] / (cpu / mean_cpu + memory / mean_memory)
