"""Which devices of a node a GPU request takes."""

from typing import Literal

import numpy as np
import numpy.typing as npt

from aaml.cluster.objects import GpuRequest

DEVICE_MILLI = 1000
MOST_DEVICES = 1024  # of a node that claims more so many are looked at
GPU_SPEC_LABEL = "gpu-spec"  # the models a trace's pod accepts, in the trace's own spelling ("V100M16|V100M32")
DeviceRule = Literal["best", "worst"]


def devices_fit(
    free_milli: npt.NDArray[np.int64], count: npt.NDArray[np.int64], gpu: GpuRequest
) -> npt.NDArray[np.bool_]:
    """Return [N], whether each node has devices for the request; GPU models are not looked at here.

    `free_milli` is [N, G] with 0 beyond a node's last device, and `count` is [N]. A share (a request of one device)
    needs a device with enough left, and several devices must be entirely free. These are the rules of Weng et al.,
    USENIX ATC 2023.
    """
    if gpu.milli <= 0:
        return np.ones(len(count), dtype=np.bool_)
    if gpu.count == 1:
        return np.asarray((free_milli >= gpu.milli).any(axis=1))
    return np.asarray((free_milli >= DEVICE_MILLI).sum(axis=1) >= gpu.count)


def devices_named(devices: tuple[int, ...] | None, gpu: GpuRequest, count: int) -> bool:
    """Whether these can be the devices of a request on a node that has `count`: each is one of them, none comes twice.

    Whether they are free is not asked.
    """
    if devices is None or len(devices) != gpu.count or not 0 < gpu.milli <= DEVICE_MILLI:
        return False
    return len(set(devices)) == len(devices) and all(0 <= device < count for device in devices)


def choose_devices(free_milli: npt.NDArray[np.int64], gpu: GpuRequest, rule: DeviceRule = "best") -> tuple[int, ...]:
    """Return the indices of the devices that the request takes on one node, whose free thousandths are [G].

    A share takes the device with the least ("best") or the most ("worst") left on which it still fits, and of equal
    ones that with the lowest index. Whole devices are the first entirely free ones. The result is empty when the
    request does not fit, and when it reserves nothing.
    """
    if not 0 < gpu.milli <= DEVICE_MILLI:
        return ()
    if gpu.count == 1 and gpu.milli < DEVICE_MILLI:
        fits = np.flatnonzero(free_milli >= gpu.milli)
        if not fits.size:
            return ()
        left = free_milli[fits]
        return (int(fits[left.argmin() if rule == "best" else left.argmax()]),)
    whole = np.flatnonzero(free_milli >= DEVICE_MILLI)
    return tuple(int(device) for device in whole[: gpu.count]) if whole.size >= gpu.count else ()
