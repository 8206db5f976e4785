"""Intervals and comparisons over seeds that hold at small numbers: what a reviewer asks for.

An interval of a mean is the hull of two, at 95% unless asked otherwise. Student's t holds for normal values at any
number of seeds, and falls short for skewed ones: 88% at five exponential values. Hall's transformation ("On the removal
of skewness by transformation", Journal of the Royal Statistical Society B 54, 1992) moves it to the side of the long
tail, 93% at five. `tests/unit/evaluation/test_coverage.py` simulates both at 2 to 50 seeds. No interval sees what does
not happen in the sample: where all values are alike it has no width, so what happens in fewer than about 3 / n of the
episodes may be missed.

The probability of improvement follows Agarwal et al., "Deep Reinforcement Learning at the Edge of the Statistical
Precipice", NeurIPS 2021.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import Literal

import numpy as np
import numpy.typing as npt

from aaml.sim.metrics import Direction

FloatArray = npt.NDArray[np.float64]
Verdict = Literal["better", "level", "worse", "undecided"]
LEAST_SEEDS = 5
"""Below so many seeds there is no verdict."""
INTERVALS = f"Student's t, widened where values are skewed; below {LEAST_SEEDS} nothing is decided"
"""What intervals are, in the words of reports."""
_MOST_DECIMALS = 9
_LARGEST_LOG = 709.0  # of a float
_EXACT = 200  # degrees of freedom up to which quantiles of t are exact
_LEAST_CURVED = 1e-6
_SHARES = np.array([0.9, *(0.5**power for power in range(1, 9))])
_ENOUGH = 50.0  # the logarithm of a capital that nobody needs more of


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean with its interval (95% unless asked otherwise) over `count` seeds.

    The ends are infinite where nothing is known: of one seed, and of fewer than five whose values are all alike.
    """

    mean: float
    low: float
    high: float
    count: int

    @property
    def known(self) -> bool:
        """Whether there are ends."""
        return math.isfinite(self.low) and math.isfinite(self.high)

    @property
    def ends(self) -> tuple[float, float]:
        """The ends to draw: the mean itself where they are not known."""
        return (self.low, self.high) if self.known else (self.mean, self.mean)

    def __format__(self, spec: str) -> str:
        """Write all three numbers by a format such as "+.2f".

        Without a precision ("" or "+"): to the same decimals, such that half the width is 3 to 30 units of the last.
        """
        if not self.known:
            return f"{self.mean:{spec if spec.strip('+') else spec + '.4g'}} [unknown]"
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
    ties counting half. `verdict`: "undecided" below `LEAST_SEEDS` seeds and where a value is NaN, "better" or "worse"
    when the interval lies clear of zero, else "level". `ratio`: interval of the geometric mean of A / B, in which each
    seed counts alike however large its values are; None where not all of them are above zero.
    """

    difference: Interval
    improvement: float
    verdict: Verdict
    ratio: Interval | None = None


def together(comparisons: int, *, confidence: float = 0.95) -> float:
    """Return the confidence of each of so many intervals with which all of them hold together (Bonferroni)."""
    return 1.0 - (1.0 - confidence) / max(comparisons, 1)


def mean_interval(
    values: Sequence[float] | FloatArray, *, confidence: float = 0.95, least: float = -math.inf
) -> Interval:
    """Return the mean of independent `values` [n] with its interval. Raises ValueError when empty.

    The low end is not below `least` where no value is: what cannot be negative has no negative mean.
    """
    data = np.asarray(values, dtype=np.float64)
    if data.ndim != 1 or not data.size:
        raise ValueError("at least one value is needed")
    low, high = (float(end[0]) for end in mean_bounds(data[None], confidence=confidence))
    if math.isfinite(low) and data.min() >= least:
        low = max(low, least)
    return Interval(float(data.mean()), low, high, len(data))


def mean_bounds(samples: FloatArray, *, confidence: float = 0.95) -> tuple[FloatArray, FloatArray]:
    """Return the lower and upper ends, float [S] each, of the intervals of the means of samples [S, n]."""
    count = samples.shape[1]
    mean = samples.mean(axis=1)
    away = samples - mean[:, None]
    spread = np.sqrt((away**2).mean(axis=1))
    if count == 1:
        return np.full(len(samples), -np.inf), np.full(len(samples), np.inf)
    alike = spread <= 1e-15 * np.abs(samples).max(axis=1)
    error = np.where(alike, 0.0, spread) / math.sqrt(count - 1)
    quantile = t_quantile(confidence, count - 1)
    skewness = (away**3).mean(axis=1) / np.where(alike, 1.0, spread) ** 3
    curve = np.where(alike, 0.0, skewness) / math.sqrt(count)
    curve = np.where(np.abs(curve) < _LEAST_CURVED, _LEAST_CURVED, curve)
    # Hall's transformation g(T) = T + c T^2 / 3 + c^2 T^3 / 27 + c / 6 of the studentized mean T, turned round
    bent = [3.0 / curve * (np.cbrt(1.0 + curve * (side - curve / 6.0)) - 1.0) for side in (quantile, -quantile)]
    low, high = mean - error * np.maximum(bent[0], quantile), mean - error * np.minimum(bent[1], -quantile)
    if count < LEAST_SEEDS:
        low, high = np.where(alike, -np.inf, low), np.where(alike, np.inf, high)
    return low, high


@lru_cache(maxsize=1024)
def t_quantile(confidence: float, freedom: int) -> float:
    """Return t for which Student's T of so many degrees of freedom lies in -t ... t by the probability `confidence`."""
    if freedom > _EXACT:  # Abramowitz and Stegun 26.7.5
        z = NormalDist().inv_cdf(0.5 + confidence / 2.0)
        return z + (z**3 + z) / (4.0 * freedom) + (5.0 * z**5 + 16.0 * z**3 + 3.0 * z) / (96.0 * freedom**2)
    low, high = 0.0, 1.0
    while _t_within(high, freedom) < confidence:
        high *= 2.0
    while low < (middle := (low + high) / 2.0) < high:
        low, high = (middle, high) if _t_within(middle, freedom) < confidence else (low, middle)
    return high


