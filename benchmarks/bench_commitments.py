"""What is it worth that learned nodes know what was committed to? The same pods and commitments, known or not.

    python benchmarks/bench_commitments.py --seeds 1000..1019

The task is `bill` at its own prices, with MostAllocated. A commitment costs a share of what `learned` nodes pay without
any (the mean of the seeds), less its discount. Ratios are of what is paid, with 95% intervals, paired by episode.
"""

import argparse
import csv
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from aaml.evaluation.evaluate import evaluate
from aaml.evaluation.statistics import paired
from aaml.nodes.catalogue import Catalogue
from aaml.nodes.commitments import Commitments, Reservation, SavingsPlan
from aaml.nodes.learned import LearnedNodes
from aaml.nodes.node_policy import NodePolicy
from aaml.nodes.ports import Autoscaler
from aaml.sim.bill import BILL_TASKS, BillTask

SCHEDULER = "kube-scheduler-packing"
BILL = replace(BILL_TASKS["bill"], fixed_prices=True)


def not_knowing(catalogue: Catalogue, rng: np.random.Generator) -> Autoscaler:
    """Return learned nodes that know nothing of commitments."""
    return LearnedNodes(NodePolicy(), catalogue, NodePolicy().look_s * float(rng.random()))


def cases(per_hour: float) -> dict[str, Commitments]:
    """Return commitments by what they are, where nodes cost so much an hour without any."""

    def plan(share: float, discount: float, *families: str) -> Commitments:
        dollars = share * per_hour * (1.0 - discount)
        return Commitments(savings_plans=(SavingsPlan(dollars_per_hour=dollars, discount=discount, families=families),))

    def reserved(kind: str, share: float, discount: float) -> Commitments:
        price = BILL.sold[kind].cheapest.price
        count = max(round(share * per_hour / price), 1)
        one = Reservation(instance_type=kind, count=count, dollars_per_hour=price * (1.0 - discount))
        return Commitments(reservations=(one,))

    return {
        "a plan of all types, half of the bill, 28% off": plan(0.5, 0.28),
        "a plan of all types, the whole bill, 28% off": plan(1.0, 0.28),
        "a plan of the family general, half of the bill, 41% off": plan(0.5, 0.41, "general"),
        "a plan of the family memory, half of the bill, 41% off": plan(0.5, 0.41, "memory"),
        "general-4 reserved, half of the bill, 40% off": reserved("general-4", 0.5, 0.4),
    }


def bills(task: BillTask, nodes: int, seeds: Sequence[int], *metrics: str) -> list[np.ndarray]:
    """Return metrics of each seed."""
    runs = evaluate([SCHEDULER], task, seeds=seeds, nodes=[nodes], progress=False).runs
    return [runs.sort_values("seed")[name].to_numpy() for name in metrics]


def main() -> None:
    """Print a row for each commitment."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="1000..1019")
    parser.add_argument("--nodes", type=int, default=20)
    parser.add_argument("--out", type=Path, help="a CSV file of the rows")
    arguments = parser.parse_args()
    first, _, last = arguments.seeds.partition("..")
    seeds, nodes = range(int(first), int(last) + 1), arguments.nodes
    learned = replace(BILL, autoscaler=NodePolicy())
    (alone,) = bills(learned, nodes, seeds, "bill")
    print(f"{nodes} nodes, {len(seeds)} seeds; without commitments ${alone.mean():.3f} an hour", flush=True)
    rows = list[dict[str, str]]()
    for name, commitments in cases(float(alone.mean())).items():
        shown = ("bill", "waiting_mean_s", "evicted")
        known = bills(replace(learned, name="known", commitments=commitments), nodes, seeds, *shown)
        unknown = bills(
            replace(learned, name="unknown", autoscaler=not_knowing, commitments=commitments), nodes, seeds, *shown
        )
        row = {"commitment": name}
        for what, of, digits in (("", 0, 3), ("wait_", 1, 1), ("evicted_", 2, 1)):
            row[f"{what}known"] = f"{known[of].mean():.{digits}f}"
            row[f"{what}unknown"] = f"{unknown[of].mean():.{digits}f}"
        row["ratio"] = f"{paired(known[0], unknown[0], 'lower').ratio:.3f}"
        rows.append(row)
        print(row, flush=True)
    if arguments.out is not None:
        with arguments.out.open("w", newline="", encoding="utf-8") as file:
            table = csv.DictWriter(file, rows[0], lineterminator="\n")
            table.writeheader()
            table.writerows(rows)


if __name__ == "__main__":
    main()
