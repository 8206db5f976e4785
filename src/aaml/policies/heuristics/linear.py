"""A linear scorer of nodes, in compiled code: its weights are found by search, with thousands of episodes a minute.

The score is the sum over features f and terms t of `weights[t, f] * term_t * feature_f`. The features are those of the
pod on the node. The terms are 1, the pod's CPU and memory and how long it is expected to run, so that large or lasting
pods may be placed by other weights than small or short ones. Least and most allocated, least variance and balanced
allocation are special cases of it.

================  ======================================================================================
cpu, memory       use of the node's CPU and memory after the pod is placed, 0 ... 1
cpu_squared, ...  their squares and their product
pods              log(1 + pods on the node before)
empty             1 where the node had no pod
imbalance         |cpu - memory|
fullest           the larger of cpu and memory
cpu_full, ...     1 where more than 99% are used
device_left ...   of pods with GPUs: the pair features of that name (`aaml.scheduling.observation`)
extends           for how much longer than now the pod is expected to keep the node from being empty
opens             how long it would keep an empty node from being so, 0 on others
outlived          for how much longer than the pod the node is expected not to be empty
stays             how long the node is expected not to be empty
price ...         what nodes cost: `aaml.scheduling.costs.COST_FEATURES`
added_price       the time by which the pod keeps the node from being empty, times the price
================  ======================================================================================

Those of lifetimes, and the term, are log(1 + minutes) / 5, and 0 where the scorer has no model of lifetimes
(`observation_spec.lifetime_model`). Those of costs are 0 where it is not shown them (`observation_spec.costs`).
"""

import numpy as np
import numpy.typing as npt

from aaml.cluster.kernels import columns, compiled
from aaml.cluster.state import CPU_COLUMN, MEMORY_COLUMN, PODS_COLUMN
from aaml.scheduling.costs import COST_FEATURES, NodeCosts
from aaml.scheduling.observation import FULL, PAIR_FEATURES, Context, ObservationSpec, mean_size
from aaml.scheduling.ports import Decision, shown
from aaml.scheduling.queue_sort import QueueSort
from aaml.scheduling.remaining import RunningPods, log_minutes

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.int64]
FeatureArray = npt.NDArray[np.float32]
PLAIN = (
    "cpu", "memory", "cpu_squared", "memory_squared", "cpu_memory", "pods", "empty", "imbalance", "fullest", "cpu_full",
    "memory_full",
)  # fmt: skip
GPU = ("device_left", "gpu_free_after", "fragmentation_growth", "fragmentation_rank")
LIFE = ("extends", "opens", "outlived", "stays")
COST = (*COST_FEATURES, "added_price")
FEATURES = (*PLAIN, *GPU, *LIFE, *COST)
TERMS = ("one", "pod_cpu", "pod_memory", "pod_rest")
FEATURE, TERM = columns(FEATURES), columns(TERMS)
_TERM_SCALE = 5.0  # a pod asks for about a fifth of a node at most: this brings the terms to unit size
_LIFE = len(PLAIN) + len(GPU)
_COST = _LIFE + len(LIFE)
_PRICE = COST_FEATURES.index("price")
_GPU_COLUMNS = tuple(PAIR_FEATURES.index(name) for name in GPU)
_NO_FEATURES = np.zeros((0, 0), np.float32)


@compiled
def weigh(weights: FloatArray, cpu: float, memory: float, remaining_s: float) -> FloatArray:
    """Return the weights [F] for a pod that asks for so much of a mean node and is expected to run for so long."""
    plain = weights[TERM.one] + _TERM_SCALE * (cpu * weights[TERM.pod_cpu] + memory * weights[TERM.pod_memory])
    return plain + log_minutes(remaining_s) * weights[TERM.pod_rest]


@compiled
def weigh_into(weights: FloatArray, cpu: float, memory: float, remaining_s: float, total: FloatArray) -> None:
    """Write what `weigh` returns into `total` [F]."""
    rest = log_minutes(remaining_s)
    for f in range(len(total)):
        by_size = cpu * weights[TERM.pod_cpu, f] + memory * weights[TERM.pod_memory, f]
        total[f] = weights[TERM.one, f] + _TERM_SCALE * by_size + rest * weights[TERM.pod_rest, f]


@compiled
def life_score(weights: FloatArray, remaining_s: float, empty_s: float, pods: int) -> float:
    """Return what times add to a node's score: the pod's expected rest, and when the node is expected to be empty."""
    extends = log_minutes(max(remaining_s - empty_s, 0.0))
    opens, longer = (extends, 0.0) if pods == 0 else (0.0, extends)
    return (
        weights[FEATURE.extends] * longer + weights[FEATURE.opens] * opens
        + weights[FEATURE.outlived] * log_minutes(max(empty_s - remaining_s, 0.0))
        + weights[FEATURE.stays] * log_minutes(empty_s)
    )  # fmt: skip


