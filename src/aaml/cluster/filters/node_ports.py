"""NodePorts: host ports that are free on the node."""

import numpy as np

from aaml.cluster.filters.index import BoolArray, FilterIndex
from aaml.cluster.filters.plugin import Filter, one_reason
from aaml.cluster.objects import Pod


def passes(index: FilterIndex, pod: Pod) -> BoolArray | None:
    """Return [N] nodes where every host port of the pod is free; None when it has none."""
    if not pod.host_ports:
        return None
    mask = np.ones(len(index.state), dtype=np.bool_)
    for each in pod.host_ports:
        for name in index.ports_in_conflict(each.protocol, each.port, each.host_ip):
            mask[index.state.index[name]] = False
    return mask


FILTER = Filter(
    "NodePorts", passes, one_reason("node(s) didn't have free ports for the requested pod ports", unresolvable=False)
)
