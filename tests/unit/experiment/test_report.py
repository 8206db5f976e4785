"""Tables and pages: what a reader of a result sees."""

from pathlib import Path

import pandas as pd
import pytest

from aaml.experiment.report import Page, Panel, curve_figure, interval_figure, lines, markdown_table, table, text_table


def results() -> pd.DataFrame:
    values = {"ours": [1.0, 2.0, 3.0], "theirs": [2.0, 3.0, 4.5], "bad": [9.0, 9.0, 9.0]}
    return pd.DataFrame(
        [{"policy": name, "seed": 10 + i, "variance": v} for name, row in values.items() for i, v in enumerate(row)]
    )


def test_best_comes_first_and_is_compared_on_the_same_seeds() -> None:
    rows = lines(results().sample(frac=1.0, random_state=0), "variance", "lower", "theirs")
    assert [row.policy for row in rows] == ["ours", "theirs", "bad"]
    first = rows[0].against
    assert first is not None
    assert first.difference.mean == pytest.approx(-3.5 / 3)
    assert (first.verdict, first.improvement) == ("better", 1.0)
    shown = text_table(table(rows, "theirs"))
    assert shown.splitlines()[2].startswith("ours")
    assert "reference" in shown.splitlines()[3]
    assert markdown_table(table(rows, "theirs")).splitlines()[4].startswith("| bad |")


def test_unpaired_seeds_and_a_missing_reference_are_refused() -> None:
    frame = results()
    with pytest.raises(ValueError, match="'nobody' is not among bad, ours, theirs"):
        lines(frame, "variance", "lower", "nobody")
    with pytest.raises(ValueError, match="other seeds"):
        lines(frame.drop(index=0), "variance", "lower", "theirs")


def test_the_page_stands_alone_and_escapes_what_it_is_told(tmp_path: Path) -> None:
    rows = lines(results(), "variance", "lower", "theirs")
    curves = Panel({"ours": [([0, 1], [3.0, 1.0]), ([2], [1.5])]}, "t", "x", {"theirs": 2.0})
    page = Page("A <b> title")
    page.heading("Balance")
    page.table(table(rows, "theirs"))
    page.figure(interval_figure(rows, "t", "x", ["ours"]), "intervals", tmp_path / "i.png")
    page.figure(curve_figure(curves), "curves")
    text = page.write(tmp_path / "out" / "report.html").read_text()
    assert "A &lt;b&gt; title" in text
    assert text.count("data:image/png;base64,") == 2
    assert "http" not in text.replace("http-equiv", "")
    assert (tmp_path / "i.png").read_bytes().startswith(b"\x89PNG")
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["report.html"]


def test_panels_stand_side_by_side_and_a_name_has_one_colour_in_all_of_them() -> None:
    flat, steep = ([0, 1], [3.0, 1.0]), ([0, 1], [100.0, 1.0])
    left = Panel({"ours": [flat, flat]}, "left", "x", {"theirs": 2.0})
    right = Panel({"other": [flat], "ours": [steep]}, "right", "y")
    one, two = curve_figure(left, right).axes
    assert [axes.get_title("left") for axes in (one, two)] == ["left", "right"]
    assert [axes.get_yscale() for axes in (one, two)] == ["linear", "log"]
    colours = [{line.get_color() for line in axes.lines} for axes in (one, two)]
    assert colours == [{"C0", "#6c757d"}, {"C1", "C0"}]
    shown = [[text.get_text() for text in axes.get_legend().get_texts()] for axes in (one, two)]
    assert shown == [["ours"], ["other", "ours"]]
    assert [text.get_text() for text in one.texts] == ["theirs"]
    assert len(curve_figure(left).axes) == 1
