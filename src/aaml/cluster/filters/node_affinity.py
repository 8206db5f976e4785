"""NodeAffinity: nodeSelector and required node-affinity terms."""

from collections.abc import Hashable
from typing import cast

import numpy as np

from aaml.cluster.filters.index import BoolArray, FilterIndex
from aaml.cluster.filters.plugin import Filter, one_reason
from aaml.cluster.objects import NodeSelectorTerm, Pod
from aaml.cluster.selectors import NAME_FIELD, matches_node_term, matches_required_nodes


def selection_key(pod: Pod) -> Hashable:
    """Return what identifies the pod's demands on nodes' labels; equal keys select the same nodes."""
    selector = tuple(sorted(pod.node_selector.items())) if pod.node_selector else ()
    return selector, pod.affinity.required_nodes


def passes(index: FilterIndex, pod: Pod) -> BoolArray | None:
    """Return [N] nodes that the pod's selector and required terms select; None when it has neither."""
    if not pod.node_selector and pod.affinity.required_nodes is None:
        return None

    def build() -> BoolArray:
        return np.array([matches_required_nodes(pod, node) for node in index.state.nodes], dtype=np.bool_)

    return cast("BoolArray", index.cached(("node_affinity", selection_key(pod)), build))


def term_mask(index: FilterIndex, term: NodeSelectorTerm) -> BoolArray:
    """Return [N] nodes that satisfy one term."""

    def build() -> BoolArray:
        return np.array([matches_node_term(term, node) for node in index.state.nodes], dtype=np.bool_)

    return cast("BoolArray", index.cached(("node_term", term), build))


def named_nodes(pod: Pod) -> frozenset[str] | None:
    """Return the nodes that the terms name by `metadata.name`, None when a term leaves the name open."""
    if not pod.affinity.required_nodes:
        return None
    names: frozenset[str] = frozenset()
    for term in pod.affinity.required_nodes:
        given = [frozenset(each.values) for each in term.fields if each.key == NAME_FIELD and each.operator == "In"]
        if not given:
            return None
        names |= frozenset.intersection(*given)
    return names


def conflict(_index: FilterIndex, pod: Pod) -> str:
    """Say when the terms name nodes that contradict each other."""
    return "pod affinity terms conflict" if named_nodes(pod) == frozenset() else ""


FILTER = Filter(
    "NodeAffinity",
    passes,
    one_reason("node(s) didn't match Pod's node affinity/selector", unresolvable=True),
    conflict,
)
