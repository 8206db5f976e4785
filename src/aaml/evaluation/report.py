"""The report of a comparison: a section a task and size, with the means and the paired differences."""

import re
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from aaml.evaluation.figures import interval_figure
from aaml.evaluation.identity import with_identity
from aaml.evaluation.page import Page
from aaml.evaluation.policies import is_model
from aaml.evaluation.ranking import Ranking, numbers
from aaml.evaluation.run_spec import RunSpec
from aaml.evaluation.statistics import INTERVALS
from aaml.evaluation.tables import ranking_table
from aaml.extras import lazily
from aaml.files import in_a_name

if TYPE_CHECKING:
    from aaml.evaluation import charts
else:  # Bokeh, which is an extra
    charts = lazily("aaml.evaluation.charts")


def write_report(
    runs: pd.DataFrame,
    run_specs: Mapping[str, RunSpec],
    comparisons: Iterable[Iterable[Ranking]],
    folder: Path,
    title: str,
    paragraphs: Iterable[str] = (),
) -> Path:
    """Write report.html and its figures into a folder and return its path.

    `runs` are the rows that were compared, `run_specs` say by task how they were made; both as `Results` has them. The
    `paragraphs` come first.
    """
    page = Page(title, folder)
    for text in paragraphs:
        page.text(text)
    for comparison in comparisons:
        add_comparison(page, comparison)
    add_origin(page, runs, run_specs, folder)
    return page.write()


def add_comparison(page: Page, comparison: Iterable[Ranking]) -> None:
    """Add a section with figure and table for every task and size."""
    rankings = tuple(comparison)
    frame = numbers(rankings)
    for ranking in rankings:
        page.heading(ranking.title)
        task = in_a_name(ranking.task)
        mine = (frame["task"] == ranking.task) & (frame["nodes"] == ranking.nodes)
        if "about" in frame:
            mine &= frame["about"].fillna("") == ranking.about
        about = "".join(f"-{word}" for word in re.findall(r"\w+", ranking.about))
        name = f"{task}-{ranking.nodes}{about}-{ranking.metric.name}"
        page.figure(charts.comparison_figure(ranking), name, partial(interval_figure, ranking), frame[mine])
        page.table(ranking_table(ranking))
    page.text(
        f"Intervals are 95% intervals over the seeds, or over the windows of a trace: {INTERVALS}. Every policy met "
        "the same ones, so differences are paired; where the interval includes 0, the two are level. Learned policies "
        "are green."
    )


def add_origin(page: Page, runs: pd.DataFrame, run_specs: Mapping[str, RunSpec], folder: Path) -> None:
    """Say on which episodes the policies were compared, what each of them is, and what the files hold."""
    models = []
    for task, rows in runs.groupby("task", sort=True):
        run_spec, known = run_specs.get(str(task)), with_identity(rows)
        origin: dict[str, object] = {
            "task": task, "nodes": ", ".join(map(str, dict.fromkeys(rows["nodes"]))), "seeds": spans(rows["seed"]),
            "pods of an episode": ", ".join(pods or "the task's own" for pods in dict.fromkeys(known["pods"])),
            "code_sha256": ", ".join(code or "unknown" for code in dict.fromkeys(known["code_sha256"])),
        }  # fmt: skip
        if run_spec is not None:
            specs = {label: spec for label, spec in run_spec.policies.items() if label in set(rows["policy"])}
            origin |= {f"policy {label}": _spec(spec) for label, spec in specs.items()}
            models += [Path(spec) for spec in specs.values() if isinstance(spec, str) and is_model(spec)]
            source = getattr(run_spec.task, "folder", None)
            models += [Path(source)] if source is not None else []
        page.settings(origin)
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


def _spec(spec: object) -> str:
    return spec if isinstance(spec, str) else f"{type(spec).__name__}, an object of the program"
