"""Tables as text: aligned, whole however wide, and the same in a pipe as in a file."""

from aaml.telemetry.tables import plain, show, table

ROWS = [("fgd", 2), ("best-fit [fast]", 100)]


def test_columns_are_aligned_under_a_rule_and_brackets_stay():
    assert plain(table(["policy", "runs"], ROWS, right={"runs"})).splitlines() == [
        "policy           runs",
        "---------------- ----",
        "fgd                 2",
        "best-fit [fast]   100",
    ]


def test_a_pipe_gets_all_of_a_table_without_colours(capsys):
    wide = table(["x" * 300], [["y" * 300]])
    show("title", wide)
    assert capsys.readouterr().out == f"title\n{plain(wide)}\n"
    assert plain(wide).splitlines() == ["x" * 300, "-" * 300, "y" * 300]


def test_a_notebook_gets_the_text_alone(monkeypatch, capsys):
    """In Jupyter rich would show what it prints as HTML, wherever it was to go, and the text would be empty."""
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    drawn = table(("what", "count"), [("pods", 3)])
    assert plain(drawn).splitlines()[-1].split() == ["pods", "3"]
    show(drawn)
    assert capsys.readouterr().out == f"{plain(drawn)}\n"
