"""Experience from many simulated clusters at once, in this process or over several, the same whatever their number.

Each stream is an endless row of episodes with its own generator; its steps depend on the weights it was given and on
nothing else, so that one process and many collect the same, and a stream is rebuilt from its actions alone.
"""

import json
import multiprocessing
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from aaml.cluster.topology import rack_graph, star_graph
from aaml.errors import bad_value
from aaml.experiment.policies import load_policy
from aaml.scheduling.cycle import SchedulingCycle
from aaml.scheduling.fragments import FragmentMeter
from aaml.scheduling.loop import SchedulerLoop
from aaml.scheduling.observation import Context, Featurizer
from aaml.scheduling.ports import Decision, Outcome, Policy, Transition
from aaml.scheduling.registry import make_reward
from aaml.scheduling.rewards import RewardOptions
from aaml.sim.cluster import SimCluster
from aaml.sim.tasks import Task, find_task

if TYPE_CHECKING:
    from aaml.learning.config import AgentConfig, AgentKind

TRAINING_SEEDS = 1 << 31  # episodes of training have seeds from here on, those of validation and tests lie below
Steps = list[tuple[int, Transition]]


@dataclass(frozen=True)
class Setting:
    """What episodes are like: the task, the cluster sizes to draw from, and what differs from the task's own."""

    task: str
    sizes: tuple[int, ...]
    pods: int | None = None
    trace: str | None = None
    reward: str = ""
    lookahead: int = 0
    lifetimes: bool = False
    racks: bool = False


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

    def build(self, seed: int, nodes: int) -> SimCluster:
        """Return a cluster at the beginning of an episode."""
        return self.task.build(seed, nodes, pods=self.setting.pods, trace=self.setting.trace)

    def cycle(self, cluster: SimCluster) -> SchedulingCycle:
        """Return the scheduling cycle with the setting's reward."""
        reward = make_reward(self.setting.reward or self.task.reward, self._reward_options)
        return SchedulingCycle(cluster, reward, self.featurizer)

    def policy(self, spec: str, seed: int = 0) -> Policy:
        """Return a policy by name, which knows what pods to expect, or the one in a model file.

        Raises `UserError` for what is no policy, and for a model that is shown another number of pods that follow.
        """
        ours = self.setting.lookahead
        policy, _ = load_policy(spec, seed=seed, expected=self._expected, lookahead=ours)
        if getattr(policy, "lookahead", ours) != ours:
            raise bad_value("model", spec, f"one made for a lookahead of {ours}, which is that of {self.task.name}")
        return policy

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

    def step(self, policy: Policy) -> Transition | None:
        """Make one decision; returns the step before it, complete now, or None at the beginning of an episode."""
        context = self._next_context()
        if context is None:
            completed = self._complete(None)
            self._episode = self._start(self._episode.number + 1)
            return completed
        completed = self._complete(context)
        decision = policy.act(context)
        outcome = self._episode.cycle.finish(context, decision)
        self._episode.actions.append(-1 if decision.row is None else decision.row)
        if outcome.kind == "assumed":
            _ = context.observation  # features are those of before the pod was placed
            self._previous = context, decision, outcome
        return completed

    def cut(self) -> None:
        """Forget the step whose continuation is awaited."""
        self._previous = None

    def state(self) -> dict[str, Any]:
        """Return what `restore` rebuilds the stream from (after `cut`)."""
        return {
            "episode": self._episode.number,
            "nodes": self._episode.nodes,
            "actions": list(self._episode.actions),
            "rng": json.dumps(self.rng.bit_generator.state),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Play the episode's actions again up to where the stream was."""
        self._previous = None
        self._episode = self._start(int(state["episode"]), int(state["nodes"]))
        for action in state["actions"]:
            context = self._next_context()
            if context is None:
                raise RuntimeError("the episode ended before its recorded actions: the simulation is another one")
            self._episode.cycle.finish(context, Decision(None if action < 0 else int(action)))
            self._episode.actions.append(int(action))
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
    """How the agent that acts in a stream is made: the learner's twin, and the policy that guides it."""

    kind: "AgentKind"
    config: "AgentConfig"
    guide: str = ""


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
        self._agent = make_agent(actor.kind, actor.config, lookahead=setting.lookahead, seed=seed, guide=guide)
        self._streams = [Stream(arena, seed, index) for index in indices]

    def collect(self, weights: Mapping[str, Any], steps: int) -> Steps:
        """Let every stream make `steps` decisions."""
        self._agent.take_weights(weights)
        collected = []
        for stream in self._streams:
            self._agent.rng = stream.rng
            for _ in range(steps):
                step = stream.step(self._agent)
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


def _serve(connection: Connection, *arguments: Any) -> None:
    """Run a collector in a process of its own: (method, arguments) in, result out, until None comes."""
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when to end
    collector = LocalCollector(*arguments)
    try:
        while (request := connection.recv()) is not None:
            method, values = request
            connection.send(getattr(collector, method)(*values))
    except EOFError:
        return  # the parent is gone


class ProcessCollector:
    """Streams dealt out over processes; steps come back in the order that one process would have made them in."""

    def __init__(self, setting: Setting, actor: Actor, seed: int, streams: int, workers: int) -> None:
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        context = multiprocessing.get_context("spawn")  # torch and numba keep threads that do not survive a fork
        self._parts = [part.tolist() for part in np.array_split(np.arange(streams), min(workers, streams))]
        self._connections: list[Connection] = []
        self._processes = []
        for part in self._parts:
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, setting, actor, seed, part), daemon=True)
            process.start()
            theirs.close()
            self._connections.append(ours)
            self._processes.append(process)

    def collect(self, weights: Mapping[str, Any], steps: int) -> Steps:
        """Let every stream make `steps` decisions. Raises RuntimeError when a process has died."""
        parts: list[Steps] = self._ask("collect", weights, steps)
        return [step for part in parts for step in part]

    def cut(self) -> None:
        """Forget steps whose continuation is awaited."""
        self._ask("cut")

    def state(self) -> list[dict[str, Any]]:
        """Return the streams' states."""
        return [state for part in self._ask("state") for state in part]

    def restore(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Go on from states."""
        for connection, part in zip(self._connections, self._parts, strict=True):
            connection.send(("restore", ([states[index] for index in part],)))
        self._receive()

    def close(self) -> None:
        """End the processes."""
        for connection, process in zip(self._connections, self._processes, strict=True):
            if process.is_alive():
                connection.send(None)
            connection.close()
        for process in self._processes:
            process.join(timeout=10.0)

    def _ask(self, method: str, *values: Any) -> list[Any]:
        for connection in self._connections:
            connection.send((method, values))
        return self._receive()

    def _receive(self) -> list[Any]:
        try:
            return [connection.recv() for connection in self._connections]
        except EOFError as error:
            raise RuntimeError("a process that collects experience has died; its message is above") from error


@contextmanager
def collector(setting: Setting, actor: Actor, seed: int, streams: int, workers: int = 1) -> Iterator[Collector]:
    """Open `streams` streams over `workers` processes (1: this one)."""
    if workers <= 1:
        yield LocalCollector(setting, actor, seed, range(streams))
        return
    remote = ProcessCollector(setting, actor, seed, streams, workers)
    try:
        yield remote
    finally:
        remote.close()


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