@compiled
def plain_score(weights: FloatArray, cpu: float, memory: float, pods: int) -> float:
    """Return a node's score by weights [F], from its use after the pod is placed and its number of pods before."""
    return (
        weights[FEATURE.cpu] * cpu + weights[FEATURE.memory] * memory
        + weights[FEATURE.cpu_squared] * cpu * cpu + weights[FEATURE.memory_squared] * memory * memory
        + weights[FEATURE.cpu_memory] * cpu * memory
        + weights[FEATURE.pods] * np.log1p(pods) + (weights[FEATURE.empty] if pods == 0 else 0.0)
        + weights[FEATURE.imbalance] * abs(cpu - memory) + weights[FEATURE.fullest] * max(cpu, memory)
        + (weights[FEATURE.cpu_full] if cpu > FULL else 0.0) + (weights[FEATURE.memory_full] if memory > FULL else 0.0)
    )  # fmt: skip


@compiled
def plain_scores(
    weights: FloatArray, allocatable: IntArray, requested: IntArray, capacity: BoolArray, request: IntArray,
    remaining_s: float, empty_s: FloatArray, scores: FloatArray,
) -> FloatArray:  # fmt: skip
    """Write the score of every node, float64 [N], for a pod's request [R] and expected rest.

    `empty_s` [N] is in how many seconds each is expected to be empty, [0] without a model of lifetimes. Returns the
    pod's weights [F].
    """
    mean_cpu, mean_memory = mean_size(allocatable, capacity)
    total = weigh(weights, request[CPU_COLUMN] / mean_cpu, request[MEMORY_COLUMN] / mean_memory, remaining_s)
    for row in range(len(scores)):
        cpu = (requested[row, CPU_COLUMN] + request[CPU_COLUMN]) / max(allocatable[row, CPU_COLUMN], 1)
        memory = (requested[row, MEMORY_COLUMN] + request[MEMORY_COLUMN]) / max(allocatable[row, MEMORY_COLUMN], 1)
        scores[row] = plain_score(total, cpu, memory, requested[row, PODS_COLUMN])
        if len(empty_s):
            scores[row] += life_score(total, remaining_s, empty_s[row], requested[row, PODS_COLUMN])
    return total


@compiled
def cost_score(weights: FloatArray, costs: FeatureArray, longer_s: float) -> float:
    """Return what the `COST_FEATURES` [C] of a node add to its score; the pod keeps it from being empty for longer."""
    score = 0.0
    for k in range(len(COST_FEATURES)):
        score += weights[_COST + k] * costs[k]
    return score + weights[FEATURE.added_price] * log_minutes(max(longer_s, 0.0)) * costs[_PRICE]


@compiled
def gpu_score(weights: FloatArray, pairs: FeatureArray) -> float:
    """Return what the features [K] of a pod with GPUs on a node add to that node's score."""
    score = 0.0
    for k in range(len(GPU)):
        score += weights[len(PLAIN) + k] * pairs[_GPU_COLUMNS[k]]
    return score


@compiled
def _add_shown(
    weights: FloatArray, costs: FeatureArray, pairs: FeatureArray, remaining_s: float, empty_s: FloatArray,
    scores: FloatArray,
) -> None:  # fmt: skip
    """Add to the scores [N] what costs [N, C] and pairs [N, K] add, where there are any."""
    for row in range(len(scores)):
        shown = 0.0
        if len(costs):
            shown += cost_score(weights, costs[row], remaining_s - empty_s[row] if len(empty_s) else 0.0)
        if len(pairs):
            shown += gpu_score(weights, pairs[row])
        scores[row] += shown


