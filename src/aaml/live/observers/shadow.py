"""The shadow log: what a policy would have done beside what another scheduler did, a JSON line a pod.

Both choices are evaluated from the same state, the one just before the pod got its node: no earlier difference between
policy and scheduler blurs the comparison, and none is summed up either.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from aaml.cluster.metrics import usage
from aaml.cluster.objects import Node, Pod
from aaml.cluster.state import ClusterState
from aaml.evaluation.policies import policy_file
from aaml.files import LineFile
from aaml.scheduling.observation import Context
from aaml.scheduling.ports import Attempt, Decision, Observer, Outcome, RunWriter
from aaml.telemetry.provenance import digest
from aaml.telemetry.writers import Lenient

if TYPE_CHECKING:
    from aaml.kube.cluster import KubeCluster

OBJECTIVES: Mapping[str, Callable[[ClusterState], float]] = {
    "variance": lambda state: usage(state).variance,
    "empty_nodes": lambda state: float(usage(state).empty_nodes),
}
"""What both choices are evaluated by: `aaml.cluster.metrics.Usage` after the pod was placed."""

_POOL_LABELS = (
    "karpenter.sh/nodepool", "cloud.google.com/gke-nodepool", "eks.amazonaws.com/nodegroup",
    "kubernetes.azure.com/agentpool", "doks.digitalocean.com/node-pool", "node.kubernetes.io/instance-type",
)  # fmt: skip


def pool_of(node: Node) -> str:
    """Return the pool that a node says it belongs to, or else its kind of machine; "" where it says neither."""
    return next((node.labels[label] for label in _POOL_LABELS if label in node.labels), "")


@dataclass(frozen=True)
class Player:
    """Who looks on: a policy by its name, with the file that it comes from and that file's SHA-256 where there is one.

    Names are not enough: two models of one kind have the same.
    """

    policy: str
    source: str = ""
    sha256: str = ""

    @classmethod
    def of(cls, policy: str, source: str = "") -> "Player":
        """Return who a policy is that was made of a model file, or of another file that a policy may be in."""
        file = policy_file(source) if source else None
        return cls(policy, source, digest(file) if file is not None and file.exists() else "")


class ShadowLog(Observer):
    """Appends a line to the file `path` ("-": the terminal) for each pod that another scheduler has placed.

    `cluster` is one in a dry run, whose state is what the other scheduler had before it, its choice for the pod aside.
    A pod without a node is left out. Raises `UserError` when the file cannot be opened; an existing file is appended
    to, and several processes may write to it. Where the disk is full lines are dropped, which is logged once.
    """

    def __init__(self, path: str, cluster: "KubeCluster", player: Player) -> None:
        self._cluster, self._player = cluster, player
        self._file = None if path == "-" else LineFile(Path(path), field="shadow-log")
        self._lenient = Lenient(RunWriter(), path)

    def on_attempt(self, attempt: Attempt) -> None:
        """Tell of a pod that fits nowhere by our filters, though it was placed."""
        if attempt.outcome.kind == "unschedulable":
            self._tell(attempt.pod, "", feasible_nodes=0, chosen_feasible=False)

    def on_decision(self, context: Context, decision: Decision, outcome: Outcome) -> None:
        """Tell of a pod that the policy decided on."""
        del decision
        node_index = self._cluster.state.index.get(self._cluster.chosen(context.pod.uid))
        feasible = node_index is not None and bool(context.mask[node_index])
        self._tell(context.pod, outcome.node_name, feasible_nodes=int(context.mask.sum()), chosen_feasible=feasible)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def _tell(self, pod: Pod, ours: str, *, feasible_nodes: int, chosen_feasible: bool) -> None:
        theirs = self._cluster.chosen(pod.uid)
        if not theirs:
            return
        state = self._cluster.state.fork()
        state.forget(pod.uid)
        line = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "pod": pod.key, "uid": pod.uid, **asdict(self._player), "scheduler": self._cluster.scheduler_name,
            "policy_node": ours, "chosen_node": theirs, "agree": ours == theirs, "chosen_pool": self._pool(theirs),
            "feasible_nodes": feasible_nodes, "chosen_feasible": chosen_feasible,
            "objectives": {
                name: {"policy": _after(state, pod, ours, objective), "chosen": _after(state, pod, theirs, objective)}
                for name, objective in OBJECTIVES.items()
            },
        }  # fmt: skip
        self._lenient.attempt(lambda: self._write(json.dumps(line)))

    def _write(self, line: str) -> None:
        if self._file is None:
            print(line, flush=True)
            return
        self._file.write(f"{line}\n".encode())
        self._file.flush()

    def _pool(self, node_name: str) -> str:
        state = self._cluster.state
        return pool_of(state.nodes[state.index[node_name]]) if node_name in state.index else ""


def _after(state: ClusterState, pod: Pod, node_name: str, objective: Callable[[ClusterState], float]) -> float:
    if not node_name:
        return objective(state)
    state.assume(pod, node_name)
    try:
        return objective(state)
    finally:
        state.forget(pod.uid)
