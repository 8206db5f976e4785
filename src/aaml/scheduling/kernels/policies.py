"""The compiled policies by name, one dispatch for a node and one over all rows."""

import numba
import numpy as np
import numpy.typing as npt

from aaml.scheduling.fragmentation import FragmentTables
from aaml.scheduling.kernels.arrays import SHAPE_MILLI, NodeArrays
from aaml.scheduling.kernels.fit import (
    NO_DEVICE,
    RULE_BEST,
    RULE_SCORE,
    RULE_WORST,
    extreme_device,
    fits,
    is_share,
)
from aaml.scheduling.kernels.scores import (
    best_fit,
    dot_product,
    fragmentation_gradient,
    gpu_clustering,
    gpu_packing,
)

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

# Compiled policies by name and number; `FLAT` ones score every node alike and live by the tie-break.
POLICIES = {"random": 0, "first_fit": 1, "best_fit": 2, "dot_product": 3, "gpu_packing": 4, "gpu_clustering": 5, "fgd": 6}
RANDOM, FIRST_FIT, BEST_FIT, DOT_PRODUCT, GPU_PACKING, GPU_CLUSTERING, FGD = range(7)


@numba.njit(cache=True, nogil=True)
def score_node(
    policy: int,
    nodes: NodeArrays,
    row: int,
    shape: IntArray,
    tables: FragmentTables,
    truncate: bool,
    sums: IntArray,
    counts: IntArray,
    bins: FloatArray,
) -> tuple[float, int]:
    """Return the score of a node that the pod fits on and the device that a scoring policy chose (else -1)."""
    if policy == FGD:
        return fragmentation_gradient(nodes, row, shape, tables, truncate, sums, counts, bins)
    score = 0.0
    if policy == BEST_FIT:
        score = best_fit(nodes, row, shape)
    elif policy == DOT_PRODUCT:
        score = dot_product(nodes, row, shape)
    elif policy == GPU_PACKING:
        score = gpu_packing(nodes, row, shape)
    elif policy == GPU_CLUSTERING:
        score = gpu_clustering(nodes, row, shape)
    if truncate:
        score = np.trunc(score)
    return score, NO_DEVICE


@numba.njit(cache=True, nogil=True)
def scores_of(
    policy: int, nodes: NodeArrays, shape: IntArray, tables: FragmentTables, truncate: bool
) -> tuple[FloatArray, IntArray]:
    """Score every node for one pod shape: float64 [N] (-inf where it does not fit) and the devices chosen, int64 [N]."""
    width = max(tables.milli.shape[0], 1)
    sums, counts = np.empty(width, dtype=np.int64), np.empty(width, dtype=np.int64)
    bins = np.empty(7, dtype=np.float64)
    scores = np.full(nodes.cpu.shape[0], -np.inf)
    devices = np.full(nodes.cpu.shape[0], NO_DEVICE, dtype=np.int64)
    for row in range(nodes.cpu.shape[0]):
        if fits(nodes, row, shape):
            scores[row], devices[row] = score_node(policy, nodes, row, shape, tables, truncate, sums, counts, bins)
    return scores, devices


@numba.njit(cache=True, nogil=True)
def device_for(nodes: NodeArrays, row: int, shape: IntArray, rule: int, scored: int, draw: int) -> int:
    """Return the device that a share takes on a node by the rule (`draw`: a random number), -1 for other pods."""
    if not is_share(shape):
        return NO_DEVICE
    milli = shape[SHAPE_MILLI]
    gpu = nodes.gpu[row]
    if rule == RULE_SCORE and scored >= 0:
        return scored
    if rule in (RULE_BEST, RULE_SCORE):
        return extreme_device(gpu, milli, False)
    if rule == RULE_WORST:
        return extreme_device(gpu, milli, True)
    fitting = 0
    for device in range(gpu.shape[0]):
        fitting += gpu[device] >= milli
    nth = draw % fitting
    for device in range(gpu.shape[0]):
        if gpu[device] >= milli:
            if nth == 0:
                return device
            nth -= 1
    return NO_DEVICE
