"""What a training's episodes are like, and streams of them in the simulator.

Each stream is an endless row of episodes with its own generator; its steps depend on who acts in it and on nothing
else, so that a stream is rebuilt from its actions alone.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from aaml.errors import bad_value
from aaml.evaluation.policies import load_policy
from aaml.policies.fragment_meter import FragmentMeter
from aaml.policies.registry import make_reward
from aaml.scheduling.cycle import Reward, spec_of
from aaml.scheduling.lifetimes import expected_lifetimes
from aaml.scheduling.loop import Event, SchedulingLoop, whole_run
from aaml.scheduling.observation import Context, Observation, ObservationSpec
from aaml.scheduling.play import play
from aaml.scheduling.ports import Attempt, Decision, Observer, Policy, Sorter, Step, Transition
from aaml.scheduling.rewards import RewardOptions
from aaml.settings import RemainingLifetimes
from aaml.sim.cluster import SimCluster
from aaml.sim.search import Future, Grade, Search
from aaml.sim.search_config import SearchConfig
from aaml.sim.tasks import find_task

if TYPE_CHECKING:
    from aaml.scheduling.queue_sort import QueueSort
    from aaml.sim.task import Task

TRAINING_SEEDS = 1 << 31  # episodes of training have seeds from here on, those of validation and tests lie below
Steps = list[tuple[int, Transition]]


@dataclass(frozen=True)
class EnvConfig:
    """What episodes are like: the task, the cluster sizes to draw from, and what differs from the task's own.

    `sorter`: a policy (a name or a model file) in whose order pods wait, where it has one.
    """

    task: str
    sizes: tuple[int, ...]
    pods: int | None = None
    trace: str | None = None
    reward: str = ""
    lookahead: int = 0
    lifetimes: bool = False
    remaining_lifetimes: RemainingLifetimes = "nothing"
    costs: bool = False
    racks: bool = False
    sorter: str = ""


class EnvFactory:
    """Builds episodes of a setting and the reward that goes with them, and says what their agent observes."""

    def __init__(self, env_config: EnvConfig) -> None:
        self.env_config = env_config
        self.task: Task = find_task(env_config.task)
        expected = self.task.expected(env_config.trace)
        meter = FragmentMeter.of(expected)
        self._expected = expected
        self._reward_options = RewardOptions(meter)
        lifetime_model = expected_lifetimes(env_config.remaining_lifetimes, expected)
        self.observation_spec = ObservationSpec(
            env_config.lookahead, env_config.lifetimes, env_config.racks, meter, lifetime_model, env_config.costs
        )
        sorter = self.policy(env_config.sorter) if env_config.sorter else None
        self.queue_sort: QueueSort | None = sorter.queue_sort if isinstance(sorter, Sorter) else None

    def build(self, seed: int, nodes: int) -> SimCluster:
        """Return a cluster at the beginning of an episode."""
        cluster = self.task.build(seed, nodes, pods=self.env_config.pods, trace=self.env_config.trace)
        cluster.sort_queue(self.queue_sort)
        return cluster

    def reward(self) -> Reward:
        """Return a fresh reward of the setting."""
        return make_reward(self.env_config.reward or self.task.reward, self._reward_options)

    def policy(self, spec: str, seed: int = 0) -> Policy:
        """Return a policy by name, which knows what pods to expect, or the one in a model file.

        Raises `UserError` for what is no policy, and for a model that is shown more of the pods that follow.
        """
        ours = self.env_config.lookahead
        policy = load_policy(spec, seed=seed, expected=self._expected)
        if spec_of(policy).lookahead > ours:
            raise bad_value("model", spec, f"one made for a lookahead of {ours}, which is that of {self.task.name}")
        return policy

    def search(self, config: SearchConfig, grade: Grade, rollout: Policy) -> Search:
        """Return the expert that looks ahead from what `grade` wants most, with `rollout` deciding what follows."""
        future = Future(self.task, self.env_config.trace)
        return Search(future, self.task, grade, rollout, config)

    def play(self, policy: Policy, seed: int, nodes: int, observers: Iterable[Observer] = ()) -> Mapping[str, float]:
        """Play one episode to its end without learning; returns its metrics, and `mean_reward` a decision."""
        cluster = self.build(seed, nodes)
        stats = play(cluster, policy, self.reward(), observers=observers)
        return {**cluster.metrics(), "mean_reward": stats.reward / max(stats.decisions, 1)}


@dataclass
class _Episode:
    number: int
    nodes: int
    cluster: SimCluster
    loop: SchedulingLoop
    events: Iterator[Event]
    actions: list[int] = field(default_factory=list)


class _Again:
    """Takes recorded actions once more."""

    name = "again"

    def __init__(self, actions: Iterable[int]) -> None:
        self._actions = iter(actions)

    def act(self, context: Context) -> Decision:  # noqa: ARG002
        action = int(next(self._actions))
        return Decision(None if action < 0 else action)


class Stream:
    """One endless row of episodes."""

    def __init__(self, factory: EnvFactory, seed: int, index: int) -> None:
        self._factory = factory
        self._seed = seed
        self.index = index
        self.rng = np.random.default_rng([seed, index])
        self._episode = self._start(0)

    @property
    def cluster(self) -> SimCluster:
        """The cluster of the episode under way."""
        return self._episode.cluster

    def step(self, policy: Policy) -> list[Transition]:
        """Make one decision, or end the episode when there is none left; returns the steps that are complete now.

        It is the step before this decision, except that the steps of a gang come together.
        """
        episode, completed = self._episode, []
        episode.loop.policy = policy
        for event in episode.events:
            match event:
                case Step(transition=Transition() as transition):
                    completed.append(transition)
                case Attempt(decision=Decision(node_index=node_index)):
                    episode.actions.append(-1 if node_index is None else node_index)
                    return completed
        self._episode = self._start(episode.number + 1)
        return completed

    def cut(self) -> None:
        """Forget steps whose continuation is awaited."""
        self._episode.loop.cut()

    def state(self) -> dict[str, Any]:
        """Return what `restore` rebuilds the stream from."""
        return {
            "episode": self._episode.number,
            "nodes": self._episode.nodes,
            "actions": list(self._episode.actions),
            "awaited": self._episode.loop.awaited,
            "rng": json.dumps(self.rng.bit_generator.state),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Play the episode's actions again up to where the stream was."""
        actions, awaited = state["actions"], int(state.get("awaited", 0))
        episode = self._episode = self._start(int(state["episode"]), int(state["nodes"]))
        episode.loop.observation_of = _observation if awaited else None
        again = _Again(actions)
        for _ in actions:
            self.step(again)
            if self._episode is not episode:
                raise RuntimeError("the episode ended before its recorded actions: the simulation is another one")
        episode.loop.cut(keep=awaited)
        episode.loop.observation_of = _observation
        self.rng.bit_generator.state = json.loads(state["rng"])

    def _start(self, number: int, nodes: int | None = None) -> _Episode:
        factory = self._factory
        sizes = factory.env_config.sizes
        count = int(sizes[self.rng.integers(len(sizes))]) if nodes is None else nodes
        seed = TRAINING_SEEDS + int(np.random.SeedSequence([self._seed, self.index, number]).generate_state(1)[0])
        cluster = factory.build(seed, count)
        loop = SchedulingLoop(
            cluster, _Again(()), factory.reward(), spec=factory.observation_spec, observation_of=_observation,
            episodes=whole_run(continuing=factory.task.continuing),
        )  # fmt: skip
        return _Episode(number, count, cluster, loop, loop.events())


def _observation(context: Context) -> Observation:
    return context.observation


def demonstrate(factory: EnvFactory, teacher: str, seed: int, steps: int) -> list[list[Transition]]:
    """Let a policy (a name or a model file) make about `steps` decisions; returns its episodes.

    Raises `UserError` where these are too few for one.
    """
    stream = Stream(factory, seed, index=1 << 20)  # an index that no learning stream has
    policy = factory.policy(teacher, seed)
    pieces: list[list[Transition]] = [[]]
    for _ in range(steps):
        for step in stream.step(policy):
            pieces[-1].append(step)
            if step.terminated or step.truncated:
                pieces.append([])
    if not (whole := [piece for piece in pieces if len(piece) > 1]):
        raise bad_value("teacher_steps", steps, "enough decisions for an episode, or 0")
    return whole
