"""What a document's block can draw from result folders: tables as Markdown, figures; a function a kind.

A function's parameters are the options of its marker; their types say how an option is written (see `READERS`).
Lists have commas; where a thing may be renamed, `LABEL=THING`.
"""

import csv as csv_files
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from aaml.chaos.runs import cells as cells_of_faults
from aaml.chaos.runs import read, summary
from aaml.errors import UserError, bad_value
from aaml.evaluation.bound_bill import FLUID, OFFLINE, SOLVER
from aaml.evaluation.evaluate import parse_seeds
from aaml.evaluation.figures import Panel, Picture, curve_figure, gain_figure, interval_figure
from aaml.evaluation.identity import with_identity
from aaml.evaluation.ranking import Ranking
from aaml.evaluation.results import Results
from aaml.evaluation.statistics import Interval, share_of_gain
from aaml.evaluation.tables import cells, headers, markdown_table
from aaml.learning.config import AGENTS, LIVE, NetworkAgent
from aaml.live.settings import LearnerSettings
from aaml.nodes.node_policy import NodePolicy
from aaml.nodes.settings import (
    ClusterAutoscalerSettings,
    HighNodeUtilizationSettings,
    KarpenterSettings,
    NodeTimes,
    Prices,
)
from aaml.openb.tables import KEYS as RUN_KEYS
from aaml.openb.tables import read_table
from aaml.settings import Settings, fields
from aaml.sim.openb import COLUMNS
from aaml.sim.tasks import find_task
from aaml.training.records import read_curve
from aaml.training.settings import TrainConfig
from gains import difference_figure, gains
from leaders import best_of_tasks, leaderboard, leaderboard_policies, leaderboard_protocol, model_card, model_index
from standings import KUBE_SCHEDULER
from standings import read as read_standings

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Names = tuple[str, ...]
Numbers = tuple[int, ...]
Folders = tuple[Path, ...]
Labels = tuple[tuple[str, str], ...]
"""(label, name) each; the label is empty where none was given."""
Runs = tuple[tuple[str, Folders], ...]
"""(label, folders) each."""
_BOUNDS = (FLUID, OFFLINE, SOLVER)
_OF_NODES = ("bill", "bill_per_core_hour")  # what nodes cost, which the fluid ratio is about
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
    header, rows = ["policy"], dict[str, list[str]]()
    for ranking in _rankings(results, task, nodes, reference, metric, (*policies, ("", reference)) if policies else ()):
        shown = headers(ranking)
        for column in columns:
            _known("columns", column, shown)
        for line in ranking.scaled(scale).lines:
            mine = rows.setdefault(line.policy, [])
            mine += [""] * (len(header) - 1 - len(mine))  # sizes that it was not run at
            best = line.policy == ranking.lines[0].policy
            texts = cells(line)
            mine += [f"**{texts[each]}**" if best and each == "value" else texts.get(each, "") for each in columns]
        value, better = ", ".join(filter(None, (f"{ranking.nodes} nodes", unit))), f"better than {reference} on"
        titles = {**shown, "value": value, "improvement": better, "verdict": f"against {reference}"}
        header += [titles[column] for column in columns]
    chosen = policies or tuple(("", name) for name in rows)
    return _markdown(header, [[label or name, *rows[_known("policies", name, rows)]] for label, name in chosen])


def ratios(
    results: Folders,
    tasks: Labels,
    policies: Labels,
    reference: str = "least-variance",
    nodes: Numbers = (),
    metric: str = "",
    seeds: str = "",
) -> str:
    """Return policies in terms of a reference: a row a policy, the ratio with its interval for each task and size.

    `tasks` and `policies` are selected, ordered and named. The metric is the task's own when none is given. The best
    ratio of a column is bold, bounds aside. A policy that was not run at a size has none there. `seeds` are those to
    pair, all when not given. Each policy is paired with the reference of the program that ran it last.
    """
    header, columns = ["policy"], list[Mapping[str, Interval]]()
    for label, task in tasks:
        for size, column in _ratios(results, task, nodes, reference, metric, policies, seeds).items():
            columns.append(column)
            header.append(f"{label or task}, {size} nodes")
    best = [
        min((ratio.mean, name) for name, ratio in column.items() if name not in (reference, *_BOUNDS))[1]
        for column in columns
    ]
    rows = []
    for label, name in policies:
        cells = []
        for column, first in zip(columns, best, strict=True):
            text = "1" if name == reference else f"{column[name]:.3f}" if name in column else ""
            cells.append(f"**{text}**" if name == first else text)
        rows.append([label or name, *cells])
    return _markdown(header, rows)


