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
_LARGEST_LOG = 709.0
_EXACT = 200  # degrees of freedom up to which quantiles of t are exact
_LEAST_CURVED = 1e-6


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
    ties counting half. `verdict`: "undecided" below `LEAST_SEEDS` seeds, "better" or "worse" when the interval lies
    clear of zero, else "level". `ratio`: interval of the geometric mean of A / B, in which each seed counts alike
    however large its values are; None where not all of them are above zero.
    """

    difference: Interval
    improvement: float
    verdict: Verdict
    ratio: Interval | None = None


def mean_interval(values: Sequence[float] | FloatArray, *, confidence: float = 0.95) -> Interval:
    """Return the mean of independent `values` [n] with its interval. Raises ValueError when empty."""
    data = np.asarray(values, dtype=np.float64)
    if data.ndim != 1 or not data.size:
        raise ValueError("at least one value is needed")
    low, high = mean_bounds(data[None], confidence=confidence)
    return Interval(float(data.mean()), float(low[0]), float(high[0]), len(data))


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
    if len(first) < LEAST_SEEDS:
        verdict = "undecided"
    return Paired(difference, improvement, verdict, _ratio(first, second, confidence))


def _ratio(first: FloatArray, second: FloatArray, confidence: float) -> Interval | None:
    if not ((first > 0).all() and (second > 0).all()):
        return None
    logs = mean_interval(np.log(first / second), confidence=confidence)
    return Interval(*(math.exp(min(log, _LARGEST_LOG)) for log in (logs.mean, logs.low, logs.high)), logs.count)


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
    Statistical Society B 16, 1954): the shares s for which the mean of gain - s x whole gain is not told from zero. None
    where the gain of `most` cannot be told from zero, for then there is nothing to have a share of. Raises ValueError
    when the lengths differ.
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
