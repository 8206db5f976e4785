"""A linear scorer of nodes, in compiled code: its weights are found by search, with thousands of episodes a minute.

Score = sum over features f and terms t of `weights[t, f] * term_t * feature_f`, where the features are those of the pod
on the node, and the terms (1, the pod's CPU, the pod's memory) let large pods be placed by other weights than small.
Least and most allocated, least variance and balanced allocation are all special cases.

================  ======================================================================================
cpu, memory       use of the node's CPU and memory after the pod is placed, 0 ... 1
cpu_squared, ...  their squares and their product
pods              log(1 + pods on the node before)
empty             1 where the node had no pod
imbalance         |cpu - memory|
fullest           the larger of cpu and memory
cpu_full, ...     1 where more than 99% are used
device_left ...   of pods with GPUs: the pair features of that name (`aaml.scheduling.observation`)
================  ======================================================================================
"""

import numba
import numpy as np
import numpy.typing as npt

from aaml.scheduling.observation import PAIR_FEATURES, Context, mean_size
from aaml.scheduling.ports import Decision
from aaml.scheduling.queue_sort import QueueSort

FloatArray = npt.NDArray[np.float64]
PLAIN = (
    "cpu", "memory", "cpu_squared", "memory_squared", "cpu_memory", "pods", "empty", "imbalance", "fullest", "cpu_full",
    "memory_full",
)  # fmt: skip
GPU = ("device_left", "gpu_free_after", "fragmentation_growth", "fragmentation_rank")
FEATURES = (*PLAIN, *GPU)
TERMS = ("one", "pod_cpu", "pod_memory")
_TERM_SCALE = 5.0  # a pod asks for about a fifth of a node at most: this brings the terms to unit size
_GPU_COLUMNS = [PAIR_FEATURES.index(name) for name in GPU]


@numba.njit(cache=True, nogil=True)
def weigh(weights, cpu, memory):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """Return the weights [F] for a pod that asks for so much of a mean node."""
    return weights[0] + _TERM_SCALE * (cpu * weights[1] + memory * weights[2])


@numba.njit(cache=True, nogil=True)
def plain_score(weights, cpu, memory, pods):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """Return a node's score by weights [F] from its use after the pod is placed, and its pods before."""
    return (
        weights[0] * cpu + weights[1] * memory + weights[2] * cpu * cpu + weights[3] * memory * memory
        + weights[4] * cpu * memory + weights[5] * np.log1p(pods) + (weights[6] if pods == 0 else 0.0)
        + weights[7] * abs(cpu - memory) + weights[8] * max(cpu, memory)
        + (weights[9] if cpu > 0.99 else 0.0) + (weights[10] if memory > 0.99 else 0.0)
    )  # fmt: skip


@numba.njit(cache=True, nogil=True)
def plain_scores(weights, allocatable, requested, capacity, request, scores):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """Write the score of every node, float64 [N], for a pod's request [R]; returns the pod's weights [F]."""
    mean_cpu, mean_memory = mean_size(allocatable, capacity)
    total = weigh(weights, request[0] / mean_cpu, request[1] / mean_memory)
    for row in range(len(scores)):
        cpu = (requested[row, 0] + request[0]) / max(allocatable[row, 0], 1)
        memory = (requested[row, 1] + request[1]) / max(allocatable[row, 1], 1)
        scores[row] = plain_score(total, cpu, memory, requested[row, 3])
    return total


class LinearPolicy:
    """Takes the feasible row with the highest score, the first of equals; `weights` float64 [terms, F].

    `queue_sort`: the order in which it wants waiting pods; None: kube-scheduler's.
    """

    def __init__(self, weights: FloatArray, name: str = "linear", queue_sort: QueueSort | None = None) -> None:
        if weights.shape != (len(TERMS), len(FEATURES)):
            raise ValueError(f"weights have shape {weights.shape}, expected ({len(TERMS)}, {len(FEATURES)})")
        self.name = name
        self.queue_sort = queue_sort
        self.weights = np.ascontiguousarray(weights, dtype=np.float64)

    def act(self, context: Context) -> Decision:
        """Choose a row."""
        return Decision(int(np.where(context.mask, self.scores(context), -np.inf).argmax()))

    def scores(self, context: Context) -> FloatArray:
        """Return [N] scores; rows outside the mask hold anything."""
        state, scores = context.state, np.zeros(len(context.mask))
        request = state.request_vector(context.pod)
        total = plain_scores(self.weights, state.allocatable, state.requested, state.capacity, request, scores)
        if context.pod.gpu.count:
            scores += context.observation.pairs[:, _GPU_COLUMNS] @ total[len(PLAIN) :]
        return scores
