"""What a NodePool's settings are worth beside placement: bills of the task `bill` under others, paired by seed.

    python benchmarks/bench_bill_settings.py --seeds 10 --out runs/bill-settings     # some minutes of one core

Each row is a NodePool with a scheduler, against kube-scheduler with the task's own NodePool on the same pods, types and
prices. Rows go to settings.csv as they are done.
"""

import argparse
from dataclasses import replace
from pathlib import Path

from aaml.evaluation.statistics import LEAST_SEEDS, paired
from aaml.files import write_text
from aaml.nodes.settings import KarpenterSettings
from aaml.policies.heuristics import PolicyOptions
from aaml.policies.registry import make_policy
from aaml.progress import progress_bar
from aaml.scheduling.play import play
from aaml.sim.bill import BILL_TASKS, BillTask

BILL = BILL_TASKS["bill"]
OWN = KarpenterSettings(consolidate_after_s=15.0)
SETTINGS = {
    "as the task has it: 15 s, budget 10%, batches of 1 s to 10 s": OWN,
    "`consolidateAfter: 0s`": replace(OWN, consolidate_after_s=0.0),
    "`consolidateAfter: 60s`": replace(OWN, consolidate_after_s=60.0),
    "a budget of 30%": replace(OWN, budgets=("30%",)),
    "`WhenEmpty`": replace(OWN, consolidation_policy="WhenEmpty"),
    "`Balanced`": replace(OWN, consolidation_policy="Balanced"),
    "batches of 10 s to 30 s": replace(OWN, batch_idle_duration_s=10.0, batch_max_duration_s=30.0),
    "batches of 10 s to 30 s, a budget of 30%": replace(
        OWN, batch_idle_duration_s=10.0, batch_max_duration_s=30.0, budgets=("30%",)
    ),
}
POLICIES = ("kube-scheduler", "kube-scheduler-packing")
SHOWN = ("bill", "cost", "waiting_mean_s", "waiting_p99_s", "evicted")


def episode(settings: KarpenterSettings, policy: str, seed: int, nodes: int) -> dict[str, float]:
    """Return the metrics of an episode."""
    task: BillTask = replace(BILL, autoscaler=settings)
    cluster = task.build(seed, nodes)
    play(cluster, make_policy(policy, PolicyOptions(seed=seed)))
    return dict(cluster.metrics())


def main() -> None:
    """Play, print, and write the table after each row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10, help="episodes, from seed 1000 on")
    parser.add_argument("--nodes", type=int, default=20)
    parser.add_argument("--out", type=Path, default=Path("runs/bill-settings"))
    args = parser.parse_args()
    if args.seeds < LEAST_SEEDS:
        parser.error(f"--seeds: {args.seeds} say nothing; expected at least {LEAST_SEEDS}")
    seeds = range(1000, 1000 + args.seeds)
    reference: list[dict[str, float]] = []
    lines = [f"nodepool,policy,seeds,bill,cost,{','.join(SHOWN[2:])}"]
    ways = [(label, policy) for label in SETTINGS for policy in POLICIES]
    with progress_bar("bills", len(ways) * len(seeds), "episode") as bar:
        for label, policy in ways:
            runs = []
            for seed in seeds:
                runs.append(episode(SETTINGS[label], policy, seed, args.nodes))
                bar.update()
            reference = reference or runs
            cells = []
            for name in SHOWN[:2]:
                ratio = paired([run[name] for run in runs], [run[name] for run in reference], "lower").ratio
                told = "" if ratio is None else f"{ratio.mean:.3f} [{ratio.low:.3f}; {ratio.high:.3f}]"
                cells.append("1" if runs is reference else told)
            cells += [f"{sum(run[name] for run in runs) / len(runs):.1f}" for name in SHOWN[2:]]
            lines.append(f'"{label}",{policy},{len(runs)},{",".join(cells)}')
            bar.write(" | ".join([label, policy, *cells]))
            write_text(args.out / "settings.csv", "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
