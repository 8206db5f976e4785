"""Whether a pod fits on a node, which device a share takes, and placing it: the rules of Weng et al., compiled."""

import numpy as np
import numpy.typing as npt

from aaml.cluster.gpu import DEVICE_MILLI
from aaml.cluster.kernels import compiled, without_refcount
from aaml.policies.gpu.arrays import (
    SHAPE_COUNT,
    SHAPE_CPU,
    SHAPE_KIND,
    SHAPE_MEMORY,
    SHAPE_MILLI,
    SHAPE_MODELS,
    NodeArrays,
)

IntArray = npt.NDArray[np.int64]

# Which device a share of a GPU takes, by name and number.
DEVICE_RULES = {"best": 0, "worst": 1, "random": 2, "score": 3}
RULE_BEST, RULE_WORST, RULE_RANDOM, RULE_SCORE = range(4)
NO_DEVICE = -1


@compiled
def is_share(shape: IntArray) -> bool:
    """Whether a pod of this shape takes a part of one device."""
    return bool(shape[SHAPE_COUNT] == 1 and 0 < shape[SHAPE_MILLI] < DEVICE_MILLI)


@compiled
def is_repeated(nodes: NodeArrays, row: int, device: int) -> bool:
    """Whether a device before this one has as much left: a share scores the same there, and the first is taken."""
    repeated = False
    for earlier in range(device):
        repeated |= nodes.gpu[row, earlier] == nodes.gpu[row, device]
    return repeated


@without_refcount
def has_devices(gpu: IntArray, count: int, milli: int) -> bool:
    """Whether the devices of a node, with so much left each, can take a request: `aaml.cluster.gpu.devices_fit`."""
    if milli <= 0:
        return True
    need = milli if count == 1 else DEVICE_MILLI
    enough = 0
    for device in range(gpu.shape[0]):
        if gpu[device] >= need:
            enough += 1
            if enough >= count:
                return True
    return False


@compiled
def fits_but_memory(nodes: NodeArrays, row: int, shape: IntArray) -> bool:
    """Whether CPU, pod slots, model and devices suffice on a node."""
    if shape[SHAPE_CPU] > nodes.cpu[row] or nodes.pods[row] < 1:
        return False
    milli = shape[SHAPE_MILLI]
    if milli > 0 and (shape[SHAPE_MODELS] >> nodes.gpu_model[row]) & 1 == 0:
        return False
    return bool(has_devices(nodes.gpu[row], shape[SHAPE_COUNT], milli))


@compiled
def fits(nodes: NodeArrays, row: int, shape: IntArray) -> bool:
    """Whether a pod fits on a node."""
    return shape[SHAPE_MEMORY] <= nodes.memory[row] and fits_but_memory(nodes, row, shape)


@compiled
def fits_all(nodes: NodeArrays, shape: IntArray) -> npt.NDArray[np.bool_]:
    """Return bool [N], which nodes a pod fits on."""
    mask = np.zeros(nodes.cpu.shape[0], dtype=np.bool_)
    for row in range(mask.shape[0]):
        mask[row] = fits(nodes, row, shape)
    return mask


@compiled
def extreme_device(gpu: IntArray, milli: int, worst: bool) -> int:
    """Return the device with the least, or the most, left on which the share fits.

    Of equal ones it is that with the lowest index, and -1 where the share fits on none.
    """
    chosen = NO_DEVICE
    for device in range(gpu.shape[0]):
        free = gpu[device]
        if free >= milli and (chosen < 0 or (free > gpu[chosen] if worst else free < gpu[chosen])):
            chosen = device
    return chosen


@without_refcount
def take_devices(gpu: IntArray, count: int, milli: int) -> int:
    """Take what fits from a node's devices, as `aaml.cluster.gpu.choose_devices` does; returns these as bits."""
    if count == 1 and milli < DEVICE_MILLI:
        device = extreme_device(gpu, milli, False)
        gpu[device] -= milli
        return 1 << device
    taken, left = 0, count
    for device in range(gpu.shape[0]):
        if left > 0 and gpu[device] >= DEVICE_MILLI:
            gpu[device] -= milli
            taken |= 1 << device
            left -= 1
    return taken


@compiled
def place(nodes: NodeArrays, row: int, shape: IntArray, device: int) -> None:
    """Take a pod's amounts from a node where it fits.

    A share takes `device`, and whole devices are the first free ones.
    """
    nodes.cpu[row] -= shape[SHAPE_CPU]
    nodes.memory[row] -= shape[SHAPE_MEMORY]
    nodes.pods[row] -= 1
    if shape[SHAPE_COUNT] > 0:
        nodes.kinds[row] |= 1 << shape[SHAPE_KIND]
    milli = shape[SHAPE_MILLI]
    if milli <= 0:
        return
    if is_share(shape):
        nodes.gpu[row, device] -= milli
        return
    left = shape[SHAPE_COUNT]
    for other in range(nodes.gpu.shape[1]):
        if left == 0:
            break
        if nodes.gpu[row, other] >= DEVICE_MILLI:
            nodes.gpu[row, other] = 0
            left -= 1
