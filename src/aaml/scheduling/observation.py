"""What a learned policy sees: features of nodes, of the pod, of the pair, the graph and the action mask.

Every feature is a dimensionless number of about unit size, none depends on how many nodes there are, and nodes are
rows, so one network fits any cluster.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numba
import numpy as np
import numpy.typing as npt

from aaml.cluster.objects import Pod
from aaml.cluster.owners import OwnerIndex
from aaml.cluster.quantity import CPU, MEMORY
from aaml.cluster.state import ClusterState
from aaml.cluster.topology import Graph, Topology, star_graph

FloatArray = npt.NDArray[np.float32]
BoolArray = npt.NDArray[np.bool_]

NODE_FEATURES = (
    "cpu_used", "memory_used", "pods_used", "cpu_used_minus_mean", "memory_used_minus_mean", "cpu_size", "memory_size",
    "cpu_memory_imbalance", "empty", "gpu_free", "largest_free_device", "whole_free_devices", "shared_devices",
    "gpu_count", "cordoned", "capacity",
)  # fmt: skip
PAIR_FEATURES = (
    "feasible", "cpu_after", "memory_after", "cpu_after_minus_mean", "memory_after_minus_mean", "imbalance_after",
    "cpu_after_rank", "memory_after_rank", "variance_rank", "free_after_rank", "device_left", "gpu_free_after",
    "siblings", "fragmentation_growth", "newly_used", "fragmentation_rank",
)  # fmt: skip
POD_FEATURES = (
    "cpu", "memory", "gpu_share", "gpu_count", "is_share", "wants_model", "lifetime", "lifetime_known", "cpu_mean",
    "memory_mean", "cpu_spread", "memory_spread", "feasible_fraction", "queue",
)  # fmt: skip
UPCOMING_FEATURES = ("cpu", "memory", "gpu")

_MAX_DEVICES = 8.0
_MAX_SIBLINGS = 8.0


@dataclass(frozen=True, slots=True)
class Observation:
    """Features at the time of a decision; independent of later changes of the cluster.

    =========  ===============  ===================================================================
    nodes      float32 [N, F]   `NODE_FEATURES`, independent of the pod
    pairs      float32 [N, K]   `PAIR_FEATURES`: this pod on that node
    pod        float32 [P]      `POD_FEATURES`, then `UPCOMING_FEATURES` for each of k pods that follow
    mask       bool [N]         feasible rows: the only actions there are
    graph      Graph            edge_index int64 [2, E] over N node vertices and the hubs after them
    =========  ===============  ===================================================================
    """

    nodes: FloatArray
    pairs: FloatArray
    pod: FloatArray
    mask: BoolArray
    graph: Graph


@dataclass(frozen=True)
class Featurizer:
    """Turns (state, pod) into an `Observation`.

    `lookahead`: how many pods that follow are shown. `lifetimes`: whether a pod's lifetime is shown (kube-scheduler
    does not know it). `fragmentation`: a function (state, pod) -> float64 [N] growth of fragments in thousandths of a
    GPU, or None for zeros. `topology`: the graph of a state.
    """

    lookahead: int = 0
    lifetimes: bool = False
    fragmentation: Callable[[ClusterState, Pod], npt.NDArray[np.float64]] | None = None
    topology: Topology = star_graph

    @property
    def pod_size(self) -> int:
        """P, the length of the pod's vector."""
        return len(POD_FEATURES) + self.lookahead * len(UPCOMING_FEATURES)

    def __call__(
        self, state: ClusterState, pod: Pod, mask: BoolArray, upcoming: Sequence[Pod] = (), queue_length: int = 0
    ) -> Observation:
        """Return the observation of `pod` waiting in `state`; `mask` is [N]."""
        n = len(state)
        nodes = np.zeros((n, len(NODE_FEATURES)), dtype=np.float32)
        pairs = np.zeros((n, len(PAIR_FEATURES)), dtype=np.float32)
        vector = np.zeros(self.pod_size, dtype=np.float32)
        growth = np.zeros(n) if self.fragmentation is None else self.fragmentation(state, pod)
        siblings = OwnerIndex.of(state).counts(pod.owner) if pod.owner else np.zeros(n)
        _fill(
            state.allocatable, state.requested, state.gpu_free, state.gpu_count, state.unschedulable, state.capacity,
            np.asarray(mask), state.request_vector(pod), pod.gpu.count, pod.gpu.milli, growth, siblings,
            nodes, pairs, vector,
        )  # fmt: skip
        vector[5] = float(bool(pod.gpu.models))
        if self.lifetimes and pod.lifetime_s is not None:
            vector[6], vector[7] = np.log1p(pod.lifetime_s) / 10.0, 1.0
        vector[13] = np.log1p(queue_length) / 5.0
        mean_cpu, mean_memory = mean_size(state.allocatable, state.capacity)
        for k, other in enumerate(upcoming[: self.lookahead]):
            start = len(POD_FEATURES) + k * len(UPCOMING_FEATURES)
            vector[start : start + 3] = (
                other.request(CPU) / mean_cpu,
                other.request(MEMORY) / mean_memory,
                other.gpu.total_milli / 1000.0 / _MAX_DEVICES,
            )
        return Observation(nodes, pairs, vector, np.array(mask, dtype=np.bool_), self.topology(state))


