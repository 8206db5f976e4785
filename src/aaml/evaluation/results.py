"""Results: a row a run. They are compared, shown, saved in a folder, appended to as runs end, and read back."""

import csv
import io
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from aaml.errors import UserError, bad_value
from aaml.evaluation.comparison import Comparison
from aaml.evaluation.identity import AS_TEXT, EPISODE, latest, with_identity
from aaml.evaluation.page import written
from aaml.evaluation.program import program_sha256
from aaml.evaluation.ranking import rank
from aaml.evaluation.run_spec import RunSpec, find_attempt, read_run_specs, write_run_specs
from aaml.extras import lazily
from aaml.files import append_row, whole_lines, write_bytes, write_text
from aaml.sim.metrics import METRICS, find_metric
from aaml.sim.tasks import find_task

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from aaml.evaluation import report
    from aaml.insight.explanation import Explanation
else:  # matplotlib: only who draws waits for it
    report = lazily("aaml.evaluation.report")

RESULTS = "results.csv"
_log = logging.getLogger(__name__)
KEYS = ("task", "nodes", "policy", "seed")
RUN = (*KEYS, *EPISODE)
"""What a run is known by: the last one of a policy on an episode counts."""
REFERENCE = "kube-scheduler"
_NAMES = dict.fromkeys(("task", "policy"), "str")
"""For `pandas.read_csv`: a label such as 1, 01 or NA is a name, no number and not nothing."""
_NOTHING = ["", "nan", "NaN"]


