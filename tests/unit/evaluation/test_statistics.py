"""Intervals against closed forms and hand-made cases."""

import numpy as np
import pytest

from aaml.evaluation.statistics import Interval, bootstrap, paired


def test_interval_of_a_normal_sample_is_close_to_the_t_interval() -> None:
    values = np.random.default_rng(1).normal(5.0, 2.0, 400)
    interval = bootstrap(values)
    half = 1.96 * values.std(ddof=1) / np.sqrt(400)
    assert interval.mean == pytest.approx(values.mean())
    assert interval.low == pytest.approx(values.mean() - half, abs=0.15 * half)
    assert interval.high == pytest.approx(values.mean() + half, abs=0.15 * half)


def test_a_constant_has_no_width_and_the_same_seed_the_same_interval() -> None:
    assert (bootstrap([3.0, 3.0, 3.0]).low, bootstrap([3.0, 3.0, 3.0]).high) == (3.0, 3.0)
    values = [1.0, 5.0, 2.0, 8.0]
    assert bootstrap(values, seed=7) == bootstrap(values, seed=7)


def test_pairing_finds_a_small_difference_under_large_noise() -> None:
    noise = np.random.default_rng(2).normal(0, 100, 30)
    a, b = noise + 1.0, noise + np.linspace(1.8, 2.2, 30)
    result = paired(a, b, "lower")
    assert result.verdict == "better"
    assert result.difference.mean == pytest.approx(-1.0)
    assert result.improvement == 1.0
    assert paired(a, b, "higher").verdict == "worse"


def test_ties_count_half_and_level_is_level() -> None:
    result = paired([1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 4.0, 3.0], "lower")
    assert result.improvement == 0.5
    assert result.verdict == "level"


def test_bad_input_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        bootstrap([])
    with pytest.raises(ValueError, match="paired"):
        paired([1.0], [1.0, 2.0], "lower")


def test_a_ratio_counts_every_seed_alike_and_is_of_positive_values():
    ratio = paired([1.0, 200.0], [2.0, 100.0], "lower").ratio
    assert ratio is not None
    assert (ratio.mean, ratio.low, ratio.high) == pytest.approx((1.0, 0.5, 2.0))
    assert paired([0.0, 1.0], [1.0, 1.0], "lower").ratio is None


def test_intervals_are_written_to_the_decimals_that_their_width_supports() -> None:
    assert str(Interval(0.0031274, 0.0029961, 0.0032594, 20)) == "0.00313 [0.00300, 0.00326]"
    assert f"{Interval(25.359, 24.0231, 26.671, 20):+}" == "+25.4 [+24.0, +26.7]"
    assert str(Interval(12345.6, 11000.0, 14000.0, 20)) == "12346 [11000, 14000]"
    assert str(Interval(2.0, 2.0, 2.0, 1)) == "2 [2, 2]"
    assert f"{Interval(0.646, 0.619, 0.671, 10):+.2f}" == "+0.65 [+0.62, +0.67]"