def _t_within(t: float, freedom: int) -> float:
    """Return the probability of -t ... t: Abramowitz and Stegun 26.7.3 and 26.7.4."""
    angle = math.atan(t / math.sqrt(freedom))
    cosine, odd = math.cos(angle), freedom % 2
    term = cosine if odd else 1.0
    total = term if freedom > 1 else 0.0
    for k in range(2 + odd, freedom - 1, 2):
        term *= cosine * cosine * (k - 1) / k
        total += term
    return 2.0 / math.pi * (angle + math.sin(angle) * total) if odd else math.sin(angle) * total


def paired(
    a: Sequence[float] | FloatArray,
    b: Sequence[float] | FloatArray,
    better: Direction,
    *,
    confidence: float = 0.95,
) -> Paired:
    """Compare A with B, paired: a[i] and b[i] come from the same seed. Raises ValueError when the lengths differ."""
    first, second = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if first.shape != second.shape:
        raise ValueError(f"paired values are needed: {first.shape} against {second.shape}")
    difference = mean_interval(first - second, confidence=confidence)
    gain = (second - first) if better == "lower" else (first - second)
    improvement = float(((gain > 0) + 0.5 * (gain == 0)).mean())
    sign = -1.0 if better == "lower" else 1.0
    low, high = sorted((sign * difference.low, sign * difference.high))
    verdict: Verdict = "better" if low > 0 else "worse" if high < 0 else "level"
    if len(first) < LEAST_SEEDS or np.isnan(difference.mean):
        verdict = "undecided"
    return Paired(difference, improvement, verdict, _ratio(first, second, confidence))


