"""Which feasible nodes kube-scheduler scores in a large cluster, and which of equally good ones it takes."""

from collections.abc import Sequence

import numpy as np

from aaml.cluster.filters.index import BoolArray, IntArray
from aaml.cluster.objects import Node

_MIN_NODES = 100
_MIN_PERCENTAGE = 5
_ZONES = ("failure-domain.beta.kubernetes.io/zone", "topology.kubernetes.io/zone")
_REGIONS = ("failure-domain.beta.kubernetes.io/region", "topology.kubernetes.io/region")


def nodes_to_find(node_count: int, percentage: int = 0) -> int:
    """Return after how many feasible nodes the search stops.

    A `percentage` of 0 stands for 50 % less one for every 125 nodes, but at least 5 %. At least 100 nodes are looked
    for in any case.
    """
    if node_count < _MIN_NODES:
        return node_count
    percentage = percentage or max(50 - node_count // 125, _MIN_PERCENTAGE)
    return max(node_count * percentage // 100, _MIN_NODES)


def zone_order(nodes: Sequence[Node]) -> IntArray:
    """Return [N] the node indices in the order of the search, which takes one of each zone in turn."""

    def first(node: Node, keys: tuple[str, str]) -> str:
        return next((node.labels[key] for key in keys if key in node.labels), "")

    zones: dict[tuple[str, str], list[int]] = {}
    for node_index, node in enumerate(nodes):
        zones.setdefault((first(node, _REGIONS), first(node, _ZONES)), []).append(node_index)
    turns = max(map(len, zones.values()), default=0)
    return np.array(
        [zone[turn] for turn in range(turns) for zone in zones.values() if turn < len(zone)], dtype=np.int64
    )


def search(mask: BoolArray, order: IntArray, start: int, wanted: int) -> tuple[IntArray, int]:
    """Return the indices of the first `wanted` feasible nodes in search order, and where the next search starts.

    The search begins at position `start`. One beyond the last node, as after nodes were removed, goes on from the
    beginning. kube-scheduler searches in parallel, so its order is only nearly this one.
    """
    size = len(order)
    start %= max(size, 1)
    turned = np.roll(order, -start)
    hits = np.flatnonzero(mask[turned])
    if hits.size <= wanted:
        return turned[hits], start  # all nodes were looked at: round to where it began
    looked_at = int(hits[wanted])  # it notices at one node more than enough
    return turned[hits[:wanted]], (start + looked_at) % size


def heap_top(scores: Sequence[int]) -> int:
    """Return the position of the greatest score that ends up on top when Go's `heap.Init` orders the list."""
    heap = list(range(len(scores)))
    for root in range(len(heap) // 2 - 1, -1, -1):
        at = root
        while (child := 2 * at + 1) < len(heap):
            if child + 1 < len(heap) and scores[heap[child + 1]] > scores[heap[child]]:
                child += 1
            if scores[heap[child]] <= scores[heap[at]]:
                break
            heap[at], heap[child] = heap[child], heap[at]
            at = child
    return heap[0]
