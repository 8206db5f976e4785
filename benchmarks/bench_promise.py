"""What a promise costs: learned nodes that keep one, beside kube-scheduler's MostAllocated with Karpenter.

On six workloads that nothing was tuned on (`examples/drawn_bills.py`) the promise is what that pair gives there on
average: the 99th percentile of waits, and the evictions for each hour that a pod runs. Then 20 s more of waiting.

    python benchmarks/bench_promise.py --types aws_instance_types.json --out runs/promise        # an hour of a core
    python benchmarks/bench_promise.py --nodes 20 --curve --out runs/curve     # dollars against seconds, all settings

Karpenter's episodes take nearly all of the time. `--pair promise.csv` takes them from an earlier run.

Rows go to promise.csv, one an episode, and the table to summary.csv: for each workload and size what is promised, in
which share of the episodes it was kept, means, and the bill against the pair's.
"""

import argparse
import csv
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import exp, log
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from aaml.evaluation.evaluate import parse_seeds
from aaml.files import RowWriter
from aaml.nodes.file import find_autoscaler
from aaml.nodes.node_policy import NodePolicy
from aaml.nodes.settings import KarpenterSettings
from aaml.parallel.pool import Pool, open_pool
from aaml.progress import progress_bar
from aaml.sim.bill import BILL_TASKS, BillTask
from aaml.tuning.nodes import FIRST_COME, evaluate_nodes

if TYPE_CHECKING:
    from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
PACKING = "kube-scheduler-packing"
METRICS = ("bill_per_core_hour", "waiting_p99_s", "waiting_mean_s", "evictions_per_pod_hour")
HEADER = ("workload", "nodes", "policy", "promised_p99_s", "promised_evictions", "seed", *METRICS)
SUMMARY = ("workload", "nodes", "policy", "promised", "kept", "p99_s", "mean_s", "evictions", "bill")
LOOSER_S = 20.0
BATCHES = ((1, 10), (2, 10), (5, 20), (10, 30), (20, 30), (30, 60), (60, 120))
PROMISES_S = (25, 30, 35, 40, 50, 60, 80, 120)
Row = tuple[float, ...]
Played = Mapping[tuple[int, int, int], Row]
"""By workload, nodes and seed."""


def play(number: int, nodes: int, seed: int, policy: NodePolicy | KarpenterSettings | None) -> Row:
    """Return the metrics of an episode of a workload: under learned nodes, or MostAllocated with Karpenter."""
    from drawn_bills import drawn_bill

    task: BillTask = drawn_bill(number) if number >= 0 else BILL_TASKS["bill"]
    if isinstance(policy, NodePolicy):
        return tuple(evaluate_nodes(task, seed, nodes, [(FIRST_COME, policy)], METRICS)[0].tolist())
    if policy is not None:
        task = replace(task, autoscaler=policy)
    return tuple(evaluate_nodes(task, seed, nodes, [(PACKING, None)], METRICS)[0].tolist())


def read_pair(path: Path) -> Played:
    """Return what an earlier run has played of the pair."""
    with path.open(encoding="utf-8", newline="") as file:
        return {
            (int(row["workload"]), int(row["nodes"]), int(row["seed"])): tuple(float(row[name]) for name in METRICS)
            for row in csv.DictReader(file)
            if row["policy"] == PACKING
        }


