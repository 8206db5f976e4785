"""Streams dealt out over processes or a Ray cluster: the experience of one process, even when a worker dies.

Streams are rebuilt from their actions, so that a worker in the place of a lost one goes on exactly as that would have.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from aaml.parallel.pool import Pool, open_pool
from aaml.training.rollouts import Actor, Collector, LocalCollector, Setting, Steps

States = list[dict[str, Any]]


class DealtCollector:
    """Streams kept by a pool, some at each place; steps come back in the order that one process would make them in."""

    def __init__(self, pool: Pool, setting: Setting, actor: Actor, seed: int, streams: int) -> None:
        self._parts = [part.tolist() for part in np.array_split(np.arange(streams), min(pool.size, streams))]
        self._kept = [pool.keep(LocalCollector, setting, actor, seed, part) for part in self._parts]

    def collect(self, weights: Mapping[str, Any], steps: int) -> Steps:
        """Let every stream make `steps` decisions. Raises RuntimeError when workers die again and again."""
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
def collector(setting: Setting, actor: Actor, seed: int, streams: int, workers: int | str = 1) -> Iterator[Collector]:
    """Open `streams` streams on what `parse_workers` reads. Raises `UserError` for a cluster that cannot be reached."""
    with open_pool(workers) as pool:
        yield DealtCollector(pool, setting, actor, seed, streams)
