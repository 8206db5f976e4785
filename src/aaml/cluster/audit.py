"""What is wrong with a cluster state: each array and index against what the nodes and placed pods themselves say."""

import numpy as np

from aaml.cluster.gpu import DEVICE_MILLI, choose_devices, devices_named
from aaml.cluster.state import ClusterState


def check(state: ClusterState) -> None:
    """Raise AssertionError that says what is wrong, where an array or index differs from what pods and nodes say.

    Also where an amount is negative, or a device has more left than its size.
    """
    wrong = faults(state)
    if wrong:
        raise AssertionError(f"cluster state: {'; '.join(wrong)}")


def faults(state: ClusterState) -> list[str]:
    """Return what is wrong, in words; empty when all is well."""
    found = [*_nodes(state), *_places(state), *_amounts(state), *_devices(state)]
    for kept in state.indexes.values():
        for index in kept.values() if isinstance(kept, dict) else (kept,):
            if not found and hasattr(index, "faults"):  # an index over a state that can say what is wrong with itself
                found += index.faults()
    return found


def _nodes(state: ClusterState) -> list[str]:
    """Compare what the arrays say of each node with the node."""
    found = []
    if state.names != [node.name for node in state.nodes] or list(state.index) != state.names:
        found.append("node indices and names differ")
    if list(state.index.values()) != list(range(len(state))) or len(state.node_pods) != len(state):
        found.append("node indices have gaps")
    for node_index, node in enumerate(state.nodes):
        offered = dict(zip(state.resources, state.allocatable[node_index].tolist(), strict=True))
        facts = (
            state.gpu_count[node_index],
            state.gpu_models[state.gpu_model[node_index]],
            state.unschedulable[node_index],
        )
        if any(value != node.allocatable.get(name, 0) for name, value in offered.items()):
            found.append(f"node {node.name} offers {dict(node.allocatable)}, counted as {offered}")
        if facts != (node.gpu_count, node.gpu_model, node.unschedulable):
            found.append(f"node {node.name}: devices, model and cordon are counted as {facts}")
        if state.capacity[node_index] == node.is_control_plane:
            found.append(f"node {node.name} counts as capacity and control plane")
    return found


def _places(state: ClusterState) -> list[str]:
    """Look for pods in two places or in none."""
    found = []
    by_node = {(state.names[node_index], uid) for node_index, pods in enumerate(state.node_pods) for uid in pods}
    if by_node != {(placement.node_name, uid) for uid, placement in state.placements.items()}:
        found.append("pods by node differ from the placed pods")
    for uid, placement in state.placements.items():
        if uid in state.nominated:
            found.append(f"pod {placement.pod.key} is placed and nominated")
        if state.node_pods[state.index[placement.node_name]].get(uid) is not placement.pod:
            found.append(f"pod {placement.pod.key} is another one on its node")
    aside = {uid: name for name, pods in state._homeless.items() for uid in pods}  # noqa: SLF001
    if aside != state._awaits or aside.keys() & state.placements.keys() or set(aside.values()) & state.index.keys():  # noqa: SLF001
        found.append("pods that wait for their node are placed, or their node is there")
    return found


def _amounts(state: ClusterState) -> list[str]:
    """Compare what is requested with the sum over the placed pods."""
    requested, nonzero = np.zeros_like(state.requested), np.zeros_like(state.nonzero)
    for placement in state.placements.values():
        node_index = state.index[placement.node_name]
        requested[node_index] += state.request_vector(placement.pod)
        nonzero[node_index] += state.nonzero_request(placement.pod)
    found = []
    if not np.array_equal(requested, state.requested) or not np.array_equal(nonzero, state.nonzero):
        found.append("requested amounts differ from the sum over placed pods")
    if (state.requested < 0).any() or (state.nonzero < 0).any():
        found.append("a requested amount is negative")
    return found


def _devices(state: ClusterState) -> list[str]:
    """Compare free devices with those that placed pods hold, and look whether the right pods hold them."""
    found = []
    used = np.zeros_like(state.gpu_free)
    for placement in state.placements.values():
        used[state.index[placement.node_name], list(placement.gpus)] += placement.pod.gpu.milli
    real = np.arange(used.shape[1]) < state.gpu_count[:, None]
    if not np.array_equal(np.where(real, np.maximum(DEVICE_MILLI - used, 0), 0), state.gpu_free):
        found.append("free GPU thousandths differ from what placed pods leave")
    if (state.gpu_free < 0).any() or (state.gpu_free > DEVICE_MILLI).any():
        found.append("a device has less than nothing or more than its size left")
    for uid, placement in state.placements.items():
        pod, node_index, gpus = placement.pod, state.index[placement.node_name], placement.gpus
        count = int(state.gpu_count[node_index])
        if (uid in state._without) != bool(pod.gpu.milli and not gpus):  # noqa: SLF001
            found.append(f"pod {pod.key} is wrongly counted as one with or without devices")
        if not pod.gpu.milli:
            wrong = bool(gpus)
        elif devices_named(placement.noted, pod.gpu, count):
            wrong = gpus != placement.noted
        elif gpus:  # a guess, on which no other pod's note may insist
            wrong = not devices_named(gpus, pod.gpu, count) or bool((used[node_index, list(gpus)] > DEVICE_MILLI).any())
        else:
            wrong = bool(choose_devices(state.gpu_free[node_index], pod.gpu))
        if wrong:
            found.append(f"pod {pod.key} holds the devices {gpus} of {count} for {pod.gpu}, noted {placement.noted}")
    return found
