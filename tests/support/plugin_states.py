"""Random clusters as Kubernetes' objects, what Python makes of them, and the Go plugin that answers the same."""

import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from aaml.cluster.objects import Pod
from aaml.cluster.state import ClusterState
from aaml.kube.objects import wire
from aaml.kube.objects.convert import gpu_indices, node_from_json, pod_from_json, read_object
from aaml.kube.provision.binaries import minimum_go
from aaml.kube.provision.toolchain import find_go
from aaml.plugin.source import MODULE
from aaml.scheduling.observation import Context, ObservationSpec

AS_BUILT = ("-trimpath", "-buildvcs=false")
"""The flags of the plugin's build: with others Go would compile all of Kubernetes anew."""
_NOW_S = 1e7
_NODE_SIZES = (("2", "4Gi"), ("4", "8Gi"), ("4", "16Gi"), ("7910m", "31457280Ki"), ("64", "256G"), ("96", "768Gi"))
_POD_CPU = ("10m", "100m", "250m", "1", "2500m", "6")
_POD_MEMORY = ("16Mi", "128Mi", "200M", "1Gi", "3Gi", "12Gi")
_OWNERS = (("ReplicaSet", "web-5d4f8c7b9b"), ("Job", "sums"), ("StatefulSet", "db"), ("ReplicaSet", "api-66b6c48dd5"))


def go_test(*arguments: str, timeout_s: float = 600) -> subprocess.CompletedProcess[str]:
    """Run a go command in the plugin's module with the toolchain of its build."""
    go = find_go(minimum_go())
    return subprocess.run(
        [str(go.command), *arguments], cwd=MODULE, env=go.environment(os.environ), capture_output=True, text=True,
        timeout=timeout_s, check=False,
    )  # fmt: skip


class Plugin:
    """The plugin as a program that answers states."""

    def __init__(self, program: Path) -> None:
        self._process = subprocess.Popen(
            [program, "-test.run", "^TestAnswersStates$", "-test.timeout", "0"], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True, env=os.environ | {"AAML_PLUGIN_STATES": "1"},
        )  # fmt: skip

    @classmethod
    def built(cls, folder: Path) -> Self:
        """Compile it into a folder and start it."""
        program = folder / "plugin.test"
        done = go_test("test", *AS_BUILT, "-c", "-o", str(program), "./internal/aaml")
        assert done.returncode == 0, done.stdout + done.stderr
        return cls(program)

    def ask(self, state: dict[str, Any], weights: Sequence[Path]) -> list[dict[str, Any]]:
        """Return what it makes of a state by each weights file."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(state | {"weights": list(map(str, weights))}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line.startswith("["), line + self._process.stdout.read()
        return json.loads(line)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=30)


@dataclass(frozen=True)
class Seen:
    """A decision to make as Python reads it."""

    context: Context
    _by: list[Context] = field(default_factory=list)

    def by(self, spec: ObservationSpec) -> Context:
        """Return the same decision for a policy with another spec; what it shows is worked out once."""
        known = next((each for each in self._by if each.spec == spec), None)
        if known is None:
            known = replace(self.context, spec=spec)
            self._by.append(known)
        return known


def read(state: dict[str, Any]) -> Seen:
    """Read a state as the live scheduler reads the API's objects."""
    cluster = ClusterState(node_from_json(node) for node in state["nodes"])
    for pod in state["pods"]:
        devices = gpu_indices(read_object(pod, wire.PodObject, "pod"))
        cluster.upsert_pod(pod_from_json(pod), devices, since_s=_NOW_S - state["ages"][pod["metadata"]["uid"]])
    mask = np.isin(cluster.names, state["feasible"])
    waits = pod_from_json(state["pod"])
    return Seen(Context(cluster, waits, mask, queue_length=state["queue"], now_s=_NOW_S))


def random_state(rng: np.random.Generator, nodes: int) -> dict[str, Any]:
    """Return a cluster of nodes of several sizes with pods, and a pod that waits and may go on some of them."""
    made = [_node(rng, row) for row in range(nodes)]
    names = [node["metadata"]["name"] for node in made]
    pods = _fitting(made, [_pod(rng, f"p{i}", made[rng.integers(nodes)]) for i in range(rng.integers(6 * nodes + 1))])
    feasible = [name for name in names if rng.random() < rng.choice([0.3, 0.9])] or [names[rng.integers(nodes)]]
    return {
        "nodes": made,
        "pods": pods,
        "pod": _pod(rng, "waits"),
        "feasible": feasible,
        "queue": int(rng.choice([0, 3, 700])),
        "ages": {pod["metadata"]["uid"]: float(rng.choice([0.0, 1.0, 10 ** rng.uniform(0, 7)])) for pod in pods},
    }


