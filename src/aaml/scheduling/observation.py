"""What a learned policy observes: features of the nodes and of the pod, of each pair, the graph, and the action mask.

Every feature is a number without a unit, of about the size of 1, and none depends on how many nodes there are. Nodes
are rows, so one network fits any cluster. New features are added at the end: a model that was trained before goes on
seeing those that it knows, which come first.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import numpy.typing as npt

from aaml.cluster.kernels import columns, compiled
from aaml.cluster.objects import Pod
from aaml.cluster.owners import OwnerIndex
from aaml.cluster.quantity import CPU, MEMORY
from aaml.cluster.state import CPU_COLUMN, MEMORY_COLUMN, PODS_COLUMN, ClusterState
from aaml.cluster.topology import Graph, rack_graph, star, star_graph
from aaml.scheduling.costs import COST_FEATURES, NodeCosts
from aaml.scheduling.lifetimes import LifetimeModel, log_seconds
from aaml.scheduling.remaining import NODE_REMAINING, PAIR_REMAINING, RunningPods

FloatArray = npt.NDArray[np.float32]
BoolArray = npt.NDArray[np.bool_]
DoubleArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

NODE_FEATURES = (
    "cpu_used", "memory_used", "pods_used", "cpu_used_minus_mean", "memory_used_minus_mean", "cpu_size", "memory_size",
    "cpu_memory_imbalance", "empty", "gpu_free", "largest_free_device", "whole_free_devices", "shared_devices",
    "gpu_count", "cordoned", "capacity", *NODE_REMAINING,
)  # fmt: skip
PAIR_FEATURES = (
    "feasible", "cpu_after", "memory_after", "cpu_after_minus_mean", "memory_after_minus_mean", "imbalance_after",
    "cpu_after_rank", "memory_after_rank", "variance_rank", "free_after_rank", "device_left", "gpu_free_after",
    "siblings", "fragmentation_growth", "newly_used", "fragmentation_rank", "cpu_variance_growth",
    "memory_variance_growth", "cpu_gap_after", "memory_gap_after", "cpu_gap", "memory_gap", *PAIR_REMAINING,
    "cpu_growth_scaled", "memory_growth_scaled", "cpu_gap_scaled", "memory_gap_scaled", "pods", "cpu_full_after",
    "memory_full_after",
)  # fmt: skip
POD_FEATURES = (
    "cpu", "memory", "gpu_share", "gpu_count", "is_share", "wants_model", "lifetime", "lifetime_known", "cpu_mean",
    "memory_mean", "cpu_spread", "memory_spread", "feasible_fraction", "queue",
)  # fmt: skip
UPCOMING_FEATURES = ("cpu", "memory", "gpu")
NODE, PAIR, POD, UPCOMING = map(columns, (NODE_FEATURES, PAIR_FEATURES, POD_FEATURES, UPCOMING_FEATURES))

FULL = 0.99  # from here on what is left of a resource is of use to hardly any pod
MAX_DEVICES = 8.0
_FAR = 8.0  # standard deviations: no node is shown to be farther from the mean
_SCRATCH_ROWS = ("cpu", "memory", "cpu_after", "memory_after", "variance", "left")
FILL_SCRATCH, _ROW = len(_SCRATCH_ROWS), columns(_SCRATCH_ROWS)
NO_POD = Pod("none")
"""What a cluster is looked at with where no pod waits."""
REMAINING_OF_NODES = slice(NODE.cpu_in_1m, NODE.empty_in + 1)
REMAINING_OF_PAIRS = slice(PAIR.extends, PAIR.outlived + 1)
_LOG_PODS = np.log1p(np.arange(256)) / 3.0  # logarithms cost a tenth of all features


@dataclass(frozen=True, slots=True)
class Observation:
    """Features at the time of a decision; independent of later changes of the cluster.

    =========  ===============  ===================================================================
    nodes      float32 [N, F]   `NODE_FEATURES`, independent of the pod; then `COST_FEATURES` where the spec shows costs
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

    def of(self, rows: npt.NDArray[np.intp]) -> "Observation":
        """Return what it shows of some of the nodes, as a star of these; the pod is seen as in the whole cluster."""
        return Observation(self.nodes[rows], self.pairs[rows], self.pod, self.mask[rows], star(len(rows)))


