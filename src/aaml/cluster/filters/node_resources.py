"""NodeResourcesFit: what the pod requests of every resource is free on the node, and the node takes one more pod."""

import numpy as np

from aaml.cluster.filters.index import BoolArray, FilterIndex
from aaml.cluster.filters.plugin import Filter, Rejection
from aaml.cluster.objects import Pod
from aaml.cluster.quantity import CPU, EPHEMERAL_STORAGE, MEMORY, PODS

_FIRST = (CPU, MEMORY, EPHEMERAL_STORAGE)


def passes(index: FilterIndex, pod: Pod) -> BoolArray | None:
    """Return [N] nodes with room; a resource of which the pod requests 0 is not looked at."""
    state = index.state
    allocatable, requested, columns = state.allocatable, state.requested, state.resource_index
    column = columns[PODS]
    mask: BoolArray = requested[:, column] < allocatable[:, column]
    for name, amount in pod.requests.items():
        if not amount:
            continue
        column = columns.get(name, -1)
        if column < 0:  # no node ever offered it
            return np.zeros(len(state), dtype=np.bool_)
        mask &= allocatable[:, column] - requested[:, column] >= amount
    return mask


def explain(index: FilterIndex, pod: Pod, candidates: BoolArray) -> Rejection:
    """Name every resource that is short; it is unresolvable where the node is too small even when empty."""
    state = index.state
    too_small = np.zeros_like(candidates)
    column = state.resource_index[PODS]
    full = candidates & (state.requested[:, column] + 1 > state.allocatable[:, column])
    reasons = [("Too many pods", full)]
    names = sorted(pod.requests, key=lambda name: (name not in _FIRST, name))
    for name in names:
        amount = pod.requests[name]
        if not amount:
            continue
        if name in state.resource_index:
            column = state.resource_index[name]
            offered, taken = state.allocatable[:, column], state.requested[:, column]
            short, never = candidates & (offered - taken < amount), candidates & (offered < amount)
        else:
            short = never = candidates
        reasons.append((f"Insufficient {name}", short))
        too_small |= never
    return Rejection(tuple(reasons), too_small)


FILTER = Filter("NodeResourcesFit", passes, explain)
