"""The 2 x 2 product of networks: an encoder of the cluster {MLP, GNN} times a head {Q, actor, critic}.

Nodes are scored with shared weights, so one set of weights fits any number of nodes. The encoder reads what does not
depend on the pod; the head adds this pod, this pod on each node, and the cluster as a whole. Parameters: about 4,000
to 10,000 at the default width of 32.
"""

import warnings
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from aaml.learning.collate import Batch
from aaml.learning.config import EncoderKind
from aaml.learning.losses import dueling
from aaml.scheduling.observation import NODE_FEATURES, PAIR_FEATURES, POD_FEATURES, UPCOMING_FEATURES

HeadKind = Literal["q", "actor", "critic"]
CAPACITY = "capacity"  # the node feature that tells capacity from the control plane, which no average counts
GCN_LAYERS = 3


@dataclass(frozen=True)
class NetworkSpec:
    """Everything that fixes a network's shape and what its inputs mean; kept in the checkpoint.

    `width` is the size of every hidden layer (`--hidden_layers`), `lookahead` how many following pods the pod's vector
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


class GnnEncoder(nn.Module):
    """Three graph convolutions over the cluster's graph, hubs as vertices of their own, [B, N, F] -> [B, N, W].

    Kipf and Welling: Semi-Supervised Classification with Graph Convolutional Networks (2017), with the mean of
    `collate.Adjacency` for a normalisation and residual connections from the second layer on. A vertex's input is its
    features and whether it is a hub.
    """

    def __init__(self, features: int, width: int) -> None:
        super().__init__()
        with warnings.catch_warnings():  # torch-geometric's own use of torch.jit is not the user's business
            warnings.simplefilter("ignore", FutureWarning)
            from torch_geometric.nn import GCNConv  # takes seconds: only agents with a graph network wait for it

        self.layers = nn.ModuleList(
            GCNConv(features + 1 if i == 0 else width, width, normalize=False) for i in range(GCN_LAYERS)
        )

    def forward(self, batch: Batch) -> Tensor:
        """Return [B, N, W]; the batch must have been collated with its graphs, or say that they are stars."""
        if batch.counts is not None:
            return self._stars(batch.nodes, batch.counts)
        if batch.vertices is None or batch.edges is None or batch.hubs is None:
            raise ValueError("a GNN needs a batch with graphs: collate(observations, graphs=True)")
        b, n, features = batch.nodes.shape
        is_node = batch.vertices >= 0
        vertices = batch.vertices[is_node]
        inputs = batch.nodes.new_zeros(batch.vertex_count, features + 1)
        inputs[vertices, :features] = batch.nodes.reshape(b * n, features)[is_node]
        inputs[batch.hubs, features] = 1.0
        hidden = torch.relu(self.layers[0](inputs, batch.edges, batch.weights))
        for layer in self.layers[1:]:
            hidden = hidden + torch.relu(layer(hidden, batch.edges, batch.weights))
        result = hidden.new_zeros(b * n, hidden.shape[1])
        result[is_node] = hidden[vertices]
        return result.reshape(b, n, -1)

    def _stars(self, nodes: Tensor, counts: Tensor) -> Tensor:
        """Return [B, N, W] for stars, without edges: a leaf's neighbours are itself and the hub, the hub's are all."""
        size = counts.to(nodes.dtype)[:, None, None]
        own = None if bool((counts == nodes.shape[1]).all()) else _within(nodes.shape[1], counts)
        leaves, hub = nodes, None
        for number, layer in enumerate(self.layers):
            weight: Tensor = layer.lin.weight  # type: ignore[union-attr, assignment]
            bias: Tensor = layer.bias  # type: ignore[assignment]
            if hub is None:  # a hub's only input is that it is one, the last feature
                next_leaves = nodes @ weight[:, :-1].T
                next_hub = weight[:, -1].expand(len(nodes), 1, -1)
            else:
                next_leaves, next_hub = leaves @ weight.T, hub @ weight.T
            total = (next_leaves if own is None else next_leaves * own).sum(dim=1, keepdim=True)
            next_hub_mean = (total + next_hub) / (size + 1.0)
            next_leaves = torch.relu(0.5 * (next_leaves + next_hub) + bias)
            next_hub_mean = torch.relu(next_hub_mean + bias)
            leaves = next_leaves if number == 0 else leaves + next_leaves
            hub = next_hub_mean if hub is None else hub + next_hub_mean
        return leaves


def _within(rows: int, counts: Tensor) -> Tensor:
    """Return [B, rows, 1], 1 for the rows that are nodes and 0 for those that fill up."""
    return (torch.arange(rows) < counts[:, None]).unsqueeze(2).to(torch.float32)


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


class Value(nn.Module):
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

    Scores of rows that may not be chosen are finite but meaningless: apply the mask.
    """

    def __init__(self, spec: NetworkSpec) -> None:
        super().__init__()
        self.spec = spec
        features = len(spec.node_features)
        self._known = (features, len(spec.pair_features))
        self.encoder = (MlpEncoder if spec.encoder == "mlp" else GnnEncoder)(features, spec.width)
        self.pool = ClusterSummary(spec)
        self.scorer = NodeScorer(spec, self.pool.size) if spec.head != "critic" else None
        self.value = Value(self.pool.size, spec.width) if spec.head != "actor" else None

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