@dataclass(frozen=True)
class Context:
    """One decision to make: the state, the pod, the feasible rows; features are computed when a policy asks for them.

    Valid until the state changes: heuristics read `state`, learned policies `observation`.
    """

    state: ClusterState
    pod: Pod
    mask: BoolArray
    featurizer: Featurizer
    upcoming: Sequence[Pod] = ()
    queue_length: int = 0
    now_s: float = 0.0

    @cached_property
    def observation(self) -> Observation:
        """The features, computed once."""
        return self.featurizer(self.state, self.pod, self.mask, self.upcoming, self.queue_length)


@numba.njit(cache=True, nogil=True)
def mean_size(allocatable, capacity):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """Return the mean CPU and memory of the nodes that count."""
    cpu, memory, count = 0.0, 0.0, 0
    for i in range(len(capacity)):
        if capacity[i]:
            cpu += allocatable[i, 0]
            memory += allocatable[i, 1]
            count += 1
    count = max(count, 1)
    return max(cpu / count, 1.0), max(memory / count, 1.0)


@numba.njit(cache=True)
def _rank(values, mask, out, column):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """Write where each value lies between the least (0) and greatest (1) among feasible rows, clipped."""
    low, high = np.inf, -np.inf
    for i in range(len(values)):
        if mask[i]:
            low = min(low, values[i])
            high = max(high, values[i])
    span = high - low
    for i in range(len(values)):
        if span > 0.0:
            out[i, column] = min(max((values[i] - low) / span, 0.0), 1.0)


