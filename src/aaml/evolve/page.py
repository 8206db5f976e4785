"""The page of a search: the front, where a click shows a formula, and the tables."""

import math
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from bokeh.models import ColumnDataSource, HoverTool, OpenURL, TapTool

from aaml.evaluation.charts import LEARNED, OTHER, Drawn, plain_figure
from aaml.evaluation.page import Page
from aaml.evolve.copies import Distilled
from aaml.evolve.distil_settings import DistilConfig
from aaml.evolve.front import LOOKS, Evaluated, chosen, looks, shown
from aaml.evolve.settings import EvolveConfig
from aaml.policies.formulas.expression import is_of_gpus
from aaml.policies.formulas.text import parse, to_latex, to_python, to_text
from aaml.settings import plain
from aaml.study.looks import FIRST_LOOK, Look


def front_figure(front: list[Evaluated], others: list[Evaluated], *, ratio: bool) -> Drawn:
    """Return the loss on validation episodes against size; a click on a formula of the front shows it."""

    def value(loss: float) -> float:
        return math.exp(loss) if ratio else loss

    axis = "validation, times the reference's" if ratio else "validation, less than the reference"
    plot = plain_figure("front", height=320, x_axis_label="size", y_axis_label=axis, tools="tap")
    rest = [each for each in others if each not in front]
    plot.scatter([each.size for each in rest], [value(each.loss) for each in rest], color=OTHER, alpha=0.5)
    source = ColumnDataSource(
        {
            "size": [each.size for each in front],
            "loss": [value(each.loss) for each in front],
            "formula": [to_text(parse(each.text), 4) for each in front],
        }
    )
    plot.step("size", "loss", source=source, color=LEARNED, mode="after")
    dots = plot.scatter("size", "loss", source=source, color=LEARNED, size=11)
    plot.add_tools(HoverTool(renderers=[dots], tooltips=[("size", "@size"), ("loss", "@loss"), ("", "@formula")]))
    tap = plot.select_one(TapTool)
    tap.renderers, tap.callback = [dots], OpenURL(url="#size-@size", same_tab=True)  # a page may run no code of a text
    return plot


def add_front(page: Page, front: Sequence[Evaluated], name: str) -> None:
    """Add each formula of a front as text, LaTeX and Python, which a click shows."""
    page.text("A click on a dot, or on a line below, shows a formula as text, as LaTeX and, but for GPUs, as Python.")
    for each in front:
        expression = parse(each.text)
        shown = [to_text(expression), to_latex(expression)]
        if not is_of_gpus(expression):
            shown.append(to_python(expression, name))
        page.folded(f"size {each.size}: {to_text(expression, 4)}", "\n\n".join(shown), f"size-{each.size}")


def write_page(
    config: EvolveConfig, out: Path, front: list[Evaluated], everyone: list[Evaluated], look: Look = FIRST_LOOK
) -> Path:
    """Write report.html into the folder of a search and return its path."""
    ratio = config.is_ratio
    page = Page(f"Formulas for {', '.join(config.task)}", out)
    page.text(
        f"Losses are relative to {config.reference_policy} on the same arrivals. The search saw training episodes "
        f"alone; the front is what {config.validation_episodes} validation episodes say, which tuned nothing before. "
        "Its best formula was chosen by these, so it looks a little better than it is. The intervals of all formulas "
        "that were evaluated hold together at 95%."
    )
    page.text(f"{look.at('validation')}.".capitalize())
    count = looks(out)
    page.text(
        f"The leaderboard's episodes were looked at {count} times ({LOOKS}). Intervals of looks are Bonferroni's."
        if count
        else "Nobody has looked at the leaderboard's episodes for this search."
    )
    frame = pd.DataFrame([each.row(ratio=ratio) for each in front])
    page.figure(front_figure(front, everyone, ratio=ratio), "front", numbers=frame)
    add_front(page, front, config.label)
    page.table(frame)
    best = chosen(front)
    page.heading("The chosen one: the shortest within a standard error of the best on validation")
    page.code(to_text(parse(best.text), 4))
    page.settings(plain(config), plain(EvolveConfig()))
    page.hashed([out / "front.json", out / "model" / f"{config.label}.formula"])
    return page.write()


def write_distilled(model: Path, config: DistilConfig, result: Distilled, out: Path) -> Path:
    """Write report.html of a network that was distilled and return its path."""
    ratio = config.search.is_ratio
    page = Page(f"What {model.stem} has learned", out)
    page.text(
        "Formulas that choose as the network does. Agreement is the share of the network's own states, in episodes "
        "that the search never saw, in which both choose the same node. The metric is that of validation episodes "
        f"relative to {config.search.reference_policy}; the network has {shown(result.interval, ratio=ratio)}."
    )
    page.text(f"{result.look.at('validation')}.".capitalize())
    frame = pd.DataFrame([each.row(ratio=ratio) for each in result.front])
    front = [Evaluated(each.text, 1.0 - each.agreement, each.losses, each.compared) for each in result.front]
    page.figure(front_figure(front, [], ratio=ratio), "front", numbers=frame)
    add_front(page, front, model.stem)
    page.table(frame)
    page.settings(plain(config), plain(DistilConfig()))
    page.hashed([model, out / "front.json"])
    return page.write()
