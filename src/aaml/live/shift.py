"""A process among replicas: leadership by a Lease, and probes of whether it does its part."""

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
from aaml.live.settings import DutySettings
from aaml.serve.gate import names_of
from aaml.serve.health import Exposed, HealthServer, create_probe_app

_LOG = logging.getLogger("aaml")
_STUCK_S = 120.0  # longer than an update of any network, and than the first lists of a large cluster


def check(options: DutySettings) -> None:
    """Raise `UserError` for times that elect nobody, or two."""
    if not 0 < options.retry_period_s < options.renew_deadline_s < options.lease_duration_s:
        times = f"{options.retry_period_s:g}, {options.renew_deadline_s:g}, {options.lease_duration_s:g}"
        raise bad_value("retry-period-s, renew-deadline-s, lease-duration-s", times, "each greater than the one before")
    if options.lease_duration_s < 1 or options.lease_duration_s != int(options.lease_duration_s):
        raise bad_value("lease-duration-s", options.lease_duration_s, "whole seconds: a Lease holds no fraction")


class Shift:
    """One process: waits for the lease, knows whether it still leads and whether its loop turns.

    `stop` is called, from another thread, when the lease is lost. `awaits`: what it needs before it can do its part.
    """

    def __init__(self, stop: Callable[[], None], lease: LeaderLease | None, awaits: str) -> None:
        self._stop, self._lease, self._awaits = stop, lease, awaits
        self._beat_s: float | None = None
        self.leads = lease is None
        self.lost = False

    # ---- what the owner of the loop calls ----------------------------------------------------------------------------

    def acquire(self, stopped: Callable[[], bool]) -> bool:
        """Wait until this process decides: at once without leader election, False when it was stopped before."""
        if self._lease is not None and not self._lease.acquire(stopped, self._on_lost):
            return False
        self.leads = True
        self._beat_s = time.monotonic()
        return not stopped()

    @property
    def holds(self) -> bool:
        """Whether this process may write: asked before each write, for one that stood still may have lost its lease."""
        return self._lease is None or self._lease.holds

    def decides(self) -> None:
        """All that it needs is there."""
        self._awaits = ""

    def on_turn(self) -> None:
        """Note that the scheduling loop goes on, for the probe of liveness."""
        self._beat_s = time.monotonic()

    # ---- what the probes ask -----------------------------------------------------------------------------------------

    def healthy(self) -> str:
        """Return what is wrong with the process, "" when nothing is."""
        if self.lost:
            return "the lease was lost"
        if self._beat_s is not None and time.monotonic() - self._beat_s > _STUCK_S:
            return f"the loop has not turned for {time.monotonic() - self._beat_s:.0f} s"
        return ""

    def ready(self) -> str:
        """Return why the process cannot do its part. One that stands by is ready: it can take over."""
        return (self._awaits if self.leads else "") or self.healthy()

    def _on_lost(self) -> None:
        self.lost, self.leads = True, False
        self._revoke()
        self._stop()

    def _revoke(self) -> None:
        """Keep what waits to be written from being sent: soon another replica decides."""


S = TypeVar("S", bound=Shift)


@contextmanager
def on_shift(
    options: DutySettings, make: Callable[[LeaderLease | None], S], metrics: Exposed, *, kubeconfig: Path | None,
    granted_by: str,
) -> Iterator[S]:  # fmt: skip
    """Answer probes while the block lasts, and give the lease up at its end; `make` makes the shift of a lease.

    `granted_by` is the folder of deploy/kubernetes with the right to the lease. Raises `UserError` for options that do
    not work.
    """
    check(options)
    with ExitStack() as stack:
        lease = None
        if options.leader_elect:
            lease = _lease(options, kubeconfig, granted_by)
            stack.callback(lease.release)
        shift = make(lease)
        if options.health_port:
            app = create_probe_app(metrics, shift.healthy, shift.ready, names_of(options.health_host))
            server = stack.enter_context(HealthServer(options.health_host, options.health_port, app))
            _LOG.info("probes and metrics on http://%s:%d", options.health_host, server.port)
        yield shift


def _lease(options: DutySettings, kubeconfig: Path | None, granted_by: str) -> LeaderLease:
    # A renewal that hangs must fail while there is time for another.
    transport = Transport(kubeconfig, connections=2, timeout_s=max(1.0, options.renew_deadline_s / 2))
    rights.check(transport, rights.lease(options.lease_namespace, options.lease_name), granted_by)
    settings = LeaseOptions(
        options.lease_name, options.lease_namespace, options.lease_duration_s, options.renew_deadline_s,
        options.retry_period_s,
    )  # fmt: skip
    return LeaderLease(transport, process_prefix(os.getpid()) + os.urandom(4).hex(), settings)
