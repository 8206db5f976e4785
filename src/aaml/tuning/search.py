"""The search over configurations: each generation's children race on the same episodes, and the best are the parents.

A race is successive halving (Jamieson and Talwalkar: Non-stochastic Best Arm Identification and Hyperparameter
Optimization, AISTATS 2016): all children play an eighth of the episodes, the better half plays on. All
comparisons are of the same episodes. With several objectives who is better is said by fronts.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Generic, Protocol, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta

from aaml.errors import StoppedError, UserError, bad_value
from aaml.evaluation.identity import same_inputs
from aaml.files import write_json
from aaml.parallel.pool import Pool
from aaml.progress import progress_bar
from aaml.schema import convert, of_json, read_bytes
from aaml.search.generator import generator_of
from aaml.search.pareto import survivors
from aaml.sim.metrics import find_metric
from aaml.sim.task import Task

FloatArray = npt.NDArray[np.float64]
_RUNGS = (8, 4, 2, 1)  # a rung ends with this part of the episodes
_LEAST_SHARE = 1e-3  # of what an episode comes to: less counts as much
_TRIES = 20  # at a child that is none of those known
Config = TypeVar("Config")
Judge = Callable[[Task, int, int | None, Sequence[Config], Sequence[str]], FloatArray]
"""(task, seed, nodes, configurations, metrics) -> [configurations, metrics]; a function of a module."""


def from_now(stopped: Callable[[], bool]) -> Callable[[], bool]:
    """Return what says whether a stop is asked for that was not before: the search's stop does not end its judgment."""
    return (lambda: False) if stopped() else stopped


class SearchSpace(Protocol[Config]):
    """The configurations that are searched."""

    def beginnings(self) -> list[Config]:
        """Return where the search begins; everything is measured by the first."""
        ...

    def child(self, parents: Sequence[Config], rng: np.random.Generator) -> Config:
        """Return a configuration made of one parent or two."""
        ...

    def to_dict(self, config: Config) -> Mapping[str, object]:
        """Return what is searched of a configuration as JSON-able values."""
        ...

    def of_dict(self, found: Mapping[str, Any]) -> Config:
        """Return the configuration that `to_dict` wrote."""
        ...


@dataclass(frozen=True)
class Limit:
    """What a metric may come to on average: at most so many times what the first configuration does, and `slack`."""

    metric: str
    times: float = 1.0
    slack: float = 0.0


