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

from aaml.sim.metrics import Direction

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

    def scaled(self, factor: float) -> "Interval":
        """Return it in another unit, `factor` above 0."""
        return Interval(self.mean * factor, self.low * factor, self.high * factor, self.count)


@dataclass(frozen=True, slots=True)
class Paired:
    """A against B on the same seeds.

    `difference`: interval of the mean paired difference A - B. `improvement`: the share of seeds on which A is better,
    ties counting half. `verdict`: "better" or "worse" when the interval lies clear of zero, else "level". `ratio`:
    interval of the geometric mean of A / B, in which each seed counts alike however large its values are; None where
    not all of them are above zero.
    """

    difference: Interval
    improvement: float
    verdict: Literal["better", "level", "worse"]
    ratio: Interval | None = None


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


def paired(
    a: Sequence[float] | FloatArray,
    b: Sequence[float] | FloatArray,
    better: Direction,
    *,
    confidence: float = 0.95,
    seed: int = 0,
) -> Paired:
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
    return Paired(difference, improvement, verdict, _ratio(first, second, confidence, seed))


def _ratio(first: FloatArray, second: FloatArray, confidence: float, seed: int) -> Interval | None:
    if not ((first > 0).all() and (second > 0).all()):
        return None
    logs = bootstrap(np.log(first / second), confidence=confidence, seed=seed)
    return Interval(math.exp(logs.mean), math.exp(logs.low), math.exp(logs.high), logs.count)


def share_of_gain(
    values: Sequence[float] | FloatArray,
    reference: Sequence[float] | FloatArray,
    most: Sequence[float] | FloatArray,
    better: Direction,
    *,
    confidence: float = 0.95,
    seed: int = 0,
) -> Interval | None:
    """Return which share of the mean gain of `most` on `reference` `values` gain, paired by seed; 1 is all of it.

    The interval is that of the ratio of mean differences, both resampled together. None where the gain of `most` cannot
    be told from zero, for then there is nothing to have a share of. Raises ValueError when the lengths differ.
    """
    if paired(most, reference, better, confidence=confidence, seed=seed).verdict != "better":
        return None
    base = np.asarray(reference, dtype=np.float64)
    gained = np.asarray(values, dtype=np.float64) - base
    whole = np.asarray(most, dtype=np.float64) - base
    picks = np.random.default_rng(seed).integers(0, len(base), (RESAMPLES, len(base)))
    shares = gained[picks].mean(axis=1) / whole[picks].mean(axis=1)
    tail = 100.0 * (1.0 - confidence) / 2.0
    low, high = np.percentile(shares, [tail, 100.0 - tail])
    return Interval(float(gained.mean() / whole.mean()), float(low), float(high), len(base))


class RunningInterval:
    """An interval of a mean that holds at all times at once: it may be looked at after every value.

    A confidence interval of a fixed size is wrong far more often than it says where one stops as soon as it looks good.
    This is the asymptotic confidence sequence of Waudby-Smith, Arbour, Sinha, Kennedy and Ramdas, "Time-uniform central
    limit theory and asymptotic confidence sequences" (Annals of Statistics, 2024): with t values of standard
    deviation s and a number r, mean +- s sqrt(2 (t r^2 + 1) / (t^2 r^2) log(sqrt(t r^2 + 1) / alpha)). It is as narrow
    as it can be near `tightest` values, by their choice of r.

    `alpha` is the chance that the mean is ever outside. The interval is infinite before the second value.
    """

    def __init__(self, alpha: float = 0.05, tightest: int = 300) -> None:
        self.count, self.mean = 0, 0.0
        self._squares = 0.0  # sum of squared distances from the mean, by Welford's recurrence
        self._alpha = alpha
        odds = -2.0 * math.log(alpha)
        self._r2 = (odds + math.log(odds) + 1.0) / tightest

    def add(self, value: float) -> None:
        """Take the next value."""
        self.count += 1
        away = value - self.mean
        self.mean += away / self.count
        self._squares += away * (value - self.mean)

    @property
    def half(self) -> float:
        """Half the width."""
        t = self.count
        if t < 2:
            return math.inf
        deviation, grown = math.sqrt(self._squares / (t - 1)), t * self._r2 + 1.0
        return deviation * math.sqrt(2.0 * grown / (t * t * self._r2) * math.log(math.sqrt(grown) / self._alpha))

    @property
    def low(self) -> float:
        """The lower end."""
        return self.mean - self.half

    @property
    def high(self) -> float:
        """The upper end."""
        return self.mean + self.half

    def __str__(self) -> str:
        return format(Interval(self.mean, self.low, self.high, self.count), "")
