"""The 2 x 2 product of networks: an encoder of the cluster {MLP, GNN} times a head {Q, actor, critic}.

Nodes are scored with shared weights, so one set of weights fits any number of nodes. The encoder reads what does not
depend on the pod; the head adds this pod, this pod on each node, and the cluster as a whole. Parameters: about 4,000
to 10,000 at the default width of 32.
"""

import math
import warnings
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from aaml.extras import lazily
from aaml.learning.collate import Batch
from aaml.learning.config import EncoderKind
from aaml.learning.convolution import Adjacency, Convolution
from aaml.learning.losses import dueling
from aaml.scheduling.observation import NODE_FEATURES, PAIR_FEATURES, POD_FEATURES, UPCOMING_FEATURES

if TYPE_CHECKING:
    from torch_geometric import nn as geometric
else:  # it takes seconds: only who computes with its layers waits for it
    geometric = lazily("torch_geometric.nn")

HeadKind = Literal["q", "actor", "critic"]
CAPACITY = "capacity"  # the node feature that tells capacity from the control plane, which no average counts
GCN_LAYERS = 3


@dataclass(frozen=True)
class NetworkSpec:
    """Everything that fixes a network's shape and what its inputs mean; kept in the checkpoint.

    `width` is the size of every hidden layer (`--hidden_size`), `lookahead` how many following pods the pod's vector
    shows.
    """

    encoder: EncoderKind = "mlp"
    head: HeadKind = "q"
    width: int = 32
    lookahead: int = 0
    node_features: tuple[str, ...] = NODE_FEATURES
    pair_features: tuple[str, ...] = PAIR_FEATURES
    pod_features: tuple[str, ...] = POD_FEATURES
    upcoming_features: tuple[str, ...] = UPCOMING_FEATURES

    @property
    def pod_size(self) -> int:
        """P, the length of the pod's vector."""
        return len(self.pod_features) + self.lookahead * len(self.upcoming_features)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-able fields."""
        return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> "NetworkSpec":
        """Read what `to_dict` wrote; raises TypeError for fields that are missing or unknown."""
        values: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in fields.items()
        }
        return cls(**values)


class MlpEncoder(nn.Module):
    """Each node by itself: two hidden layers, [B, N, F] -> [B, N, W]."""

    def __init__(self, features: int, width: int) -> None:
        super().__init__()
        self.first = nn.Linear(features, width)
        self.second = nn.Linear(width, width)

    def forward(self, batch: Batch) -> Tensor:
        """Return [B, N, W]."""
        hidden = torch.relu(self.first(batch.nodes))
        return torch.relu(self.second(hidden))


class GraphLayer(nn.Module):
    """The weights of torch-geometric's `GCNConv`, drawn as it draws them, and that layer where it computes.

    On the CPU a compiled twin computes instead: so the layer, whose import takes seconds, is made when it is called.
    """

    def __init__(self, features: int, width: int) -> None:
        super().__init__()
        self.lin = nn.Linear(features, width, bias=False)
        bound = math.sqrt(6.0 / (features + width))
        nn.init.uniform_(self.lin.weight, -bound, bound)
        self.bias = nn.Parameter(torch.zeros(width))
        self._made: list[Any] = []  # the layer, once it is made: in a list, so that it is no part of this one

    def layer(self) -> Any:
        """Return torch-geometric's layer with these weights."""
        if not self._made:
            with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
                warnings.simplefilter("ignore", FutureWarning)  # its own use of torch.jit is not the user's business
                made = geometric.GCNConv(self.lin.in_features, self.lin.out_features, normalize=False)
            self._made.append(made)
        (layer,) = self._made
        layer.lin.weight, layer.bias = self.lin.weight, self.bias
        return layer

    def forward(self, inputs: Tensor, index: Tensor, weights: Tensor) -> Tensor:
        """Return [V, W] of inputs [V, F]; `index` [2, nnz] and `weights` [nnz] are the entries of A."""
        result: Tensor = self.layer()(inputs, index, weights)
        return result


