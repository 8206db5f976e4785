"""What nodes cost and what keeps them from being given back, as features; told by whoever buys the nodes of a state."""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np
import numpy.typing as npt

from aaml.cluster.kernels import columns
from aaml.cluster.objects import Pod
from aaml.cluster.state import CPU_COLUMN, MEMORY_COLUMN, PODS_COLUMN, ClusterState
from aaml.scheduling.remaining import log_minutes

FloatArray = npt.NDArray[np.float64]
COST_FEATURES = (
    "price", "price_for_size", "unused_price", "age", "quiet", "kept_pods", "disruption_order", "to_move", "leaving",
)  # fmt: skip
_COST = columns(COST_FEATURES)
_BOTH = [CPU_COLUMN, MEMORY_COLUMN]
_FAR = 8.0


class PaidNode(Protocol):
    """A node that was bought (`aaml.sim.autoscaler.ports.OwnedNode` is one); times are in seconds."""

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

    `quiet_s`: for how long a node must have been without a pod event before it may be given back. `paid(now_s)` returns
    the dollars that the cluster has cost so far, with what long waits and evictions count.
    """

    def __init__(
        self, state: ClusterState, nodes: Mapping[str, PaidNode], quiet_s: float, paid: Callable[[float], float]
    ) -> None:
        self._state, self._nodes, self._quiet_s, self.paid = state, nodes, quiet_s, paid
        self._kept: Counter[str] = Counter()  # by name of the node: pods that may not be disrupted
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
        shown = np.zeros((len(state), len(COST_FEATURES)))
        since_s = np.full(len(state), now_s)
        for row, name in enumerate(state.names):
            node = self._nodes.get(name)
            if node is not None:
                shown[row, _COST.price] = node.price
                shown[row, _COST.age] = now_s - node.launched_s
                shown[row, _COST.leaving] = node.deleting
                last_s = node.initialized_s if node.last_pod_event_s is None else node.last_pod_event_s
                since_s[row] = now_s if last_s is None else last_s
            shown[row, _COST.kept_pods] = self._kept[name]
        shown[:, _COST.age] = log_minutes(np.maximum(shown[:, _COST.age], 0.0))
        shown[:, _COST.quiet] = np.minimum((now_s - since_s) / max(self._quiet_s, 1.0), 1.0)
        shown[:, _COST.kept_pods] = np.log1p(shown[:, _COST.kept_pods]) / 3.0
        self._fill_prices(shown)
        shown[:, _COST.to_move] = self._to_move(shown[:, _COST.leaving] == 0.0)
        return shown.astype(np.float32)

    def faults(self) -> list[str]:
        """Return what differs from a count made anew, in words; empty when nothing does."""
        placed = ((each.node_name, each.pod.do_not_disrupt) for each in self._state.placements.values())
        counted = Counter(name for name, kept in placed if kept)
        return [] if +self._kept == counted else ["pods that may not be disrupted are counted wrongly"]

    def _fill_prices(self, shown: FloatArray) -> None:
        state, price = self._state, shown[:, _COST.price].copy()
        if not price.any():
            return
        size = np.maximum(state.allocatable[:, _BOTH], 1)
        paid = price > 0.0
        for_size = np.where(paid, price, 1.0) / (size / size[paid].mean(axis=0)).sum(axis=1)
        used = np.minimum((state.requested[:, _BOTH] / size).max(axis=1), 1.0)
        order = price / (1.0 + state.requested[:, PODS_COLUMN])
        shown[:, _COST.price] = price / price.max()
        relative = np.log(for_size / for_size[paid].mean())
        shown[:, _COST.price_for_size] = np.where(paid, np.clip(relative, -_FAR, _FAR), 0.0)
        shown[:, _COST.unused_price] = (1.0 - used) * shown[:, _COST.price]
        shown[:, _COST.disruption_order] = order / order.max()

    def _to_move(self, stays: npt.NDArray[np.bool_]) -> FloatArray:
        """Return what a node's pods ask for, of what is free on the other nodes that stay; 1 at most."""
        state = self._state
        requested = state.requested[:, _BOTH].astype(np.float64)
        free = np.where(stays[:, None], np.maximum(state.allocatable[:, _BOTH] - requested, 0.0), 0.0)
        share: FloatArray = (requested / np.maximum(free.sum(axis=0) - free, 1.0)).max(axis=1, initial=0.0)
        return np.minimum(share, 1.0)

    def _observe(self, pod: Pod, node_name: str, *, placed: bool) -> None:
        if pod.do_not_disrupt:
            self._kept[node_name] += 1 if placed else -1