def ratios_figure(
    results: Folders,
    task: str,
    policies: Labels,
    reference: str = "kube-scheduler",
    nodes: Numbers = (),
    metric: str = "",
    seeds: str = "",
    learned: Names = (),
    axis: str = "",
) -> "Figure":
    """Draw by how many percent policies are below the reference, as `ratios` has them; a panel a size, bounds hollow.

    The policies stand in the order given, the first at the top; `learned` ones are in colour.
    """
    columns = _ratios(results, task, nodes, reference, metric, policies, seeds)
    rows = [(label or name, name) for label, name in policies if name != reference][::-1]
    for name in learned:
        _known("learned", name, [name for _, name in rows])
    figure = Picture(figsize=(3.4 + 2.2 * len(columns), 1.0 + 0.34 * len(rows)), layout="constrained")
    panels = figure.subplots(1, len(columns), squeeze=False, sharey=True, sharex=True).ravel()
    for axes, (size, column) in zip(panels, columns.items(), strict=True):
        for y, (_, name) in enumerate(rows):
            if name in column:
                colour, ratio = "#0b6e4f" if name in learned else "#6c757d", column[name]
                axes.hlines(y, *(100.0 * (1.0 - end) for end in ratio.ends), color=colour, lw=2.5, alpha=0.55)
                face = "white" if name in _BOUNDS else colour
                axes.plot(100.0 * (1.0 - ratio.mean), y, "o", color=colour, markerfacecolor=face, ms=6)
        axes.set_yticks(range(len(rows)), [label for label, _ in rows])
        axes.set_ylim(-0.6, len(rows) - 0.4)
        axes.tick_params(axis="y", length=0)
        axes.axvline(0.0, color="#6c757d", lw=1.0)
        axes.set_title(f"{size} nodes", loc="left", fontsize=10)
        axes.grid(axis="x", alpha=0.25)
        axes.spines[["top", "right", "left"]].set_visible(False)
    figure.supxlabel(axis or f"% below {reference}, {metric or find_task(task).metric}", fontsize=10)
    return figure


def _ratios(
    results: Folders, task: str, nodes: Numbers, reference: str, metric: str, policies: Labels, seeds: str
) -> dict[int, dict[str, Interval]]:
    """Return the ratio of each policy to the reference, by size; 1 for the reference itself.

    The fluid bound, where nobody reckoned it, is that of what the reference ran: its bill by its `fluid_ratio`.
    """
    chosen = _results(results, task)
    runs = with_identity(chosen.runs)
    if seeds:
        runs = runs[runs["seed"].isin(parse_seeds(seeds))]
    names = [name for _, name in policies]
    if FLUID in names and FLUID not in set(runs["policy"]) and metric in _OF_NODES:
        bound = runs[runs["policy"] == reference].assign(policy=FLUID)
        bound[metric] /= bound["fluid_ratio"]
        runs = pd.concat([runs, bound], ignore_index=True)
    program = runs.groupby(["nodes", "policy"])["code_sha256"].transform("last")
    runs = runs[(runs["code_sha256"] == program) | (runs["policy"] == reference)]
    chosen = replace(chosen, runs=runs).where(policies=(*names, reference))
    columns: dict[int, dict[str, Interval]] = {}
    for ranking in _sizes(chosen, nodes, reference, metric):
        column = columns.setdefault(ranking.nodes, {})
        for line in ranking.lines:
            if line.against is None:
                column[reference] = Interval(1.0, 1.0, 1.0, line.value.count)
            elif line.against.ratio:
                column[line.policy] = line.against.ratio
    return columns


