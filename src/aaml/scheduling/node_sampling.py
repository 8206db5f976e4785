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
    start: int = 0
    """The node index at which the next pod's sample begins."""

    def enough(self, nodes: int) -> int:
        """Return how many feasible nodes are enough of a cluster of so many."""
        share = self.percentage or max(50 - nodes // 125, _AT_LEAST_PERCENT)
        return nodes if share >= ALL else max(nodes * share // 100, min(_AT_LEAST, nodes))

    def node_indices(self, mask: npt.NDArray[np.bool_]) -> npt.NDArray[np.intp]:
        """Return the nodes to score of those in `mask` [N] where the pod may go; the next call goes on after them."""
        node_indices = next_feasible(mask, self.start, self.enough(len(mask)))
        self.start = (int(node_indices[-1]) + 1) % len(mask)
        return node_indices


def next_feasible(mask: npt.NDArray[np.bool_], start: int, count: int) -> npt.NDArray[np.intp]:
    """Return the first `count` feasible nodes of `mask` [N] from index `start` on, and on from 0."""
    feasible = np.flatnonzero(mask)
    if len(feasible) <= count:
        return feasible
    first = int(np.searchsorted(feasible, start))
    return np.take(feasible, np.arange(first, first + count), mode="wrap")
