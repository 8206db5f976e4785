"""Separable CMA-ES: tunes a vector by evaluation alone, with a step size for each coordinate that it learns.

Ros and Hansen: A Simple Modification in CMA-ES Achieving Linear Time and Space Complexity (PPSN 2008); constants as in
Hansen: The CMA Evolution Strategy: A Tutorial (2016).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Generation:
    """One generation: the mean that it started from with its value, the best drawn value, the mean after it."""

    number: int
    mean: FloatArray
    mean_value: float
    best_value: float
    step_size: float


def separable_cma(
    evaluate: Callable[[Sequence[FloatArray], int], Sequence[float]],
    start: FloatArray,
    *,
    generations: int,
    population: int,
    deviation: float,
    rng: np.random.Generator,
    on_generation: Callable[[Generation], bool] = lambda _generation: False,
) -> FloatArray:
    """Maximise `evaluate` (vectors [D], generation -> a value each) and return the final mean.

    `evaluate` gets a generation's vectors with the current mean as the last. `on_generation` ends the search early by
    returning True.
    """
    size = len(start)
    mean = start.astype(np.float64).copy()
    parents = population // 2
    weights = np.log(parents + 0.5) - np.log(np.arange(1, parents + 1))
    weights /= weights.sum()
    effective = 1.0 / (weights**2).sum()
    step_rate = (effective + 2) / (size + effective + 5)
    damping = 1 + 2 * max(0.0, np.sqrt((effective - 1) / (size + 1)) - 1) + step_rate
    path_rate = (4 + effective / size) / (size + 4 + 2 * effective / size)
    # The separable variant learns faster by (D + 2) / 3, for it has only D variances to learn.
    rank_one = 2 / ((size + 1.3) ** 2 + effective) * (size + 2) / 3
    rank_many = min(1 - rank_one, 2 * (effective - 2 + 1 / effective) / ((size + 2) ** 2 + effective) * (size + 2) / 3)
    expected_norm = np.sqrt(size) * (1 - 1 / (4 * size) + 1 / (21 * size * size))
    step_size, variance = 1.0, np.full(size, deviation) ** 2
    step_path, path = np.zeros(size), np.zeros(size)
    for number in range(generations):
        drawn = mean + step_size * np.sqrt(variance) * rng.normal(size=(population, size))
        *values, mean_value = evaluate([*drawn, mean], number)
        order = np.argsort(-np.asarray(values))[:parents]
        steps = (drawn[order] - mean) / step_size
        step = weights @ steps
        mean = mean + step_size * step
        step_path = (1 - step_rate) * step_path + np.sqrt(step_rate * (2 - step_rate) * effective) * step / np.sqrt(
            variance
        )
        norm = np.linalg.norm(step_path)
        step_size *= np.exp(step_rate / damping * (norm / expected_norm - 1))
        settled = norm / np.sqrt(1 - (1 - step_rate) ** (2 * (number + 1))) < (1.4 + 2 / (size + 1)) * expected_norm
        keep = 1.0 if settled else 0.0
        path = (1 - path_rate) * path + keep * np.sqrt(path_rate * (2 - path_rate) * effective) * step
        variance = (
            (1 - rank_one - rank_many) * variance
            + rank_one * (path**2 + (1 - keep) * path_rate * (2 - path_rate) * variance)
            + rank_many * (weights @ (steps**2))
        )
        if on_generation(Generation(number, mean.copy(), float(mean_value), float(max(values)), float(step_size))):
            break
    return mean
