"""Rewards that read the topology: load spread over racks, and gangs kept within one rack.

A node's rack is its label `rack` (`aaml trace topology` writes it); a node without the label is a rack of its own.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from aaml.cluster.objects import RACK_LABEL
from aaml.cluster.quantity import CPU
from aaml.cluster.state import CPU_COLUMN, ClusterState
from aaml.scheduling.observation import Context

_CLIP = 2.0


def rack_of(state: ClusterState) -> npt.NDArray[np.int64]:
    """Return int64 [N], the number of each node's rack."""
    names = [node.labels.get(RACK_LABEL) or f"node:{node.name}" for node in state.nodes]
    return np.unique(names, return_inverse=True)[1].reshape(-1).astype(np.int64)


def rack_use(state: ClusterState) -> npt.NDArray[np.float64]:
    """Return float64 [racks], CPU requested over allocatable of each rack with capacity."""
    rack, counted = rack_of(state), state.capacity
    used = np.bincount(rack, weights=np.where(counted, state.requested[:, CPU_COLUMN], 0))
    offered = np.bincount(rack, weights=np.where(counted, state.allocatable[:, CPU_COLUMN], 0))
    return np.asarray(used[offered > 0] / offered[offered > 0])


@dataclass(slots=True)
class RackSpread:
    """How much the use of CPU gets more even over the racks.

    It is the fall of the standard deviation of the racks' use, times the number of racks, over what the pod asks for as
    a share of the mean rack; clipped to -2 ... 2.
    """

    _before: float = 0.0
    range: ClassVar[tuple[float, float]] = (-_CLIP, _CLIP)

    def before(self, context: Context) -> None:
        """Remember the deviation."""
        self._before = float(rack_use(context.state).std())

    def after(self, context: Context, node_index: int) -> float:  # noqa: ARG002
        """Return the fall in units of what the pod could change at most."""
        state, use = context.state, rack_use(context.state)
        offered = float(state.allocatable[state.capacity, CPU_COLUMN].sum()) / max(len(use), 1)
        share = context.pod.request(CPU) / max(offered, 1.0)
        if share <= 0 or not len(use):
            return 0.0
        return float(np.clip((self._before - float(use.std())) * len(use) / share, -_CLIP, _CLIP))


@dataclass(slots=True)
class GangRack:
    """The share of a gang's placed members that are in the chosen rack.

    It is 1 for the first member of a gang, and 0 for a pod without one.
    """

    range: ClassVar[tuple[float, float]] = (0.0, 1.0)

    def before(self, context: Context) -> None:
        """Nothing to remember."""

    def after(self, context: Context, node_index: int) -> float:
        """Return the share."""
        pod, state = context.pod, context.state
        if pod.group is None:
            return 0.0
        racks = rack_of(state)
        others = [
            racks[state.index[placement.node_name]]
            for placement in state.placements.values()
            if placement.pod.group_key == pod.group_key and placement.pod.uid != pod.uid
        ]
        return float(np.mean(np.asarray(others) == racks[node_index])) if others else 1.0
