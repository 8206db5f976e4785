"""Intervals against closed forms and hand-made cases."""

import math

import numpy as np
import pytest

from aaml.errors import UserError
from aaml.evaluation.ranking import rank
from aaml.evaluation.results import Results
from aaml.evaluation.statistics import Interval, mean_interval, paired, share_of_gain
from aaml.sim.metrics import find_metric


def test_values_without_skew_have_the_t_interval() -> None:
    """Of 1 ... 5 the mean is 3, the deviation sqrt(2.5), its error sqrt(0.5), and t of four degrees 2.776."""
    interval = mean_interval([1.0, 2.0, 3.0, 4.0, 5.0])
    assert (interval.mean, interval.count) == (3.0, 5)
    assert interval.low == pytest.approx(3.0 - 2.7764 * math.sqrt(0.5), abs=1e-4)
    assert interval.high == pytest.approx(3.0 + 2.7764 * math.sqrt(0.5), abs=1e-4)


def test_a_long_tail_moves_the_end_on_its_side() -> None:
    """Of 0, 0, 0, 0, 5: mean 1, deviation sqrt(5), error 1; the third moment 12 over 8 is a skewness of 1.5.

    With c = 1.5 / sqrt(5) = 0.67082 Hall's upper end is 1 - 3 / c ((1 + c (-2.77645 - c / 6))^(1/3) - 1):
    the bracket is 1 - 1.93750 = -0.93750, its root -0.97872, so 1 + 4.47214 x 1.97872 = 9.8491. The lower end is t's.
    """
    interval = mean_interval([0.0, 0.0, 0.0, 0.0, 5.0])
    assert interval.low == pytest.approx(1.0 - 2.77645, abs=1e-4)
    assert interval.high == pytest.approx(9.8491, abs=1e-3)
    mirrored = mean_interval([0.0, 0.0, 0.0, 0.0, -5.0])
    assert (mirrored.low, mirrored.high) == pytest.approx((-interval.high, -interval.low))


def test_one_seed_and_few_equal_values_have_no_interval() -> None:
    for values in ([3.0], [3.0, 3.0], [3.0] * 4):
        interval = mean_interval(values)
        assert (interval.low, interval.high, interval.ends) == (-math.inf, math.inf, (3.0, 3.0))
        assert str(interval) == "3 [unknown]"
    assert (mean_interval([3.0] * 5).low, mean_interval([3.0] * 5).high) == (3.0, 3.0)


@pytest.mark.parametrize("seeds", [1, 2, 3, 4])
def test_below_five_seeds_nothing_is_decided(seeds: int) -> None:
    reference = np.linspace(10.0, 11.0, seeds)
    assert paired(reference / 2.0 + 0.001 * reference**2, reference, "lower").verdict == "undecided"
    assert paired(reference, reference, "lower").verdict == "undecided"
    assert share_of_gain(reference + 1.0, reference, reference + 2.0, "higher") is None


def test_a_value_that_is_none_decides_nothing() -> None:
    assert paired([1.0, float("nan"), *[2.0] * 8], [3.0] * 10, "lower").verdict == "undecided"


def test_the_same_episode_again_says_nothing_new() -> None:
    rows = [
        {"task": "balance", "nodes": 3, "policy": policy, "seed": 7, "mean_variance": value}
        for policy, value in (("random", 0.2), ("mine", 0.1))
        for _ in range(5)
    ]
    with pytest.raises(UserError, match="balance, 3 nodes: mine has seed 7 more than once"):
        rank(Results.of(rows).frame(), find_metric("mean_variance"), "random")


def test_pairing_finds_a_small_difference_under_large_noise() -> None:
    noise = np.random.default_rng(2).normal(0, 100, 30)
    a, b = noise + 1.0, noise + np.linspace(1.8, 2.2, 30)
    result = paired(a, b, "lower")
    assert result.verdict == "better"
    assert result.difference.mean == pytest.approx(-1.0)
    assert result.improvement == 1.0
    assert paired(a, b, "higher").verdict == "worse"


def test_ties_count_half_and_level_is_level() -> None:
    result = paired([1.0, 2.0, 3.0, 4.0, 5.0], [1.0, 2.0, 4.0, 3.0, 5.0], "lower")
    assert result.improvement == 0.5
    assert result.verdict == "level"


def test_bad_input_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        mean_interval([])
    with pytest.raises(ValueError, match="paired"):
        paired([1.0], [1.0, 2.0], "lower")


def test_a_ratio_counts_every_seed_alike_and_is_of_positive_values():
    """The logs are -log 2 and log 2: mean 0, error log 2, and t of one degree 12.706."""
    ratio = paired([1.0, 200.0], [2.0, 100.0], "lower").ratio
    assert ratio is not None
    assert (ratio.mean, ratio.low, ratio.high) == pytest.approx((1.0, 2.0**-12.7062, 2.0**12.7062), rel=1e-4)
    assert paired([0.0, 1.0], [1.0, 1.0], "lower").ratio is None
    assert f"{paired([3.0, 3.0], [2.0, 2.0], 'lower').ratio:.3f}" == "1.500 [unknown]"


def test_intervals_are_written_to_the_decimals_that_their_width_supports() -> None:
    assert str(Interval(0.0031274, 0.0029961, 0.0032594, 20)) == "0.00313 [0.00300, 0.00326]"
    assert f"{Interval(25.359, 24.0231, 26.671, 20):+}" == "+25.4 [+24.0, +26.7]"
    assert str(Interval(12345.6, 11000.0, 14000.0, 20)) == "12346 [11000, 14000]"
    assert str(Interval(2.0, 2.0, 2.0, 5)) == "2 [2, 2]"
    assert f"{Interval(0.646, 0.619, 0.671, 10):+.2f}" == "+0.65 [+0.62, +0.67]"
