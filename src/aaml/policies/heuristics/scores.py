"""Scores over CPU and memory that spread, pack or balance, compiled over all rows.

The amounts of a pod are those of kube-scheduler's scores, which count 100m and 200Mi where nothing is requested
(`ClusterState.nonzero`). Scores lie in 0 ... 100, but for the last two. The first three are those of the plugins
NodeResourcesFit and NodeResourcesBalancedAllocation, but without their integer arithmetic, to which `truncate` comes
close:
https://kubernetes.io/docs/reference/scheduling/config/#scheduling-plugins
"""

import numpy as np
import numpy.typing as npt

from aaml.cluster.kernels import compiled
from aaml.scheduling.observation import Context

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.int64]
_LEAST, _MOST, _BALANCED, _BEST_FIT, _DOT_PRODUCT, _ALPHAEVOLVE, _VARIANCE = range(7)


def least_allocated(context: Context) -> FloatArray:
    """Score 100 times the mean over CPU and memory of what is free with the pod, as a fraction of allocatable."""
    return _scored(context, _LEAST)


def most_allocated(context: Context) -> FloatArray:
    """Score 100 times the mean over CPU and memory of what is requested with the pod, over allocatable."""
    return _scored(context, _MOST)


def balanced_allocation(context: Context) -> FloatArray:
    """Score 100 (1 - standard deviation of the fractions of CPU and memory requested with the pod)."""
    return _scored(context, _BALANCED)


def best_fit(context: Context) -> FloatArray:
    """Score 100 (1 - mean over CPU and memory of what is left with the pod, over the largest node's allocatable)."""
    return _scored(context, _BEST_FIT)


def dot_product(context: Context) -> FloatArray:
    """Score 100 (1 - mean over CPU and memory of free times requested, each over the largest node's allocatable)."""
    return _scored(context, _DOT_PRODUCT)


def alphaevolve(context: Context) -> FloatArray:
    """Score -(c + m + m / c + c / m), where the pod asks for c of the node's free CPU and m of its free memory.

    The heuristic that AlphaEvolve found for Borg: Novikov et al., 2025, https://arxiv.org/abs/2506.13131. The smaller a
    part of what is free and the more evenly it is one of both, the better. Amounts and what is free are at least one
    unit (a milli-core, a byte), so nothing is divided by zero.
    """
    return _scored(context, _ALPHAEVOLVE)


def least_variance(context: Context) -> FloatArray:
    """Score how much the variances of CPU and memory use over capacity nodes fall, in units of 1e-4 / N.

    When use of a node at u grows by d, N times the variance grows by 2 d (u - mean) + d^2 (1 - 1/N).
    """
    return _scored(context, _VARIANCE)


def _scored(context: Context, kind: int) -> FloatArray:
    state = context.state
    cpu, memory = state.nonzero_request(context.pod)
    scores: FloatArray = _score(kind, state.allocatable, state.nonzero, state.capacity, cpu, memory)
    return scores


@compiled
def _score(  # noqa: C901, PLR0912
    kind: int, allocatable: IntArray, requested: IntArray, capacity: BoolArray, cpu: int, memory: int,
) -> FloatArray:  # fmt: skip
    n = len(requested)
    scores = np.empty(n)
    amounts = (float(cpu), float(memory))
    largest = np.ones(2)
    mean = np.zeros(2)
    count = 0
    if kind in (_BEST_FIT, _DOT_PRODUCT, _VARIANCE):
        for i in range(n):
            if capacity[i]:
                count += 1
                for r in range(2):
                    largest[r] = max(largest[r], allocatable[i, r])
                    mean[r] += requested[i, r] / max(allocatable[i, r], 1)
        mean /= max(count, 1)
    for i in range(n):
        score = 0.0
        fractions = np.zeros(2)
        for r in range(2):
            size = max(allocatable[i, r], 1)
            after = requested[i, r] + amounts[r]
            if kind == _LEAST:
                score += 50.0 * max(size - after, 0.0) / size
            elif kind == _MOST:
                score += 50.0 * min(after, size) / size
            elif kind == _BALANCED:
                fractions[r] = min(after / size, 1.0)
            elif kind == _BEST_FIT:
                score += 50.0 * (1.0 - (size - after) / largest[r])
            elif kind == _ALPHAEVOLVE:
                fractions[r] = max(amounts[r], 1.0) / max(size - requested[i, r], 1)
            elif kind == _DOT_PRODUCT:
                score += 50.0 * (1.0 - (size - requested[i, r]) / largest[r] * amounts[r] / largest[r])
            else:
                grow = amounts[r] / size
                away = requested[i, r] / size - mean[r]
                score -= 1e4 * (2.0 * grow * away + grow * grow * (1.0 - 1.0 / max(count, 1)))
        if kind == _BALANCED:
            score = 100.0 * (1.0 - 0.5 * abs(fractions[0] - fractions[1]))
        elif kind == _ALPHAEVOLVE:
            score = -(fractions.sum() + fractions[1] / fractions[0] + fractions[0] / fractions[1])
        scores[i] = score
    return scores