class GnnEncoder(nn.Module):
    """Three graph convolutions over the cluster's graph, hubs as vertices of their own, [B, N, F] -> [B, N, W].

    Kipf and Welling: Semi-Supervised Classification with Graph Convolutional Networks (2017), with the mean of
    `aaml.learning.convolution` for a normalisation and residual connections from the second layer on. A vertex's input
    is its features and whether it is a hub. On the CPU a layer is computed by its compiled twin.
    """

    def __init__(self, features: int, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(GraphLayer(features + 1 if i == 0 else width, width) for i in range(GCN_LAYERS))

    def forward(self, batch: Batch) -> Tensor:
        """Return [B, N, W]. Raises ValueError for a batch that was collated without graphs."""
        edges, (b, n, _) = batch.adjacency, batch.nodes.shape
        inputs = functional.pad(batch.nodes, (0, 1, 0, batch.hubs))
        inputs[:, n:, -1] = 1.0
        inputs = inputs.flatten(0, 1)
        traced: bool = torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
        layer = self._compiled if inputs.device.type == "cpu" and not traced else self._defined
        hidden = layer(0, inputs, edges)
        for number in range(1, GCN_LAYERS):
            hidden = hidden + layer(number, hidden, edges)
        return hidden.reshape(b, n + batch.hubs, -1)[:, :n]

    def _defined(self, number: int, inputs: Tensor, edges: Adjacency) -> Tensor:
        index, weights = edges.edges(inputs.device)
        return torch.relu(self.layers[number](inputs, index, weights))

    def _compiled(self, number: int, inputs: Tensor, edges: Adjacency) -> Tensor:
        layer: Any = self.layers[number]
        result: Tensor = Convolution.apply(inputs @ layer.lin.weight.T, layer.bias, edges)
        return result


class ClusterSummary(nn.Module):
    """The cluster and the pod in one vector: mean embedding of the capacity, mean pair over the choices, the pod."""

    def __init__(self, spec: NetworkSpec) -> None:
        super().__init__()
        self.capacity = spec.node_features.index(CAPACITY)
        self.size = spec.width + len(spec.pair_features) + spec.pod_size

    def forward(self, embedding: Tensor, batch: Batch) -> Tensor:
        """Return [B, C]."""
        counted = batch.nodes[:, :, self.capacity, None]
        mean = (embedding * counted).sum(dim=1) / counted.sum(dim=1).clamp(min=1.0)
        chosen = batch.mask.unsqueeze(2).to(embedding.dtype)
        pairs = (batch.pairs * chosen).sum(dim=1) / chosen.sum(dim=1).clamp(min=1.0)
        return torch.cat([mean, pairs, batch.pod], dim=1)


class NodeScorer(nn.Module):
    """A score for each node from its embedding, the pair and the context, [B, N].

    The first layer is a linear layer over their concatenation, kept in three parts so that the part of the embedding
    is computed once for many pods, and that of the context once for many nodes. A direct linear path from the pair's
    features lets a good linear rule be found within a few updates, and the rest correct it.
    """

    def __init__(self, spec: NetworkSpec, context_size: int) -> None:
        super().__init__()
        self.embedding = nn.Linear(spec.width, spec.width)
        self.pairs = nn.Linear(len(spec.pair_features), spec.width, bias=False)
        self.context = nn.Linear(context_size, spec.width, bias=False)
        self.hidden = nn.Linear(spec.width, spec.width)
        self.out = nn.Linear(spec.width, 1)
        self.direct = nn.Linear(len(spec.pair_features), 1, bias=False)
        nn.init.zeros_(self.direct.weight)

    def forward(self, embedding: Tensor, pairs: Tensor, context: Tensor) -> Tensor:
        """Return [B, N]; `context` is [B, C]."""
        hidden = torch.relu(self.embedding(embedding) + self.pairs(pairs) + self.context(context).unsqueeze(1))
        hidden = torch.relu(self.hidden(hidden))
        scores: Tensor = self.out(hidden) + self.direct(pairs)
        return scores.squeeze(2)


class ValueHead(nn.Module):
    """The value of a state from its context, [B]."""

    def __init__(self, context_size: int, width: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(context_size, width)
        self.out = nn.Linear(width, 1)

    def forward(self, context: Tensor) -> Tensor:
        """Return [B]."""
        value: Tensor = self.out(torch.relu(self.hidden(context)))
        return value.squeeze(1)


class Network(nn.Module):
    """An encoder and a head. Output: q [B, N] action values (dueling), actor [B, N] logits, critic [B] values.

    Scores of nodes that may not be chosen are finite but meaningless: apply the mask.
    """

    def __init__(self, spec: NetworkSpec) -> None:
        super().__init__()
        self.spec = spec
        features = len(spec.node_features)
        self._known = (features, len(spec.pair_features))
        self.encoder = (MlpEncoder if spec.encoder == "mlp" else GnnEncoder)(features, spec.width)
        self.pool = ClusterSummary(spec)
        self.scorer = NodeScorer(spec, self.pool.size) if spec.head != "critic" else None
        self.value = ValueHead(self.pool.size, spec.width) if spec.head != "actor" else None

    @property
    def needs_graphs(self) -> bool:
        """Whether batches must be collated with their graphs."""
        return self.spec.encoder == "gnn"

    def forward(self, batch: Batch) -> Tensor:
        """Return [B, N] scores, or [B] for a critic."""
        batch = batch.first(*self._known)
        embedding = self.encoder(batch)
        context = self.pool(embedding, batch)
        if self.scorer is None:
            return self._value(context)
        scores: Tensor = self.scorer(embedding, batch.pairs, context)
        return scores if self.value is None else dueling(self._value(context), scores, batch.mask)

    def _value(self, context: Tensor) -> Tensor:
        if self.value is None:
            raise TypeError("an actor has no value")
        result: Tensor = self.value(context)
        return result


def make_network(spec: NetworkSpec, seed: int) -> Network:
    """Build a network whose initial weights depend on `seed` alone, and leave torch's global generator as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Network(spec)
