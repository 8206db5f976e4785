"""A network as a policy: it scores nodes and takes the best, or now and then another one while it explores."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal, TypedDict

import numpy as np
import torch

from aaml.errors import UserError
from aaml.learning.checkpoint import check_fits, load_checkpoint, part_of, restore
from aaml.learning.config import AgentKind, Dqn, NetworkAgent
from aaml.learning.inference import FastNetwork
from aaml.learning.networks import HeadKind, Network, NetworkSpec, make_network
from aaml.scheduling.costs import COST_FEATURES
from aaml.scheduling.node_sampling import NodeSampling
from aaml.scheduling.observation import NODE_FEATURES, PAIR, PLAIN, Context, Observation, ObservationSpec
from aaml.scheduling.ports import Decision, Policy, shown
from aaml.scheduling.queue_sort import QueueSort

SCORED, SCORED_FROM = "scored", "scored_from"  # of a decision among some nodes: how many, and from which node on
_KINDS: Mapping[tuple[str, str], AgentKind] = {
    ("q", "mlp"): "dqn", ("q", "gnn"): "gnn", ("actor", "mlp"): "acdqn", ("actor", "gnn"): "acgnn",
}  # fmt: skip


class Weights(TypedDict):
    """What acting needs, for a twin in another place: the network's parameters, and the chance to explore."""

    network: Mapping[str, np.ndarray]
    epsilon: float


class NetworkPolicy:
    """Scores the feasible nodes by a compiled twin of a network.

    `observation_spec` says what it observes and `queue_sort` the order in which it wants waiting pods (None:
    kube-scheduler's). While it is `exploring` an actor samples its nodes, and action values take another node than the
    best with the chance `epsilon`: the one that `guide` takes, or any.
    """

    __repr__ = shown

    def __init__(
        self, network: Network, *, observation_spec: ObservationSpec, seed: int = 0, guide: Policy | None = None
    ) -> None:
        self.network, self.observation_spec = network, observation_spec
        self.name: AgentKind = _KINDS[network.spec.head, network.spec.encoder]
        self.rng = np.random.default_rng(seed)
        self.exploring, self.epsilon = False, 0.0
        self._guide = guide
        self._queue_sort: QueueSort | None = None
        self._sampling: NodeSampling | None = None
        self._fast: FastNetwork | None = None

    @property
    def queue_sort(self) -> QueueSort | None:
        """The order in which it wants waiting pods, by what it expects of them."""
        return self._queue_sort

    @queue_sort.setter
    def queue_sort(self, sort: QueueSort | None) -> None:
        self._queue_sort = None if sort is None else sort.knowing(self.observation_spec.lifetime_model)

    @property
    def explores_by(self) -> Literal["softmax", "any", "least-requested"]:
        """How it takes another node than its best: sampled by the scores, any, or the one that a heuristic takes."""
        if self.network.spec.head == "actor":
            return "softmax"
        return "any" if self._guide is None else "least-requested"

    @property
    def chance(self) -> float:
        """Of a choice to be made so while it explores."""
        return 1.0 if self.explores_by == "softmax" else self.epsilon

    def observation_of(self, context: Context) -> Observation:
        """Return the features that this policy looks at."""
        return context.observation_by(self.observation_spec)

    def act(self, context: Context) -> Decision:
        """Choose among the feasible nodes."""
        observation = self.observation_of(context)
        samples = self.explores_by == "softmax"
        if self.exploring and not samples and self.rng.random() < self.epsilon:
            return Decision(self._explore(context), info={"explored": 1.0})
        node_indices, scores, scored = self._considered(observation)
        if (
            self.exploring and samples
        ):  # the largest of logits plus Gumbel noise is a sample of the softmax (Gumbel 1954)
            scores = scores + self.rng.gumbel(size=len(node_indices))
        best = int(scores.argmax())
        return Decision(int(node_indices[best]), info=scored if samples else {"value": float(scores[best]), **scored})

    def preferences(self, observation: Observation) -> np.ndarray:
        """Return [N], how much each node is wanted (action values or logits); mind the mask."""
        if self._fast is None:
            self._fast = FastNetwork(self.network)
        return np.asarray(self._fast(observation))

    def moved(self) -> None:
        """Act by a new twin: the network's parameters lie elsewhere now."""
        self._fast = None

    def scores(self, context: Context) -> np.ndarray:
        """Return [N] preferences in a context, higher is better; mind the mask."""
        return self.preferences(self.observation_of(context))

    def greedy(self, observation: Observation) -> int:
        """Return the feasible node with the highest score."""
        return int(np.where(observation.mask, self.preferences(observation), -np.inf).argmax())

    def score_some(self, sampling: NodeSampling | None) -> None:
        """Score the nodes that `sampling` says when it chooses, None: all. Raises `UserError` where it cannot."""
        if sampling is not None and self.observation_spec.racks:
            raise UserError(f"{self.name} sees racks: it scores all nodes")
        self._sampling = sampling

    def weights(self) -> Weights:
        """Return a copy of what a twin in another place acts by."""
        state = self.network.state_dict()
        return {"network": {name: each.cpu().numpy().copy() for name, each in state.items()}, "epsilon": self.epsilon}

    def take_weights(self, weights: Weights) -> None:
        """Act as the policy whose `weights` these are."""
        self.network.load_state_dict({name: torch.from_numpy(each) for name, each in weights["network"].items()})
        self.epsilon = weights["epsilon"]

    def _considered(self, observation: Observation) -> tuple[np.ndarray, np.ndarray, dict[str, float]]:
        """Return the nodes to choose from, the score of each, and which they are where not all were scored."""
        node_indices: np.ndarray = np.flatnonzero(observation.mask)
        if self._sampling is not None:
            start = self._sampling.start
            node_indices = self._sampling.node_indices(observation.mask)
            if len(node_indices) < len(observation.mask):
                return (
                    node_indices,
                    self.preferences(observation.of(node_indices)),
                    {SCORED_FROM: start, SCORED: len(node_indices)},
                )
        return node_indices, self.preferences(observation)[node_indices], {}

    def _explore(self, context: Context) -> int:
        node_index = None if self._guide is None else self._guide.act(context).node_index
        return int(self.rng.choice(np.flatnonzero(context.mask))) if node_index is None else node_index


