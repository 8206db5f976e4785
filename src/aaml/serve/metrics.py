"""Prometheus metrics, with kube-scheduler's names where they mean the same.

https://kubernetes.io/docs/reference/instrumentation/metrics/ lists kube-scheduler's.
"""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

# kube-scheduler's buckets: 1 ms doubling, with finer ones below for a service that answers in less.
_BUCKETS = (0.00025, 0.0005, *(0.001 * 2**i for i in range(15)))
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """The metrics of one scheduler or service, in a registry of their own that no other shares."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.attempts = Counter(
            "scheduler_schedule_attempts",
            "Attempts to schedule pods, by result: scheduled, unschedulable or error.",
            ("result", "profile"),
            registry=self.registry,
        )
        self.attempt_duration = Histogram(
            "scheduler_scheduling_attempt_duration_seconds",
            "Latency of an attempt: filters, scores and the assumption of the pod.",
            ("result", "profile"),
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self.algorithm_duration = Histogram(
            "scheduler_scheduling_algorithm_duration_seconds",
            "Latency of the policy alone.",
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self.pending = Gauge(
            "scheduler_pending_pods",
            "Pods that wait, by queue: active, backoff, unschedulable or gated.",
            ("queue",),
            registry=self.registry,
        )
        self.replaced = Counter(
            "aaml_policy_replaced",
            "Decisions of the fallback policy in the place of the chosen one, by reason.",
            ("reason",),
            registry=self.registry,
        )
        self.deciding = Gauge(
            "aaml_policy_deciding",
            "1 for the policy that decides now, 0 for one that handed over or only steps in.",
            ("policy",),
            registry=self.registry,
        )
        self.learner_pid = Gauge(
            "aaml_learner_pid",
            "Process that learns for this one, 0 while there is none.",
            registry=self.registry,
        )
        self.learner_restarts = Gauge(
            "aaml_learner_restarts",
            "How often a lost learner was started again.",
            registry=self.registry,
        )
        self.learner_waiting = Gauge(
            "aaml_learner_waiting_steps",
            "Steps of experience that no learner has taken in yet.",
            registry=self.registry,
        )
        self.requests = Counter(
            "aaml_http_requests",
            "Answered requests, by endpoint and status.",
            ("endpoint", "status"),
            registry=self.registry,
        )
        self.request_duration = Histogram(
            "aaml_http_request_duration_seconds",
            "Time to answer, by endpoint.",
            ("endpoint",),
            buckets=_BUCKETS,
            registry=self.registry,
        )

    def text(self) -> bytes:
        """Return everything in Prometheus' text format."""
        return generate_latest(self.registry)
