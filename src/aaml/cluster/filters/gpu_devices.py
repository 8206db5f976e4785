"""GpuDevices: AAML's own filter for shares of GPUs and whole devices, with their models.

kube-scheduler only counts `nvidia.com/gpu`; the devices are those of Weng et al., USENIX ATC 2023, and of the
annotations that their scheduler writes.
"""

import numpy as np

from aaml.cluster.filters.index import BoolArray, FilterIndex
from aaml.cluster.filters.plugin import Filter, Rejection
from aaml.cluster.gpu import DEVICE_MILLI, devices_fit
from aaml.cluster.objects import Pod


def model_mask(index: FilterIndex, pod: Pod) -> BoolArray:
    """Return [N] nodes whose GPU model the pod accepts."""
    models = [number for number, name in enumerate(index.state.gpu_models) if name in pod.gpu.models]
    return np.isin(index.state.gpu_model, models)


def passes(index: FilterIndex, pod: Pod) -> BoolArray | None:
    """Return [N] nodes with free devices of an accepted model; None when the pod asks for no GPU."""
    if not pod.gpu.count and not pod.gpu.models:
        return None
    mask = devices_fit(index.state.gpu_free, index.state.gpu_count, pod.gpu)
    if pod.gpu.models:
        mask &= model_mask(index, pod)
    return mask


def explain(index: FilterIndex, pod: Pod, candidates: BoolArray) -> Rejection:
    """Tell apart the wrong model and too few free devices."""
    right = model_mask(index, pod) if pod.gpu.models else np.ones_like(candidates)
    wrong = candidates & ~right
    too_few = candidates & right & (index.state.gpu_count < pod.gpu.count)
    reasons = (
        ("node(s) didn't have the requested GPU model", wrong),
        ("Insufficient GPU devices", candidates & right),
    )
    return Rejection(reasons, wrong | too_few | (candidates & (pod.gpu.milli > DEVICE_MILLI)))


FILTER = Filter("GpuDevices", passes, explain)
