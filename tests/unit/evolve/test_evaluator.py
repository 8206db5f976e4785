"""Programs of somebody else's search: what a scripted proposer, in the place of a language model, is told of them."""

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from aaml.evolve.evaluator import evaluator, formula_in
from aaml.sim.tasks import find_task

EXAMPLE = Path(__file__).parents[3] / "examples/openevolve"
RANK = """
from aaml.scheduling.observation import PAIR
def score(context):
    return -context.observation.pairs[:, PAIR.variance_rank]
"""
PROPOSALS = (
    "def score(context:\n    return 1",
    'FORMULA = "-pair.cpu_afer"',
    "def other(context):\n    return 1",
    "def score(context):\n    raise RuntimeError('out of ideas')",
    'FORMULA = "pair.cpu_after"',
    'FORMULA = """\n-pair.cpu_after_rank - pair.memory_after_rank\n"""',
    RANK,
    'FORMULA = "-(pair.cpu_growth_scaled + pair.memory_growth_scaled)"',
)


@pytest.fixture(scope="module")
def evaluate():
    return evaluator(task=("balance",), nodes=(4,), pods=60, episodes=8)


def test_a_scripted_proposer_is_told_what_is_wrong_and_what_is_better(evaluate, tmp_path):
    results = []
    for number, text in enumerate(PROPOSALS):
        (tmp_path / f"{number}.py").write_text(text)
        results.append(evaluate(str(tmp_path / f"{number}.py")))
    assert [result["combined_score"] == 0.0 for result in results] == [True] * 4 + [False] * 4
    for result, said in zip(
        results,
        ("is not Python", "pair.cpu_afer", "expected a name that the file defines", "out of ideas"),
        strict=False,
    ):
        assert said in result["artifacts"]["error"]
    worst, ranks, own, best = (result["combined_score"] for result in results[4:])
    assert worst < 0.5 < ranks < 1.2
    assert own == pytest.approx(1.0, abs=0.15)
    assert best == pytest.approx(1.0, abs=0.1)  # it is the reference, but for pods that ask for nothing
    assert results[-1]["metrics"]["size"] == 4.0
    assert results[-1]["metrics"]["terms"] == 2.0
    assert "mathrm" in results[-1]["artifacts"]["latex"]
    assert "relative to least-variance over 8 episodes" in results[-1]["artifacts"]["feedback"]


def test_the_same_score_as_a_formula_and_as_a_function_is_worth_the_same(evaluate, tmp_path):
    (tmp_path / "formula.py").write_text('FORMULA = "-pair.variance_rank"')
    (tmp_path / "function.py").write_text(RANK)
    one, other = evaluate(tmp_path / "formula.py"), evaluate(tmp_path / "function.py")
    assert one["combined_score"] == other["combined_score"]
    assert find_task("balance").metric == "mean_variance"


def test_a_file_with_a_formula_is_read_and_not_run(tmp_path):
    path = tmp_path / "program.py"
    path.write_text("raise SystemExit\nFORMULA = '1'\n")
    assert formula_in(path) == "1"


@pytest.mark.slow
def test_the_example_starts_in_both_contracts(tmp_path, monkeypatch):
    program = str(EXAMPLE / "initial_program.py")
    monkeypatch.setenv("AAML_EPISODES", "2")
    result = runpy.run_path(str(EXAMPLE / "evaluator.py"))["evaluate"](program)
    assert result["combined_score"] == pytest.approx(1.0, abs=0.1)
    assert set(result) >= {"combined_score", "loss", "size", "artifacts"}
    subprocess.run(
        [sys.executable, str(EXAMPLE / "evaluator.py"), "--program_path", program, "--results_dir", str(tmp_path)],
        check=True,
    )
    metrics, correct = (json.loads((tmp_path / name).read_text()) for name in ("metrics.json", "correct.json"))
    assert metrics["combined_score"] == result["combined_score"]
    assert set(metrics) == {"combined_score", "public", "private", "extra_data", "text_feedback"}
    assert correct == {"correct": True, "error": ""}
