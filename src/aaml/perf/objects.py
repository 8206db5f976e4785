"""The nodes, pods and volumes of the benchmark: what its Go code makes of templates, and without one."""

import secrets

from aaml.perf.operations import CreateNodes
from aaml.perf.templates import Manifest

_HOSTNAME = "kubernetes.io/hostname"
_OFFERED = {"pods": "110", "cpu": "4", "memory": "32Gi"}
_ASKED = {"cpu": "100m", "memory": "500Mi"}


def new_node(
    template: Manifest | None, prefix: str, number: int, step: CreateNodes
) -> tuple[Manifest, Manifest | None]:
    """Return node `number` of an operation, and its CSINode where the operation speaks of volumes."""
    node = template or {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"generateName": prefix},
        "status": {"capacity": _OFFERED, "conditions": [{"type": "Ready", "status": "True"}], "phase": "Running"},
    }
    meta, status = node["metadata"], node["status"]
    name = meta.setdefault("name", f"{meta.get('generateName', prefix)}{secrets.token_hex(6)}")
    labels = meta.setdefault("labels", {})
    labels[_HOSTNAME] = name
    if (dealt := step.label_node_prepare_strategy) is not None:
        labels[dealt.label_key] = dealt.label_values[number % len(dealt.label_values)]
    more = step.node_allocatable_strategy
    if more is None:
        return node, None
    status["allocatable"] = {**status.get("allocatable", status["capacity"]), **more.node_allocatable}
    drivers = [
        {"name": driver, "nodeID": name, "allocatable": offered}
        for driver, offered in more.csi_node_allocatable.items()
    ]
    migrated = {"storage.alpha.kubernetes.io/migrated-plugins": ",".join(more.migrated_plugins)}
    return node, {"metadata": {"name": name, "annotations": migrated}, "spec": {"drivers": drivers}}


def resource_slice(driver: str, node: str, devices: int) -> Manifest:
    """Return the devices that a driver offers on a node."""
    attributes = {
        "model": {"string": "A100"}, "family": {"string": "GPU"}, "driverVersion": {"version": "1.2.3"},
    }  # fmt: skip
    return {
        "metadata": {"name": node},
        "spec": {
            "driver": driver, "nodeName": node, "pool": {"name": node, "resourceSliceCount": 1},
            "devices": [
                {
                    "name": f"instance-{number}", "capacity": {"memory": {"value": "1Gi"}},
                    "attributes": {**attributes, "dra.example.com/numa": {"int": number}},
                }
                for number in range(devices)
            ],
        },
    }  # fmt: skip


def pod_of(template: Manifest | None) -> Manifest:
    """Return the pod of a template, or one that requests 100m CPU and 500Mi."""
    container = {
        "name": "pause",
        "image": "registry.k8s.io/pause",
        "ports": [{"containerPort": 80}],
        "resources": {"limits": _ASKED, "requests": _ASKED},
    }
    return template or {"metadata": {"generateName": "pod-"}, "spec": {"containers": [container]}}


def claim_and_volume(claim: Manifest, volume: Manifest, namespace: str, number: int) -> tuple[Manifest, Manifest]:
    """Return claim `number` of a namespace and its volume, bound to each other.

    Their status stays empty: no scheduler looks at it.
    """
    name = f"{namespace}-vol-{number}"
    claim.setdefault("metadata", {})["name"] = f"pvc-{number}"
    claim["spec"]["volumeName"] = name
    volume.setdefault("metadata", {})["name"] = name
    volume["spec"]["claimRef"] = {
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": namespace, "name": f"pvc-{number}",
    }  # fmt: skip
    if "csi" in volume["spec"]:
        volume["spec"]["csi"]["volumeHandle"] = name
    return claim, volume
