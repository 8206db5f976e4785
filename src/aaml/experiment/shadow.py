"""Shadow mode: what a policy would have done beside what the cluster's own scheduler did, a JSON line a pod.

Both choices are judged from the same state, the one just before the pod got its node: no earlier difference between
policy and scheduler blurs the comparison, and none is summed up either.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol, TextIO

import numpy as np
import numpy.typing as npt

from aaml.cluster.metrics import usage
from aaml.cluster.objects import Pod
from aaml.cluster.state import ClusterState
from aaml.errors import UserError, bad_value
from aaml.experiment.statistics import Interval, bootstrap
from aaml.scheduling.observation import Context, Featurizer
from aaml.scheduling.ports import Policy

OBJECTIVES: Mapping[str, Callable[[ClusterState], float]] = {
    "variance": lambda state: usage(state).variance,
    "empty_nodes": lambda state: float(usage(state).empty_nodes),
}
"""What both choices are judged by: `aaml.cluster.metrics.Usage` after the pod was placed."""


class Watched(Protocol):
    """What a shadow asks a cluster."""

    @property
    def state(self) -> ClusterState:
        """What runs where."""
        ...

    def feasible(self, pod: Pod) -> npt.NDArray[np.bool_]:
        """Return [N], the rows that pass the filters."""
        ...


class Shadow:
    """Decides on each pod that `scheduler_name` has placed and writes a line about it to `log`."""

    def __init__(
        self, policy: Policy, featurizer: Featurizer, cluster: Watched, scheduler_name: str, log: TextIO
    ) -> None:
        self._policy, self._featurizer, self._cluster = policy, featurizer, cluster
        self._scheduler_name, self._log = scheduler_name, log

    def compare(self, placed: Pod) -> None:
        """Take a pod that has just got its node and is not in the state yet."""
        if placed.scheduler_name != self._scheduler_name or placed.node_name not in self._cluster.state.index:
            return
        pod, state = replace(placed, node_name=""), self._cluster.state
        mask = self._cluster.feasible(pod)
        row = self._policy.act(Context(state, pod, mask, self._featurizer)).row if mask.any() else None
        ours = "" if row is None else state.names[row]
        line = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "pod": pod.key, "uid": pod.uid, "policy": self._policy.name, "scheduler": self._scheduler_name,
            "policy_node": ours, "chosen_node": placed.node_name, "agree": ours == placed.node_name,
            "feasible_nodes": int(mask.sum()), "chosen_feasible": bool(mask[state.index[placed.node_name]]),
            "objectives": {
                name: {"policy": self._after(pod, ours, judge), "chosen": self._after(pod, placed.node_name, judge)}
                for name, judge in OBJECTIVES.items()
            },
        }  # fmt: skip
        print(json.dumps(line), file=self._log, flush=True)

    def _after(self, pod: Pod, node_name: str, judge: Callable[[ClusterState], float]) -> float:
        state = self._cluster.state
        if not node_name:
            return judge(state)
        state.assume(pod, node_name)
        try:
            return judge(state)
        finally:
            state.forget(pod.uid)


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
    """Read a log of `aaml schedule policy --dry-run`; raises `UserError` for what is none, naming the line."""
    try:
        with path.open(encoding="utf-8") as file:
            return report(_records(path, file))
    except (OSError, UnicodeDecodeError) as error:
        raise bad_value("report", str(path), f"a readable shadow log ({error})") from error


def report(records: Iterable[Mapping[str, Any]]) -> ShadowReport:
    """Sum up the records of a log; the last one of a pod counts. Raises `UserError` when there is none."""
    last = {record["uid"]: record for record in records}
    if not last:
        raise UserError("report: no pod in it; expected at least one line of `aaml schedule policy --dry-run`")
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