@dataclass(frozen=True, slots=True)
class RawObservation:
    """What an `Observation` is computed from, as arrays, before it is made into features.

    The arrays of a `ClusterState` (N nodes, R resources, G devices), whose dtypes and meaning they have, are views that
    are good until it changes. `siblings` float64 [N] counts each node's pods of the pod's owner, `growth` float64 [N]
    is by how much the pod would fragment each node's GPUs, and `pod_vector` float32 [P] is what of the pod's vector
    does not depend on the nodes. `remaining_lifetimes` float32 [N, 12] holds the features of what running pods
    are expected to leave, [0, 12] where nothing is expected. `costs` float32 [N, C] holds `COST_FEATURES`, [N, 0] where
    they are not shown.
    """

    allocatable: npt.NDArray[np.int64]
    requested: npt.NDArray[np.int64]
    gpu_free: npt.NDArray[np.int64]
    gpu_count: npt.NDArray[np.int64]
    unschedulable: BoolArray
    capacity: BoolArray
    mask: BoolArray
    request: npt.NDArray[np.int64]
    growth: npt.NDArray[np.float64]
    siblings: npt.NDArray[np.float64]
    pod_vector: FloatArray
    remaining_lifetimes: FloatArray
    costs: FloatArray
    gpu: tuple[int, int]
    """how many devices the pod asks for, and thousandths of each"""
    graph: Graph

    def observation(self) -> Observation:
        """Return the features, which are independent of the arrays from then on."""
        n = len(self.mask)
        nodes = np.zeros((n, len(NODE_FEATURES) + self.costs.shape[1]), dtype=np.float32)
        nodes[:, len(NODE_FEATURES) :] = self.costs
        pairs = np.zeros((n, len(PAIR_FEATURES)), dtype=np.float32)
        vector = self.pod_vector.copy()
        fill(
            self.allocatable, self.requested, self.gpu_free, self.gpu_count, self.unschedulable, self.capacity,
            self.mask, self.request, *self.gpu, self.growth, self.siblings,
            np.empty((FILL_SCRATCH, n)), nodes, pairs, vector,
        )  # fmt: skip
        if len(self.remaining_lifetimes):
            nodes[:, REMAINING_OF_NODES], pairs[:, REMAINING_OF_PAIRS] = np.split(
                self.remaining_lifetimes, [len(NODE_REMAINING)], axis=1
            )
        return Observation(nodes, pairs, vector, np.array(self.mask, dtype=np.bool_), self.graph)


class FragmentGrowth(Protocol):
    """Says by how much a pod would fragment each node's GPUs; `aaml.policies.fragment_meter.FragmentMeter` is one."""

    def growth(self, state: ClusterState, pod: Pod) -> npt.NDArray[np.float64]:
        """Return float64 [N], the growth of fragments in thousandths of a GPU; 0 where the pod does not fit."""
        ...


