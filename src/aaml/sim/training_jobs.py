"""TrainTask: training jobs on racks of GPUs, judged job by job: a pod group is one job, and waits once."""

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from aaml.errors import bad_value
from aaml.scheduling.queue import QueueSettings
from aaml.sim.cluster import SimCluster
from aaml.sim.kueue import QueueKind, gate_of
from aaml.sim.metrics import OF_JOBS
from aaml.sim.recorded import VALIDATION_SEEDS
from aaml.sim.task import Task
from aaml.workload.gangs import Racks
from aaml.workload.training_jobs import TrainingJobs

_SHORTEST_S = 600.0  # a bounded slowdown counts no job as shorter
_CLASSES = ("small", "node", "gang")


class JobRun(NamedTuple):
    """A job that has come: GPUs, when it came, how long it has waited, whether it got its nodes, how long it runs."""

    queue: str
    gpus: int
    pods: int
    created_s: float
    wait_s: float
    started: bool
    runs_s: float


def job_runs(cluster: SimCluster) -> list[JobRun]:
    """Return the jobs that have come so far, in order."""
    journal, now_s = cluster.journal, cluster.now_s()
    pods: dict[str, list[Any]] = {}
    for pod in cluster.workload.pods:
        if pod.uid in journal.waited_s or pod.uid in journal.waiting_since_s:
            pods.setdefault(pod.group_key or pod.uid, []).append(pod)
    runs = []
    for parts in pods.values():
        waits = [
            journal.waited_s.get(pod.uid, 0.0) + max(now_s - journal.waiting_since_s.get(pod.uid, now_s), 0.0)
            for pod in parts
        ]
        started = all(pod.uid not in journal.waiting_since_s for pod in parts)
        gpus = sum(pod.gpu.count for pod in parts)
        first = parts[0]
        runs.append(
            JobRun(first.namespace, gpus, len(parts), first.created_s, max(waits), started, first.runs_s or 0.0)
        )
    return runs


def job_metrics(cluster: SimCluster) -> Mapping[str, float]:
    """Return the numbers of `aaml.sim.metrics.OF_JOBS` so far; 0 where no job is of a class."""
    gpus = cluster.state.gpu_count
    return metrics_of(job_runs(cluster), int(gpus.sum()), int(gpus.max(initial=0)))


def metrics_of(jobs: Sequence[JobRun], devices: int, per_node: int) -> dict[str, float]:
    """Return the numbers of `aaml.sim.metrics.OF_JOBS` of jobs on so many GPUs, of a node so many."""
    found = dict.fromkeys(OF_JOBS, 0.0)
    found["queue_fairness"] = 1.0
    if not jobs:
        return found
    waits = np.array([job.wait_s for job in jobs])
    found |= _of_waits("job", waits)
    found["job_wait_max_s"] = float(waits.max())
    kinds = np.array([2 if job.pods > 1 else int(job.gpus >= per_node) for job in jobs])
    for kind, name in enumerate(_CLASSES):
        if (kinds == kind).any():
            found |= _of_waits(f"{name}_job", waits[kinds == kind])
    runs = np.array([job.runs_s for job in jobs])
    slowdowns = np.maximum((waits + runs) / np.maximum(runs, _SHORTEST_S), 1.0)
    found["job_slowdown"] = float(slowdowns.mean())
    found["job_completion_mean_s"] = float((waits + runs).mean())
    found["gpus_busy"], found["gpus_stranded"] = use(jobs, devices)
    by_queue = defaultdict(list)
    for job, slowdown in zip(jobs, slowdowns.tolist(), strict=True):
        by_queue[job.queue].append(slowdown)
    found["queue_fairness"] = jain([float(np.mean(each)) for each in by_queue.values()])
    return found


def _of_waits(name: str, waits: Any) -> dict[str, float]:
    return {f"{name}_wait_mean_s": float(waits.mean()), f"{name}_wait_p99_s": float(np.percentile(waits, 99))}


