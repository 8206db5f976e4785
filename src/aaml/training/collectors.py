"""Experience one decision at a time, from many simulated clusters at once: in this process, or dealt out over several.

It is the same whatever their number, even when a worker dies: streams are rebuilt from their actions, so that a worker
in the place of a lost one goes on exactly as that would have.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from aaml.learning.config import NetworkAgent
from aaml.learning.policy import Weights, first_policy, single_threaded
from aaml.parallel.pool import Pool, open_pool
from aaml.scheduling.observation import Context
from aaml.scheduling.ports import Decision, Policy
from aaml.sim.search import Search
from aaml.sim.search_config import SearchConfig
from aaml.training.rollouts import EnvConfig, EnvFactory, Steps, Stream

States = list[dict[str, Any]]


@dataclass(frozen=True)
class Actor:
    """How the agent that acts in a stream is made: the learner's twin, and the policy that guides it.

    With `search` an expert acts: it searches among the twin's best choices, and lets `rollout` ("": the twin) go on.
    `start` is the model file that the learner began with.
    """

    agent: NetworkAgent
    guide: str = ""
    search: SearchConfig | None = None
    rollout: str = ""
    start: Path | None = None


@dataclass(frozen=True)
class Expert:
    """A policy that searches ahead in the cluster of one stream."""

    search: Search
    stream: Stream
    name: str = "expert"

    def act(self, context: Context) -> Decision:
        """Choose."""
        return self.search.choose(self.stream.cluster, context, self.stream.rng)


class LocalCollector:
    """Streams in this process."""

    def __init__(self, env_config: EnvConfig, actor: Actor, seed: int, indices: Sequence[int]) -> None:
        single_threaded()
        factory = EnvFactory(env_config)
        guide = factory.policy(actor.guide, seed) if actor.guide else None
        self._twin = twin = first_policy(
            actor.agent, actor.start, observation_spec=factory.observation_spec, seed=seed, guide=guide
        )
        twin.exploring = actor.search is None
        self._streams = [Stream(factory, seed, index) for index in indices]
        self._policies: list[Policy] = [twin] * len(self._streams)
        if actor.search is not None:
            rollout = factory.policy(actor.rollout, seed) if actor.rollout else twin
            search = factory.search(actor.search, twin.scores, rollout)
            self._policies = [Expert(search, stream) for stream in self._streams]

    def collect(self, weights: Weights, steps: int) -> Steps:
        """Let every stream make `steps` decisions."""
        self._twin.take_weights(weights)
        collected = []
        for stream, policy in zip(self._streams, self._policies, strict=True):
            self._twin.rng = stream.rng
            for _ in range(steps):
                collected += [(stream.index, step) for step in stream.step(policy)]
        return collected

    def cut(self) -> None:
        """Forget steps whose continuation is awaited."""
        for stream in self._streams:
            stream.cut()

    def state(self) -> list[dict[str, Any]]:
        """Return the streams' states."""
        return [stream.state() for stream in self._streams]

    def restore(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Continue each stream from its state, as `state` returned them."""
        for stream, state in zip(self._streams, states, strict=True):
            stream.restore(state)


class Collector:
    """Where a learner's steps come from: streams kept by a pool, some at each place.

    Steps come back in the order that one process would make them in.
    """

    def __init__(self, pool: Pool, env_config: EnvConfig, actor: Actor, seed: int, streams: int) -> None:
        self._parts = [part.tolist() for part in np.array_split(np.arange(streams), min(pool.size, streams))]
        self._kept = [pool.keep(LocalCollector, env_config, actor, seed, part) for part in self._parts]

    def collect(self, weights: Weights, steps: int) -> Steps:
        """Let every stream make `steps` decisions with these weights; returns (stream, step), in a fixed order.

        Raises RuntimeError when workers die again and again.
        """
        return [step for part in self._ask("collect", [(weights, steps)] * len(self._parts)) for step in part]

    def cut(self) -> None:
        """Forget steps whose continuation is awaited."""
        self._ask("cut", [()] * len(self._parts))

    def state(self) -> States:
        """Return the streams' states."""
        return [state for part in self._ask("state", [()] * len(self._parts)) for state in part]

    def restore(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Continue each stream from its state, as `state` returned them."""
        self._ask("restore", [([states[index] for index in part],) for part in self._parts])

    def _ask(self, method: str, values: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Return what the method gives at each place with its values."""
        for kept, each in zip(self._kept, values, strict=True):
            kept.send(method, *each)
        return [kept.receive() for kept in self._kept]


@contextmanager
def collector(
    env_config: EnvConfig, actor: Actor, seed: int, streams: int, workers: int | str = 1
) -> Iterator[Collector]:
    """Open `streams` streams on what `parse_workers` reads. Raises `UserError` for a cluster that cannot be reached."""
    with open_pool(workers) as pool:
        yield Collector(pool, env_config, actor, seed, streams)
