"""Rankings as tables: text for a terminal, Markdown for documents, HTML for pages and notebooks."""

import html
import math
from collections.abc import Mapping

import pandas as pd

from aaml.evaluation.ranking import Line, Ranking
from aaml.telemetry.tables import plain
from aaml.telemetry.tables import table as text_grid


def headers(ranking: Ranking) -> Mapping[str, str]:
    """Return the headers of a ranking's columns, by the names that `cells` has."""
    named = {
        "value": "mean [95% interval]",
        "difference": f"difference from {ranking.reference}",
        "ratio": f"of {ranking.reference}'s",
        "improvement": "better on",
        "verdict": "verdict",
    }
    timed = {"p50": "ms p50", "p99": "ms p99"}
    return named | {name: text for name, text in timed.items() if any(name in cells(line) for line in ranking.lines)}


def cells(line: Line, unit: str = "seed") -> Mapping[str, str]:
    """Return a policy's line, paired by `unit`, as texts; times that were not measured are left out."""
    against = line.against
    texts = {
        "value": str(line.value),
        "difference": "" if against is None else f"{against.difference:+}",
        "ratio": "" if against is None or against.ratio is None else f"{against.ratio:.3f}",
        "improvement": "" if against is None else _better_on(against.improvement, line.equal, unit),
        "verdict": "reference" if against is None else against.verdict,
    }
    times = {"p50": line.p50_ms, "p99": line.p99_ms}
    return texts | {name: f"{ms:.2f}" for name, ms in times.items() if not math.isnan(ms)}


def _better_on(improvement: float, equal: float, unit: str) -> str:
    """Return on how many seeds or windows a policy is better, of an improvement that counts equal ones by half.

    Windows in which little happens are often equal: that is told apart. Over seeds it is a probability of improvement.
    """
    if unit == "seed":
        return f"{improvement:.0%} of seeds"
    if equal == 1.0:
        return f"equal on all {unit}s"
    return f"{improvement - equal / 2.0:.0%} of {unit}s" + (f", equal on {equal:.0%}" if equal else "")


def ranking_table(ranking: Ranking) -> pd.DataFrame:
    """Return a ranking as a frame of text, ready to print; ratios are left out, a terminal is not that wide."""
    titles = {name: title for name, title in headers(ranking).items() if name != "ratio"}
    rows = [[line.policy, *(cells(line, ranking.unit).get(name, "") for name in titles)] for line in ranking.lines]
    return pd.DataFrame(rows, columns=["policy", *titles.values()])


def text_table(frame: pd.DataFrame) -> str:
    """Write a frame as plain text, columns left-aligned."""
    return plain(text_grid(list(map(str, frame.columns)), frame.itertuples(index=False)))


def markdown_table(frame: pd.DataFrame) -> str:
    """Write a frame as a Markdown table."""
    rows = [list(map(str, frame.columns)), ["---"] * len(frame.columns)]
    rows += [[str(value) for value in row] for row in frame.itertuples(index=False)]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def html_table(frame: pd.DataFrame) -> str:
    """Write a frame as an HTML table."""
    return frame.to_html(index=False, border=0, escape=True)


def text_section(ranking: Ranking) -> str:
    """Write a ranking as plain text: its title and table."""
    return f"{ranking.title}\n{text_table(ranking_table(ranking))}"


def html_section(ranking: Ranking) -> str:
    """Write a ranking as HTML: its title and table."""
    return f"<h4>{html.escape(ranking.title)}</h4>\n{html_table(ranking_table(ranking))}"