def shares(
    results: Folders,
    tasks: Labels,
    policies: Labels,
    whole: str,
    reference: str = "kube-scheduler",
    relative: Names = (),
    thousandths: Names = (),
) -> str:
    """Return the values of policies, a row a task and size, and which share each has of what `whole` gains.

    Gains are those on the reference, paired by episode. Those of the `relative` tasks are geometric means of ratios to
    the reference; values of the tasks in `thousandths` are multiplied by 1000. A policy that was not run at a size
    gained nothing on the reference to begin with.
    """
    sharing = [(label or name, name) for label, name in policies if name != whole]
    header = ["task", "nodes", "episodes", reference, *(label or name for label, name in policies)]
    header += [f"share that {label} has" for label, _ in sharing]
    rows = []
    for label, task in tasks:
        for ranking in _rankings(results, task, (), reference, ""):
            lines = {line.policy: line for line in ranking.scaled(1000.0 if task in thousandths else 1.0).lines}
            runs = _results(results, task).where(nodes=ranking.nodes).frame()
            values = {
                policy: mine.sort_values("seed")[ranking.metric.name].to_numpy(dtype=float)
                for policy, mine in runs.groupby("policy")
            }
            if task in relative:
                values = {policy: np.log(mine) for policy, mine in values.items()}
            row = [label or task, str(ranking.nodes), str(ranking.seeds)]
            for policy in (reference, *(name for _, name in policies)):
                line = lines.get(policy)
                if line is None:
                    row.append("nothing gained")
                elif task in relative:
                    row.append("1" if line.against is None else str(line.against.ratio))
                else:
                    row.append(str(line.value))
            for _, policy in sharing:
                mine = values.get(policy)
                if mine is None:
                    row.append("0%")
                    continue
                share = share_of_gain(mine, values[reference], values[whole], ranking.metric.better)
                ends = () if share is None else (share.mean, share.low, share.high)
                row.append("{}% [{}%, {}%]".format(*(round(100.0 * end) for end in ends)) if ends else "")
            rows.append(row)
    return _markdown(header, rows)


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
    (ranking,) = _rankings(results, task, (nodes,), "", metric, policies)
    labels = {line.policy: line.policy for line in ranking.lines} | {name: label or name for label, name in policies}
    ranking = replace(ranking.scaled(scale), learned=frozenset(_known("learned", name, labels) for name in learned))
    better, seeds = ranking.metric.better, ranking.seeds
    title = title or f"{ranking.task}, {ranking.nodes} nodes, {seeds} seeds ({better} is better)"
    return interval_figure(ranking, title=title, axis=axis or ranking.metric.name, labels=labels)


def gains_figure(
    results: Folders,
    reference: str = "kube-scheduler",
    nodes: Numbers = (),
    policies: Labels = (),
    metric: str = "",
    task: str = "",
    axis: str = "",
    learned: Names = (),
) -> "Figure":
    """Draw by how many percent policies are better than the reference, with intervals, a panel a size."""
    chosen = (*policies, ("", reference)) if policies else ()
    rankings = _rankings(results, task, nodes, reference, metric, chosen)
    for name in learned:
        _known("learned", name, [line.policy for line in rankings[0].lines])
    rankings = [replace(ranking, learned=frozenset(learned)) for ranking in rankings]
    return gain_figure(*rankings, axis=axis, labels={name: label for label, name in policies if label})


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
    found = gains(table, policy, reference)
    marks = {name: label or "yes" for label, name in tuned}
    for tuned_on in marks:
        _known("tuned", tuned_on, list(dict.fromkeys(table["workload"])))
    above = {column: found.at(column) for column in at}
    rows = [
        [trace, marks.get(trace, "no"), f"{found.ends[trace]:.2f}"]
        + [f"{above[column][trace].difference:+.2f}" for column in at]
        for trace in dict.fromkeys(table["workload"])
    ]
    mean = sum(found.ends.values()) / len(rows)
    rows.append([f"**mean of {len(rows)}**", "", f"{mean:.2f}", *(f"**{found.mean(column):+.2f}**" for column in at)])
    header = ["trace", "tuned on", f"allocation @{COLUMNS - 1}", *(f"above {reference} @{x}" for x in at)]
    if not tuned:
        header, rows = header[:1] + header[2:], [row[:1] + row[2:] for row in rows]
    return _markdown(header, rows)


