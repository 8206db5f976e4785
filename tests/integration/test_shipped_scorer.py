"""The scorer that ships: above the published FGD on paired seeds that it was never tuned on, unseen traces included."""

from pathlib import Path

import numpy as np
import pytest

from aaml.errors import UserError
from aaml.openb.tune import STAGES, ScorerTuning, Stage, mean_loss, tune
from aaml.policies.gpu.scorer_file import load_scorer
from aaml.policies.gpu_names import FEATURES, GROUPS
from aaml.sim.openb import SEARCH_COLUMNS, gains_over_fgd, run_openb

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
    one, _ = tune(ScorerTuning(tmp_path / "one.npz", stages))
    asks: list[int] = []
    cut = ScorerTuning(tmp_path / "two.npz", stages, workers=2)
    assert tune(cut, stopped=lambda: len(asks) > 1 or bool(asks.append(1)))[1] < 2
    two, generations = tune(cut, resume=True)
    assert generations == 2
    assert one.shape == (len(GROUPS), len(FEATURES))
    assert np.array_equal(one, two)
    stored = load_scorer(tmp_path / "one.npz").linear
    assert stored is not None
    assert np.array_equal(stored, one)
    start = np.zeros(len(FEATURES))
    start[FEATURES.index("fragment_gain")] = 1.0
    gains = gains_over_fgd("gpushare100", 100_001, start)
    won = gains[[SEARCH_COLUMNS.index(100), SEARCH_COLUMNS.index(130)]]
    behind = np.maximum(-gains - 0.02, 0.0)
    expected = 0.7 * won.mean() + 0.3 * np.minimum(won, 0.8).mean() - 2 * behind.mean() - 0.5 * behind.max()
    assert mean_loss(start, ("gpushare100",), 100_001) == pytest.approx(-expected)


def test_a_search_goes_on_from_a_file(tmp_path: Path) -> None:
    weights = load_scorer(MODEL).linear
    stages = [Stage(False, ("gpushare100",), 1, 4, 1e-9, 6)]
    assert tune(ScorerTuning(tmp_path / "on.npz", stages, MODEL))[0] == pytest.approx(weights, abs=1e-6)


def test_mistakes_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"ends in \.npz"):
        tune(ScorerTuning(tmp_path / "weights.txt"))
    with pytest.raises(UserError, match="population of at least 4"):
        tune(ScorerTuning(tmp_path / "w.npz", [Stage(True, ("default",), 1, 2, 0.1, 0)]))
