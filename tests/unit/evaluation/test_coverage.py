"""What intervals promise, simulated: how often they hold at 2 to 50 seeds, for normal, skewed, tied and paired data."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from aaml.evaluation.statistics import mean_bounds, mean_interval, paired, share_of_gain, t_quantile

Values = npt.NDArray[np.float64]
Draw = Callable[[np.random.Generator, tuple[int, int]], Values]
SEEDS = (2, 3, 5, 10, 20, 50)
SAMPLES = 10_000  # the share of those that hold is known to +- 0.5%

# How values are drawn, their mean, and the least share in % of intervals at 95% that hold at 2, 3, 5, 10, 20, 50 seeds.
DRAWN: dict[str, tuple[Draw, float, tuple[float, ...]]] = {
    "normal": (lambda rng, size: rng.normal(0.0, 1.0, size), 0.0, (94, 95, 95, 95, 95, 94.5)),
    "uniform": (lambda rng, size: rng.uniform(0.0, 1.0, size), 0.5, (91.5, 94, 95, 95, 95, 95)),
    "long tails (t of 3)": (lambda rng, size: rng.standard_t(3, size), 0.0, (95, 95, 95, 95, 95, 94.5)),
    "skewed": (lambda rng, size: rng.lognormal(0.0, 0.5, size), float(np.exp(0.125)), (92, 94, 93, 93, 94, 94.5)),
    "more skewed (exponential)": (lambda rng, size: rng.exponential(1.0, size), 1.0, (90, 92, 92, 93, 94, 95)),
    "very skewed (log-normal)": (
        lambda rng, size: rng.lognormal(0.0, 1.0, size), float(np.exp(0.5)), (88, 88, 87, 90, 92, 93.5),
    ),
    "rounded": (lambda rng, size: np.round(rng.normal(0.0, 1.0, size)), 0.0, (95, 95, 95, 95, 94.5, 94.5)),
    "of three values": (lambda rng, size: rng.integers(-1, 2, size) * 1.0, 0.0, (95, 95, 95, 95, 94.5, 94.5)),
    "three in five are 0": (
        lambda rng, size: rng.normal(0.0, 1.0, size) * (rng.random(size) < 0.4), 0.0, (95, 95, 95, 95, 95, 94.5),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DRAWN)
def test_intervals_of_means_hold(name: str) -> None:
    draw, mean, least = DRAWN[name]
    rng = np.random.default_rng(11)
    held = []
    for seeds in SEEDS:
        low, high = mean_bounds(draw(rng, (SAMPLES, seeds)))
        held.append(100.0 * float(((low <= mean) & (mean <= high)).mean()))
    assert all(share >= wanted for share, wanted in zip(held, least, strict=True)), held


def test_quantiles_are_those_of_the_tables() -> None:
    """Abramowitz and Stegun, table 26.10."""
    for freedom, at_95, at_99 in ((1, 12.706, 63.657), (2, 4.303, 9.925), (4, 2.776, 4.604), (9, 2.262, 3.250)):
        assert t_quantile(0.95, freedom) == pytest.approx(at_95, abs=5e-4)
        assert t_quantile(0.99, freedom) == pytest.approx(at_99, abs=5e-4)
    assert t_quantile(0.95, 120) == pytest.approx(1.980, abs=5e-4)
    assert t_quantile(0.95, 201) == pytest.approx(t_quantile(0.95, 200), abs=1e-4)  # there the formula changes
    assert t_quantile(0.95, 10**6) == pytest.approx(1.959966, abs=5e-6)


@pytest.mark.parametrize("skewed", [False, True])
def test_a_policy_that_is_no_better_is_seldom_called_better_or_worse(skewed: bool) -> None:
    """Episodes differ ten times as much as policies do; each of both verdicts is wrong in 2.5%, in 8% where skewed."""
    rng = np.random.default_rng(12)
    for seeds in (5, 20):
        verdicts = []
        for _ in range(1500):
            episodes = rng.lognormal(2.0, 1.0, seeds)
            noise = rng.exponential(1.0, seeds) - 1.0 if skewed else rng.normal(0.0, 1.0, seeds)
            verdicts.append(paired(episodes + noise, episodes, "lower").verdict)
        wrong = 1.0 - verdicts.count("level") / len(verdicts)
        assert wrong <= (0.09 if skewed else 0.06)


def test_a_ratio_of_paired_values_holds() -> None:
    """The geometric mean ratio of values that are log-normal is exp of a normal mean: 0.9 by construction."""
    rng = np.random.default_rng(13)
    for seeds in (2, 3, 5, 20):
        held = 0
        for _ in range(1500):
            episodes = rng.lognormal(3.0, 1.0, seeds)
            ratio = paired(episodes * 0.9 * rng.lognormal(0.0, 0.1, seeds), episodes, "lower").ratio
            assert ratio is not None
            held += ratio.low <= 0.9 <= ratio.high
        assert held / 1500 >= 0.94


def test_a_share_of_a_gain_holds() -> None:
    """The one that knows gains 2 on average, the policy 1: half of it."""
    rng = np.random.default_rng(14)
    for seeds in (5, 10, 30):
        held = given = 0
        for _ in range(1500):
            reference = rng.normal(50.0, 10.0, seeds)
            whole = 2.0 + rng.normal(0.0, 0.6, seeds)
            share = share_of_gain(
                reference + 0.5 * whole + rng.normal(0.0, 0.3, seeds), reference, reference + whole, "higher"
            )
            if share is not None:
                given += 1
                held += share.low <= 0.5 <= share.high
        assert given > 1300
        assert held / given >= 0.94


def test_at_99_percent_too() -> None:
    low, high = mean_bounds(np.random.default_rng(15).normal(0.0, 1.0, (SAMPLES, 5)), confidence=0.99)
    assert ((low <= 0.0) & (high >= 0.0)).mean() >= 0.988


def test_the_interval_of_one_sample_is_that_of_many() -> None:
    values = np.array([1.0, 5.0, 2.0, 8.0, 2.0])
    interval = mean_interval(values)
    low, high = mean_bounds(values[None])
    assert (interval.low, interval.high) == (low[0], high[0])
