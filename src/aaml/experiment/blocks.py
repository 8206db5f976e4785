"""What a document's block can draw from result folders: tables as Markdown, figures; a function a kind.

A function's parameters are the options of its marker; their types say how an option is written (see `READERS`).
Lists have commas; where a thing may be renamed, `LABEL=THING`.
"""

import csv as csv_files
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from aaml.errors import UserError, bad_value
from aaml.experiment.openb_plots import difference_figure
from aaml.experiment.openb_tables import KEYS as RUN_KEYS
from aaml.experiment.openb_tables import gains, read_table
from aaml.experiment.report import Panel, curve_figure, interval_figure, markdown_table
from aaml.experiment.results import judge, metric_of, read_results
from aaml.experiment.runfolder import read_curve
from aaml.experiment.statistics import bootstrap, compare

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Names = tuple[str, ...]
Numbers = tuple[int, ...]
Folders = tuple[Path, ...]
Labels = tuple[tuple[str, str], ...]
"""(label, name) each; the label is empty where none was given."""
Runs = tuple[tuple[str, Folders], ...]
"""(label, folders) each."""
_COLUMNS = ("value", "difference", "improvement", "verdict", "p50", "p99")


def evaluate(
    results: Folders,
    reference: str = "kube-scheduler",
    nodes: Numbers = (),
    policies: Labels = (),
    columns: Names = _COLUMNS,
    metric: str = "",
    task: str = "",
    scale: float = 1.0,
    unit: str = "",
) -> str:
    """Return how policies did on a task, by results of `aaml evaluate`: a row a policy, `columns` for each size.

    `policies` selects, orders and names the rows; without it all are there, the best at the first size first. The
    metric is multiplied by `scale` and `unit` goes to the header. The best mean of each size is bold.
    """
    header, cells = ["policy"], dict[str, list[str]]()
    for size, group in _sizes(results, task, nodes, (*policies, ("", reference)) if policies else ()):
        rows, judged = judge(group, reference, metric or None, scale=scale)
        known = dict(zip(_COLUMNS, judged.columns[1:], strict=False))
        for row, (_, texts) in zip(rows, judged.iterrows(), strict=True):
            mine = cells.setdefault(row.policy, [])
            mine += [""] * (len(header) - 1 - len(mine))  # sizes that it was not run at
            mine += [texts[known[_known("columns", column, known)]] for column in columns]
            if row is rows[0] and "value" in columns:
                place = columns.index("value") - len(columns)
                mine[place] = f"**{mine[place]}**"
        value, better = ", ".join(filter(None, (f"{size} nodes", unit))), f"better than {reference} on"
        titles = {**known, "value": value, "improvement": better, "verdict": f"against {reference}"}
        header += [titles[column] for column in columns]
    chosen = policies or tuple(("", name) for name in cells)
    lines = [[label or name, *cells[_known("policies", name, cells)]] for label, name in chosen]
    return _markdown(header, lines)


def evaluate_figure(
    results: Folders,
    nodes: int,
    policies: Labels = (),
    learned: Names = (),
    metric: str = "",
    task: str = "",
    title: str = "",
    axis: str = "",
    scale: float = 1.0,
) -> "Figure":
    """Draw the interval of each policy at one size; `learned` ones are in colour (given by name, not by label)."""
    ((_, group),) = _sizes(results, task, (nodes,), policies)
    rows, _ = judge(group, str(group["policy"].iloc[0]), metric or None, scale=scale)
    labels = {row.policy: row.policy for row in rows} | {name: label or name for label, name in policies}
    coloured = [labels[_known("learned", name, labels)] for name in learned]
    name, better = metric_of(str(group["task"].iloc[0]), metric or None)
    title = title or f"{group['task'].iloc[0]}, {nodes} nodes, {rows[0].value.count} seeds ({better} is better)"
    named = [replace(row, policy=labels[row.policy]) for row in rows]
    return interval_figure(named, title, axis or name, coloured)


