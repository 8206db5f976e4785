"""The pods of a run and their fate, by the API server's own objects and not by the scheduler's word."""

import json
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from aaml.cluster.fleet import NodeShape
from aaml.cluster.quantity import CPU, MEMORY, PODS, amount
from aaml.kube.objects import wire
from aaml.kube.objects.manifest import IMAGE
from aaml.kube.reflector import Changes, Reflector, Source, Trouble
from aaml.kube.transport import CONFLICT, NOT_FOUND, ApiError, Transport, Unreachable, allowing
from aaml.threads import ThreadError, ThreadPool

SHAPES = ((50, 64), (100, 128), (200, 512), (400, 256))
"""Milli-cores and MiB of the pods, in turn."""
_MEAN_CPU_MILLI, _MEAN_MEMORY_MIB = (sum(each) / len(SHAPES) for each in zip(*SHAPES, strict=True))
_FILLED = 0.6  # share of the cluster that all pods take
_AT_ONCE = 16
_PATIENCE_S = 120.0
_BUSY, _SERVER_ERROR = 429, 500


def shape_for(pods: int, nodes: int) -> NodeShape:
    """Return nodes that so many pods fill by three fifths: nearly all are needed when some of them are taken away."""
    cpu_milli = int(pods * _MEAN_CPU_MILLI / nodes / _FILLED) + max(cpu for cpu, _ in SHAPES)
    memory_mib = int(pods * _MEAN_MEMORY_MIB / nodes / _FILLED) + max(memory for _, memory in SHAPES)
    return NodeShape(cpu=f"{cpu_milli}m", memory=f"{memory_mib}Mi", pods=max(110, 3 * pods // nodes))


def manifest(index: int, scheduler: str) -> dict[str, Any]:
    """Return a pod that ends at once when it is deleted."""
    cpu, memory = SHAPES[index % len(SHAPES)]
    requests = {"requests": {CPU: f"{cpu}m", MEMORY: f"{memory}Mi"}}
    return {
        "metadata": {"name": f"p-{index}", "labels": {"app": f"web-{index // 20}"}},
        "spec": {
            "schedulerName": scheduler, "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "main", "image": IMAGE, "resources": requests}],
        },
    }  # fmt: skip


def ask(api: Transport, method: str, path: str, body: dict[str, Any] | None = None, **query: str) -> bytes:
    """Send a request, again and again for two minutes while the API server is away or too busy to answer in time.

    Raises what the last try did.
    """
    deadline_s = time.monotonic() + _PATIENCE_S
    while True:
        try:
            return api.request(method, path, body, query=query, timeout_s=60.0)
        except (ApiError, Unreachable) as error:
            refused = isinstance(error, ApiError) and error.status < _SERVER_ERROR and error.status != _BUSY
            if refused or time.monotonic() > deadline_s:
                raise
        time.sleep(0.2)


class ChaosWorkload:
    """Pods that are created one after the other in a namespace of their own, watched past the proxy and the scheduler.

    `create` returns when all are created, whatever the API server does meanwhile.
    """

    def __init__(self, api: Transport, namespace: str, scheduler: str) -> None:
        self._api, self.namespace, self._scheduler = api, namespace, scheduler
        self.path = f"/api/v1/namespaces/{namespace}/pods"
        self.created = 0
        self.doubled: set[str] = set()
        """Pods that were seen on a second node."""
        self._bound: dict[str, tuple[str, float]] = {}  # uid -> node and when it was seen there
        self._sent_s: dict[str, float] = {}
        self._latencies: list[float] = []
        self._stopped = threading.Event()
        self._broken: ThreadError | None = None
        source: Source[wire.PodObject] = Source(
            "pods of chaos", self.path, wire.PodObject, lambda raw: raw,
            key=lambda raw: raw.metadata.name, version=lambda raw: raw.metadata.resource_version,
        )  # fmt: skip
        self._reflector = Reflector(api, source, self._take)
        self._reflector.start()

    def create(self, indices: Iterable[int]) -> None:
        """Create pods, several at once, trying again while the API server is away."""
        with ThreadPool(_AT_ONCE, "chaos") as pool:
            list(pool.map(self._create, indices))

    def bound(self) -> int:
        """Return how many pods were seen on a node so far."""
        return len(self._bound)

    def first_bind_after(self, moment_s: float) -> float | None:
        """Return when the first bind after a moment was seen, None while there is none; monotonic seconds."""
        return min((seen_s for _, seen_s in list(self._bound.values()) if seen_s > moment_s), default=None)

    def take_latencies(self) -> list[float]:
        """Return the seconds from creation to bind of the pods that were bound since the last call."""
        taken, self._latencies = self._latencies, []
        return taken

    def pods(self) -> list[dict[str, Any]]:
        """Return the pods as the API server shows them now. Raises what has ended the watching."""
        self.check()
        found: list[dict[str, Any]] = json.loads(ask(self._api, "GET", self.path))["items"]
        return found

    def delete(self, names: Sequence[str]) -> None:
        """Delete pods at once, as a person does with `kubectl delete --force`."""
        with ThreadPool(_AT_ONCE, "chaos") as pool:
            list(pool.map(self._delete, names))

    def check(self) -> None:
        """Raise what has ended the watching, if anything has."""
        if self._broken is not None:
            raise self._broken

    def close(self) -> None:
        """Stop watching, and delete every pod and the namespace."""
        self._stopped.set()
        self._reflector.stop()
        self._reflector.join(5.0)
        ask(self._api, "DELETE", self.path, gracePeriodSeconds="0")
        ask(self._api, "DELETE", f"/api/v1/namespaces/{self.namespace}")

    def _create(self, index: int) -> None:
        self._sent_s[f"p-{index}"] = time.monotonic()
        if self._stopped.is_set():
            return
        with allowing(CONFLICT):  # an answer was lost: it is there
            ask(self._api, "POST", self.path, manifest(index, self._scheduler))
        self.created += 1

    def _delete(self, name: str) -> None:
        with allowing(NOT_FOUND):
            ask(self._api, "DELETE", f"{self.path}/{name}", gracePeriodSeconds="0")

    def _take(self, changes: Changes[wire.PodObject] | Trouble | ThreadError) -> None:
        if isinstance(changes, ThreadError):
            self._broken = changes
        if not isinstance(changes, Changes):
            return
        now_s = time.monotonic()
        for delta in changes.deltas:
            (uid, name), node = (delta.obj.metadata.uid, delta.obj.metadata.name), delta.obj.spec.node_name
            if not node:
                continue
            if self._bound.setdefault(uid, (node, now_s))[0] != node:
                self.doubled.add(name)
            if (sent_s := self._sent_s.pop(name, None)) is not None:
                self._latencies.append(now_s - sent_s)


@dataclass(frozen=True)
class ClusterVerdict:
    """What the API server's objects show: pods without a node, pods seen on two, nodes over their allocatable."""

    pods: int
    lost: int
    doubled: int
    overfull: tuple[str, ...]


def check_cluster(api: Transport, workload: ChaosWorkload) -> ClusterVerdict:
    """Check every pod and node. Pods of all namespaces count for the use of a node."""
    ours = workload.pods()
    everything = json.loads(ask(api, "GET", "/api/v1/pods"))["items"]
    nodes = json.loads(ask(api, "GET", "/api/v1/nodes"))["items"]
    return ClusterVerdict(
        pods=len(ours),
        lost=sum(not pod["spec"].get("nodeName") for pod in ours),
        doubled=len(workload.doubled),
        overfull=tuple(overfull(nodes, everything)),
    )


def overfull(nodes: Iterable[dict[str, Any]], pods: Iterable[dict[str, Any]]) -> list[str]:
    """Return the names of nodes whose unfinished pods request more than the node's allocatable."""
    used: dict[str, dict[str, int]] = {}
    for pod in pods:
        if pod.get("status", {}).get("phase") in {"Succeeded", "Failed"}:
            continue
        sums = used.setdefault(pod["spec"].get("nodeName", ""), {CPU: 0, MEMORY: 0, PODS: 0})
        sums[PODS] += 1
        for container in pod["spec"]["containers"]:
            for name, quantity in container.get("resources", {}).get("requests", {}).items():
                if name in sums:
                    sums[name] += amount(name, quantity)
    over = []
    for node in nodes:
        name, allocatable = node["metadata"]["name"], node["status"].get("allocatable", {})
        if any(taken > amount(each, allocatable.get(each, "0")) for each, taken in used.get(name, {}).items()):
            over.append(name)
    return over