def openb_summary(results: Folders, policies: Labels, reference: str = "fgd", at: Numbers = (100, 130)) -> str:
    """Return a row a policy: mean difference over the traces, the least of a trace, and on how many it is better."""
    table, words = _allocation(results), ("better", "level", "worse")
    rows = []
    for label, name in policies:
        found = gains(table, name, reference)
        cells = [label or name]
        for column in at:
            traces = found.at(column)
            least = min(traces, key=lambda trace: traces[trace].difference.mean)
            verdicts = [standing.verdict for standing in traces.values()]
            cells += [
                f"{found.mean(column):+.2f}",
                f"{traces[least].difference.mean:+.2f} ({least})",
                " / ".join(str(verdicts.count(word)) for word in words),
            ]
        rows.append(cells)
    header = ["policy"]
    for column in at:
        header += [f"above {reference} @{column}", "least of a trace", f"traces {' / '.join(words)}"]
    return _markdown(header, rows)


def openb_figure(
    results: Folders, policy: str, reference: str = "fgd", traces: Names = (), title: str = "", axis: str = ""
) -> "Figure":
    """Draw the paired differences over arrived demand: a thin line a trace, a thick one for all, `traces` named."""
    table = _allocation(results)
    for trace in traces:
        _known("traces", trace, list(dict.fromkeys(table["workload"])))
    found = gains(table, policy, reference)
    title = title or f"{policy}, mean over {found.ours.index.get_level_values('seed').nunique()} seeds"
    return difference_figure(found, title, axis or f"points of GPU allocation above {reference}", traces)


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
    runs = _results(levels, task).where(nodes=nodes[0] if nodes else None).runs
    means = runs.groupby("policy")[_known("column", column.rpartition("/")[2], list(runs.columns))].mean()
    chosen = policies or tuple(("", str(policy)) for policy in means.index)
    return {label or policy: float(means[_known("policies", policy, means.index)]) for label, policy in chosen}


def csv(file: Path, columns: Labels = (), only: Labels = ()) -> str:
    """Return a CSV file as it stands, with some of its columns, renamed where there is a label.

    `only` selects rows, as COLUMN=VALUE; of a column that is named more than once all these values.
    """
    try:
        with file.open(newline="", encoding="utf-8") as lines:
            header, *rows = csv_files.reader(lines)
    except (OSError, ValueError, csv_files.Error) as error:
        raise UserError(f"{file}: not readable as CSV: {error}") from error
    chosen = columns or tuple(("", name) for name in header)
    places = [header.index(_known("columns", name, header)) for _, name in chosen]
    if any(len(row) != len(header) for row in rows):
        raise UserError(f"{file}: a row has not as many values as the header ({len(header)})")
    for column in dict.fromkeys(name for name, _ in only):
        place = header.index(_known("only", column, header))
        wanted = [_known("only", value, {row[place]: "" for row in rows}) for name, value in only if name == column]
        rows = [row for row in rows if row[place] in wanted]
    return _markdown([label or name for label, name in chosen], [[row[place] for place in places] for row in rows])


def chaos(file: Path) -> str:
    """Return the table of the runs in a file of `aaml bench chaos --out`: a row a fault."""
    names = ["fault", "runs", "pods a run", "lost", "doubled", "wrong runs", "seconds to recover: median", "longest"]
    return _markdown(names, [list(cells_of_faults(row)) for row in summary(read(file))])


def soak(file: Path) -> "Figure":
    """Draw the record of `aaml bench soak --out` over its minutes: latency, memory with file handles, and the loss."""
    try:
        record = pd.read_csv(file)
        minutes, figure = record["seconds"] / 60.0, Picture(figsize=(11.0, 3.0), layout="constrained")
        panels = [
            ("creation to bind, ms", {"median": record["latency_p50_s"] * 1e3, "p99": record["latency_p99_s"] * 1e3}),
            ("scheduler and learner", {"memory, MiB": record["memory_mib"], "file handles": record["handles"]}),
            ("loss", {"": record["loss"]}),
        ]
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"{file}: no record of aaml bench soak: {error}") from error
    for axes, (title, curves) in zip(figure.subplots(1, len(panels)), panels, strict=True):
        for name, values in curves.items():
            axes.plot(minutes, values, lw=1.2, label=name)
        axes.set_title(title, loc="left", fontsize=11)
        axes.set_xlabel("minutes")
        axes.set_yscale("log" if len(curves) > 1 else "linear")
        axes.set_ylim(bottom=None if len(curves) > 1 else 0.0)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        if len(curves) > 1:
            axes.legend(frameon=False, fontsize=8)
    return figure


