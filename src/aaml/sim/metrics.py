"""What a run is judged by: every number that a result holds, with its unit and which way is better."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from aaml.errors import bad_value

Direction = Literal["lower", "higher"]


@dataclass(frozen=True, slots=True)
class Metric:
    """A number that judges a run: its name in results, its unit, which way is better, and what it says."""

    name: str
    unit: str
    better: Direction
    meaning: str


_USE: tuple[tuple[str, str, Direction, str], ...] = (
    ("variance", "fraction squared", "lower", "variance of use over nodes, mean of CPU's and memory's"),
    ("cpu_variance", "fraction squared", "lower", "variance of CPU use over nodes"),
    ("memory_variance", "fraction squared", "lower", "variance of memory use over nodes"),
    ("empty_nodes", "nodes", "higher", "nodes without a pod"),
    ("empty_fraction", "fraction", "higher", "nodes without a pod, of all nodes"),
    ("cpu_allocation", "fraction", "higher", "CPU that is requested, of all there is"),
    ("memory_allocation", "fraction", "higher", "memory that is requested, of all there is"),
    ("gpu_allocation", "fraction", "higher", "GPU capacity that is requested, of all there is"),
    ("whole_gpus", "fraction", "higher", "GPUs of which nothing is taken, of all there are"),
)
_AVERAGED: tuple[tuple[str, str, Direction, str], ...] = (
    *_USE,
    ("cpu_mean", "fraction", "higher", "mean over nodes of CPU use"),
    ("memory_mean", "fraction", "higher", "mean over nodes of memory use"),
    ("pending_pods", "pods", "lower", "pods that wait"),
    ("gpu_waiting", "fraction", "lower", "GPU capacity that waiting pods ask for, of all there is"),
)
_COUNTS: tuple[tuple[str, Direction, str], ...] = (
    ("pending", "lower", "pods that wait at the end"),
    ("arrived", "higher", "pods that came"),
    ("bound", "higher", "binds"),
    ("departed", "higher", "pods that ran to their end"),
    ("deleted", "lower", "pods that were deleted"),
    ("evicted", "lower", "pods that were evicted"),
    ("migrated", "lower", "pods that were moved"),
    ("rejected", "lower", "tries to place a pod that found no node"),
    ("declined", "lower", "pods that the policy left pending although they fitted"),
    ("lost", "lower", "pods without an owner that an eviction ended"),
)
_BILLED: tuple[tuple[str, str, Direction, str], ...] = (
    ("cost", "$ an hour", "lower", "the bill, and what long waits and evictions count"),
    ("bill", "$ an hour", "lower", "nodes by their price, from purchase to return"),
    ("bill_per_core_hour", "$", "lower", "the bill for an hour of a requested core"),
    ("fluid_ratio", "ratio", "lower", "the bill, to what the pods' requests would cost by the second"),
    ("mean_nodes", "nodes", "lower", "nodes that are paid for, average over time"),
    ("nodes_bought", "nodes", "lower", "nodes that were provisioned"),
    ("evictions_per_pod_hour", "evictions", "lower", "pods that were evicted, for each hour that a pod ran"),
    ("power_kw", "kW", "lower", "what nodes draw, average over time"),
    ("co2_kg_per_hour", "kg an hour", "lower", "CO2 of that, at the grid's carbon intensity"),
)
_JOB_KINDS = (
    ("job", "a job"), ("small_job", "a job of less than a node's GPUs"), ("node_job", "a job of a whole node's GPUs"),
    ("gang_job", "a job of several nodes"),
)  # fmt: skip
_OF_JOBS: tuple[tuple[str, str, Direction, str], ...] = (
    *((f"{name}_wait_mean_s", "s", "lower", f"time that {text} waits, mean") for name, text in _JOB_KINDS),
    *((f"{name}_wait_p99_s", "s", "lower", f"time that {text} waits, 99th percentile") for name, text in _JOB_KINDS),
    ("job_wait_max_s", "s", "lower", "time that a job waits, longest"),
    ("job_completion_mean_s", "s", "lower", "time from a job's arrival to its end, mean"),
    ("job_slowdown", "ratio", "lower", "that time to the run alone, of at least 10 minutes, mean"),
    ("gpus_busy", "fraction", "higher", "GPUs that jobs hold until the last one comes, of all there are"),
    (
        "gpus_stranded",
        "fraction",
        "lower",
        "GPUs that are free while a job waits that asks for no more, of all there are",
    ),
    ("queue_fairness", "index", "higher", "Jain's index of the mean slowdowns of queues (namespaces)"),
)
_ALL = (
    *(Metric(f"mean_{name}", unit, better, f"{text}, average over time") for name, unit, better, text in _AVERAGED),
    *(Metric(f"final_{name}", unit, better, f"{text}, at the end") for name, unit, better, text in _USE),
    Metric("waiting_mean_s", "s", "lower", "time that a pod waits, mean"),
    Metric("waiting_p50_s", "s", "lower", "time that a pod waits, median"),
    Metric("waiting_p95_s", "s", "lower", "time that a pod waits, 95th percentile"),
    Metric("waiting_p99_s", "s", "lower", "time that a pod waits, 99th percentile"),
    Metric("waiting_max_s", "s", "lower", "time that a pod waits, longest"),
    *(Metric(name, "pods", better, text) for name, better, text in _COUNTS),
    *(Metric(*billed) for billed in _BILLED),
    *(Metric(*of_jobs) for of_jobs in _OF_JOBS),
    Metric("decisions", "decisions", "lower", "decisions that the policy made"),
    Metric("latency_p50_ms", "ms", "lower", "time of a decision, from the pod to the node, median"),
    Metric("latency_p99_ms", "ms", "lower", "time of a decision, from the pod to the node, 99th percentile"),
)
BILLED = tuple(name for name, *_ in _BILLED)
"""Those of clusters whose nodes are provisioned and terminated."""
OF_JOBS = tuple(name for name, *_ in _OF_JOBS)
"""Those of streams of training jobs."""
DECIDING = ("decisions", "latency_p50_ms", "latency_p99_ms")
"""Those of a policy at work, which a search's episodes do not have."""
METRICS: Mapping[str, Metric] = {metric.name: metric for metric in _ALL}


def find_metric(name: str) -> Metric:
    """Return a metric by name; `UserError` lists the names when there is none such."""
    if name not in METRICS:
        raise bad_value("metric", name, f"one of {', '.join(METRICS)}")
    return METRICS[name]