def openb(
    results: Folders,
    policy: str,
    reference: str = "fgd",
    at: Numbers = (100, 130),
    traces: Names = (),
    tuned: Labels = (),
) -> str:
    """Return a row a trace: GPU allocation when all has arrived, and the paired differences `at` these percentages.

    With `tuned`, a column marks the traces that the policy was tuned on: "yes", or the label. The last row has the
    means over the traces, with intervals over the seeds of that mean.
    """
    table = _allocation(results, traces)
    points = gains(table, policy, reference)
    marks = {name: label or "yes" for label, name in tuned}
    for tuned_on in marks:
        _known("tuned", tuned_on, list(dict.fromkeys(table["workload"])))
    ends = table[table["policy"] == policy].groupby("workload")[str(points.columns[-1])].mean()
    rows = []
    for name, group in points.groupby(level="workload", sort=False):
        trace = str(name)
        above = [f"{bootstrap(group[column].to_numpy()):+.2f}" for column in _columns(points, at)]
        rows.append([trace, marks.get(trace, "no"), f"{ends[trace]:.2f}", *above])
    whole = points.groupby(level="seed").mean()
    above = [f"**{bootstrap(whole[column].to_numpy()):+.2f}**" for column in at]
    rows.append([f"**mean of {len(rows)}**", "", f"{ends.mean():.2f}", *above])
    header = ["trace", "tuned on", f"allocation @{points.columns[-1]}", *(f"above {reference} @{x}" for x in at)]
    if not tuned:
        header, rows = header[:1] + header[2:], [row[:1] + row[2:] for row in rows]
    return _markdown(header, rows)


def openb_summary(results: Folders, policies: Labels, reference: str = "fgd", at: Numbers = (100, 130)) -> str:
    """Return a row a policy: mean difference over the traces, the least of a trace, and on how many it is better."""
    table = _allocation(results)
    rows = []
    for label, name in policies:
        points = gains(table, name, reference)
        cells = [label or name]
        for column in _columns(points, at):
            traces = points[column].groupby(level="workload", sort=False)
            least = traces.mean()
            verdicts = [compare(group.to_numpy(), np.zeros(len(group)), "higher").verdict for _, group in traces]
            cells += [
                f"{bootstrap(points[column].groupby(level='seed').mean().to_numpy()):+.2f}",
                f"{least.min():+.2f} ({least.idxmin()})",
                " / ".join(str(verdicts.count(word)) for word in ("better", "level", "worse")),
            ]
        rows.append(cells)
    header = ["policy"]
    for column in at:
        header += [f"above {reference} @{column}", "least of a trace", "traces better / level / worse"]
    return _markdown(header, rows)


def openb_figure(
    results: Folders, policy: str, reference: str = "fgd", traces: Names = (), title: str = "", axis: str = ""
) -> "Figure":
    """Draw the paired differences over arrived demand: a thin line a trace, a thick one for all, `traces` named."""
    table = _allocation(results)
    for trace in traces:
        _known("traces", trace, list(dict.fromkeys(table["workload"])))
    points = gains(table, policy, reference)
    title = title or f"{policy}, mean over {points.index.get_level_values('seed').nunique()} seeds"
    return difference_figure(points, title, axis or f"points of GPU allocation above {reference}", traces)


def curves(
    runs: Runs,
    metric: str,
    levels: Folders = (),
    policies: Labels = (),
    column: str = "",
    nodes: Numbers = (),
    task: str = "",
    title: str = "",
    axis: str = "",
    right_runs: Runs = (),
    right_metric: str = "",
    right_levels: Folders = (),
    right_policies: Labels = (),
    right_title: str = "",
    right_axis: str = "",
) -> "Figure":
    """Draw learning curves of runs, runs of one label in one colour, over dashed lines for policies without learning.

    `metric` is the curve's name in metrics.jsonl, such as Validation/mean_variance. The dashed lines are means over
    the seeds of `levels`, results of `aaml evaluate`, in `column` (the end of the metric's name when not given). With
    `right_runs` a second panel stands to the right, such as another objective; `right_metric` and `right_policies` are
    those of the first unless given.
    """
    panels = [_panel(runs, metric, _heights(levels, task, nodes, policies, column or metric), title, axis)]
    if right_runs:
        metric, policies = right_metric or metric, right_policies or policies
        heights = _heights(right_levels, "", nodes, policies, metric)
        panels.append(_panel(right_runs, metric, heights, right_title, right_axis))
    return curve_figure(*panels)


def _panel(runs: Runs, metric: str, levels: Mapping[str, float], title: str, axis: str) -> Panel:
    drawn = {label: [read_curve(folder, metric) for folder in folders] for label, folders in runs}
    return Panel(drawn, title, axis or metric.rpartition("/")[2], levels)


def _heights(levels: Folders, task: str, nodes: Numbers, policies: Labels, column: str) -> dict[str, float]:
    """Return the mean of policies over the seeds, by label; `column` may be the name of a curve that ends in it."""
    if not levels:
        return {}
    ((_, group),) = _sizes(levels, task, nodes)
    means = group.groupby("policy")[_known("column", column.rpartition("/")[2], list(group.columns))].mean()
    chosen = policies or tuple(("", str(policy)) for policy in means.index)
    return {label or policy: float(means[_known("policies", policy, means.index)]) for label, policy in chosen}


