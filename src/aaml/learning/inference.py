"""The forward pass for acting: the networks of `networks.py` in numpy, encoding the cluster once for many pods.

One decision on ten nodes is some twenty products of tiny matrices, where a framework's overhead per call is nearly all
of the time; benchmarks/bench_forward.py has the figures. The arrays alias the parameters of the torch module, which
optimisers change in place, so an update is in force at once and nothing is exported.
"""

from dataclasses import dataclass

import numba
import numpy as np
import numpy.typing as npt
from torch import nn

from aaml.cluster.topology import Graph
from aaml.learning.collate import adjacency
from aaml.learning.networks import CAPACITY, GnnEncoder, MlpEncoder, Network
from aaml.scheduling.observation import Observation

FloatArray = npt.NDArray[np.float32]


@numba.njit(cache=True, fastmath=True)
def propagate(offsets, sources, weights, values, bias, total):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """Add to `total` [V, W] what a layer makes of each vertex's neighbours, relu(A values + bias).

    In one pass: where nodes are many, memory is what a layer waits for.
    """
    width = values.shape[1]
    made = np.empty(width, dtype=np.float32)
    for vertex in range(len(offsets) - 1):
        made[:] = bias
        for entry in range(offsets[vertex], offsets[vertex + 1]):
            source, weight = sources[entry], weights[entry]
            for column in range(width):
                made[column] += weight * values[source, column]
        for column in range(width):
            total[vertex, column] += max(made[column], np.float32(0.0))


@dataclass(frozen=True)
class Encoded:
    """A cluster, encoded: good for every pod until the cluster changes."""

    scoring: FloatArray | None  # [N, W] the embeddings' part of the scorer's first layer
    pooled: FloatArray  # [W] mean embedding of the capacity


def _weight(layer: nn.Module) -> FloatArray:
    """Return [in, out], a view of the parameter."""
    weight: FloatArray = layer.weight.detach().numpy().T  # type: ignore[operator]
    return weight


def _bias(layer: nn.Module) -> FloatArray:
    bias: FloatArray = layer.bias.detach().numpy()  # type: ignore[operator]
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

    def encode(self, nodes: FloatArray, graph: Graph) -> Encoded:
        """Encode [N, F] features of nodes over their graph."""
        nodes = nodes[:, : self._known[0]]
        embedding = self._graph_embedding(nodes, graph) if self._is_graph else self._node_embedding(nodes)
        counted = nodes[:, self._capacity]
        pooled = (counted @ embedding) / max(float(counted.sum()), 1.0)
        scoring = None if self._scorer is None else embedding @ self._scorer[0] + self._scorer[1]
        return Encoded(scoring, pooled.astype(np.float32))

    def score(
        self, encoded: Encoded, pairs: FloatArray, pod: FloatArray, mask: npt.NDArray[np.bool_]
    ) -> FloatArray | float:
        """Return [N] scores of one pod (q: action values, actor: logits), or the value for a critic."""
        pairs = pairs[:, : self._known[1]]
        chosen = mask.astype(np.float32)
        count = max(float(chosen.sum()), 1.0)
        context = np.concatenate([encoded.pooled, (chosen @ pairs) / np.float32(count), pod])
        value = 0.0
        if self._value is not None:
            weight, bias, out, out_bias = self._value
            value = float(np.maximum(context @ weight + bias, 0.0) @ out + out_bias[0])
        if encoded.scoring is None:
            return value
        hidden = pairs @ self._pairs
        hidden += encoded.scoring
        hidden += context @ self._context
        np.maximum(hidden, 0.0, out=hidden)
        hidden = hidden @ self._hidden[0]
        hidden += self._hidden[1]
        np.maximum(hidden, 0.0, out=hidden)
        scores: FloatArray = hidden @ self._out + pairs @ self._direct + self._out_bias[0]
        if self._value is not None:
            scores += np.float32(value - float(chosen @ scores) / count)
        return scores

    def __call__(self, observation: Observation) -> FloatArray | float:
        """Encode and score one observation."""
        encoded = self.encode(observation.nodes, observation.graph)
        return self.score(encoded, observation.pairs, observation.pod, observation.mask)

    def _node_embedding(self, nodes: FloatArray) -> FloatArray:
        hidden = nodes
        for weight, bias in self._layers:
            hidden = hidden @ weight
            hidden += bias
            np.maximum(hidden, 0.0, out=hidden)
        return hidden

    def _graph_embedding(self, nodes: FloatArray, graph: Graph) -> FloatArray:
        edges = adjacency(graph)
        n, features = nodes.shape
        # A hub's only input is that it is one, so its row of the first product is a row of the weight.
        hidden = np.empty((edges.vertex_count, self._layers[0][0].shape[1]), dtype=np.float32)
        hidden[:n] = nodes @ self._layers[0][0][:features]
        hidden[n:] = self._layers[0][0][features]
        total = np.zeros_like(hidden)
        for index, (weight, bias) in enumerate(self._layers):
            projected = hidden if index == 0 else total @ weight
            propagate(edges.offsets, edges.sources, edges.weights, projected, bias, total)
        return total[:n]
