"""Snapshot: a cluster and the scheduler at work on it at one moment, as `ktop` shows it and `--json` prints it."""

from dataclasses import asdict, dataclass, field
from typing import Any

from aaml.cluster.gpu import DEVICE_MILLI
from aaml.cluster.quantity import CPU, MEMORY, PODS
from aaml.cluster.state import ClusterState
from aaml.telemetry.run_tail import DecisionLine, RunTail
from aaml.telemetry.top import TopModel, cpu_variance, dollars, takes_pods

_GIB = 1024**3


@dataclass(frozen=True, slots=True)
class NodeLine:
    """A node: what its pods request and what it offers; CPU in cores, memory in GiB, GPUs in devices.

    `dollars` is its price an hour, None where unknown.
    """

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
    dollars: float | None = None

    def share(self, what: str) -> float:
        """Return the fraction of "cpu", "memory", "gpu" or "pods" that is requested; 0 where none is offered.

        For "dollars" return the node's price an hour.
        """
        if what == "dollars":
            return self.dollars or 0.0
        offered = self.pods_room if what == PODS else getattr(self, f"{what}_offered")
        return float(getattr(self, what) / offered) if offered else 0.0


@dataclass(frozen=True)
class Snapshot:
    """What there is to see at one moment; nodes that take no pods, as most control planes, are left out."""

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
    dollars_an_hour: float | None = None
    dollars_a_core_hour: float | None = None
    promise: str = ""
    """What learned nodes promise, how far it is kept, and what it costs."""

    @classmethod
    def take(cls, model: TopModel, state: ClusterState, run: RunTail | None = None, node: str = "") -> "Snapshot":
        """Take a snapshot; `run` follows a scheduler's log, `node` is the one that is looked into."""
        shown = takes_pods(state)
        cpu, memory, pods = (state.resource_index[name] for name in (CPU, MEMORY, PODS))
        lines = tuple(
            NodeLine(
                state.names[i], bool(state.unschedulable[i]), int(requested[pods]), int(offered[pods]),
                requested[cpu] / 1000, offered[cpu] / 1000, requested[memory] / _GIB, offered[memory] / _GIB,
                devices - free / DEVICE_MILLI, devices, model.price(state.nodes[i]),
            )
            for i, (requested, offered, free, devices) in enumerate(
                zip(
                    state.requested.tolist(), state.allocatable.tolist(), state.gpu_free.sum(axis=1).tolist(),
                    state.gpu_count.tolist(), strict=True,
                )
            )
            if shown[i]
        )  # fmt: skip
        if run is not None:
            run.read()
        decisions = tuple(run.decisions) if run is not None else ()
        seen = tuple(DecisionLine(pod, name, None, None, None) for pod, name in model.recent)
        inside: tuple[tuple[str, str, float, float, float], ...] = ()
        if node in state.index:
            inside = tuple(
                (pod.key, pod.phase, pod.request(CPU) / 1000, pod.request(MEMORY) / _GIB, pod.gpu.total_milli / 1000)
                for pod in state.node_pods[state.index[node]].values()
            )
        return cls(
            model.title, model.pending, model.bound, model.rate.per_s(model.clock()), cpu_variance(state), lines,
            decisions or seen, {} if run is None else {name: list(each) for name, each in run.curves.items()}, inside,
            *dollars(model, state), model.promise,
        )  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-able values."""
        return asdict(self)
