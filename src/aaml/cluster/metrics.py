"""How well a cluster is used: how evenly, how much of it, how many nodes are empty, and averages of that over time.

The use of a resource on a node is the fraction that is requested of what the node offers. The control plane does not
count.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from aaml.cluster.gpu import DEVICE_MILLI
from aaml.cluster.kernels import columns, compiled
from aaml.cluster.state import CPU_COLUMN, MEMORY_COLUMN, PODS_COLUMN, ClusterState

BoolArray = npt.NDArray[np.bool_]
FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

COUNTED = ("arrived", "bound", "departed", "deleted", "evicted", "migrated", "rejected", "declined", "lost")
"""What is counted of a run."""
Fragmentation = Callable[[ClusterState], npt.NDArray[np.float64]]
"""A state -> float64 [N], the GPU thousandths of each node that are free yet of no use to the expected pods."""


@dataclass(frozen=True, slots=True)
class Usage:
    """The use of a cluster at one moment.

    Variances are those of the nodes' fractions, so they are at most 0.25. The `*_allocation` are sums over all nodes,
    requested over allocatable, and 0 where nothing is offered. `empty_nodes` counts the nodes without any pod, and
    `whole_gpus` is the fraction of the devices that nothing is taken of.
    """

    nodes: int
    empty_nodes: int
    cpu_mean: float
    memory_mean: float
    cpu_variance: float
    memory_variance: float
    cpu_allocation: float
    memory_allocation: float
    gpu_allocation: float
    whole_gpus: float

    @property
    def variance(self) -> float:
        """The mean of the variances of CPU and memory use over nodes, by which the task `balance` is judged."""
        return 0.5 * (self.cpu_variance + self.memory_variance)

    @property
    def empty_fraction(self) -> float:
        """The fraction of the nodes that are empty, by which the task `compress` is judged."""
        return self.empty_nodes / max(self.nodes, 1)


def usage(state: ClusterState) -> Usage:
    """Measure a state, in time proportional to its number of nodes."""
    return Usage(*measure_usage(state.allocatable, state.requested, state.capacity, state.gpu_free, state.gpu_count))


AVERAGED: tuple[str, ...] = (
    "variance", "cpu_variance", "memory_variance", "cpu_mean", "memory_mean", "cpu_allocation", "memory_allocation",
    "gpu_allocation", "empty_nodes", "empty_fraction", "pending_pods", "whole_gpus", "gpu_waiting",
)  # fmt: skip
_AVERAGED = columns(AVERAGED)


@dataclass(slots=True)
class TimeAverages:
    """Time averages of the scalars of `Usage`, of how many pods wait, and of the GPU that they ask for.

    Time counts from 0 on: what came before only set the stage.
    """

    seconds: float = 0.0
    totals: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros(len(AVERAGED)))

    def hold(self, state: ClusterState, pending: int, gpu_milli: int, seconds: float) -> None:
        """Count a state that held for `seconds` with `pending` pods waiting, which ask for so much GPU in all."""
        hold_usage(
            state.allocatable, state.requested, state.capacity, state.gpu_free, state.gpu_count,
            float(pending), gpu_milli, seconds, self.totals,
        )  # fmt: skip
        self.seconds += seconds

    def means(self) -> Mapping[str, float]:
        """Return the averages by name (see `AVERAGED`), which are NaN before any time has passed."""
        if not self.seconds:
            return dict.fromkeys(AVERAGED, float("nan"))
        return dict(zip(AVERAGED, (self.totals / self.seconds).tolist(), strict=True))

    def copy(self) -> "TimeAverages":
        """Return an independent copy."""
        return TimeAverages(self.seconds, self.totals.copy())


def use_of_nodes(state: ClusterState) -> npt.NDArray[np.float64]:
    """Return [N, 2]: the fractions of each node's CPU and memory that are requested."""
    used = [CPU_COLUMN, MEMORY_COLUMN]
    use: npt.NDArray[np.float64] = state.requested[:, used] / np.maximum(state.allocatable[:, used], 1)
    return use