@dataclass(frozen=True)
class ObservationSpec:
    """What a policy looks at, and the way from (state, pod) to the `Observation` that shows it.

    A policy that reads observations carries its spec as `observation_spec`, and a model file holds it, so that a
    policy is shown the same things wherever it runs.

    `lookahead` is how many of the pods that follow are shown. `lifetimes` says whether a pod's lifetime is shown, which
    kube-scheduler does not know. With `racks` the graph has a hub for each rack, and otherwise it is a star.
    `fragmentation` measures by how much a pod would fragment GPUs, and `lifetime_model` says how long pods are expected
    to run on; without them the features about that are zero. With `costs` the nodes show what they cost, zero where
    nobody buys and gives back nodes.
    """

    lookahead: int = 0
    lifetimes: bool = False
    racks: bool = False
    fragmentation: FragmentGrowth | None = None
    lifetime_model: LifetimeModel | None = None
    costs: bool = False

    @property
    def pod_size(self) -> int:
        """P, the length of the pod's vector."""
        return len(POD_FEATURES) + self.lookahead * len(UPCOMING_FEATURES)

    def raw_observation(
        self, state: ClusterState, pod: Pod, mask: BoolArray, upcoming: Sequence[Pod] = (), queue_length: int = 0,
        now_s: float = 0.0,
    ) -> RawObservation:  # fmt: skip
        """Return the arrays at `now_s` of `pod` waiting in `state`; `mask` is [N]."""
        n, remaining = len(state), np.zeros((0, len(NODE_REMAINING) + len(PAIR_REMAINING)), dtype=np.float32)
        pod_vector = np.zeros(self.pod_size, dtype=np.float32)
        pod_vector[POD.wants_model] = float(bool(pod.gpu.models))
        if self.lifetimes and pod.lifetime_s is not None:
            pod_vector[POD.lifetime], pod_vector[POD.lifetime_known] = log_seconds(pod.lifetime_s), 1.0
        if self.lifetime_model is not None:
            remaining_s = 0.0 if pod is NO_POD else self.lifetime_model.remaining_s(pod)
            remaining = RunningPods.of(state, self.lifetime_model).features(remaining_s, now_s)
            if not pod_vector[POD.lifetime_known] and pod is not NO_POD:
                pod_vector[POD.lifetime], pod_vector[POD.lifetime_known] = (
                    log_seconds(remaining_s),
                    self.lifetime_model.certainty(pod),
                )
        pod_vector[POD.queue] = np.log1p(queue_length) / 5.0
        if self.lookahead and upcoming:
            mean_cpu, mean_memory = mean_size(state.allocatable, state.capacity)
            for k, other in enumerate(upcoming[: self.lookahead]):
                start = len(POD_FEATURES) + k * len(UPCOMING_FEATURES)
                pod_vector[start + UPCOMING.cpu] = other.request(CPU) / mean_cpu
                pod_vector[start + UPCOMING.memory] = other.request(MEMORY) / mean_memory
                pod_vector[start + UPCOMING.gpu] = other.gpu.total_milli / 1000.0 / MAX_DEVICES
        return RawObservation(
            request=state.request_vector(pod),  # first: it may add a column
            allocatable=state.allocatable,
            requested=state.requested,
            gpu_free=state.gpu_free,
            gpu_count=state.gpu_count,
            unschedulable=state.unschedulable,
            capacity=state.capacity,
            mask=np.asarray(mask, dtype=np.bool_),
            growth=np.zeros(n) if self.fragmentation is None else self.fragmentation.growth(state, pod),
            siblings=OwnerIndex.of(state).counts(pod.owner) if pod.owner else np.zeros(n),
            pod_vector=pod_vector,
            remaining_lifetimes=remaining,
            costs=self._costs(state, now_s),
            gpu=(pod.gpu.count, pod.gpu.milli),
            graph=(rack_graph if self.racks else star_graph)(state),
        )

    def _costs(self, state: ClusterState, now_s: float) -> FloatArray:
        known = NodeCosts.of(state) if self.costs else None
        if known is not None:
            return known.features(now_s)
        return np.zeros((len(state), len(COST_FEATURES) if self.costs else 0), dtype=np.float32)

    def observe(
        self, state: ClusterState, pod: Pod, mask: BoolArray, upcoming: Sequence[Pod] = (), queue_length: int = 0,
        now_s: float = 0.0,
    ) -> Observation:  # fmt: skip
        """Return the observation of `pod` waiting in `state` at `now_s`; `mask` is [N]."""
        return self.raw_observation(state, pod, mask, upcoming, queue_length, now_s).observation()


PLAIN = ObservationSpec()
"""What is shown to a policy that says nothing about what it looks at."""


