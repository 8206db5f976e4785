"""What a scheduler process adds to its loop: leadership among replicas, probes, and metrics."""

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from aaml.errors import bad_value
from aaml.kube import rights
from aaml.kube.lease import LeaderLease, LeaseOptions, process_prefix
from aaml.kube.transport import Transport
from aaml.live.settings import DutySettings
from aaml.live.shield import REASONS
from aaml.scheduling.ports import Observer
from aaml.serve.gate import names_of
from aaml.serve.health import HealthServer, create_probe_app
from aaml.serve.metrics import Metrics

if TYPE_CHECKING:
    from aaml.live.learner import AsynchronousLearner
    from aaml.scheduling.ports import Attempt, BindResult, Cluster

_LOG = logging.getLogger("aaml")
_RESULTS = {"assumed": "scheduled", "unschedulable": "unschedulable", "declined": "unschedulable"}
_STUCK_S = 120.0  # longer than an update of any network, and than the first lists of a large cluster


def check(options: DutySettings) -> None:
    """Raise `UserError` for times that elect nobody, or two."""
    if not 0 < options.retry_period_s < options.renew_deadline_s < options.lease_duration_s:
        times = f"{options.retry_period_s:g}, {options.renew_deadline_s:g}, {options.lease_duration_s:g}"
        raise bad_value("retry-period-s, renew-deadline-s, lease-duration-s", times, "each greater than the one before")
    if options.lease_duration_s < 1 or options.lease_duration_s != int(options.lease_duration_s):
        raise bad_value("lease-duration-s", options.lease_duration_s, "whole seconds: a Lease holds no fraction")


class Duty(Observer):
    """One process: waits for the lease, feeds the metrics, knows whether it still leads and whether its loop turns."""

    def __init__(self, metrics: Metrics, stop: Callable[[], None], lease: LeaderLease | None, profile: str) -> None:
        self._metrics, self._stop, self._lease, self._profile = metrics, stop, lease, profile
        for result in ("scheduled", "unschedulable", "error"):
            metrics.attempts.labels(result, profile)  # a counter that begins with its first event hides that event
        for reason in REASONS:
            metrics.replaced.labels(reason)
        self._beat_s: float | None = None
        self._leads = lease is None
        if lease is not None:
            metrics.leads.labels(lease.options.name).set_function(lambda: float(self._leads and not self.lost))
        self._awaits = "the cluster's objects are not known yet"
        self._cluster: Cluster | None = None
        self.lost = False

    # ---- what the owner of the loop calls ----------------------------------------------------------------------------

    def acquire(self, stopped: Callable[[], bool]) -> bool:
        """Wait until this process decides: at once without leader election, False when it was stopped before."""
        if self._lease is not None and not self._lease.acquire(stopped, self._on_lost):
            return False
        self._leads = True
        self._beat_s = time.monotonic()
        return not stopped()

    def begin(self, cluster: "Cluster") -> None:
        """The cluster is connected; from now on its queues are counted."""
        self._awaits = "what decides is not ready yet"
        self._cluster = cluster
        if self.lost:
            self._revoke()
        counts: Callable[[], Mapping[str, int]] | None = getattr(cluster, "waiting_by_queue", None)
        if counts is None:
            return
        for queue in ("active", "backoff", "unschedulable", "gated"):
            self._metrics.pending.labels(queue).set_function(partial(_count, counts, queue))

    def decides(self) -> None:
        """What decides is ready, with the process that learns for it if there is one."""
        self._awaits = ""

    def decided_by(self, policy: str, other: str = "") -> None:
        """Tell that this policy decides from now on, and no other one."""
        if other:
            self._metrics.deciding.labels(other).set(0)
        self._metrics.deciding.labels(policy).set(1)

    def replaced(self, reason: str) -> None:
        """Count a decision that the fallback policy made."""
        self._metrics.replaced.labels(reason).inc()

    def follow(self, learner: "AsynchronousLearner") -> None:
        """From now on tell of the process that learns for this one."""
        self._metrics.learner_pid.set_function(lambda: learner.pid)
        self._metrics.learner_restarts.set_function(lambda: learner.restarts)
        self._metrics.learner_waiting.set_function(lambda: learner.waiting)

    def on_turn(self) -> None:
        """Note that the walk goes on, for the probe of liveness."""
        self._beat_s = time.monotonic()

    def on_attempt(self, attempt: "Attempt") -> None:
        """Count one attempt as kube-scheduler does."""
        labels = (_RESULTS[attempt.outcome.kind], self._profile)
        self._metrics.attempts.labels(*labels).inc()
        self._metrics.attempt_duration.labels(*labels).observe(attempt.seconds)
        if attempt.policy_s:
            self._metrics.algorithm_duration.observe(attempt.policy_s)

    def on_result(self, result: "BindResult") -> None:
        """Count a bind that failed."""
        if result.status not in {"bound", "shadow"}:
            self._metrics.attempts.labels("error", self._profile).inc()

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
        return (self._awaits if self._leads else "") or self.healthy()

    def _on_lost(self) -> None:
        self.lost = True
        self._revoke()
        self._stop()

    def _revoke(self) -> None:
        """Keep binds that wait from being sent: soon another replica decides."""
        revoke: Callable[[str], None] | None = getattr(self._cluster, "revoke", None)
        if revoke is not None:
            revoke("the lease was lost")


def _count(counts: Callable[[], Mapping[str, int]], queue: str) -> float:
    return float(counts().get(queue, 0))


@contextmanager
def on_duty(
    options: DutySettings, stop: Callable[[], None], *, kubeconfig: Path | None, profile: str
) -> Iterator[Duty]:
    """Answer probes while the block lasts, and give the lease up at its end.

    `stop` is called, from another thread, when the lease is lost. Raises `UserError` for options that do not work.
    """
    check(options)
    metrics = Metrics()
    with ExitStack() as stack:
        lease = None
        if options.leader_elect:
            lease = _lease(options, kubeconfig)
            stack.callback(lease.release)
        duty = Duty(metrics, stop, lease, profile)
        if options.health_port:
            app = create_probe_app(metrics, duty.healthy, duty.ready, names_of(options.health_host))
            server = stack.enter_context(HealthServer(options.health_host, options.health_port, app))
            _LOG.info("probes and metrics on http://%s:%d", options.health_host, server.port)
        yield duty


def _lease(options: DutySettings, kubeconfig: Path | None) -> LeaderLease:
    # A renewal that hangs must fail while there is time for another.
    transport = Transport(kubeconfig, connections=2, timeout_s=max(1.0, options.renew_deadline_s / 2))
    rights.check(transport, rights.lease(options.lease_namespace, options.lease_name), "scheduler")
    settings = LeaseOptions(
        options.lease_name, options.lease_namespace, options.lease_duration_s, options.renew_deadline_s,
        options.retry_period_s,
    )  # fmt: skip
    return LeaderLease(transport, process_prefix(os.getpid()) + os.urandom(4).hex(), settings)
