"""Who lets training jobs wait least: rules for nodes and racks on the same streams, beside what no fragmentation gives.

    python benchmarks/bench_train_philly.py --out runs/train-philly                       # the part that is kept back
    python benchmarks/bench_train_philly.py --load 0.9 --part whole --out runs/train-whole

Pods ask for GPUs alone, so that kube-scheduler takes one of the racks with room at random; or also for CPU and memory
in proportion, so that it takes the fullest one ("best-fit rack"). The last row is no scheduler: all GPUs are one pool,
and of the jobs that fit the one with the least GPU time goes first. Rows go to results.csv, one an episode.
"""

import argparse
import heapq
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from aaml.evaluation.evaluate import parse_seeds
from aaml.evaluation.statistics import mean_interval
from aaml.files import RowWriter
from aaml.parallel.pool import open_pool
from aaml.policies.heuristics import PolicyOptions
from aaml.policies.kube_scores import KubeScheduler, KubeSchedulerConfig
from aaml.policies.kube_scores.config import DEFAULT_WEIGHTS, GPU_MILLI
from aaml.policies.registry import make_policy
from aaml.progress import progress_bar
from aaml.scheduling.play import play
from aaml.scheduling.ports import Policy
from aaml.sim.kueue import QueueKind
from aaml.sim.metrics import OF_JOBS
from aaml.sim.tasks import TRAIN_TASKS
from aaml.sim.training_jobs import JobRun, job_runs, metrics_of
from aaml.workload.gangs import CPU_MILLI_PER_GPU, MEMORY_PER_GPU
from aaml.workload.training_jobs import TrainingJobs

TASK = TRAIN_TASKS["train-philly"]
GPUS = ((GPU_MILLI, 1),)
PACKING = {name: weight for name, weight in DEFAULT_WEIGHTS.items() if name != "NodeResourcesBalancedAllocation"}
SHOWN = ("job_wait_mean_s", "gang_job_wait_mean_s", "gang_job_wait_p99_s", "job_slowdown", "gpus_busy", "gpus_stranded")
HEADER = ("task", "nodes", "policy", "seed", "sizes", "arrivals", "part", *OF_JOBS)


def named(name: str) -> Callable[[int], Policy]:
    """Return a policy of the registry by its seed."""
    return lambda seed: make_policy(name, PolicyOptions(seed=seed))


def on_gpus(strategy: Any, weights: dict[str, int]) -> Callable[[int], Policy]:
    """Return kube-scheduler with NodeResourcesFit on GPUs alone, by its seed."""
    config = replace(KubeSchedulerConfig(), strategy=strategy, resources=GPUS, weights=weights)
    return lambda seed: KubeScheduler(np.random.default_rng(seed), config)


CASES: dict[str, tuple[Callable[[int], Policy], bool]] = {
    "kube-scheduler": (named("kube-scheduler"), False),
    "Kueue TAS": (named("kube-scheduler"), False),
    "Kueue TAS, StrictFIFO": (named("kube-scheduler"), False),
    "LeastAllocated on GPUs (spread)": (on_gpus("LeastAllocated", dict(DEFAULT_WEIGHTS)), False),
    "kube-scheduler, best-fit rack": (named("kube-scheduler"), True),
    "MostAllocated on GPUs": (on_gpus("MostAllocated", PACKING), False),
    "MostAllocated on GPUs, best-fit rack": (on_gpus("MostAllocated", PACKING), True),
    "rack-packing": (named("rack-packing"), False),
    "rack-packing, best-fit rack": (named("rack-packing"), True),
}
QUEUES: dict[str, QueueKind] = {"Kueue TAS": "kueue", "Kueue TAS, StrictFIFO": "kueue-strict"}
POOL = "no fragmentation (one pool)"


@dataclass(frozen=True)
class Job:
    """An episode: the stream, the case, the seed."""

    draw: TrainingJobs
    case: str
    seed: int


