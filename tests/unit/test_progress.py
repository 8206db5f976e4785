"""Where there is no terminal, progress is a few lines, whatever happens behind the bar."""

from aaml.progress import progress_bar


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
