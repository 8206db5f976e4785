"""A scheduler process among replicas: leader election, probes and metrics."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from aaml.kube.lease import LeaderLease
from aaml.live.fallback import REASONS
from aaml.live.replica import Replica, run_replica
from aaml.live.settings import ReplicaSettings
from aaml.scheduling.ports import Observer
from aaml.serve.metrics import Metrics

if TYPE_CHECKING:
    from aaml.live.learner import AsynchronousLearner
    from aaml.scheduling.ports import Attempt, BindResult, Cluster

_RESULTS = {"assumed": "scheduled", "unschedulable": "unschedulable", "declined": "unschedulable"}


class SchedulerReplica(Replica, Observer):
    """A replica whose loop schedules; it keeps the metrics."""

    def __init__(self, metrics: Metrics, stop: Callable[[], None], lease: LeaderLease | None, profile: str) -> None:
        super().__init__(stop, lease, "the cluster's objects are not known yet")
        self._metrics, self._profile = metrics, profile
        for result in ("scheduled", "unschedulable", "error"):
            metrics.attempts.labels(result, profile)  # a counter that begins with its first event hides that event
        for reason in REASONS:
            metrics.replaced.labels(reason)
        if lease is not None:
            metrics.leads.labels(lease.options.name).set_function(lambda: float(self.leads))
        self._cluster: Cluster | None = None

    def begin(self, cluster: "Cluster") -> None:
        """Count the queues of a cluster that is connected."""
        self._awaits = "what decides is not ready yet"
        self._cluster = cluster
        if self.lost:
            self._revoke()
        counts: Callable[[], Mapping[str, int]] | None = getattr(cluster, "waiting_by_queue", None)
        if counts is None:
            return
        for queue in ("active", "backoff", "unschedulable", "gated"):
            self._metrics.pending.labels(queue).set_function(partial(_count, counts, queue))

    def decided_by(self, policy: str, other: str = "") -> None:
        """Set the metric of which policy decides: `policy`, and no longer `other`."""
        if other:
            self._metrics.deciding.labels(other).set(0)
        self._metrics.deciding.labels(policy).set(1)

    def replaced(self, reason: str) -> None:
        """Count a decision that the fallback policy made."""
        self._metrics.replaced.labels(reason).inc()

    def follow(self, learner: "AsynchronousLearner") -> None:
        """Export the metrics of the process that learns for this one."""
        self._metrics.learner_pid.set_function(lambda: learner.pid)
        self._metrics.learner_restarts.set_function(lambda: learner.restarts)
        self._metrics.learner_waiting.set_function(lambda: learner.waiting)

    def on_attempt(self, attempt: "Attempt") -> None:
        """Count one attempt as kube-scheduler does."""
        labels = (_RESULTS[attempt.outcome.kind], self._profile)
        self._metrics.attempts.labels(*labels).inc()
        self._metrics.attempt_duration.labels(*labels).observe(attempt.seconds)
        if attempt.policy_s:
            self._metrics.algorithm_duration.observe(attempt.policy_s)

    def on_result(self, result: "BindResult") -> None:
        """Count a bind that failed."""
        if result.status not in {"bound", "shadow", "tried"}:
            self._metrics.attempts.labels("error", self._profile).inc()

    def _revoke(self) -> None:
        revoke: Callable[[str], None] | None = getattr(self._cluster, "revoke", None)
        if revoke is not None:
            revoke("the lease was lost")


def _count(counts: Callable[[], Mapping[str, int]], queue: str) -> float:
    return float(counts().get(queue, 0))


@contextmanager
def scheduler_replica(
    options: ReplicaSettings, stop: Callable[[], None], *, kubeconfig: Path | None, profile: str
) -> Iterator[SchedulerReplica]:
    """Answer probes while the block lasts, and release the lease at its end.

    `stop` is called, from another thread, when the lease is lost. Raises `UserError` for bad options.
    """
    metrics = Metrics()
    with run_replica(
        options, lambda lease: SchedulerReplica(metrics, stop, lease, profile), metrics.text, kubeconfig=kubeconfig,
        granted_by="scheduler",
    ) as replica:  # fmt: skip
        yield replica
