"""Log files by time, decisions on the terminal only when asked, rates that follow the clock."""

import logging

import pytest

from aaml.errors import UserError
from aaml.telemetry.console import DECISIONS, LOG, Bar, Rate, run_log, terminal_log, unused_path
from aaml.telemetry.event_file import TensorBoardWriter


def test_the_file_has_every_line_and_the_terminal_only_what_was_asked(tmp_path, capsys):
    with run_log("dqn", tmp_path) as path:
        LOG.info("cluster ready")
        DECISIONS.info("web-1 -> n3")
    text = path.read_text()
    shown = capsys.readouterr().err
    assert "cluster ready" in text
    assert "web-1 -> n3" in text
    assert "cluster ready" in shown
    assert "web-1 -> n3" not in shown


def test_log_scrolling_shows_decisions(tmp_path, capsys):
    with terminal_log(scrolling=True):
        DECISIONS.info("web-1 -> n3")
    assert "web-1 -> n3" in capsys.readouterr().err


def test_nothing_is_left_behind_when_a_run_ends(tmp_path):
    before = list(logging.getLogger("aaml").handlers)
    with run_log("dqn", tmp_path):
        pass
    assert logging.getLogger("aaml").handlers == before


def test_two_runs_of_one_second_keep_their_own_files(tmp_path):
    with run_log("dqn", tmp_path) as first, run_log("dqn", tmp_path) as second:
        assert first != second
    (tmp_path / "a.csv").touch()
    assert unused_path(tmp_path, "a", ".csv").name == "a-2.csv"


@pytest.mark.parametrize("opened", [lambda folder: run_log("dqn", folder).__enter__(), TensorBoardWriter])
def test_a_folder_that_cannot_be_made_is_told_in_a_line(tmp_path, opened):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=rf"^{tmp_path}/file/logs: cannot be created: Not a directory$"):
        opened(tmp_path / "file" / "logs")


def test_a_rate_counts_the_window_only():
    rate = Rate(window_s=10.0)
    for second in range(100):
        rate.add(float(second), 3)
    assert rate.per_s(99.0) == 3.3  # eleven points, from 89 to 99, over ten seconds
    assert rate.per_s(200.0) == 0.0


def test_a_disabled_bar_prints_nothing(capsys):
    bar = Bar("agent", enabled=False)
    bar.advance(3, reward=1.0)
    bar.close()
    assert capsys.readouterr().err == ""


def test_lines_that_repeat_are_folded(tmp_path, monkeypatch):
    """Of a line that comes every second for two minutes there are three, and they say how often it came."""
    now = [1_000_000.0]
    monkeypatch.setattr("time.time", lambda: now[0])
    monkeypatch.setattr("time.time_ns", lambda: int(now[0] * 1e9))
    with run_log("dqn", tmp_path) as path:
        for second in range(130):
            LOG.warning("no answer from %s", "the API server")
            if second == 70:
                LOG.info("something else")
                DECISIONS.info("decision 1")
                DECISIONS.info("decision 1")
            now[0] += 1.0
    lines = [line.split(" ", 3)[-1].strip() for line in path.read_text().splitlines()]
    assert lines == [
        "no answer from the API server",
        "no answer from the API server (59 times more in 60 s)",
        "something else",
        "decision 1",
        "decision 1",
        "no answer from the API server (59 times more in 60 s)",
        "no answer from the API server (9 times more)",
    ]
