"""Observations of any node counts as one padded batch of tensors."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from aaml.learning.convolution import Adjacency, stacked, stars
from aaml.scheduling.observation import Observation


@dataclass(frozen=True)
class Batch:
    """B observations, padded to the largest node count N; a padded node is zero, so neither a choice nor capacity.

    =========  ===========  ================================================================================
    nodes      [B, N, F]    features of nodes
    pairs      [B, N, K]    features of this pod on that node
    pod        [B, P]       features of the pod
    mask       bool [B, N]  nodes that may be chosen
    counts     int [B]      how many nodes each has, where every graph is a star
    edges      Adjacency    all graphs stacked, N nodes and `hubs` hubs each, where not every one is a star
    =========  ===========  ================================================================================

    Without `counts` and `edges` only an MLP can read it.
    """

    nodes: Tensor
    pairs: Tensor
    pod: Tensor
    mask: Tensor
    counts: Tensor | None = None
    edges: Adjacency | None = None
    hubs: int = 1

    def __len__(self) -> int:
        """B."""
        return len(self.pod)

    def first(self, features: int, pair_features: int) -> "Batch":
        """Return the batch with so many of the features of nodes and pairs, the first: a model's own."""
        if self.nodes.shape[2] == features and self.pairs.shape[2] == pair_features:
            return self
        return replace(self, nodes=self.nodes[:, :, :features], pairs=self.pairs[:, :, :pair_features])

    @cached_property
    def adjacency(self) -> Adjacency:
        """All graphs stacked. Raises ValueError for a batch without graphs."""
        if self.counts is not None:
            return stars(self.counts.cpu().numpy(), int(self.nodes.shape[1]))
        if self.edges is None:
            raise ValueError("a GNN needs a batch with graphs: collate(observations, graphs=True)")
        return self.edges

    def take(self, rows: Tensor) -> "Batch":
        """Return some of the observations, of a batch whose graphs are stars."""
        counts = None if self.counts is None else self.counts[rows]
        return Batch(self.nodes[rows], self.pairs[rows], self.pod[rows], self.mask[rows], counts=counts)


def joined(batches: Sequence[Batch]) -> Batch:
    """Return batches of stars as one, padded to the most nodes of any."""
    most = max(batch.mask.shape[1] for batch in batches)
    return Batch(
        torch.cat([widened(batch.nodes, most) for batch in batches]),
        torch.cat([widened(batch.pairs, most) for batch in batches]),
        torch.cat([batch.pod for batch in batches]),
        torch.cat([widened(batch.mask, most) for batch in batches]),
        counts=torch.cat([batch.counts for batch in batches if batch.counts is not None]),
    )


def widened(rows: Tensor, nodes: int) -> Tensor:
    """Return a tensor [B, N, ...] with zeros for further nodes; itself where it has as many."""
    missing = nodes - rows.shape[1]
    return rows if missing == 0 else torch.cat([rows, rows.new_zeros(len(rows), missing, *rows.shape[2:])], dim=1)


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
    if all(observation.graph.is_star for observation in observations):
        return replace(batch, counts=torch.from_numpy(counts))
    edges, hubs = stacked([observation.graph for observation in observations])
    return replace(batch, edges=edges, hubs=hubs)
