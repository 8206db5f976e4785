"""Interactive figures, drawn by Bokeh: hovering shows the values. Reports and the page of `aaml lab` show the same."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from bokeh.document import Document
from bokeh.embed import components
from bokeh.layouts import row
from bokeh.models import BasicTickFormatter, ColumnDataSource, HoverTool, Range1d, Span, Whisker
from bokeh.plotting import figure
from bokeh.resources import Resources

from aaml.evaluation.ranking import Line, Ranking
from aaml.evaluation.statistics import Interval

Drawn = Any
"""A figure of Bokeh, or several."""
Curve = tuple[Sequence[float], Sequence[float]]
"""Steps and the values there."""
RUN_COLOURS = ("#0b6e4f", "#c2571a", "#3b5b92", "#8a4f7d", "#b8860b", "#4d4d4d", "#2a9d8f", "#d1495b")
OTHER, LEARNED = "#6c757d", "#0b6e4f"
MOST_POINTS = 1_000  # of a line: more become means of blocks
_FAR = 6.0  # times the middle difference: what lies farther is not drawn to scale
_WIDE = 30.0  # values that span more than this get a logarithmic axis
_TICKS = 4  # on half a page, where a tiny number such as 2.500e-6 needs room
_TOOLS = "xbox_zoom,reset"
_BELOW_EACH_OTHER = """@media (max-width: 700px) {
  :host { flex-direction: column !important; height: auto !important; }
  .bk-Figure { flex: none !important; width: 100% !important; }
}"""  # on a phone
_NAMED, _BESIDE = "11px", "beside"
NAMES_BELOW_EACH_OTHER = f"""<script>(async () => {{
  while (!window.Bokeh || !Bokeh.documents.length) await new Promise((wake) => setTimeout(wake, 20));
  const narrow = window.matchMedia("(max-width: 700px)");
  const plots = Bokeh.documents.flatMap((each) => each.roots()).flatMap((root) => root.children ?? []);
  const show = () => plots.filter((plot) => plot.tags.includes("{_BESIDE}"))
    .forEach((plot) => plot.left[0].major_label_text_font_size = narrow.matches ? "{_NAMED}" : "0px");
  narrow.addEventListener("change", show);
  show();
}})();</script>"""
"""Names the lines of a figure that stands below the one whose names it shares, where it has them beside it else."""


def parts(figures: Sequence[Drawn]) -> tuple[str, str, Sequence[str]]:
    """Return what a page of its own holds: the library, the script, and what stands in the place of each figure."""
    document = Document()
    with document.models.freeze():  # else what it holds is collected anew with each figure
        for each in figures:
            document.add_root(each)
    script, places = components(figures)
    return Resources(mode="inline", components=["bokeh"]).render(), script + NAMES_BELOW_EACH_OTHER, places


def plain_figure(name: str = "", *, height: int = 260, title: str = "", **fields: Any) -> Drawn:
    """Return an empty figure in the style of all pages, as wide as its place."""
    plot = figure(
        height=height, title=title, tools=fields.pop("tools", ""), toolbar_location=None, name=name or None,
        sizing_mode="stretch_width", output_backend="canvas", **fields,
    )  # fmt: skip
    plot.outline_line_color = None
    plot.grid.grid_line_color = "#e9ecef"
    plot.title.text_font_size = "12px"
    plot.title.text_font_style = "normal"
    plot.title.text_color = "#495057"
    plot.axis.axis_label_text_font_style = "normal"
    plot.axis.axis_label_text_font_size = "11px"
    plot.axis.axis_line_color = "#adb5bd"
    plot.axis.minor_tick_line_color = None
    for axis in plot.axis:
        if isinstance(axis.formatter, BasicTickFormatter):
            axis.formatter.power_limit_low = -5
    return plot


def comparison_figure(ranking: Ranking) -> Drawn:
    """Return the interval of each policy's mean, and beside it that of its paired difference from the reference.

    Among good policies the means nearly coincide, for episodes differ far more than policies do: the differences tell
    them apart. Learned policies are in colour, the best is at the top.
    """
    lines = ranking.lines[::-1]
    positive = [line.value.mean for line in lines if line.value.ends[0] > 0]
    log = len(positive) == len(lines) and max(positive) > _WIDE * min(positive)
    means = _intervals(ranking, [line.value for line in lines], ranking.metric.name, log=log)
    means.title.text = f"mean [95% interval], {ranking.metric.better} is better"
    if not log and len(positive) == len(lines):
        means.x_range.start = 0
    against = f"difference from {ranking.reference}"
    differences = _intervals(ranking, [_difference(line) for line in lines], against)
    differences.title.text = f"difference, paired by {ranking.unit}"
    differences.tags, differences.yaxis.major_label_text_font_size = [_BESIDE], "0px"
    differences.yaxis.major_tick_line_color = None
    differences.add_layout(Span(location=0, dimension="height", line_color="#999999", line_dash="dashed"))
    _keep_near(differences, ranking)
    return row(means, differences, sizing_mode="stretch_width", stylesheets=[_BELOW_EACH_OTHER])


def _difference(line: Line) -> Interval:
    return Interval(0.0, 0.0, 0.0, line.value.count) if line.against is None else line.against.difference


def _intervals(ranking: Ranking, values: Sequence[Interval], axis: str, *, log: bool = False) -> Drawn:
    lines = ranking.lines[::-1]
    names = [line.policy for line in lines]
    kind = "log" if log else "linear"
    plot = plain_figure(y_range=names, height=70 + 26 * max(len(names), 1), x_axis_type=kind)
    source = ColumnDataSource({
        "policy": names, "mean": [each.mean for each in values], "low": [each.ends[0] for each in values],
        "high": [each.ends[1] for each in values], "seeds": [each.count for each in values],
        "verdict": ["reference" if line.against is None else line.against.verdict for line in lines],
        "colour": [LEARNED if name in ranking.learned else OTHER for name in names],
    })  # fmt: skip
    whisker = Whisker(
        base="policy", lower="low", upper="high", dimension="width", source=source, line_color="colour", line_width=2.5
    )
    for head in (whisker.upper_head, whisker.lower_head):
        if head is not None:
            head.size = 0
    plot.add_layout(whisker)
    plot.segment("low", "policy", "high", "policy", source=source, line_alpha=0)  # what the range has to hold
    dots = plot.scatter("mean", "policy", source=source, color="colour", size=9, hit_dilation=2.0)
    shown = [("policy", "@policy"), (axis, "@mean{%.5g}"), ("95%", "@low{%.5g} to @high{%.5g}")]
    plot.add_tools(
        HoverTool(
            tooltips=[*shown, (f"{ranking.unit}s", "@seeds"), ("verdict", "@verdict")], renderers=[dots],
            formatters={"@mean": "printf", "@low": "printf", "@high": "printf"},
        )
    )  # fmt: skip
    plot.xaxis.axis_label = axis
    plot.xaxis.ticker.desired_num_ticks = _TICKS
    plot.ygrid.visible = False
    return plot


def _keep_near(plot: Drawn, ranking: Ranking) -> None:
    """Keep out of the picture what is so far off that the others would be a dot, and write where it lies."""
    found = [(line.policy, line.against.difference) for line in ranking.lines if line.against]
    sizes = sorted(abs(difference.mean) for _, difference in found)
    near = [size for size in sizes if size <= _FAR * sizes[(len(sizes) - 1) // 2]]
    if not near or len(near) == len(sizes) or near[-1] == 0.0:
        return
    limit = 1.3 * max(max(map(abs, each.ends)) for _, each in found if abs(each.mean) <= near[-1])
    plot.x_range = Range1d(-limit, limit)
    for policy, difference in found:
        if abs(difference.mean) > limit:
            right = difference.mean > 0
            text = f"{difference.mean:+.3g} \u2192" if right else f"\u2190 {difference.mean:+.3g}"
            plot.text(
                [limit if right else -limit], [policy], [text], text_font_size="11px", text_color=OTHER,
                text_align="right" if right else "left", text_baseline="middle",
            )  # fmt: skip


def curve_chart(
    title: str, curves: Mapping[str, Curve], axis: str = "decisions",
    *, levels: Mapping[str, float] | None = None, log: bool = False,
) -> Drawn:  # fmt: skip
    """Return curves (name -> steps, values) in one figure, over dashed lines at `levels`; zoom by drawing a box.

    With `log` the axis is logarithmic where the values are positive and span much.
    """
    values = [value for _, each in curves.values() for value in each if value == value]  # noqa: PLR0124  (NaN is not)
    log = log and bool(values) and min(values) > 0 and max(values) > _WIDE * min(values)
    plot = plain_figure(title=title, height=240, y_axis_type="log" if log else "linear", tools=_TOOLS)
    plot.xaxis.axis_label = axis
    plot.xaxis.formatter.use_scientific = False
    drawn = []
    for number, (name, (steps, points)) in enumerate(curves.items()):
        xs, ys = thinned(steps, points)
        source = ColumnDataSource({"step": xs, "value": ys, "name": [name] * len(xs)})
        colour = RUN_COLOURS[number % len(RUN_COLOURS)]
        label = {"legend_label": name} if len(curves) > 1 else {}
        drawn.append(plot.line("step", "value", source=source, line_color=colour, line_width=1.8, **label))
        if len(xs) <= MOST_POINTS // 20:
            plot.scatter("step", "value", source=source, color=colour, size=5)
    at_left = len(curves) > 1  # the legend is at the right
    for name, level in (levels or {}).items():
        plot.add_layout(Span(location=level, dimension="width", line_color=OTHER, line_dash="dashed"))
        ends = [(steps[0], steps[-1]) for steps, _ in curves.values() if len(steps)] or [(0.0, 0.0)]
        end = min(ends)[0] if at_left else max(last for _, last in ends)
        on_top = all(level >= value for _, values in curves.values() for value in values)  # no room above it
        where: Any = {"text_baseline": "top", "y_offset": 3} if on_top else {"y_offset": -2}
        where["text_align"] = "left" if at_left else "right"
        plot.text([end], [level], [name], text_font_size="11px", text_color=OTHER, **where)
    tips = [(axis, "@step{0,0}"), *([("", "@name")] if len(curves) > 1 else []), (title, "@value{%.5g}")]
    form = {"@value": "printf"}
    hover = HoverTool(tooltips=tips, renderers=drawn, mode="vline", line_policy="nearest", formatters=form)
    plot.add_tools(hover)
    if len(curves) > 1:
        plot.legend.label_text_font_size = "11px"
        plot.legend.border_line_color = None
        plot.legend.background_fill_alpha = 0.6
        plot.legend.click_policy = "hide"
        plot.legend.padding = 2
    return plot


def band_chart(title: str, mean: Curve, low: Curve, high: Curve, axis: str = "decisions") -> Drawn:
    """Return a curve of differences in its interval, over a dashed line at none."""
    plot = plain_figure(title=title, height=240, tools=_TOOLS)
    plot.xaxis.axis_label = axis
    plot.xaxis.formatter.use_scientific = False
    source = ColumnDataSource({"step": mean[0], "mean": mean[1], "low": low[1], "high": high[1]})
    plot.varea("step", "low", "high", source=source, fill_color=LEARNED, fill_alpha=0.18)
    line = plot.line("step", "mean", source=source, line_color=LEARNED, line_width=1.8)
    plot.scatter("step", "mean", source=source, color=LEARNED, size=5)
    plot.add_layout(Span(location=0, dimension="width", line_color=OTHER, line_dash="dashed"))
    tips = [(axis, "@step{0,0}"), ("difference", "@mean{%+.4g}"), ("95%", "@low{%+.4g} to @high{%+.4g}")]
    form = {"@mean": "printf", "@low": "printf", "@high": "printf"}
    plot.add_tools(HoverTool(tooltips=tips, renderers=[line], mode="vline", formatters=form))
    return plot


def family_chart(title: str, curves: Mapping[str, Curve], chosen: str, axis: str, *, log: bool = False) -> Drawn:
    """Return many curves of one kind (name -> steps, values), thin, with the chosen one in colour; hover for a name."""
    plot = plain_figure(title=title, height=240, y_axis_type="log" if log else "linear", tools=_TOOLS)
    plot.xaxis.axis_label = axis
    plot.xaxis.formatter.use_scientific = False
    drawn = []
    for name, (steps, values) in sorted(curves.items(), key=lambda each: each[0] == chosen):
        source = ColumnDataSource({"step": steps, "value": values, "name": [name] * len(steps)})
        colour, width = (LEARNED, 2.4) if name == chosen else (OTHER, 1.0)
        alpha = 1.0 if name == chosen else 0.55
        plot.line("step", "value", source=source, line_color=colour, line_width=width, line_alpha=alpha)
        drawn.append(plot.scatter("step", "value", source=source, color=colour, size=6, alpha=alpha))
    tips = [("", "@name"), (axis, "@step{0,0}"), (title, "@value{%.5g}")]
    plot.add_tools(HoverTool(tooltips=tips, renderers=drawn, formatters={"@value": "printf"}))
    return plot


def history_chart(
    title: str, scores: Sequence[float], whole: Sequence[bool], facts: Mapping[str, Sequence[object]], *, log: bool
) -> Drawn:
    """Draw the scores of trials in their order, and the best so far; lower is better.

    Those that are not `whole` are hollow and count for nothing. `facts` are what is shown of each.
    """
    plot = plain_figure(title=title, y_axis_type="log" if log else "linear", tools=_TOOLS)
    numbers, best = list(range(len(scores))), np.where(whole, scores, np.inf)
    best = np.minimum.accumulate(best)
    steps = np.where(np.isinf(best), np.nan, best)
    plot.step(numbers, steps, mode="after", line_color=LEARNED, line_width=1.8, legend_label="best so far")
    source = ColumnDataSource({
        "number": numbers, "score": scores, "fill": [OTHER if each else "#ffffff" for each in whole],
        **{f"fact {name}": list(values) for name, values in facts.items()},
    })  # fmt: skip
    dots = plot.scatter("number", "score", source=source, size=8, line_color=OTHER, fill_color="fill")
    form = {"decisions": "{0,0}"}
    tips = [(name, f"@{{fact {name}}}{form.get(name, '')}") for name in facts]
    plot.add_tools(HoverTool(tooltips=[("trial", "@number"), ("score", "@score"), *tips], renderers=[dots]))
    plot.xaxis.axis_label = "trial"
    plot.legend.border_line_color = None
    plot.legend.label_text_font_size = "11px"
    return plot


def front_chart(
    points: Sequence[tuple[float, float]], front: Sequence[tuple[float, float]], axes: Sequence[str]
) -> Drawn:
    """Draw two objectives of trials, lower is better, and the front that no other dominates."""
    plot = plain_figure(title="Front", x_axis_label=axes[0], y_axis_label=axes[1], tools=_TOOLS)
    plot.scatter([each[0] for each in points], [each[1] for each in points], color=OTHER, alpha=0.4)
    steps = sorted(front)
    plot.step([each[0] for each in steps], [each[1] for each in steps], mode="after", line_color=LEARNED)
    plot.scatter([each[0] for each in steps], [each[1] for each in steps], color=LEARNED, size=9)
    return plot


def bar_chart(title: str, bars: Mapping[str, float], axis: str, *, form: str = "0,0.[00]") -> Drawn:
    """Return a horizontal bar a name, the first at the top; `form` is how the value is written."""
    names = list(bars)[::-1]
    plot = plain_figure(title=title, y_range=names, height=60 + 22 * len(names))
    source = ColumnDataSource({"name": names, "value": [float(bars[name]) for name in names]})
    plot.hbar("name", right="value", height=0.65, source=source, color=LEARNED)
    plot.add_tools(HoverTool(tooltips=[("", "@name"), (axis, f"@value{{{form}}}")]))
    plot.x_range.start = 0
    plot.xaxis.axis_label = axis
    plot.ygrid.visible = False
    return plot


def thinned(steps: Sequence[float], values: Sequence[float]) -> tuple[list[float], list[float]]:
    """Return a curve as at most `MOST_POINTS` points: means of blocks of points that follow one another."""
    if len(steps) <= MOST_POINTS:
        return list(steps), list(values)
    parts = np.linspace(0, len(steps), MOST_POINTS + 1).astype(int)[:-1]
    counts = np.diff(np.append(parts, len(steps)))
    xs, ys = (np.add.reduceat(np.asarray(each, dtype=float), parts) / counts for each in (steps, values))
    return xs.tolist(), ys.tolist()


def curve_frame(curves: Mapping[str, Curve]) -> pd.DataFrame:
    """Return curves as a table: name, step, value."""
    rows = [(name, step, value) for name, curve in curves.items() for step, value in zip(*curve, strict=True)]
    return pd.DataFrame(rows, columns=["name", "step", "value"])
