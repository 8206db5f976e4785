"""What the trials of a study are evaluated by: episodes of a task, metrics, limits."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic

import numpy as np
import numpy.typing as npt

from aaml.errors import UserError
from aaml.parallel.pool import Pool
from aaml.sim.metrics import find_metric
from aaml.sim.task import Task
from aaml.study.pareto import ranked
from aaml.study.trial import Params

FloatArray = npt.NDArray[np.float64]
_LEAST_SHARE = 1e-3  # of what an episode comes to: less counts as much
EvaluateEpisode = Callable[[Task, int, int | None, Sequence[Params], Sequence[str]], FloatArray]
"""(task, seed, nodes, parameters, metrics) -> [parameters, metrics]; a function of a module."""


@dataclass(frozen=True)
class Limit:
    """What a metric may come to on average: at most so many times what the first configuration does, and `slack`."""

    metric: str
    times: float = 1.0
    slack: float = 0.0


@dataclass(frozen=True)
class Problem(Generic[Params]):
    """What configurations are evaluated on: a task's episodes of `seeds`, each at every size, by some metrics.

    Without `metrics` it is the task's value. Values are those of [configurations, episodes, objectives], lower is
    better. They count in terms of what one configuration comes to on all episodes of a size. Where they are `relative`
    it is the logarithm of what they are in terms of the same episode's: an episode counts as much as another.
    `limits` are no objectives: who keeps them is better than who does not (`order`). Values have a column for each,
    behind those of the objectives.
    """

    task: Task
    seeds: Sequence[int]
    sizes: Sequence[int | None]
    evaluate: EvaluateEpisode[Params]
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
        configs: Sequence[Params],
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
        for position, found in pool.run(self.evaluate, jobs, stopped):
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

        Who keeps all limits is better than who does not, and of the others who passes them by less.
        """
        return ranked(self.losses(values, self.scale(start)[which]), self.excess(values, start[which]))
