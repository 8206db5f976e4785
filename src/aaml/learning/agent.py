"""Agents that learn from their own decisions, one at a time: a policy, the algorithm that improves it, what it gathers.

The four agents are an encoder {MLP, GNN} times an algorithm {DQN, PPO}.
"""

import copy
import dataclasses
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from aaml.errors import UserError
from aaml.learning.advantages import discounted_returns, generalized
from aaml.learning.algorithms.dqn import QLearning
from aaml.learning.algorithms.imitation import Demonstration, imitate
from aaml.learning.algorithms.ppo import Ppo, Rollout
from aaml.learning.buffers import NStep, Observations, Replay, RewardScale
from aaml.learning.checkpoint import Checkpoint, check_fits, load_checkpoint, part_of, restore, save_checkpoint
from aaml.learning.config import ActorCritic, AgentKind, Dqn, NetworkAgent, read_agent
from aaml.learning.networks import Network, NetworkSpec
from aaml.learning.policy import SCORED, SCORED_FROM, NetworkPolicy, guide_of, network_spec
from aaml.learning.storage import Experience
from aaml.scheduling.curves import ADVANTAGE, CUMULATIVE_REWARD, EPSILON
from aaml.scheduling.node_sampling import NodeSampling, next_feasible
from aaml.scheduling.observation import PLAIN, Context, Observation, ObservationSpec
from aaml.scheduling.ports import Decision, Policy, Transition, shown
from aaml.scheduling.queue_sort import QueueSort
from aaml.settings import plain

MIN_UPDATE_STEPS = 8
USUAL_BUFFER = 20_000  # decisions kept where the settings say 0


