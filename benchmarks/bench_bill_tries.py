"""What the time of a scheduler's tries does to waits: the task `bill` where tries take time and nodes join in steps.

    python benchmarks/bench_bill_tries.py --out runs/bill-tries                           # 30 episodes: 4 minutes
    python benchmarks/bench_bill_tries.py --seeds 1006,1009,1013 --repeats 4 --out runs/bill-tries-three   # 15 s

One episode of twenty nodes at real speed, with kube-scheduler's log at level 5: where pods waited, tries followed each
other after 20 ms in the median, and a new node was seen with a taint, with another one, and ready, in a quarter of a
second. Rows go to tries.csv as they are done: means over the episodes.
"""

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np

from aaml.evaluation.entries import PolicyEntry, policy_entries
from aaml.evaluation.evaluate import parse_seeds
from aaml.files import RowWriter
from aaml.progress import progress_bar
from aaml.scheduling.play import play
from aaml.sim.bill import BILL_TASKS, BillTask
from aaml.sim.cluster import SimCluster

PACKING = Path(__file__).parents[1] / "examples" / "packing"
SHORT = f"packing-short-backoffs=kube-scheduler:{PACKING / 'kube-scheduler.yaml'}"
PAIR = f"examples-packing=kube-scheduler:{PACKING / 'kube-scheduler.yaml'}+{PACKING / 'nodepool.yaml'}"
POLICIES = ("kube-scheduler", "kube-scheduler-packing", SHORT, PAIR)
TIMES = ((0.0, 0.0), (0.12, 0.02), (0.12, 0.04))  # seconds: join_step_s, failed_try_s
METRICS = ("bill_per_core_hour", "waiting_mean_s", "waiting_p99_s", "evicted")
HEADER = ("join_step_s", "failed_try_s", "policy", "episodes", *METRICS)


def episode(entry: PolicyEntry, task: BillTask, seed: int, nodes: int, repeat: int) -> list[float]:
    """Return the metrics of an episode, of which `repeat` draws the delays; 0: those of `aaml evaluate`."""
    told = entry.task(task)
    assert isinstance(told, BillTask)
    cluster = told.build(seed, nodes)
    if repeat:
        supply = told.supply(np.random.default_rng([seed, repeat]), told.drawn_catalogue(seed))
        cluster = SimCluster((), cluster.workload, until_s=cluster.until_s, supply=supply)
    play(cluster, entry.policy(told, seed))
    found = cluster.metrics()
    return [found[name] for name in METRICS]


def main() -> None:
    """Play, print, and write each row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policies", nargs="+", default=POLICIES)
    parser.add_argument("--seeds", default="1000..1029")
    parser.add_argument("--repeats", type=int, default=1, help="runs of an episode, with other delays")
    parser.add_argument("--nodes", type=int, default=20, help="about how many nodes there are")
    parser.add_argument("--out", type=Path, default=Path("runs/bill-tries"))
    args = parser.parse_args()
    seeds, found = list(parse_seeds(args.seeds)), policy_entries(args.policies)
    writer = RowWriter(args.out / "tries.csv", HEADER)
    total = len(TIMES) * len(found) * len(seeds) * args.repeats
    with progress_bar("bills", total, "episode") as bar:
        for join_step_s, failed_try_s in TIMES:
            times = replace(BILL_TASKS["bill"].times, join_step_s=join_step_s, failed_try_s=failed_try_s)
            task = replace(BILL_TASKS["bill"], times=times)
            for each in found:
                runs = []
                for seed in seeds:
                    for repeat in range(args.repeats):
                        runs.append(episode(each, task, seed, args.nodes, repeat))
                        bar.update()
                means = (f"{value:.4g}" for value in np.mean(runs, axis=0))
                row = (join_step_s, failed_try_s, each.name, len(seeds), *means)
                writer.write(dict(zip(HEADER, map(str, row), strict=True)))
                bar.write(" ".join(map(str, row)))


if __name__ == "__main__":
    main()
