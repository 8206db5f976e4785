"""NodeDeclaredFeatures: the node's kubelet declares every feature that the pod cannot run without."""

from typing import cast

import numpy as np

from aaml.cluster.filters.index import BoolArray, FilterIndex
from aaml.cluster.filters.plugin import Filter, one_reason
from aaml.cluster.objects import Pod


def passes(index: FilterIndex, pod: Pod) -> BoolArray | None:
    """Return [N] nodes that declare what the pod requires; None when it requires nothing."""
    required = pod.required_features
    if not required:
        return None

    def build() -> BoolArray:
        return np.array([required <= node.declared_features for node in index.state.nodes], dtype=np.bool_)

    return cast("BoolArray", index.cached(("declared_features", required), build))


FILTER = Filter(
    "NodeDeclaredFeatures", passes, one_reason("node(s) didn't match Pod's required features", unresolvable=True)
)
