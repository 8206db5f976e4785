"""The compiled policies by name, with one dispatch for a node and one over all rows."""

import numpy as np
import numpy.typing as npt

from aaml.cluster.kernels import compiled
from aaml.errors import bad_value
from aaml.policies.fragmentation import FragmentTables
from aaml.policies.gpu.arrays import SHAPE_MILLI, NodeArrays
from aaml.policies.gpu.features import Scratch, make_scratch
from aaml.policies.gpu.fit import (
    NO_DEVICE,
    RULE_BEST,
    RULE_SCORE,
    RULE_WORST,
    extreme_device,
    fits,
    is_share,
)
from aaml.policies.gpu.learned import Scorer, learned_score, scratch_for
from aaml.policies.gpu.scores import (
    best_fit,
    dot_product,
    fragmentation_gradient,
    gpu_clustering,
    gpu_packing,
)

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

RANDOM, FIRST_FIT, BEST_FIT, DOT_PRODUCT, GPU_PACKING, GPU_CLUSTERING, FGD, LEARNED = range(8)
COMPILED = {
    "random": RANDOM,
    "first-fit": FIRST_FIT,
    "best-fit": BEST_FIT,
    "dot-product": DOT_PRODUCT,
    "gpu-packing": GPU_PACKING,
    "gpu-clustering": GPU_CLUSTERING,
    "fgd": FGD,
}
"""The policies that are compiled, under their names in `aaml.policies.registry`.

"random" and "first-fit" score every node alike and live by the tie-break.
"""
_NUMBERS = {**COMPILED, **dict.fromkeys(("linear", "network", "formula"), LEARNED)}  # a `Scorer` has one kernel


def policy_number(name: str) -> int:
    """Return the number of a compiled policy, or of the kind of a scorer. Raises `UserError` for other names."""
    if name not in _NUMBERS:
        raise bad_value("policy", name, f"one of {', '.join(_NUMBERS)}")
    return _NUMBERS[name]


@compiled
def score_node(
    policy: int, nodes: NodeArrays, row: int, shape: IntArray, tables: FragmentTables, truncate: bool,
    scorer: Scorer | None, scratch: Scratch,
) -> tuple[float, int]:  # fmt: skip
    """Return the score of a node on which the pod fits, and the device that the policy chose.

    The device is -1 where the policy has no say in it. Without a scorer numba leaves out what one needs.
    """
    if policy == FGD:
        return fragmentation_gradient(nodes, row, shape, tables, truncate, scratch.sums, scratch.counts, scratch.bins)
    if scorer is not None and policy == LEARNED:
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


@compiled
def _score_rows(
    policy: int, nodes: NodeArrays, shape: IntArray, tables: FragmentTables, truncate: bool, scorer: Scorer | None
) -> tuple[FloatArray, IntArray]:
    """Score every node for a pod's shape.

    Returns scores, float64 [N] with -inf where the pod does not fit, and the devices chosen, int64 [N].
    """
    scratch = make_scratch(tables, 0, 0) if scorer is None else scratch_for(scorer, tables)
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
    """Score every node for one pod's shape, by a compiled policy's name.

    Returns the scores, float64 [N] with -inf where the pod does not fit, and the devices that the policy would have a
    share take, int64 [N] with -1 where it has no say.
    """
    scores, devices = _score_rows(policy_number(policy), nodes, shape, tables, truncate, scorer)
    return scores, devices


@compiled
def device_for(nodes: NodeArrays, row: int, shape: IntArray, rule: int, scored: int, draw: int | np.int64) -> int:
    """Return the device that a share takes on a node by the rule, and -1 for other pods.

    `draw` is a random number, for the rule that takes any device.
    """
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
