"""The figures of the page: they are drawn here once, with sources that the page's script fills."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from bokeh.models import (
    BasicTicker,
    ColorBar,
    ColumnDataSource,
    DataRange1d,
    DatetimeTicker,
    DatetimeTickFormatter,
    FixedTicker,
    HoverTool,
    LinearColorMapper,
    NumeralTickFormatter,
    Range1d,
    Span,
)  # fmt: skip
from bokeh.palettes import interp_palette

from aaml.evaluation.charts import OTHER, RUN_COLOURS, Drawn, plain_figure
from aaml.insight.replay import RESOURCES
from aaml.scheduling.curves import VALIDATION_DIFFERENCE

SIDES = ("a", "b")
_CLOCK = "%H:%M:%S"
COLOURS = {"a": "#0b6e4f", "b": "#c2571a"}
_PALETTE = interp_palette(["#f3f6fa", "#a9cbe3", "#3f83bd", "#0b3c6f"], 256)


def cluster_figures(*, live: bool = False) -> dict[str, Drawn]:
    """Return the heat maps of both sides, now and over time, and the charts below them, by their place on the page.

    Times are seconds of a run, or of a `live` cluster the milliseconds of a date.
    """
    clock = Range1d(0, 1, name="clock")
    drawn: dict[str, Drawn] = {}
    for side in SIDES:
        drawn[f"now_{side}"] = _now(side)
        drawn[f"past_{side}"] = _past(side, clock)
    drawn["queue"] = _series("queue", "pods that wait", clock, 4.0)
    drawn["spread"] = _series("spread", "variance of CPU use", clock, 1e-6)
    for plot in drawn.values() if live else ():
        if plot.x_range is clock:
            plot.xaxis.formatter = DatetimeTickFormatter(
                seconds=_CLOCK, minsec=_CLOCK, minutes=_CLOCK, hourmin=_CLOCK, hours=_CLOCK, milliseconds=_CLOCK
            )
            plot.xaxis.ticker = DatetimeTicker()
            plot.xaxis.axis_label = "time"
            for hover in plot.select(HoverTool):
                hover.tooltips = [("time", f"@time{{{_CLOCK}}}"), *hover.tooltips[1:]]
                hover.formatters = {"@time": "datetime"}
    return drawn


def _map() -> dict[str, Any]:
    """Return what lets the rows of two maps lie side by side."""
    return {"y_range": Range1d(0, 1), "min_border_bottom": 50, "min_border_top": 25}


def _now(side: str) -> Drawn:
    plot = plain_figure(f"now_{side}", title="now", x_range=Range1d(0, len(RESOURCES)), **_map())
    plot.xaxis.ticker = FixedTicker(ticks=[place + 0.5 for place in range(len(RESOURCES))])
    plot.xaxis.major_label_overrides = {place + 0.5: name for place, name in enumerate(RESOURCES)}
    plot.xaxis.major_tick_line_color = None
    plot.xaxis.axis_label = " "
    _heat(plot, f"now_{side}_data", len(RESOURCES))
    return plot


def _past(side: str, clock: Range1d) -> Drawn:
    plot = plain_figure(f"past_{side}", title="over time", x_range=clock, min_border_left=6, **_map())
    mapper = _heat(plot, f"past_{side}_data", 1)
    plot.yaxis.visible = False
    plot.xaxis.axis_label = "time, s"
    bar = ColorBar(
        color_mapper=mapper, ticker=BasicTicker(desired_num_ticks=4), formatter=NumeralTickFormatter(format="0%"),
        width=8, padding=2, label_standoff=4,
    )  # fmt: skip
    plot.add_layout(bar, "right")
    _cursor(plot, f"past_cursor_{side}")
    return plot


def _heat(plot: Any, name: str, width: int) -> LinearColorMapper:
    mapper = LinearColorMapper(
        _PALETTE, low=0.0, high=1.0, nan_color="#e6e6e6", high_color="#b3001b", name=name.replace("data", "colours")
    )
    data = {"image": [np.zeros((1, width), dtype=np.float32)], "x": [0.0], "y": [0.0], "dw": [width], "dh": [1.0]}
    source = ColumnDataSource(data, name=name)
    plot.image("image", "x", "y", "dw", "dh", source=source, color_mapper=mapper)
    plot.yaxis.ticker = FixedTicker(ticks=[])
    plot.yaxis.minor_tick_line_color = None
    return mapper


def _series(name: str, title: str, clock: Range1d, least: float) -> Drawn:
    plot = plain_figure(name, x_range=clock, title=title, height=170)
    plot.toolbar_location = None
    plot.xaxis.axis_label = "time, s"
    plot.y_range = DataRange1d(start=0, min_interval=least)
    plot.yaxis.ticker = BasicTicker(min_interval=1.0 if least >= 1.0 else 0.0)  # pods are whole
    for side in SIDES:
        source = ColumnDataSource({"time": [], "value": []}, name=f"{name}_{side}_data")
        plot.line("time", "value", source=source, color=COLOURS[side], width=1.8, name=f"{name}_{side}")
    hover = HoverTool(tooltips=[("time", "@time{0,0.0} s"), (title, "@value")], mode="vline")
    plot.add_tools(hover)
    _cursor(plot, f"{name}_cursor")
    return plot


def _cursor(plot: Any, name: str) -> None:
    plot.add_layout(Span(location=0, dimension="height", line_color="#d1495b", line_width=1.2, name=name))


def curve_figures(names: Sequence[str]) -> list[Drawn | None]:
    """Return a figure a curve, with a line a run, None for the bounds of an interval, which stand in its mean's."""
    mean, *bounds = VALIDATION_DIFFERENCE
    return [None if name in bounds else _curve(number, name, band=name == mean) for number, name in enumerate(names)]


