"""What fits where, and which node a pod goes to: rules on arrays, for the simulator, compiled episodes and live nodes.

`left` int64 [N, R] is what is left of each resource in each row: of a node, or of a new node of a type. `shape` is what
a pod asks for, a row of `shapes` (`aaml.nodes.rows`). `devices` int64 [N, G] are the thousandths left of each GPU.
"""

from aaml.cluster.kernels import inlined
from aaml.nodes.rows import NODE, SHAPE_REQUEST, Array, Seen
from aaml.policies.gpu.arrays import SHAPE_COUNT, SHAPE_MILLI
from aaml.policies.gpu.fit import has_devices, take_devices


@inlined
def pod_fits(left: Array, row: int, shape: Array, devices: Array) -> bool:
    """Whether a pod fits in a row."""
    fits = True
    for column in range(left.shape[1]):
        fits &= left[row, column] >= shape[SHAPE_REQUEST + column]
    if fits and shape[SHAPE_MILLI] > 0:
        fits = has_devices(devices[row], shape[SHAPE_COUNT], shape[SHAPE_MILLI])
    return fits


@inlined
def reserve(left: Array, row: int, shape: Array, devices: Array) -> None:
    """Take what a pod asks for from a row that it fits in."""
    for column in range(left.shape[1]):
        left[row, column] -= shape[SHAPE_REQUEST + column]
    if shape[SHAPE_MILLI] > 0:
        take_devices(devices[row], shape[SHAPE_COUNT], shape[SHAPE_MILLI])


@inlined
def allows(may: Array, pod: int, column: int) -> bool:
    """Whether a pod's node selector and GPU models allow a type: `may` of `aaml.nodes.rows`."""
    return may.shape[0] == 0 or may[pod, column]


@inlined
def allows_node(own: Seen, pod: int, number: int) -> bool:
    """Whether they allow a node, or a new one: its type less the number of types."""
    if own.may.shape[0] == 0:
        return True
    if number >= 0 and not own.terms.by_node:
        return own.may[pod, own.nodes[NODE.kind, number]]
    return own.may[pod, own.terms.kinds + number]