@dataclass(frozen=True)
class Case:
    """A workload at a size: plays policies on the same episodes, writes each, and prints a line for each policy.

    `played`: the pair's episodes that need no playing.
    """

    number: int
    nodes: int
    seeds: Sequence[int]
    pool: Pool
    writer: RowWriter
    summary: RowWriter
    bar: "tqdm[Any]"
    played: Played

    def play(self, name: str, policy: NodePolicy | KarpenterSettings | None) -> list[Row]:
        """Return the rows of all episodes, in the order of their seeds."""
        known = {} if policy is not None else self.played
        found = {seed: known[key] for seed in self.seeds if (key := (self.number, self.nodes, seed)) in known}
        self.bar.update(len(found))
        missing = [seed for seed in self.seeds if seed not in found]
        for place, row in self.pool.run(play, [(self.number, self.nodes, seed, policy) for seed in missing]):
            found[missing[place]] = row
            self.bar.update()
        rows = [found[seed] for seed in self.seeds]
        promise = policy.promised if isinstance(policy, NodePolicy) else {}
        promised = promise.get("wait_p99_s", ""), promise.get("evictions_per_pod_hour", "")
        for seed, row in zip(self.seeds, rows, strict=True):
            values = (self.number, self.nodes, name, *promised, seed, *row)
            self.writer.add(dict(zip(HEADER, values, strict=True)))
        return rows

    def tell(self, name: str, rows: list[Row], pair: list[Row], most_s: float | None = None) -> None:
        """Print what a policy came to, against the pair."""
        bill = exp(fmean(log(own[0] / other[0]) for own, other in zip(rows, pair, strict=True)))
        p99_s, mean_s, evictions = (fmean(row[place] for row in rows) for place in (1, 2, 3))
        kept = "" if most_s is None else f"{fmean(row[1] <= most_s for row in rows):.2f}"
        promised = "" if most_s is None else f"{most_s:.1f}"
        cells = (
            self.number, self.nodes, name, promised, kept, f"{p99_s:.1f}", f"{mean_s:.1f}", f"{evictions:.2f}",
            f"{bill:.3f}",
        )  # fmt: skip
        self.summary.add(dict(zip(SUMMARY, cells, strict=True)))
        self.bar.write("| " + " | ".join(map(str, cells)) + " |")


def play_case(case: Case, policy: NodePolicy, *, curve: bool) -> None:
    """Play the pair, then what it promises: or many settings of Karpenter, and many promises."""
    pair = case.play(PACKING, None)
    case.tell(PACKING, pair, pair)
    p99_s, evictions = (fmean(row[place] for row in pair) for place in (1, 3))
    for idle_s, most_s in BATCHES if curve else ():
        settings = KarpenterSettings(
            consolidate_after_s=15.0, batch_idle_duration_s=idle_s, batch_max_duration_s=most_s
        )  # fmt: skip
        name = f"{PACKING}, batches of {idle_s:.0f} s to {most_s:.0f} s"
        case.tell(name, case.play(name, settings), pair)
    for seconds in PROMISES_S if curve else (p99_s, p99_s + LOOSER_S):
        name = f"{seconds:.0f} s" if curve else "the pair's" if seconds == p99_s else f"{LOOSER_S:.0f} s looser"
        promise = {"wait_p99_s": float(seconds), "evictions_per_pod_hour": evictions}
        case.tell(name, case.play(name, replace(policy, **promise)), pair, seconds)


def main() -> None:
    """Play, write each row, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--types", type=Path, help="Karpenter's file of AWS's types; without it those that ship")
    parser.add_argument("--workloads", type=int, nargs="+", default=list(range(6)), help="numbers; -1: the task bill")
    parser.add_argument("--nodes", type=int, nargs="+", default=[20, 100, 400])
    parser.add_argument("--seeds", default="1000..1019")
    parser.add_argument("--policy", default="learned", help="`learned`, or a file of `aaml search nodes`")
    parser.add_argument("--pair", type=Path, help="promise.csv of an earlier run: what it has of the pair is kept")
    parser.add_argument("--curve", action="store_true", help="many promises and many batch durations instead")
    parser.add_argument("--workers", default="1")
    parser.add_argument("--out", type=Path, default=Path("runs/promise"))
    args = parser.parse_args()
    if args.types is not None:
        os.environ["AWS_TYPES"] = str(args.types.resolve())
    seeds, policy = list(parse_seeds(args.seeds)), find_autoscaler(args.policy)
    played = read_pair(args.pair) if args.pair else {}
    if not isinstance(policy, NodePolicy):
        raise SystemExit(f"--policy: {args.policy}: expected `learned`, or a file of `aaml search nodes`")
    cases, kinds = list(product(args.workloads, args.nodes)), 1 + (len(BATCHES) + len(PROMISES_S) if args.curve else 2)
    writer = RowWriter(args.out / "promise.csv", HEADER)
    summary = RowWriter(args.out / "summary.csv", SUMMARY)
    print(f"| {' | '.join(SUMMARY)} |\n|{' --- |' * len(SUMMARY)}")
    with open_pool(args.workers) as pool, progress_bar("bills", len(cases) * len(seeds) * kinds, "episode") as bar:
        for number, nodes in cases:
            play_case(Case(number, nodes, seeds, pool, writer, summary, bar, played), policy, curve=args.curve)


if __name__ == "__main__":
    main()