def jain(shares: Sequence[float]) -> float:
    """Return Jain's index of fairness: 1 where all have the same, 1/n where one of n has all (Jain et al., 1984)."""
    total, squares = sum(shares), sum(share * share for share in shares)
    return total * total / (len(shares) * squares) if squares else 1.0


def use(jobs: Sequence[JobRun], devices: int) -> tuple[float, float]:
    """Return which share of the GPUs is busy until the last arrival, and which is stranded.

    Stranded are GPUs that are free while a job waits that asks for no more than these: with the GPUs in one node it
    would run. That is what fragmentation costs, and with it the time until somebody tries again.
    """
    until_s = max((job.created_s for job in jobs), default=0.0)
    begin_s = min((job.created_s for job in jobs), default=0.0)
    events: list[tuple[float, int, int, int]] = []  # when, what first, GPUs taken, GPUs asked for by who waits
    for job in jobs:
        start_s = job.created_s + job.wait_s
        events.append((job.created_s, 2, 0, job.gpus))
        if job.started:
            events.append((start_s, 3, job.gpus, -job.gpus))
            events.append((start_s + job.runs_s, 1, -job.gpus, 0))
    events.sort()
    free, last_s, busy, stranded = devices, begin_s, 0.0, 0.0
    waiting: list[int] = []
    for at_s, _, taken, asks in events:
        now_s = min(at_s, until_s)
        busy += (devices - free) * (now_s - last_s)
        if waiting and waiting[0] <= free:
            stranded += free * (now_s - last_s)
        last_s, free = now_s, free - taken
        if asks > 0:
            insort(waiting, asks)
        elif asks < 0:
            del waiting[bisect_left(waiting, -asks)]
    whole = devices * (until_s - begin_s)
    return (busy / whole, stranded / whole) if whole > 0.0 else (0.0, 0.0)


@dataclass(frozen=True)
class TrainTask(Task):
    """Training jobs of a record on racks: `draw` is a `TrainingJobs`, and the pods of an episode are counted in jobs.

    An episode goes on until all jobs have run. Seeds of training and of validation draw from the time before the one
    that policies are judged on. `queue` is what admits the jobs before their pods are scheduled.
    """

    queue: QueueKind = "none"

    @property
    def metrics(self) -> tuple[str, ...]:
        """Metrics that all its episodes have, those of jobs too."""
        return (*super().metrics, *OF_JOBS)

    def build(
        self,
        seed: int,
        nodes: int | None = None,
        *,
        pods: int | None = None,
        trace: str | None = None,
        invariants: bool = False,
    ) -> SimCluster:
        """Return a cluster at the beginning of an episode of `pods` jobs; the same seed gives the same episode.

        Raises `UserError` for numbers that make no cluster, and for a trace.
        """
        if trace is not None:
            raise bad_value("trace", trace, f"none: {self.name} draws from the record of Philly")
        count, jobs = self.size(nodes, pods)
        fleet, draw = self.make_nodes(count), self.draw
        if seed >= VALIDATION_SEEDS and isinstance(draw, TrainingJobs) and draw.part == "holdout":
            draw = replace(draw, part="training")
        workload = draw(fleet, jobs, np.random.default_rng(seed))
        return SimCluster(
            fleet, workload, queue=QueueSettings(), invariants=invariants, ties=seed, further_metrics=job_metrics,
            gate=gate_of(self.queue, fleet),
        )  # fmt: skip


_PHILLY = TrainTask(
    "train-philly", "training jobs of Philly, gangs of one rack among them; let jobs wait as little as possible",
    "job_wait_mean_s", reward="waiting-time", nodes=32, pods_per_node=150 / 32, make_nodes=Racks(),
    draw=TrainingJobs(), past=TrainingJobs(part="training"), continuing=False,
)  # fmt: skip
TRAIN_TASKS: Mapping[str, TrainTask] = {
    task.name: task
    for task in (
        _PHILLY,
        replace(
            _PHILLY, name="train-philly-kueue", queue="kueue",
            summary="the same jobs, let in by Kueue's topology-aware scheduling, which gives each pod its node",
        ),
    )
}  # fmt: skip
"""The tasks whose jobs come from a record, which has to be there: `aaml trace fetch philly`."""