class LeastRequested:
    """Takes the feasible node whose CPU and memory are least requested after the pod."""

    name = "least-requested"

    def act(self, context: Context) -> Decision:
        """Choose."""
        seen = context.observation
        after = seen.pairs[:, PAIR.cpu_after] + seen.pairs[:, PAIR.memory_after]
        return Decision(int(np.where(seen.mask, after, np.inf).argmin()))


def single_threaded() -> None:
    """Let torch use one thread in this process: its products are too small to share out."""
    torch.set_num_threads(1)


def network_spec(config: NetworkAgent, observation_spec: ObservationSpec, like: NetworkSpec) -> NetworkSpec:
    """Return the description of an agent's network, which sees the features that `like` sees."""
    head: HeadKind = "q" if isinstance(config, Dqn) else "actor"
    fresh = observation_spec.costs and like == NetworkSpec()
    nodes = (*NODE_FEATURES, *COST_FEATURES) if fresh else like.node_features
    return replace(
        like, encoder=config.encoder, head=head, width=config.hidden_size, lookahead=observation_spec.lookahead,
        node_features=nodes,
    )  # fmt: skip


def guide_of(config: NetworkAgent, guide: Policy | None) -> Policy | None:
    """Return the policy that exploration follows: a `guide`, or the least requested node, where the settings say so."""
    return (guide or LeastRequested()) if isinstance(config, Dqn) and config.use_heuristic else None


def first_policy(
    config: NetworkAgent,
    start: Path | None,
    *,
    observation_spec: ObservationSpec,
    seed: int,
    guide: Policy | None = None,
) -> NetworkPolicy:
    """Return a policy that explores as a training's agent does, of fresh weights or those of a model file."""
    like = NetworkSpec() if start is None else load_checkpoint(start).spec
    network = make_network(network_spec(config, observation_spec, like), seed)
    policy = NetworkPolicy(network, observation_spec=observation_spec, seed=seed, guide=guide_of(config, guide))
    policy.exploring = True
    return policy


def new_policy(config: NetworkAgent, *, seed: int = 0) -> NetworkPolicy:
    """Return the policy of an agent that knows nothing yet."""
    network = make_network(network_spec(config, PLAIN, NetworkSpec()), seed)
    return NetworkPolicy(network, observation_spec=PLAIN, seed=seed)


def load_network_policy(path: Path, config: NetworkAgent | None = None, *, seed: int = 0) -> NetworkPolicy:
    """Return the policy in a model file, of an actor and its critic in either.

    Raises `UserError` for a file that holds none, or another kind or width than those of `config`.
    """
    checkpoint = load_checkpoint(path)
    if checkpoint.spec.head == "critic":
        path = part_of(path, "Actor", ("Actor", "Critic"))
        checkpoint = load_checkpoint(path)
    if config is not None:
        check_fits(path, checkpoint, config.name, network_spec(config, checkpoint.observation_spec, checkpoint.spec))
    network = make_network(checkpoint.spec, seed)
    restore(path, network, checkpoint.states.get("model"))
    policy = NetworkPolicy(network, observation_spec=checkpoint.observation_spec, seed=seed)
    try:
        sort = checkpoint.fields.get("queue_sort")
        policy.queue_sort = None if sort is None else QueueSort.of(sort)
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"model {path}: its header is damaged ({error})") from error
    return policy
