"""Scores of the published GPU-sharing policies and of Kubernetes' own resource scores, for one node and pod shape.

Higher is better. The formulas are those of Weng et al., USENIX ATC 2023, and of their simulator's plugins. Scores lie
in 0 ... 100 and are truncated to integers unless raw ones are asked for. A score comes with a device only where the
score has chosen one.
"""

from math import exp

import numpy as np
import numpy.typing as npt

from aaml.cluster.gpu import DEVICE_MILLI
from aaml.cluster.kernels import compiled
from aaml.policies.fragmentation import (
    FragmentTables,
    cpu_class,
    fragment_amount,
    measure,
    usable,
    usable_share,
    usable_whole,
)
from aaml.policies.gpu.arrays import (
    SHAPE_COUNT,
    SHAPE_CPU,
    SHAPE_KIND,
    SHAPE_MILLI,
    NodeArrays,
)
from aaml.policies.gpu.fit import NO_DEVICE, is_repeated, is_share

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

MAX_SCORE = 100.0
LARGEST_CPU_MILLI = 128_000.0  # the largest node of the openb cluster, by which CPU amounts are scaled
LARGEST_GPU_MILLI = 8_000.0
_HALF, _THIRD = 50, 33


@compiled
def free_gpu(nodes: NodeArrays, row: int) -> int:
    """Return R, the free thousandths of all devices of a node."""
    total = 0
    for device in range(nodes.gpu.shape[1]):
        total += nodes.gpu[row, device]
    return total


@compiled
def best_fit(nodes: NodeArrays, row: int, shape: IntArray) -> float:
    """Score nodes higher the less CPU and GPU they have left after the pod."""
    cpu = (nodes.cpu[row] - shape[SHAPE_CPU]) / LARGEST_CPU_MILLI
    gpu = (free_gpu(nodes, row) - shape[SHAPE_COUNT] * shape[SHAPE_MILLI]) / LARGEST_GPU_MILLI
    return float((1.0 - (0.5 * cpu + 0.5 * gpu)) * MAX_SCORE)


@compiled
def dot_product(nodes: NodeArrays, row: int, shape: IntArray) -> float:
    """Score nodes higher the smaller the product of what is left and what is asked for."""
    cpu = (nodes.cpu[row] / LARGEST_CPU_MILLI) * (shape[SHAPE_CPU] / LARGEST_CPU_MILLI)
    asked = shape[SHAPE_COUNT] * shape[SHAPE_MILLI]
    gpu = (free_gpu(nodes, row) / LARGEST_GPU_MILLI) * (asked / LARGEST_GPU_MILLI)
    return float(MAX_SCORE * (1.0 - 0.5 * (cpu + gpu)))