class LinearPolicy:
    """Takes the feasible row with the highest score, and of equal ones the first; `weights` is float64 [terms, F].

    `queue_sort` is the order in which it wants waiting pods, or None for kube-scheduler's.
    `observation_spec` says what the features of pods with GPUs and of lifetimes are measured with.
    """

    __repr__ = shown

    def __init__(
        self,
        weights: FloatArray,
        name: str = "linear",
        queue_sort: QueueSort | None = None,
        observation_spec: ObservationSpec | None = None,
    ) -> None:
        if weights.shape != (len(TERMS), len(FEATURES)):
            raise ValueError(f"weights have shape {weights.shape}, expected ({len(TERMS)}, {len(FEATURES)})")
        self.name = name
        self.observation_spec = observation_spec or ObservationSpec()
        self.queue_sort = None if queue_sort is None else queue_sort.knowing(self.observation_spec.lifetime_model)
        self.weights = np.ascontiguousarray(weights, dtype=np.float64)

    def act(self, context: Context) -> Decision:
        """Choose a row."""
        return Decision(int(np.where(context.mask, self.scores(context), -np.inf).argmax()))

    def scores(self, context: Context) -> FloatArray:
        """Return [N] scores; rows outside the mask hold anything."""
        remaining_s, empty_s = self._times(context)
        total, scores = self._plain(context, remaining_s, empty_s)
        known = self._paid_nodes(context)
        costs = _NO_FEATURES if known is None else known.features(context.now_s)
        gpus = context.pod.gpu.count > 0
        pairs = context.observation_by(self.observation_spec).pairs if gpus else _NO_FEATURES
        _add_shown(total, costs, pairs, remaining_s, empty_s, scores)
        return scores

    def _paid_nodes(self, context: Context) -> NodeCosts | None:
        """Return what is known of the costs of nodes; None where it is not shown, or nobody buys them."""
        return NodeCosts.of(context.state) if self.observation_spec.costs else None

    def _times(self, context: Context) -> tuple[float, FloatArray]:
        """Return the pod's expected rest, and in how many seconds each node is expected to be empty; 0.0 and [0]."""
        if self.observation_spec.lifetime_model is None:
            return 0.0, np.zeros(0)
        empty_s = RunningPods.of(context.state, self.observation_spec.lifetime_model).empty_s(context.now_s)
        return self.observation_spec.lifetime_model.remaining_s(context.pod), empty_s

    def _costs(self, context: Context, remaining_s: float, empty_s: FloatArray) -> FloatArray | None:
        """Return float64 [N, C], the features `COST`; None where they are not shown, or nobody buys nodes."""
        known = self._paid_nodes(context)
        if known is None:
            return None
        shown = known.features(context.now_s).astype(np.float64)
        extends = log_minutes(np.maximum(remaining_s - empty_s, 0.0)) if len(empty_s) else 0.0
        return np.column_stack([shown, extends * shown[:, COST.index("price")]])

    def _plain(self, context: Context, remaining_s: float, empty_s: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the pod's weights [F], and scores without what devices add to them."""
        state, scores = context.state, np.zeros(len(context.mask))
        request = state.request_vector(context.pod)
        weights = plain_scores(
            self.weights, state.allocatable, state.requested, state.capacity, request, remaining_s, empty_s, scores
        )
        return weights, scores

    @property
    def terms_are(self) -> str:
        """What the terms are."""
        return "each feature times its weight for a pod of this size"

    def terms(self, context: Context) -> dict[str, FloatArray]:
        """Return what each feature adds to the scores by its name, [N]; those without a weight are left out."""
        state, (remaining_s, empty_s) = context.state, self._times(context)
        request = state.request_vector(context.pod)
        total, _ = self._plain(context, remaining_s, empty_s)
        cpu, memory = (
            (state.requested[:, column] + request[column]) / np.maximum(state.allocatable[:, column], 1)
            for column in (CPU_COLUMN, MEMORY_COLUMN)
        )
        pods = state.requested[:, PODS_COLUMN]
        features = [
            cpu, memory, cpu**2, memory**2, cpu * memory, np.log1p(pods), pods == 0, np.abs(cpu - memory),
            np.maximum(cpu, memory), cpu > FULL, memory > FULL,
        ]  # fmt: skip
        nothing = np.zeros(len(pods))
        gpus = context.pod.gpu.count > 0
        features += (
            list(context.observation_by(self.observation_spec).pairs[:, list(_GPU_COLUMNS)].T)
            if gpus
            else [nothing] * len(GPU)
        )
        if len(empty_s):
            extends = log_minutes(np.maximum(remaining_s - empty_s, 0.0))
            features += [np.where(pods == 0, 0.0, extends), np.where(pods == 0, extends, 0.0)]
            features += [log_minutes(np.maximum(empty_s - remaining_s, 0.0)), log_minutes(empty_s)]
        else:
            features += [nothing] * len(LIFE)
        costs = self._costs(context, remaining_s, empty_s)
        features += [nothing] * len(COST) if costs is None else list(costs.T)
        given = PLAIN + (GPU if gpus else ()) + (LIFE if len(empty_s) else ()) + (() if costs is None else COST)
        named = ((name, *each) for name, *each in zip(FEATURES, total, features, strict=True) if name in given)
        return {name: weight * np.asarray(feature, dtype=np.float64) for name, weight, feature in named if weight}
