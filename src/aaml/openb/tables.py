"""The benchmark's tables: writing finished runs as CSV, reading the published ones, and comparing the two."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from aaml.errors import UserError
from aaml.evaluation.statistics import mean_interval
from aaml.files import write_json, write_text
from aaml.sim.openb import COLUMNS, OpenbResult

TABLES = ("allocation", "frag_amount", "frag_ratio")
KEYS = ("workload", "policy", "tune", "seed")
PUBLISHED_FILES = {
    "allocation": "analysis_allo_discrete.csv",
    "frag_amount": "analysis_frag_discrete.csv",
    "frag_ratio": "analysis_frag_ratio_discrete.csv",
}
# Our policies by the names of the published tables.
PUBLISHED_POLICIES = {
    "01-Random": "random", "02-DotProd": "dot-product", "03-GpuClustering": "gpu-clustering",
    "04-GpuPacking": "gpu-packing", "05-BestFit": "best-fit", "06-FGD": "fgd",
}  # fmt: skip
_WORKLOAD_PREFIX = "openb_pod_list_"
_TOLERANCE = 1e-9  # the published frag ratios are printed with 15 digits
_X = [str(x) for x in range(COLUMNS)]
Published = dict[str, dict[tuple[str, str, int], npt.NDArray[np.float64]]]
"""Curves [131] by table name and (trace, policy, seed)."""


def expected_folder() -> Path | None:
    """Return the published tables' folder: `AAML_EXPECTED`, else `data/expected`; None where there is none."""
    named = os.environ.get("AAML_EXPECTED")
    folder = Path(named) if named else Path("data/expected")
    if (folder / PUBLISHED_FILES["allocation"]).is_file():
        return folder
    if named:
        raise UserError(f"AAML_EXPECTED: {named!r} has no {PUBLISHED_FILES['allocation']}")
    return None


def published_tables(folder: Path) -> Published:
    """Read the published tables."""
    tables: Published = {}
    for name, file in PUBLISHED_FILES.items():
        frame = pd.read_csv(folder / file)
        traces = frame["workload"].str.removeprefix(_WORKLOAD_PREFIX)
        keys = zip(traces, frame["sc_policy"].map(PUBLISHED_POLICIES), frame["seed"].astype(int), strict=True)
        tables[name] = dict(zip(keys, frame[_X].to_numpy(dtype=float), strict=True))
    return tables


def curves(result: OpenbResult) -> Mapping[str, npt.NDArray[np.float64]]:
    """Return a run's curves by table name."""
    return {"allocation": result.allocation, "frag_amount": result.frag_amount, "frag_ratio": result.frag_ratio}


def differences(result: OpenbResult, published: Published) -> int | None:
    """Count the columns of a run that differ from the published ones; None where that run was not published."""
    key = (result.trace, result.policy, result.seed)
    if key not in published["allocation"]:
        return None
    return sum(
        int((np.abs(published[name][key] - values) > _TOLERANCE).sum()) for name, values in curves(result).items()
    )


def table(results: Iterable[OpenbResult], name: str) -> pd.DataFrame:
    """Return one of `TABLES` as a frame with the columns workload, policy, tune, seed, 0 ... 130."""
    rows = [[r.trace, r.policy, r.tune, r.seed, *curves(r)[name].tolist()] for r in results]
    return pd.DataFrame(rows, columns=[*KEYS, *_X])


def write_tables(results: list[OpenbResult], folder: Path) -> None:
    """Write the three tables, each whole or not at all."""
    for name in TABLES:
        write_text(folder / f"{name}.csv", table(results, name).to_csv(index=False), field="out")


