"""Log files by time, decisions on the terminal only when asked, rates that follow the clock."""

import logging

from aaml.telemetry.console import DECISIONS, LOG, Bar, Rate, run_log, terminal_log, unused_path


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
