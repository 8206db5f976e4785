"""Run the filters for a pod: one mask over all nodes."""

from typing import cast

import numpy as np

from aaml.cluster.filters import (
    gpu_devices,
    inter_pod_affinity,
    node_affinity,
    node_declared_features,
    node_name,
    node_ports,
    node_resources,
    node_unschedulable,
    taint_toleration,
    topology_spread,
    volume_binding,
    volumes,
)
from aaml.cluster.filters.index import BoolArray, FilterIndex
from aaml.cluster.filters.verdict import Diagnosis, Feasibility, diagnose, rejecting, rejection_of_all
from aaml.cluster.objects import NO_AFFINITY, NO_VOLUMES, Pod
from aaml.cluster.state import ClusterState


def feasible(state: ClusterState, pod: Pod, index: FilterIndex | None = None) -> Feasibility:
    """Return where the pod can go now: the filters of kube-scheduler 1.37 and AAML's GPU devices.

    Pods nominated to a node by preemption count as running there for pods of the same or a lower priority. `index`
    None uses the state's own.
    """
    index = FilterIndex.of(state) if index is None else index
    index.sync()
    mask = passing(index, pod)
    overlays = _overlays(index, pod, mask) if state.nominated else {}
    for node_index, overlay in overlays.items():
        mask[node_index] &= not overlay.by_node[node_index]

    def explain() -> Diagnosis:
        diagnosis = diagnose(index, pod)
        return _merge(diagnosis, overlays) if overlays else diagnosis

    return Feasibility(mask, index, explain, state.generation)


def rejecting_plugins(state: ClusterState, pod: Pod) -> frozenset[str]:
    """Return the plugins that reject a node, as `feasible(state, pod).plugins`, which works the reasons out too."""
    if state.nominated:
        return feasible(state, pod).plugins
    index = FilterIndex.of(state)
    index.sync()
    return rejecting(index, pod)


def passing(index: FilterIndex, pod: Pod) -> BoolArray:  # noqa: C901
    """Return [N] the nodes that pass every filter, nominations left aside; the array is the caller's."""
    if pod.gates or pod.volumes.missing or pod.resource_claims:
        return np.zeros(len(index.state), dtype=np.bool_)
    mask = node_resources.passes(index, pod)
    if mask is None:
        raise AssertionError("every pod takes the room of one pod")
    static = _static(index, pod)
    if static is not None:
        mask &= static
    # Most pods use none of the rest.
    if pod.gpu.count or pod.gpu.models:
        _narrow(mask, gpu_devices.passes(index, pod))
    if pod.host_ports:
        _narrow(mask, node_ports.passes(index, pod))
    if pod.volumes is not NO_VOLUMES:
        _narrow(mask, volumes.restrictions_pass(index, pod))
        _narrow(mask, volumes.limits_pass(index, pod))
        _narrow(mask, volume_binding.passes(index, pod))
        _narrow(mask, volumes.zone_passes(index, pod))
    if pod.required_features:
        _narrow(mask, node_declared_features.passes(index, pod))
    if (pod.spread or pod.affinity is not NO_AFFINITY) and not mask.any():
        return mask  # what is left to ask takes long
    if pod.spread:
        _narrow(mask, topology_spread.passes(index, pod))
    if index.owned["required_anti"] or pod.affinity is not NO_AFFINITY:
        _narrow(mask, inter_pod_affinity.passes(index, pod))
    return mask


def _narrow(mask: BoolArray, other: BoolArray | None) -> None:
    if other is not None:
        mask &= other


def _static(index: FilterIndex, pod: Pod) -> BoolArray | None:
    """Return [N] what depends on the nodes and not on the pods that run there; None when all nodes pass."""

    def build() -> BoolArray | None:
        mask = np.ones(len(index.state), dtype=np.bool_)
        for plugin in (node_unschedulable, node_name, taint_toleration, node_affinity):
            _narrow(mask, plugin.passes(index, pod))
        return None if mask.all() else mask

    selection = None
    if pod.node_selector or pod.affinity.required_nodes is not None:
        selection = node_affinity.selection_key(pod)
    return cast("BoolArray | None", index.cached(("static", pod.tolerations, selection, pod.node_name), build))


def _overlays(index: FilterIndex, pod: Pod, mask: BoolArray) -> dict[int, Diagnosis]:
    """Judge each feasible node with more or equally important nominated pods as if these ran there already.

    On top of the filters without them, which `mask` holds: affinity may only be met by pods that really run.
    """
    state = index.state
    nominated: dict[int, list[Pod]] = {}
    for other, name in state.nominated.values():
        node_index = state.index.get(name)
        if node_index is not None and mask[node_index] and other.uid != pod.uid and other.priority >= pod.priority:
            nominated.setdefault(node_index, []).append(other)
    if not nominated:
        return {}
    overlays = {}
    imagined = state.fork()
    imagined_index = FilterIndex.of(imagined)
    only = np.zeros(len(state), dtype=np.bool_)
    for node_index, others in nominated.items():
        for other in others:
            imagined.assume(other, state.names[node_index])
        imagined_index.sync()
        only[node_index] = True
        overlays[node_index] = diagnose(imagined_index, pod, only)
        only[node_index] = False
        for other in others:
            imagined.forget(other.uid)
    return overlays


def _merge(diagnosis: Diagnosis, overlays: dict[int, Diagnosis]) -> Diagnosis:
    """Add the rejections for the sake of nominated pods."""
    by_node, plugin_by_node = list(diagnosis.by_node), list(diagnosis.plugin_by_node)
    reasons = dict(diagnosis.reasons)
    plugins, unresolvable = set(diagnosis.plugins), diagnosis.unresolvable.copy()
    for node_index, overlay in overlays.items():
        by_node[node_index] = overlay.by_node[node_index]
        plugin_by_node[node_index] = overlay.plugin_by_node[node_index]
        unresolvable[node_index] = overlay.unresolvable[node_index]
        if overlay.by_node[node_index]:
            plugins |= overlay.plugins
        for reason in overlay.by_node[node_index]:
            reasons[reason] = reasons.get(reason, 0) + 1
    return Diagnosis(
        frozenset(plugins), reasons, unresolvable, tuple(by_node), tuple(plugin_by_node), diagnosis.rejected_before
    )


__all__ = ["feasible", "passing", "rejecting_plugins", "rejection_of_all"]
