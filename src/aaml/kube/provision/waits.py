"""What a cluster is waited for: its API server, its first service account, and nodes on which pods may be placed."""

import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus

import msgspec

from aaml.cluster.objects import CONTROL_PLANE_LABEL
from aaml.errors import UserError
from aaml.kube.objects import wire
from aaml.kube.transport import NOT_FOUND, ApiError, Transport, Unreachable
from aaml.progress import progress_bar

_LOOK_EVERY_S = 0.1
_COUNT_EVERY_S = 1.0
_REST = 4.0  # times that a list of all nodes took: with thousands it keeps the API server from making them ready


def until(condition: Callable[[], bool], wait_s: float, unmet: str) -> None:
    """Wait until `condition` holds; raise `UserError` that says what is `unmet` when `wait_s` is over."""
    deadline = time.monotonic() + wait_s
    while not condition():
        if time.monotonic() >= deadline:
            raise UserError(f"wait_s: {unmet} in {wait_s:g} s; give it longer")
        time.sleep(_LOOK_EVERY_S)


def ready(api: Transport) -> bool:
    """Say whether the API server answers that it is ready to serve."""
    try:
        return api.request("GET", "/readyz") == b"ok"
    except (ApiError, Unreachable):
        return False


def says_ready(port: int) -> bool:
    """Say whether a program of this machine answers on its port for probes that it is ready."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5.0) as reply:
            return bool(reply.status == HTTPStatus.OK)
    except OSError:
        return False


def wait_ready(api: Transport, wait_s: float, check: Callable[[], None] = lambda: None) -> None:
    """Wait until the API server is ready; `check` is called before each question and may raise `UserError`."""

    def checked_and_ready() -> bool:
        check()
        return ready(api)

    until(checked_and_ready, wait_s, "the API server was not ready")


def wait_service_account(api: Transport, wait_s: float, namespace: str = "default") -> None:
    """Wait for a namespace's own service account: without it the API server takes no pod there."""

    def there() -> bool:
        try:
            api.request("GET", f"/api/v1/namespaces/{namespace}/serviceaccounts/default")
        except ApiError as error:
            if error.status != NOT_FOUND:
                raise
            return False
        return True

    with api.explained():
        until(there, wait_s, f"the service account of namespace {namespace} was not made")


class _NodeStatus(wire.NodeStatus):
    conditions: list[wire.Condition] | None = None


class _Node(wire.NodeObject):
    status: _NodeStatus = msgspec.field(default_factory=_NodeStatus)


@dataclass(frozen=True)
class NodeCount:
    """How many workers there are and on how many of them a pod without tolerations may be placed."""

    workers: int
    schedulable: int


def count_nodes(api: Transport) -> NodeCount:
    """Count the workers, which are every node but control planes, with one request.

    Raises `UserError` when the API server does not answer.
    """
    with api.explained():
        answer = api.request("GET", "/api/v1/nodes", query={"resourceVersion": "0"})
    nodes = msgspec.json.decode(answer, type=wire.ListOf[_Node]).items or ()
    workers = [node for node in nodes if CONTROL_PLANE_LABEL not in (node.metadata.labels or {})]
    return NodeCount(len(workers), sum(map(_schedulable, workers)))


def _schedulable(node: _Node) -> bool:
    is_ready = any(each.type == "Ready" and each.status == "True" for each in node.status.conditions or ())
    return is_ready and not node.spec.taints and not node.spec.unschedulable


def wait_schedulable(api: Transport, count: int, *, wait_s: float, progress: bool = True) -> None:
    """Wait until `count` workers are Ready and without taints.

    Raises `UserError` when no further one has become so in `wait_s` seconds: thousands of nodes take minutes.
    """
    most, deadline = 0, time.monotonic() + wait_s
    with progress_bar("nodes ready", count, "node", enabled=progress) as bar:
        while True:
            asked_s = time.monotonic()
            found = count_nodes(api).schedulable
            took_s = time.monotonic() - asked_s
            bar.update(min(found, count) - bar.n)
            if found >= count:
                return
            if found > most:
                most, deadline = found, time.monotonic() + wait_s
            if time.monotonic() >= deadline:
                raise UserError(
                    f"wait_s: {found} of {count} nodes became schedulable, and no more in {wait_s:g} s; give it longer"
                )
            time.sleep(max(_COUNT_EVERY_S, _REST * took_s))
