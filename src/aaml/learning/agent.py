"""The four agents as policies that learn: encoder {MLP, GNN} x learner {DQN, actor-critic}, one interface."""

import copy
import dataclasses
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from aaml.errors import UserError
from aaml.learning.actor_critic import ActorCriticLearner
from aaml.learning.checkpoint import Checkpoint, load_checkpoint, restore, save_checkpoint
from aaml.learning.config import ActorCritic, AgentKind, Dqn, NetworkAgent, read_agent
from aaml.learning.dqn import DqnLearner
from aaml.learning.inference import FastNetwork
from aaml.learning.networks import HeadKind, Network, NetworkSpec
from aaml.learning.replay import Experience, NStep, Replay, RewardScale
from aaml.scheduling.curves import CUMULATIVE_REWARD, EPSILON
from aaml.scheduling.node_sampling import NodeSampling, next_feasible
from aaml.scheduling.observation import PLAIN, Context, Observation, ObservationSpec
from aaml.scheduling.ports import Decision, Policy, Transition
from aaml.scheduling.queue_sort import QueueSort
from aaml.settings import plain

MIN_UPDATE_STEPS = 8
USUAL_BUFFER = 20_000
_SCORED, _SCORED_FROM = "scored", "scored_from"  # of a decision among some nodes: how many, and from which row on


class LearnedAgent(ABC):
    """What the four agents share: acting by a numpy twin of a network, counters, saving and loading.

    `learn` False freezes the agent: it takes its best choice and ignores experience. `guide` is a policy whose choice
    exploration takes where the settings say `use_heuristic` (None: the feasible node with the least CPU and memory).
    `sees`, what it looks at, and `queue_sort`, the order in which it wants waiting pods (None: kube-scheduler's), are
    saved with it.
    """

    def __init__(
        self,
        config: NetworkAgent,
        scorer: Network,
        scale: RewardScale,
        *,
        sees: ObservationSpec,
        seed: int,
        learn: bool,
    ) -> None:
        self.name: str = config.name
        self.kind: AgentKind = config.name
        self.config = config
        self.scorer = scorer
        """The network whose scores rank nodes."""
        self.scale = scale
        """The running scale of rewards."""
        self.learning = learn
        self.sees = sees
        self.decisions = 0
        self.updates = 0
        self.reward_sum = 0.0
        self.rng = np.random.default_rng(seed)
        self._queue_sort: QueueSort | None = None
        self._sampling: NodeSampling | None = None
        self._fast = FastNetwork(scorer)

    @property
    def queue_sort(self) -> QueueSort | None:
        """The order in which it wants waiting pods, by what it expects of them."""
        return self._queue_sort

    @queue_sort.setter
    def queue_sort(self, sort: QueueSort | None) -> None:
        self._queue_sort = None if sort is None else sort.knowing(self.sees.expects)

    def perceive(self, context: Context) -> Observation:
        """Return the features that this agent looks at."""
        return context.seen_by(self.sees)

    @abstractmethod
    def act(self, context: Context) -> Decision:
        """Choose among the feasible rows."""

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

    @abstractmethod
    def parts(self) -> Mapping[str, tuple[Network, Mapping[str, Any]]]:
        """Return the model files: name before the stem -> (network, name -> further module or optimiser)."""

    def after_steps(self, hook: Callable[[], None]) -> None:
        """Call `hook` after each step of an optimiser."""
        for _, others in self.parts().values():
            for part in others.values():
                if isinstance(part, torch.optim.Optimizer):
                    part.register_step_post_hook(lambda *_: hook())

    def preferences(self, observation: Observation) -> np.ndarray:
        """Return [N], how much each node is wanted (action values or logits); mind the mask."""
        return np.asarray(self._fast(observation))

    def score_some(self, sampling: NodeSampling | None) -> None:
        """Score the nodes that `sampling` says when it chooses, None: all. Raises `UserError` where it cannot."""
        if sampling is not None and self.sees.racks:
            raise UserError(f"{self.name} sees racks: it scores all nodes")
        self._sampling = sampling

    def _considered(self, observation: Observation) -> tuple[np.ndarray, np.ndarray, dict[str, float]]:
        """Return the rows to choose from, the preference for each, and which they are where not all were scored."""
        if self._sampling is None:
            rows = np.flatnonzero(observation.mask)
            return rows, self.preferences(observation)[rows], {}
        start = self._sampling.start
        rows = self._sampling.rows(observation.mask)
        if len(rows) == len(observation.mask):
            return rows, self.preferences(observation)[rows], {}
        return rows, self.preferences(observation.of(rows)), {_SCORED_FROM: start, _SCORED: len(rows)}

    def scores(self, context: Context) -> np.ndarray:
        """Return [N] preferences in a context, higher is better; mind the mask."""
        return self.preferences(self.perceive(context))

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

    def state(self, *, experience: bool = True) -> dict[str, Any]:  # noqa: ARG002  (`ValueAgent` has some)
        """Return everything that learning goes on from, the same to the last bit, as tensors and plain values.

        Call `cut` first. Without `experience` what was gathered is left out, which `restore` then leaves as it is.
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
        self.take_parts(state)
        self._take_fields(state["fields"])
        self.rng.bit_generator.state = json.loads(state["rng"])

    def take_parts(self, state: Mapping[str, Any]) -> None:
        """Take networks and optimisers out of what `state` returned, and leave counters and experience as they are."""
        for name, (network, others) in self.parts().items():
            for key, part in {"model": network, **others}.items():
                part.load_state_dict(state["parts"][name][key])

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

    def greedy(self, observation: Observation) -> int:
        """Return the feasible row with the highest score."""
        return int(np.where(observation.mask, self.preferences(observation), -np.inf).argmax())

    def save(self, directory: str, stem: str) -> Sequence[str]:
        """Write the model files, each whole or not at all, and return their paths."""
        paths = []
        fields = self._fields()
        for name, (network, others) in self.parts().items():
            path = Path(directory) / f"{name}_{stem}.pth"
            states = {"model": network.state_dict()} | {key: part.state_dict() for key, part in others.items()}
            save_checkpoint(path, Checkpoint(self.kind, network.spec, self.sees, fields, states))
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


def _spec(config: NetworkAgent, head: HeadKind, sees: ObservationSpec, like: NetworkSpec) -> NetworkSpec:
    """Return the description of an agent's network, which sees the features that `like` sees."""
    return dataclasses.replace(
        like, encoder=config.encoder, head=head, width=config.hidden_layers, lookahead=sees.lookahead
    )