def csv(file: Path, columns: Labels = ()) -> str:
    """Return a CSV file as it stands, with some of its columns, renamed where there is a label."""
    try:
        with file.open(newline="", encoding="utf-8") as lines:
            header, *rows = csv_files.reader(lines)
    except (OSError, ValueError, csv_files.Error) as error:
        raise UserError(f"{file}: not readable as CSV: {error}") from error
    chosen = columns or tuple(("", name) for name in header)
    places = [header.index(_known("columns", name, header)) for _, name in chosen]
    if any(len(row) != len(header) for row in rows):
        raise UserError(f"{file}: a row has not as many values as the header ({len(header)})")
    return _markdown([label or name for label, name in chosen], [[row[place] for place in places] for row in rows])


def means(file: Path, by: Labels, columns: Labels, across: str = "", only: Labels = (), digits: int = 2) -> str:
    """Return the means of a CSV file's `columns`: a row for each value of `by`, in the order of the file.

    With `across`, a column, they stand side by side for each of its values, which `{}` in a label of `columns` means.
    `only` selects rows, as COLUMN=VALUE; of a column that is named more than once all these values.
    """
    try:
        frame = pd.read_csv(file, dtype=str, keep_default_na=False)
    except (OSError, ValueError) as error:
        raise UserError(f"{file}: not readable as CSV: {error}") from error
    for column in dict.fromkeys(name for name, _ in only):
        found = list(dict.fromkeys(frame[_known("only", column, frame.columns)]))
        frame = frame[frame[column].isin([_known("only", value, found) for name, value in only if name == column])]
    keys = [_known("by", name, frame.columns) for _, name in by]
    sides = list(dict.fromkeys(frame[_known("across", across, frame.columns)])) if across else [""]
    try:
        values = frame.assign(
            **{name: frame[_known("columns", name, frame.columns)].astype(float) for _, name in columns}
        )
    except ValueError as error:
        raise UserError(f"{file}: columns: {error}") from error
    rows = []
    for key, group in values.groupby(keys, sort=False):
        parts = [group[group[across] == side] if across else group for side in sides]
        cells = [f"{part[name].mean():.{digits}f}" if len(part) else "" for part in parts for _, name in columns]
        rows.append([*map(str, key), *cells])
    header = [(label or f"{name} {{}}".strip()).replace("{}", side) for side in sides for label, name in columns]
    return _markdown([*(label or name for label, name in by), *(title.strip() for title in header)], rows)


TABLES: Mapping[str, Callable[..., str]] = {
    "evaluate": evaluate, "openb": openb, "openb-summary": openb_summary, "csv": csv, "means": means,
}  # fmt: skip
FIGURES: Mapping[str, "Callable[..., Figure]"] = {
    "evaluate-figure": evaluate_figure, "openb-figure": openb_figure, "curves": curves,
}  # fmt: skip


def _markdown(header: list[str], rows: list[list[str]]) -> str:
    return markdown_table(pd.DataFrame(rows, columns=header))


def _known(field: str, name: str, names: Iterable[Any]) -> str:
    known = [str(each) for each in names]
    if name not in known:
        raise bad_value(field, name, f"one of {', '.join(known)}")
    return name


def _sizes(results: Folders, task: str, nodes: Numbers, policies: Labels = ()) -> list[tuple[int, pd.DataFrame]]:
    """Return the results of one task, of some or all policies, by cluster size in the order asked for."""
    frame = read_results(results)
    tasks = sorted(set(frame["task"]))
    if not task and len(tasks) > 1:
        raise bad_value("task", task, f"one of {', '.join(tasks)}")
    frame = frame[frame["task"] == _known("task", task or tasks[0], tasks)]
    if policies:
        known = list(dict.fromkeys(frame["policy"]))
        frame = frame[frame["policy"].isin([_known("policies", name, known) for _, name in policies])]
    sizes = sorted(set(frame["nodes"].astype(int)))
    for size in nodes:
        _known("nodes", str(size), sizes)
    return [(size, frame[frame["nodes"] == size]) for size in nodes or sizes]


def _allocation(results: Folders, traces: Names = ()) -> pd.DataFrame:
    table = pd.concat([read_table(folder, "allocation") for folder in results], ignore_index=True)
    table = table.drop_duplicates(list(RUN_KEYS), keep="last")
    known = list(dict.fromkeys(table["workload"]))
    chosen = [_known("traces", trace, known) for trace in traces] or known
    return pd.concat([table[table["workload"] == trace] for trace in chosen], ignore_index=True)


def _columns(points: pd.DataFrame, at: Numbers) -> Numbers:
    for column in at:
        _known("at", str(column), points.columns)
    return at
