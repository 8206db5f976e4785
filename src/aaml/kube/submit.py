"""A workload's way onto a Kubernetes cluster: real Deployments, watched until their pods have nodes."""

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from aaml.cluster.quantity import CPU, MEMORY, format_bytes, format_cpu
from aaml.errors import UserError
from aaml.kube import rights
from aaml.kube.objects.manifest import IMAGE, gpu_annotations
from aaml.kube.transport import CONFLICT, ApiError, Unreachable
from aaml.kube.watcher import ClusterWatch
from aaml.threads import ThreadPool
from aaml.workload.deployments import Deployment
from aaml.workload.player import Load

log = logging.getLogger(__name__)

MANAGED_BY = "app.kubernetes.io/managed-by"
MANAGER = "aaml"
_APP = "app"
_CREATED_AT_ONCE = 8
_PATIENCE_S = 60.0  # for an API server that is away
_GONE_S = 300.0


class KubeSink:
    """What a workload player needs of a Kubernetes cluster (see `aaml.workload.player.Sink`)."""

    def __init__(self, watch: ClusterWatch, scheduler_name: str, namespace: str = "default") -> None:
        self._watch = watch
        self._scheduler_name = scheduler_name
        self._namespace = namespace
        self._wanted: dict[str, int] = {}
        self._interrupted = threading.Event()
        self._pool = ThreadPool(_CREATED_AT_ONCE, "submit")

    @classmethod
    def connect(cls, scheduler_name: str, *, kubeconfig: Path | None = None, namespace: str = "default") -> "KubeSink":
        """Connect and wait for the first lists; raises `UserError` when there is no cluster or no permission."""
        watch = ClusterWatch.connect(kubeconfig)
        try:
            rights.check(watch.transport, rights.within(rights.SIMULATE, namespace))
        except BaseException:
            watch.close()
            raise
        return cls(watch, scheduler_name, namespace)

    def now_s(self) -> float:
        """Monotonic seconds."""
        return time.monotonic()

    def create(self, deployments: Sequence[Deployment]) -> None:
        """Create deployments, several at a time; raises `UserError` with the reason for the first that is refused."""
        for _ in self._pool.map(self._create, deployments):
            pass

    def delete(self, names: Sequence[str]) -> None:
        """Delete deployments and wait until their pods are gone.

        Their ReplicaSets and pods are deleted by their labels too, instead of waiting for the garbage collector.
        """
        selector = {"labelSelector": f"{MANAGED_BY}={MANAGER},{_APP} in ({','.join(names)})"}
        for path in (f"/apis/apps/v1/{{}}/{kind}" for kind in ("deployments", "replicasets")):
            self._delete_all(path.format(f"namespaces/{self._namespace}"), selector)
        pods_path = f"/api/v1/namespaces/{self._namespace}/pods"
        deadline_s = time.monotonic() + _GONE_S
        gone = set(names)
        while True:
            self._delete_all(pods_path, {**selector, "gracePeriodSeconds": "0"})
            if self._watch.pump_until(lambda: self._interrupted.is_set() or not self._pods_of(gone), 2.0):
                break
            if time.monotonic() > deadline_s:
                raise UserError(f"pods of {', '.join(names)} are still there {_GONE_S:g} s after they were deleted")
        for name in names:
            self._wanted.pop(name, None)

    def wait_placed(self, names: Sequence[str], timeout_s: float) -> Mapping[str, int]:
        """Wait until every pod of these has a node; returns how many have none, by deployment."""
        waiting: dict[str, int] = {}

        def done() -> bool:
            placed = self._pods_of(set(names), placed=True)
            waiting.clear()
            waiting.update({name: self._wanted[name] - placed.get(name, 0) for name in names})
            return self._interrupted.is_set() or not any(count > 0 for count in waiting.values())

        self._watch.pump_until(done, timeout_s)
        return {name: count for name, count in waiting.items() if count > 0}

    def sleep(self, duration_s: float) -> None:
        """Wait, taking in what happens."""
        self._watch.pump_until(self._interrupted.is_set, duration_s)

    def load(self) -> Load:
        """Return how full the cluster is."""
        self._watch.pump(0.0)
        return Load.of(self._watch.state)

    def interrupt(self) -> None:
        """Make waits return at once."""
        self._interrupted.set()
        self._watch.wake()

    def close(self) -> None:
        """Stop watching."""
        self._pool.shutdown()
        self._watch.close()

    # ---- inside ------------------------------------------------------------------------------------------------------

    def _pods_of(self, names: set[str], *, placed: bool = False) -> dict[str, int]:
        """Count the pods that are there, or those with a node, by deployment."""
        counts: dict[str, int] = {}
        for pod in self._watch.pods.values():
            name = pod.labels.get(_APP, "")
            if name in names and pod.namespace == self._namespace and (pod.node_name or not placed):
                counts[name] = counts.get(name, 0) + 1
        return counts

    def _create(self, deployment: Deployment) -> None:
        body = manifest(deployment, self._scheduler_name)
        path = f"/apis/apps/v1/namespaces/{self._namespace}/deployments"
        deadline_s, doubtful = time.monotonic() + _PATIENCE_S, False
        while True:
            try:
                self._watch.transport.request("POST", path, body)
            except Unreachable as error:
                doubtful = True
                if time.monotonic() > deadline_s or self._interrupted.wait(1.0):
                    raise self._watch.transport.explain(error) from error
                log.warning("deployment %s: %s; trying again", deployment.name, error)
                continue
            except ApiError as error:
                if error.status != CONFLICT or not doubtful:  # else the lost answer was a yes
                    raise _refused(deployment.name, error) from error
            self._wanted[deployment.name] = deployment.pod_count
            return

    def _delete_all(self, path: str, query: Mapping[str, str]) -> None:
        with self._watch.transport.explained():
            self._watch.transport.request("DELETE", path, query=query)


def _refused(name: str, error: ApiError) -> UserError:
    if error.status == CONFLICT:
        return UserError(f"deployment {name!r} is on the cluster already: delete it first (`aaml cluster clean`)")
    return UserError(f"deployment {name!r} is refused by the API server: {error.message or error}")


def manifest(deployment: Deployment, scheduler_name: str) -> dict[str, Any]:
    """Return the Deployment object; its pods end at once when deleted."""
    labels = {_APP: deployment.name, MANAGED_BY: MANAGER}
    limits: dict[str, str] = {}
    if deployment.cpu_limit_milli:
        limits[CPU] = format_cpu(deployment.cpu_limit_milli)
    if deployment.memory_limit_bytes:
        limits[MEMORY] = format_bytes(deployment.memory_limit_bytes)
    requests = {CPU: format_cpu(deployment.cpu_milli), MEMORY: format_bytes(deployment.memory_bytes)}
    container = {"name": "main", "image": IMAGE, "resources": {"requests": requests, "limits": limits}}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": deployment.name, "labels": labels},
        "spec": {
            "replicas": deployment.pod_count,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels, "annotations": gpu_annotations(deployment.gpu)},
                "spec": {
                    "schedulerName": scheduler_name,
                    "terminationGracePeriodSeconds": 0,
                    "containers": [container],
                },
            },
        },
    }
