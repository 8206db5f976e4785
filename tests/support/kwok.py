"""What live tests share: pods to submit, waits with a name, and the care of the session's cluster."""

import json
import os
import re
import time
from collections.abc import Callable
from typing import Any

import pytest

from aaml.kube.provision import Api, ApiError, KwokCluster, records


def pod(name: str, cpu: str = "100m", memory: str = "64Mi", **spec: Any) -> dict[str, Any]:
    """Return a pod with one container; `schedulerName`, `nodeSelector` and the like go into `spec`."""
    requests = {"requests": {"cpu": cpu, "memory": memory}}
    container = {"name": "main", "image": "registry.example/pause", "resources": requests}
    return {"metadata": {"name": name}, "spec": {"containers": [container], **spec}}


def pods(api: Api, namespace: str) -> list[dict[str, Any]]:
    """Return the pods of a namespace as the API server shows them."""
    return json.loads(api.send("GET", f"/api/v1/namespaces/{namespace}/pods"))["items"]


def answers(api: Api, path: str) -> bool:
    """Say whether an object is there and may be read."""
    try:
        api.send("GET", path)
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
    for name, component in cluster.components().items():
        if component.pid() is None:
            cluster.start_component(name)


def remove_leftovers() -> None:
    """Take down the clusters of test sessions that were killed before they could."""
    for name in records.names():
        match = re.fullmatch(r"(?:test|differential)-(\d+)", name)
        if match and not alive(int(match[1])):
            KwokCluster(name).down()


def alive(pid: int) -> bool:
    """Say whether a process of that id exists."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
