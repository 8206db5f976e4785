"""TaintToleration: a node's NoSchedule and NoExecute taints keep away pods that do not tolerate them."""

import numpy as np

from aaml.cluster.filters.index import BoolArray, FilterIndex, IntArray
from aaml.cluster.filters.plugin import Filter, one_reason
from aaml.cluster.objects import Pod, Taint
from aaml.cluster.selectors import has_untolerated_taint


def taint_sets(index: FilterIndex) -> tuple[list[tuple[Taint, ...]], IntArray]:
    """Return the distinct sets of taints, and [N] which one each node has: nodes share few."""

    def build() -> tuple[list[tuple[Taint, ...]], IntArray]:
        numbers: dict[tuple[Taint, ...], int] = {}
        codes = [numbers.setdefault(node.taints, len(numbers)) for node in index.state.nodes]
        return list(numbers), np.array(codes, dtype=np.int64)

    sets, codes = index.cached("taint_sets", build)
    return sets, codes


def passes(index: FilterIndex, pod: Pod) -> BoolArray | None:
    """Return [N] nodes whose taints the pod tolerates."""
    sets, codes = taint_sets(index)
    tolerable = np.array([not has_untolerated_taint(pod.tolerations, taints) for taints in sets], dtype=np.bool_)
    return None if tolerable.all() else tolerable[codes]


FILTER = Filter("TaintToleration", passes, one_reason("node(s) had untolerated taint(s)", unresolvable=True))
