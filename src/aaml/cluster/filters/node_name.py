"""NodeName: a pod that names its node fits only there."""

import numpy as np

from aaml.cluster.filters.index import BoolArray, FilterIndex
from aaml.cluster.filters.plugin import Filter, one_reason
from aaml.cluster.objects import Pod


def passes(index: FilterIndex, pod: Pod) -> BoolArray | None:
    """Return [N] the named node; None when the pod names none."""
    if not pod.node_name:
        return None
    mask = np.zeros(len(index.state), dtype=np.bool_)
    node_index = index.state.index.get(pod.node_name)
    if node_index is not None:
        mask[node_index] = True
    return mask


FILTER = Filter("NodeName", passes, one_reason("node(s) didn't match the requested node name", unresolvable=True))
