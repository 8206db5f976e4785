"""Snapshot: a cluster and the scheduler at work on it at one moment, as `ktop` shows it and `--json` prints it."""

import json
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from aaml.cluster.gpu import DEVICE_MILLI
from aaml.cluster.metrics import usage
from aaml.cluster.quantity import CPU, MEMORY, PODS
from aaml.cluster.state import ClusterState
from aaml.telemetry.top import TopModel

_POINTS = 60  # of a curve
_DECISIONS = 8
_GIB = 1024**3
_CHUNK = 1 << 20  # bytes of a log that are read at once


@dataclass(frozen=True, slots=True)
class NodeLine:
    """A node: what its pods ask for and what it offers; CPU in cores, memory in GiB, GPUs in devices."""

    name: str
    cordoned: bool
    pods: int
    pods_room: int
    cpu: float
    cpu_offered: float
    memory: float
    memory_offered: float
    gpu: float
    gpu_offered: int

    def share(self, what: str) -> float:
        """Return what is asked of a resource ("cpu", "memory", "gpu", "pods") over what is offered; 0 without any."""
        offered = self.pods_room if what == PODS else getattr(self, f"{what}_offered")
        return float(getattr(self, what) / offered) if offered else 0.0


@dataclass(frozen=True, slots=True)
class DecisionLine:
    """A decision of a scheduler, with the score of its node where the policy tells one."""

    pod: str
    node: str
    score: float | None
    reward: float | None
    feasible: int | None


@dataclass(frozen=True)
class Snapshot:
    """What there is to see at one moment; the control plane is left out."""

    title: str
    pending: int
    placed: int
    per_s: float
    cpu_variance: float
    nodes: tuple[NodeLine, ...]
    decisions: tuple[DecisionLine, ...] = ()
    curves: dict[str, list[float]] = field(default_factory=dict)
    pods: tuple[tuple[str, str, float, float, float], ...] = ()
    """Of the node that is looked into: name, phase, CPU in cores, memory in GiB, GPUs."""

    @classmethod
    def take(cls, model: TopModel, state: ClusterState, run: "RunTail | None" = None, node: str = "") -> "Snapshot":
        """Take a snapshot; `run` follows a scheduler's log, `node` is the one that is looked into."""
        cpu, memory, pods = (state.resource_index[name] for name in (CPU, MEMORY, PODS))
        lines = tuple(
            NodeLine(
                state.names[row], bool(state.unschedulable[row]), int(asked[pods]), int(offered[pods]),
                asked[cpu] / 1000, offered[cpu] / 1000, asked[memory] / _GIB, offered[memory] / _GIB,
                devices - free / DEVICE_MILLI, devices,
            )
            for row, (asked, offered, free, devices) in enumerate(
                zip(
                    state.requested.tolist(), state.allocatable.tolist(), state.gpu_free.sum(axis=1).tolist(),
                    state.gpu_count.tolist(), strict=True,
                )
            )
            if state.capacity[row]
        )  # fmt: skip
        if run is not None:
            run.read()
        told = tuple(run.decisions) if run is not None else ()
        seen = tuple(DecisionLine(pod, name, None, None, None) for pod, name in model.recent)
        inside: tuple[tuple[str, str, float, float, float], ...] = ()
        if node in state.index:
            inside = tuple(
                (pod.key, pod.phase, pod.request(CPU) / 1000, pod.request(MEMORY) / _GIB, pod.gpu.total_milli / 1000)
                for pod in state.node_pods[state.index[node]].values()
            )
        return cls(
            model.title, model.pending, model.bound, model.rate.per_s(model.clock()), usage(state).cpu_variance, lines,
            told or seen, {} if run is None else {name: list(each) for name, each in run.curves.items()}, inside,
        )  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-able values."""
        return asdict(self)


class RunTail:
    """The latest decisions and curves in a scheduler's log (logs/*.jsonl), as it grows."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.decisions: deque[DecisionLine] = deque(maxlen=_DECISIONS)
        self.curves: dict[str, deque[float]] = {}
        self._read_to = max(0, path.stat().st_size - _CHUNK) if path.exists() else 0
        self._rest = b""

    def read(self) -> None:
        """Take in what was written since the last time; the first time the end of the file alone."""
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            file.seek(self._read_to)
            content = self._rest + file.read(_CHUNK)
            self._read_to = file.tell()
        *lines, self._rest = content.split(b"\n")
        for line in lines:
            try:
                self._take(json.loads(line))
            except (ValueError, KeyError, TypeError):
                continue  # the first line may be half of one

    def _take(self, event: dict[str, Any]) -> None:
        if event["kind"] == "decision":
            score = event.get("score", event.get("value"))
            where = event["node"] or event["outcome"]
            self.decisions.append(DecisionLine(event["pod"], where, score, event["reward"], event["feasible"]))
        elif event["kind"] == "scalar" and event["value"] is not None:
            self.curves.setdefault(event["name"], deque(maxlen=_POINTS)).append(float(event["value"]))


def newest_log(folder: Path, *, within_s: float = 3600.0, now_s: float) -> Path | None:
    """Return the scheduler's log in a folder that was written to last, None when that is longer ago than `within_s`."""
    logs = [path for path in folder.glob("*.jsonl") if not path.name.endswith(".explained.jsonl")]
    newest = max(logs, key=lambda path: path.stat().st_mtime, default=None)
    return newest if newest is not None and now_s - newest.stat().st_mtime < within_s else None


def sparkline(values: Sequence[float]) -> str:
    """Return a curve as a line of blocks, from its least to its greatest value."""
    if not values:
        return ""
    low, span = min(values), max(values) - min(values)
    return "".join("▁▂▃▄▅▆▇█"[round(7 * (value - low) / span) if span else 0] for value in values)
