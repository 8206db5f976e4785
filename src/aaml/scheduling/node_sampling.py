"""Scoring some of the feasible nodes of a large cluster, as kube-scheduler's `percentageOfNodesToScore` does."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_AT_LEAST = 100  # nodes; smaller clusters are scored whole
_AT_LEAST_PERCENT = 5
ALL = 100


@dataclass
class NodeSampling:
    """Takes the next feasible nodes in turn, so that over many pods each node is looked at as often as any other.

    `percentage` of the nodes, but 100 nodes at least; 0: fewer of them the larger the cluster is, 50% less one for each
    125 nodes, and 5% at least.
    """

    percentage: int
    _start: int = 0

    def enough(self, nodes: int) -> int:
        """Return how many feasible nodes are enough of a cluster of so many."""
        share = self.percentage or max(50 - nodes // 125, _AT_LEAST_PERCENT)
        return nodes if share >= ALL else max(nodes * share // 100, min(_AT_LEAST, nodes))

    def rows(self, mask: npt.NDArray[np.bool_]) -> npt.NDArray[np.intp]:
        """Return the rows to score of those in `mask` [N] where the pod may go; the next call goes on after them."""
        feasible = np.flatnonzero(mask)
        enough = self.enough(len(mask))
        if len(feasible) <= enough:
            return feasible
        first = int(np.searchsorted(feasible, self._start % len(mask)))
        rows = np.take(feasible, np.arange(first, first + enough), mode="wrap")
        self._start = int(rows[-1]) + 1
        return rows
