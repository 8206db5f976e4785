"""Observations of any node counts as one padded batch of tensors, and the cluster's graph as a normalised adjacency."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from aaml.cluster.topology import Graph
from aaml.scheduling.observation import Observation


@dataclass(frozen=True)
class Adjacency:
    """D^-1 (A + I) of a graph as compressed sparse rows over its V vertices.

    Every row is a mean over a vertex and its neighbours. Kipf and Welling (2017) normalise by D^-1/2 on both sides,
    which makes the sum at a hub grow with the square root of the node count; a mean does not depend on it, and one
    checkpoint has to fit any cluster.
    """

    offsets: npt.NDArray[np.int64]  # [V + 1]
    sources: npt.NDArray[np.int64]  # [nnz]
    weights: npt.NDArray[np.float32]  # [nnz]

    @property
    def vertex_count(self) -> int:
        """V, nodes and hubs."""
        return len(self.offsets) - 1


_adjacencies: WeakKeyDictionary[Graph, Adjacency] = WeakKeyDictionary()


def adjacency(graph: Graph) -> Adjacency:
    """Return the graph's normalised adjacency, computed once as long as the graph lives."""
    known = _adjacencies.get(graph)
    if known is None:
        v = graph.vertex_count
        loops = np.arange(v)
        sources = np.concatenate([graph.edge_index[0], loops])
        targets = np.concatenate([graph.edge_index[1], loops])
        order = np.lexsort((sources, targets))
        degree = np.bincount(targets, minlength=v)
        offsets = np.concatenate([[0], np.cumsum(degree)])
        known = Adjacency(offsets, sources[order], (1.0 / degree[targets[order]]).astype(np.float32))
        _adjacencies[graph] = known
    return known


@dataclass(frozen=True)
class Batch:
    """B observations, padded to the largest node count N; a padded row is zero, so neither a choice nor capacity.

    =========  ===========  ================================================================================
    nodes      [B, N, F]    features of nodes
    pairs      [B, N, K]    features of this pod on that node
    pod        [B, P]       features of the pod
    mask       bool [B, N]  rows that may be chosen
    vertices   int [B * N]  where each node is among the stacked vertices of all graphs; -1 for padding
    edges      int [2, E]   all graphs stacked (self loops included): from, to; None unless a GNN asked for them
    weights    [E]          weight of each edge
    hubs       int [H]      the stacked vertices that are hubs
    counts     int [B]      how many nodes each has, where every graph is a star and needs no edges
    =========  ===========  ================================================================================
    """

    nodes: Tensor
    pairs: Tensor
    pod: Tensor
    mask: Tensor
    vertices: Tensor | None = None
    edges: Tensor | None = None
    weights: Tensor | None = None
    hubs: Tensor | None = None
    vertex_count: int = 0
    counts: Tensor | None = None

    def __len__(self) -> int:
        """B."""
        return len(self.pod)

    def first(self, features: int, pair_features: int) -> "Batch":
        """Return the batch with so many of the features of nodes and pairs, the first: a model's own."""
        if self.nodes.shape[2] == features and self.pairs.shape[2] == pair_features:
            return self
        return replace(self, nodes=self.nodes[:, :, :features], pairs=self.pairs[:, :, :pair_features])

    def take(self, rows: Tensor) -> "Batch":
        """Return some of the observations, of a batch whose graphs are stars."""
        counts = None if self.counts is None else self.counts[rows]
        return Batch(self.nodes[rows], self.pairs[rows], self.pod[rows], self.mask[rows], counts=counts)


def joined(batches: Sequence[Batch]) -> Batch:
    """Return batches of stars, all padded to the same node count, as one."""
    return Batch(
        torch.cat([batch.nodes for batch in batches]),
        torch.cat([batch.pairs for batch in batches]),
        torch.cat([batch.pod for batch in batches]),
        torch.cat([batch.mask for batch in batches]),
        counts=torch.cat([batch.counts for batch in batches if batch.counts is not None]),
    )


def _pad(arrays: Sequence[npt.NDArray[np.generic]], n: int) -> npt.NDArray[np.generic]:
    if all(len(array) == n for array in arrays):
        return np.stack(arrays)
    result = np.zeros((len(arrays), n, *arrays[0].shape[1:]), dtype=arrays[0].dtype)
    for row, array in zip(result, arrays, strict=True):
        row[: len(array)] = array
    return result


def collate(observations: Sequence[Observation], graphs: bool = True) -> Batch:
    """Stack observations; `graphs` False leaves the edges out, which an MLP does not read."""
    counts = np.array([len(observation.mask) for observation in observations])
    n = int(counts.max())
    batch = Batch(
        nodes=torch.from_numpy(_pad([o.nodes for o in observations], n)),
        pairs=torch.from_numpy(_pad([o.pairs for o in observations], n)),
        pod=torch.from_numpy(np.stack([o.pod for o in observations])),
        mask=torch.from_numpy(_pad([o.mask for o in observations], n)),
    )
    if not graphs:
        return batch
    parts = [adjacency(observation.graph) for observation in observations]
    sizes = np.array([part.vertex_count for part in parts])
    starts = np.concatenate([[0], np.cumsum(sizes)])
    per_edge = np.repeat(starts[:-1], [len(part.sources) for part in parts])
    sources = np.concatenate([part.sources for part in parts]) + per_edge
    degrees = np.concatenate([np.diff(part.offsets) for part in parts])
    targets = np.repeat(np.arange(starts[-1]), degrees)
    within = np.arange(n)[None, :]
    vertices = np.where(within < counts[:, None], starts[:-1, None] + within, -1)
    is_node = np.zeros(starts[-1], dtype=np.bool_)
    is_node[vertices[vertices >= 0]] = True
    return replace(
        batch,
        vertices=torch.from_numpy(vertices.reshape(-1)),
        edges=torch.from_numpy(np.stack([sources, targets])),
        weights=torch.from_numpy(np.concatenate([part.weights for part in parts])),
        hubs=torch.from_numpy(np.flatnonzero(~is_node)),
        vertex_count=int(starts[-1]),
    )
