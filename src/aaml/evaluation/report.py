"""The report of a comparison: a section a task and size, with the means and the paired differences."""

import html
import re
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from aaml.evaluation.figures import interval_figure
from aaml.evaluation.identity import with_identity
from aaml.evaluation.page import Page, html_table
from aaml.evaluation.policies import is_model
from aaml.evaluation.statistics import INTERVALS
from aaml.evaluation.tables import ranking_table

if TYPE_CHECKING:
    from aaml.evaluation.comparison import Comparison, Ranking
    from aaml.evaluation.results import Results


def write_report(
    results: "Results", comparisons: "Iterable[Comparison]", folder: Path, title: str, said: Iterable[str] = ()
) -> Path:
    """Write report.html and its figures into a folder, after paragraphs that are to be `said`; returns its path."""
    page = Page(title, folder)
    for text in said:
        page.text(text)
    for comparison in comparisons:
        add_comparison(page, comparison)
    add_origin(page, results, folder)
    return page.write()


def add_comparison(page: Page, comparison: "Comparison") -> None:
    """Add a section with figure and table for every task and size."""
    from aaml.evaluation.charts import comparison_figure

    frame = comparison.frame()
    for ranking in comparison:
        page.heading(ranking.title)
        task = re.sub(r"[^\w.-]+", "-", ranking.task).strip("-")  # a trace's is the name of a folder
        mine = (frame["task"] == ranking.task) & (frame["nodes"] == ranking.nodes)
        if "about" in frame:
            mine &= frame["about"].fillna("") == ranking.about
        about = "".join(f"-{word}" for word in re.findall(r"\w+", ranking.about))
        name = f"{task}-{ranking.nodes}{about}-{ranking.metric.name}"
        page.figure(comparison_figure(ranking), name, partial(interval_figure, ranking), frame[mine])
        page.table(ranking_table(ranking))
    page.text(
        f"Intervals are 95% intervals over the seeds, or over the windows of a trace: {INTERVALS}. Every policy met "
        "the same ones, so differences are paired; where the interval includes 0, the two are level. Learned policies "
        "are green."
    )


def add_origin(page: Page, results: "Results", folder: Path) -> None:
    """Say on which episodes the policies were compared, what each of them is, and what the files hold."""
    runs, models = results.runs, []
    for task, rows in runs.groupby("task", sort=True):
        recipe, known = results.recipes.get(str(task)), with_identity(rows)
        told: dict[str, object] = {
            "task": task, "nodes": ", ".join(map(str, dict.fromkeys(rows["nodes"]))), "seeds": spans(rows["seed"]),
            "pods of an episode": ", ".join(pods or "the task's own" for pods in dict.fromkeys(known["pods"])),
            "code_sha256": ", ".join(code or "unknown" for code in dict.fromkeys(known["code_sha256"])),
        }  # fmt: skip
        if recipe is not None:
            specs = {label: spec for label, spec in recipe.policies.items() if label in set(rows["policy"])}
            told |= {f"policy {label}": _spec(spec) for label, spec in specs.items()}
            models += [Path(spec) for spec in specs.values() if isinstance(spec, str) and is_model(spec)]
            source = getattr(recipe.task, "folder", None)
            models += [Path(source)] if source is not None else []
        page.settings(told)
    page.hashed([*models, folder / "results.csv"])


def spans(numbers: Iterable[int]) -> str:
    """Return whole numbers as ranges: "1000..1019, 2000"."""
    found: list[list[int]] = []
    for number in sorted(set(map(int, numbers))):
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}..{last}" for first, last in found)


def html_section(ranking: "Ranking") -> str:
    """Return a ranking as HTML: its title and table."""
    return f"<h4>{html.escape(ranking.title)}</h4>\n{html_table(ranking_table(ranking))}"


def _spec(spec: object) -> str:
    return spec if isinstance(spec, str) else f"{type(spec).__name__}, an object of the program"
