"""A cluster state from the objects of a request: nodes, their pods, and GPU use in an annotation of a node.

The GPU-sharing simulator (hkust-adsl/kubernetes-scheduler-simulator) posts nodes without their pods. Which devices of a
node are in use stands in the node's annotation `simon/node-gpu-share`, as JSON:

    {"DevsBrief": {"0": {"Idx": 0, "Model": "T4", "PodList": ["default/a"], "GpuUsedMilli": 500}, ...},
     "GpuCount": 2, "GpuModel": "T4", "GpuUsedMilli": 500, "NumPods": 1}

It names the pods and the thousandths of each device that they use together. It does not say what CPU and memory they
use, nor how pods that share a device divide it.
"""

from collections.abc import Sequence

import msgspec

from aaml.cluster.gpu import DEVICE_MILLI, devices_named
from aaml.cluster.objects import GpuRequest, Node, Pod
from aaml.cluster.state import ClusterState
from aaml.errors import UserError, bad_value
from aaml.kube.objects import wire
from aaml.kube.objects.convert import node_from_api, read_object
from aaml.kube.sources import see_pod

GPU_SHARE = "simon/node-gpu-share"


class DeviceUse(msgspec.Struct, rename="pascal"):
    """One device of `DevsBrief`: its index, the thousandths in use, and the pods that use them ("namespace/name")."""

    idx: int
    gpu_used_milli: int = 0
    pod_list: list[str] | None = None


class GpuShare(msgspec.Struct, rename="pascal"):
    """The annotation's value."""

    devs_brief: dict[str, DeviceUse] | None = None


def state_from_objects(nodes: Sequence[bytes], pods: Sequence[bytes] = ()) -> ClusterState:
    """Return the state of posted v1.Nodes with the posted v1.Pods that are bound to them.

    Rows are in the order of `nodes`. Device use that a node's annotation tells beyond that of the posted pods is taken
    by pods that ask for nothing else. Raises `UserError` with the field for an object that is none, a name that comes
    twice, a pod on another node, and an annotation that does not fit its node.
    """
    state, noted = ClusterState(), dict[str, list[DeviceUse]]()
    for position, data in enumerate(nodes):
        raw = read_object(data, wire.NodeObject, "node")
        node = node_from_api(raw)
        state.upsert_node(node)
        text = (raw.metadata.annotations or {}).get(GPU_SHARE)
        if text:
            noted[node.name] = _device_use(text, node, f"nodes[{position}].metadata.annotations[{GPU_SHARE}]")
    if len(state) != len(nodes):
        raise UserError(f"nodes: {len(nodes)} were posted with {len(state)} names; names must differ")
    posted = set()
    for position, data in enumerate(pods):
        seen = see_pod(read_object(data, wire.PodObject, "pod"))
        pod = seen.pod
        if pod.node_name not in state.index:
            raise UserError(f"pods[{position}].spec.nodeName: {pod.node_name!r} is none of the posted nodes")
        posted.add(pod.key)
        gpus = seen.gpus
        if not devices_named(gpus, pod.gpu, int(state.gpu_count[state.index[pod.node_name]])):
            gpus = tuple(use.idx for use in noted.get(pod.node_name, ()) if pod.key in (use.pod_list or ()))
        state.upsert_pod(pod, gpus)
    for name, devices in noted.items():
        for number, (gpu, gpus) in enumerate(_unposted(devices, state, state.index[name], posted)):
            pod = Pod(f"noted-{number}", uid=f"{GPU_SHARE} {name} {number}", gpu=gpu, nonzero=(0, 0), node_name=name)
            state.upsert_pod(pod, gpus)
    return state


def _device_use(text: str, node: Node, field: str) -> list[DeviceUse]:
    """Read the annotation. Raises `UserError` for no such JSON, a device that the node lacks, an impossible amount."""
    try:
        devices = list((msgspec.json.decode(text, type=GpuShare).devs_brief or {}).values())
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise UserError(f"{field}: {error}") from error
    seen = set()
    for use in devices:
        if not 0 <= use.idx < node.gpu_count or use.idx in seen:
            raise bad_value(f"{field}: Idx", use.idx, f"a different device of the node's {node.gpu_count} for each use")
        if not 0 <= use.gpu_used_milli <= DEVICE_MILLI:
            raise bad_value(f"{field}: GpuUsedMilli", use.gpu_used_milli, f"0 to {DEVICE_MILLI}")
        seen.add(use.idx)
    return sorted(devices, key=lambda use: use.idx)


def _unposted(
    devices: Sequence[DeviceUse], state: ClusterState, node_index: int, posted: set[str]
) -> list[tuple[GpuRequest, tuple[int, ...]]]:
    """Return requests, and their devices, that bring a node's devices to the use in its annotation.

    A pod alone on fully used devices requests all of them whole; pods that share a device get equal parts.
    """
    found: list[tuple[GpuRequest, tuple[int, ...]]] = []
    whole: dict[str, list[int]] = {}
    for use in devices:
        left = use.gpu_used_milli - (DEVICE_MILLI - int(state.gpu_free[node_index, use.idx]))
        names = [name for name in use.pod_list or () if name not in posted] or [""]
        if left == DEVICE_MILLI and len(names) == 1 and names[0]:
            whole.setdefault(names[0], []).append(use.idx)
            continue
        for place in range(len(names)):
            part = left * (place + 1) // len(names) - left * place // len(names)
            if part > 0:
                found.append((GpuRequest(1, part), (use.idx,)))
    return found + [(GpuRequest(len(taken), DEVICE_MILLI), tuple(taken)) for taken in whole.values()]