def _curve(number: int, name: str, *, band: bool) -> Drawn:
    title = "difference from the reference, paired, with its 95% interval" if band else name
    plot = plain_figure(f"curve_{number}", title=title, height=240)
    plot.xaxis.axis_label = "decisions learned from"
    plot.xaxis.formatter.use_scientific = False
    source = ColumnDataSource({"xs": [], "ys": [], "run": [], "colour": []}, name=f"curve_{number}_data")
    points = ColumnDataSource({"x": [], "y": [], "run": [], "colour": []}, name=f"curve_{number}_points")
    if band:
        around = ColumnDataSource({"xs": [], "ys": [], "colour": []}, name=f"curve_{number}_band")
        plot.patches("xs", "ys", source=around, fill_color="colour", fill_alpha=0.15, line_alpha=0.0)
        plot.add_layout(Span(location=0, dimension="width", line_color=OTHER, line_dash="dashed"))
    lines = plot.multi_line("xs", "ys", source=source, line_color="colour", line_width=1.6)
    dots = plot.scatter("x", "y", source=points, color="colour", size=5)
    tips = [("run", "@run"), ("decisions", "$x{0,0}"), (name, "$y")]
    plot.add_tools(HoverTool(tooltips=tips, renderers=[lines, dots]))
    return plot


def run_colours(runs: Iterable[str]) -> dict[str, str]:
    """Return a colour for each run, the same in all figures."""
    return {run: RUN_COLOURS[number % len(RUN_COLOURS)] for number, run in enumerate(runs)}


def agreement_figure(number: int, pods: Sequence[int], agreement: Sequence[float]) -> Drawn:
    """Return the share of pods on which a shadowed scheduler and the policy agreed, along the log."""
    plot = plain_figure(f"shadow_{number}", title="agreement, over blocks of pods", height=200)
    plot.y_range = Range1d(0, 1.02)
    source = ColumnDataSource({"pods": list(pods), "agreement": list(agreement)})
    plot.line("pods", "agreement", source=source, color=COLOURS["a"], width=1.8)
    plot.scatter("pods", "agreement", source=source, color=COLOURS["a"], size=4)
    plot.add_tools(HoverTool(tooltips=[("pods", "@pods"), ("agreement", "@agreement{0%}")]))
    plot.xaxis.axis_label = "pods"
    plot.yaxis.formatter = NumeralTickFormatter(format="0%")
    return plot
