"""Who proposes trials: an evolution strategy, the cross-entropy method, a genetic algorithm, Optuna's TPE.

`CmaEs` is the separable variant of the `cmaes` package (Ros and Hansen: A Simple Modification in CMA-ES Achieving
Linear Time and Space Complexity, PPSN 2008), `Genetic` keeps whom NSGA-II keeps (`aaml.study.pareto`).
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import optuna
from cmaes import SepCMA
from optuna.distributions import BaseDistribution
from optuna.trial import FrozenTrial, TrialState, create_trial

from aaml.study.pareto import ranked
from aaml.study.trial import Params, Sampler, Trial

FloatArray = npt.NDArray[np.float64]
_TRIES = 20  # at a child that is none of those known


class CmaEs(Sampler[FloatArray]):
    """Minimises the first value over vectors. A generation is `population` vectors, and the mean that they are of.

    `means` has the mean before the first generation and after each.
    """

    def __init__(self, start: FloatArray, *, population: int, deviation: float, seed: int) -> None:
        self._size = len(start)
        padded = np.zeros(max(2, self._size))  # it takes two numbers at least; nothing depends on the second then
        padded[: self._size] = start
        self._cma = SepCMA(padded, deviation, seed=seed, population_size=population)
        self.means = [start.astype(np.float64)]

    def ask(self) -> list[FloatArray]:
        """Draw a generation; the last is the mean."""
        self._drawn = [self._cma.ask() for _ in range(self._cma.population_size)]
        return [*(each[: self._size] for each in self._drawn), self.means[-1]]

    def tell(self, trials: Sequence[Trial[FloatArray]]) -> None:
        """Move on by the values of those that were drawn."""
        self._cma.tell([(each, trial.values[0]) for each, trial in zip(self._drawn, trials[:-1], strict=True)])
        self.means.append(self._cma.mean[: self._size].copy())

    def plain(self, params: FloatArray) -> list[float]:
        """Return a vector as numbers."""
        numbers: list[float] = params.tolist()
        return numbers


class CrossEntropy:
    """Minimises the first value over vectors.

    Rubinstein and Kroese: The Cross-Entropy Method (2004), with smoothed updates and a floor on the deviation against
    settling too early. Each generation holds the current mean too; all of one should be evaluated on the same episodes.

    `mean` and `deviation` float64 [D] are the search distribution, `best` the best vector seen and `best_value` its
    value, `generation` how many there were. Raises ValueError for an elite that does not fit in the population.
    """

    def __init__(
        self,
        start: FloatArray,
        *,
        population: int = 32,
        elite: int = 8,
        deviation: float = 1.0,
        smoothing: float = 0.7,
        floor: float = 0.02,
        rng: np.random.Generator,
    ) -> None:
        if not 0 < elite <= population:
            raise ValueError(f"elite {elite} must lie between 1 and the population of {population}")
        self.mean = start.astype(np.float64).copy()
        self.deviation = np.full(len(start), deviation)
        self.best, self.best_value = self.mean.copy(), float("inf")
        self.generation = 0
        self._population, self._elite, self._smoothing, self._floor = population, elite, smoothing, floor
        self._rng = rng

    def ask(self) -> list[FloatArray]:
        """Draw a generation; the first is the mean."""
        noise = self._rng.normal(size=(self._population - 1, len(self.mean)))
        return [self.mean.copy(), *(self.mean + self.deviation * noise)]

    def tell(self, trials: Sequence[Trial[FloatArray]]) -> None:
        """Move on towards the elite."""
        drawn = np.array([each.params for each in trials])
        values = np.array([each.values[0] for each in trials])
        order = np.argsort(values, kind="stable")
        chosen = drawn[order[: self._elite]]
        keep = 1.0 - self._smoothing
        self.mean = self._smoothing * chosen.mean(axis=0) + keep * self.mean
        spread = self._smoothing * chosen.std(axis=0) + keep * self.deviation
        self.deviation = np.maximum(spread, self._floor)
        if values[order[0]] < self.best_value:
            self.best, self.best_value = drawn[order[0]].copy(), float(values[order[0]])
        self.generation += 1

    def state(self) -> dict[str, Any]:
        """Return plain values that `restore` goes on from; the generator is the caller's."""
        vectors = {name: getattr(self, name).tolist() for name in ("mean", "deviation", "best")}
        return {**vectors, "best_value": self.best_value, "generation": self.generation}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned."""
        for name in ("mean", "deviation", "best"):
            setattr(self, name, np.array(state[name], dtype=np.float64))
        self.best_value, self.generation = float(state["best_value"]), int(state["generation"])


class Space(Protocol[Params]):
    """The configurations that a genetic algorithm searches."""

    def beginnings(self) -> list[Params]:
        """Return where the search begins; everything is measured by the first."""
        ...

    def child(self, parents: Sequence[Params], rng: np.random.Generator) -> Params:
        """Return a configuration made of one parent or two."""
        ...

    def to_dict(self, config: Params) -> Mapping[str, object]:
        """Return what is searched of a configuration as JSON-able values."""
        ...


class Genetic(Sampler[Params]):
    """Breeds configurations: first those that the space begins with, then children of the elite.

    `best` is the elite, best first: trials that were not pruned, those that keep all limits before those that do not.
    """

    def __init__(self, space: Space[Params], *, population: int, elite: int, seed: int) -> None:
        self._space, self._population, self._elite = space, population, elite
        self._rng = np.random.default_rng(seed)
        self.best: list[Trial[Params]] = []

    def ask(self) -> list[Params]:
        """Return configurations, each once, none of them in the elite."""
        if not self.best:
            return list({self._key(each): each for each in self._space.beginnings()}.values())
        parents = [each.params for each in self.best]
        known, children = {self._key(each) for each in parents}, list[Params]()
        for _ in range(self._population * _TRIES):
            child = self._space.child(parents, self._rng)
            if (name := self._key(child)) not in known:
                known.add(name)
                children.append(child)
            if len(children) == self._population:
                break
        return children

    def tell(self, trials: Sequence[Trial[Params]]) -> None:
        """Let the best of old and new be the elite."""
        found = [*self.best, *(each for each in trials if not each.pruned)]
        order = ranked(np.array([each.values for each in found]), np.array([each.violation for each in found]))
        self.best = [found[place] for place in order[: self._elite]]

    def plain(self, params: Params) -> dict[str, Any]:
        """Return what is searched of a configuration."""
        plain: dict[str, Any] = json.loads(self._key(params))
        return plain

    def _key(self, config: Params) -> str:
        """Return what tells configurations apart."""
        return json.dumps(self._space.to_dict(config))


class Tpe:
    """Optuna's TPE (Bergstra et al., NeurIPS 2011) in batches; trials of a batch that are open count as bad ones.

    What is drawn depends on the seed, the trial's number and the batches before. The first is `present`.
    """

    def __init__(
        self, space: Mapping[str, BaseDistribution], *, trials: int, batch: int, seed: int, present: Mapping[str, Any]
    ) -> None:
        self.space, self._trials, self._batch, self._seed, self._present = space, trials, batch, seed, present
        self._history: list[FrozenTrial] = []

    def ask(self) -> list[dict[str, Any]]:
        """Draw a batch, the last one as large as there are trials left."""
        study = optuna.create_study()
        study.add_trials(self._history)
        if not self._history:
            study.enqueue_trial(dict(self._present))
        asked = []
        for number in range(len(self._history), min(len(self._history) + self._batch, self._trials)):
            seed = int(np.random.SeedSequence([self._seed, number]).generate_state(1)[0])
            study.sampler = optuna.samplers.TPESampler(seed=seed, constant_liar=True)
            asked.append(study.ask(dict(self.space)).params)
        return asked

    def tell(self, trials: Sequence[Trial[dict[str, Any]]]) -> None:
        """Learn from a batch."""
        self._history += [
            create_trial(
                state=TrialState.PRUNED if each.pruned else TrialState.COMPLETE, value=each.values[0],
                params=each.params, distributions=dict(self.space), intermediate_values=dict(each.intermediate),
            )
            for each in trials
        ]  # fmt: skip

    def plain(self, params: dict[str, Any]) -> dict[str, Any]:
        """Return parameters as they are."""
        return params
