"""KWOK nodes: their manifests, many created at once, and the wait until pods may be placed on them."""

import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import msgspec
from tqdm import tqdm

from aaml.cluster.quantity import amount
from aaml.errors import UserError, bad_value
from aaml.kube.provision.api import REQUESTS_IN_FLIGHT, Api, ApiError

CONTROL_PLANE = "kwok-ctl-node-0"
CONTROL_PLANE_LABEL = "node-role.kubernetes.io/control-plane"
WORKER_PREFIX = "kwok-std-node-"
_FAKE = "kwok.x-k8s.io/node"  # KWOK's controller plays the kubelet of every node with this annotation
_GPU_COUNT, _GPU_MILLI = "alibabacloud.com/gpu-count", "alibabacloud.com/gpu-milli"  # GPU sharing of the openb trace
_GPU_MODEL = "alibabacloud.com/gpu-card-model"
_MILLI_A_GPU = 1000
_LOOK_EVERY_S = 1.0
_CONFLICT = 409


@dataclass(frozen=True)
class NodeShape:
    """What a node offers: Kubernetes quantities, a number of pods, labels, and GPUs of one model."""

    cpu: str = "64"
    memory: str = "256Gi"
    pods: int = 110
    labels: Mapping[str, str] = field(default_factory=dict)
    gpus: int = 0
    gpu_model: str = ""

    def checked(self) -> "NodeShape":
        """Return itself; raise `UserError` for a shape that the API server would refuse or that can run nothing."""
        for name, text in (("cpu", self.cpu), ("memory", self.memory)):
            if amount(name, text) <= 0:
                raise bad_value(name, text, "an amount above 0")
        if self.pods < 1:
            raise bad_value("pods", self.pods, "1 or more")
        if self.gpus < 0:
            raise bad_value("gpus", self.gpus, "0 or more")
        if self.gpu_model and not self.gpus:
            raise bad_value("gpu_model", self.gpu_model, "a model only together with gpus of 1 or more")
        return self


def node_manifest(name: str, shape: NodeShape, *, control_plane: bool = False) -> dict[str, Any]:
    """Return the JSON of one KWOK node; GPUs are offered whole (nvidia.com/gpu) and in thousandths, as in openb."""
    labels = {
        "type": "kwok",
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        "beta.kubernetes.io/os": "linux",
        "beta.kubernetes.io/arch": "amd64",
        "kubernetes.io/role": "control-plane" if control_plane else "agent",
        CONTROL_PLANE_LABEL if control_plane else "node-role.kubernetes.io/agent": "",
        **shape.labels,
    }
    amounts = {"cpu": shape.cpu, "memory": shape.memory, "pods": str(shape.pods)}
    if shape.gpus:
        whole = str(shape.gpus)
        amounts |= {_GPU_COUNT: whole, _GPU_MILLI: str(_MILLI_A_GPU), "nvidia.com/gpu": whole}
        if shape.gpu_model:
            labels[_GPU_MODEL] = shape.gpu_model
    taints = [{"key": CONTROL_PLANE_LABEL, "effect": "NoSchedule"}] if control_plane else []
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": labels,
            "annotations": {_FAKE: "fake", "node.alpha.kubernetes.io/ttl": "0"},
        },
        "spec": {"taints": taints},
        "status": {"allocatable": amounts, "capacity": amounts, "phase": "Running"},
    }


def standard_nodes(count: int, shape: NodeShape | None = None) -> list[dict[str, Any]]:
    """Return the manifests of one tainted control plane and of `count` workers kwok-std-node-0, -1, ..."""
    if count < 1:
        raise bad_value("nodes", count, "1 or more")
    shape = (shape or NodeShape()).checked()
    workers = [node_manifest(f"{WORKER_PREFIX}{index}", shape) for index in range(count)]
    return [node_manifest(CONTROL_PLANE, NodeShape(), control_plane=True), *workers]


def create_nodes(api: Api, manifests: Sequence[Mapping[str, Any]], *, progress: bool = True) -> int:
    """Create the nodes, several at once, and return how many are new; those that are there already stay as they are.

    Raises `UserError` with the API server's reason at the first node that it refuses.
    """

    def create(manifest: Mapping[str, Any]) -> bool:
        try:
            api.send("POST", "/api/v1/nodes", manifest)
        except ApiError as error:
            if error.status == _CONFLICT:
                return False
            raise UserError(f"node {manifest['metadata']['name']}: {error.message}") from error
        return True

    with ThreadPoolExecutor(REQUESTS_IN_FLIGHT) as pool:
        answers = pool.map(create, manifests)
        bar = tqdm(answers, "create nodes", len(manifests), unit="node", disable=not progress, dynamic_ncols=True)
        try:
            return sum(bar)
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise


class _Taint(msgspec.Struct):
    key: str


class _Condition(msgspec.Struct):
    type: str
    status: str


class _Spec(msgspec.Struct):
    taints: list[_Taint] = []
    unschedulable: bool = False


class _Status(msgspec.Struct):
    conditions: list[_Condition] = []


class _Metadata(msgspec.Struct):
    name: str
    labels: dict[str, str] = {}


class _Node(msgspec.Struct):
    metadata: _Metadata
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Status = msgspec.field(default_factory=_Status)


class _NodeList(msgspec.Struct):
    items: list[_Node]


@dataclass(frozen=True)
class NodeCount:
    """How many workers there are and on how many of them a pod without tolerations may be placed."""

    workers: int
    schedulable: int


def count_nodes(api: Api) -> NodeCount:
    """Count the workers (every node but control planes) with one request."""
    nodes = msgspec.json.decode(api.send("GET", "/api/v1/nodes?resourceVersion=0"), type=_NodeList).items
    workers = [node for node in nodes if CONTROL_PLANE_LABEL not in node.metadata.labels]
    return NodeCount(len(workers), sum(map(_schedulable, workers)))


def _schedulable(node: _Node) -> bool:
    ready = any(condition.type == "Ready" and condition.status == "True" for condition in node.status.conditions)
    return ready and not node.spec.taints and not node.spec.unschedulable


def wait_schedulable(api: Api, count: int, *, wait_s: float, progress: bool = True) -> None:
    """Wait until `count` workers are Ready and without taints; raise `UserError` when `wait_s` is over."""
    deadline = time.monotonic() + wait_s
    with tqdm(desc="nodes ready", total=count, unit="node", disable=not progress, dynamic_ncols=True) as bar:
        while True:
            ready = count_nodes(api).schedulable
            bar.update(min(ready, count) - bar.n)
            if ready >= count:
                return
            if time.monotonic() >= deadline:
                raise UserError(f"wait_s: {ready} of {count} nodes became schedulable in {wait_s:g} s; give it longer")
            time.sleep(_LOOK_EVERY_S)


def parse_labels(texts: Iterable[str]) -> dict[str, str]:
    """Return {"zone": "a"} for ["zone=a"]; raise `UserError` for anything else."""
    labels: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise bad_value("labels", text, "key=value")
        labels[key] = value
    return labels
