"""A cluster as the stage of a replay: without its own nodes, with what its pods need, and cleared afterwards."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from aaml.cluster.objects import Node
from aaml.errors import UserError
from aaml.kube.clean import is_system
from aaml.kube.objects.manifest import node_to_json
from aaml.kube.provision.waits import count_nodes, wait_schedulable, wait_service_account
from aaml.kube.transport import CONFLICT, NOT_FOUND, Transport, allowing

SCHEDULER = "aaml-replay"
"""Who places the pods of a replay, and what the names of its priority classes begin with."""
WAIT_S = 120.0
"""How long is waited for what a cluster does of its own accord."""
_CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"
_LARGEST_PRIORITY = 1_000_000_000  # of a class of one's own
_SYSTEM = ((2_000_001_000, "system-node-critical"), (2_000_000_000, "system-cluster-critical"))


@contextmanager
def without_nodes(api: Transport, cluster: str) -> Iterator[None]:
    """Take the nodes off a cluster without a workload while the block lasts, and make them again afterwards."""
    pods = [each for each in _items(api, "/api/v1/pods") if not is_system(each["metadata"]["namespace"])]
    if pods:
        expected = "one without (`aaml cluster clean --all`)"
        raise UserError(f"on: cluster {cluster!r} has {len(pods)} pods; expected {expected}")
    before, workers = [_anew(each) for each in _items(api, "/api/v1/nodes")], count_nodes(api).schedulable
    api.request("DELETE", "/api/v1/nodes")
    try:
        yield
    finally:
        for body in before:
            api.request("POST", "/api/v1/nodes", body)
        wait_schedulable(api, workers, wait_s=WAIT_S, progress=False)


def _anew(node: dict[str, Any]) -> dict[str, Any]:
    """Return the manifest of a node as it was before the cluster knew it."""
    meta = {name: node["metadata"][name] for name in ("name", "labels", "annotations") if name in node["metadata"]}
    taints = [each for each in node["spec"].get("taints", ()) if not each["key"].startswith("node.kubernetes.io/")]
    kept = ("allocatable", "capacity", "images")
    status = {name: node["status"][name] for name in kept if name in node["status"]}
    return {"apiVersion": "v1", "kind": "Node", "metadata": meta, "spec": {"taints": taints}, "status": status}


def clear(api: Transport) -> None:
    """Take every pod, node and priority class of a replay off the cluster."""
    for namespace in {each["metadata"]["namespace"] for each in _items(api, "/api/v1/pods")}:
        if not is_system(namespace):
            delete(api, f"/api/v1/namespaces/{namespace}/pods", gracePeriodSeconds="0")
    delete(api, "/api/v1/nodes")
    for each in _items(api, _CLASSES):
        if each["metadata"]["name"].startswith(SCHEDULER):
            delete(api, f"{_CLASSES}/{each['metadata']['name']}")


def class_name(priority: int, policy: str) -> str:
    """Return the name of the priority class of pods with a priority and a preemption policy."""
    if priority > _LARGEST_PRIORITY:
        return next((name for value, name in _SYSTEM if priority >= value), _SYSTEM[-1][1])
    return f"{SCHEDULER}-{policy.lower()}-{priority}".replace("--", "-minus-")


def add_priority_class(api: Transport, priority: int, policy: str) -> None:
    """Create that priority class unless it is there, or is one of Kubernetes' own."""
    if priority <= _LARGEST_PRIORITY:
        body = {"metadata": {"name": class_name(priority, policy)}, "value": priority, "preemptionPolicy": policy}
        _create(api, _CLASSES, body)


def add_namespace(api: Transport, name: str) -> None:
    """Create a namespace unless it is there, and wait until pods can be created in it."""
    _create(api, "/api/v1/namespaces", {"metadata": {"name": name}})
    wait_service_account(api, WAIT_S, name)


def _create(api: Transport, path: str, body: dict[str, Any]) -> None:
    """Create an object unless it is there."""
    with allowing(CONFLICT):
        api.request("POST", path, body)


def delete(api: Transport, path: str, **query: str) -> None:
    """Delete an object, or all of a list; one that is gone already is fine."""
    with allowing(NOT_FOUND):
        api.request("DELETE", path, query=query or None)


def _items(api: Transport, path: str) -> list[dict[str, Any]]:
    return list(json.loads(api.request("GET", path))["items"])


def replace_node(api: Transport, node: Node) -> None:
    """Let a node of the cluster be what `node` says."""
    body = node_to_json(node)
    for part in ("", "/status"):
        api.request("PUT", f"/api/v1/nodes/{node.name}{part}", body)
