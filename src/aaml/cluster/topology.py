"""The cluster as a graph: a hub in the middle, racks where nodes carry the label, nodes as leaves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from aaml.cluster.objects import RACK_LABEL
from aaml.cluster.per_state import PerState
from aaml.cluster.state import CPU_COLUMN, ClusterState
from aaml.extras import lazily

if TYPE_CHECKING:
    import networkx as nx
else:  # most of a second: only figures and analysis wait for it
    nx = lazily("networkx")


@dataclass(frozen=True, eq=False)
class Graph:
    """Vertices 0..N-1 are the nodes of the state, hubs follow; `edge_index` int64 [2, E] has both directions."""

    node_count: int
    edge_index: npt.NDArray[np.int64]
    hubs: tuple[str, ...] = ("control-plane",)

    @cached_property
    def vertex_count(self) -> int:
        """V = N + number of hubs."""
        return self.node_count + len(self.hubs)

    @cached_property
    def is_star(self) -> bool:
        """Whether each node hangs on the one hub and on nothing else."""
        return len(self.hubs) == 1 and self.edge_index.shape[1] == 2 * self.node_count


Topology = Callable[[ClusterState], Graph]


def _undirected(pairs: list[tuple[int, int]]) -> npt.NDArray[np.int64]:
    forward = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    return np.hstack([forward, forward[::-1]])


@lru_cache(maxsize=4)
def star(n: int) -> Graph:
    """Return the star of `n` nodes around one hub."""
    return Graph(n, _undirected([(node_index, n) for node_index in range(n)]))


def _star(state: ClusterState) -> Graph:
    return star(len(state))


def _racks(state: ClusterState) -> Graph:
    n = len(state)
    rack_of = [node.labels.get(RACK_LABEL, "") for node in state.nodes]
    racks = sorted(set(rack_of))
    vertex = {rack: n + 1 + i for i, rack in enumerate(racks)}
    pairs = [(node_index, vertex[rack]) for node_index, rack in enumerate(rack_of)] + [
        (vertex[rack], n) for rack in racks
    ]
    return Graph(n, _undirected(pairs), ("control-plane", *(f"rack:{rack}" for rack in racks)))


star_graph: Topology = PerState(_star)
rack_graph: Topology = PerState(_racks)


def to_networkx(state: ClusterState, graph: Graph) -> nx.Graph[str]:
    """Return the graph with names, roles ("node", "control-plane", "rack") and use of CPU, for figures and analysis."""
    result: nx.Graph[str] = nx.Graph()
    used = state.requested[:, CPU_COLUMN] / np.maximum(state.allocatable[:, CPU_COLUMN], 1)
    for node_index, name in enumerate(state.names):
        result.add_node(name, role="node", cpu_used=float(used[node_index]))
    for hub in graph.hubs:
        result.add_node(hub, role=hub.split(":", maxsplit=1)[0])
    names = [*state.names, *graph.hubs]
    result.add_edges_from((names[a], names[b]) for a, b in graph.edge_index.T)
    return result
