"""Which cluster events can make an unschedulable pod schedulable, by the filter plugin that rejected it.

The hints follow kube-scheduler's queueing hints (https://kubernetes.io/docs/concepts/scheduling-eviction/
scheduling-framework/): a pod waits until something happens that the plugins which rejected it care about.
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal

from aaml.cluster.objects import Node, Pod, PodAffinityTerm
from aaml.cluster.quantity import PODS
from aaml.cluster.selectors import (
    UNSCHEDULABLE_TAINT,
    has_untolerated_taint,
    matches_labels,
    matches_required_nodes,
    tolerated,
)

EventKind = Literal[
    "node_add", "node_update", "node_delete",
    "pod_add", "pod_update", "pod_delete",  # of placed pods (assumed ones included)
    "volume_change", "volume_detach", "namespace_change",
    "own_update",  # of the waiting pod itself
    "any",  # a reason to try everything again
]  # fmt: skip

Hint = Callable[[Pod, Any, Any], bool]  # (waiting pod, object now, object before or None) -> worth another try


def _always(_pod: Pod, _now: Any, _before: Any) -> bool:
    return True


# ---- nodes -----------------------------------------------------------------------------------------------------------


def _fits_empty(pod: Pod, node: Node) -> bool:
    return node.allocatable.get(PODS, 0) >= 1 and all(
        node.allocatable.get(name, 0) >= amount for name, amount in pod.requests.items() if amount
    )


def _fit_node(pod: Pod, node: Node, before: Node | None) -> bool:
    if not _fits_empty(pod, node):
        return False
    if before is None:
        return True
    wanted = [PODS, *(name for name, amount in pod.requests.items() if amount)]
    return any(node.allocatable.get(name, 0) > before.allocatable.get(name, 0) for name in wanted)


def _gpu_node(pod: Pod, node: Node, before: Node | None) -> bool:
    if before is not None and (before.gpu_count, before.gpu_model) == (node.gpu_count, node.gpu_model):
        return False
    return node.gpu_count >= pod.gpu.count and (not pod.gpu.models or node.gpu_model in pod.gpu.models)


def _schedulable_node(_pod: Pod, node: Node, before: Node | None) -> bool:
    return not node.unschedulable and (before is None or before.unschedulable)


def _tainted_node(pod: Pod, node: Node, before: Node | None) -> bool:
    was_tainted = before is None or has_untolerated_taint(pod.tolerations, before.taints)
    return was_tainted and not has_untolerated_taint(pod.tolerations, node.taints)


def _selected_node(pod: Pod, node: Node, before: Node | None) -> bool:
    return matches_required_nodes(pod, node) and (before is None or not matches_required_nodes(pod, before))


def _declaring_node(_pod: Pod, node: Node, before: Node | None) -> bool:
    return before is None or before.declared_features != node.declared_features


def _relabelled_node(_pod: Pod, node: Node, before: Node | None) -> bool:
    return before is None or before.labels != node.labels


def _named_node(pod: Pod, node: Node, _before: Node | None) -> bool:
    return pod.node_name == node.name


def _affinity_node(pod: Pod, node: Node, before: Node | None) -> bool:
    for term in pod.affinity.required_pods:
        key = term.topology_key
        if key in node.labels and (before is None or before.labels.get(key) != node.labels[key]):
            return True
    for term in pod.affinity.required_anti_pods:
        key = term.topology_key
        if before is None or (key in before.labels and before.labels[key] != node.labels.get(key)):
            return True
    # A pod without terms was rejected by the anti-affinity of others: a node outside their domains lets it in.
    return not pod.affinity.required_pods and not pod.affinity.required_anti_pods


def _spread_node(pod: Pod, node: Node, before: Node | None) -> bool:
    keys = [each.topology_key for each in pod.spread if each.hard]
    now = all(key in node.labels for key in keys)
    if before is None:
        return now
    if now != all(key in before.labels for key in keys):
        return True
    return now and (before.taints != node.taints or any(before.labels.get(key) != node.labels.get(key) for key in keys))


# ---- placed pods -----------------------------------------------------------------------------------------------------


def _smaller_pod(pod: Pod, other: Pod, before: Pod | None) -> bool:
    if before is None:
        return True
    return any(before.request(name) > other.request(name) for name, amount in pod.requests.items() if amount)


def _gpu_pod(_pod: Pod, other: Pod, _before: Pod | None) -> bool:
    return other.gpu.total_milli > 0


def _smaller_gpu_pod(_pod: Pod, other: Pod, before: Pod | None) -> bool:
    return before is None or before.gpu.total_milli > other.gpu.total_milli


def _port_pod(pod: Pod, other: Pod, _before: Pod | None) -> bool:
    taken = {(each.protocol, each.port) for each in other.host_ports}
    return any((each.protocol, each.port) in taken for each in pod.host_ports)


def _may_match(terms: tuple[PodAffinityTerm, ...], other: Pod) -> bool:
    """Say whether the pod may match the terms, where a namespace selector counts as matched.

    The queue does not know the labels of namespaces; otherwise this is `matches_all_pod_terms`.
    """
    return bool(terms) and all(
        (other.namespace in term.namespaces or term.namespace_selector is not None)
        and matches_labels(term.selector, other.labels)
        for term in terms
    )


def _affinity_added(pod: Pod, other: Pod, _before: Pod | None) -> bool:
    return _may_match(pod.affinity.required_pods, other)


def _affinity_updated(pod: Pod, other: Pod, before: Pod | None) -> bool:
    if before is None:
        return True
    wanted, hated = pod.affinity.required_pods, pod.affinity.required_anti_pods
    return (
        (_may_match(wanted, other) and not _may_match(wanted, before))
        or (_may_match(hated, before) and not _may_match(hated, other))
        or _affinity_deleted(pod, before, None)
    )


def _affinity_deleted(pod: Pod, other: Pod, _before: Pod | None) -> bool:
    return any(_may_match((term,), other) for term in pod.affinity.required_anti_pods) or any(
        _may_match((term,), pod) for term in other.affinity.required_anti_pods
    )


def _spread_pod(pod: Pod, other: Pod, before: Pod | None) -> bool:
    if other.namespace != pod.namespace:
        return False
    hard = [each for each in pod.spread if each.hard]
    if before is None:
        return any(matches_labels(each.selector, other.labels) for each in hard)
    return other.terminating != before.terminating or any(
        matches_labels(each.selector, other.labels) != matches_labels(each.selector, before.labels) for each in hard
    )


# ---- the pod itself --------------------------------------------------------------------------------------------------


def helped_by_own_update(pod: Pod, before: Pod, plugins: frozenset[str]) -> bool:  # noqa: PLR0911
    """Whether a change of the waiting pod itself may have cured what the plugins rejected."""
    if not plugins or (before.gates and not pod.gates):
        return True
    if "NodeResourcesFit" in plugins and any(before.request(name) > pod.request(name) for name in before.requests):
        return True
    if "GpuDevices" in plugins and before.gpu != pod.gpu:
        return True
    if "NodeDeclaredFeatures" in plugins and before.required_features != pod.required_features:
        return True
    if before.tolerations != pod.tolerations:
        if plugins & {"TaintToleration", "PodTopologySpread"}:
            return True
        if "NodeUnschedulable" in plugins and tolerated(pod.tolerations, UNSCHEDULABLE_TAINT):
            return True
    if before.labels != pod.labels and plugins & {"InterPodAffinity", "PodTopologySpread"}:
        return True
    return before.volumes != pod.volumes or not plugins <= HINTS.keys()


HINTS: Mapping[str, Mapping[str, Hint]] = {
    "NodeResourcesFit": {
        "pod_delete": _always, "pod_update": _smaller_pod, "node_add": _fit_node, "node_update": _fit_node,
    },
    "GpuDevices": {
        "pod_delete": _gpu_pod, "pod_update": _smaller_gpu_pod, "node_add": _gpu_node, "node_update": _gpu_node,
    },
    "NodeName": {"node_add": _named_node},
    "NodeUnschedulable": {"node_add": _schedulable_node, "node_update": _schedulable_node},
    "TaintToleration": {"node_add": _tainted_node, "node_update": _tainted_node},
    "NodeAffinity": {"node_add": _selected_node, "node_update": _selected_node},
    "NodePorts": {"pod_delete": _port_pod, "node_add": _always},
    "InterPodAffinity": {
        "pod_add": _affinity_added, "pod_update": _affinity_updated, "pod_delete": _affinity_deleted,
        "node_add": _affinity_node, "node_update": _affinity_node, "namespace_change": _always,
    },
    "PodTopologySpread": {
        "pod_add": _spread_pod, "pod_update": _spread_pod, "pod_delete": _spread_pod,
        "node_add": _spread_node, "node_update": _spread_node, "node_delete": _spread_node,
    },
    "VolumeRestrictions": {"pod_delete": _always, "node_add": _always, "volume_change": _always},
    "NodeVolumeLimits": {
        "pod_delete": _always, "node_add": _always, "volume_change": _always, "volume_detach": _always,
    },
    "VolumeBinding": {"node_add": _always, "node_update": _relabelled_node, "volume_change": _always},
    "VolumeZone": {"node_add": _always, "node_update": _relabelled_node, "volume_change": _always},
    "NodeDeclaredFeatures": {"node_add": _declaring_node, "node_update": _declaring_node},
    "SchedulingGates": {},
    "DynamicResources": {},
}  # fmt: skip
"""plugin -> event kind -> hint. An event kind that is not named cannot help a pod that the plugin rejected."""


def interested(plugins: frozenset[str], kind: EventKind) -> bool:
    """Say whether an event of this kind could help any of the plugins.

    It could always help a plugin that is not known, and a pod that no plugin rejected.
    """
    return kind == "any" or not plugins or any(kind in HINTS.get(name, {kind: _always}) for name in plugins)


def helped_by(pod: Pod, plugins: frozenset[str], kind: EventKind, now: Any, before: Any) -> bool:
    """Whether an event may have cured what the plugins rejected."""
    if kind == "any" or not plugins:
        return True
    for name in plugins:
        hint = HINTS.get(name, {kind: _always}).get(kind)
        if hint is not None and hint(pod, now, before):
            return True
    return False
