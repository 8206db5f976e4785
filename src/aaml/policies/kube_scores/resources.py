"""NodeResourcesFit's strategies and NodeResourcesBalancedAllocation, in kube-scheduler's integer arithmetic.

Sources: https://kubernetes.io/docs/concepts/scheduling-eviction/resource-bin-packing/ and the plugin
`noderesources` of kube-scheduler 1.37.
"""

from collections.abc import Callable
from itertools import pairwise

import numpy as np

from aaml.cluster.filters.index import BoolArray, FilterIndex, IntArray
from aaml.cluster.gpu import DEVICE_MILLI
from aaml.cluster.objects import Pod
from aaml.cluster.quantity import CPU, EPHEMERAL_STORAGE, MEMORY
from aaml.cluster.state import ClusterState
from aaml.policies.kube_scores.config import GPU_MILLI, MAX_SCORE, KubeSchedulerConfig

NATIVE = frozenset({CPU, MEMORY, EPHEMERAL_STORAGE})
"""Resources that count for pods that request none of them, too."""


def _column(state: ClusterState, name: str, *, nonzero: bool) -> tuple[IntArray, IntArray]:
    """Return ([N] allocatable, [N] requested) of a resource.

    Where it is wanted, pods that request none count with the defaults.
    """
    if name == GPU_MILLI:
        offered = DEVICE_MILLI * state.gpu_count
        return offered, offered - state.gpu_free.sum(axis=1)
    if name not in state.resource_index:
        nothing = np.zeros(len(state), dtype=np.int64)
        return nothing, nothing
    column = state.resource_index[name]
    requested = state.requested[:, column]
    if nonzero and name in {CPU, MEMORY}:
        requested = state.nonzero[:, 0 if name == CPU else 1]
    return state.allocatable[:, column], requested


def _pod_amount(state: ClusterState, pod: Pod, name: str) -> int:
    """Return what NodeResourcesFit counts for a waiting pod.

    It is what the containers request; pod-level resources are left out.
    """
    if name in {CPU, MEMORY}:
        return (pod.nonzero_containers or state.nonzero_request(pod))[0 if name == CPU else 1]
    return pod.gpu.total_milli if name == GPU_MILLI else pod.request(name)


def least(requested: IntArray, allocatable: IntArray) -> IntArray:
    """Return [N] the per cent that is free: (allocatable - requested) * 100 / allocatable.

    It is 0 where more is requested than there is.
    """
    safe = np.maximum(allocatable, 1)
    return np.where(requested > allocatable, 0, (allocatable - requested) * MAX_SCORE // safe)


def most(requested: IntArray, allocatable: IntArray) -> IntArray:
    """Return [N] the used per cent, 100 when overcommitted."""
    return np.minimum(requested, allocatable) * MAX_SCORE // np.maximum(allocatable, 1)


def by_shape(shape: tuple[tuple[int, int], ...]) -> Callable[[IntArray, IntArray], IntArray]:
    """Return the score by a broken line over the per cent in use, whose `shape` has scores from 0 to 10."""
    points = [(utilisation, score * 10) for utilisation, score in shape]

    def line(used: int) -> int:
        for (left, low), (right, high) in pairwise(points):
            if used <= left:
                return low
            if used <= right:
                # Go divides towards zero.
                return low + int((high - low) * (used - left) / (right - left))
        return points[-1][1]

    table = np.array([line(used) for used in range(MAX_SCORE + 1)], dtype=np.int64)

    def score(requested: IntArray, allocatable: IntArray) -> IntArray:
        used = requested * MAX_SCORE // np.maximum(allocatable, 1)
        return np.asarray(table[np.where(requested > allocatable, MAX_SCORE, used)])

    return score


def fit(index: FilterIndex, pod: Pod, config: KubeSchedulerConfig) -> IntArray:
    """Return [N] NodeResourcesFit's score with the pod on each node, the weighted mean over its resources."""
    state = index.state
    ratio = config.strategy == "RequestedToCapacityRatio"
    score = {"LeastAllocated": least, "MostAllocated": most}.get(config.strategy) or by_shape(config.shape)
    total = np.zeros(len(state), dtype=np.int64)
    weights = np.zeros(len(state), dtype=np.int64)
    for name, weight in config.resources:
        amount = _pod_amount(state, pod, name)
        if not amount and name not in NATIVE:
            continue
        allocatable, requested = _column(state, name, nonzero=True)
        each = score(requested + amount, allocatable)
        counted = (allocatable > 0) & (each > 0) if ratio else allocatable > 0
        total += np.where(counted, each * weight, 0)
        weights += np.where(counted, weight, 0)
    safe = np.maximum(weights, 1)
    if ratio:
        return np.floor(total / safe + 0.5).astype(np.int64)
    return total // safe


def _evenness(used: list[IntArray], offered: list[IntArray]) -> IntArray:
    """Return [N] (1 - standard deviation of the used fractions) * 100, truncated."""
    size = len(offered[0])
    if len(offered) == 2 and all(of.all() for of in offered):  # the usual case, several times as fast
        first, second = (np.minimum(amount / of, 1.0) for amount, of in zip(used, offered, strict=True))
        return np.asarray((1 - np.abs(first - second) / 2) * MAX_SCORE).astype(np.int64)
    counted: list[BoolArray] = [each > 0 for each in offered]
    fractions = [
        np.where(has, np.minimum(amount / np.maximum(of, 1), 1.0), 0.0)
        for amount, of, has in zip(used, offered, counted, strict=True)
    ]
    number = np.sum(counted, axis=0)
    # The order of additions is that of kube-scheduler, for the same rounding.
    total, low, high = np.zeros(size), np.full(size, np.inf), np.full(size, -np.inf)
    for fraction, has in zip(fractions, counted, strict=True):
        total += fraction
        low, high = np.where(has, np.minimum(low, fraction), low), np.where(has, np.maximum(high, fraction), high)
    deviation = np.zeros(size)
    two = number == 2
    deviation[two] = (high[two] - low[two]) / 2
    more = number > 2
    if more.any():
        mean, squares = total / np.maximum(number, 1), np.zeros(size)
        for fraction, has in zip(fractions, counted, strict=True):
            squares += np.where(has, (fraction - mean) * (fraction - mean), 0.0)
        deviation[more] = np.sqrt(squares / np.maximum(number, 1))[more]
    return ((1 - deviation) * MAX_SCORE).astype(np.int64)


def balanced(index: FilterIndex, pod: Pod, config: KubeSchedulerConfig) -> IntArray | None:
    """Return [N] how much evener the pod makes each node's resources, where 75 is no change.

    It is None for pods that request nothing.
    """
    state = index.state
    names = [name for name in config.balanced_resources if pod.request(name) or name in NATIVE]
    amounts = [pod.request(name) for name in names]
    if not any(amounts):
        return None
    columns = [_column(state, name, nonzero=False) for name in names]
    offered = [allocatable for allocatable, _ in columns]
    without = _evenness([requested for _, requested in columns], offered)
    with_pod = _evenness([requested + amount for (_, requested), amount in zip(columns, amounts, strict=True)], offered)
    half = MAX_SCORE // 2
    return half + (half + with_pod - without) // 2