@numba.njit(cache=True)
def _fill(  # type: ignore[no-untyped-def]  # noqa: ANN202
    allocatable, requested, gpu_free, gpu_count, unschedulable, capacity, mask, request, count, milli, growth,  # noqa: ANN001
    siblings, nodes, pairs, pod,  # noqa: ANN001
):  # fmt: skip
    n = len(mask)
    cpu = np.zeros(n)
    memory = np.zeros(n)
    max_cpu, max_memory, total, feasible = 1.0, 1.0, 0, 0
    sum_cpu, sum_memory = 0.0, 0.0
    for i in range(n):
        cpu[i] = requested[i, 0] / max(allocatable[i, 0], 1)
        memory[i] = requested[i, 1] / max(allocatable[i, 1], 1)
        feasible += mask[i]
        if capacity[i]:
            total += 1
            sum_cpu += cpu[i]
            sum_memory += memory[i]
            max_cpu = max(max_cpu, allocatable[i, 0])
            max_memory = max(max_memory, allocatable[i, 1])
    total = max(total, 1)
    mean_cpu, mean_memory = sum_cpu / total, sum_memory / total
    spread_cpu, spread_memory = 0.0, 0.0
    for i in range(n):
        if capacity[i]:
            spread_cpu += (cpu[i] - mean_cpu) ** 2
            spread_memory += (memory[i] - mean_memory) ** 2
    cpu_after = np.zeros(n)
    memory_after = np.zeros(n)
    variance = np.zeros(n)
    left = np.zeros(n)
    for i in range(n):
        devices = gpu_count[i]
        free, largest, whole, shared = 0.0, 0.0, 0.0, 0.0
        best = 2000.0
        for g in range(devices):
            amount = gpu_free[i, g]
            free += amount
            largest = max(largest, amount)
            if amount >= 1000:
                whole += 1
            elif amount > 0:
                shared += 1
            if amount >= milli:
                best = min(best, amount)
        nodes[i, 0], nodes[i, 1] = cpu[i], memory[i]
        nodes[i, 2] = requested[i, 3] / max(allocatable[i, 3], 1)
        nodes[i, 3], nodes[i, 4] = cpu[i] - mean_cpu, memory[i] - mean_memory
        nodes[i, 5], nodes[i, 6] = allocatable[i, 0] / max_cpu, allocatable[i, 1] / max_memory
        nodes[i, 7] = abs(cpu[i] - memory[i])
        nodes[i, 8] = 1.0 if requested[i, 3] == 0 else 0.0
        if devices > 0:
            nodes[i, 9] = free / (1000.0 * devices)
            nodes[i, 10] = largest / 1000.0
        nodes[i, 11], nodes[i, 12], nodes[i, 13] = whole / 8.0, shared / 8.0, devices / 8.0
        nodes[i, 14] = 1.0 if unschedulable[i] else 0.0
        nodes[i, 15] = 1.0 if capacity[i] else 0.0
        grow_cpu = request[0] / max(allocatable[i, 0], 1)
        grow_memory = request[1] / max(allocatable[i, 1], 1)
        cpu_after[i], memory_after[i] = cpu[i] + grow_cpu, memory[i] + grow_memory
        keep = 1.0 - 1.0 / total
        # Change of N times the variance when one node's use grows by d: 2 d (u - mean) + d^2 (1 - 1/N).
        variance[i] = (
            2.0 * grow_cpu * (cpu[i] - mean_cpu)
            + grow_cpu**2 * keep
            + 2.0 * grow_memory * (memory[i] - mean_memory)
            + grow_memory**2 * keep
        )
        left[i] = (1.0 - cpu_after[i]) * allocatable[i, 0] / max_cpu + (1.0 - memory_after[i]) * allocatable[
            i, 1
        ] / max_memory
        pairs[i, 0] = 1.0 if mask[i] else 0.0
        pairs[i, 1], pairs[i, 2] = min(cpu_after[i], 2.0), min(memory_after[i], 2.0)
        pairs[i, 3], pairs[i, 4] = pairs[i, 1] - mean_cpu, pairs[i, 2] - mean_memory
        pairs[i, 5] = abs(pairs[i, 1] - pairs[i, 2])
        if milli > 0 and devices > 0:
            if count == 1 and best <= 1000.0:
                pairs[i, 10] = (best - milli) / 1000.0
            pairs[i, 11] = max(free - count * milli, 0.0) / (1000.0 * devices)
        else:
            pairs[i, 11] = nodes[i, 9]
        pairs[i, 12] = min(siblings[i], 8.0) / 8.0
        pairs[i, 13] = growth[i] / 1000.0
        pairs[i, 14] = nodes[i, 8]
    _rank(cpu_after, mask, pairs, 6)
    _rank(memory_after, mask, pairs, 7)
    _rank(variance, mask, pairs, 8)
    _rank(left, mask, pairs, 9)
    _rank(growth, mask, pairs, 15)
    mean_cpu_size, mean_memory_size = mean_size(allocatable, capacity)
    pod[0], pod[1] = request[0] / mean_cpu_size, request[1] / mean_memory_size
    pod[2], pod[3] = milli / 1000.0, count / 8.0
    pod[4] = 1.0 if count == 1 and 0 < milli < 1000 else 0.0
    pod[8], pod[9] = mean_cpu, mean_memory
    pod[10], pod[11] = np.sqrt(spread_cpu / total), np.sqrt(spread_memory / total)
    pod[12] = feasible / max(n, 1)
