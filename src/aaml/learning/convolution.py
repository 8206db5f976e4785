"""The graph convolution in compiled code: what torch-geometric's `GCNConv` gives on the CPU, to act and to train.

`aaml.learning.networks` says what is computed; here is how it is computed fast. A layer is relu(A X W + b) with
A = D^-1 (A' + I): each vertex gets the mean over itself and its neighbours. Kipf and Welling (2017) normalise by D^-1/2
on both sides, which makes the sum at a hub grow with the square root of the node count; a mean does not depend on it,
and one checkpoint has to fit any cluster.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any
from weakref import WeakKeyDictionary

import numba
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from aaml.cluster.kernel_cache import keep
from aaml.cluster.kernels import compiled
from aaml.cluster.topology import Graph

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Adjacency:
    """A of V vertices as compressed sparse rows, nnz entries: vertex v has those from offsets[v] to offsets[v + 1].

    =========  ==============  ==========================================================
    offsets    int64 [V + 1]   where each vertex' entries begin
    sources    int64 [nnz]     whose values a vertex gets; its own among them
    weights    float32 [nnz]   how much of them
    =========  ==============  ==========================================================
    """

    offsets: IntArray
    sources: IntArray
    weights: FloatArray

    @property
    def vertex_count(self) -> int:
        """V, nodes and hubs."""
        return len(self.offsets) - 1

    @cached_property
    def transposed(self) -> FloatArray:
        """The weights of A's transpose: where vertices hear of one another, it has entries where A has them."""
        degree = np.maximum(np.diff(self.offsets), 1)
        return np.asarray((1.0 / degree)[self.sources], dtype=np.float32)

    def edges(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return the entries on a device, copied to a GPU once: int64 [2, nnz], from and to, and the weights [nnz]."""
        if device in self._edges:
            return self._edges[device]
        targets = np.repeat(np.arange(self.vertex_count), np.diff(self.offsets))
        found = torch.from_numpy(np.stack([self.sources, targets])), torch.from_numpy(self.weights)
        if device.type == "cpu":
            return found
        self._edges[device] = found[0].to(device), found[1].to(device)
        return self._edges[device]

    @cached_property
    def _edges(self) -> dict[torch.device, tuple[Tensor, Tensor]]:
        return {}


_known: WeakKeyDictionary[Graph, Adjacency] = WeakKeyDictionary()


def adjacency(graph: Graph) -> Adjacency:
    """Return the adjacency of a graph, computed once as long as the graph lives."""
    known = _known.get(graph)
    if known is None:
        vertices = np.arange(graph.vertex_count)
        known = _known[graph] = _of_edges(np.hstack([graph.edge_index, [vertices, vertices]]), graph.vertex_count)
    return known


def _of_edges(edges: IntArray, vertex_count: int) -> Adjacency:
    """Return the adjacency of edges int64 [2, nnz], those of vertices to themselves among them."""
    sources, targets = edges
    order = np.lexsort((sources, targets))
    degree = np.bincount(targets, minlength=vertex_count)
    offsets = np.concatenate([[0], np.cumsum(degree)])
    return Adjacency(offsets, sources[order], (1.0 / degree[targets[order]]).astype(np.float32))


def stacked(graphs: Sequence[Graph]) -> tuple[Adjacency, int]:
    """Return many graphs as one, each padded to the most nodes and hubs of any, and how many hubs that are.

    Vertex v of the largest cluster's N nodes and H hubs is at b (N + H) + v in graph b. What pads has no entries.
    """
    nodes, hubs = max(graph.node_count for graph in graphs), max(len(graph.hubs) for graph in graphs)
    edges = []
    for number, graph in enumerate(graphs):
        place = np.arange(graph.vertex_count)
        place[graph.node_count :] += nodes - graph.node_count
        place += number * (nodes + hubs)
        edges += [place[graph.edge_index], np.stack([place, place])]
    return _of_edges(np.hstack(edges), len(graphs) * (nodes + hubs)), hubs


def stars(counts: IntArray, nodes: int) -> Adjacency:
    """Return stars of `counts` int64 [B] nodes, stacked and padded to `nodes` and a hub each."""
    return _stars_of(np.ascontiguousarray(counts, dtype=np.int64).tobytes(), nodes)


@lru_cache(maxsize=8)
def _stars_of(counts: bytes, nodes: int) -> Adjacency:
    """Return the stars of counts as bytes: a round asks for the same ones at each moment, and at each batch."""
    return Adjacency(*_stars(np.frombuffer(counts, dtype=np.int64), nodes))


def star_of_kinds(count: FloatArray) -> Adjacency:
    """Return a star of which each of U leaves stands for `count` float32 [U] nodes that look alike; to act only."""
    u = len(count)
    offsets = np.append(np.arange(0, 2 * u + 1, 2), 3 * u + 1)
    leaves = np.stack([np.arange(u), np.full(u, u)], axis=1).ravel()
    mean = np.append(count, np.float32(1.0)) / (count.sum() + np.float32(1.0))
    weights = np.concatenate([np.full(2 * u, 0.5, dtype=np.float32), mean.astype(np.float32)])
    return Adjacency(offsets, np.concatenate([leaves, np.arange(u + 1)]), weights)


@compiled
def _stars(counts: IntArray, nodes: int) -> tuple[IntArray, IntArray, FloatArray]:
    """Return offsets, sources and weights of `stars`."""
    offsets = np.zeros(len(counts) * (nodes + 1) + 1, dtype=np.int64)
    entries = 3 * counts.sum() + len(counts)
    sources, weights = np.empty(entries, dtype=np.int64), np.empty(entries, dtype=np.float32)
    entry = 0
    for b in range(len(counts)):
        first = b * (nodes + 1)
        hub = first + nodes
        for i in range(nodes):
            if i < counts[b]:
                sources[entry], sources[entry + 1] = first + i, hub
                weights[entry] = weights[entry + 1] = 0.5
                entry += 2
            offsets[first + i + 1] = entry
        for i in range(counts[b]):
            sources[entry + i] = first + i
        sources[entry + counts[b]] = hub
        weights[entry : entry + counts[b] + 1] = 1.0 / (counts[b] + 1)
        entry += counts[b] + 1
        offsets[hub + 1] = entry
    return offsets, sources, weights


@keep
@numba.njit(fastmath=True, nogil=True)
def convolve(
    offsets: IntArray, sources: IntArray, weights: FloatArray, values: FloatArray, bias: FloatArray, out: FloatArray,
) -> None:  # fmt: skip
    """Write relu(A values + bias) into `out` [V, W], from `values` [V, W] and `bias` [W].

    In one pass: where nodes are many, memory is what a layer waits for. Most vertices are nodes that hang on one hub.
    """
    width = values.shape[1]
    for vertex in range(len(offsets) - 1):
        first, last = offsets[vertex], offsets[vertex + 1]
        if last - first == 2:
            one, other, share, rest = sources[first], sources[first + 1], weights[first], weights[first + 1]
            for column in range(width):
                mean = share * values[one, column] + rest * values[other, column]
                out[vertex, column] = max(mean + bias[column], np.float32(0.0))
            continue
        for column in range(width):
            out[vertex, column] = bias[column]
        for entry in range(first, last):
            source, weight = sources[entry], weights[entry]
            for column in range(width):
                out[vertex, column] += weight * values[source, column]
        for column in range(width):
            out[vertex, column] = max(out[vertex, column], np.float32(0.0))


@keep
@numba.njit(fastmath=True, nogil=True)
def convolve_back(
    offsets: IntArray, sources: IntArray, transposed: FloatArray, out: FloatArray, gradient: FloatArray,
    passed: FloatArray, of_values: FloatArray, of_bias: FloatArray,
) -> None:  # fmt: skip
    """Write the gradients of `convolve` by its values [V, W] and its bias [W], from the one by `out` [V, W].

    `passed` [V, W] is overwritten by what of the latter passes the rectifier.
    """
    width = out.shape[1]
    of_bias[:] = 0.0
    for vertex in range(len(offsets) - 1):
        for column in range(width):
            passed[vertex, column] = gradient[vertex, column] if out[vertex, column] > 0.0 else np.float32(0.0)
            of_bias[column] += passed[vertex, column]
    for vertex in range(len(offsets) - 1):
        first, last = offsets[vertex], offsets[vertex + 1]
        if last - first == 2:
            one, other, share, rest = sources[first], sources[first + 1], transposed[first], transposed[first + 1]
            for column in range(width):
                of_values[vertex, column] = share * passed[one, column] + rest * passed[other, column]
            continue
        for column in range(width):
            of_values[vertex, column] = 0.0
        for entry in range(first, last):
            source, weight = sources[entry], transposed[entry]
            for column in range(width):
                of_values[vertex, column] += weight * passed[source, column]


class Convolution(torch.autograd.Function):
    """relu(A values + bias) with gradients, of tensors on the CPU: `Convolution.apply(values, bias, adjacency)`."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, bias: Tensor, edges: Adjacency) -> Tensor:
        """Return [V, W]."""
        out = torch.empty_like(values, memory_format=torch.contiguous_format)
        convolve(
            edges.offsets, edges.sources, edges.weights, values.detach().contiguous().numpy(), bias.detach().numpy(),
            out.numpy(),
        )  # fmt: skip
        ctx.edges = edges
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        """Return the gradients by values and bias."""
        (out,), edges = ctx.saved_tensors, ctx.edges
        of_values, of_bias = torch.empty_like(out), torch.empty(out.shape[1])
        convolve_back(
            edges.offsets, edges.sources, edges.transposed, out.numpy(), gradients[0].contiguous().numpy(),
            torch.empty_like(out).numpy(), of_values.numpy(), of_bias.numpy(),
        )  # fmt: skip
        return of_values, of_bias, None
