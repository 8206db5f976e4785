"""A study of configurations that are bred: what `kube-scheduler` and `bill` share."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic

import numpy as np

from aaml.errors import StoppedError
from aaml.parallel.pool import Pool
from aaml.study.problem import FloatArray, Problem
from aaml.study.pruner import Race
from aaml.study.samplers import Genetic, Space
from aaml.study.study import Study
from aaml.study.trial import Params


@dataclass(frozen=True)
class Bred(Generic[Params]):
    """What was bred: the elite, best first, after so many generations of children and played episodes."""

    start: Params
    elite: list[Params]
    generations: int
    played: int

    def validated(
        self, problem: Problem[Params], pool: Pool, stopped: Callable[[], bool]
    ) -> tuple[list[Params], FloatArray, FloatArray]:
        """Return the elite with its losses [n, K] on validation episodes, and by how much it breaks limits there."""
        every = range(len(problem.all))
        start, *values = problem.play(pool, [self.start, *self.elite], every, stopped)
        found = np.array(values)
        return self.elite, problem.losses(found, problem.scale(start)), problem.excess(found, start)


def breed(
    study: Study,
    space: Space[Params],
    problem: Problem[Params],
    pool: Pool,
    *,
    generations: int,
    population: int,
    elite: int,
    seed: int,
    name: str,
    stopped: Callable[[], bool],
) -> Bred[Params]:
    """Breed until all generations are played or `stopped`. Raises `StoppedError` where nothing was known until then."""
    sampler = Genetic(space, population=population, elite=elite, seed=seed)
    first = space.beginnings()[0]

    def played_first() -> list[list[float]]:
        values: list[list[float]] = problem.play(pool, [first], range(len(problem.all)), stopped)[0].tolist()
        return values

    start = np.array(study.known("start", played_first))
    base = problem.losses(start, problem.scale(start))

    def gain(_number: int) -> str:
        gains = base - np.array(sampler.best[0].values)
        return f"gain={', '.join(f'{100.0 * each:.1f}%' for each in gains)}"

    race = Race(problem, start, pool, seed, stopped)
    done = study.optimize(sampler, race, 1 + generations, name=f"tune {name}", stopped=stopped, after=gain)
    if not done:
        raise StoppedError
    played = sum(max(each.intermediate_values, default=0) for each in study.trials)
    return Bred(first, [each.params for each in sampler.best], done - 1, played)
