"""The figures of the page: they are drawn here once, with sources that the page's script fills."""

from collections.abc import Iterable, Sequence
from typing import Any

from bokeh.models import (
    BasicTicker,
    ColorBar,
    ColumnDataSource,
    DataRange1d,
    FixedTicker,
    HoverTool,
    LinearColorMapper,
    NumeralTickFormatter,
    Range1d,
    Span,
)  # fmt: skip
from bokeh.palettes import interp_palette

from aaml.evaluation.charts import RUN_COLOURS, Drawn, plain_figure
from aaml.insight.film import RESOURCES

SIDES = ("a", "b")
COLOURS = {"a": "#0b6e4f", "b": "#c2571a"}
_PALETTE = interp_palette(["#f3f6fa", "#a9cbe3", "#3f83bd", "#0b3c6f"], 256)


def cluster_figures() -> dict[str, Drawn]:
    """Return the heat maps of both sides, now and over time, and the charts below them, by their place on the page."""
    clock = Range1d(0, 1, name="clock")
    drawn: dict[str, Drawn] = {}
    for side in SIDES:
        drawn[f"now_{side}"] = _now(side)
        drawn[f"past_{side}"] = _past(side, clock)
    drawn["queue"] = _series("queue", "pods that wait", clock, 4.0)
    drawn["spread"] = _series("spread", "variance of CPU use", clock, 1e-6)
    return drawn


def _now(side: str) -> Drawn:
    plot = plain_figure(f"now_{side}", x_range=Range1d(0, len(RESOURCES)), y_range=Range1d(0, 1), title="now")
    plot.xaxis.ticker = FixedTicker(ticks=[place + 0.5 for place in range(len(RESOURCES))])
    plot.xaxis.major_label_overrides = {place + 0.5: name for place, name in enumerate(RESOURCES)}
    plot.xaxis.major_tick_line_color = None
    plot.xaxis.axis_label = " "  # as high as that of the map beside it, so that the rows lie side by side
    _heat(plot, f"now_{side}_data", len(RESOURCES))
    return plot


def _past(side: str, clock: Range1d) -> Drawn:
    plot = plain_figure(f"past_{side}", x_range=clock, y_range=Range1d(0, 1), title="over time")
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
    import numpy as np

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
    for side in SIDES:
        source = ColumnDataSource({"time": [], "value": []}, name=f"{name}_{side}_data")
        plot.line("time", "value", source=source, color=COLOURS[side], width=1.8, name=f"{name}_{side}")
    hover = HoverTool(tooltips=[("time", "@time{0,0.0} s"), (title, "@value")], mode="vline")
    plot.add_tools(hover)
    _cursor(plot, f"{name}_cursor")
    return plot


def _cursor(plot: Any, name: str) -> None:
    plot.add_layout(Span(location=0, dimension="height", line_color="#d1495b", line_width=1.2, name=name))


def curve_figures(names: Sequence[str]) -> list[Drawn]:
    """Return a figure a curve, with a line a run."""
    drawn: list[Drawn] = []
    for number, name in enumerate(names):
        plot = plain_figure(f"curve_{number}", title=name, height=220, width=420)
        plot.xaxis.axis_label = "decisions learned from"
        empty: dict[str, Any] = {"xs": [], "ys": [], "run": [], "colour": []}
        source = ColumnDataSource(empty, name=f"curve_{number}_data")
        plot.multi_line("xs", "ys", source=source, line_color="colour", line_width=1.6)
        plot.add_tools(HoverTool(tooltips=[("run", "@run"), ("decisions", "$x{0,0}"), (name, "$y")]))
        plot.sizing_mode = "fixed"
        drawn.append(plot)
    return drawn


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