@dataclass(frozen=True)
class Context:
    """One decision to make: the state, the pod, and the rows where the pod may go.

    It is valid until the state changes. Heuristics read `state`, learned policies `observation`, whose features are
    computed when it is first asked for. `upcoming` holds as many of the pods that follow as `spec` wants to see.
    """

    state: ClusterState
    pod: Pod
    mask: BoolArray
    spec: ObservationSpec = PLAIN
    upcoming: Sequence[Pod] = ()
    queue_length: int = 0
    now_s: float = 0.0

    @cached_property
    def raw_observation(self) -> RawObservation:
        """The arrays that the observation is computed from."""
        return self._by(self.spec)

    @cached_property
    def observation(self) -> Observation:
        """The features, computed once."""
        return self.raw_observation.observation()

    def raw_observation_by(self, spec: ObservationSpec) -> RawObservation:
        """Return the arrays for another policy's spec.

        Raises ValueError when that spec shows more of the pods that follow than this context holds.
        """
        if spec is self.spec or spec == self.spec:
            return self.raw_observation
        if spec.lookahead > self.spec.lookahead:
            raise ValueError(f"a lookahead of {spec.lookahead} was asked for, the context has {self.spec.lookahead}")
        return self._by(spec)

    def _by(self, spec: ObservationSpec) -> RawObservation:
        return spec.raw_observation(self.state, self.pod, self.mask, self.upcoming, self.queue_length, self.now_s)

    def observation_by(self, spec: ObservationSpec) -> Observation:
        """Return the features as another policy's spec shows them; raises ValueError as `raw_observation_by` does."""
        raw = self.raw_observation_by(spec)
        return self.observation if raw is self.raw_observation else raw.observation()


@compiled
def mean_size(allocatable: IntArray, capacity: BoolArray) -> tuple[float, float]:
    """Return the mean CPU and memory of the nodes that count."""
    cpu, memory, count = 0.0, 0.0, 0
    for i in range(len(capacity)):
        if capacity[i]:
            cpu += allocatable[i, CPU_COLUMN]
            memory += allocatable[i, MEMORY_COLUMN]
            count += 1
    count = max(count, 1)
    return max(cpu / count, 1.0), max(memory / count, 1.0)


@compiled
def _rank(values: DoubleArray, mask: BoolArray, out: FloatArray, column: int) -> None:
    """Write where each value lies between the least (0) and the greatest (1) among feasible rows, clipped."""
    low, high = np.inf, -np.inf
    for i in range(len(mask)):
        if mask[i]:
            low = min(low, values[i])
            high = max(high, values[i])
    span = high - low
    for i in range(len(mask)):
        if span > 0.0:
            out[i, column] = min(max((values[i] - low) / span, 0.0), 1.0)


@compiled
def _bounded(value: float) -> float:
    return min(max(value, -_FAR), _FAR)