def means(file: Path, by: Labels, columns: Labels, across: str = "", only: Labels = (), digits: int = 2) -> str:
    """Return the means of a CSV file's `columns`: a row for each value of `by`, in the order of the file.

    With `across`, a column, they stand side by side for each of its values, which `{}` in a label of `columns` means.
    `only` selects rows, as COLUMN=VALUE; of a column that is named more than once all these values.
    """
    frame = _rows(file, only)
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


def lines(
    file: Path, x: str, y: str, by: str, only: Labels = (), limits: Labels = (), title: str = "", axis: str = ""
) -> "Figure":
    """Draw the column `y` of a CSV file over its column `x`, a line for each value of `by`, both axes in decades.

    `only` selects rows as in `means`. `limits` are goals, as X=Y, drawn as marks.
    """
    frame = _rows(file, only)
    figure = Picture(figsize=(6.4, 3.6), layout="constrained")
    axes = figure.subplots()
    try:
        for name, group in frame.groupby(_known("by", by, frame.columns), sort=False):
            places, values = (
                group[_known(field, at, frame.columns)].astype(float) for field, at in (("x", x), ("y", y))
            )
            axes.plot(places, values, marker="o", ms=4, lw=1.4, label=name)
        if limits:
            axes.plot(*zip(*((float(at), float(most)) for at, most in limits), strict=True), "k_", ms=14, label="goal")
    except ValueError as error:
        raise UserError(f"{file}: {error}") from error
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel(x)
    axes.set_ylabel(axis or y)
    axes.set_title(title, loc="left", fontsize=11)
    axes.grid(alpha=0.25, which="both")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
    return figure


def standings(results: Path, pieces: Labels, openb: Path, bound: Path) -> str:
    """Return where learning stands: a row for each piece of a leaderboard's files and one for GPU sharing.

    The share is what the best learned policy gains on the best rule, of what it could gain.
    """
    header = ["task", "nodes", "best learned", "best rule", KUBE_SCHEDULER, "knows all", "share of what can be won"]
    rows = [
        [row.label, row.nodes, row.learned or "none ships", row.rule, row.kube_scheduler, row.most, row.share]
        for row in read_standings(results, pieces, openb, bound)
    ]
    return _markdown(header, rows)


def standings_figure(results: Path, pieces: Labels, openb: Path, bound: Path, axis: str = "") -> "Figure":
    """Draw by how many percent the best learned policy is better than the best rule, a line a row of `standings`."""
    shown = [row for row in read_standings(results, pieces, openb, bound) if row.gain][::-1]
    figure = Picture(figsize=(8.0, 0.8 + 0.32 * len(shown)), layout="constrained")
    axes = figure.subplots()
    for y, row in enumerate(shown):
        if row.gain:
            axes.hlines(y, row.gain.low, row.gain.high, color="#0b6e4f", lw=2.5, alpha=0.55)
            axes.plot(row.gain.mean, y, "o", color="#0b6e4f", ms=6)
    names = [f"{row.label.partition(':')[0]}, {row.nodes} nodes" for row in shown]
    axes.set_yticks(range(len(shown)), names)
    axes.axvline(0.0, color="#6c757d", lw=1.0)
    axes.set_xlabel(axis or "% better than the best rule")
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", alpha=0.25)
    axes.spines[["top", "right", "left"]].set_visible(False)
    return figure


_SETTINGS: Mapping[str, type[Settings]] = {
    "training": TrainConfig, "scheduler": LearnerSettings, "karpenter": KarpenterSettings,
    "cluster-autoscaler": ClusterAutoscalerSettings, "nodes": NodeTimes, "prices": Prices,
    "node-policy": NodePolicy, "high-node-utilization": HighNodeUtilizationSettings,
}  # fmt: skip


