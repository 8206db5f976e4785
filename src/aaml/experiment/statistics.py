"""Intervals and comparisons over seeds: what a reviewer asks for.

Bootstrap intervals and the probability of improvement follow Agarwal et al., "Deep Reinforcement Learning at the Edge
of the Statistical Precipice", NeurIPS 2021.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

Direction = Literal["lower", "higher"]
FloatArray = npt.NDArray[np.float64]
RESAMPLES = 10_000
_MOST_DECIMALS = 9


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean with its percentile-bootstrap interval (95% unless asked otherwise) over `count` seeds."""

    mean: float
    low: float
    high: float
    count: int

    def __format__(self, spec: str) -> str:
        """Write all three numbers by a format such as "+.2f".

        Without a precision ("" or "+"): to the same decimals, such that half the width is 3 to 30 units of the last.
        """
        if not spec.strip("+"):
            half = (self.high - self.low) / 2.0
            decimals = max(0, -math.floor(math.log10(half / 3.0))) if half > 0 else _MOST_DECIMALS + 1
            spec += f".{decimals}f" if decimals <= _MOST_DECIMALS else ".4g"
        return f"{self.mean:{spec}} [{self.low:{spec}}, {self.high:{spec}}]"

    def __str__(self) -> str:
        return format(self)


@dataclass(frozen=True, slots=True)
class Comparison:
    """A against B on the same seeds.

    `difference`: interval of the mean paired difference A - B. `improvement`: the share of seeds on which A is better,
    ties counting half. `verdict`: "better" or "worse" when the interval lies clear of zero, else "level".
    """

    difference: Interval
    improvement: float
    verdict: Literal["better", "level", "worse"]


def _resampled_means(values: FloatArray, seed: int, resamples: int) -> FloatArray:
    rng = np.random.default_rng(seed)
    return np.asarray(values[rng.integers(0, len(values), (resamples, len(values)))].mean(axis=1))


def bootstrap(
    values: Sequence[float] | FloatArray, *, confidence: float = 0.95, seed: int = 0, resamples: int = RESAMPLES
) -> Interval:
    """Return the mean of `values` [n] with its percentile-bootstrap interval. Raises ValueError when empty."""
    data = np.asarray(values, dtype=np.float64)
    if data.ndim != 1 or not data.size:
        raise ValueError("at least one value is needed")
    tail = 100.0 * (1.0 - confidence) / 2.0
    low, high = np.percentile(_resampled_means(data, seed, resamples), [tail, 100.0 - tail])
    return Interval(float(data.mean()), float(low), float(high), len(data))


def compare(
    a: Sequence[float] | FloatArray,
    b: Sequence[float] | FloatArray,
    better: Direction,
    *,
    confidence: float = 0.95,
    seed: int = 0,
) -> Comparison:
    """Compare A with B, paired: a[i] and b[i] come from the same seed. Raises ValueError when the lengths differ."""
    first, second = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if first.shape != second.shape:
        raise ValueError(f"paired values are needed: {first.shape} against {second.shape}")
    difference = bootstrap(first - second, confidence=confidence, seed=seed)
    gain = (second - first) if better == "lower" else (first - second)
    improvement = float(((gain > 0) + 0.5 * (gain == 0)).mean())
    sign = -1.0 if better == "lower" else 1.0
    low, high = sorted((sign * difference.low, sign * difference.high))
    verdict: Literal["better", "level", "worse"] = "better" if low > 0 else "worse" if high < 0 else "level"
    return Comparison(difference, improvement, verdict)
