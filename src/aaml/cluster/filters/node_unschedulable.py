"""NodeUnschedulable: cordoned nodes take only pods that tolerate the unschedulable taint."""

from aaml.cluster.filters.index import BoolArray, FilterIndex
from aaml.cluster.filters.plugin import Filter, one_reason
from aaml.cluster.objects import Pod
from aaml.cluster.selectors import UNSCHEDULABLE_TAINT, tolerated


def passes(index: FilterIndex, pod: Pod) -> BoolArray | None:
    """Return [N] nodes that are not cordoned; None when the pod does not mind."""
    if not index.state.unschedulable.any() or tolerated(pod.tolerations, UNSCHEDULABLE_TAINT):
        return None
    return ~index.state.unschedulable


FILTER = Filter("NodeUnschedulable", passes, one_reason("node(s) were unschedulable", unresolvable=True))