def read_table(folder: Path, name: str) -> pd.DataFrame:
    """Read one of the tables that `write_tables` wrote; `UserError` names the file that is missing or no table."""
    path = folder / f"{name}.csv"
    if not path.is_file():
        raise UserError(f"{folder}: {path.name} is missing; run `aaml bench openb --out {folder}` first")
    try:
        frame = pd.read_csv(path)
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not readable as a table: {error}") from error
    missing = [column for column in (*KEYS, *_X) if column not in frame.columns]
    if missing:
        raise UserError(f"{path}: column {missing[0]} is missing; expected {', '.join(KEYS)}, 0 ... {COLUMNS - 1}")
    return frame


@dataclass(frozen=True, slots=True)
class PolicySummary:
    """A policy on a trace: means over seeds at 100 and 130 percent arrived, and how they stand to the published runs.

    `interval_130` is where the published mean may lie: ours with the 99% interval of the paired difference.
    """

    trace: str
    policy: str
    seeds: int
    allocation_100: float
    allocation_130: float
    frag_amount_130: float
    failed: float
    decisions_per_s: float
    compared: int
    matching: int
    published_130: float
    interval_130: tuple[float, float]

    @property
    def verdict(self) -> str:
        """In words: exact for the deterministic policies, within or outside the published interval for random."""
        if not self.compared:
            return ""
        if self.policy != "random":
            return f"{self.matching} of {self.compared} runs match"
        if self.seeds == 1 or self.compared < self.seeds:
            return f"published mean {self.published_130:.2f}"
        low, high = self.interval_130
        where = "within" if low <= self.published_130 <= high else "OUTSIDE"
        return f"published mean {self.published_130:.2f} {where} {low:.2f} ... {high:.2f}"


def summarise(results: list[OpenbResult], published: Published | None) -> list[PolicySummary]:
    """Summarise the runs by trace and policy, against the published runs where there are such."""
    groups: dict[tuple[str, str], list[OpenbResult]] = {}
    for result in results:
        groups.setdefault((result.trace, result.policy), []).append(result)
    summary = []
    for (trace, policy), runs in groups.items():
        counts = [differences(run, published) for run in runs] if published else []
        known = [run for run, count in zip(runs, counts, strict=False) if count is not None]
        there = [published["allocation"][trace, policy, run.seed][-1] for run in known] if published else []
        last = np.array([run.allocation[-1] for run in runs])
        difference = mean_interval(last - np.array(there), confidence=0.99) if len(there) == len(runs) > 1 else None
        reference = float(np.mean(there)) if there else float("nan")
        interval = (last.mean() - difference.high, last.mean() - difference.low) if difference else (reference,) * 2
        summary.append(
            PolicySummary(
                trace, policy, len(runs),
                float(np.mean([run.allocation[100] for run in runs])), float(last.mean()),
                float(np.mean([run.frag_amount[-1] for run in runs])), float(np.mean([run.failed for run in runs])),
                sum(run.decisions for run in runs) / max(sum(run.seconds for run in runs), 1e-9),
                len(known), counts.count(0), reference, interval,
            )
        )  # fmt: skip
    return summary


def write_summary(
    summary: list[PolicySummary], results: list[OpenbResult], settings: Mapping[str, object], folder: Path
) -> None:
    """Write summary.json: the settings, a line per trace and policy, and each run's failures and speed."""
    runs = [
        {
            "workload": r.trace, "policy": r.policy, "tune": r.tune, "seed": r.seed, "failed": r.failed,
            "decisions": r.decisions, "seconds": round(r.seconds, 4), "allocation_100": r.allocation[100],
            "allocation_130": r.allocation[-1],
        }
        for r in results
    ]  # fmt: skip
    policies = [
        {
            "workload": line.trace, "policy": line.policy, "seeds": line.seeds,
            "allocation_100": line.allocation_100, "allocation_130": line.allocation_130,
            "frag_amount_130": line.frag_amount_130, "failed": line.failed,
            "decisions_per_s": round(line.decisions_per_s), "published_runs_compared": line.compared,
            "published_runs_matching": line.matching,
        }
        for line in summary
    ]  # fmt: skip
    content = {"settings": settings, "policies": policies, "runs": runs}
    write_json(folder / "summary.json", content, indent=1, field="out")
