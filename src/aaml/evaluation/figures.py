"""Figures: intervals of policies, and learning curves over the levels of policies that do not learn."""

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from aaml.evaluation.ranking import Ranking
from aaml.evaluation.statistics import Interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Curve = tuple[Sequence[float], Sequence[float]]
"""Steps and the values there."""
_MAGNITUDE = 10.0
_FAR = 6.0  # times the middle difference: what lies farther is not drawn to scale
_LEARNED, _OTHER = "#0b6e4f", "#6c757d"


class Picture(Figure):
    """A figure that a notebook shows, whatever backend it has."""

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png", dpi=110)
        return buffer.getvalue()


@dataclass(frozen=True, slots=True)
class Panel:
    """Learning curves, name -> runs, and the `levels` of policies without learning, name -> value."""

    curves: Mapping[str, Sequence[Curve]]
    title: str
    axis: str
    levels: Mapping[str, float] = field(default_factory=dict)


def interval_figure(
    *rankings: Ranking, title: str = "", axis: str = "", labels: Mapping[str, str] | None = None
) -> Figure:
    """Draw the policies' means and, beside them, their paired differences from the reference, each with its interval.

    Among good policies the means nearly coincide, for episodes differ far more than policies do: the differences tell
    them apart. Learned policies are in colour, the best is at the top; a row of panels a ranking. `title` and `axis`
    take the place of the rankings' own, `labels` that of policies' names.
    """
    heights = [0.8 + 0.36 * len(ranking.lines) for ranking in rankings]
    longest = max(len((labels or {}).get(line.policy, line.policy)) for ranking in rankings for line in ranking.lines)
    figure = Picture(figsize=(7.7 + 0.08 * longest, sum(heights)), layout="constrained")
    panels = figure.subplots(len(rankings), 2, squeeze=False, height_ratios=heights)
    for (means, differences), ranking in zip(panels, rankings, strict=True):
        lines = ranking.lines[::-1]
        _draw_intervals(means, ranking, [line.value for line in lines], labels or {})
        means.set_xlabel(axis or ranking.metric.name)
        means.set_title(title or ranking.title, loc="left", fontsize=11)
        positive = [line.value.mean for line in lines if line.value.mean > 0]
        if positive and len(positive) == len(lines) and max(positive) / min(positive) > 30:
            _decades(means)
        else:
            _few_ticks(means)
            if all(line.value.ends[0] > 0 for line in lines):
                means.set_xlim(left=0)
        against = [None if line.against is None else line.against.difference for line in lines]
        _draw_intervals(differences, ranking, against, None)
        differences.axvline(0.0, color=_OTHER, lw=1.0)
        _keep_near(differences, ranking)
        _few_ticks(differences)
        differences.set_xlabel(f"difference from {(labels or {}).get(ranking.reference, ranking.reference)}")
    return figure


def gain_figure(*rankings: Ranking, axis: str = "", labels: Mapping[str, str] | None = None) -> Figure:
    """Draw by how many percent of the reference's mean each policy is better, with the interval; a panel a ranking.

    The policies stand in the order of the last ranking, the best at the top.
    """
    order = [line.policy for line in rankings[-1].lines if line.against][::-1]
    figure = Picture(figsize=(3.4 + 2.4 * len(rankings), 0.9 + 0.36 * len(order)), layout="constrained")
    panels = figure.subplots(1, len(rankings), squeeze=False, sharey=True, sharex=True).ravel()
    for axes, ranking in zip(panels, rankings, strict=True):
        lines = {line.policy: line for line in ranking.lines}
        scale = (-100.0 if ranking.metric.better == "lower" else 100.0) / lines[ranking.reference].value.mean
        for y, policy in enumerate(order):
            against = lines[policy].against
            if against is not None:
                _draw_interval(axes, y, against.difference, policy in ranking.learned, scale)
        axes.set_yticks(range(len(order)), [(labels or {}).get(policy, policy) for policy in order])
        axes.tick_params(axis="y", length=0)
        axes.axvline(0.0, color=_OTHER, lw=1.0)
        axes.set_title(f"{ranking.nodes} nodes", loc="left", fontsize=10)
        axes.grid(axis="x", alpha=0.25)
        axes.spines[["top", "right", "left"]].set_visible(False)
    figure.supxlabel(axis or f"% better than {rankings[0].reference}, {rankings[0].metric.name}", fontsize=10)
    return figure


def _decades(axes: "Axes") -> None:
    """Count in powers of ten, and write few values below a panel: those of minor ticks would lie on one another."""
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 3.0), numticks=7))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _position: f"{value:.7g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())


def _few_ticks(axes: "Axes") -> None:
    """Write at most five whole values below a panel: an offset or a factor in its corner would lie on the label."""
    axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _position: f"{value:.7g}"))


