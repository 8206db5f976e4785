"""Tables and pages: what a reader of a result sees."""

import hashlib
from pathlib import Path

import pandas as pd
import pytest

from aaml.errors import UserError
from aaml.evaluation.charts import comparison_figure, curve_chart, thinned
from aaml.evaluation.figures import Panel, curve_figure, gain_figure, interval_figure
from aaml.evaluation.page import Page
from aaml.evaluation.ranking import rank
from aaml.evaluation.report import spans
from aaml.evaluation.tables import markdown_table, ranking_table, text_table
from aaml.sim.metrics import find_metric


def results() -> pd.DataFrame:
    values = {"ours": [1.0, 2.0, 3.0] * 2, "theirs": [2.0, 3.0, 4.5] * 2, "bad": [9.0, 9.0, 9.0] * 2}
    return pd.DataFrame(
        [
            {"task": "balance", "nodes": 3, "policy": name, "seed": 10 + i, "mean_variance": value}
            for name, row in values.items()
            for i, value in enumerate(row)
        ]
    )


def ranked(frame: pd.DataFrame, reference: str = "theirs"):
    return rank(frame, find_metric("mean_variance"), reference, frozenset({"ours"}))


def test_best_comes_first_and_is_compared_on_the_same_seeds() -> None:
    ranking = ranked(results().sample(frac=1.0, random_state=0))
    assert [line.policy for line in ranking.lines] == ["ours", "theirs", "bad"]
    first = ranking.lines[0].against
    assert first is not None
    assert first.difference.mean == pytest.approx(-3.5 / 3)
    assert (first.verdict, first.improvement) == ("better", 1.0)
    shown = text_table(ranking_table(ranking))
    assert shown.splitlines()[2].startswith("ours")
    assert "reference" in shown.splitlines()[3]
    assert markdown_table(ranking_table(ranking)).splitlines()[4].startswith("| bad |")


def test_another_unit_changes_the_numbers_and_not_the_verdicts() -> None:
    plain, thousands = ranked(results()), ranked(results()).scaled(1000.0)
    assert [line.value.mean for line in thousands.lines] == [1000.0 * line.value.mean for line in plain.lines]
    assert thousands.lines[0].against.difference.low == 1000.0 * plain.lines[0].against.difference.low
    assert [line.against and line.against.verdict for line in thousands.lines] == ["better", None, "worse"]


def test_unpaired_seeds_and_a_missing_reference_are_refused() -> None:
    frame = results()
    with pytest.raises(UserError, match="'nobody' is not among bad, ours, theirs"):
        ranked(frame, "nobody")
    with pytest.raises(UserError, match="other seeds"):
        ranked(frame.drop(index=0))


def test_the_page_stands_alone_and_has_what_is_needed_to_make_it_again(tmp_path: Path) -> None:
    ranking, curves = ranked(results()), {"ours": ([0.0, 1.0], [3.0, 1.0])}
    model = tmp_path / "model.pth"
    model.write_bytes(b"weights")
    page = Page("A <b> title", tmp_path / "out", made_by="aaml evaluate --out 'a b'")
    page.heading("Balance & co")
    page.figure(comparison_figure(ranking), "i", lambda: interval_figure(ranking), pd.DataFrame({"x": [1]}))
    page.figure(curve_chart("reward", curves))
    page.settings({"seed": 7, "nodes": (3, 5)}, {"seed": 0, "nodes": (3, 5)})
    page.hashed([model, tmp_path / "not there"])
    text = page.write().read_text()
    for words in (
        "A &lt;b&gt; title", "Balance &amp; co", "aaml evaluate --out &#x27;a b&#x27;", "git revision", "numpy",
        "<tr class=changed><td>seed</td><td>7</td></tr>", "<tr><td>nodes</td><td>3, 5</td></tr>",
        hashlib.sha256(b"weights").hexdigest(),
    ):  # fmt: skip
        assert words in text
    assert "not there" not in text
    assert text.count("Bokeh Contributors") == 1  # the library, once
    assert len(text) < 1_500_000
    assert (tmp_path / "out" / "i.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "out" / "i.svg").read_bytes().startswith(b"<?xml")
    assert (tmp_path / "out" / "i.csv").read_text() == "x\n1\n"
    assert {p.name for p in (tmp_path / "out").iterdir()} == {"report.html", "i.png", "i.svg", "i.csv"}


def test_a_long_curve_becomes_means_of_blocks_and_a_short_one_stays() -> None:
    assert thinned([1, 2], [5.0, 7.0]) == ([1, 2], [5.0, 7.0])
    steps, values = thinned(range(4000), [float(step % 4) for step in range(4000)])
    assert len(steps) == 1000
    assert (steps[:2], set(values)) == ([1.5, 5.5], {1.5})


def test_seeds_are_told_as_ranges() -> None:
    assert spans([1001, 1000, 7, 1002, 9]) == "7, 9, 1000..1002"


def test_differences_from_the_reference_stand_beside_the_means() -> None:
    means, differences = interval_figure(ranked(results())).axes
    dots = lambda axes: [(line.get_ydata()[0], line.get_xdata()[0]) for line in axes.lines if line.get_marker() == "o"]  # noqa: E731
    assert [label.get_text() for label in means.get_yticklabels()] == ["bad", "theirs", "ours"]
    assert dots(means) == [(0, 9.0), (1, pytest.approx(9.5 / 3)), (2, 2.0)]
    assert dots(differences) == [(0, pytest.approx(9.0 - 9.5 / 3)), (2, pytest.approx(2.0 - 9.5 / 3))]
    assert differences.get_xlabel() == "difference from theirs"


def test_a_policy_far_off_is_named_with_its_difference_and_does_not_flatten_the_others() -> None:
    near = {f"near{number}": [2.0 + 0.1 * number, 3.0, 4.5] for number in range(1, 4)}
    rows = [
        {"task": "balance", "nodes": 3, "policy": name, "seed": seed, "mean_variance": value}
        for name, values in {"theirs": [2.0, 3.0, 4.5], "far": [92.0, 93.0, 94.5], **near}.items()
        for seed, value in enumerate(values * 3)
    ]
    _, differences = interval_figure(ranked(pd.DataFrame(rows))).axes
    assert differences.get_xlim()[1] < 1.0
    assert [text.get_text() for text in differences.texts] == ["+90"]


def test_gains_are_percent_of_the_reference_and_a_lower_value_is_a_gain() -> None:
    (axes,) = gain_figure(ranked(results())).axes
    shown = {label.get_text(): y for y, label in enumerate(axes.get_yticklabels())}
    dots = {line.get_ydata()[0]: line.get_xdata()[0] for line in axes.lines if line.get_marker() == "o"}
    assert set(shown) == {"ours", "bad"}
    assert dots[shown["ours"]] == pytest.approx(100.0 * (9.5 - 6.0) / 9.5)  # sums over three seeds, each twice
    assert dots[shown["bad"]] == pytest.approx(100.0 * (9.5 - 27.0) / 9.5)


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


@pytest.mark.parametrize(("last", "scale"), [(1_000, "linear"), (12_000, "symlog")])
def test_a_short_run_beside_one_of_over_ten_times_its_length_is_not_squeezed_to_the_edge(last: int, scale: str) -> None:
    runs = {"short": [([0, 100, 1_000], [3.0, 2.0, 1.0])], "long": [([0, last], [3.0, 1.0])]}
    (axes,) = curve_figure(Panel(runs, "both", "x")).axes
    assert axes.get_xscale() == scale
    assert axes.get_xlim()[0] <= 0.0  # where they began is shown too
