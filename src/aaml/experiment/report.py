"""Tables and figures from results: text for a terminal, Markdown for the docs, one self-contained page for a reader.

A result is a row (task, nodes, policy, seed, metric columns ...) of a data frame; see `aaml.experiment.evaluate`.
"""

import base64
import html
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from aaml.experiment.statistics import Comparison, Direction, Interval, bootstrap, compare

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Curve = tuple[Sequence[float], Sequence[float]]
"""Steps and the values there."""
_MAGNITUDE = 10.0


@dataclass(frozen=True, slots=True)
class Line:
    """One policy in a table: its interval, and how it compares with the reference on the same seeds."""

    policy: str
    value: Interval
    against: Comparison | None


@dataclass(frozen=True, slots=True)
class Panel:
    """Learning curves, name -> runs, and the `levels` of policies without learning, name -> value."""

    curves: Mapping[str, Sequence[Curve]]
    title: str
    axis: str
    levels: Mapping[str, float] = field(default_factory=dict)


def lines(frame: pd.DataFrame, metric: str, better: Direction, reference: str) -> list[Line]:
    """Return a line a policy, best mean first. `frame` holds one task at one size; seeds are paired by number.

    Raises ValueError when the reference is missing or a policy was run on other seeds.
    """
    values = {str(name): group.set_index("seed")[metric].sort_index() for name, group in frame.groupby("policy")}
    if reference not in values:
        raise ValueError(f"reference: {reference!r} is not among {', '.join(sorted(values))}")
    base = values[reference]
    result = []
    for policy, series in values.items():
        if list(series.index) != list(base.index):
            raise ValueError(f"{policy} was run on other seeds than {reference}: only paired seeds are compared")
        data = series.to_numpy(dtype=float)
        against = None if policy == reference else compare(data, base.to_numpy(dtype=float), better)
        result.append(Line(policy, bootstrap(data), against))
    return sorted(result, key=lambda line: line.value.mean, reverse=better == "higher")


def table(rows: Sequence[Line], reference: str) -> pd.DataFrame:
    """Return the lines as a frame of text, ready to print."""
    return pd.DataFrame(
        [
            {
                "policy": row.policy,
                "mean [95% interval]": str(row.value),
                f"difference from {reference}": "" if row.against is None else f"{row.against.difference:+}",
                "better on": "" if row.against is None else f"{row.against.improvement:.0%} of seeds",
                "verdict": "reference" if row.against is None else row.against.verdict,
            }
            for row in rows
        ]
    )


def text_table(frame: pd.DataFrame) -> str:
    """Write a frame for a terminal, columns left-aligned."""
    header = [str(column) for column in frame.columns]
    cells = [[str(value) for value in row] for row in frame.itertuples(index=False)]
    widths = [max(len(row[i]) for row in [header, *cells]) for i in range(len(header))]
    rule = ["-" * width for width in widths]
    return "\n".join(
        "  ".join(value.ljust(width) for value, width in zip(row, widths, strict=True)).rstrip()
        for row in [header, rule, *cells]
    )


