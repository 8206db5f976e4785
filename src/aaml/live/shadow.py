"""What a shadow log says: how often a policy agrees with the scheduler that it looked at, and which does better."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from aaml.errors import UserError, bad_value
from aaml.evaluation.statistics import Interval, bootstrap
from aaml.live.observers.shadow import OBJECTIVES


@dataclass(frozen=True)
class ShadowReport:
    """What a log says.

    `agreement`: share of pods on the same node. `expected_agreement`: what choosing at random among the feasible nodes
    would give. `infeasible`: pods whose actual node fails our filters. `objectives`: name -> (mean after the policy's
    choice, mean after the actual one, interval of the mean difference policy - actual).
    """

    policies: tuple[str, ...]
    pods: int
    agreement: float
    expected_agreement: float
    infeasible: int
    objectives: Mapping[str, tuple[float, float, Interval]]

    def __str__(self) -> str:
        lines = [
            f"policy              {', '.join(self.policies)}",
            f"pods                {self.pods}",
            f"agreement           {self.agreement:.1%} (by chance {self.expected_agreement:.1%})",
            f"chosen, infeasible  {self.infeasible}",
            "",
            f"{'objective':<14} {'policy':>12} {'chosen':>12}  difference [95% interval]",
        ]
        for name, (ours, theirs, difference) in self.objectives.items():
            lines.append(f"{name:<14} {ours:>12.5g} {theirs:>12.5g}  {difference}")
        return "\n".join(lines)


def read_report(path: Path) -> ShadowReport:
    """Read a log of `aaml schedule ... --dry-run`; raises `UserError` for what is none, naming the line."""
    return report(read_records(path))


def read_records(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a log. Raises `UserError` for what is none, naming the line."""
    try:
        with path.open(encoding="utf-8") as file:
            return list(_records(path, file))
    except (OSError, UnicodeDecodeError) as error:
        raise bad_value("report", str(path), f"a readable shadow log ({error})") from error


def report(records: Iterable[Mapping[str, Any]]) -> ShadowReport:
    """Sum up the records of a log; the last one of a pod counts. Raises `UserError` when there is none."""
    last = {record["uid"]: record for record in records}
    if not last:
        raise UserError("report: no pod in it; expected at least one line of `aaml schedule ... --dry-run`")
    kept = list(last.values())
    objectives = {}
    for name in OBJECTIVES:
        pairs = np.array([[record["objectives"][name][side] for side in ("policy", "chosen")] for record in kept])
        objectives[name] = (float(pairs[:, 0].mean()), float(pairs[:, 1].mean()), bootstrap(pairs[:, 0] - pairs[:, 1]))
    return ShadowReport(
        policies=tuple(sorted({record["policy"] for record in kept})),
        pods=len(kept),
        agreement=float(np.mean([record["agree"] for record in kept])),
        expected_agreement=float(np.mean([1.0 / max(record["feasible_nodes"], 1) for record in kept])),
        infeasible=sum(not record["chosen_feasible"] for record in kept),
        objectives=objectives,
    )


def _records(path: Path, lines: Iterable[str]) -> Iterable[dict[str, Any]]:
    for number, text in enumerate(lines, start=1):
        if not text.strip():
            continue
        try:
            record = json.loads(text)
            values = [float(record["objectives"][name][side]) for name in OBJECTIVES for side in ("policy", "chosen")]
            whole = isinstance(record["agree"], bool) and isinstance(record["chosen_feasible"], bool)
            whole &= isinstance(record["uid"], str) and isinstance(record["policy"], str)
            whole &= isinstance(record["feasible_nodes"], int) and bool(np.isfinite(values).all())
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"report: {path}, line {number} is no line of a shadow log ({error!r})") from error
        if not whole:
            raise UserError(f"report: {path}, line {number} is no line of a shadow log")
        yield record
