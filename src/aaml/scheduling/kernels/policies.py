"""The compiled policies by name, one dispatch for a node and one over all rows."""

import numba
import numpy as np
import numpy.typing as npt

from aaml.errors import bad_value
from aaml.scheduling.fragmentation import FragmentTables
from aaml.scheduling.kernels.arrays import SHAPE_MILLI, NodeArrays
from aaml.scheduling.kernels.features import Scratch, make_scratch
from aaml.scheduling.kernels.fit import (
    NO_DEVICE,
    RULE_BEST,
    RULE_SCORE,
    RULE_WORST,
    extreme_device,
    fits,
    is_share,
)
from aaml.scheduling.kernels.learned import Scorer, learned_score, no_scorer
from aaml.scheduling.kernels.scores import (
    best_fit,
    dot_product,
    fragmentation_gradient,
    gpu_clustering,
    gpu_packing,
)

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

# Compiled policies by name and number. "random" and "first_fit" score every node alike and live by the tie-break.
POLICIES = {
    "random": 0, "first_fit": 1, "best_fit": 2, "dot_product": 3, "gpu_packing": 4, "gpu_clustering": 5, "fgd": 6,
    "linear": 7, "network": 7,
}  # fmt: skip
RANDOM, FIRST_FIT, BEST_FIT, DOT_PRODUCT, GPU_PACKING, GPU_CLUSTERING, FGD, LEARNED = range(8)


def policy_number(name: str) -> int:
    """Return a compiled policy's number; dashes may stand for underscores. `UserError` lists the names."""
    number = POLICIES.get(name.replace("-", "_"))
    if number is None:
        raise bad_value("policy", name, f"one of {', '.join(each.replace('_', '-') for each in POLICIES)}")
    return number


@numba.njit(cache=True, nogil=True)
def score_node(
    policy: int,
    nodes: NodeArrays,
    row: int,
    shape: IntArray,
    tables: FragmentTables,
    truncate: bool,
    scorer: Scorer,
    scratch: Scratch,
) -> tuple[float, int]:
    """Return the score of a node that the pod fits on and the device that a scoring policy chose (else -1)."""
    if policy == FGD:
        return fragmentation_gradient(nodes, row, shape, tables, truncate, scratch.sums, scratch.counts, scratch.bins)
    if policy == LEARNED:
        learned, device = learned_score(nodes, row, shape, tables, scorer, scratch)
        return (np.floor(learned) if truncate else learned), device
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
def _score_rows(
    policy: int, nodes: NodeArrays, shape: IntArray, tables: FragmentTables, truncate: bool, scorer: Scorer
) -> tuple[FloatArray, IntArray]:
    """Score every node for a pod's shape: float64 [N] (-inf where it does not fit) and devices chosen, int64 [N]."""
    scratch = make_scratch(tables, scorer.sizes.max())
    scores = np.full(nodes.cpu.shape[0], -np.inf)
    devices = np.full(nodes.cpu.shape[0], NO_DEVICE, dtype=np.int64)
    for row in range(nodes.cpu.shape[0]):
        if fits(nodes, row, shape):
            scores[row], devices[row] = score_node(policy, nodes, row, shape, tables, truncate, scorer, scratch)
    return scores, devices


def score_all(
    policy: str,
    nodes: NodeArrays,
    shape: IntArray,
    tables: FragmentTables,
    *,
    truncate: bool = True,
    scorer: Scorer | None = None,
) -> tuple[FloatArray, IntArray]:
    """Score every node for one pod's shape by a compiled policy's name.

    Returns float64 [N], -inf where the pod does not fit, and the devices that the policy would have a share take, int64
    [N], -1 where it has no say.
    """
    scorer = scorer or no_scorer(tables.fitting.shape[0])
    scores, devices = _score_rows(policy_number(policy), nodes, shape, tables, truncate, scorer)
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
