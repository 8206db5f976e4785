"""A linear scorer of nodes, and the cross-entropy method that tunes it (or any vector) by evaluation alone."""

import json
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from aaml.errors import UserError
from aaml.scheduling.observation import NODE_FEATURES, PAIR_FEATURES, Context
from aaml.scheduling.ports import Decision

FloatArray = npt.NDArray[np.float64]
FEATURES = (*PAIR_FEATURES, *NODE_FEATURES)


class LinearPolicy:
    """Score = weights . (features of the pair, features of the node); the feasible row with the highest takes the pod.

    `weights` float64 [K + F], in the order of `FEATURES`.
    """

    def __init__(self, weights: FloatArray, name: str = "linear") -> None:
        if weights.shape != (len(FEATURES),):
            raise ValueError(f"weights have shape {weights.shape}, expected ({len(FEATURES)},)")
        self.name = name
        self.weights = weights
        self._pairs = weights[: len(PAIR_FEATURES)].astype(np.float32)
        self._nodes = weights[len(PAIR_FEATURES) :].astype(np.float32)

    def act(self, context: Context) -> Decision:
        """Choose a row."""
        seen = context.observation
        scores = seen.pairs @ self._pairs + seen.nodes @ self._nodes
        return Decision(int(np.where(seen.mask, scores, -np.inf).argmax()))


def save_linear(policy: LinearPolicy, path: Path) -> None:
    """Write the weights by the names of their features as JSON, whole or not at all."""
    content = {"format": "aaml-linear", "weights": dict(zip(FEATURES, policy.weights.tolist(), strict=True))}
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, aside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(content, file, indent=1)
    Path(aside).replace(path)


def load_linear(path: Path) -> LinearPolicy:
    """Read a linear scorer. Raises `UserError` for a file that is missing, none, or made for other features."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        weights = content["weights"]
        if content["format"] != "aaml-linear" or set(weights) != set(FEATURES):
            raise UserError(f"model {path}: is not a linear scorer of this version's features")
        return LinearPolicy(np.array([float(weights[name]) for name in FEATURES]), path.stem)
    except OSError as error:
        raise UserError(f"model {path}: cannot be read: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"model {path}: is not a linear scorer ({error})") from error


@dataclass(frozen=True)
class CrossEntropyStep:
    """One generation: the search distribution after it and the best vector so far (lower values are better)."""

    generation: int
    mean: FloatArray
    deviation: FloatArray
    best: FloatArray
    best_value: float


def cross_entropy(
    evaluate: Callable[[Sequence[FloatArray]], Sequence[float]],
    start: FloatArray,
    *,
    generations: int,
    population: int = 32,
    elite: int = 8,
    deviation: float = 1.0,
    smoothing: float = 0.7,
    floor: float = 0.02,
    rng: np.random.Generator,
    on_step: Callable[[CrossEntropyStep], None] = lambda _step: None,
) -> CrossEntropyStep:
    """Minimise `evaluate` (a population of vectors -> a value each) by the cross-entropy method.

    Rubinstein and Kroese: The Cross-Entropy Method (2004), with smoothed updates and a floor on the deviation against
    settling too early. Each generation holds the current mean too; all of one should be judged on the same episodes.
    """
    if not 0 < elite <= population:
        raise ValueError(f"elite {elite} must lie between 1 and the population of {population}")
    mean, spread = start.astype(np.float64).copy(), np.full(len(start), deviation)
    best, best_value = mean.copy(), float("inf")
    step = CrossEntropyStep(0, mean, spread, best, best_value)
    for generation in range(1, generations + 1):
        drawn = [mean.copy(), *(mean + spread * rng.normal(size=len(mean)) for _ in range(population - 1))]
        values = np.asarray(evaluate(drawn), dtype=np.float64)
        order = np.argsort(values, kind="stable")
        chosen = np.array([drawn[i] for i in order[:elite]])
        mean = smoothing * chosen.mean(axis=0) + (1.0 - smoothing) * mean
        spread = np.maximum(smoothing * chosen.std(axis=0) + (1.0 - smoothing) * spread, floor)
        if values[order[0]] < best_value:
            best, best_value = drawn[order[0]].copy(), float(values[order[0]])
        step = CrossEntropyStep(generation, mean.copy(), spread.copy(), best, best_value)
        on_step(step)
    return step
