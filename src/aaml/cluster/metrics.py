"""How well a cluster is used: spread of use over nodes, allocation, empty nodes, and averages over (virtual) time.

Use of a resource on a node is requested / allocatable, a fraction; only capacity nodes count (not the control plane).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numba
import numpy as np
import numpy.typing as npt

from aaml.cluster.gpu import DEVICE_MILLI
from aaml.cluster.state import ClusterState

Fragmentation = Callable[[ClusterState], npt.NDArray[np.float64]]
"""A state -> float64 [N], the GPU thousandths of each node that are free yet of no use to the expected pods."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Use of the cluster at one moment. Variances are of fractions (unit: fraction squared, at most 0.25).

    `*_allocation` are sums over capacity nodes, requested / allocatable, 0 where nothing is offered. `empty_nodes`
    hold no pod.
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

    @property
    def variance(self) -> float:
        """Mean of the variances of CPU and memory use over nodes: what `balance` is judged by."""
        return 0.5 * (self.cpu_variance + self.memory_variance)

    @property
    def empty_fraction(self) -> float:
        """Empty nodes as a fraction of the capacity nodes: what `compress` is judged by."""
        return self.empty_nodes / max(self.nodes, 1)


def usage(state: ClusterState) -> Usage:
    """Measure a state; O(N)."""
    return Usage(*_usage(state.allocatable, state.requested, state.capacity, state.gpu_free, state.gpu_count))


def fragmentation_ratio(state: ClusterState, fragmentation: Fragmentation) -> float:
    """Return fragments / free GPU thousandths over the cluster, 0 when no GPU is free (Weng et al., ATC 2023)."""
    free = int(state.gpu_free.sum())
    return float(fragmentation(state).sum()) / free if free else 0.0


@dataclass(slots=True)
class TimeAverage:
    """Average of a value that holds from one moment to the next, weighted by how long it held.

    Call `hold(value, seconds)` with the value that held for that long.
    """

    total: float = 0.0
    seconds: float = 0.0

    def hold(self, value: float, seconds: float) -> None:
        """Count a value that held for `seconds`."""
        self.total += value * seconds
        self.seconds += seconds

    @property
    def mean(self) -> float:
        """The average so far; NaN before any time has passed."""
        return self.total / self.seconds if self.seconds else float("nan")


AVERAGED: tuple[str, ...] = (
    "variance", "cpu_variance", "memory_variance", "cpu_mean", "memory_mean", "cpu_allocation", "memory_allocation",
    "gpu_allocation", "empty_nodes", "empty_fraction", "pending_pods",
)  # fmt: skip


@dataclass(slots=True)
class TimeAverages:
    """Time averages of the scalars of `Usage` and of the number of pods that wait."""

    seconds: float = 0.0
    totals: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros(len(AVERAGED)))

    def hold(self, state: ClusterState, pending: int, seconds: float) -> None:
        """Count a state that held for `seconds` with `pending` pods waiting."""
        _hold(
            state.allocatable, state.requested, state.capacity, state.gpu_free, state.gpu_count,
            float(pending), seconds, self.totals,
        )  # fmt: skip
        self.seconds += seconds

    def means(self) -> Mapping[str, float]:
        """Return name -> average (see `AVERAGED`); NaN before any time has passed."""
        if not self.seconds:
            return dict.fromkeys(AVERAGED, float("nan"))
        return dict(zip(AVERAGED, (self.totals / self.seconds).tolist(), strict=True))

    def copy(self) -> "TimeAverages":
        """Return an independent copy."""
        return TimeAverages(self.seconds, self.totals.copy())


@numba.njit(cache=True)
def _usage(allocatable, requested, capacity, gpu_free, gpu_count):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    n, empty = 0, 0
    cpu, memory, cpu_square, memory_square = 0.0, 0.0, 0.0, 0.0
    totals = np.zeros(4)
    devices, free = 0, 0
    for i in range(len(capacity)):
        if not capacity[i]:
            continue
        n += 1
        empty += requested[i, 3] == 0
        cpu += requested[i, 0] / max(allocatable[i, 0], 1)
        memory += requested[i, 1] / max(allocatable[i, 1], 1)
        for r in range(2):
            totals[r] += requested[i, r]
            totals[2 + r] += allocatable[i, r]
        devices += gpu_count[i]
        for g in range(gpu_count[i]):
            free += gpu_free[i, g]
    count = max(n, 1)
    cpu, memory = cpu / count, memory / count
    # A second pass: the difference of two large sums of squares would lose the small variances that matter here.
    for i in range(len(capacity)):
        if capacity[i]:
            cpu_square += (requested[i, 0] / max(allocatable[i, 0], 1) - cpu) ** 2
            memory_square += (requested[i, 1] / max(allocatable[i, 1], 1) - memory) ** 2
    gpu = 1.0 - free / (DEVICE_MILLI * devices) if devices else 0.0
    return (
        n, empty, cpu, memory, cpu_square / count, memory_square / count, totals[0] / max(totals[2], 1.0),
        totals[1] / max(totals[3], 1.0), gpu,
    )  # fmt: skip


@numba.njit(cache=True)
def _hold(allocatable, requested, capacity, gpu_free, gpu_count, pending, seconds, totals):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    n, empty, cpu, memory, cpu_variance, memory_variance, cpu_share, memory_share, gpu = _usage(
        allocatable, requested, capacity, gpu_free, gpu_count
    )
    totals[0] += seconds * 0.5 * (cpu_variance + memory_variance)
    totals[1] += seconds * cpu_variance
    totals[2] += seconds * memory_variance
    totals[3] += seconds * cpu
    totals[4] += seconds * memory
    totals[5] += seconds * cpu_share
    totals[6] += seconds * memory_share
    totals[7] += seconds * gpu
    totals[8] += seconds * empty
    totals[9] += seconds * empty / max(n, 1)
    totals[10] += seconds * pending