@compiled
def gpu_clustering(nodes: NodeArrays, row: int, shape: IntArray) -> float:
    """Score nodes higher where pods of the same kind are, and highest where only such are.

    The kinds are a share, and so many whole devices.
    """
    kind = shape[SHAPE_KIND]
    if kind == 0:
        return 0.0
    base = int((LARGEST_GPU_MILLI - free_gpu(nodes, row)) * 25 // LARGEST_GPU_MILLI)
    present = nodes.kinds[row]
    if present == 0:
        return float(base + 25)
    if present >> kind & 1 == 0:
        return float(base)
    return float(base + (75 if present == 1 << kind else 50))


@compiled
def gpu_packing(nodes: NodeArrays, row: int, shape: IntArray) -> float:
    """Score devices in use above free devices of a node in use, and those above a node not in use."""
    milli, count = shape[SHAPE_MILLI], shape[SHAPE_COUNT]
    if milli <= 0:
        return 0.0
    whole = 0
    for device in range(nodes.gpu_count[row]):
        if nodes.gpu[row, device] >= DEVICE_MILLI:
            whole += 1
    if whole == nodes.gpu_count[row]:
        return float(max(_THIRD - whole, whole))
    taken, tenths, last, last_device = 0, 0, -1, -1
    while taken < count:  # the fitting devices in ascending order of what is left
        best, best_device = DEVICE_MILLI + 1, -1
        for device in range(nodes.gpu_count[row]):
            free = nodes.gpu[row, device]
            after = free > last or (free == last and device > last_device)
            if free >= milli and after and free < best:
                best, best_device = free, device
        if best_device < 0:
            break
        if best >= DEVICE_MILLI:
            return float(max(_HALF - (count - taken), _THIRD))
        tenths += best // 10
        taken, last, last_device = taken + 1, best, best_device
    return float(max(100 - tenths // 10, _HALF))


@compiled
def logistic_score(gained: float) -> float:
    """Return 100 s(gained / 1000), FGD's score of a fall of the fragment amount by `gained` thousandths."""
    return 1.0 / (1.0 + exp(-gained / 1000.0)) * MAX_SCORE


@compiled
def _noise(
    nodes: NodeArrays, row: int, shape: IntArray, device: int, tables: FragmentTables, bins: FloatArray
) -> float:
    """Return F before minus F after as the published program's floats have it.

    It is used where nothing changes in exact arithmetic.
    """
    gpu = nodes.gpu[row, : nodes.gpu_count[row]]
    model = nodes.gpu_model[row]
    before = fragment_amount(nodes.cpu[row], gpu, model, tables, bins)
    after = gpu.copy()
    milli = shape[SHAPE_MILLI]
    if device >= 0:
        after[device] -= milli
    elif milli > 0:
        left = shape[SHAPE_COUNT]
        for other in range(after.shape[0]):
            if left > 0 and after[other] >= DEVICE_MILLI:
                after[other] = 0
                left -= 1
    return before - fragment_amount(nodes.cpu[row] - shape[SHAPE_CPU], after, model, tables, bins)


@compiled
def fragmentation_gradient(
    nodes: NodeArrays,
    row: int,
    shape: IntArray,
    tables: FragmentTables,
    truncate: bool,
    sums: IntArray,
    counts: IntArray,
    bins: FloatArray,
) -> tuple[float, int]:
    """Score by FGD: how much less fragmented the node is after the pod.

    A share takes the first of the devices with the best score. `sums` and `counts` [M] and `bins` [7] are overwritten.
    """
    model, milli = nodes.gpu_model[row], shape[SHAPE_MILLI]
    width = nodes.gpu_count[row]
    class_before = cpu_class(nodes.cpu[row], tables)
    class_after = cpu_class(nodes.cpu[row] - shape[SHAPE_CPU], tables)
    if milli <= 0 and class_before == class_after:
        return (_HALF, NO_DEVICE)
    measure(nodes.gpu[row, :width], tables, sums, counts)
    before = usable(model, class_before, tables, sums, counts)
    if not is_share(shape):
        taken = shape[SHAPE_COUNT] if milli > 0 else 0
        gained = tables.total * DEVICE_MILLI * taken
        gained += usable_whole(model, class_after, tables, sums, counts, taken) - before
        difference = gained / tables.total
        if gained == 0 and truncate:
            difference = _noise(nodes, row, shape, NO_DEVICE, tables, bins)
        score = logistic_score(difference)
        return (np.floor(score) if truncate else score), NO_DEVICE
    best, chosen = -1.0, NO_DEVICE
    for device in range(width):
        free = nodes.gpu[row, device]
        if free < milli or is_repeated(nodes, row, device):
            continue
        gained = tables.total * milli - before
        gained += usable_share(model, class_after, tables, sums, counts, free, milli)
        difference = gained / tables.total
        if gained == 0 and truncate:
            difference = _noise(nodes, row, shape, device, tables, bins)
        score = logistic_score(difference)
        if truncate:
            score = np.floor(score)
        if score > best:
            best, chosen = score, device
    return best, chosen
