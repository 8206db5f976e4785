"""Figures of a cluster's state for curves and tables."""

import numpy as np
import numpy.typing as npt

from aaml.cluster.quantity import CPU
from aaml.cluster.state import ClusterState


def used_fraction(state: ClusterState, resource: str) -> npt.NDArray[np.float64]:
    """Return [N] requested over allocatable of one resource; 0 where a node offers none of it."""
    used = np.zeros(len(state))
    column = state.resource_index.get(resource)
    if column is not None:
        allocatable = state.allocatable[:, column]
        np.divide(state.requested[:, column], allocatable, out=used, where=allocatable > 0)
    return used


def cpu_variance(state: ClusterState) -> float:
    """Return the population variance of the requested fraction of CPU over the nodes that are capacity."""
    used = used_fraction(state, CPU)[state.capacity]
    return float(used.var()) if len(used) else 0.0
