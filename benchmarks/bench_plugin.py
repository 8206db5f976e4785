"""What a policy inside kube-scheduler costs: binds a second and memory, in turns with the stock kube-scheduler.

The workload, and what is measured, are those of `bench_live.py`: all pods are created first, an event a pod, no cap on
requests. Each plugin runs twice: with kube-scheduler's own sampling of nodes, and with all nodes scored. Each round
begins with another run, so that none has the same place in all rounds. A rate stands beside that of the stock
kube-scheduler in the same round, and the ratio is the median over rounds.

    .venv/bin/python benchmarks/bench_plugin.py --csv docs/results/plugin/rates.csv       # about an hour and a half
    .venv/bin/python benchmarks/bench_plugin.py --nodes 100 --rounds 1 --pods 500         # a look: three minutes

`decision_ms` is the time in the plugin's PreScore for a pod, by its own histogram: the bucket that holds the median.
`mib_over_stock` is the most memory that the process had, less that of the stock one.
"""

import argparse
import os
import signal
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

import bench_live as live
from aaml.files import RowWriter
from aaml.kube.provision import ClusterOptions, KwokCluster, Owner
from aaml.plugin.build import build
from aaml.plugin.run import plugin_of

STOCK = live.KUBE_SCHEDULER
MODELS = ("plugin:varied-acdqn", "plugin:varied-acgnn", "plugin:balance-linear")
SAMPLED, ALL = 0, 100
HEADER = (
    "nodes", "scheduler", "scored", "pods", "rounds", "pods_s", "pods_s_least", "pods_s_most", "of_stock",
    "scheduler_ms", "server_ms", "mib", "mib_over_stock", "decision_ms",
)  # fmt: skip
Run = tuple[str, int]


def median_ms(metrics: str) -> float:
    """Return the upper bound in ms of the bucket of the decisions' histogram that holds the median."""
    name = "aaml_plugin_duration_seconds_bucket"
    buckets = [line.rsplit(" ", 1) for line in metrics.splitlines() if line.startswith(name)]
    counts = [(float(key.partition('le="')[2].partition('"')[0]), float(value)) for key, value in buckets]
    half = counts[-1][1] / 2
    return 1000.0 * next(bound for bound, below in counts if below >= half)


def measure(nodes: int, schedulers: Sequence[str], pods: int, rounds: int) -> list[dict[str, object]]:
    """Return a row for each scheduler and way of scoring on a cluster of so many nodes."""
    runs: list[Run] = [(STOCK, SAMPLED), *((each, scored) for scored in (SAMPLED, ALL) for each in schedulers)]
    rates: dict[Run, list[live.Rate]] = {run: [] for run in runs}
    decision_ms: dict[Run, list[float]] = {run: [] for run in runs}
    cluster = KwokCluster(f"bench-plugin-{os.getpid()}")
    cluster.up(ClusterOptions(nodes=nodes, scheduler=False, owner=Owner.this_process(), wait_s=600.0))
    try:
        for round_ in range(rounds):
            first = round_ * len(runs) // rounds
            for run in (*runs[first:], *runs[:first]):
                look = lambda ask, run=run: decision_ms[run].append(median_ms(ask()))  # noqa: E731
                rate = live.measure(cluster, run[0], True, pods, run[1], look)
                rates[run].append(rate)
                print(f"{nodes} nodes, round {round_ + 1}: {words(run)}: {rate.pods_s:.0f} pods/s", file=sys.stderr)
    finally:
        cluster.down()
    stock = rates[runs[0]]
    return [row(nodes, pods, run, found, stock, decision_ms[run]) for run, found in rates.items()]


def row(
    nodes: int, pods: int, run: Run, found: list[live.Rate], stock: list[live.Rate], decision_ms: list[float]
) -> dict[str, object]:
    """Return a row of the table, with medians over rounds."""
    rates = [each.pods_s for each in found]
    ratio = statistics.median(ours.pods_s / theirs.pods_s for ours, theirs in zip(found, stock, strict=True))
    mib, theirs = (statistics.median(each.scheduler_mib for each in runs) for runs in (found, stock))
    speeds = (f"{each:.0f}" for each in (statistics.median(rates), min(rates), max(rates)))
    scheduler_ms, server_ms = (
        f"{statistics.median(getattr(each, what) for each in found):.2f}" for what in ("scheduler_ms", "server_ms")
    )
    deciding = f"{statistics.median(decision_ms):.2f}" if decision_ms else ""
    values = (
        nodes, name(run), "all" if run[1] == ALL else "sampled", pods, len(found), *speeds, f"{ratio:.2f}",
        scheduler_ms, server_ms, f"{mib:.0f}", f"{mib - theirs:.0f}", deciding,
    )  # fmt: skip
    return dict(zip(HEADER, values, strict=True))


def name(run: Run) -> str:
    """Return a scheduler's name as the table has it."""
    return Path(run[0].removeprefix("plugin:")).stem


def words(run: Run) -> str:
    """Name a run."""
    return name(run) if run[0] == STOCK else f"{name(run)}, {'all nodes' if run[1] == ALL else 'sampled'}"


def main() -> None:
    """Measure, print, and write the table after each size of cluster."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=[100, 1000, 5000])
    parser.add_argument("--pods", type=int, default=1500)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--schedulers", nargs="+", default=list(MODELS), help="folders, or plugin:MODEL")
    parser.add_argument("--csv", type=Path, help="file for the table")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))  # so that the cluster is taken down
    schedulers = [str(Path(each).resolve()) if Path(each).exists() else each for each in given.schedulers]
    for scheduler in schedulers:
        build(plugin_of(scheduler))
    table = given.csv and RowWriter(given.csv, HEADER)
    rows: list[dict[str, object]] = []
    for nodes in given.nodes:
        found = measure(nodes, schedulers, given.pods, given.rounds)
        rows += found
        for each in found if table else ():
            table.write(each)
    widths = {title: max(len(title), *(len(str(each[title])) for each in rows)) for title in HEADER}
    for each in (dict(zip(HEADER, HEADER, strict=True)), *rows):
        print(*(f"{each[title]!s:>{widths[title]}}" for title in HEADER))


if __name__ == "__main__":
    main()
