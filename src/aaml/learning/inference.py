"""The forward pass for acting: the networks of `networks.py` in numpy, for nodes that look alike once.

One decision on ten nodes is some twenty products of tiny matrices, where a framework's overhead per call is nearly all
of the time; benchmarks/bench_forward.py has the figures. On a large cluster many nodes hold pods of the same sizes, so
that they look the same to the last bit (of 1,000 nodes that 12,000 mixed pods passed through, 200 differ): one of each
kind is scored, and counted as often as there are of it. The arrays alias the parameters of the torch module, which
optimisers change in place, so an update is in force at once and nothing is exported.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch import nn

from aaml.cluster.kernels import compiled
from aaml.cluster.topology import Graph
from aaml.learning.convolution import Adjacency, adjacency, convolve, star_of_kinds
from aaml.learning.networks import CAPACITY, GnnEncoder, MlpEncoder, Network
from aaml.scheduling.observation import Observation

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
WordArray = npt.NDArray[np.uint32]
_MANY, _ALIKE = 200, 0.75  # nodes from which on it pays to look for equal ones; share of kinds up to which it pays
_FACTORS = np.random.default_rng(0).integers(1 << 32, size=1 << 10, dtype=np.uint32) | np.uint32(1)


@compiled
def find_kinds(
    nodes: WordArray, features: int, pairs: WordArray, pair_features: int, mask: BoolArray, factors: WordArray,
    kind: IntArray, first: IntArray, count: IntArray,
) -> int:  # fmt: skip
    """Find rows that are the same to the last bit; return how many kinds U of rows there are.

    `nodes` and `pairs` are uint32 [N, >= F] and [N, >= K], of which the first F and K columns count, and `mask` [N].
    Writes the `kind` int64 [N] of each row, in the order in which they come, and of each kind its `first` row and the
    `count` of its rows, int64 [N] each. Rows are told apart by a multilinear hash, equal ones compared.
    """
    n, slots = len(mask), 4
    while slots < 2 * n:
        slots *= 2
    table = np.full(slots, -1, dtype=np.int32)
    kinds = 0
    for row in range(n):
        key = np.uint64(mask[row])
        for column in range(features):
            key += np.uint64(nodes[row, column]) * np.uint64(factors[column])
        for column in range(pair_features):
            key += np.uint64(pairs[row, column]) * np.uint64(factors[features + column])
        slot = np.int64(key >> np.uint64(33)) & (slots - 1)
        found = -1
        while table[slot] >= 0:
            other = first[table[slot]]
            differs = np.uint32(mask[row] != mask[other])
            for column in range(features):
                differs |= nodes[row, column] ^ nodes[other, column]
            for column in range(pair_features):
                differs |= pairs[row, column] ^ pairs[other, column]
            if differs == 0:
                found = table[slot]
                break
            slot = (slot + 1) & (slots - 1)
        if found < 0:
            found = table[slot] = kinds
            first[kinds], count[kinds] = row, 0
            kinds += 1
        kind[row] = found
        count[found] += 1
    return kinds


@dataclass(frozen=True)
class _Seen:
    """What there is to score, a row for each of U kinds of nodes.

    ======  ===================  =================================================================
    nodes   float32 [U, F]       features of a node of the kind
    pairs   float32 [U, K]       features of the pod on it
    chosen  float32 [U]          how many nodes of the kind may be chosen
    count   float32 [U]          how many there are
    kind    int64 [N] or None    the kind of each node; None: each is a kind of its own, in order
    ======  ===================  =================================================================
    """

    nodes: FloatArray
    pairs: FloatArray
    chosen: FloatArray
    count: FloatArray
    kind: IntArray | None


def _weight(layer: nn.Module) -> FloatArray:
    """Return [in, out], a view of the parameter."""
    weight: FloatArray = layer.weight.detach().cpu().numpy().T  # type: ignore[operator]
    return weight


def _bias(layer: nn.Module) -> FloatArray:
    bias: FloatArray = layer.bias.detach().cpu().numpy()  # type: ignore[operator]
    return bias


class FastNetwork:
    """Numpy twin of a `Network` on the CPU for one observation at a time; gives what the network gives (to 1e-5)."""

    def __init__(self, network: Network) -> None:
        self._capacity = network.spec.node_features.index(CAPACITY)
        self._known = len(network.spec.node_features), len(network.spec.pair_features)
        self._layers: list[tuple[FloatArray, FloatArray]] = []
        self._is_graph = isinstance(network.encoder, GnnEncoder)
        encoder = network.encoder
        if isinstance(encoder, GnnEncoder):
            self._layers = [(_weight(layer.lin), _bias(layer)) for layer in encoder.layers]  # type: ignore[arg-type]
        elif isinstance(encoder, MlpEncoder):
            self._layers = [(_weight(layer), _bias(layer)) for layer in (encoder.first, encoder.second)]
        self._scorer, self._value = None, None
        if (scorer := network.scorer) is not None:
            self._scorer = (_weight(scorer.embedding), _bias(scorer.embedding))
            self._pairs, self._context = _weight(scorer.pairs), _weight(scorer.context)
            self._hidden = (_weight(scorer.hidden), _bias(scorer.hidden))
            self._out, self._out_bias = _weight(scorer.out)[:, 0], _bias(scorer.out)
            self._direct = _weight(scorer.direct)[:, 0]
        if (value := network.value) is not None:
            self._value = (_weight(value.hidden), _bias(value.hidden), _weight(value.out)[:, 0], _bias(value.out))

    def __call__(self, observation: Observation) -> FloatArray | float:
        """Return [N] scores (q: action values, actor: logits), or the value for a critic."""
        seen = self._look(observation)
        embedding = self._embed(seen, observation.graph)
        counted = seen.nodes[:, self._capacity] * seen.count
        pooled = (counted @ embedding) / max(float(counted.sum()), 1.0)
        choices = max(float(seen.chosen.sum()), 1.0)
        pairs = (seen.chosen @ seen.pairs) / np.float32(choices)
        context = np.concatenate([pooled, pairs, observation.pod], dtype=np.float32)
        value = 0.0
        if self._value is not None:
            weight, bias, out, out_bias = self._value
            value = float(np.maximum(context @ weight + bias, 0.0) @ out + out_bias[0])
        if self._scorer is None:
            return value
        hidden = embedding @ self._scorer[0]
        hidden += seen.pairs @ self._pairs
        hidden += context @ self._context + self._scorer[1]
        np.maximum(hidden, 0.0, out=hidden)
        hidden = hidden @ self._hidden[0]
        hidden += self._hidden[1]
        np.maximum(hidden, 0.0, out=hidden)
        scores: FloatArray = hidden @ self._out + seen.pairs @ self._direct + self._out_bias[0]
        if self._value is not None:
            scores += np.float32(value - float(seen.chosen @ scores) / choices)
        return scores if seen.kind is None else scores[seen.kind]

    def _look(self, observation: Observation) -> _Seen:
        """Return one of each kind of nodes, or all where they are few, hardly alike, or in racks."""
        (features, pair_features), mask = self._known, observation.mask
        nodes, pairs, n = observation.nodes, observation.pairs, len(mask)
        if n >= _MANY and (observation.graph.is_star or not self._is_graph):
            kind, first, count = np.empty((3, n), dtype=np.int64)
            words = nodes.view(np.uint32), features, pairs.view(np.uint32), pair_features
            kinds = find_kinds(*words, mask, _FACTORS, kind, first, count)
            if kinds < _ALIKE * n:
                rows, counted = first[:kinds], count[:kinds].astype(np.float32)
                chosen = counted * mask[rows]
                return _Seen(nodes[rows, :features], pairs[rows, :pair_features], chosen, counted, kind)
        one = np.ones(n, dtype=np.float32)
        return _Seen(nodes[:, :features], pairs[:, :pair_features], mask.astype(np.float32), one, None)

    def _embed(self, seen: _Seen, graph: Graph) -> FloatArray:
        """Return [U, W]."""
        if not self._is_graph:
            return self._node_embedding(seen.nodes)
        return self._graph_embedding(seen.nodes, adjacency(graph) if seen.kind is None else star_of_kinds(seen.count))

    def _node_embedding(self, nodes: FloatArray) -> FloatArray:
        hidden = nodes
        for weight, bias in self._layers:
            hidden = hidden @ weight
            hidden += bias
            np.maximum(hidden, 0.0, out=hidden)
        return hidden

    def _graph_embedding(self, nodes: FloatArray, edges: Adjacency) -> FloatArray:
        n, features = nodes.shape
        # A hub's only input is that it is one, so its row of the first product is a row of the weight.
        values = np.empty((edges.vertex_count, self._layers[0][0].shape[1]), dtype=np.float32)
        values[:n] = nodes @ self._layers[0][0][:features]
        values[n:] = self._layers[0][0][features]
        total, made = np.zeros_like(values), np.empty_like(values)
        for index, (weight, bias) in enumerate(self._layers):
            convolve(edges.offsets, edges.sources, edges.weights, values if index == 0 else total @ weight, bias, made)
            total += made
        return total[:n]