def pooled(jobs: Sequence[JobRun], devices: int) -> list[JobRun]:
    """Return the jobs as they would run with all GPUs in one node, those of the least GPU time first."""
    waiting: list[tuple[float, int]] = []
    running: list[tuple[float, int]] = []
    free, comes, started = devices, 0, dict[int, float]()
    while comes < len(jobs) or waiting:
        now_s = min(jobs[comes].created_s if comes < len(jobs) else np.inf, running[0][0] if running else np.inf)
        while running and running[0][0] <= now_s:
            free += heapq.heappop(running)[1]
        while comes < len(jobs) and jobs[comes].created_s <= now_s:
            waiting.append((jobs[comes].gpus * jobs[comes].runs_s, comes))
            comes += 1
        waiting.sort()
        for area, number in list(waiting):
            if jobs[number].gpus <= free:
                waiting.remove((area, number))
                free -= jobs[number].gpus
                started[number] = now_s
                heapq.heappush(running, (now_s + jobs[number].runs_s, jobs[number].gpus))
    return [job._replace(wait_s=started[number] - job.created_s, started=True) for number, job in enumerate(jobs)]


def played(job: Job) -> dict[str, Any]:
    """Play an episode, and return its row."""
    make, in_proportion = CASES.get(job.case, (named("first-fit"), False))
    draw = (
        replace(job.draw, cpu_milli_per_gpu=CPU_MILLI_PER_GPU, memory_per_gpu=MEMORY_PER_GPU)
        if in_proportion
        else job.draw
    )
    cluster = replace(TASK, draw=draw, queue=QUEUES.get(job.case, "none")).build(job.seed)
    play(cluster, make(job.seed))
    jobs, devices = job_runs(cluster), int(cluster.state.gpu_count.sum())
    found = metrics_of(pooled(jobs, devices) if job.case == POOL else jobs, devices, int(cluster.state.gpu_count.max()))
    draw = job.draw
    return {
        "task": TASK.at_load(draw.load).name, "nodes": TASK.nodes, "policy": job.case, "seed": job.seed,
        "sizes": draw.sizes, "arrivals": draw.arrivals, "part": draw.part, **found,
    }  # fmt: skip


def compared(difference: Sequence[float], usual: float) -> str:
    """Return by how much of what is usual something is more, with its interval where one is known."""
    mean = mean_interval(difference)
    ends = f" [{mean.low / usual:+.0%}, {mean.high / usual:+.0%}]" if mean.known else ""
    return f"{mean.mean / usual:+.0%}{ends}"


def main() -> None:
    """Play all episodes, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--load", type=float, nargs="+", default=[0.7, 0.9, 1.1])
    parser.add_argument("--sizes", choices=["heavy", "record"], default="heavy")
    parser.add_argument("--arrivals", choices=["poisson", "record"], default="poisson")
    parser.add_argument("--part", choices=["holdout", "training", "whole"], default="holdout")
    parser.add_argument("--seeds", default="1000..1023")
    parser.add_argument("--cases", nargs="+", choices=[*CASES, POOL], default=[*CASES, POOL])
    parser.add_argument("--reference", choices=list(CASES), default="kube-scheduler")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    seeds, cases = parse_seeds(args.seeds), list(dict.fromkeys([args.reference, *args.cases]))
    draws = [TrainingJobs(load, args.sizes, args.arrivals, args.part) for load in args.load]
    jobs = [(Job(draw, case, seed),) for draw in draws for case in cases for seed in seeds]
    args.out.mkdir(parents=True, exist_ok=True)
    writer, rows = RowWriter(args.out / "results.csv", HEADER), []
    with open_pool(args.workers) as pool, progress_bar("episodes", len(jobs), "episode") as bar:
        for _, row in pool.run(played, jobs):
            rows.append(row)
            writer.add(row)
            bar.update()
    print(f"| load | policy | against {args.reference} | {' | '.join(SHOWN)} |\n|{' --- |' * (3 + len(SHOWN))}")
    for draw in draws:
        of = {(row["policy"], row["seed"]): row for row in rows if row["task"] == TASK.at_load(draw.load).name}
        reference = [of[args.reference, seed]["job_wait_mean_s"] for seed in seeds]
        for case in cases:
            own = [of[case, seed] for seed in seeds]
            difference = (np.array([row["job_wait_mean_s"] for row in own]) - reference).tolist()
            against = compared(difference, fmean(reference))
            cells = " | ".join(f"{fmean(row[name] for row in own):.4g}" for name in SHOWN)
            print(f"| {draw.load:g} | {case} | {against} | {cells} |")


if __name__ == "__main__":
    main()
