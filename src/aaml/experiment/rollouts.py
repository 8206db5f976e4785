"""Experience from many simulated clusters at once, in this process or over several, the same whatever their number.

Each stream is an endless row of episodes with its own generator; its steps depend on the weights it was given and on
nothing else, so that one process and many collect the same, and a stream is rebuilt from its actions alone.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from aaml.cluster.topology import rack_graph, star_graph
from aaml.errors import bad_value
from aaml.experiment.policies import load_policy
from aaml.scheduling.cycle import Reward, SchedulingCycle
from aaml.scheduling.fragments import FragmentMeter
from aaml.scheduling.loop import SchedulerLoop
from aaml.scheduling.observation import Context, Featurizer
from aaml.scheduling.ports import Decision, Outcome, Policy, Sorter, Transition
from aaml.scheduling.registry import make_reward
from aaml.scheduling.rewards import RewardOptions
from aaml.sim.cluster import SimCluster
from aaml.sim.search import Future, Grade, Search, SearchConfig
from aaml.sim.tasks import Task, find_task

if TYPE_CHECKING:
    from aaml.learning.config import AgentConfig, AgentKind
    from aaml.scheduling.queue_sort import QueueSort

TRAINING_SEEDS = 1 << 31  # episodes of training have seeds from here on, those of validation and tests lie below
Steps = list[tuple[int, Transition]]


@dataclass(frozen=True)
class Setting:
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
    racks: bool = False
    sorter: str = ""


class Arena:
    """Builds episodes of a setting, and the features and reward that go with them."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.task: Task = find_task(setting.task)
        expected = self.task.expected(setting.trace)
        meter = FragmentMeter(expected) if any(pod.gpu.count for pod in expected) else None
        self._expected = expected
        self._reward_options = RewardOptions(meter)
        self.featurizer = Featurizer(
            lookahead=setting.lookahead,
            lifetimes=setting.lifetimes,
            fragmentation=None if meter is None else meter.growth,
            topology=rack_graph if setting.racks else star_graph,
        )
        sorter = self.policy(setting.sorter) if setting.sorter else None
        self.queue_sort: QueueSort | None = sorter.queue_sort if isinstance(sorter, Sorter) else None

    def build(self, seed: int, nodes: int) -> SimCluster:
        """Return a cluster at the beginning of an episode."""
        cluster = self.task.build(seed, nodes, pods=self.setting.pods, trace=self.setting.trace)
        cluster.sort_queue(self.queue_sort)
        return cluster

    def cycle(self, cluster: SimCluster) -> SchedulingCycle:
        """Return the scheduling cycle with the setting's reward."""
        return SchedulingCycle(cluster, self.reward(), self.featurizer)

    def reward(self) -> Reward:
        """Return a fresh reward of the setting."""
        return make_reward(self.setting.reward or self.task.reward, self._reward_options)

    def policy(self, spec: str, seed: int = 0) -> Policy:
        """Return a policy by name, which knows what pods to expect, or the one in a model file.

        Raises `UserError` for what is no policy, and for a model that is shown another number of pods that follow.
        """
        ours = self.setting.lookahead
        policy, _ = load_policy(spec, seed=seed, expected=self._expected, lookahead=ours)
        if getattr(policy, "lookahead", ours) != ours:
            raise bad_value("model", spec, f"one made for a lookahead of {ours}, which is that of {self.task.name}")
        return policy

    def search(self, config: SearchConfig, grade: Grade, rollout: Policy) -> Search:
        """Return the expert that looks ahead from what `grade` wants most, with `rollout` deciding what follows."""
        future = Future(self.task, self.setting.trace)
        return Search(future, self.task, grade, rollout, self.featurizer, config)

    def play(self, policy: Policy, seed: int, nodes: int) -> Mapping[str, float]:
        """Play one episode to its end without learning; returns its metrics, and `mean_reward` a decision."""
        cluster = self.build(seed, nodes)
        stats = SchedulerLoop(self.cycle(cluster), policy, learn=False).run()
        return {**cluster.metrics(), "mean_reward": stats.reward / max(stats.decisions, 1)}


@dataclass
class _Episode:
    number: int
    nodes: int
    cycle: SchedulingCycle
    cluster: SimCluster
    actions: list[int]