class NeuralAgent(ABC):
    """A policy that learns. `learning` set to False freezes it: it takes its best choice and ignores experience."""

    __repr__ = shown

    def __init__(
        self,
        config: NetworkAgent,
        algorithm: Ppo | QLearning,
        *,
        observation_spec: ObservationSpec,
        seed: int,
        guide: Policy | None,
    ) -> None:
        self.config = config
        self.policy = NetworkPolicy(algorithm.acting, observation_spec=observation_spec, seed=seed, guide=guide)
        self.learning = True
        self.scale = RewardScale()
        """The running scale of rewards."""
        self.decisions = self.updates = 0
        self.reward_sum = 0.0
        self.generator = torch.Generator().manual_seed(seed)
        self._parts = algorithm.parts
        self._networks = [each for each in vars(algorithm).values() if isinstance(each, Network)]

    # ---- acting ------------------------------------------------------------------------------------------------------

    @property
    def name(self) -> AgentKind:
        """The name that people know the agent by."""
        return self.policy.name

    @property
    def observation_spec(self) -> ObservationSpec:
        """What it looks at."""
        return self.policy.observation_spec

    @property
    def queue_sort(self) -> QueueSort | None:
        """The order in which it wants waiting pods."""
        return self.policy.queue_sort

    @queue_sort.setter
    def queue_sort(self, sort: QueueSort | None) -> None:
        self.policy.queue_sort = sort

    @property
    def learning(self) -> bool:
        """Whether it explores and learns."""
        return self.policy.exploring

    @learning.setter
    def learning(self, learns: bool) -> None:
        self.policy.exploring = learns

    def observation_of(self, context: Context) -> Observation:
        """Return the features that the policy looks at."""
        return self.policy.observation_of(context)

    def act(self, context: Context) -> Decision:
        """Choose among the feasible rows."""
        return self.policy.act(context)

    def preferences(self, observation: Observation) -> np.ndarray:
        """Return [N], how much each node is wanted; mind the mask."""
        return self.policy.preferences(observation)

    def scores(self, context: Context) -> np.ndarray:
        """Return [N] preferences in a context, higher is better; mind the mask."""
        return self.policy.scores(context)

    def score_some(self, sampling: NodeSampling | None) -> None:
        """Score the nodes that `sampling` says when it chooses, None: all. Raises `UserError` where it cannot."""
        self.policy.score_some(sampling)

    # ---- learning ----------------------------------------------------------------------------------------------------

    def to(self, device: str) -> None:
        """Move the networks to a device, "cpu" or "cuda", before anything is learned or restored.

        There they learn from batches. A single decision is made on the CPU all the same, by a copy.
        """
        for network in self._networks:
            network.to(device)
        self.policy.moved()

    def observe(self, transition: Transition, stream: int = 0) -> None:
        """Take one step of experience; steps of one `stream` (an environment) follow one another."""
        if self.learning:
            self.count(transition.reward)
            self.gather(transition, stream)

    def count(self, reward: float) -> None:
        """Count one step and its reward, without keeping the step."""
        self.scale.add(reward)
        self.reward_sum += reward
        self.decisions += 1

    @abstractmethod
    def gather(self, transition: Transition, stream: int = 0) -> None:
        """Keep a step until it is learned from, without counting it."""

    @property
    @abstractmethod
    def memory(self) -> int:
        """How many of the latest steps learning goes on from; those before them are of no use any more."""

    @abstractmethod
    def forget(self, old: Callable[[Experience], bool]) -> None:
        """Let go of the oldest experience for as long as it is `old`."""

    @abstractmethod
    def learn(self) -> dict[str, float]:
        """Update if it is time; returns scalars to record, empty when nothing was done."""

    def flush(self) -> dict[str, float]:
        """Learn from what was gathered and would wait for more; returns scalars to record."""
        return {}

    @abstractmethod
    def cut(self) -> None:
        """Forget steps whose continuation is still awaited, as if every stream ended here."""

    def follow(self, pieces: Sequence[Sequence[Transition]], passes: int) -> float:
        """Learn from trajectories of any policy, each in order, `passes` times; returns the last loss."""
        steps = [step for piece in pieces for step in piece]
        for step in steps:
            self.scale.add(step.reward)
        shown = Demonstration(
            Observations([step.observation for step in steps], self.policy.network.needs_graphs),
            torch.tensor([step.action for step in steps]),
            discounted_returns(pieces, self.config.gamma, self.divisor),
        )
        return self.imitate([shown], passes)

    @abstractmethod
    def imitate(self, shown: Sequence[Demonstration], passes: int) -> float:
        """Learn to choose as was demonstrated, and what it was worth where that is known; returns the last loss."""

    @property
    def divisor(self) -> float:
        """What rewards are divided by."""
        return self.scale.divisor if self.config.scale_rewards else 1.0

    def after_steps(self, hook: Callable[[], None]) -> None:
        """Call `hook` after each step of an optimiser."""
        for _, others in self._parts.values():
            for part in others.values():
                if isinstance(part, torch.optim.Optimizer):
                    part.register_step_post_hook(lambda *_: hook())

    # ---- what it is, in a file or in another process -----------------------------------------------------------------

    def state(self, *, experience: bool = True) -> dict[str, Any]:  # noqa: ARG002  (a DQN has some)
        """Return everything that learning goes on from, the same to the last bit, as tensors and plain values.

        Call `cut` first. Without `experience` what was gathered is left out, which `restore` then leaves as it is.
        """
        parts = {
            name: copy.deepcopy({key: part.state_dict() for key, part in {"model": network, **others}.items()})
            for name, (network, others) in self._parts.items()
        }
        rng = json.dumps(self.policy.rng.bit_generator.state)
        return {"parts": parts, "fields": self._fields(), "rng": rng, "generator": self.generator.get_state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned; the agent must have been made with the same settings."""
        self.take_parts(state)
        self._take_fields(state["fields"])
        self.policy.rng.bit_generator.state = json.loads(state["rng"])
        self.generator.set_state(state["generator"])

    def take_parts(self, state: Mapping[str, Any]) -> None:
        """Take networks and optimisers out of what `state` returned, and leave counters and experience as they are."""
        for name, (network, others) in self._parts.items():
            for key, part in {"model": network, **others}.items():
                part.load_state_dict(state["parts"][name][key])

    def save(self, directory: str, stem: str) -> Sequence[str]:
        """Write the model files, each whole or not at all, and return their paths."""
        paths = []
        for name, (network, others) in self._parts.items():
            path = Path(directory) / f"{name}_{stem}.pth"
            states = {"model": network.state_dict()} | {key: part.state_dict() for key, part in others.items()}
            save_checkpoint(path, Checkpoint(self.name, network.spec, self.observation_spec, self._fields(), states))
            paths.append(str(path))
        return paths

    def load(self, path: Path) -> None:
        """Go on from a model's files, either of an actor and its critic; raises UserError for files that do not fit."""
        for name, (network, others) in self._parts.items():
            file = part_of(path, name, self._parts)
            checkpoint = load_checkpoint(file)
            check_fits(file, checkpoint, self.name, network.spec)
            try:
                states = checkpoint.states
                restore(file, network, states["model"])
                for key, part in others.items():  # a network of the algorithm's own may begin as the one that acts
                    restore(file, part, states.get(key, states["model"]) if isinstance(part, Network) else states[key])
                self._take_fields(checkpoint.fields)
            except (KeyError, TypeError, ValueError) as error:
                raise UserError(f"model {file}: its header is damaged ({error})") from error

    def _fields(self) -> dict[str, Any]:
        return {
            "config": plain(self.config),
            "decisions": self.decisions,
            "updates": self.updates,
            "reward_sum": self.reward_sum,
            "reward_scale": [self.scale.count, self.scale.square_sum],
            "queue_sort": None if self.queue_sort is None else self.queue_sort.numbers(),
        }

    def _take_fields(self, fields: Mapping[str, Any]) -> None:
        self.decisions, self.updates = int(fields["decisions"]), int(fields["updates"])
        self.reward_sum = float(fields["reward_sum"])
        self.scale.count, self.scale.square_sum = map(float, fields["reward_scale"])
        sort = fields.get("queue_sort")
        self.queue_sort = None if sort is None else QueueSort.of(sort)


class DqnAgent(NeuralAgent):
    """DQN: explores by a chance that falls, and learns from a replay buffer.

    `guide` is a policy whose choice exploration takes where the settings say `use_heuristic` (None: the feasible node
    with the least CPU and memory).
    """

    config: Dqn

    def __init__(
        self,
        config: Dqn,
        algorithm: QLearning,
        *,
        observation_spec: ObservationSpec,
        seed: int,
        guide: Policy | None,
    ) -> None:
        super().__init__(config, algorithm, observation_spec=observation_spec, seed=seed, guide=guide_of(config, guide))
        self.algorithm = algorithm
        self.replay = Replay(
            config.buffer_size or USUAL_BUFFER,
            prioritized=config.prioritized, graphs=algorithm.network.needs_graphs, divisor=lambda: self.divisor,
        )  # fmt: skip
        self._decay = config.decay()
        self._chains: dict[int, NStep] = {}
        self.policy.epsilon = config.init_epsi

    def count(self, reward: float) -> None:
        """Count one step, after which there is less to explore."""
        super().count(reward)
        self.policy.epsilon = self.epsilon

    @property
    def epsilon(self) -> float:
        """The chance to explore."""
        return max(self.config.min_epsi, self.config.init_epsi * self._decay**self.decisions)

    @property
    def memory(self) -> int:
        """What the replay buffer holds, and what waits for its n-step return."""
        return (self.config.buffer_size or USUAL_BUFFER) + self.config.n_step

    def gather(self, transition: Transition, stream: int = 0) -> None:
        """Keep a step in the replay buffer, once its n-step return is known."""
        if stream not in self._chains:
            self._chains[stream] = self.chain()
        for item in self._chains[stream].push(transition):
            self.replay.add(item)

    def chain(self) -> NStep:
        """Return what makes experience of the steps of one stream."""
        return NStep(self.config.n_step, self.config.gamma)

    def forget(self, old: Callable[[Experience], bool]) -> None:
        """Let go of the oldest items of the replay buffer for as long as they are `old`."""
        self.replay.forget(old)

    def learn(self) -> dict[str, float]:
        """Update every `update_frequency` decisions, once there is half a batch of experience."""
        config, due = self.config, self.decisions // self.config.update_frequency
        if not self.learning or due <= self.updates or 2 * len(self.replay) < config.batch_size:
            return {}
        widest = len(self.replay.items[-1].observation.mask)
        size = max(8, min(config.batch_size, config.max_batch_rows // max(widest, 1)))
        steps = max(1, config.n_epochs * config.update_frequency // size)
        scalars = self.algorithm.learn(self.replay, size, steps, self.generator)
        every = max(1, config.target_update_frequency // config.update_frequency)
        if due // every > self.updates // every:
            self.algorithm.sync_target()
        self.updates = due
        return {CUMULATIVE_REWARD: self.reward_sum, **scalars, EPSILON: self.epsilon}

    def imitate(self, shown: Sequence[Demonstration], passes: int) -> float:
        """Rank the teacher's choices first, and learn what they were worth."""
        loss = imitate(self.algorithm.network, shown, passes, self.generator, batch_size=self.config.batch_size)
        self.algorithm.sync_target()
        return loss

    def cut(self) -> None:
        """Forget steps that wait for their n-step return."""
        self._chains.clear()

    def state(self, *, experience: bool = True) -> dict[str, Any]:
        """Return everything that learning goes on from, the replay buffer included."""
        return super().state() | ({"replay": self.replay.state()} if experience else {})

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned."""
        super().restore(state)
        if "replay" in state:
            self.replay.restore(state["replay"])

    def _take_fields(self, fields: Mapping[str, Any]) -> None:
        super()._take_fields(fields)
        self.policy.epsilon = self.epsilon


class ActorCriticAgent(NeuralAgent):
    """Actor-critic: samples from the actor, an update per episode (or per `update_steps` of them)."""

    config: ActorCritic

    def __init__(self, config: ActorCritic, algorithm: Ppo, *, observation_spec: ObservationSpec, seed: int) -> None:
        super().__init__(config, algorithm, observation_spec=observation_spec, seed=seed, guide=None)
        self.algorithm = algorithm
        self._open: dict[int, list[Transition]] = {}
        self._ready: list[list[Transition]] = []

    @property
    def memory(self) -> int:
        """The steps since the last update, and those before it of an episode that goes on."""
        return sum(map(len, self._ready)) + sum(map(len, self._open.values()))

    def forget(self, old: Callable[[Experience], bool]) -> None:
        """Do nothing: an actor keeps no steps but those of its `memory`."""

    def gather(self, transition: Transition, stream: int = 0) -> None:
        """Keep a step until its episode has ended, as a choice among the nodes that were scored."""
        piece = self._open.setdefault(stream, [])
        chosen = _among_scored(transition)
        if piece and piece[-1].next_observation is transition.observation:
            piece[-1] = dataclasses.replace(piece[-1], next_observation=chosen.observation)
        piece.append(chosen)
        ends = transition.terminated or transition.truncated or transition.next_observation is None
        if ends or len(piece) >= self.config.segment:
            self._ready.append(piece)
            self._open[stream] = []

    def learn(self) -> dict[str, float]:
        """Update once whole episodes of at least `update_steps` decisions are there."""
        return self._update(self.config.update_steps)

    def flush(self) -> dict[str, float]:
        """Learn from all decisions gathered, episodes under way included, when there are enough for an advantage."""
        self._ready += [piece for piece in self._open.values() if piece]
        scalars = self._update(MIN_UPDATE_STEPS)
        self.cut()
        return scalars

    def _update(self, least: int) -> dict[str, float]:
        steps = [step for piece in self._ready for step in piece]
        if not self.learning or len(steps) < least:
            return {}
        advantage, returns, value = generalized(self._ready, self.algorithm, self.divisor)
        seen = Observations([step.observation for step in steps], self.algorithm.actor.needs_graphs)
        action = torch.tensor([step.action for step in steps])
        rollout = Rollout(seen, action, self.algorithm.log_prob(seen, action), advantage, returns, value)
        scalars = self.algorithm.update(rollout, self.generator)
        self._ready = []
        self.updates += 1
        return {CUMULATIVE_REWARD: self.reward_sum, ADVANTAGE: float(advantage.mean()), **scalars}

    def imitate(self, shown: Sequence[Demonstration], passes: int) -> float:
        """Clone the choices; the critic learns their returns."""
        algorithm, size = self.algorithm, self.config.batch_size
        return imitate(algorithm.actor, shown, passes, self.generator, algorithm.critic, batch_size=size)

    def cut(self) -> None:
        """Forget episodes under way and those not learned from yet."""
        self._open.clear()
        self._ready = []


def agreement(policy: NetworkPolicy, steps: Sequence[Transition]) -> float:
    """Return the share of steps in which the policy's best choice is the one that was made."""
    return float(np.mean([policy.greedy(step.observation) == step.action for step in steps]))


def _among_scored(step: Transition) -> Transition:
    """Return a step as a choice among the nodes that were scored, whose chances alone led to it."""
    if SCORED not in step.info:
        return step
    seen = step.observation
    rows = next_feasible(seen.mask, int(step.info[SCORED_FROM]), int(step.info[SCORED]))
    return dataclasses.replace(step, observation=seen.of(rows), action=int(np.flatnonzero(rows == step.action)[0]))


def make_agent(
    config: NetworkAgent,
    *,
    observation_spec: ObservationSpec = PLAIN,
    seed: int = 0,
    guide: Policy | None = None,
    like: NetworkSpec = NetworkSpec(),  # noqa: B008  (frozen)
    averaged: bool = False,
) -> NeuralAgent:
    """Build an agent with fresh weights, which sees the features that `like` sees; what is left unset is as live.

    With `averaged` a DQN acts by a running average of its weights.
    """
    config = config.resolved("live")
    spec = network_spec(config, observation_spec, like)
    if isinstance(config, Dqn):
        learner = QLearning(config, spec, seed, averaged=averaged)
        return DqnAgent(config, learner, observation_spec=observation_spec, seed=seed, guide=guide)
    if isinstance(config, ActorCritic):
        return ActorCriticAgent(config, Ppo(config, spec, seed), observation_spec=observation_spec, seed=seed)
    raise TypeError(f"{type(config).__name__} is no agent with a network")


def load_agent(
    path: str | Path,
    config: NetworkAgent | None = None,
    *,
    seed: int = 0,
    guide: Policy | None = None,
    observation_spec: ObservationSpec | None = None,
    averaged: bool = False,
) -> NeuralAgent:
    """Build the agent that a model file holds (either file of an actor and its critic) and go on from it.

    `config` None takes the file's settings; else its kind and width have to be the file's. `observation_spec` None
    takes the file's; else it has to show as many pods ahead. Raises UserError when the file is missing, corrupt,
    foreign, of another kind or size.
    """
    path = Path(path)
    checkpoint = load_checkpoint(path)
    if config is not None and config.name != checkpoint.kind:
        raise UserError(f"model {path}: is a {checkpoint.kind!r} model; expected {config.name}")
    try:
        config = config or read_agent(checkpoint.kind, checkpoint.fields["config"])
    except (KeyError, TypeError, UserError) as error:
        raise UserError(f"model {path}: its settings are damaged ({error})") from error
    if observation_spec is not None and observation_spec.lookahead != checkpoint.observation_spec.lookahead:
        seen = f"{checkpoint.observation_spec.lookahead} pods ahead"
        raise UserError(
            f"model {path}: was trained to look {seen}; expected {observation_spec.lookahead}, as the task has it"
        )
    agent = make_agent(
        config, observation_spec=observation_spec or checkpoint.observation_spec, seed=seed, guide=guide,
        like=checkpoint.spec, averaged=averaged,
    )  # fmt: skip
    agent.load(path)
    return agent


def first_agent(
    config: NetworkAgent, start: Path | None, *, observation_spec: ObservationSpec, seed: int, averaged: bool = False
) -> NeuralAgent:
    """Build the agent that a training begins with: a fresh one, or that of a model file to go on from.

    Raises UserError as `load_agent` does.
    """
    if start is None:
        return make_agent(config, observation_spec=observation_spec, seed=seed, averaged=averaged)
    return load_agent(start, config, observation_spec=observation_spec, seed=seed, averaged=averaged)
