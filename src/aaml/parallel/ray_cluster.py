"""Workers that are actors of a Ray cluster.

A node of the cluster needs this package and Ray in the same versions, and every file that a job names (models, a policy
of one's own) at the same path.
"""

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aaml.errors import bad_value
from aaml.extras import lazily
from aaml.parallel.worker import Desk, WorkerLostError

if TYPE_CHECKING:
    import ray
else:  # an extra
    ray = lazily("ray")

_CONNECT_S = 10.0


class RayWorker:
    """One actor. `cpus` are what it waits for: 0 shares one, for a lost node may leave none free."""

    def __init__(self, ray: Any, target: Callable[..., Any], cpus: int) -> None:
        self._ray = ray
        self._actor = ray.remote(num_cpus=cpus, scheduling_strategy="SPREAD")(Desk).remote(str(Path.cwd()), target)
        self.answer: Any = None

    def send(self, request: bytes) -> None:
        """Ask without waiting."""
        self.answer = self._actor.answer.remote(request)

    def receive(self) -> bytes:
        """Return the answer to what was sent."""
        try:
            return bytes(self._ray.get(self.answer))
        except (self._ray.exceptions.RayActorError, self._ray.exceptions.ObjectLostError) as error:
            raise WorkerLostError(str(error).partition("\n")[0]) from error

    def close(self) -> None:
        """End the actor."""
        self._ray.kill(self._actor)


class RayHost:
    """A cluster, for as many actors at once as it has CPUs."""

    def __init__(self, ray: Any) -> None:
        self.size = max(1, int(ray.cluster_resources().get("CPU", 1)))
        self._ray = ray

    def start(self, target: Callable[..., Any], *, replaces: bool = False) -> RayWorker:
        """Start an actor."""
        return RayWorker(self._ray, target, cpus=0 if replaces else 1)

    def wait(self, workers: Sequence[RayWorker], timeout_s: float) -> Sequence[RayWorker]:
        """Wait for answers; an actor that died counts as one."""
        ready, _ = self._ray.wait([worker.answer for worker in workers], num_returns=1, timeout=timeout_s)
        return [worker for worker in workers if worker.answer in ready]


@contextmanager
def open_ray(address: str) -> Iterator[Any]:
    """Connect to a Ray cluster, "local" for one of this machine alone that ends with the block; yields the module.

    A connection that is there already is used and left open. Raises `UserError` without Ray or its cluster.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if address == "local":
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # elsewhere too: listens on loopback alone
    if ray.is_initialized():
        yield ray
        return
    terminate = signal.getsignal(signal.SIGTERM)
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    try:
        if address == "local":
            options["include_dashboard"] = False
        elif address != "auto":  # what RAY_ADDRESS may say
            host, _, port = address.rpartition(":")
            socket.create_connection((host, int(port)), timeout=_CONNECT_S).close()  # Ray itself tries for minutes
        ray.init(address=address, **options)
    except Exception as error:  # Ray raises bare ones when its own processes do not start in time
        reason = str(error).strip().partition("\n")[0]
        accepted = f"the address of a Ray cluster that this machine is a node of ({reason})"
        raise bad_value("workers", f"ray:{address}", accepted) from error
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, terminate)  # Ray takes it for itself
    try:
        yield ray
    finally:
        ray.shutdown()
