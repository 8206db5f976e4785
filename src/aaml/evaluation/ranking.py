"""Rankings: policies compared on the same episodes, as values with intervals, best first. Views only show them."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from aaml.errors import UserError, bad_value
from aaml.evaluation.statistics import Interval, Paired, mean_interval, paired
from aaml.sim.metrics import Metric


@dataclass(frozen=True, slots=True)
class Line:
    """One policy: its value, how it compares with the reference on the same seeds, and the time of its decisions.

    `against` is None for the reference itself, `equal` the share of the seeds on which both have the same value. The
    times, in ms, are medians over the seeds of each run's 50th and 99th percentile; NaN where they were not measured.
    """

    policy: str
    value: Interval
    against: Paired | None
    p50_ms: float = float("nan")
    p99_ms: float = float("nan")
    equal: float = 0.0


@dataclass(frozen=True, slots=True)
class Ranking:
    """The policies on one task at one size, best mean first; `learned` are those with a model.

    They are paired by `unit`: by seed, or by window of a trace. `about` says what else the episodes were made of, where
    that tells rankings apart.
    """

    task: str
    nodes: int
    metric: Metric
    reference: str
    lines: tuple[Line, ...]
    learned: frozenset[str] = frozenset()
    unit: str = "seed"
    about: str = ""

    @property
    def seeds(self) -> int:
        """How many seeds each policy was run on."""
        return self.lines[0].value.count

    @property
    def title(self) -> str:
        """What is compared, in a line."""
        compared = f"{self.metric.name} ({self.metric.better} is better), {self.seeds} {self.unit}s"
        size = f", {self.nodes} nodes" if self.nodes else ""  # a recording may begin before its nodes do
        return f"{self.task}{size}{', ' * bool(self.about)}{self.about}: {compared}"

    def scaled(self, factor: float) -> "Ranking":
        """Return the same in another unit: all values multiplied."""
        lines = (
            replace(
                line,
                value=line.value.scaled(factor),
                against=line.against and replace(line.against, difference=line.against.difference.scaled(factor)),
            )
            for line in self.lines
        )
        return replace(self, lines=tuple(lines))


def rank(
    frame: pd.DataFrame,
    metric: Metric,
    reference: str,
    learned: frozenset[str] = frozenset(),
    unit: str = "seed",
    about: str = "",
    *,
    confidence: float = 0.95,
) -> Ranking:
    """Compare the policies in results of one task at one size; a `unit`, seed or window, is paired by its number.

    `confidence` is that of each interval and verdict.

    Raises `UserError` when the reference or the metric is missing, and when a policy was run on other seeds, twice on
    one, or from two files.
    """
    task, nodes = str(frame["task"].iloc[0]), int(frame["nodes"].iloc[0])
    where = f"{task}, {nodes} nodes{', ' * bool(about)}{about}"
    if metric.name not in frame.columns:
        raise bad_value("metric", metric.name, f"one of {', '.join(frame.columns)}")
    runs = {str(name): group.set_index("seed").sort_index() for name, group in frame.groupby("policy")}
    for policy, run in runs.items():
        if len(files := sorted(set(run.get("policy_sha256", ())))) > 1:
            raise UserError(f"{where}: {policy} is of several files: {', '.join(files)}")
        if not run.index.is_unique:
            again = run.index[run.index.duplicated()][0]
            raise UserError(f"{where}: {policy} has {unit} {again} more than once, which says nothing new")
    if reference not in runs:
        raise UserError(f"{where}: reference: {reference!r} is not among {', '.join(sorted(runs))}")
    base = runs[reference]
    lines = []
    for policy, run in runs.items():
        if list(run.index) != list(base.index):
            raise UserError(
                f"{where}: {policy} was run on other {unit}s than {reference}: only paired {unit}s are compared"
            )
        values = run[metric.name].to_numpy(dtype=float)
        against, equal = None, 0.0
        if policy != reference:
            theirs = base[metric.name].to_numpy(dtype=float)
            against, equal = (
                paired(values, theirs, metric.better, confidence=confidence),
                float((values == theirs).mean()),
            )
        times = [
            float(np.median(run[name])) if name in run else np.nan for name in ("latency_p50_ms", "latency_p99_ms")
        ]
        lines.append(
            Line(policy, mean_interval(values, confidence=confidence, least=0.0), against, times[0], times[1], equal)
        )
    lines.sort(key=lambda line: line.value.mean, reverse=metric.better == "higher")
    return Ranking(task, nodes, metric, reference, tuple(lines), learned & runs.keys(), unit, about)


def numbers(rankings: Iterable[Ranking]) -> pd.DataFrame:
    """Return a row a policy on a task at a size; the numbers of the comparison are NaN for the reference."""
    return pd.DataFrame([_numbers(ranking, line) for ranking in rankings for line in ranking.lines])


def _numbers(ranking: Ranking, line: Line) -> dict[str, object]:
    facts = {"task": ranking.task, "nodes": ranking.nodes, "policy": line.policy, "metric": ranking.metric.name}
    facts |= {"about": ranking.about} if ranking.about else {}
    value, against = line.value, line.against
    (low, mean, high), (least, ratio, most) = (
        (np.nan,) * 3 if interval is None else (interval.low, interval.mean, interval.high)
        for interval in ((None, None) if against is None else (against.difference, against.ratio))
    )
    return facts | {
        "seeds": value.count, "mean": value.mean, "low": value.low, "high": value.high,
        "reference": ranking.reference, "difference": mean, "difference_low": low, "difference_high": high,
        "ratio": ratio, "ratio_low": least, "ratio_high": most,
        "improvement": np.nan if against is None else against.improvement,
        "verdict": "reference" if against is None else against.verdict, "p50_ms": line.p50_ms, "p99_ms": line.p99_ms,
    }  # fmt: skip