def _words(spec: NetworkSpec) -> str:
    return f"{spec.encoder} encoder, {spec.head} head, width {spec.width}, lookahead {spec.lookahead}"


class ValueAgent(LearnedAgent):
    """DQN: epsilon-greedy on action values, replay, target network."""

    config: Dqn

    def __init__(
        self,
        config: Dqn,
        *,
        sees: ObservationSpec = PLAIN,
        seed: int = 0,
        learn: bool = True,
        guide: Policy | None = None,
        like: NetworkSpec = NetworkSpec(),  # noqa: B008  (frozen)
    ) -> None:
        spec = _spec(config, "q", sees, like)
        self.learner = DqnLearner(spec, config, seed)
        super().__init__(config, self.learner.network, self.learner.scale, sees=sees, seed=seed, learn=learn)
        self.replay = Replay(config.buffer_size or USUAL_BUFFER, self.rng, config.prioritized)
        self.epsilon = config.init_epsi
        self._decay = config.decay()
        self._guide = guide
        self._chains: dict[int, NStep] = {}

    def act(self, context: Context) -> Decision:
        """Choose the row with the highest action value, or explore."""
        observation = self.perceive(context)
        if self.learning and self.rng.random() < self.epsilon:
            return Decision(self._explore(context), info={"explored": 1.0})
        rows, values, scored = self._considered(observation)
        best = int(values.argmax())
        return Decision(int(rows[best]), info={"value": float(values[best]), **scored})

    def _explore(self, context: Context) -> int:
        if not self.config.use_heuristic:
            return int(self.rng.choice(np.flatnonzero(context.mask)))
        if self._guide is not None:
            row = self._guide.act(context).row
            if row is not None:
                return row
        return least_requested(context.observation)

    def count(self, reward: float) -> None:
        """Count one step, after which there is less to explore."""
        super().count(reward)
        self.epsilon = max(self.config.min_epsi, self.epsilon * self._decay)

    @property
    def memory(self) -> int:
        """What the replay buffer holds, and what waits for its n-step return."""
        return (self.config.buffer_size or USUAL_BUFFER) + self.config.n_step

    def gather(self, transition: Transition, stream: int = 0) -> None:
        """Keep a step in the replay buffer, once its n-step return is known."""
        chain = self._chains.setdefault(stream, NStep(self.config.n_step, self.config.gamma))
        for item in chain.push(transition):
            self.replay.add(item)

    def forget(self, old: Callable[[Experience], bool]) -> None:
        """Let go of the oldest items of the replay buffer for as long as they are `old`."""
        self.replay.forget(old)

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
        return {CUMULATIVE_REWARD: self.reward_sum, **scalars, EPSILON: self.epsilon}

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

    def state(self, *, experience: bool = True) -> dict[str, Any]:
        """Return everything that learning goes on from, the replay buffer included."""
        kept = {"replay": self.replay.state()} if experience else {}
        return super().state() | kept | {"epsilon": self.epsilon}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned."""
        super().restore(state)
        if "replay" in state:
            self.replay.restore(state["replay"])
        self.epsilon = float(state["epsilon"])

    def load(self, paths: Mapping[str, Path]) -> None:
        """Go on from a model file; exploration goes on where it was."""
        super().load(paths)
        self.epsilon = max(self.config.min_epsi, self.config.init_epsi * self._decay**self.decisions)


class PolicyAgent(LearnedAgent):
    """Actor-critic: samples from the actor while it learns, an update per episode (or per `update_steps` of them)."""

    config: ActorCritic

    def __init__(
        self,
        config: ActorCritic,
        *,
        sees: ObservationSpec = PLAIN,
        seed: int = 0,
        learn: bool = True,
        guide: Policy | None = None,
        like: NetworkSpec = NetworkSpec(),  # noqa: B008  (frozen)
    ) -> None:
        del guide  # an actor learns from what it chose itself
        actor = _spec(config, "actor", sees, like)
        self.learner = ActorCriticLearner(actor, dataclasses.replace(actor, head="critic"), config, seed)
        super().__init__(config, self.learner.actor, self.learner.scale, sees=sees, seed=seed, learn=learn)
        self._open: dict[int, list[Transition]] = {}
        self._ready: list[list[Transition]] = []
        self._ready_steps = 0

    def act(self, context: Context) -> Decision:
        """Sample a feasible row from the actor, or take its likeliest when frozen."""
        observation = self.perceive(context)
        rows, logits, scored = self._considered(observation)
        if self.learning:  # the largest of logits plus Gumbel noise is a sample of the softmax (Gumbel 1954)
            logits = logits + self.rng.gumbel(size=len(rows))
        return Decision(int(rows[logits.argmax()]), info=scored)

    @property
    def memory(self) -> int:
        """The steps since the last update, and those before it of an episode that goes on."""
        return self._ready_steps + sum(map(len, self._open.values()))

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
            self._ready_steps += len(piece)
            self._open[stream] = []

    def flush(self) -> dict[str, float]:
        """Learn from all decisions gathered, episodes under way included, when there are enough for an advantage."""
        pieces = [*self._ready, *(piece for piece in self._open.values() if piece)]
        self.cut()
        if not self.learning or sum(map(len, pieces)) < MIN_UPDATE_STEPS:
            return {}
        self.updates += 1
        return {CUMULATIVE_REWARD: self.reward_sum, **self.learner.update(pieces, self.rng)}

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
        return {CUMULATIVE_REWARD: self.reward_sum, **scalars}

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


def _among_scored(step: Transition) -> Transition:
    """Return a step as a choice among the nodes that were scored, whose chances alone led to it."""
    if _SCORED not in step.info:
        return step
    seen = step.observation
    rows = next_feasible(seen.mask, int(step.info[_SCORED_FROM]), int(step.info[_SCORED]))
    return dataclasses.replace(step, observation=seen.of(rows), action=int(np.flatnonzero(rows == step.action)[0]))


def make_agent(
    config: NetworkAgent,
    *,
    sees: ObservationSpec = PLAIN,
    seed: int = 0,
    learn: bool = True,
    guide: Policy | None = None,
    like: NetworkSpec = NetworkSpec(),  # noqa: B008  (frozen)
) -> LearnedAgent:
    """Build an agent with fresh weights, which sees the features that `like` sees; what is left open is as live."""
    config = config.settled("live")
    if isinstance(config, Dqn):
        return ValueAgent(config, sees=sees, seed=seed, learn=learn, guide=guide, like=like)
    if isinstance(config, ActorCritic):
        return PolicyAgent(config, sees=sees, seed=seed, learn=learn, guide=guide, like=like)
    raise TypeError(f"{type(config).__name__} is no agent with a network")


def load_agent(
    path: str | Path,
    config: NetworkAgent | None = None,
    *,
    seed: int = 0,
    learn: bool = True,
    guide: Policy | None = None,
    sees: ObservationSpec | None = None,
) -> LearnedAgent:
    """Build the agent that a model file holds (either file of an actor and its critic) and go on from it.

    `config` None takes the file's settings; else its kind and width have to be the file's. `sees` None takes what the
    file's agent saw; else it has to see as many pods ahead. Raises UserError when the file is missing, corrupt,
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
    if sees is not None and sees.lookahead != checkpoint.sees.lookahead:
        seen = f"{checkpoint.sees.lookahead} pods ahead"
        raise UserError(f"model {path}: was trained to look {seen}; expected {sees.lookahead}, as the task has it")
    agent = make_agent(config, sees=sees or checkpoint.sees, seed=seed, learn=learn, guide=guide, like=checkpoint.spec)
    names = list(agent.parts())
    prefix = next((name for name in names if path.name.startswith(f"{name}_")), None)
    if len(names) > 1 and prefix is None:
        raise UserError(f"model {path}: the file's name must begin with {' or '.join(f'{name}_' for name in names)}")
    stem = path.name.removeprefix(f"{prefix}_")
    agent.load({name: path if len(names) == 1 else path.with_name(f"{name}_{stem}") for name in names})
    return agent


def first_agent(
    config: NetworkAgent, start: Path | None, *, sees: ObservationSpec, seed: int, guide: Policy | None = None
) -> LearnedAgent:
    """Build the agent that a training begins with: a fresh one, or that of a model file to go on from.

    Raises UserError as `load_agent` does.
    """
    if start is None:
        return make_agent(config, sees=sees, seed=seed, guide=guide)
    return load_agent(start, config, sees=sees, seed=seed, guide=guide)


def single_threaded() -> None:
    """Let torch use one thread in this process: its products are too small to share out."""
    torch.set_num_threads(1)
