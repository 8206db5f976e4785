"""The repository's own documents say what the committed results say."""

from pathlib import Path

import pytest

from draw import Args, run

ROOT = Path(__file__).parents[2]


def test_every_table_and_figure_is_drawn_from_the_committed_results(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    status = run(Args(check=True))
    said = capsys.readouterr()
    assert status == 0, said.out + said.err
