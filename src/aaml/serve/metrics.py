"""Prometheus metrics, with kube-scheduler's names where they mean the same.

https://kubernetes.io/docs/reference/instrumentation/metrics/ lists kube-scheduler's.
"""

from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

# kube-scheduler's buckets: 1 ms doubling, with finer ones below for a service that answers in less.
_BUCKETS = (0.00025, 0.0005, *(0.001 * 2**i for i in range(15)))
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """The metrics of one scheduler or service, in a registry of their own that no other shares."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        counter, gauge = partial(Counter, registry=self.registry), partial(Gauge, registry=self.registry)
        histogram = partial(Histogram, buckets=_BUCKETS, registry=self.registry)
        self.attempts = counter(
            "scheduler_schedule_attempts", "Attempts to schedule pods, by result: scheduled, unschedulable or error.",
            ("result", "profile"),
        )  # fmt: skip
        self.attempt_duration = histogram(
            "scheduler_scheduling_attempt_duration_seconds",
            "Latency of an attempt: filters, scores and the assumption of the pod.", ("result", "profile"),
        )  # fmt: skip
        self.algorithm_duration = histogram(
            "scheduler_scheduling_algorithm_duration_seconds", "Latency of the policy alone."
        )
        self.pending = gauge(
            "scheduler_pending_pods", "Pods that wait, by queue: active, backoff, unschedulable or gated.", ("queue",)
        )
        self.leads = gauge(
            "leader_election_master_status",
            "1 where this replica holds the Lease of this name and decides, 0 where it stands by.", ("name",),
        )  # fmt: skip
        self.replaced = counter(
            "aaml_policy_replaced", "Decisions of the fallback policy in the place of the chosen one, by reason.",
            ("reason",),
        )  # fmt: skip
        self.deciding = gauge(
            "aaml_policy_deciding", "1 for the policy that decides now, 0 for one that failed over or only steps in.",
            ("policy",),
        )  # fmt: skip
        self.learner_pid = gauge("aaml_learner_pid", "Process that learns for this one, 0 while there is none.")
        self.learner_restarts = gauge("aaml_learner_restarts", "How often a lost learner was started again.")
        self.learner_waiting = gauge(
            "aaml_learner_waiting_steps", "Steps of experience that no learner has taken in yet."
        )
        self.requests = counter(
            "aaml_http_requests", "Answered requests, by endpoint and status.", ("endpoint", "status")
        )
        self.request_duration = histogram(
            "aaml_http_request_duration_seconds", "Time to answer, by endpoint.", ("endpoint",)
        )

    def text(self) -> bytes:
        """Return everything in Prometheus' text format."""
        return generate_latest(self.registry)
