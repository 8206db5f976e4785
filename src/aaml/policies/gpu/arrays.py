"""Nodes and pods as the arrays that compiled kernels read, for the engine, the heuristics and the features alike."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from aaml.cluster.gpu import DEVICE_MILLI
from aaml.cluster.objects import Node, Pod
from aaml.cluster.quantity import CPU, MEMORY, PODS
from aaml.cluster.state import ClusterState
from aaml.policies.fragmentation import model_mask

IntArray = npt.NDArray[np.int64]

# Columns of a pod's shape: what scores and fits depend on.
SHAPE_COLUMNS = ("cpu_milli", "memory_bytes", "gpu_count", "gpu_milli", "models", "kind")
SHAPE_CPU, SHAPE_MEMORY, SHAPE_COUNT, SHAPE_MILLI, SHAPE_MODELS, SHAPE_KIND = range(len(SHAPE_COLUMNS))
KIND_NONE, KIND_SHARE = 0, 1  # then 1 + G for pods of G whole devices


class NodeArrays(NamedTuple):
    """What is free on each node, by its index in the cluster state. Kernels that place pods change these in place.

    ===========  ===========  ==================================================================
    cpu          int64 [N]    free milli-cores
    cpu_size     int64 [N]    milli-cores that the node offers
    memory       int64 [N]    free bytes
    pods         int64 [N]    free pod slots
    gpu          int64 [N, G]  free thousandths of each device, 0 beyond a node's last
    gpu_count    int64 [N]    devices
    gpu_model    int64 [N]    index of the model
    kinds        int64 [N]    bit per kind of GPU pod on the node (for GPU clustering)
    ===========  ===========  ==================================================================
    """

    cpu: IntArray
    cpu_size: IntArray
    memory: IntArray
    pods: IntArray
    gpu: IntArray
    gpu_count: IntArray
    gpu_model: IntArray
    kinds: IntArray

    def copy(self) -> "NodeArrays":
        """Return independent arrays."""
        return NodeArrays(*(array.copy() for array in self))


def pod_kind(pod: Pod) -> int:
    """Return what GPU clustering tells apart: a pod without GPU, with a share, or with so many whole devices.

    A request that reserves nothing counts as a share.
    """
    if pod.gpu.count == 0:
        return KIND_NONE
    if pod.gpu.count == 1 and pod.gpu.milli < DEVICE_MILLI:
        return KIND_SHARE
    return 1 + pod.gpu.count


def pod_shape(pod: Pod, gpu_models: Sequence[str]) -> IntArray:
    """Return a pod's shape, int64 [6] (`SHAPE_COLUMNS`), with its models as bits by index in `gpu_models`."""
    return np.array(
        (
            pod.request(CPU), pod.request(MEMORY), pod.gpu.count, pod.gpu.milli, model_mask(pod.gpu.models, gpu_models),
            pod_kind(pod),
        ),
        dtype=np.int64,
    )  # fmt: skip


def empty_nodes(nodes: Sequence[Node]) -> tuple[NodeArrays, tuple[str, ...]]:
    """Return arrays of nodes without pods, and their GPU models ("" first)."""
    models = ["", *sorted({node.gpu_model for node in nodes} - {""})]
    width = max((node.gpu_count for node in nodes), default=0)
    count = np.array([node.gpu_count for node in nodes], dtype=np.int64)
    gpu = np.where(np.arange(width) < count[:, None], DEVICE_MILLI, 0).astype(np.int64)
    amounts = [
        np.array([node.allocatable.get(name, 0) for node in nodes], dtype=np.int64) for name in (CPU, MEMORY, PODS)
    ]
    model = np.array([models.index(node.gpu_model) for node in nodes], dtype=np.int64)
    arrays = NodeArrays(
        amounts[0], amounts[0].copy(), amounts[1], amounts[2], gpu, count, model, np.zeros(len(nodes), dtype=np.int64)
    )
    return arrays, tuple(models)


def devices_by_model(nodes: NodeArrays, models: int) -> IntArray:
    """Return how many devices of each GPU model the nodes have, int64 [models]."""
    return np.bincount(nodes.gpu_model, weights=nodes.gpu_count, minlength=models).astype(np.int64)


def state_arrays(state: ClusterState) -> NodeArrays:
    """Return the free amounts of a cluster state (fresh arrays but for views of the GPU columns)."""
    free = state.allocatable - state.requested
    column = state.resource_index
    kinds = np.zeros(len(state), dtype=np.int64)
    for node_index, pods in enumerate(state.node_pods):
        for pod in pods.values():
            if pod.gpu.count:
                kinds[node_index] |= 1 << pod_kind(pod)
    return NodeArrays(
        np.ascontiguousarray(free[:, column[CPU]]),
        np.ascontiguousarray(state.allocatable[:, column[CPU]]),
        np.ascontiguousarray(free[:, column[MEMORY]]),
        np.ascontiguousarray(free[:, column[PODS]]),
        state.gpu_free, state.gpu_count, state.gpu_model, kinds,
    )  # fmt: skip
