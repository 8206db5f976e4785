"""The search over configurations: each generation's children race on the same episodes, and the best are the parents.

A race is successive halving (Jamieson and Talwalkar: Non-stochastic Best Arm Identification and Hyperparameter
Optimization, AISTATS 2016): all children play an eighth of the episodes, the better half plays on. All
comparisons are of the same episodes. With several objectives who is better is said by fronts.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from aaml.errors import StoppedError, UserError
from aaml.parallel.pool import Pool
from aaml.policies.kube_scores import KubeSchedulerConfig
from aaml.search.pareto import survivors
from aaml.sim.metrics import find_metric
from aaml.sim.task import Task
from aaml.tuning.episodes import judge
from aaml.tuning.space import Space, to_dict

FloatArray = npt.NDArray[np.float64]
_RUNGS = (8, 4, 2, 1)  # a rung ends with this part of the episodes
_LEAST_SHARE = 1e-3  # of what an episode comes to: less counts as much
_TRIES = 20  # at a child that is none of those known


@dataclass(frozen=True)
class Episodes:
    """What configurations are judged on: a task's episodes of `seeds`, each at every size, by some metrics.

    Without `metrics` it is the task's value. Values are those of [configurations, episodes, objectives], lower is
    better. They count in terms of what one configuration comes to on all episodes of a size. Where they are `relative`
    it is the logarithm of what they are in terms of the same episode's: an episode counts as much as another.
    """

    task: Task
    seeds: Sequence[int]
    sizes: Sequence[int | None]
    metrics: tuple[str, ...] = ()
    relative: bool = False

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
        configs: Sequence[KubeSchedulerConfig],
        which: Sequence[int],
        stopped: Callable[[], bool] = lambda: False,
    ) -> FloatArray:
        """Return the values [configurations, episodes, objectives] of some episodes, each turned, none scaled.

        Raises `StoppedError` once `stopped` says so.
        """
        episodes = self.all
        values = np.empty((len(configs), len(which), len(self.signs)))
        jobs = [(self.task, *episodes[number], tuple(configs), self.metrics) for number in which]
        for position, found in pool.run(judge, jobs):
            values[:, position] = found * self.signs
            if stopped():
                raise StoppedError
        return values

    def scale(self, values: FloatArray) -> FloatArray:
        """Return [episodes, objectives], what values are divided by, from those of one configuration [E, M].

        Raises `UserError` where an episode comes to nothing, and counts in terms of that.
        """
        if self.relative:
            if not values.all():
                raise UserError("relative: an episode's value is 0 to begin with; other values are no multiple of that")
            return np.abs(values)
        means = np.abs(values.reshape(-1, len(self.sizes), values.shape[-1]).mean(axis=0))
        return np.tile(np.where(means > 0, means, 1.0), (len(self.seeds), 1))

    def losses(self, values: FloatArray, scale: FloatArray) -> FloatArray:
        """Return what values [..., episodes, objectives] of these episodes count together, [..., objectives]."""
        shares = values / scale
        if self.relative:
            shares = self.signs * np.log(np.maximum(np.abs(shares), _LEAST_SHARE))
        return np.asarray(shares.mean(axis=-2))


@dataclass(frozen=True)
class Known:
    """A configuration with its values [E, M] on all episodes."""

    config: KubeSchedulerConfig
    values: FloatArray


@dataclass
class Search:
    """One search; it is at the beginning of generation `number`, and `best` has its elite, best first."""

    space: Space
    episodes: Episodes
    population: int
    elite: int
    rng: np.random.Generator
    number: int = 0
    best: list[Known] = field(default_factory=list)
    played: int = 0

    def begin(self, pool: Pool, stopped: Callable[[], bool]) -> None:
        """Play what the search begins with: the first is what everything is measured by."""
        configs = list({key(each): each for each in self.space.beginnings()}.values())
        values = self.episodes.play(pool, configs, range(len(self.episodes.all)), stopped)
        self.played += values.shape[0] * values.shape[1]
        self.start = values[0]
        self.scale = self.episodes.scale(values[0])
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
        values = np.empty((len(children), 0, len(self.episodes.signs)))
        for part in _RUNGS:
            until = max(1, len(order) // part)
            which = order[values.shape[1] : until]
            if len(which):
                values = np.concatenate([values, self.episodes.play(pool, children, which.tolist(), stopped)], axis=1)
                self.played += len(children) * len(which)
            if part > 1:
                kept = self._order(values, order[:until])[: (len(children) + 1) // 2]
                children, values = [children[place] for place in kept], values[kept]
        whole = np.empty_like(values)
        whole[:, order] = values
        self._keep([*self.best, *map(Known, children, whole)])

    def _children(self) -> list[KubeSchedulerConfig]:
        known = {key(each.config) for each in self.best}
        parents, children = [each.config for each in self.best], []
        for _ in range(self.population * _TRIES):
            child = self.space.child(parents, self.rng)
            if (name := key(child)) not in known:
                known.add(name)
                children.append(child)
            if len(children) == self.population:
                break
        return children

    def _order(self, values: FloatArray, which: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return survivors(self.episodes.losses(values, self.scale[which]), len(values))[0]

    def _keep(self, found: Sequence[Known]) -> None:
        values = np.array([each.values for each in found])
        order = self._order(values, np.arange(values.shape[1]))
        self.best = [found[place] for place in order[: self.elite]]

    def gain(self) -> FloatArray:
        """Return by how much the best configuration betters the start on these episodes, a fraction [M]."""
        start, best = (self.episodes.losses(each, self.scale) for each in (self.start, self.best[0].values))
        return np.asarray(start - best)

    # ---- to go on ----------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return JSON-able values to go on from."""
        return {
            "number": self.number,
            "played": self.played,
            "rng": self.rng.bit_generator.state,
            "start": self.start.tolist(),
            "best": [{"config": to_dict(each.config), "values": each.values.tolist()} for each in self.best],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned."""
        self.number, self.played = state["number"], state["played"]
        self.rng.bit_generator.state = state["rng"]
        self.start = np.array(state["start"])
        self.scale = self.episodes.scale(self.start)
        self.best = [
            Known(of_dict(each["config"], self.space.start), np.array(each["values"])) for each in state["best"]
        ]


def key(config: KubeSchedulerConfig) -> str:
    """Return what tells configurations apart."""
    return json.dumps(to_dict(config))


def of_dict(found: Mapping[str, Any], start: KubeSchedulerConfig) -> KubeSchedulerConfig:
    """Return the configuration that `to_dict` wrote, with what is not searched as in `start`."""
    shape = tuple((int(at), int(score)) for at, score in found["shape"]) or start.shape
    resources = tuple((str(name), int(weight)) for name, weight in found["resources"])
    return replace(
        start, weights=dict(found["weights"]), strategy=found["strategy"], resources=resources, shape=shape,
        percentage_of_nodes_to_score=found["percentage_of_nodes_to_score"],
    )  # fmt: skip
