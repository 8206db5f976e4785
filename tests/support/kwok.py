"""What live tests share: pods to submit, waits with a name, and the repair of the session's cluster."""

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from aaml.kube.provision import KwokCluster
from aaml.kube.transport import ApiError, Transport


def pod(name: str, cpu: str = "100m", memory: str = "64Mi", **spec: Any) -> dict[str, Any]:
    """Return a pod with one container; `schedulerName`, `nodeSelector` and the like go into `spec`."""
    requests = {"requests": {"cpu": cpu, "memory": memory}}
    container = {"name": "main", "image": "registry.example/pause", "resources": requests}
    return {"metadata": {"name": name}, "spec": {"containers": [container], **spec}}


def pods(api: Transport, namespace: str) -> list[dict[str, Any]]:
    """Return the pods of a namespace as the API server shows them."""
    return json.loads(api.request("GET", f"/api/v1/namespaces/{namespace}/pods"))["items"]


def answers(api: Transport, path: str) -> bool:
    """Say whether an object is there and may be read."""
    try:
        api.request("GET", path)
    except ApiError:
        return False
    return True


def until(condition: Callable[[], Any], what: str, wait_s: float = 60.0) -> None:
    """Wait for a condition; fail with its name when it does not come true."""
    deadline = time.monotonic() + wait_s
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"{what}: not seen in {wait_s:g} s")
        time.sleep(0.05)


def heal(cluster: KwokCluster) -> None:
    """Start again what a failed test left stopped."""
    if not cluster.running():
        cluster.start_stopped()