def settings(of: str) -> str:
    """Return the settings of a training, of a live scheduler, of autoscalers or of an agent: each as its field says.

    Agents with a network have a column for the default of each method: group, rewards, live.
    """
    if of in _SETTINGS:
        said = fields(_SETTINGS[of])
        parts = (fields(row.value) if isinstance(row.value, Settings) else [row] for row in said if not row.named)
        shown = list(chain.from_iterable(parts))
    else:
        shown = fields(AGENTS[_known("of", of, (*_SETTINGS, *AGENTS))])
    methods: Mapping[str, Any] = {}
    if isinstance(agent := AGENTS.get(of), NetworkAgent):
        methods = {"group": agent.resolved("group"), "rewards": agent.resolved("rewards"), "live": LIVE[agent.name]}
    header = ["setting", "takes", *(methods or ("default",)), "what for"]
    rows = []
    for row in shown:
        values = [getattr(each, row.name) for each in methods.values()] or [row.value]
        rows.append([f"`{row.name}`", row.accepted.removesuffix(" or none"), *map(_said, values), row.help])
    return _markdown(header, rows)


def _said(value: Any) -> str:
    """Return a default as a person would write it, nothing where there is none."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return "" if value is None else str(value)


TABLES: Mapping[str, Callable[..., str]] = {
    "evaluate": evaluate, "openb": openb, "openb-summary": openb_summary, "csv": csv, "chaos": chaos,
    "means": means, "ratios": ratios, "shares": shares, "settings": settings, "leaderboard": leaderboard,
    "leaderboard-policies": leaderboard_policies, "leaderboard-protocol": leaderboard_protocol,
    "standings": standings, "ranking": best_of_tasks, "model-index": model_index, "model-card": model_card,
}  # fmt: skip
FIGURES: Mapping[str, "Callable[..., Figure]"] = {
    "evaluate-figure": evaluate_figure, "gains-figure": gains_figure, "openb-figure": openb_figure, "curves": curves,
    "soak": soak, "lines": lines, "standings-figure": standings_figure, "ratios-figure": ratios_figure,
}  # fmt: skip


def _rows(file: Path, only: Labels) -> pd.DataFrame:
    """Return the rows of a CSV file, as text, that have the values of `only` in its columns."""
    try:
        frame = pd.read_csv(file, dtype=str, keep_default_na=False)
    except (OSError, ValueError) as error:
        raise UserError(f"{file}: not readable as CSV: {error}") from error
    for column in dict.fromkeys(name for name, _ in only):
        found = list(dict.fromkeys(frame[_known("only", column, frame.columns)]))
        frame = frame[frame[column].isin([_known("only", value, found) for name, value in only if name == column])]
    return frame


def _markdown(header: list[str], rows: list[list[str]]) -> str:
    return markdown_table(pd.DataFrame(rows, columns=header))


def _known(field: str, name: str, names: Iterable[Any]) -> str:
    known = [str(each) for each in names]
    if name not in known:
        raise bad_value(field, name, f"one of {', '.join(known)}")
    return name


def _rankings(
    results: Folders, task: str, nodes: Numbers, reference: str, metric: str, policies: Labels = ()
) -> list[Ranking]:
    """Return how policies, some or all, compare on one task, at the sizes in the order asked for."""
    return _sizes(_results(results, task, policies), nodes, reference, metric)


def _sizes(results: Results, nodes: Numbers, reference: str, metric: str) -> list[Ranking]:
    known = sorted(set(results.runs["nodes"].astype(int)))
    sizes = [int(_known("nodes", str(size), known)) for size in nodes] or known
    return [ranking for size in sizes for ranking in results.where(nodes=size).compare(reference, metric)]


def _results(folders: Folders, task: str, policies: Labels = ()) -> Results:
    """Return the results of one task, of some or all policies."""
    results = Results.read(*folders)
    tasks = sorted(set(results.runs["task"]))
    if not task and len(tasks) > 1:
        raise bad_value("task", task, f"one of {', '.join(tasks)}")
    results = results.where(_known("task", task or tasks[0], tasks))
    known = list(dict.fromkeys(results.runs["policy"]))
    return results.where(policies=[_known("policies", name, known) for _, name in policies])


def _allocation(results: Folders, traces: Names = ()) -> pd.DataFrame:
    table = pd.concat([read_table(folder, "allocation") for folder in results], ignore_index=True)
    table = table.drop_duplicates(list(RUN_KEYS), keep="last")
    known = list(dict.fromkeys(table["workload"]))
    chosen = [_known("traces", trace, known) for trace in traces] or known
    return pd.concat([table[table["workload"] == trace] for trace in chosen], ignore_index=True)
