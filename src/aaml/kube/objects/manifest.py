"""The scheduler's pods and nodes as API objects, to be created on a cluster."""

import uuid
from collections.abc import Iterable, Mapping
from math import inf
from typing import Any

from aaml.cluster import objects
from aaml.cluster.objects import Node, Pod
from aaml.cluster.quantity import format_amount
from aaml.kube.objects import wire

_DEVICE_MILLI = "1000"  # of `aaml.cluster.gpu`, which would bring NumPy into every `aaml cluster`
IMAGE = "registry.k8s.io/pause:3.10"  # KWOK runs no image; on a real cluster this one does nothing and ends at once


def _drop_empty(value: Mapping[str, Any]) -> dict[str, Any]:
    return {key: each for key, each in value.items() if each not in ({}, [], "", None)}


def _expressions(requirements: Iterable[objects.Requirement]) -> list[dict[str, Any]]:
    return [
        {"key": each.key, "operator": each.operator, **({"values": list(each.values)} if each.values else {})}
        for each in requirements
    ]


def _selector(selector: objects.LabelSelector | None) -> dict[str, Any] | None:
    return None if selector is None else _drop_empty({"matchExpressions": _expressions(selector.requirements)})


def _node_term(term: objects.NodeSelectorTerm) -> dict[str, Any]:
    return _drop_empty({"matchExpressions": _expressions(term.labels), "matchFields": _expressions(term.fields)})


def _pod_term(term: objects.PodAffinityTerm) -> dict[str, Any]:
    result: dict[str, Any] = {"topologyKey": term.topology_key, "namespaces": sorted(term.namespaces)}
    for key, selector in (("labelSelector", term.selector), ("namespaceSelector", term.namespace_selector)):
        if selector is not None:  # an empty selector matches everything, which a missing one does not
            result[key] = _selector(selector)
    return result


def _affinity(affinity: objects.Affinity) -> dict[str, Any]:
    required, preferred = (f"{kind}DuringSchedulingIgnoredDuringExecution" for kind in ("required", "preferred"))

    def weighted(sign: int) -> list[dict[str, Any]]:
        return [
            {"weight": abs(each.weight), "podAffinityTerm": _pod_term(each.term)}
            for each in affinity.preferred_pods
            if each.weight * sign > 0
        ]

    nodes: dict[str, Any] = {}
    if affinity.required_nodes is not None:
        nodes[required] = {"nodeSelectorTerms": [_node_term(term) for term in affinity.required_nodes]}
    if affinity.preferred_nodes:
        nodes[preferred] = [
            {"weight": each.weight, "preference": _node_term(each.term)} for each in affinity.preferred_nodes
        ]
    near = _drop_empty({required: [_pod_term(term) for term in affinity.required_pods], preferred: weighted(1)})
    apart = _drop_empty({required: [_pod_term(term) for term in affinity.required_anti_pods], preferred: weighted(-1)})
    return _drop_empty({"nodeAffinity": nodes, "podAffinity": near, "podAntiAffinity": apart})


def _spread(each: objects.TopologySpread) -> dict[str, Any]:
    result: dict[str, Any] = {
        "maxSkew": each.max_skew,
        "topologyKey": each.topology_key,
        "whenUnsatisfiable": "DoNotSchedule" if each.hard else "ScheduleAnyway",
        "nodeAffinityPolicy": "Honor" if each.honor_node_affinity else "Ignore",
        "nodeTaintsPolicy": "Honor" if each.honor_node_taints else "Ignore",
    }
    if each.selector is not None:
        result["labelSelector"] = _selector(each.selector)
    if each.hard and each.min_domains > 1:
        result["minDomains"] = each.min_domains
    return result


def gpu_annotations(gpu: objects.GpuRequest) -> dict[str, str]:
    """Return the annotations by which the openb trace requests GPUs; empty without a request."""
    if not gpu.count:
        return {}
    wanted = {wire.GPU_COUNT: str(gpu.count), wire.GPU_MILLI: str(gpu.milli)}
    return wanted | ({wire.GPU_MODEL: "|".join(sorted(gpu.models))} if gpu.models else {})