def expected_pods(count: int) -> list[Pod]:
    """Return pods like those of random states."""
    rng = np.random.default_rng(0)
    return [pod_from_json(_pod(rng, f"e{i}")) for i in range(count)]


def _fitting(nodes: list[dict[str, Any]], pods: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the pods for which there is CPU and memory left on their nodes, in their order."""
    free = {node.name: dict(node.allocatable) for node in map(node_from_json, nodes)}
    fitting = []
    for each in pods:
        pod = pod_from_json(each)
        left = free[pod.node_name]
        if all(pod.request(resource) <= left[resource] for resource in ("cpu", "memory")):
            fitting.append(each)
            for resource in ("cpu", "memory"):
                left[resource] -= pod.request(resource)
    return fitting


def _node(rng: np.random.Generator, row: int) -> dict[str, Any]:
    cpu, memory = _NODE_SIZES[rng.integers(len(_NODE_SIZES))]
    amounts = {"cpu": cpu, "memory": memory, "pods": "110"}
    labels = {"node-role.kubernetes.io/control-plane": ""} if row and rng.random() < 0.05 else {}
    devices = int(rng.choice([0, 0, 0, 2, 8]))
    if devices:
        amounts |= {"nvidia.com/gpu": str(devices), "alibabacloud.com/gpu-count": str(devices)}
        amounts |= {"alibabacloud.com/gpu-milli": "1000"}
        if rng.random() < 0.8:
            label = rng.choice(["alibabacloud.com/gpu-card-model", "nvidia.com/gpu.product"])
            labels[str(label)] = str(rng.choice(["V100M16", "T4", "G3"]))
    return {
        "metadata": {"name": f"node-{row}", "labels": labels},
        "spec": {"unschedulable": True} if rng.random() < 0.05 else {},
        "status": {"allocatable": amounts, "capacity": amounts},
    }


def _pod(rng: np.random.Generator, name: str, node: dict[str, Any] | None = None) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": name, "namespace": "default", "uid": name, "annotations": {}}
    if rng.random() < 0.7:
        kind, owner = _OWNERS[rng.integers(len(_OWNERS))]
        reference = {"apiVersion": "apps/v1", "kind": kind, "name": owner, "uid": owner, "controller": True}
        metadata["ownerReferences"] = [reference]
    containers = [_container(rng, f"c{i}") for i in range(rng.integers(1, 3))]
    spec: dict[str, Any] = {"containers": containers}
    if rng.random() < 0.1:
        spec["activeDeadlineSeconds"] = int(rng.choice([30, 3600]))
    if rng.random() < 0.2:
        spec["initContainers"] = [_container(rng, "i0")]
        if rng.random() < 0.5:
            spec["initContainers"].append(_container(rng, "sidecar") | {"restartPolicy": "Always"})
    if rng.random() < 0.1:
        spec["overhead"] = {"cpu": "50m", "memory": "64Mi"}
    devices = 8 if node is None else int(node["status"]["allocatable"].get("nvidia.com/gpu", 0))
    if devices and rng.random() < 0.4:
        _ask_devices(rng, metadata["annotations"], containers[0], devices, placed=node is not None)
    if node is not None:
        spec["nodeName"] = node["metadata"]["name"]
    status = {"phase": "Running" if node else "Pending", "qosClass": str(rng.choice(["Burstable", "BestEffort"]))}
    return {"metadata": metadata, "spec": spec, "status": status}


def _ask_devices(
    rng: np.random.Generator, annotations: dict[str, str], container: dict[str, Any], devices: int, *, placed: bool
) -> None:
    """Ask for a share of a device, whose index is noted where the pod runs, or for whole devices."""
    if rng.random() < 0.5:
        container["resources"]["requests"]["nvidia.com/gpu"] = "1"
        container["resources"]["limits"] = {"nvidia.com/gpu": "1"}
        if not placed:
            return
        annotations["alibabacloud.com/gpu-index"] = str(rng.integers(devices))
        return
    count = int(rng.choice([2, devices])) if rng.random() < 0.2 else 1
    annotations["alibabacloud.com/gpu-milli"] = str(rng.choice([100, 250, 500, 1000]) if count == 1 else 1000)
    annotations["alibabacloud.com/gpu-count"] = str(count)
    if rng.random() < 0.2:
        annotations["alibabacloud.com/gpu-card-model"] = "V100M16|T4"
    if placed:
        taken = rng.permutation(devices)[:count]
        annotations["alibabacloud.com/gpu-index"] = "-".join(map(str, taken))


def _container(rng: np.random.Generator, name: str) -> dict[str, Any]:
    requests = {}
    if rng.random() < 0.9:
        requests["cpu"] = _POD_CPU[rng.integers(len(_POD_CPU))]
    if rng.random() < 0.9:
        requests["memory"] = _POD_MEMORY[rng.integers(len(_POD_MEMORY))]
    return {"name": name, "image": "pause", "resources": {"requests": requests}}
