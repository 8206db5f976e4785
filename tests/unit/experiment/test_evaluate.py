"""Evaluation: paired episodes, files that survive a cut, and clear words for mistakes."""

from pathlib import Path

import pytest

from aaml.cli import run
from aaml.errors import UserError
from aaml.experiment.evaluate import evaluate, parse_contestants, parse_seeds
from aaml.experiment.results import ResultFile, compare_all, read_results
from aaml.experiment.train_simple import start_weights
from aaml.learning.linear import save_linear
from aaml.learning.qtable import QTableAgent
from aaml.scheduling.heuristics.linear import LinearPolicy

POLICIES = ("least-variance", "random")


def small(policies: tuple[str, ...] = POLICIES, seeds: tuple[int, ...] = (1, 2), **options: object):
    return evaluate(parse_contestants(policies), "balance", seeds, (3,), pods=30, progress=False, **options)  # type: ignore[arg-type]


def test_seeds_are_ranges_and_numbers() -> None:
    assert parse_seeds("42..44,7") == (42, 43, 44, 7)
    for text in ("", "a", "3..", "1,1", "5..4"):
        with pytest.raises(UserError, match="seeds"):
            parse_seeds(text)


def test_every_policy_meets_the_same_episodes() -> None:
    frame = small()
    assert frame.groupby("seed")["arrived"].nunique().eq(1).all()
    assert set(frame["policy"]) == set(POLICIES)
    assert (frame[frame.policy == "least-variance"]["mean_variance"].to_numpy()
            < frame[frame.policy == "random"]["mean_variance"].to_numpy()).all()  # fmt: skip


def test_one_or_several_processes_give_the_same_numbers() -> None:
    timing = ["latency_p50_ms", "latency_p99_ms"]
    one, two = small(workers=1).drop(columns=timing), small(workers=2).drop(columns=timing)
    assert one.equals(two)


def test_a_policy_of_ones_own_is_found_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def emptiest(context):\n    return -context.state.requested[:, 0]\n")
    frame = small((f"{file}:emptiest", "mine=least-allocated"), seeds=(1,))
    assert list(frame["policy"]) == [f"{file}:emptiest", "mine"]


def test_results_are_appended_read_back_and_compared(tmp_path: Path) -> None:
    small(on_row=ResultFile(tmp_path).append)
    small(seeds=(2, 3), on_row=ResultFile(tmp_path).append)  # goes on in the same file; seed 2 once more
    frame = read_results([tmp_path])
    assert sorted(frame[frame.policy == "random"]["seed"]) == [1, 2, 3]
    (text,) = compare_all(frame, "random", figures=tmp_path)
    assert text.splitlines()[0] == "balance, 3 nodes: mean_variance (lower is better), 3 seeds"
    assert text.splitlines()[3].startswith("least-variance")
    with pytest.raises(UserError, match="metric: 'nothing' is not accepted"):
        compare_all(frame, "random", metric="nothing")


@pytest.mark.parametrize(
    ("policies", "words"),
    [
        (("nobody",), "policy: 'nobody'"),
        (("gone.pth",), "model: 'gone.pth'"),
        (("random", "random"), "a name twice"),
        ((), "none given"),
    ],
)
def test_mistakes_are_found_before_anything_runs(policies: tuple[str, ...], words: str) -> None:
    with pytest.raises(UserError, match=words):
        small(policies)


def test_foreign_result_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "results.csv").write_text("a,b\n1,2\n")
    with pytest.raises(UserError, match="column task is missing"):
        read_results([tmp_path])
    with pytest.raises(UserError, match="other columns than this run"):
        ResultFile(tmp_path).append({"task": "balance"})


def test_linear_scorers_and_q_tables_are_judged_like_networks(tmp_path: Path) -> None:
    save_linear(LinearPolicy(start_weights("least-variance")), tmp_path / "linear.json")
    (table,) = QTableAgent().save(str(tmp_path), "s")
    frame = small((str(tmp_path / "linear.json"), f"table={table}", "least-variance"), seeds=(1,))
    linear, _, greedy = frame["mean_variance"]
    assert linear == pytest.approx(greedy, rel=1e-9)
    (tmp_path / "other.json").write_text("[]")
    with pytest.raises(UserError, match="a Q-table or a linear scorer"):
        small((str(tmp_path / "other.json"),))


@pytest.mark.parametrize(
    ("policies", "reference"),
    [(("random", "kube-scheduler"), "kube-scheduler"), (("first-fit", "random"), "first-fit")],
)
def test_others_are_compared_with_kube_scheduler_or_else_with_the_first(policies, reference, tmp_path, capsys):
    flags = ["--seeds", "1..2", "--nodes", "3", "--pods", "20", "--workers", "1", "--out", str(tmp_path)]
    assert run("evaluate", ["--policies", *policies, *flags]) == 0
    assert f"difference from {reference}" in capsys.readouterr().out
