"""What a learned scorer sees of a pod on a node and device: the vector phi, compiled (names in `gpu_names`)."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from aaml.cluster.gpu import DEVICE_MILLI
from aaml.cluster.kernels import columns, compiled
from aaml.policies.fragmentation import (
    FragmentTables,
    cpu_class,
    measure,
    placeable,
    placeable_share,
    placeable_whole,
    usable,
    usable_share,
    usable_whole,
)
from aaml.policies.gpu.arrays import (
    SHAPE_COUNT,
    SHAPE_CPU,
    SHAPE_KIND,
    SHAPE_MILLI,
    SHAPE_MODELS,
    NodeArrays,
)
from aaml.policies.gpu.fit import NO_DEVICE, is_repeated, is_share
from aaml.policies.gpu.prices import MODEL, Scarcity
from aaml.policies.gpu.scores import LARGEST_CPU_MILLI, LARGEST_GPU_MILLI, free_gpu, logistic_score
from aaml.policies.gpu_names import FEATURES, GROUPS, POD_INPUTS

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

PHI, GROUP, POD = map(columns, (FEATURES, GROUPS, POD_INPUTS))
_CPU_PER_GPU = 16.0


class Scratch(NamedTuple):
    """Working memory of the kernels, overwritten at each call; one per thread.

    `phi` float64 [G, F + pod inputs] and `devices` int64 [G] are what `features_of` found.
    """

    sums: IntArray
    counts: IntArray
    bins: FloatArray
    phi: FloatArray
    devices: IntArray
    hidden: FloatArray
    registers: FloatArray


@compiled
def make_scratch(tables: FragmentTables, widest_layer: int, registers: int) -> Scratch:
    """Allocate working memory for these tables, for layers of at most so many units, and for a formula's registers."""
    width, devices = max(tables.milli.shape[0], 1), max(tables.fitting.shape[2] - 1, 1)
    return Scratch(
        np.empty(width, dtype=np.int64),
        np.empty(width, dtype=np.int64),
        np.empty(7, dtype=np.float64),
        np.zeros((devices, len(FEATURES) + len(POD_INPUTS)), dtype=np.float64),
        np.empty(devices, dtype=np.int64),
        np.zeros((2, max(widest_layer, 1)), dtype=np.float64),
        np.zeros((max(registers, 1), 1), dtype=np.float64),
    )


@compiled
def pod_group(shape: IntArray) -> int:
    """Return the index in `GROUPS` of a pod's shape, whatever models it names."""
    if shape[SHAPE_MILLI] <= 0:
        return GROUP.no_gpu
    if is_share(shape):
        return GROUP.share
    return GROUP.one_gpu if shape[SHAPE_COUNT] == 1 else GROUP.several_gpus


@compiled
def pod_inputs(shape: IntArray, phi: FloatArray) -> None:
    """Fill `phi` beyond the features with what networks and formulas see of the pod."""
    first = len(FEATURES)
    phi[first : first + len(POD_INPUTS)] = 0.0
    phi[first + pod_group(shape)] = 1.0
    phi[first + POD.named_models] = 1.0 if shape[SHAPE_MODELS] >= 0 and shape[SHAPE_MILLI] > 0 else 0.0
    phi[first + POD.cpu] = shape[SHAPE_CPU] / 32_000.0
    phi[first + POD.gpu] = shape[SHAPE_COUNT] * shape[SHAPE_MILLI] / LARGEST_GPU_MILLI
    phi[first + POD.share_milli] = shape[SHAPE_MILLI] / DEVICE_MILLI if is_share(shape) else 0.0


@compiled
def features_of(
    nodes: NodeArrays, row: int, shape: IntArray, tables: FragmentTables, scarce: Scarcity, scratch: Scratch
) -> int:
    """Fill `scratch.phi` with the features of a pod on a node, for a share on each device that it may take.

    Returns the number of rows. `scratch.devices` says which device each is of, `NO_DEVICE` for a pod that is no share;
    of devices that are alike it is the first.
    """
    measure(nodes.gpu[row, : nodes.gpu_count[row]], tables, scratch.sums, scratch.counts)
    count = 0
    first, end = (0, nodes.gpu_count[row]) if is_share(shape) else (NO_DEVICE, NO_DEVICE + 1)
    for device in range(first, end):
        if device >= 0 and (nodes.gpu[row, device] < shape[SHAPE_MILLI] or is_repeated(nodes, row, device)):
            continue
        _features_on(nodes, row, shape, device, tables, scarce, scratch, scratch.phi[count])
        pod_inputs(shape, scratch.phi[count])
        scratch.devices[count] = device
        count += 1
    return count


