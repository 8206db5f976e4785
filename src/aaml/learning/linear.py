"""Linear scorers on disk, and the cross-entropy method that tunes one (or any vector) by evaluation alone."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from aaml.errors import UserError
from aaml.files import write_json
from aaml.policies.heuristics.linear import COST, FEATURES, LIFE, TERMS, LinearPolicy
from aaml.policies.spec_file import read_spec, spec_to_dict
from aaml.scheduling.observation import PLAIN
from aaml.scheduling.queue_sort import QueueSort
from aaml.schema import convert, of_json, read_bytes

FloatArray = npt.NDArray[np.float64]
_OLD = {name: 0.0 for name in FEATURES if name not in (*LIFE, *COST)}  # weights of a file without those


def save_linear(policy: LinearPolicy, path: Path) -> None:
    """Write the weights by the names of their terms and features as JSON, whole or not at all."""
    weights = dict(zip(TERMS, (dict(zip(FEATURES, row, strict=True)) for row in policy.weights.tolist()), strict=True))
    content: dict[str, Any] = {"format": "aaml-linear", "weights": weights}
    if policy.queue_sort is not None:
        content["queue_sort"] = policy.queue_sort.numbers()
    if policy.observation_spec != PLAIN:
        content["observation"] = spec_to_dict(policy.observation_spec)
    write_json(path, content, indent=1, field="model")


def load_linear(path: Path) -> LinearPolicy:
    """Read a linear scorer. Raises `UserError` for a file that is missing, none, or made for other features."""
    where = f"model {path}"
    content = read_bytes(path, "model")
    try:
        found = convert(of_json(content, where), _File, where)
        queue_sort = None if found.queue_sort is None else QueueSort.of(found.queue_sort)
        spec = PLAIN if found.observation is None else read_spec(found.observation, f"{where}: observation")
    except (ValueError, TypeError, UserError) as error:
        raise UserError(f"{where}: is not a linear scorer ({error})") from error
    rows = [found.weights.get(term, _OLD if term == TERMS[-1] else {}) for term in TERMS]
    if found.weights.keys() - set(TERMS) or any(not set(_OLD) <= set(row) <= set(FEATURES) for row in rows):
        raise UserError(f"{where}: is not a linear scorer of this version's features")
    weights = np.array([[row.get(name, 0.0) for name in FEATURES] for row in rows])
    return LinearPolicy(weights, path.stem, queue_sort, spec)


class _File(msgspec.Struct, forbid_unknown_fields=True):
    format: Literal["aaml-linear"]
    weights: dict[str, dict[str, float]]
    queue_sort: dict[str, float] | None = None
    observation: dict[str, Any] | None = None


class CrossEntropy:
    """Minimises a function of vectors by evaluation alone, a generation at a time.

    Rubinstein and Kroese: The Cross-Entropy Method (2004), with smoothed updates and a floor on the deviation against
    settling too early. Each generation holds the current mean too; all of one should be judged on the same episodes.

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

    def step(self, evaluate: Callable[[Sequence[FloatArray]], Sequence[float]]) -> None:
        """Draw a generation, judge it by `evaluate` (vectors -> a value each, lower is better) and move on.

        An exception of `evaluate` leaves all but the generator as it was.
        """
        noise = self._rng.normal(size=(self._population - 1, len(self.mean)))
        drawn = [self.mean.copy(), *(self.mean + self.deviation * noise)]
        values = np.asarray(evaluate(drawn), dtype=np.float64)
        order = np.argsort(values, kind="stable")
        chosen = np.array([drawn[i] for i in order[: self._elite]])
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
