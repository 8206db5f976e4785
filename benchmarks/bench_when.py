"""How well is said when a job starts: forecasts of `aaml when` for waiting jobs of train-philly, beside simpler ones.

    python benchmarks/bench_when.py --seeds 1000..1015 --out runs/when

A job that finds no room is asked for at once, by somebody who knows how long jobs of its size ran and how often they
came in the part of the record before the one that is played. Beside it stand what a moving average of the latest waits
says (the one proposed for Kueue, issue 13159), and QBETS (Nurmi, Brevik, Wolski 2007): the bound below which, with 95%
confidence, the quantile of the latest waits lies. Both know the waits of jobs of the same class that have started.
"""

import argparse
import os
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from math import comb, inf
from pathlib import Path
from typing import Any

import numpy as np

from aaml.cluster.objects import Pod
from aaml.evaluation.evaluate import parse_seeds
from aaml.files import RowWriter
from aaml.parallel.pool import open_pool
from aaml.policies.heuristics import PolicyOptions
from aaml.policies.registry import make_policy
from aaml.progress import progress_bar
from aaml.scheduling.lifetimes import LifetimeModel
from aaml.scheduling.loop import SchedulingLoop
from aaml.sim.cluster import SimCluster
from aaml.sim.forecast import Forecast, Futures
from aaml.sim.tasks import TRAIN_TASKS
from aaml.workload.training_jobs import TrainingJobs

TASK = TRAIN_TASKS["train-philly"]
SHARES = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95)
HEADER = (
    "policy", "load", "seed", "job", "pods", "asked_s", "waited_s", "rank",
    *(f"q{share:g}" for share in SHARES), "average_s", "bound_s",
)  # fmt: skip
LATEST = 20  # waits that an average is taken of
MOST = 500  # waits that QBETS looks back on
CONFIDENCE, QUANTILE = 0.95, 0.9


@dataclass(frozen=True)
class Episode:
    """A stream and who schedules it."""

    policy: str
    load: float
    seed: int
    futures: int
    every: float
    hours: float


def bound(waits: Sequence[float]) -> float:
    """Return QBETS' upper bound of the quantile of waits; inf while there are too few."""
    latest = sorted(waits[-MOST:])
    count, below = len(latest), 0.0
    for place in range(count):
        below += comb(count, place) * QUANTILE**place * (1.0 - QUANTILE) ** (count - place)
        if below >= CONFIDENCE:
            return latest[place]
    return inf