@dataclass(frozen=True, eq=False, repr=False)
class Results:
    """Runs of policies on tasks: a row has `task`, `nodes`, `policy`, `seed` and the metrics of that run.

    What else an episode was made of (see `aaml.evaluation.identity`) is in its row too, and keeps results apart.

    `learned` are the policies with a model, which figures show in colour. `run_specs` say by task how its runs were
    made, so that a decision can be looked up. Printed, or at the end of a notebook's cell,
    results are compared with kube-scheduler, or with the first policy where it took no part.
    """

    runs: pd.DataFrame
    learned: frozenset[str] = frozenset()
    run_specs: Mapping[str, RunSpec] = field(default_factory=dict)

    @classmethod
    def of(
        cls, rows: Iterable[Mapping[str, Any]], learned: Iterable[str] = (), spec: RunSpec | None = None
    ) -> "Results":
        """Make results of rows."""
        run_specs = {} if spec is None else {spec.task.name: spec}
        return cls(pd.DataFrame([dict(row) for row in rows]), frozenset(learned), run_specs)

    @classmethod
    def read(cls, *folders: Path | str) -> "Results":
        """Read folders (or files) that `save` or `aaml evaluate` wrote; the last run of a policy on a seed counts.

        Raises `UserError` for what holds no results.
        """
        frames = [_read(Path(folder)) for folder in folders]
        if not frames:
            raise UserError("results: none given; expected folders made by `aaml evaluate`")
        whole = pd.concat(frames, ignore_index=True)
        if several := _of_several(whole):
            _log.warning("of several policies that are called %s the last one counts", ", ".join(several))
        again = with_identity(whole).duplicated(list(RUN), keep="last")
        runs = latest(whole[~again]).reset_index(drop=True)
        run_specs = read_run_specs(Path(folder) for folder in folders)
        learned = (label for spec in run_specs.values() for label in spec.learned)
        return cls(runs, frozenset(learned), run_specs)

    def frame(self) -> pd.DataFrame:
        """Return a copy of the rows, to reckon with."""
        return self.runs.copy()

    def plus(self, rows: Iterable[Mapping[str, Any]], *, first: bool = False) -> "Results":
        """Return these with more rows, after those that are there or before."""
        more = pd.DataFrame([dict(row) for row in rows])
        frames = [more, self.runs] if first else [self.runs, more]
        return replace(self, runs=pd.concat([each for each in frames if len(each)], ignore_index=True))

    def where(
        self, task: str = "", nodes: int | None = None, policies: Iterable[str] = (), seed: int | None = None
    ) -> "Results":
        """Return the runs on a task, at a size, of some policies, on a seed; what is left out counts with all values.

        Raises `UserError` for a value that there is none of.
        """
        runs = self.runs
        wanted: tuple[tuple[str, Iterable[Any]], ...] = (
            ("task", [task] if task else []), ("nodes", [] if nodes is None else [nodes]), ("policy", policies),
            ("seed", [] if seed is None else [seed]),
        )  # fmt: skip
        for column, values in wanted:
            chosen, known = list(values), list(dict.fromkeys(runs[column].tolist()))
            for value in chosen:
                if value not in known:
                    raise bad_value(column, value, f"one of {', '.join(map(str, known))}")
            if chosen:
                runs = runs[runs[column].isin(chosen)]
        return replace(self, runs=runs)

    def compare(self, reference: str = "", metric: str = "", *, confidence: float = 0.95) -> Comparison:
        """Compare the policies with one of them, on each task and size, by a metric or else the task's own.

        `confidence` is that of each interval: of a choice it is above 95% (`aaml.evaluation.statistics.together`).

        Runs of other episodes (another number of pods, another file of the task, another program) are compared apart.
        Raises `UserError` for an unknown metric or reference, and for policies that were run on different seeds.
        """
        policies = list(dict.fromkeys(self.runs["policy"]))
        reference = reference or (REFERENCE if REFERENCE in policies else policies[0])
        runs = with_identity(self.runs)
        varying = [name for name in EPISODE[1:] if len(set(runs[name])) > 1]
        rankings = []
        for (task, _, pods, *_), group in runs.groupby(["task", "nodes", *EPISODE], sort=True):
            about = [f"{pods} pods"] if pods else []
            about += [f"{name} {group[name].iloc[0] or 'unknown'}" for name in varying]
            rankings.append(
                rank(
                    group,
                    find_metric(metric or find_task(str(task)).metric),
                    reference,
                    self.learned,
                    self._unit(str(task)),
                    ", ".join(about),
                    confidence=confidence,
                )
            )
        return Comparison(tuple(rankings))

    def _unit(self, task: str) -> str:
        """Return what the runs on a task are paired by."""
        spec = self.run_specs.get(task)
        return "seed" if spec is None else spec.task.unit

    def explain(
        self, decision: int | str = 0, *, policy: str = "", seed: int | None = None, nodes: int | None = None,
        task: str = "",
    ) -> "Explanation":  # fmt: skip
        """Explain a decision: the run is played again up to it.

        Parameters
        ----------
        decision
            Its number in the run, from 0, or the name of a pod: the latest attempt to place it.
        policy, seed, nodes, task
            Which run; those of the first row with what is given.

        Returns
        -------
        Explanation
            Which filter refused which nodes, the score of each node and what it is made of. It prints as a table.

        Raises
        ------
        UserError
            For a run or decision that there is none of, and where the policy or the task is not what it was in the run.

        """
        runs = self.where(task, nodes, [policy] if policy else [], seed).runs
        row = dict(with_identity(runs.head(1)).iloc[0])
        spec = self.run_specs.get(row["task"]) or RunSpec(find_task(row["task"]))
        if row["pods"]:
            spec = replace(spec, pods=int(row["pods"]))
        if changed := spec.changed(row):
            raise UserError(f"{changed}; it would decide otherwise: bring it back, or evaluate it again")
        number = decision if isinstance(decision, int) else None
        seed = int(row["seed"])
        replay = spec.replay(
            row["policy"], seed, int(row["nodes"]),
            until=None if number is None else lambda replay: len(replay.decisions) > number,
        )  # fmt: skip
        explained = spec.explain(replay, find_attempt(replay, decision), seed=seed)
        if row["code_sha256"] in ("", program_sha256()):
            return explained
        note = "another version of AAML made this run: this is what this one decides"
        return replace(explained, notes=(*explained.notes, note))

    def plot(self, reference: str = "", metric: str = "") -> "Figure":
        """Draw the interval of each policy."""
        return self.compare(reference, metric).plot()

    def save(self, folder: Path | str) -> Path:
        """Write results.csv, report.html and its figures into a folder, over those that are there; returns its path."""
        folder = Path(folder)
        write_text(folder / RESULTS, self.runs.to_csv(index=False), field="results")
        write_run_specs(folder, self.run_specs)
        title = f"{', '.join(dict.fromkeys(self.runs['task']))}: policies compared"
        written(lambda: report.write_report(self.runs, self.run_specs, [self.compare()], folder, title))
        return folder

    def __repr__(self) -> str:
        return str(self.compare())

    def _repr_html_(self) -> str:
        return self.compare()._repr_html_()


