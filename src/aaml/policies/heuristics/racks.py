"""A score that packs pods with an eye to the racks, so that whole nodes of one rack are left for gangs."""

import logging
from functools import cache

import numpy as np
import numpy.typing as npt

from aaml.cluster.gpu import DEVICE_MILLI
from aaml.cluster.objects import RACK_LABEL
from aaml.cluster.per_state import PerState
from aaml.cluster.state import ClusterState
from aaml.policies.heuristics.scores import most_allocated
from aaml.scheduling.observation import Context
from aaml.scheduling.pod_groups import topology_of_placed

_log = logging.getLogger(__name__)
FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


def _racks_of(state: ClusterState, label: str) -> IntArray:
    """Return [N] the number of each node's rack by a label; nodes without one are in one rack together."""
    names = [node.labels.get(label, "") for node in state.nodes]
    if not any(names):
        _say_once(label)
    return np.unique(names, return_inverse=True)[1].astype(np.int64)


@cache
def _say_once(label: str) -> None:
    _log.warning("rack-packing: no node has the label %s: all nodes count as one rack", label)


_racks: PerState[dict[str, IntArray]] = PerState(lambda _state: {})


def _label_of(context: Context) -> str:
    """Return the label that tells racks: that of the first group among the pods in sight, or of most that run."""
    for pod in (context.pod, *context.upcoming):
        if pod.group is not None and pod.group.topology_key:
            return pod.group.topology_key
    return topology_of_placed(context.state) or RACK_LABEL


def rack_packing(context: Context) -> FloatArray:
    """Score the node with the least GPU free highest; of several, that of the rack with the fewest whole free nodes.

    Then that of the rack with the least GPU free. So small pods go where no gang could. A rack is a value of the label
    by which groups are constrained that are tried, are in sight or run; of `rack` where there is none. In a cluster
    without GPUs it is MostAllocated.
    """
    state = context.state
    if not state.gpu_count.any():
        return most_allocated(context)
    known, label = _racks(state), _label_of(context)
    if label not in known:
        known[label] = _racks_of(state, label)
    rack, whole = known[label], state.gpu_count * DEVICE_MILLI
    free = state.gpu_free.sum(axis=1)
    empty = (free == whole) & (whole > 0)
    empty_in_rack = np.bincount(rack, weights=empty)[rack]
    free_in_rack = np.bincount(rack, weights=free)[rack]
    share = free_in_rack / max(float(free_in_rack.max()), 1.0)  # 0 to 1
    scores: FloatArray = -(free * 2.0 * (len(state) + 1) + 2.0 * empty_in_rack + share)
    return scores