def markdown_table(frame: pd.DataFrame) -> str:
    """Write a frame as a Markdown table."""
    rows = [list(map(str, frame.columns)), ["---"] * len(frame.columns)]
    rows += [[str(value) for value in row] for row in frame.itertuples(index=False)]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def interval_figure(rows: Sequence[Line], title: str, axis: str, learned: Sequence[str] = ()) -> "Figure":
    """Draw a dot with its interval for each policy, learned ones in colour, best at the top."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 0.8 + 0.36 * len(rows)), layout="constrained")
    axes = figure.subplots()
    for y, row in enumerate(reversed(rows)):
        colour = "#0b6e4f" if row.policy in learned else "#6c757d"
        axes.hlines(y, row.value.low, row.value.high, color=colour, lw=2.5, alpha=0.55)
        axes.plot(row.value.mean, y, "o", color=colour, ms=6)
    axes.set_yticks(range(len(rows)), [row.policy for row in reversed(rows)])
    axes.set_xlabel(axis)
    axes.set_title(title, loc="left", fontsize=11)
    axes.grid(axis="x", alpha=0.25)
    axes.spines[["top", "right", "left"]].set_visible(False)
    positive = [row.value.mean for row in rows if row.value.mean > 0]
    if positive and len(positive) == len(rows) and max(positive) / min(positive) > 30:
        axes.set_xscale("log")
    return figure


def curve_figure(*panels: Panel) -> "Figure":
    """Draw learning curves over dashed lines at the heuristics' levels, panels side by side.

    Runs of a name share a colour, in every panel. A logarithmic axis when the values are positive and span more than a
    magnitude.
    """
    from matplotlib.figure import Figure

    names = dict.fromkeys(name for panel in panels for name in panel.curves)
    colours = {name: f"C{number}" for number, name in enumerate(names)}
    figure = Figure(figsize=(7.0 if len(panels) == 1 else 5.5 * len(panels), 3.6), layout="constrained")
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False).ravel(), panels, strict=True):
        _draw_panel(axes, panel, colours)
    return figure


def _draw_panel(axes: "Axes", panel: Panel, colours: Mapping[str, str]) -> None:
    for name, runs in panel.curves.items():
        for position, (steps, values) in enumerate(runs):
            marker, label = "o" if len(steps) == 1 else "", "" if position else name
            axes.plot(steps, values, marker=marker, lw=1.8, color=colours[name], label=label)
    for name, level in panel.levels.items():
        axes.axhline(level, ls="--", lw=1.0, color="#6c757d")
        axes.annotate(name, (1.0, level), xycoords=("axes fraction", "data"), fontsize=8, va="bottom", ha="right")
    drawn = [value for runs in panel.curves.values() for _, values in runs for value in values]
    if drawn and min(drawn) > 0 and max(drawn) > _MAGNITUDE * min(drawn):
        axes.set_yscale("log")
    axes.set_xlabel("decisions")
    axes.set_ylabel(panel.axis)
    axes.set_title(panel.title, loc="left", fontsize=11)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    if panel.curves:
        axes.legend(frameon=False, fontsize=8)


@dataclass
class Page:
    """A self-contained HTML page: sections of text, tables and figures in the order they were added."""

    title: str
    _body: list[str] = field(default_factory=list)

    def heading(self, text: str) -> None:
        """Start a section."""
        self._body.append(f"<h2>{html.escape(text)}</h2>")

    def text(self, text: str) -> None:
        """Add a paragraph."""
        self._body.append(f"<p>{html.escape(text)}</p>")

    def code(self, text: str) -> None:
        """Add commands or other verbatim text."""
        self._body.append(f"<pre>{html.escape(text)}</pre>")

    def table(self, frame: pd.DataFrame) -> None:
        """Add a table."""
        self._body.append(frame.to_html(index=False, border=0, escape=True))

    def figure(self, figure: "Figure", alt: str, file: Path | None = None) -> None:
        """Add a figure, embedded; also written to `file` (PNG) when given."""
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=130)
        if file is not None:
            file.write_bytes(buffer.getvalue())
        data = base64.b64encode(buffer.getvalue()).decode()
        self._body.append(f'<img alt="{html.escape(alt)}" src="data:image/png;base64,{data}">')

    def write(self, path: Path) -> Path:
        """Write the page (aside first, then renamed) and return its path."""
        document = _PAGE.format(title=html.escape(self.title), body="\n".join(self._body))
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_suffix(".tmp")
        aside.write_text(document, encoding="utf-8")
        aside.replace(path)
        return path


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title><style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #1d2329; }}
h1 {{ font-size: 1.6rem; }} h2 {{ font-size: 1.2rem; margin-top: 2.2rem; }}
table {{ border-collapse: collapse; font-size: .88rem; }} td, th {{ text-align: left; padding: .25rem .9rem .25rem 0; }}
thead {{ border-bottom: 1px solid #adb5bd; }} tbody tr:nth-child(even) {{ background: #f6f8fa; }}
img {{ max-width: 100%; margin: .8rem 0; }} pre {{ background: #f6f8fa; padding: .8rem; overflow-x: auto; }}
</style></head><body><h1>{title}</h1>
{body}
</body></html>
"""
