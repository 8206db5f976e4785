"""Windows of a trace in which pods run already: compiled episodes refuse these, and that ends no work halfway."""

from pathlib import Path

import pytest
from tests.unit.evaluation.test_default_spreading import write_trace

from aaml.cli import run


@pytest.fixture
def trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A trace, in the working folder; pods run when its later windows begin."""
    monkeypatch.chdir(tmp_path)
    return write_trace(tmp_path / "trace", siblings=False)


@pytest.mark.slow
def test_a_linear_scorer_learns_on_windows_in_which_pods_run_already(trace: Path) -> None:
    flags = ("--steps", "60", "--validate-every", "60", "--validation-episodes", "1", "--out", "out")
    assert run("train", ["--agent", "linear", "--task", trace.name, *flags]) == 0
    assert list(Path("out").glob("model/*.json"))


def test_a_search_for_formulas_says_before_it_begins_that_it_cannot_play_them(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("search formula", ["--task", trace.name, "--out", "out"]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "task: 'trace' is not accepted; expected a task that formulas can be played on (compiled episodes" in line
    assert not list(Path("out").glob("study.jsonl"))