@compiled
def measure_usage(
    allocatable: IntArray, requested: IntArray, capacity: BoolArray, gpu_free: IntArray, gpu_count: IntArray,
) -> tuple[int, int, float, float, float, float, float, float, float, float]:  # fmt: skip
    """Return the numbers of `Usage`, in its order, from the arrays of a `ClusterState`."""
    n, empty = 0, 0
    cpu, memory, cpu_square, memory_square = 0.0, 0.0, 0.0, 0.0
    cpu_asked, memory_asked, cpu_offered, memory_offered = 0.0, 0.0, 0.0, 0.0
    devices, free, whole = 0, 0, 0
    for i in range(len(capacity)):
        if not capacity[i]:
            continue
        n += 1
        empty += requested[i, PODS_COLUMN] == 0
        cpu += requested[i, CPU_COLUMN] / max(allocatable[i, CPU_COLUMN], 1)
        memory += requested[i, MEMORY_COLUMN] / max(allocatable[i, MEMORY_COLUMN], 1)
        cpu_asked += requested[i, CPU_COLUMN]
        memory_asked += requested[i, MEMORY_COLUMN]
        cpu_offered += allocatable[i, CPU_COLUMN]
        memory_offered += allocatable[i, MEMORY_COLUMN]
        devices += gpu_count[i]
        for g in range(gpu_count[i]):
            free += gpu_free[i, g]
            whole += gpu_free[i, g] == DEVICE_MILLI
    count = max(n, 1)
    cpu, memory = cpu / count, memory / count
    # A second pass: the difference of two large sums of squares would lose the small variances that matter here.
    for i in range(len(capacity)):
        if capacity[i]:
            cpu_square += (requested[i, CPU_COLUMN] / max(allocatable[i, CPU_COLUMN], 1) - cpu) ** 2
            memory_square += (requested[i, MEMORY_COLUMN] / max(allocatable[i, MEMORY_COLUMN], 1) - memory) ** 2
    gpu = 1.0 - free / (DEVICE_MILLI * devices) if devices else 0.0
    return (
        n, empty, cpu, memory, cpu_square / count, memory_square / count, cpu_asked / max(cpu_offered, 1.0),
        memory_asked / max(memory_offered, 1.0), gpu, whole / max(devices, 1),
    )  # fmt: skip


@compiled
def hold_usage(
    allocatable: IntArray, requested: IntArray, capacity: BoolArray, gpu_free: IntArray, gpu_count: IntArray,
    pending: float, gpu_milli: int, seconds: float, totals: FloatArray,
) -> None:  # fmt: skip
    """Add to `totals` (`AVERAGED`) what held for so many seconds."""
    n, empty, cpu, memory, cpu_variance, memory_variance, cpu_share, memory_share, gpu, whole = measure_usage(
        allocatable, requested, capacity, gpu_free, gpu_count
    )
    totals[_AVERAGED.variance] += seconds * 0.5 * (cpu_variance + memory_variance)
    totals[_AVERAGED.cpu_variance] += seconds * cpu_variance
    totals[_AVERAGED.memory_variance] += seconds * memory_variance
    totals[_AVERAGED.cpu_mean] += seconds * cpu
    totals[_AVERAGED.memory_mean] += seconds * memory
    totals[_AVERAGED.cpu_allocation] += seconds * cpu_share
    totals[_AVERAGED.memory_allocation] += seconds * memory_share
    totals[_AVERAGED.gpu_allocation] += seconds * gpu
    totals[_AVERAGED.empty_nodes] += seconds * empty
    totals[_AVERAGED.empty_fraction] += seconds * empty / max(n, 1)
    totals[_AVERAGED.pending_pods] += seconds * pending
    totals[_AVERAGED.whole_gpus] += seconds * whole
    if gpu_milli > 0:
        devices = 0
        for i in range(len(capacity)):
            devices += gpu_count[i] if capacity[i] else 0
        totals[_AVERAGED.gpu_waiting] += seconds * gpu_milli / (DEVICE_MILLI * max(devices, 1))


def summary(
    means: Mapping[str, float], final: Usage, waits_s: npt.NDArray[np.float64], pending: int, counts: Mapping[str, int]
) -> Mapping[str, float]:
    """Return the metrics of a run by name from what was kept of it; `counts` by `COUNTED`, 0 where one is missing."""
    result = {f"mean_{name}": value for name, value in means.items()}
    result |= {
        "final_variance": final.variance,
        "final_cpu_variance": final.cpu_variance,
        "final_memory_variance": final.memory_variance,
        "final_empty_nodes": float(final.empty_nodes),
        "final_empty_fraction": final.empty_fraction,
        "final_cpu_allocation": final.cpu_allocation,
        "final_memory_allocation": final.memory_allocation,
        "final_gpu_allocation": final.gpu_allocation,
        "final_whole_gpus": final.whole_gpus,
    }
    if waits_s.size:
        result["waiting_mean_s"] = float(waits_s.mean())
        result["waiting_p50_s"] = float(np.percentile(waits_s, 50))
        result["waiting_p95_s"] = float(np.percentile(waits_s, 95))
        result["waiting_p99_s"] = float(np.percentile(waits_s, 99))
        result["waiting_max_s"] = float(waits_s.max())
    else:
        result |= dict.fromkeys(
            ("waiting_mean_s", "waiting_p50_s", "waiting_p95_s", "waiting_p99_s", "waiting_max_s"), 0.0
        )
    result["pending"] = float(pending)
    for name in COUNTED:
        result[name] = float(counts.get(name, 0))
    return result
