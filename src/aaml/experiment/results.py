"""Result folders: `results.csv` (a row a run, appended as runs end), tables and figures made from it."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aaml.errors import UserError, bad_value
from aaml.experiment.report import Line, Page, interval_figure, lines, table, text_table
from aaml.experiment.statistics import Direction
from aaml.sim.tasks import find_task

if TYPE_CHECKING:
    import pandas as pd

RESULTS = "results.csv"
KEYS = ("task", "nodes", "policy", "seed")
_LATENCIES = {"ms p50": "latency_p50_ms", "ms p99": "latency_p99_ms"}


class ResultFile:
    """Appends rows to `results.csv` of a folder; what is there stays, so that a run that was cut off can go on."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / RESULTS
        self._columns: list[str] = []
        if self.path.exists():
            with self.path.open(newline="", encoding="utf-8") as file:
                self._columns = next(csv.reader(file), [])

    def append(self, row: Mapping[str, Any]) -> None:
        """Write one row. Raises `UserError` when the file holds another kind of result."""
        if not self._columns:
            self._columns = list(row)
            with self.path.open("w", newline="", encoding="utf-8") as file:
                csv.writer(file).writerow(self._columns)
        if set(row) != set(self._columns):
            other = min(set(row) ^ set(self._columns))
            raise UserError(f"{self.path}: has other columns than this run ({other}); choose another --out")
        with self.path.open("a", newline="", encoding="utf-8") as file:
            csv.DictWriter(file, self._columns).writerow(row)


def read_results(folders: Sequence[Path]) -> "pd.DataFrame":
    """Read result folders (or files) into one frame; the last run of a (task, nodes, policy, seed) counts."""
    import pandas as pd

    frames = []
    for folder in folders:
        path = folder / RESULTS if folder.is_dir() else folder
        if not path.is_file():
            raise bad_value("results", str(folder), f"a folder with {RESULTS}, as `aaml evaluate --out` makes it")
        try:
            frame = pd.read_csv(path)
        except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError) as error:
            raise UserError(f"{path}: not readable as results: {error}") from error
        missing = [key for key in KEYS if key not in frame.columns]
        if missing:
            raise UserError(f"{path}: column {missing[0]} is missing; expected {', '.join(KEYS)} and metrics")
        frames.append(frame)
    if not frames:
        raise UserError("results: none given; expected folders made by `aaml evaluate`")
    whole = pd.concat(frames, ignore_index=True)
    return whole.drop_duplicates(list(KEYS), keep="last").reset_index(drop=True)


def metric_of(task: str, metric: str | None) -> tuple[str, Direction]:
    """Return the metric that judges a task and its direction; a metric of one's own counts as lower is better."""
    preset = find_task(task)
    if metric is None or metric == preset.metric:
        return preset.metric, "higher" if preset.higher_is_better else "lower"
    higher = any(word in metric for word in ("empty", "allocation", "bound"))
    return metric, "higher" if higher else "lower"


def judge(
    group: "pd.DataFrame", reference: str, metric: str | None = None, *, scale: float = 1.0
) -> tuple[list[Line], "pd.DataFrame"]:
    """Return a line a policy, best first, and the table that says so, for results of one task at one size.

    The metric is multiplied by `scale`; decision times are medians over the seeds. Raises `UserError` for an unknown
    metric or reference, and for policies that were run on different seeds.
    """
    task, nodes = str(group["task"].iloc[0]), group["nodes"].iloc[0]
    name, better = metric_of(task, metric)
    if name not in group.columns:
        raise bad_value("metric", name, f"one of {', '.join(c for c in group.columns if c not in KEYS)}")
    try:
        rows = lines(group.assign(**{name: group[name] * scale}), name, better, reference)
    except ValueError as error:
        raise UserError(f"{task}, {nodes} nodes: {error}") from error
    shown = table(rows, reference)
    for header, column in _LATENCIES.items():
        if column in group.columns:
            shown[header] = [f"{group[group.policy == row.policy][column].median():.2f}" for row in rows]
    return rows, shown


def compare_all(
    frame: "pd.DataFrame",
    reference: str,
    *,
    metric: str | None = None,
    page: Page | None = None,
    figures: Path | None = None,
    learned: Sequence[str] = (),
) -> list[str]:
    """Return a text table for every task and size, also added to `page`, with figures in a folder when given."""
    texts = []
    for (task, nodes), group in frame.groupby(["task", "nodes"], sort=True):
        name, better = metric_of(str(task), metric)
        rows, shown = judge(group, reference, metric)
        title = f"{task}, {nodes} nodes: {name} ({better} is better), {rows[0].value.count} seeds"
        texts.append(f"{title}\n{text_table(shown)}")
        if page is not None:
            page.heading(title)
            page.table(shown)
            file = None if figures is None else figures / f"{task}-{nodes}-{name}.png"
            page.figure(interval_figure(rows, title, name, learned), title, file)
    return texts