class ResultFile:
    """Appends rows to `results.csv` of a folder; what is there stays, so that a run that was cut off can go on.

    Where a policy is evaluated again, its last run on a seed counts: readers take it, and `settle` drops the others.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / RESULTS

    def append(self, row: Mapping[str, Any]) -> None:
        """Write one row. Raises `UserError` when the file holds another kind of result."""
        append_row(self.path, row)

    def known(self) -> Results | None:
        """Return what is there, None where no run is; without a last row that lacks its end.

        Half of the number or hash at its end looks like a whole one. What is left out is run again.
        """
        self._cut()
        there = self.path.exists() and whole_lines(self.path).count("\n") > 1
        return Results.read(self.path.parent) if there else None

    def _cut(self) -> None:
        ended, newline, rest = (self.path.read_bytes() if self.path.is_file() else b"").rpartition(b"\n")
        if rest:
            _log.warning("%s: its last row lacks its end, and is left out", self.path)
            write_bytes(self.path, ended + newline, field="out")

    def settle(self) -> None:
        """Leave the last run alone where a policy was evaluated on a seed more than once."""
        header, *lines = csv.reader(io.StringIO(whole_lines(self.path)))
        if wrong := [number for number, line in enumerate(lines, 1) if len(line) != len(header)]:
            raise UserError(f"{self.path}: row {wrong[0]} has not as many cells as the first line")
        places = [header.index(key) for key in RUN if key in header]
        last: dict[tuple[str, ...], list[str]] = {}
        for line in lines:
            key = tuple(line[place] for place in places)
            last.pop(key, None)
            last[key] = line
        if len(last) < len(lines):
            text = io.StringIO()
            csv.writer(text, lineterminator="\n").writerows([header, *last.values()])
            write_text(self.path, text.getvalue(), field="out")


def _of_several(frame: pd.DataFrame) -> list[str]:
    """Return the labels that several policies have on the same task and size."""
    runs = with_identity(frame).groupby(["task", "nodes", "policy", *EPISODE])["policy_sha256"].nunique()
    return sorted({str(key[2]) for key in runs.index[runs > 1]})


def _read(folder: Path) -> pd.DataFrame:
    path = folder / RESULTS if folder.is_dir() else folder
    if not path.is_file():
        raise bad_value("results", str(folder), f"a folder with {RESULTS}, as `aaml evaluate --out` makes it")
    try:
        text = whole_lines(path)
        nothing = {name: _NOTHING for name in next(csv.reader(io.StringIO(text)), ()) if name not in _NAMES}
        frame = pd.read_csv(io.StringIO(text), dtype=AS_TEXT | _NAMES, keep_default_na=False, na_values=nothing)
    except (OSError, ValueError, csv.Error) as error:
        raise UserError(f"{path}: not readable as results: {' '.join(str(error).split())}") from error
    missing = [key for key in KEYS if key not in frame.columns]
    if missing:
        raise UserError(f"{path}: column {missing[0]} is missing; expected {', '.join(KEYS)} and metrics")
    if frame.empty:
        raise UserError(f"{path}: holds no results")
    for column in KEYS:
        if (empty := frame[column].isna() | frame[column].eq("")).any():
            raise UserError(f"{path}: {column} is missing in row {int(empty.argmax()) + 1}")
    for column in ("nodes", "seed", *METRICS.keys() & set(frame.columns)):
        numbers = pd.to_numeric(frame[column], errors="coerce")
        if (wrong := frame[column][numbers.isna() & frame[column].notna()]).size:
            raise bad_value(f"{path}: {column}", wrong.iloc[0], "a number")
    return frame