@compiled
def _features_on(  # noqa: PLR0915
    nodes: NodeArrays,
    row: int,
    shape: IntArray,
    device: int,
    tables: FragmentTables,
    scarce: Scarcity,
    scratch: Scratch,
    phi: FloatArray,
) -> None:
    """Fill `phi` with the features of a pod on a node that was measured and, for a share, on a device."""
    model, milli = nodes.gpu_model[row], shape[SHAPE_MILLI]
    asked = shape[SHAPE_COUNT] * milli
    cpu = nodes.cpu[row] - shape[SHAPE_CPU]
    before_cls = cpu_class(nodes.cpu[row], tables)
    cls = cpu_class(cpu, tables)
    free = free_gpu(nodes, row)
    left = free - asked
    whole, partial = 0, 0
    for other in range(nodes.gpu_count[row]):
        if nodes.gpu[row, other] >= DEVICE_MILLI:
            whole += 1
        else:
            partial += nodes.gpu[row, other]
    device_free = nodes.gpu[row, device] if device >= 0 else 0
    before = usable(model, before_cls, tables, scratch.sums, scratch.counts)
    fits_before = placeable(model, before_cls, tables, scratch.counts)
    if device >= 0:
        after = usable_share(model, cls, tables, scratch.sums, scratch.counts, device_free, milli)
        fits_after = placeable_share(model, cls, tables, scratch.counts, device_free, milli)
        opened = 1 if device_free >= DEVICE_MILLI else 0
        partial += device_free - milli if opened else -milli
    else:
        opened = shape[SHAPE_COUNT] if milli > 0 else 0
        after = usable_whole(model, cls, tables, scratch.sums, scratch.counts, opened)
        fits_after = placeable_whole(model, cls, tables, scratch.counts, opened)
    gain = asked + (after - before) / tables.total
    devices = nodes.gpu_count[row]
    kind = nodes.kinds[row]
    same = 1 << shape[SHAPE_KIND]
    phi[PHI.fragment_gain] = gain / DEVICE_MILLI
    phi[PHI.fgd] = logistic_score(gain) / 100.0
    phi[PHI.cpu_left] = cpu / LARGEST_CPU_MILLI
    phi[PHI.gpu_left] = left / LARGEST_GPU_MILLI
    phi[PHI.cpu_fraction] = cpu / max(nodes.cpu_size[row], 1)
    phi[PHI.gpu_fraction] = left / (DEVICE_MILLI * devices) if devices > 0 else 0.0
    phi[PHI.imbalance] = abs(phi[PHI.cpu_fraction] - phi[PHI.gpu_fraction])
    phi[PHI.dot] = (nodes.cpu[row] / LARGEST_CPU_MILLI) * (shape[SHAPE_CPU] / LARGEST_CPU_MILLI)
    phi[PHI.dot] += (free / LARGEST_GPU_MILLI) * (asked / LARGEST_GPU_MILLI)
    phi[PHI.whole_left] = (whole - opened) / 8.0
    phi[PHI.whole_opened] = opened / 8.0
    phi[PHI.device_left] = (device_free - milli) / DEVICE_MILLI if device >= 0 else 0.0
    phi[PHI.device_full] = 1.0 if device >= 0 and device_free == milli else 0.0
    phi[PHI.unused] = 1.0 if kind == 0 else 0.0
    phi[PHI.exhausted] = 1.0 if devices > 0 and left == 0 else 0.0
    phi[PHI.usable] = after / tables.total / LARGEST_GPU_MILLI
    phi[PHI.stranded_cpu] = phi[PHI.cpu_left] if left == 0 else 0.0
    phi[PHI.cpu_per_gpu] = min(cpu / max(left, 1) / _CPU_PER_GPU, 2.0)
    phi[PHI.cpu_class] = cls / max(tables.cpu.shape[0], 1)
    phi[PHI.same_kind] = 1.0 if kind & same else 0.0
    phi[PHI.other_kind] = 1.0 if kind & ~same else 0.0
    phi[PHI.model_demand] = scarce.models[model, MODEL.named]
    phi[PHI.model_access] = scarce.models[model, MODEL.served]
    phi[PHI.gpu_count] = devices / 8.0
    phi[PHI.waste] = partial / LARGEST_GPU_MILLI
    cores, size, was_intact = nodes.cpu[row] / LARGEST_CPU_MILLI, devices / 8.0, whole == devices
    phi[PHI.placeable] = fits_after / tables.asked
    phi[PHI.placeable_lost] = (fits_before - fits_after) / tables.asked
    phi[PHI.intact_lost] = (size * cores if was_intact else 0.0) - (
        size * phi[PHI.cpu_left] if was_intact and opened == 0 else 0.0
    )
    phi[PHI.room_lost] = (whole / 8.0) ** 2 * cores - phi[PHI.whole_left] ** 2 * phi[PHI.cpu_left]
    phi[PHI.rest_lost] = scarce.rests[device_free] - scarce.rests[device_free - milli] if device >= 0 else 0.0
    phi[PHI.model_load] = scarce.models[model, MODEL.load] - 1.0
