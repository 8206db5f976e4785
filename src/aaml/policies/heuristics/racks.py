"""A score that packs pods with an eye to the racks, so that whole nodes of one rack are left for gangs."""

import numpy as np
import numpy.typing as npt

from aaml.cluster.gpu import DEVICE_MILLI
from aaml.cluster.objects import RACK_LABEL
from aaml.cluster.per_state import PerState
from aaml.cluster.state import ClusterState
from aaml.policies.heuristics.scores import most_allocated
from aaml.scheduling.observation import Context

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


def _racks_of(state: ClusterState) -> IntArray:
    """Return [N] the number of each node's rack; nodes without a rack are in one together."""
    return np.unique([node.labels.get(RACK_LABEL, "") for node in state.nodes], return_inverse=True)[1].astype(np.int64)


_racks: PerState[IntArray] = PerState(_racks_of)


def rack_packing(context: Context) -> FloatArray:
    """Score the node with the least GPU free highest; of several, that of the rack with the fewest whole free nodes.

    Then that of the rack with the least GPU free. So small pods go where no gang could. In a cluster without GPUs it is
    MostAllocated.
    """
    state = context.state
    if not state.gpu_count.any():
        return most_allocated(context)
    rack, whole = _racks(state), state.gpu_count * DEVICE_MILLI
    free = state.gpu_free.sum(axis=1)
    empty = (free == whole) & (whole > 0)
    empty_in_rack = np.bincount(rack, weights=empty)[rack]
    free_in_rack = np.bincount(rack, weights=free)[rack]
    share = free_in_rack / max(float(free_in_rack.max()), 1.0)  # 0 to 1
    scores: FloatArray = -(free * 2.0 * (len(state) + 1) + 2.0 * empty_in_rack + share)
    return scores