def _draw_intervals(
    axes: "Axes", ranking: Ranking, intervals: Sequence[Interval | None], labels: Mapping[str, str] | None
) -> None:
    rows = ranking.lines[::-1]
    for y, (line, interval) in enumerate(zip(rows, intervals, strict=True)):
        if interval is not None:
            _draw_interval(axes, y, interval, line.policy in ranking.learned)
    names = [""] * len(rows) if labels is None else [labels.get(line.policy, line.policy) for line in rows]
    axes.set_yticks(range(len(rows)), names)
    axes.set_ylim(-0.6, len(rows) - 0.4)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", alpha=0.25)
    axes.spines[["top", "right", "left"]].set_visible(False)


def _draw_interval(axes: "Axes", y: int, interval: Interval, learned: bool, scale: float = 1.0) -> None:
    colour = _LEARNED if learned else _OTHER
    low, high = interval.ends
    axes.hlines(y, low * scale, high * scale, color=colour, lw=2.5, alpha=0.55)
    axes.plot(interval.mean * scale, y, "o", color=colour, ms=6)


def _keep_near(axes: "Axes", ranking: Ranking) -> None:
    """Leave out of the picture what is so far off that the others would be a dot, and point to where it lies."""
    found = [(y, line.against.difference) for y, line in enumerate(ranking.lines[::-1]) if line.against]
    sizes = sorted(abs(difference.mean) for _, difference in found)
    near = [size for size in sizes if size <= _FAR * sizes[(len(sizes) - 1) // 2]]
    if not near or len(near) == len(sizes) or near[-1] == 0.0:
        return
    limit = 1.3 * max(max(map(abs, d.ends)) for _, d in found if abs(d.mean) <= near[-1])
    axes.set_xlim(-limit, limit)
    for y, difference in found:
        if abs(difference.mean) > limit:
            side = 1.0 if difference.mean > 0 else -1.0
            axes.annotate(
                f"{difference.mean:+.3g}", (side * limit, y), xytext=(-side * 12, 0), textcoords="offset points",
                ha="right" if side > 0 else "left", va="center", fontsize=8, color=_OTHER,
                arrowprops={"arrowstyle": "->", "color": _OTHER},
            )  # fmt: skip


def curve_figure(*panels: Panel) -> Figure:
    """Draw learning curves over dashed lines at the heuristics' levels, panels side by side.

    Runs of a name share a colour, in every panel. The values' axis is logarithmic where they are positive and span more
    than a magnitude; that of decisions where one run has over ten times as many as another.
    """
    names = dict.fromkeys(name for panel in panels for name in panel.curves)
    colours = {name: f"C{number}" for number, name in enumerate(names)}
    figure = Picture(figsize=(7.0 if len(panels) == 1 else 5.5 * len(panels), 3.6), layout="constrained")
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False).ravel(), panels, strict=True):
        _draw_panel(axes, panel, colours)
    return figure


def _draw_panel(axes: "Axes", panel: Panel, colours: Mapping[str, str]) -> None:
    for name, runs in panel.curves.items():
        for position, (steps, values) in enumerate(runs):
            marker, label = "o" if len(steps) == 1 else "", "" if position else name
            axes.plot(steps, values, marker=marker, lw=1.8, color=colours[name], label=label)
    for name, level in panel.levels.items():
        axes.axhline(level, ls="--", lw=1.0, color=_OTHER)
        axes.annotate(name, (1.0, level), xycoords=("axes fraction", "data"), fontsize=8, va="bottom", ha="right")
    drawn = [value for runs in panel.curves.values() for _, values in runs for value in values]
    if drawn and min(drawn) > 0 and max(drawn) > _MAGNITUDE * min(drawn):
        axes.set_yscale("log")
    _scale_decisions(axes, [steps for runs in panel.curves.values() for steps, _ in runs])
    axes.set_xlabel("decisions")
    axes.set_ylabel(panel.axis)
    axes.set_title(panel.title, loc="left", fontsize=11)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    if panel.curves:
        axes.legend(frameon=False, fontsize=8)


def _scale_decisions(axes: "Axes", runs: Sequence[Sequence[float]]) -> None:
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    ends = [max(steps) for steps in runs if len(steps)]
    if ends and max(ends) > _MAGNITUDE * min(ends):
        first, last = min(step for steps in runs for step in steps if step > 0), max(ends)
        axes.set_xscale("symlog", linthresh=first)
        axes.set_xlim(0, last)
        powers = range(math.ceil(math.log10(first)), math.floor(math.log10(last)) + 1)
        axes.set_xticks([0, *(10**power for power in powers)])
