"""The four agents as policies that learn: encoder {MLP, GNN} x learner {DQN, actor-critic}, one interface."""

import copy
import dataclasses
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from aaml.errors import UserError
from aaml.learning.actor_critic import ActorCriticLearner
from aaml.learning.checkpoint import Checkpoint, load_checkpoint, restore, save_checkpoint
from aaml.learning.config import AGENT_KINDS, AgentConfig, AgentKind, default_config
from aaml.learning.dqn import DqnLearner
from aaml.learning.inference import FastNetwork
from aaml.learning.networks import EncoderKind, Network, NetworkSpec
from aaml.learning.replay import NStep, Replay, RewardScale
from aaml.scheduling.observation import Context, Observation
from aaml.scheduling.ports import Decision, Policy, Transition
from aaml.scheduling.queue_sort import QueueSort

CSR = "1. CSR"
MIN_UPDATE_STEPS = 8


class LearnedAgent(ABC):
    """What the four agents share: acting by a numpy twin of a network, counters, saving and loading.

    `learn` False freezes the agent: it takes its best choice and ignores experience. `guide` is a policy whose choice
    exploration takes where the settings say `use_heuristic` (None: the feasible node with the least CPU and memory).
    `queue_sort`, the order in which it wants waiting pods (None: kube-scheduler's), is saved with it.
    """

    def __init__(self, kind: AgentKind, config: AgentConfig, lookahead: int, seed: int, learn: bool) -> None:
        self.name: str = kind
        self.kind: AgentKind = kind
        self.config = config
        self.learning = learn
        self.lookahead = lookahead
        self.decisions = 0
        self.updates = 0
        self.reward_sum = 0.0
        self.rng = np.random.default_rng(seed)
        self.queue_sort: QueueSort | None = None

    @property
    def encoder(self) -> EncoderKind:
        """Which encoder this kind of agent has."""
        return "gnn" if self.kind in {"gnn", "acgnn"} else "mlp"

    @property
    @abstractmethod
    def scorer(self) -> Network:
        """The network whose scores rank nodes."""

    @property
    @abstractmethod
    def scale(self) -> RewardScale:
        """The running scale of rewards."""

    @abstractmethod
    def act(self, context: Context) -> Decision:
        """Choose among the feasible rows."""

    @abstractmethod
    def observe(self, transition: Transition, stream: int = 0) -> None:
        """Take one step of experience; steps of one `stream` (an environment) follow one another."""

    @abstractmethod
    def learn(self) -> dict[str, float]:
        """Update if it is time; returns scalars to record, empty when nothing was done."""

    @abstractmethod
    def parts(self) -> Mapping[str, tuple[Network, Mapping[str, Any]]]:
        """Return the model files: name before the stem -> (network, name -> further module or optimiser)."""

    @abstractmethod
    def scores(self, observation: Observation) -> np.ndarray:
        """Return [N], how much each node is wanted (action values or logits); mind the mask."""

    def weights(self) -> dict[str, Any]:
        """Return a copy of what acting needs, for a twin in another place."""
        return {"model": {name: value.clone() for name, value in self.scorer.state_dict().items()}}

    def take_weights(self, weights: Mapping[str, Any]) -> None:
        """Act as the agent whose `weights` these are."""
        self.scorer.load_state_dict(weights["model"])

    def flush(self) -> dict[str, float]:
        """Learn from what was gathered and would wait for more; returns scalars to record."""
        return {}

    @abstractmethod
    def cut(self) -> None:
        """Forget steps whose continuation is still awaited, as if every stream ended here."""

    def state(self) -> dict[str, Any]:
        """Return everything that learning goes on from, the same to the last bit, as tensors and plain values.

        Call `cut` first.
        """
        return {
            "parts": {
                name: copy.deepcopy({key: part.state_dict() for key, part in {"model": network, **others}.items()})
                for name, (network, others) in self.parts().items()
            },
            "fields": self._fields(),
            "rng": json.dumps(self.rng.bit_generator.state),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned; the agent must have been made with the same settings."""
        for name, (network, others) in self.parts().items():
            for key, part in {"model": network, **others}.items():
                part.load_state_dict(state["parts"][name][key])
        self._take_fields(state["fields"])
        self.rng.bit_generator.state = json.loads(state["rng"])

    def _fields(self) -> dict[str, Any]:
        return {
            "config": dataclasses.asdict(self.config),
            "decisions": self.decisions,
            "updates": self.updates,
            "reward_sum": self.reward_sum,
            "reward_scale": [self.scale.count, self.scale.square_sum],
            "queue_sort": None if self.queue_sort is None else dataclasses.asdict(self.queue_sort),
        }

    def _take_fields(self, fields: Mapping[str, Any]) -> None:
        self.decisions, self.updates = int(fields["decisions"]), int(fields["updates"])
        self.reward_sum = float(fields["reward_sum"])
        self.scale.count, self.scale.square_sum = map(float, fields["reward_scale"])
        sort = fields.get("queue_sort")
        self.queue_sort = None if sort is None else QueueSort(**sort)

    def greedy(self, observation: Observation) -> int:
        """Return the feasible row with the highest score."""
        return int(np.where(observation.mask, self.scores(observation), -np.inf).argmax())

    def save(self, directory: str, stem: str) -> Sequence[str]:
        """Write the model files, each whole or not at all, and return their paths."""
        paths = []
        fields = self._fields()
        for name, (network, others) in self.parts().items():
            path = Path(directory) / f"{name}_{stem}.pth"
            states = {"model": network.state_dict()} | {key: part.state_dict() for key, part in others.items()}
            save_checkpoint(path, Checkpoint(self.kind, network.spec, fields, states))
            paths.append(str(path))
        return paths

    def load(self, paths: Mapping[str, Path]) -> None:
        """Go on from model files, by the names of `parts`; raises UserError for files that do not fit this agent."""
        for number, (name, (network, others)) in enumerate(self.parts().items()):
            path = paths[name]
            if number > 0 and not self.learning and not path.exists():
                continue  # acting needs the first alone
            checkpoint = load_checkpoint(path)
            if checkpoint.kind != self.kind or checkpoint.spec != network.spec:
                raise UserError(
                    f"model {path}: is a {checkpoint.kind} with {_words(checkpoint.spec)}; "
                    f"expected a {self.kind} with {_words(network.spec)}"
                )
            try:
                restore(path, network, checkpoint.states["model"])
                for key, part in others.items():
                    restore(path, part, checkpoint.states[key])
                self._take_fields(checkpoint.fields)
            except (KeyError, TypeError, ValueError) as error:
                raise UserError(f"model {path}: its header is damaged ({error})") from error


def _words(spec: NetworkSpec) -> str:
    return f"{spec.encoder} encoder, {spec.head} head, width {spec.width}, lookahead {spec.lookahead}"


class ValueAgent(LearnedAgent):
    """DQN: epsilon-greedy on action values, replay, target network."""

    def __init__(
        self,
        kind: AgentKind,
        config: AgentConfig,
        *,
        lookahead: int = 0,
        seed: int = 0,
        learn: bool = True,
        guide: Policy | None = None,
    ) -> None:
        super().__init__(kind, config, lookahead, seed, learn)
        spec = NetworkSpec(encoder=self.encoder, head="q", width=config.hidden_layers, lookahead=lookahead)
        self.learner = DqnLearner(spec, config, seed)
        self.replay = Replay(config.replay_buffer_size, self.rng, config.prioritized)
        self.epsilon = config.init_epsi
        self._fast = FastNetwork(self.learner.network)
        self._guide = guide
        self._chains: dict[int, NStep] = {}

    @property
    def scorer(self) -> Network:
        """The action-value network."""
        return self.learner.network

    @property
    def scale(self) -> RewardScale:
        """The running scale of rewards."""
        return self.learner.scale

    def scores(self, observation: Observation) -> np.ndarray:
        """Return [N] action values."""
        return np.asarray(self._fast(observation))

    def act(self, context: Context) -> Decision:
        """Choose the row with the highest action value, or explore."""
        observation = context.observation
        if self.learning and self.rng.random() < self.epsilon:
            return Decision(self._explore(context), info={"explored": 1.0})
        scores = self.scores(observation)
        row = int(np.where(observation.mask, scores, -np.inf).argmax())
        return Decision(row, info={"value": float(scores[row])})

    def _explore(self, context: Context) -> int:
        if not self.config.use_heuristic:
            return int(self.rng.choice(np.flatnonzero(context.mask)))
        if self._guide is not None:
            row = self._guide.act(context).row
            if row is not None:
                return row
        return least_requested(context.observation)

    def observe(self, transition: Transition, stream: int = 0) -> None:
        """Take one step of experience."""
        if not self.learning:
            return
        self.scale.add(transition.reward)
        self.reward_sum += transition.reward
        self.decisions += 1
        self.epsilon = max(self.config.min_epsi, self.epsilon * self.config.epsi_decay)
        chain = self._chains.setdefault(stream, NStep(self.config.n_step, self.config.gamma))
        for item in chain.push(transition):
            self.replay.add(item)

    def learn(self) -> dict[str, float]:
        """Update every `update_frequency` decisions, once there is half a batch of experience."""
        due = self.decisions // self.config.update_frequency
        if not self.learning or due <= self.updates or 2 * len(self.replay) < self.config.batch_size:
            return {}
        scalars = self.learner.update(self.replay)
        every = max(1, self.config.target_update_frequency // self.config.update_frequency)
        if due // every > self.updates // every:
            self.learner.sync_target()
        self.updates = due
        return {CSR: self.reward_sum, **scalars, "Epsilon": self.epsilon}

    def parts(self) -> Mapping[str, tuple[Network, Mapping[str, Any]]]:
        """One file: the network with its target and optimiser."""
        name = "DQN_Model" if self.kind == "dqn" else "GNN_Model"
        return {name: (self.learner.network, {"target": self.learner.target, "optimizer": self.learner.optimizer})}

    def weights(self) -> dict[str, Any]:
        """Return a copy of what acting needs: the network and the chance to explore."""
        return super().weights() | {"epsilon": self.epsilon}

    def take_weights(self, weights: Mapping[str, Any]) -> None:
        """Act as the agent whose `weights` these are."""
        super().take_weights(weights)
        self.epsilon = float(weights["epsilon"])

    def keep(self, steps: Iterable[Transition]) -> None:
        """Put somebody else's steps, in their order, into the replay buffer."""
        chain = NStep(self.config.n_step, self.config.gamma)
        for step in steps:
            for item in chain.push(step):
                self.replay.add(item)

    def cut(self) -> None:
        """Forget steps that wait for their n-step return."""
        self._chains.clear()

    def state(self) -> dict[str, Any]:
        """Return everything that learning goes on from, the replay buffer included."""
        return super().state() | {"replay": self.replay.state(), "epsilon": self.epsilon}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned."""
        super().restore(state)
        self.replay.restore(state["replay"])
        self.epsilon = float(state["epsilon"])

    def load(self, paths: Mapping[str, Path]) -> None:
        """Go on from a model file; exploration goes on where it was."""
        super().load(paths)
        self.epsilon = max(self.config.min_epsi, self.config.init_epsi * self.config.epsi_decay**self.decisions)


class PolicyAgent(LearnedAgent):
    """Actor-critic: samples from the actor while it learns, an update per episode (or per `update_steps` of them)."""

    def __init__(
        self,
        kind: AgentKind,
        config: AgentConfig,
        *,
        lookahead: int = 0,
        seed: int = 0,
        learn: bool = True,
        guide: Policy | None = None,
    ) -> None:
        super().__init__(kind, config, lookahead, seed, learn)
        del guide  # an actor learns from what it chose itself
        actor = NetworkSpec(encoder=self.encoder, head="actor", width=config.hidden_layers, lookahead=lookahead)
        self.learner = ActorCriticLearner(actor, dataclasses.replace(actor, head="critic"), config, seed)
        self._fast = FastNetwork(self.learner.actor)
        self._open: dict[int, list[Transition]] = {}
        self._ready: list[list[Transition]] = []
        self._ready_steps = 0

    @property
    def scorer(self) -> Network:
        """The actor."""
        return self.learner.actor

    @property
    def scale(self) -> RewardScale:
        """The running scale of rewards."""
        return self.learner.scale

    def scores(self, observation: Observation) -> np.ndarray:
        """Return [N] logits."""
        return np.asarray(self._fast(observation))

    def act(self, context: Context) -> Decision:
        """Sample a feasible row from the actor, or take its likeliest when frozen."""
        observation = context.observation
        rows = np.flatnonzero(observation.mask)
        logits = self.scores(observation)[rows]
        if not self.learning:
            return Decision(int(rows[logits.argmax()]))
        # The largest of logits plus Gumbel noise is a sample of the softmax (Gumbel 1954).
        return Decision(int(rows[(logits + self.rng.gumbel(size=len(rows))).argmax()]))

    def observe(self, transition: Transition, stream: int = 0) -> None:
        """Take one step of experience."""
        if not self.learning:
            return
        self.scale.add(transition.reward)
        self.reward_sum += transition.reward
        self.decisions += 1
        piece = self._open.setdefault(stream, [])
        piece.append(transition)
        ends = transition.terminated or transition.truncated or transition.next_observation is None
        if ends or len(piece) >= self.config.horizon:
            self._ready.append(piece)
            self._ready_steps += len(piece)
            self._open[stream] = []

    def flush(self) -> dict[str, float]:
        """Learn from all decisions gathered, episodes under way included, when there are enough for an advantage."""
        pieces = [*self._ready, *(piece for piece in self._open.values() if piece)]
        self.cut()
        if not self.learning or sum(map(len, pieces)) < MIN_UPDATE_STEPS:
            return {}
        self.updates += 1
        return {CSR: self.reward_sum, **self.learner.update(pieces, self.rng)}

    def cut(self) -> None:
        """Forget episodes under way and those not learned from yet."""
        self._open.clear()
        self._ready, self._ready_steps = [], 0

    def learn(self) -> dict[str, float]:
        """Update once whole episodes of at least `update_steps` decisions are there."""
        if not self.learning or self._ready_steps < self.config.update_steps:
            return {}
        scalars = self.learner.update(self._ready, self.rng)
        self._ready, self._ready_steps = [], 0
        self.updates += 1
        return {CSR: self.reward_sum, **scalars}

    def parts(self) -> Mapping[str, tuple[Network, Mapping[str, Any]]]:
        """Two files: the actor and the critic, each with its optimiser."""
        learner = self.learner
        return {
            "Actor": (learner.actor, {"optimizer": learner.actor_optimizer}),
            "Critic": (learner.critic, {"optimizer": learner.critic_optimizer}),
        }


def least_requested(observation: Observation) -> int:
    """Return the feasible row whose CPU and memory are least requested after the pod; the guide when none is given."""
    after = observation.pairs[:, 1] + observation.pairs[:, 2]
    return int(np.where(observation.mask, after, np.inf).argmin())


def make_agent(
    kind: AgentKind,
    config: AgentConfig | None = None,
    *,
    lookahead: int = 0,
    seed: int = 0,
    learn: bool = True,
    guide: Policy | None = None,
) -> LearnedAgent:
    """Build an agent with fresh weights; `config` None takes the defaults of its command."""
    if kind not in AGENT_KINDS:
        raise UserError(f"agent: {kind!r} is not accepted; expected one of {', '.join(AGENT_KINDS)}")
    config = config or default_config(kind)
    agent = ValueAgent if kind in {"dqn", "gnn"} else PolicyAgent
    return agent(kind, config, lookahead=lookahead, seed=seed, learn=learn, guide=guide)


def load_agent(
    path: str | Path,
    config: AgentConfig | None = None,
    *,
    kind: AgentKind | None = None,
    seed: int = 0,
    learn: bool = True,
    guide: Policy | None = None,
) -> LearnedAgent:
    """Build the agent that a model file holds (either file of an actor and its critic) and go on from it.

    `config` None takes the file's settings; else its width has to be the file's. `kind` is what the caller expects.
    Raises UserError when the file is missing, corrupt, foreign, of another kind or size.
    """
    path = Path(path)
    checkpoint = load_checkpoint(path)
    if checkpoint.kind not in AGENT_KINDS or kind not in {None, checkpoint.kind}:
        raise UserError(f"model {path}: is a {checkpoint.kind!r} model; expected {kind or ', '.join(AGENT_KINDS)}")
    try:
        config = config or AgentConfig(**checkpoint.fields["config"])
    except (KeyError, TypeError) as error:
        raise UserError(f"model {path}: its settings are damaged ({error})") from error
    agent = make_agent(
        checkpoint.kind,
        config,
        lookahead=checkpoint.spec.lookahead,
        seed=seed,
        learn=learn,
        guide=guide,
    )
    names = list(agent.parts())
    prefix = next((name for name in names if path.name.startswith(f"{name}_")), None)
    if len(names) > 1 and prefix is None:
        raise UserError(f"model {path}: the file's name must begin with {' or '.join(f'{name}_' for name in names)}")
    stem = path.name.removeprefix(f"{prefix}_")
    agent.load({name: path if len(names) == 1 else path.with_name(f"{name}_{stem}") for name in names})
    return agent


def single_threaded() -> None:
    """Let torch use one thread in this process: its products are too small to share out."""
    torch.set_num_threads(1)