def played(episode: Episode) -> list[dict[str, Any]]:
    """Play a stream, and return a row for each forecast."""
    cluster = TASK.at_load(episode.load).build(episode.seed)
    policy = make_policy(episode.policy, PolicyOptions(seed=episode.seed))
    nodes, before = tuple(cluster.state.nodes), TrainingJobs(episode.load, part="training")
    lifetimes = LifetimeModel.of_history(before(nodes, 2_000, np.random.default_rng(episode.seed)))

    def arrivals(seconds: float, rng: np.random.Generator) -> list[Pod]:
        return [pod for pod in before(nodes, 150, rng) if pod.created_s <= seconds]

    futures = Futures(policy, lifetimes, arrivals, episode.hours * 3600.0, episode.futures, episode.seed)
    jobs: dict[str, list[Pod]] = defaultdict(list)
    for pod in cluster.workload.pods:
        jobs[pod.group_key or pod.uid].append(pod)
    of = {pod.uid: key for key, pods in jobs.items() for pod in pods}
    last_s = cluster.workload.pods[len(cluster.workload.pods) * 2 // 3].created_s  # later ones see no newcomers
    rng, seen, rows = np.random.default_rng(episode.seed), set[str](), list[dict[str, Any]]()
    for _ in SchedulingLoop(cluster, policy).events():
        now_s = cluster.now_s()
        if now_s > last_s:
            continue
        for uid, since_s in list(cluster.journal.waiting_since_s.items()):
            key = of[uid]
            if since_s < now_s and key not in seen:
                seen.add(key)
                if rng.random() < episode.every:
                    rows.append(asked(episode, cluster, jobs, key, futures))
    for row in rows:
        waited_s = cluster.journal.waited_s.get(jobs[row["job"]][0].uid, inf)
        row["waited_s"] = waited_s - (row["asked_s"] - jobs[row["job"]][0].created_s)
        starts_s = row.pop("starts")
        below, level = (starts_s < row["waited_s"]).mean(), (starts_s == row["waited_s"]).mean()
        row["rank"] = float(below + level / 2)
    return rows


def asked(
    episode: Episode, cluster: SimCluster, jobs: dict[str, list[Pod]], key: str, futures: Futures
) -> dict[str, Any]:
    """Ask when a job starts, and return a row."""
    pods, now_s = jobs[key], cluster.now_s()
    found: Forecast = futures.forecast(cluster.fork(), [pod.uid for pod in pods])
    gpus = sum(pod.gpu.count for pod in pods)
    alike = [
        cluster.journal.waited_s[others[0].uid]
        for others in jobs.values()
        if sum(pod.gpu.count for pod in others) == gpus and others[0].uid in cluster.journal.waited_s
    ]
    return {
        "policy": episode.policy, "load": episode.load, "seed": episode.seed, "job": key, "pods": len(pods),
        "asked_s": now_s, "starts": found.starts_s, **{f"q{share:g}": found.quantile(share) for share in SHARES},
        "average_s": float(np.mean(alike[-LATEST:])) if alike else inf, "bound_s": bound(alike),
    }  # fmt: skip


def main() -> None:
    """Ask all questions, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", nargs="+", default=["kube-scheduler", "rack-packing"])
    parser.add_argument("--load", type=float, default=0.9)
    parser.add_argument("--seeds", default="1000..1015")
    parser.add_argument("--futures", type=int, default=100)
    parser.add_argument("--share", type=float, default=0.2, help="of the jobs that wait are asked for")
    parser.add_argument("--hours", type=float, default=48.0)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    episodes = [
        (Episode(policy, args.load, seed, args.futures, args.share, args.hours),)
        for policy in args.policy
        for seed in parse_seeds(args.seeds)
    ]
    args.out.mkdir(parents=True, exist_ok=True)
    writer, rows = RowWriter(args.out / "results.csv", HEADER), list[dict[str, Any]]()
    with open_pool(args.workers) as pool, progress_bar("streams", len(episodes), "stream") as bar:
        for _, found in pool.run(played, episodes):
            for row in found:
                writer.add(row)
            rows += found
            bar.update()
    shown = ("forecasts", "in 90% interval", "in 50% interval", "below median", "median's error", "average's error",
             "by 90%", "by QBETS' bound")  # fmt: skip
    print(f"| policy | {' | '.join(shown)} |\n|{' --- |' * (len(shown) + 1)}")
    for policy in args.policy:
        print(f"| {policy} | {' | '.join(summary([row for row in rows if row['policy'] == policy]))} |")


def summary(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return the cells of a policy's row; errors are medians, of questions for which both have an answer."""
    of = {name: np.array([row[name] for row in rows]) for name in HEADER if name not in ("policy", "job")}
    waited, median, average = of["waited_s"], of["q0.5"], of["average_s"]
    known = np.isfinite(average) & np.isfinite(median)
    errors = [f"{np.median(np.abs(said - waited)[known]) / 60.0:.1f} min" for said in (median, average)]
    shares = (
        (of["q0.05"] <= waited) & (waited <= of["q0.95"]), (of["q0.25"] <= waited) & (waited <= of["q0.75"]),
        waited <= median, waited <= of["q0.9"], waited <= of["bound_s"],
    )  # fmt: skip
    inside, half, below, by_90, by_bound = (f"{share.mean():.0%}" for share in shares)
    return [str(len(rows)), inside, half, below, *errors, by_90, by_bound]


if __name__ == "__main__":
    main()