@dataclass(frozen=True)
class Episodes(Generic[Config]):
    """What configurations are judged on: a task's episodes of `seeds`, each at every size, by some metrics.

    Without `metrics` it is the task's value. Values are those of [configurations, episodes, objectives], lower is
    better. They count in terms of what one configuration comes to on all episodes of a size. Where they are `relative`
    it is the logarithm of what they are in terms of the same episode's: an episode counts as much as another.
    `limits` are no objectives: who keeps them is better than who does not (`order`). Values have a column for each,
    behind those of the objectives.
    """

    task: Task
    seeds: Sequence[int]
    sizes: Sequence[int | None]
    judge: Judge[Config]
    metrics: tuple[str, ...] = ()
    relative: bool = False
    limits: tuple[Limit, ...] = ()

    @property
    def all(self) -> list[tuple[int, int | None]]:
        """The episodes: all sizes of a seed, then those of the next."""
        return [(seed, size) for seed in self.seeds for size in self.sizes]

    @property
    def signs(self) -> FloatArray:
        """What turns each objective so that lower is better."""
        if not self.metrics:
            return np.array([-1.0 if self.task.higher_is_better else 1.0])
        return np.array([-1.0 if find_metric(name).better == "higher" else 1.0 for name in self.metrics])

    def play(
        self,
        pool: Pool,
        configs: Sequence[Config],
        which: Sequence[int],
        stopped: Callable[[], bool] = lambda: False,
    ) -> FloatArray:
        """Return the values [configurations, episodes, objectives and limits] of some episodes, none scaled.

        Objectives are turned so that lower is better.
        Raises `StoppedError` once `stopped` says so.
        """
        episodes, names = self.all, (*self.metrics, *(limit.metric for limit in self.limits))
        signs = np.concatenate([self.signs, np.ones(len(self.limits))])
        values = np.empty((len(configs), len(which), len(signs)))
        jobs = [(self.task, *episodes[number], tuple(configs), names) for number in which]
        for position, found in pool.run(self.judge, jobs, stopped):
            values[:, position] = found * signs
        return values

    def scale(self, values: FloatArray) -> FloatArray:
        """Return [episodes, objectives], what values are divided by, from those of one configuration.

        Raises `UserError` where an episode comes to nothing, and counts in terms of that.
        """
        values = values[..., : len(self.signs)]
        if self.relative:
            if not values.all():
                raise UserError("relative: an episode's value is 0 to begin with; other values are no multiple of that")
            return np.abs(values)
        means = np.abs(values.reshape(-1, len(self.sizes), values.shape[-1]).mean(axis=0))
        return np.tile(np.where(means > 0, means, 1.0), (len(self.seeds), 1))

    def losses(self, values: FloatArray, scale: FloatArray) -> FloatArray:
        """Return what values of these episodes count together, [..., objectives]."""
        shares = values[..., : len(self.signs)] / scale
        if self.relative:
            shares = self.signs * np.log(np.maximum(np.abs(shares), _LEAST_SHARE))
        return np.asarray(shares.mean(axis=-2))

    def excess(self, values: FloatArray, start: FloatArray) -> FloatArray:
        """Return [configurations], by how much limits are passed on these episodes, in terms of what they allow.

        `start` are the first configuration's values of the same episodes. 0 for who keeps all limits.
        """
        over = np.zeros(values.shape[0])
        for column, limit in enumerate(self.limits, len(self.signs)):
            most = limit.times * float(start[:, column].mean()) + limit.slack
            over += np.maximum(values[..., column].mean(axis=-1) - most, 0.0) / max(most, 1.0)
        return over

    def order(self, values: FloatArray, start: FloatArray, which: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the configurations of values [configurations, ...] on these of all episodes, the best first.

        Who keeps all limits is better than who does not, and of the others who passes them by less (Deb: An efficient
        constraint handling method for genetic algorithms, 2000).
        """
        order = survivors(self.losses(values, self.scale(start)[which]), len(values))[0]
        over = self.excess(values, start[which])
        return np.array(sorted(order.tolist(), key=lambda place: over[place]), dtype=np.int64)


@dataclass(frozen=True)
class Known(Generic[Config]):
    """A configuration with its values on all episodes."""

    config: Config
    values: FloatArray


class Settled(Protocol):
    """What a search is told beside its space and episodes."""

    @property
    def generations(self) -> int:
        """How long to search."""
        ...

    @property
    def state_file(self) -> Path:
        """Where the search is kept, to go on from."""
        ...

    def to_dict(self) -> dict[str, Any]:
        """Return the settings that make a search another one, as JSON-able values."""
        ...

    def inputs(self) -> dict[str, str]:
        """Return what is searched and judged on besides, by contents (`aaml.evaluation.identity.inputs`)."""
        ...


@dataclass
class RacingSearch(Generic[Config]):
    """One search; it is at the beginning of generation `number`, and `best` has its elite, best first."""

    space: SearchSpace[Config]
    episodes: Episodes[Config]
    population: int
    elite: int
    rng: np.random.Generator
    number: int = 0
    best: list[Known[Config]] = field(default_factory=list)
    played: int = 0

    def run(
        self,
        asked: Settled,
        pool: Pool,
        what: str,
        *,
        resume: bool = False,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        """Search until all generations are played or `stopped` says so; the state is kept after each.

        With `resume` it goes on from that. Raises `UserError` where that is another search's, where there is a search
        that is not to go on, and `StoppedError` where it was stopped before anything was known.
        """
        played = asked.inputs()
        if resume:
            self._resume(asked, what, played)
        elif asked.state_file.exists():
            raise UserError(
                f"out: {asked.state_file} holds a search already; go on with --resume, or choose another --out"
            )
        with progress_bar(f"tune {what}", asked.generations, "generation", at=self.number) as bar:
            if not self.best:
                self.begin(pool, stopped)
            while self.number < asked.generations and not stopped():
                try:
                    self.step(pool, stopped)
                except StoppedError:
                    return
                bar.update()
                bar.set_postfix(gain=", ".join(f"{100.0 * gain:.1f}%" for gain in self.gain()))
                write_json(asked.state_file, {"asked": asked.to_dict(), "inputs": played, **self.state()}, field="out")

    def _resume(self, asked: Settled, what: str, played: Mapping[str, str]) -> None:
        path = asked.state_file
        if not path.is_file():
            raise bad_value("resume", str(path), "a search that was begun with this --out")
        where = f"resume: {path}"
        content = of_json(read_bytes(path, "resume"), where, any_number=True)
        try:
            state = convert(content, _State, where)
        except UserError as error:
            raise UserError(f"{error}; expected a search that `aaml search {what}` wrote") from error
        other = [name for name, value in asked.to_dict().items() if state.asked.get(name) != value]
        if other:
            raise UserError(f"resume: {path} belongs to a search with another {', '.join(other)}")
        same_inputs(played, state.inputs, path)
        self._restore(state, where)

    def begin(self, pool: Pool, stopped: Callable[[], bool]) -> None:
        """Play what the search begins with: the first is what everything is measured by."""
        configs = list({self._key(each): each for each in self.space.beginnings()}.values())
        values = self.episodes.play(pool, configs, range(len(self.episodes.all)), stopped)
        self.played += values.shape[0] * values.shape[1]
        self.start = values[0]
        self._keep([Known(config, value) for config, value in zip(configs, values, strict=True)])

    def step(self, pool: Pool, stopped: Callable[[], bool]) -> None:
        """Race one generation. Raises `StoppedError`, and then nothing has changed."""
        before = self.rng.bit_generator.state
        try:
            self._race(pool, stopped)
        except StoppedError:
            self.rng.bit_generator.state = before
            raise
        self.number += 1

    def _race(self, pool: Pool, stopped: Callable[[], bool]) -> None:
        children = self._children()
        order = self.rng.permutation(len(self.episodes.all))
        values = np.empty((len(children), 0, self.start.shape[-1]))
        for part in _RUNGS:
            until = max(1, len(order) // part)
            which = order[values.shape[1] : until]
            if len(which):
                values = np.concatenate([values, self.episodes.play(pool, children, which.tolist(), stopped)], axis=1)
                self.played += len(children) * len(which)
            if part > 1:
                kept = self.episodes.order(values, self.start, order[:until])[: (len(children) + 1) // 2]
                children, values = [children[place] for place in kept], values[kept]
        whole = np.empty_like(values)
        whole[:, order] = values
        self._keep([*self.best, *map(Known, children, whole)])

    def _key(self, config: Config) -> str:
        """Return what tells configurations apart."""
        return json.dumps(self.space.to_dict(config))

    def _children(self) -> list[Config]:
        known = {self._key(each.config) for each in self.best}
        parents, children = [each.config for each in self.best], []
        for _ in range(self.population * _TRIES):
            child = self.space.child(parents, self.rng)
            if (name := self._key(child)) not in known:
                known.add(name)
                children.append(child)
            if len(children) == self.population:
                break
        return children

    def _keep(self, found: Sequence[Known[Config]]) -> None:
        values = np.array([each.values for each in found])
        order = self.episodes.order(values, self.start, np.arange(values.shape[1]))
        self.best = [found[place] for place in order[: self.elite]]

    def gain(self) -> FloatArray:
        """Return by how much the best configuration betters the start on these episodes, a fraction [M]."""
        scale = self.episodes.scale(self.start)
        start, best = (self.episodes.losses(each, scale) for each in (self.start, self.best[0].values))
        return np.asarray(start - best)

    # ---- to go on ----------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return JSON-able values to go on from."""
        return {
            "number": self.number,
            "played": self.played,
            "rng": self.rng.bit_generator.state,
            "start": self.start.tolist(),
            "best": [{"config": self.space.to_dict(each.config), "values": each.values.tolist()} for each in self.best],
        }

    def _restore(self, state: "_State", where: str) -> None:
        """Go on from what `state` returned."""
        kinds = len(self.episodes.all), len(self.episodes.signs) + len(self.episodes.limits)
        for name, values in (
            ("start", state.start),
            *((f"best[{n}]", each.values) for n, each in enumerate(state.best)),
        ):
            if len(values) != kinds[0] or any(len(row) != kinds[1] for row in values):
                raise UserError(f"{where}: {name}: expected values of {kinds[0]} episodes, {kinds[1]} each")
        self.number, self.played = state.number, state.played
        self.rng = generator_of(state.rng, f"{where}: rng")
        self.start = np.array(state.start)
        try:
            self.best = [Known(self.space.of_dict(each.config), np.array(each.values)) for each in state.best]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UserError(f"{where}: best: holds a configuration that is none ({error!r})") from error


class _Known(msgspec.Struct, forbid_unknown_fields=True):
    config: dict[str, Any]
    values: list[list[float]]


class _State(msgspec.Struct, forbid_unknown_fields=True):
    """What a search is kept as."""

    asked: dict[str, Any]
    number: Annotated[int, Meta(ge=0)]
    played: Annotated[int, Meta(ge=0)]
    rng: dict[str, Any]
    start: list[list[float]]
    best: Annotated[list[_Known], Meta(min_length=1)]
    inputs: dict[str, str] | None = None