def owner_references(pod: Pod, kind: str = "") -> list[dict[str, Any]]:
    """Return the owner of a pod whose owner is no object of the cluster, as a `kind` (the owner's own by default).

    Its API group is one that there is none of: the garbage collector leaves the pod alone.
    """
    own, _, name = pod.owner.partition("/")
    uid = str(uuid.uuid5(uuid.NAMESPACE_OID, f"{pod.namespace}/{pod.owner}"))
    reference = {"apiVersion": "replay.aaml/v1", "kind": kind or own, "name": name or own, "controller": True}
    return [reference | {"uid": uid}] if pod.owner else []


def pod_to_json(pod: Pod, *, image: str = IMAGE) -> dict[str, Any]:
    """Return the manifest of a pod with one container that requests everything.

    What the API server sets itself (uid, node, phase, times) is left out, volumes and required features too. A
    priority is not written: the API server takes it from a priority class only.
    """
    ports = [
        {"containerPort": each.port, "hostPort": each.port, "protocol": each.protocol, "hostIP": each.host_ip}
        for each in pod.host_ports
    ]
    requests = {name: format_amount(name, value) for name, value in pod.requests.items()}
    # Extended resources are refused without an equal limit.
    limits = {name: text for name, text in requests.items() if "/" in name}
    container = _drop_empty(
        {
            "name": "main",
            "image": image,
            "resources": _drop_empty({"requests": requests, "limits": limits}),
            "ports": ports,
        }
    )
    tolerations = [
        _drop_empty({"key": each.key, "operator": each.operator, "value": each.value, "effect": each.effect})
        for each in pod.tolerations
    ]
    spec = _drop_empty(
        {
            "schedulerName": pod.scheduler_name,
            "nodeName": pod.node_name,
            "nodeSelector": dict(pod.node_selector),
            "affinity": _affinity(pod.affinity),
            "tolerations": tolerations,
            "topologySpreadConstraints": [_spread(each) for each in pod.spread],
            "schedulingGates": [{"name": gate} for gate in pod.gates],
            "containers": [container],
        }
    )
    metadata = _drop_empty(
        {
            "name": pod.name,
            "namespace": pod.namespace,
            "labels": dict(pod.labels),
            "annotations": gpu_annotations(pod.gpu)
            | ({wire.DO_NOT_DISRUPT: _how_long(pod)} if pod.do_not_disrupt else {}),
        }
    )
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _how_long(pod: Pod) -> str:
    return "true" if pod.do_not_disrupt_s == inf else f"{pod.do_not_disrupt_s:.3f}s"


def node_to_json(node: Node) -> dict[str, Any]:
    """Return the manifest of a node that KWOK plays the kubelet of.

    GPUs are offered whole (nvidia.com/gpu) and in thousandths, as in the openb trace.
    """
    amounts = {name: format_amount(name, value) for name, value in node.allocatable.items()}
    labels = dict(node.labels)
    if node.gpu_count:
        amounts.setdefault(wire.GPU_COUNT, str(node.gpu_count))
        amounts.setdefault(wire.GPU_MILLI, _DEVICE_MILLI)
        amounts.setdefault(wire.NVIDIA_GPU, str(node.gpu_count))
        if node.gpu_model:
            labels.setdefault(wire.GPU_MODEL, node.gpu_model)
    taints = [_drop_empty({"key": each.key, "value": each.value, "effect": each.effect}) for each in node.taints]
    images = [{"names": [name], "sizeBytes": size} for name, size in node.images.items()]
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": _drop_empty({"name": node.name, "labels": labels, "annotations": {"kwok.x-k8s.io/node": "fake"}}),
        "spec": _drop_empty({"taints": taints, "unschedulable": node.unschedulable or None}),
        "status": _drop_empty(
            {
                "allocatable": amounts,
                "capacity": amounts,
                "images": images,
                "declaredFeatures": sorted(node.declared_features),
            }
        ),
    }
