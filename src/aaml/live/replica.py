"""One process among replicas: leader election by a Lease, and the probes of its health."""

import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TypeVar

from aaml.errors import bad_value
from aaml.kube import rights
from aaml.kube.lease import LeaderLease, LeaseOptions, process_prefix
from aaml.kube.transport import Transport
from aaml.live.settings import ReplicaSettings
from aaml.serve.gate import names_of
from aaml.serve.health import HealthServer, create_probe_app

_LOG = logging.getLogger("aaml")
_STUCK_S = 120.0  # longer than an update of any network, and than the first lists of a large cluster


def check(options: ReplicaSettings) -> None:
    """Raise `UserError` for times with which no replica leads, or two do."""
    if not 0 < options.retry_period_s < options.renew_deadline_s < options.lease_duration_s:
        times = f"{options.retry_period_s:g}, {options.renew_deadline_s:g}, {options.lease_duration_s:g}"
        raise bad_value("retry-period-s, renew-deadline-s, lease-duration-s", times, "each greater than the one before")
    if options.lease_duration_s < 1 or options.lease_duration_s != int(options.lease_duration_s):
        raise bad_value("lease-duration-s", options.lease_duration_s, "whole seconds: a Lease holds no fraction")


class Replica:
    """Leader election and health of one process.

    `stop` is called, from another thread, when the lease is lost. `awaits` says what the process waits for before it
    is ready.
    """

    def __init__(self, stop: Callable[[], None], lease: LeaderLease | None, awaits: str) -> None:
        self._stop, self._lease, self._awaits = stop, lease, awaits
        self._beat_s: float | None = None
        self.leads = lease is None
        self.lost = False

    # ---- for the loop ------------------------------------------------------------------------------------------------

    def acquire(self, stopped: Callable[[], bool]) -> bool:
        """Wait until this process leads, at once without leader election; False when it was stopped before that."""
        if self._lease is not None and not self._lease.acquire(stopped, self._on_lost):
            return False
        self.leads = True
        self._beat_s = time.monotonic()
        return not stopped()

    @property
    def holds_lease(self) -> bool:
        """Whether this process may write. Check before each write: a process that was suspended may have lost it."""
        return self._lease is None or self._lease.holds

    def tell(self, annotation: str, text: Callable[[], str]) -> None:
        """Let the lease have an annotation with what `text` returns at each renewal."""
        if self._lease is not None:
            self._lease.annotation, self._lease.tell = annotation, text

    def set_ready(self) -> None:
        """Nothing is missing any more: the readiness probe succeeds."""
        self._awaits = ""

    def on_turn(self) -> None:
        """Note that the loop turns, for the liveness probe."""
        self._beat_s = time.monotonic()

    # ---- for the probes ----------------------------------------------------------------------------------------------

    def healthy(self) -> str:
        """Return what is wrong with the process, "" where nothing is."""
        if self.lost:
            return "the lease was lost"
        if self._beat_s is not None and time.monotonic() - self._beat_s > _STUCK_S:
            return f"the loop has not turned for {time.monotonic() - self._beat_s:.0f} s"
        return ""

    def ready(self) -> str:
        """Return why the process is not ready, "" where it is. A standby is ready: it can take over."""
        return (self._awaits if self.leads else "") or self.healthy()

    def _on_lost(self) -> None:
        self.lost, self.leads = True, False
        self._revoke()
        self._stop()

    def _revoke(self) -> None:
        """Drop the writes that wait to be sent: another replica is about to lead."""


S = TypeVar("S", bound=Replica)


@contextmanager
def run_replica(
    options: ReplicaSettings, make: Callable[[LeaderLease | None], S], metrics: Callable[[], bytes], *,
    kubeconfig: Path | None, granted_by: str,
) -> Iterator[S]:  # fmt: skip
    """Answer probes while the block lasts, and release the lease at its end; `make(lease)` returns the replica.

    `granted_by` is the folder of deploy/kubernetes with the right to the lease. Raises `UserError` for bad options.
    """
    check(options)
    with ExitStack() as stack:
        lease = None
        if options.leader_elect:
            lease = _lease(options, kubeconfig, granted_by)
            stack.callback(lease.release)
        replica = make(lease)
        if options.health_port:
            app = create_probe_app(metrics, replica.healthy, replica.ready, names_of(options.health_host))
            server = stack.enter_context(HealthServer(options.health_host, options.health_port, app))
            _LOG.info("probes and metrics on http://%s:%d", options.health_host, server.port)
        yield replica


def _lease(options: ReplicaSettings, kubeconfig: Path | None, granted_by: str) -> LeaderLease:
    # A renewal that hangs must fail while there is time for another.
    transport = Transport(kubeconfig, connections=2, timeout_s=max(1.0, options.renew_deadline_s / 2))
    rights.check(transport, rights.lease(options.lease_namespace, options.lease_name), granted_by)
    settings = LeaseOptions(
        options.lease_name, options.lease_namespace, options.lease_duration_s, options.renew_deadline_s,
        options.retry_period_s,
    )  # fmt: skip
    return LeaderLease(transport, process_prefix(os.getpid()) + os.urandom(4).hex(), settings)
