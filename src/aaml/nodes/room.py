"""What fits where, and which node a pod goes to: rules on arrays, for the simulator, compiled episodes and live nodes.

`left` int64 [N, R] is what is left of each resource in each row: of a node, or of a new node of a type. `request`
int64 [R] is what a pod asks for. `devices` int64 [N, G] are the thousandths left of each GPU, `gpu` int64 [2] how many
devices the pod takes and what of each, `may` bool [N] which rows its node selector allows. These three are None where
nothing has GPUs or selectors.
"""

import numpy as np

from aaml.cluster.kernels import part
from aaml.cluster.state import CPU_COLUMN, MEMORY_COLUMN
from aaml.policies.gpu.fit import has_devices, take_devices


@part
def has_room(left, row, request, devices, gpu):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """Whether a row has room for a pod."""
    fits = True
    for column in range(left.shape[1]):
        fits &= left[row, column] >= request[column]
    if devices is not None and fits:
        fits = has_devices(devices[row], gpu[0], gpu[1])
    return fits


@part
def take_room(left, row, request, devices, gpu):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """Take what a pod asks for from a row that has room for it."""
    for column in range(left.shape[1]):
        left[row, column] -= request[column]
    if devices is not None and gpu[1] > 0:
        take_devices(devices[row], gpu[0], gpu[1])


@part
def fullest(left, rows, inverse, request, devices, gpu, may):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """Return which of the first `rows` is fullest with a pod on it, as MostAllocated has it; -1 where it fits on none.

    `inverse` float64 [N, 2] are 1 over the CPU and the memory that nodes offer. Of equal rows it is the first.
    """
    best, least = -1, np.inf
    for row in range(rows):
        if may is not None and not may[row]:
            continue
        if has_room(left, row, request, devices, gpu):
            free = (left[row, CPU_COLUMN] - request[CPU_COLUMN]) * inverse[row, 0]
            free += (left[row, MEMORY_COLUMN] - request[MEMORY_COLUMN]) * inverse[row, 1]
            if free < least:
                best, least = row, free
    return best