class Stream:
    """One endless row of episodes."""

    def __init__(self, arena: Arena, seed: int, index: int) -> None:
        self._arena = arena
        self._seed = seed
        self.index = index
        self.rng = np.random.default_rng([seed, index])
        self._previous: tuple[Context, Decision, Outcome] | None = None
        self._episode = self._start(0)

    @property
    def cluster(self) -> SimCluster:
        """The cluster of the episode under way."""
        return self._episode.cluster

    def step(self, policy: Policy) -> Transition | None:
        """Make one decision; returns the step before it, complete now, or None at the beginning of an episode."""
        context = self._next_context()
        if context is None:
            completed = self._complete(None)
            self._episode = self._start(self._episode.number + 1)
            return completed
        _ = context.observation  # features are those of before the pod is placed
        completed = self._complete(context)
        self._carry_out(context, policy.act(context))
        return completed

    def cut(self) -> None:
        """Forget the step whose continuation is awaited."""
        self._previous = None

    def state(self) -> dict[str, Any]:
        """Return what `restore` rebuilds the stream from."""
        return {
            "episode": self._episode.number,
            "nodes": self._episode.nodes,
            "actions": list(self._episode.actions),
            "awaited": self._previous is not None,
            "rng": json.dumps(self.rng.bit_generator.state),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Play the episode's actions again up to where the stream was."""
        self._episode = self._start(int(state["episode"]), int(state["nodes"]))
        actions, awaited = state["actions"], bool(state.get("awaited"))
        for number, action in enumerate(actions, 1):
            context = self._next_context()
            if context is None:
                raise RuntimeError("the episode ended before its recorded actions: the simulation is another one")
            if number == len(actions) and awaited:
                _ = context.observation
            self._carry_out(context, Decision(None if action < 0 else int(action)))
        if not awaited:
            self.cut()
        self.rng.bit_generator.state = json.loads(state["rng"])

    def _start(self, number: int, nodes: int | None = None) -> _Episode:
        sizes = self._arena.setting.sizes
        count = int(sizes[self.rng.integers(len(sizes))]) if nodes is None else nodes
        seed = TRAINING_SEEDS + int(np.random.SeedSequence([self._seed, self.index, number]).generate_state(1)[0])
        cluster = self._arena.build(seed, count)
        return _Episode(number, count, self._arena.cycle(cluster), cluster, [])

    def _next_context(self) -> Context | None:
        cluster = self._episode.cluster
        cluster.results()  # nobody else takes them, and they would pile up
        while (pod := cluster.next_pod(0.0)) is not None:
            context = self._episode.cycle.begin(pod)
            if context is not None:
                return context
        return None

    def _carry_out(self, context: Context, decision: Decision) -> None:
        outcome = self._episode.cycle.finish(context, decision)
        self._episode.actions.append(-1 if decision.row is None else decision.row)
        self._previous = (context, decision, outcome) if outcome.kind == "assumed" else None

    def _complete(self, following: Context | None) -> Transition | None:
        previous, self._previous = self._previous, None
        if previous is None or previous[1].row is None:
            return None
        context, decision, outcome = previous
        continuing = self._arena.task.continuing
        return Transition(
            observation=context.observation,
            action=decision.row if decision.row is not None else -1,
            reward=outcome.reward,
            next_observation=None if following is None else following.observation,
            terminated=following is None and not continuing,
            truncated=following is None and continuing,
        )


@dataclass(frozen=True)
class Actor:
    """How the agent that acts in a stream is made: the learner's twin, and the policy that guides it.

    With `search` an expert acts: it searches among the twin's best choices, and lets `rollout` ("": the twin) go on.
    """

    kind: "AgentKind"
    config: "AgentConfig"
    guide: str = ""
    search: SearchConfig | None = None
    rollout: str = ""


@dataclass(frozen=True)
class Expert:
    """A policy that searches ahead in the cluster of one stream."""

    search: Search
    stream: Stream
    name: str = "expert"

    def act(self, context: Context) -> Decision:
        """Choose."""
        return self.search.choose(self.stream.cluster, context, self.stream.rng)


class Collector(Protocol):
    """Where a learner's steps come from."""

    def collect(self, weights: Mapping[str, Any], steps: int) -> Steps:
        """Let every stream make `steps` decisions with these weights; returns (stream, step), in a fixed order."""
        ...

    def cut(self) -> None:
        """Forget steps whose continuation is awaited."""
        ...

    def state(self) -> list[dict[str, Any]]:
        """Return the streams' states."""
        ...

    def restore(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Go on from states."""
        ...


class LocalCollector:
    """Streams in this process."""

    def __init__(self, setting: Setting, actor: Actor, seed: int, indices: Sequence[int]) -> None:
        from aaml.learning.agent import make_agent, single_threaded

        single_threaded()
        arena = Arena(setting)
        guide = arena.policy(actor.guide, seed) if actor.guide else None
        agent = make_agent(actor.kind, actor.config, lookahead=setting.lookahead, seed=seed, guide=guide)
        self._agent = agent
        self._streams = [Stream(arena, seed, index) for index in indices]
        self._policies: list[Policy] = [agent] * len(self._streams)
        if actor.search is not None:
            agent.learning = False
            rollout = arena.policy(actor.rollout, seed) if actor.rollout else agent
            search = arena.search(actor.search, lambda context: agent.scores(context.observation), rollout)
            self._policies = [Expert(search, stream) for stream in self._streams]

    def collect(self, weights: Mapping[str, Any], steps: int) -> Steps:
        """Let every stream make `steps` decisions."""
        self._agent.take_weights(weights)
        collected = []
        for stream, policy in zip(self._streams, self._policies, strict=True):
            self._agent.rng = stream.rng
            for _ in range(steps):
                step = stream.step(policy)
                if step is not None:
                    collected.append((stream.index, step))
        return collected

    def cut(self) -> None:
        """Forget steps whose continuation is awaited."""
        for stream in self._streams:
            stream.cut()

    def state(self) -> list[dict[str, Any]]:
        """Return the streams' states."""
        return [stream.state() for stream in self._streams]

    def restore(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Go on from states."""
        for stream, state in zip(self._streams, states, strict=True):
            stream.restore(state)


def demonstrate(arena: Arena, teacher: str, seed: int, steps: int) -> list[list[Transition]]:
    """Let a policy (a name or a model file) make about `steps` decisions; returns its episodes."""
    stream = Stream(arena, seed, index=1 << 20)  # an index that no learning stream has
    policy = arena.policy(teacher, seed)
    pieces: list[list[Transition]] = [[]]
    for _ in range(steps):
        step = stream.step(policy)
        if step is not None:
            pieces[-1].append(step)
            if step.terminated or step.truncated:
                pieces.append([])
    return [piece for piece in pieces if len(piece) > 1]
