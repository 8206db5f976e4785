"""The scorer that ships: above the published FGD on paired seeds that it was never tuned on, unseen traces included."""

from pathlib import Path

import numpy as np
import pytest

from aaml.errors import UserError
from aaml.openb.tune import STAGES, Stage, objective, tune
from aaml.policies.gpu.scorer_file import load_scorer
from aaml.policies.gpu_names import FEATURES, GROUPS
from aaml.sim.openb import SEARCH_COLUMNS, run_openb

MODEL = Path(__file__).parents[2] / "models" / "openb_linear.npz"
SEEDS = (42, 43, 44)


@pytest.mark.parametrize("trace", ["default", "cpu200", "gpushare60", "gpuspec10", "multigpu40"])
def test_it_allocates_more_than_fgd_at_100_and_at_130_percent(trace: str) -> None:
    weights = load_scorer(MODEL).linear
    assert weights is not None
    gains = np.array(
        [
            run_openb(trace, seed, "linear", weights).allocation[[100, 130]]
            - run_openb(trace, seed, "fgd").allocation[[100, 130]]
            for seed in SEEDS
        ]
    )
    assert (gains.mean(axis=0) > 0).all(), gains


def test_reported_seeds_were_never_tuned_on() -> None:
    for stage in STAGES:
        assert 100_000 + 1000 * stage.seed > 1000


def test_a_short_search_starts_at_fgds_gradient_and_is_the_same_for_any_number_of_processes(tmp_path: Path) -> None:
    stages = [Stage(True, ("gpushare100",), 1, 4, 0.02, 5), Stage(False, ("gpushare100",), 1, 4, 0.01, 6)]
    one = tune(tmp_path / "one.npz", stages, workers=1)
    two = tune(tmp_path / "two.npz", stages, workers=2)
    assert one.shape == (len(GROUPS), len(FEATURES))
    assert np.array_equal(one, two)
    stored = load_scorer(tmp_path / "one.npz").linear
    assert stored is not None
    assert np.array_equal(stored, one)
    start = np.zeros(len(FEATURES))
    start[FEATURES.index("fragment_gain")] = 1.0
    value, gains = objective(start, ("gpushare100",), 100_001)
    assert gains.shape == (1, len(SEARCH_COLUMNS))
    won = gains[0, [SEARCH_COLUMNS.index(100), SEARCH_COLUMNS.index(130)]]
    behind = np.maximum(-gains[0] - 0.02, 0.0)
    expected = 0.7 * won.mean() + 0.3 * np.minimum(won, 0.8).mean() + 0.1 * won.min()
    assert value == pytest.approx(expected - 2 * behind.mean() - 0.3 * behind.max() - 0.1 * behind.max())


def test_a_search_goes_on_from_a_file(tmp_path: Path) -> None:
    weights = load_scorer(MODEL).linear
    stages = [Stage(False, ("gpushare100",), 1, 4, 1e-9, 6)]
    assert tune(tmp_path / "on.npz", stages, start=weights, workers=1) == pytest.approx(weights, abs=1e-6)


def test_mistakes_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"ends in \.npz"):
        tune(tmp_path / "weights.txt")
    with pytest.raises(UserError, match="population of at least 4"):
        tune(tmp_path / "w.npz", [Stage(True, ("default",), 1, 2, 0.1, 0)])
