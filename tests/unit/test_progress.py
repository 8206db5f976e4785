"""Where there is no terminal, progress is a few lines, whatever happens behind the bar."""

from types import SimpleNamespace

import pytest

from aaml.progress import progress_bar


@pytest.fixture
def clock(monkeypatch):
    """The time that bars see: seconds that a test sets."""
    now = SimpleNamespace(s=0.0)
    monkeypatch.setattr("aaml.progress.time", SimpleNamespace(time=lambda: now.s))
    monkeypatch.setattr("tqdm.std.time", lambda: now.s)
    return now


def test_where_there_is_no_terminal_progress_is_a_line_when_the_work_changes_and_at_the_end(capsys):
    with progress_bar("gnn on balance: imitate least-variance", 1000, "decision") as bar:
        for number in range(1000):
            bar.update()
            bar.set_postfix(score=f"{number / 1000:.3f}")
            if number == 500:
                bar.set_description("gnn on balance: train")
    lines = capsys.readouterr().err.split("\n")
    begin, changed, end, rest = lines
    assert begin.startswith("gnn on balance: imitate least-variance: 0/1000 decision [")
    assert changed.startswith("gnn on balance: train: 501/1000 decision [")
    assert end.startswith("gnn on balance: train: 1000/1000 decision [")
    assert end.endswith("score=0.999]")
    assert rest == ""


def test_notes_behind_the_bar_and_a_total_that_comes_later_write_no_lines_of_their_own(capsys):
    with progress_bar("build etcd", None, "pkg") as bar:
        for number in range(100):
            bar.set_postfix_str(f"package {number}")
        bar.reset(total=300)
        bar.update(300)
    begin, end, rest = capsys.readouterr().err.split("\n")
    assert begin.startswith("build etcd: 0/? pkg")
    assert end.startswith("build etcd: 300/300 pkg")
    assert rest == ""


def test_a_bar_over_something_counts_what_is_taken(capsys):
    assert sum(progress_bar("create nodes", 3, "node", over=iter([1, 2, 3]))) == 6
    assert capsys.readouterr().err.split("\n")[1].startswith("create nodes: 3/3 node")


def test_a_line_does_not_tell_what_is_left_from_the_time_that_the_first_unit_took(clock, capsys):
    """Compiling takes 31 s. Then a unit takes 0.1 s."""
    with progress_bar("train", 7000, "round") as bar:
        clock.s = 31.0
        bar.update()
        bar.set_description("judge")
        for unit in range(1, 7000):
            clock.s = 31.0 + 0.1 * unit
            bar.update()
            if unit == 350:
                bar.set_description("train")
    lines = capsys.readouterr().err.splitlines()
    left = {line.split()[1]: line.split("<")[1] for line in lines}
    assert left["0/7000"] == left["1/7000"] == "?]"
    assert left["351/7000"] == "11:04]", "6649 times 0.1 s"
    assert left["7000/7000"] == "00:00]"


def test_what_an_earlier_run_had_done_says_nothing_about_how_long_the_rest_takes(clock, capsys):
    """A thousand of 4000 had been done. Then a hundred take 20 s, so that 2900 take 580 s."""
    with progress_bar("train", 4000, "round") as bar:
        bar.update(1000)
        clock.s = 20.0
        bar.update(100)
        bar.set_description("judge")
    lines = capsys.readouterr().err.splitlines()
    assert [line.split("<")[1] for line in lines[:2]] == ["?]", "09:40]"]