@compiled
def fill(  # noqa: C901, PLR0912, PLR0915
    allocatable: IntArray, requested: IntArray, gpu_free: IntArray, gpu_count: IntArray, unschedulable: BoolArray,
    capacity: BoolArray, mask: BoolArray, request: IntArray, count: int, milli: int, growth: DoubleArray,
    siblings: DoubleArray, scratch: DoubleArray, nodes: FloatArray, pairs: FloatArray, pod: FloatArray,
) -> None:  # fmt: skip
    """Write the features of nodes, pairs and pod into zeroed arrays; `scratch` [FILL_SCRATCH, >= N] is overwritten."""
    n = len(mask)
    cpu, memory = scratch[_ROW.cpu], scratch[_ROW.memory]
    cpu_after, memory_after = scratch[_ROW.cpu_after], scratch[_ROW.memory_after]
    variance, left = scratch[_ROW.variance], scratch[_ROW.left]
    max_cpu, max_memory, total, feasible = 1.0, 1.0, 0, 0
    sum_cpu, sum_memory = 0.0, 0.0
    for i in range(n):
        cpu[i] = requested[i, CPU_COLUMN] / max(allocatable[i, CPU_COLUMN], 1)
        memory[i] = requested[i, MEMORY_COLUMN] / max(allocatable[i, MEMORY_COLUMN], 1)
        feasible += mask[i]
        if capacity[i]:
            total += 1
            sum_cpu += cpu[i]
            sum_memory += memory[i]
            max_cpu = max(max_cpu, allocatable[i, CPU_COLUMN])
            max_memory = max(max_memory, allocatable[i, MEMORY_COLUMN])
    total = max(total, 1)
    mean_cpu, mean_memory = sum_cpu / total, sum_memory / total
    spread_cpu, spread_memory = 0.0, 0.0
    for i in range(n):
        if capacity[i]:
            spread_cpu += (cpu[i] - mean_cpu) ** 2
            spread_memory += (memory[i] - mean_memory) ** 2
    deviation_cpu, deviation_memory = np.sqrt(spread_cpu / total), np.sqrt(spread_memory / total)
    mean_cpu_size, mean_memory_size = mean_size(allocatable, capacity)
    asked_cpu, asked_memory = request[CPU_COLUMN], request[MEMORY_COLUMN]
    size_cpu, size_memory = max(asked_cpu / mean_cpu_size, 1e-6), max(asked_memory / mean_memory_size, 1e-6)
    unit = size_cpu * (deviation_cpu + size_cpu) + size_memory * (deviation_memory + size_memory)
    keep = 1.0 - 1.0 / total
    for i in range(n):
        node_cpu, node_memory = allocatable[i, CPU_COLUMN], allocatable[i, MEMORY_COLUMN]
        pods, devices = requested[i, PODS_COLUMN], gpu_count[i]
        gap_cpu, gap_memory = cpu[i] - mean_cpu, memory[i] - mean_memory
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
        nodes[i, NODE.cpu_used] = cpu[i]
        nodes[i, NODE.memory_used] = memory[i]
        nodes[i, NODE.pods_used] = pods / max(allocatable[i, PODS_COLUMN], 1)
        nodes[i, NODE.cpu_used_minus_mean] = gap_cpu
        nodes[i, NODE.memory_used_minus_mean] = gap_memory
        nodes[i, NODE.cpu_size] = node_cpu / max_cpu
        nodes[i, NODE.memory_size] = node_memory / max_memory
        nodes[i, NODE.cpu_memory_imbalance] = abs(cpu[i] - memory[i])
        nodes[i, NODE.empty] = 1.0 if pods == 0 else 0.0
        if devices > 0:
            nodes[i, NODE.gpu_free] = free / (1000.0 * devices)
            nodes[i, NODE.largest_free_device] = largest / 1000.0
        nodes[i, NODE.whole_free_devices] = whole / 8.0
        nodes[i, NODE.shared_devices] = shared / 8.0
        nodes[i, NODE.gpu_count] = devices / 8.0
        nodes[i, NODE.cordoned] = 1.0 if unschedulable[i] else 0.0
        nodes[i, NODE.capacity] = 1.0 if capacity[i] else 0.0
        grow_cpu, grow_memory = asked_cpu / max(node_cpu, 1), asked_memory / max(node_memory, 1)
        cpu_after[i], memory_after[i] = cpu[i] + grow_cpu, memory[i] + grow_memory
        # Change of N times the variance when one node's use grows by d: 2 d (u - mean) + d^2 (1 - 1/N).
        variance[i] = (
            2.0 * grow_cpu * gap_cpu + grow_cpu**2 * keep + 2.0 * grow_memory * gap_memory + grow_memory**2 * keep
        )
        left_cpu, left_memory = (1.0 - cpu_after[i]) * node_cpu, (1.0 - memory_after[i]) * node_memory
        left[i] = left_cpu / max_cpu + left_memory / max_memory
        pairs[i, PAIR.feasible] = 1.0 if mask[i] else 0.0
        pairs[i, PAIR.cpu_after] = min(cpu_after[i], 2.0)
        pairs[i, PAIR.memory_after] = min(memory_after[i], 2.0)
        pairs[i, PAIR.cpu_after_minus_mean] = pairs[i, PAIR.cpu_after] - mean_cpu
        pairs[i, PAIR.memory_after_minus_mean] = pairs[i, PAIR.memory_after] - mean_memory
        pairs[i, PAIR.imbalance_after] = abs(pairs[i, PAIR.cpu_after] - pairs[i, PAIR.memory_after])
        if milli > 0 and devices > 0:
            if count == 1 and best <= 1000.0:
                pairs[i, PAIR.device_left] = (best - milli) / 1000.0
            pairs[i, PAIR.gpu_free_after] = max(free - count * milli, 0.0) / (1000.0 * devices)
        else:
            pairs[i, PAIR.gpu_free_after] = nodes[i, NODE.gpu_free]
        pairs[i, PAIR.siblings] = min(siblings[i], 8.0) / 8.0
        pairs[i, PAIR.fragmentation_growth] = growth[i] / 1000.0
        pairs[i, PAIR.newly_used] = nodes[i, NODE.empty]
        # What balancing looks at are hundredths. Brought to about 1, they are learned from as fast as the rest.
        pairs[i, PAIR.cpu_variance_growth] = 40.0 * grow_cpu * gap_cpu
        pairs[i, PAIR.memory_variance_growth] = 40.0 * grow_memory * gap_memory
        pairs[i, PAIR.cpu_gap_after] = 8.0 * pairs[i, PAIR.cpu_after_minus_mean]
        pairs[i, PAIR.memory_gap_after] = 8.0 * pairs[i, PAIR.memory_after_minus_mean]
        pairs[i, PAIR.cpu_gap] = 8.0 * nodes[i, NODE.cpu_used_minus_mean]
        pairs[i, PAIR.memory_gap] = 8.0 * nodes[i, NODE.memory_used_minus_mean]
        # The same whole, with what depends on the node's size, in units of this pod and of how far nodes differ now:
        # with small pods on even nodes all is a hundred times smaller than with large ones, and counts as much.
        if capacity[i]:
            pairs[i, PAIR.cpu_growth_scaled] = _bounded(grow_cpu * (2.0 * gap_cpu + grow_cpu * keep) / unit)
            pairs[i, PAIR.memory_growth_scaled] = _bounded(grow_memory * (2.0 * gap_memory + grow_memory * keep) / unit)
            pairs[i, PAIR.cpu_gap_scaled] = _bounded(gap_cpu / (deviation_cpu + size_cpu))
            pairs[i, PAIR.memory_gap_scaled] = _bounded(gap_memory / (deviation_memory + size_memory))
        # What packing looks at: few pods are soon gone, and a node that is full to the brim wastes nothing. No smooth
        # function of the use tells a node that is full from one that lacks a little.
        pairs[i, PAIR.pods] = _LOG_PODS[pods] if pods < len(_LOG_PODS) else np.log1p(pods) / 3.0
        pairs[i, PAIR.cpu_full_after] = 1.0 if cpu_after[i] > FULL else 0.0
        pairs[i, PAIR.memory_full_after] = 1.0 if memory_after[i] > FULL else 0.0
    _rank(cpu_after, mask, pairs, PAIR.cpu_after_rank)
    _rank(memory_after, mask, pairs, PAIR.memory_after_rank)
    _rank(variance, mask, pairs, PAIR.variance_rank)
    _rank(left, mask, pairs, PAIR.free_after_rank)
    _rank(growth, mask, pairs, PAIR.fragmentation_rank)
    pod[POD.cpu], pod[POD.memory] = asked_cpu / mean_cpu_size, asked_memory / mean_memory_size
    pod[POD.gpu_share], pod[POD.gpu_count] = milli / 1000.0, count / 8.0
    pod[POD.is_share] = 1.0 if count == 1 and 0 < milli < 1000 else 0.0
    pod[POD.cpu_mean], pod[POD.memory_mean] = mean_cpu, mean_memory
    pod[POD.cpu_spread], pod[POD.memory_spread] = deviation_cpu, deviation_memory
    pod[POD.feasible_fraction] = feasible / max(n, 1)