def _ratio(first: FloatArray, second: FloatArray, confidence: float) -> Interval | None:
    if not ((first > 0).all() and (second > 0).all()):
        return None
    logs = mean_interval(np.log(first / second), confidence=confidence)
    if not logs.known:
        return Interval(math.exp(min(logs.mean, _LARGEST_LOG)), -math.inf, math.inf, logs.count)
    mean, low, high = (math.exp(min(log, _LARGEST_LOG)) for log in (logs.mean, logs.low, logs.high))
    return Interval(mean, low, high, logs.count)


def share_of_gain(
    values: Sequence[float] | FloatArray,
    reference: Sequence[float] | FloatArray,
    most: Sequence[float] | FloatArray,
    better: Direction,
    *,
    confidence: float = 0.95,
) -> Interval | None:
    """Return which share of the mean gain of `most` on `reference` `values` gain, paired by seed; 1 is all of it.

    The interval is Fieller's of a ratio of means ("Some problems in interval estimation", Journal of the Royal
    Statistical Society B 16, 1954): the shares s for which the mean of gain - s x whole gain is not told from zero.
    None where the gain of `most` cannot be told from zero, for then there is nothing to have a share of. Raises
    ValueError when the lengths differ.
    """
    if paired(most, reference, better, confidence=confidence).verdict != "better":
        return None
    base = np.asarray(reference, dtype=np.float64)
    gained = np.asarray(values, dtype=np.float64) - base
    whole = np.asarray(most, dtype=np.float64) - base
    squared = t_quantile(confidence, len(base) - 1) ** 2 / len(base)
    (of_gained, both), (_, of_whole) = squared * np.cov(gained, whole)
    numerator, denominator = gained.mean(), whole.mean()
    square, middle = denominator**2 - of_whole, numerator * denominator - both  # above 0, as most is better
    half = math.sqrt(max(middle**2 - square * (numerator**2 - of_gained), 0.0))
    share = float(numerator / denominator)
    return Interval(share, float((middle - half) / square), float((middle + half) / square), len(base))


class Bets:
    """Evidence that values have a mean below zero, which may be looked at after every value.

    A player bets a fixed share of its capital, which begins at 1, on each value x in -1 ... 1 being negative: the
    capital is multiplied by 1 - share x. As long as each x has a mean of at least zero, whatever came before, the
    capital never passes 1 / alpha but with the chance alpha (Ville's inequality). That is exact, for skewed values too:
    Waudby-Smith and Ramdas, "Estimating means of bounded random variables by betting" (Journal of the Royal Statistical
    Society B 86, 2024). `capital` is that of many players together, one a share; every `every` values new ones begin,
    for what was true long ago may not be so today. Those who begin k-th own 1 / (k (k + 1)) of the whole, so that all
    together begin with at most 1; of the players the last `kept` beginnings go on.

    Values may be arrays, each place a sequence of its own.
    """

    def __init__(self, *, every: int = 1000, kept: int = 8) -> None:
        self._every, self._kept = every, kept
        self.count, self.mean = 0, np.zeros(())
        self._logs: FloatArray = np.empty((0, len(_SHARES)))  # [beginnings, shares, *values]

    def add(self, value: float | FloatArray) -> None:
        """Take the next value, of -1 ... 1."""
        if self.count % self._every == 0:
            begun = self.count // self._every + 1
            weight = 1.0 / (begun * (begun + 1) * len(_SHARES))
            fresh = np.full((1, len(_SHARES), *np.shape(value)), math.log(weight))
            self._logs = np.concatenate([self._logs[1 - self._kept :], fresh]) if self.count else fresh
        self.count += 1
        self.mean = self.mean + (np.asarray(value) - self.mean) / self.count
        self._logs = np.minimum(self._logs + np.log1p(-np.multiply.outer(_SHARES, value)), _ENOUGH)

    @property
    def capital(self) -> FloatArray:
        """What the players own together, float64 of the values' shape."""
        return np.asarray(np.exp(self._logs).sum(axis=(0, 1)))
