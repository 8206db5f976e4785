"""Real bills beside simulated ones: the same hour of the `bill` task under several schedulers, on the real Karpenter.

Each run is a cluster of its own: KWOK, Karpenter with the episode's prices and the task's NodePool, and a scheduler.
All schedulers of a seed run side by side. With `--speed 5` an hour takes twelve minutes: Karpenter's constants, the
NodePool's seconds and the pods' times are divided by five; the other programs keep their pace. Then the simulator plays
the same pods, with other delays each time.

    python benchmarks/bench_bill.py --seeds 1000..1009 --out docs/results/bill-real     # ten pairs: an hour and a half
    python benchmarks/bench_bill.py --seeds 1000 --minutes 5 --nodes 5                  # a look: a minute and a half

A scheduler is a policy as `aaml evaluate` takes it, POLICY or LABEL=POLICY, with `+nodepool.yaml` for a NodePool of its
own, and `+learned` or a file of `aaml search nodes` where `aaml autoscale` orders the nodes and there is no NodePool.
`kube-scheduler`, `kube-scheduler-packing` and `kube-scheduler:FILE.yaml` run inside the real kube-scheduler, so
does `plugin:MODEL`; any other is played by `aaml schedule policy`.

A pair takes 155 to 720 s, as its episode does, and half a minute for its clusters. The machine has to be quiet: where
something was done more than a second late, the report says so, and leaves the seed out.

`runs.csv` has a row a run, `bills.csv` the real bills beside the simulated ones. `ratios.csv` has each scheduler's
metrics in terms of the first one's and of `kube-scheduler-packing`'s, paired by seed, with 95% intervals. What is in
`runs.csv` and valid is not played again, so the command goes on where it was. Ctrl-C ends it.
"""

import argparse
import csv
import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import count, product
from pathlib import Path

import numpy as np

from aaml.cluster.objects import Pod
from aaml.errors import StoppedError, UserError
from aaml.evaluation.entries import PolicyEntry, policy_entries
from aaml.evaluation.evaluate import parse_seeds
from aaml.evaluation.statistics import mean_interval, paired
from aaml.files import RowWriter
from aaml.karpenter.build import build as build_karpenter
from aaml.karpenter.changes import SPEEDS
from aaml.karpenter.pool import Pool
from aaml.karpenter.process import TYPES, start
from aaml.kube.provision import ClusterOptions, KwokCluster, Owner, ensure_programs
from aaml.kube.provision.ports import free_port
from aaml.kube.provision.waits import says_ready, until
from aaml.nodes.file import find_autoscaler
from aaml.nodes.node_policy import NodePolicy
from aaml.nodes.nodepool import load_nodepool
from aaml.nodes.settings import HighNodeUtilizationSettings, KarpenterSettings
from aaml.plugin.build import build as build_plugin
from aaml.plugin.module import PREFIX as PLUGIN
from aaml.plugin.run import plugin_of, write_configuration
from aaml.policies.kube_scores.config import PACKING
from aaml.policies.kube_scores.document import document
from aaml.policies.kube_scores.document import write_configuration as write_profiles
from aaml.policies.kube_scores.profile import PREFIX as PROFILE
from aaml.policies.kube_scores.profile import profile_file
from aaml.scheduling.play import play
from aaml.sim.bill import BILL_TASKS, BillTask
from aaml.sim.cluster import SimCluster
from aaml.workload.model import Workload
from billed_episode import BilledEpisode

STOCK, PACKING_NAME = "kube-scheduler", "kube-scheduler-packing"
METRICS = (
    "bill", "bill_per_core_hour", "fluid_ratio", "waiting_mean_s", "waiting_p50_s", "waiting_p99_s", "evicted",
    "nodes_bought", "mean_nodes",
)  # fmt: skip
HEADER = ("task", "seed", "minutes", "nodes", "speed", "scheduler", "where", *METRICS, "late_s")
NODE_POOL = "/apis/karpenter.sh/v1/nodepools/default"
NO_LIMIT, READY_S = 10_000, 120.0
LATE_S = 5.0  # of the workload's time: a run in which something was later says nothing
_NUMBERS = count()  # of the clusters
BILLS = (
    "seed", "scheduler", "real", "simulated", "error", "evicted_real", "evicted_simulated", "p99_s_real",
    "p99_s_simulated",
)  # fmt: skip
COMPARED = ("bill", "bill_per_core_hour", "evicted", "waiting_p99_s")
RATIOS = ("scheduler", "against", "seeds", "metric", "real", "simulated")


@dataclass(frozen=True)
class Entry:
    """A scheduler: as it runs for real, and as the simulator plays it."""

    name: str
    live: str
    simulated: PolicyEntry

    def pool(self, task: BillTask, speed: int) -> Pool:
        """Return the NodePool of a task for this one."""
        task = self.task(task)
        autoscaler = task.autoscaler if isinstance(task.autoscaler, KarpenterSettings) else KarpenterSettings()
        base = load_nodepool(Path(self.simulated.nodes)) if self.simulated.nodes and not self.orders_nodes else None
        return Pool(autoscaler, base, task.times.registration_delay_s, speed)

    @property
    def orders_nodes(self) -> bool:
        """Whether `aaml autoscale` orders its nodes."""
        return bool(self.simulated.nodes) and isinstance(find_autoscaler(self.simulated.nodes), NodePolicy)

    def task(self, task: BillTask) -> BillTask:
        """Return a task with who provisions the nodes for this one."""
        found = self.simulated.task(task)
        assert isinstance(found, BillTask)
        return found


def entries(given: Sequence[str]) -> list[Entry]:
    """Read the command line's schedulers. Raises `UserError` for what is no policy, and for a name twice."""
    plain = [each.replace(f"={PLUGIN}", "=").removeprefix(PLUGIN) for each in given]
    found = []
    for text, simulated in zip(given, (policy_entries(each)[0] for each in plain), strict=True):
        if not isinstance(simulated.spec, str):
            raise UserError(f"schedulers: {text} is not accepted; expected a name or a file")
        if simulated.nodes and isinstance(find_autoscaler(simulated.nodes), HighNodeUtilizationSettings):
            raise UserError(f"schedulers: {text} is not accepted; no descheduler runs beside the real Karpenter here")
        is_plugin = text.startswith(PLUGIN) or f"={PLUGIN}" in text
        name = text.partition("=")[0] if "=" in text else f"{PLUGIN if is_plugin else ''}{simulated.name}"
        found.append(Entry(name, f"{PLUGIN if is_plugin else ''}{simulated.spec}", simulated))
    if len({each.name for each in found}) < len(found):
        raise UserError("schedulers: one is given twice; give labels such as NAME=POLICY")
    return found


@dataclass(frozen=True)
class Hour:
    """The workload of a seed: its pods, how long it lasts, and the task that prices its nodes."""

    task: BillTask
    seed: int
    pods: tuple[Pod, ...]
    until_s: float

    @classmethod
    def of(cls, task: BillTask, seed: int, minutes: float) -> "Hour":
        """Draw the task's pods, up to so many minutes."""
        pods, _ = task.size()
        workload, until_s = task.rhythm(pods, np.random.default_rng([seed, pods]))
        until_s = min(until_s, 60.0 * minutes)
        return cls(task, seed, tuple(pod for pod in workload if pod.created_s < until_s), until_s)

    def simulate(self, entry: Entry, repeat: int) -> dict[str, float]:
        """Return the metrics of a simulated run; `repeat` draws its delays."""
        task = entry.task(self.task)
        supply = task.supply(np.random.default_rng([self.seed, repeat]), task.drawn_catalogue(self.seed))
        cluster = SimCluster((), Workload(self.pods, "hour"), until_s=self.until_s, supply=supply)
        play(cluster, entry.simulated.policy(task, self.seed))
        return dict(cluster.metrics())

    def run(self, entry: Entry, speed: int, ready: Callable[[BilledEpisode], object]) -> dict[str, float]:
        """Return the metrics of a real run, on a cluster of its own.

        `ready` gets the episode once it can begin, may wait for others, and may stop it later.
        """
        catalogue = self.task.drawn_catalogue(self.seed)
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            name = "".join(letter if letter.isalnum() else "-" for letter in entry.name.lower())[:20].strip("-")
            cluster = KwokCluster(f"bill-{os.getpid()}-{next(_NUMBERS)}-{name}")
            stack.callback(cluster.down)
            cluster.up(replace(scheduler_options(entry.live, folder), owner=Owner.this_process()), progress=False)
            start(cluster, entry.pool(self.task, speed), catalogue)
            if entry.orders_nodes:
                cluster.api().request("DELETE", NODE_POOL)
            for command, is_ready in commands(entry, cluster, speed):
                stack.enter_context(at_work(command, is_ready, folder / f"{command[0]}.log"))
            episode = BilledEpisode(cluster, self.pods, self.until_s, catalogue, speed)
            ready(episode)
            return dict(episode.play(progress=False))


def scheduler_options(live: str, folder: Path) -> ClusterOptions:
    """Return a cluster without workers that is scheduled so; its files are in `folder`."""
    options, file = ClusterOptions(nodes=0), folder / "kube-scheduler.yaml"
    if live.startswith(PLUGIN):
        module = plugin_of(live)
        return replace(options, scheduler_config=write_configuration(module, Path(), file),
                       scheduler_program=build_plugin(module))  # fmt: skip
    if live == PACKING_NAME:
        write_profiles(file, document(PACKING))
        return replace(options, scheduler_config=file)
    if live.startswith(PROFILE):
        return replace(options, scheduler_config=profile_file(live))
    return replace(options, scheduler=live == STOCK)


def commands(entry: Entry, cluster: KwokCluster, speed: int) -> Iterator[tuple[list[str], Callable[[str], bool]]]:
    """Yield the commands that work beside a cluster's own programs, and what tells by the log that each is ready."""
    kubeconfig = ["--kubeconfig", str(cluster.kubeconfig)]
    inside = entry.live in {STOCK, PACKING_NAME} or entry.live.startswith((PLUGIN, PROFILE))
    if not inside:
        port = free_port()
        yield ["schedule", "policy", "--policy", entry.live, "--scheduler-name", "default-scheduler",
               "--no-log-scrolling", "--health-port", str(port), *kubeconfig], lambda _: says_ready(port)  # fmt: skip
    if entry.orders_nodes:
        limits = ["--moves", str(NO_LIMIT), "--most-nodes", str(NO_LIMIT)]  # as in the simulator
        begins = "provisions and terminates nodes"
        yield ["autoscale", "--nodes", entry.simulated.nodes, "--apply", "--speed", str(speed), *limits,
               "--instance-types", str(cluster.directory / TYPES), *kubeconfig], lambda log: begins in log  # fmt: skip


@contextmanager
def at_work(command: list[str], is_ready: Callable[[str], bool], log: Path) -> Iterator[None]:
    """Run a command of `aaml` while the block lasts, from when it is ready. Raises `UserError` where it ends before."""
    with log.open("wb") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "aaml", *command], stdout=said, stderr=said, start_new_session=True
        )

    def works() -> bool:
        words = log.read_text(errors="replace")
        if process.poll() is not None:
            raise UserError(f"`aaml {command[0]}` has ended: {' '.join(words.strip().splitlines()[-1:])}")
        return is_ready(words)

    try:
        until(works, READY_S, f"`aaml {command[0]}` was not ready")
        yield
        works()
    finally:
        process.terminate()
        process.wait(60)


def side_by_side(hour: Hour, schedulers: Sequence[Entry], speed: int) -> Iterator[tuple[Entry, dict[str, float]]]:
    """Yield the metrics of real runs as they end.

    The runs begin when all their clusters are up: starting one takes both cores.
    """
    all_up, playing = threading.Barrier(len(schedulers)), list[BilledEpisode]()

    def ready(episode: BilledEpisode) -> None:
        playing.append(episode)
        all_up.wait()

    with ThreadPoolExecutor(len(schedulers)) as pool:
        runs = {pool.submit(hour.run, each, speed, ready): each for each in schedulers}
        try:
            for run in as_completed(runs):
                yield runs[run], run.result()
        except BaseException:
            all_up.abort()
            for episode in playing:
                episode.stop()
            raise


def says_nothing(row: Mapping[str, str]) -> bool:
    """Say whether something was done too late in a run."""
    return bool(row["late_s"]) and float(row["late_s"]) > LATE_S


class Table:
    """The rows of all runs, in a file that only grows. Runs of before that say nothing count as not made."""

    def __init__(self, path: Path) -> None:
        self.path, self.rows = path, list[dict[str, str]]()
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_file():
            with path.open(newline="", encoding="utf-8") as file:
                self.rows = [row for row in csv.DictReader(file) if not says_nothing(row)]
        else:
            path.write_text(",".join(HEADER) + "\n", encoding="utf-8")

    def add(self, key: dict[str, object], found: dict[str, float]) -> None:
        """Write a run down."""
        numbers = {name: f"{found[name]:.6g}" for name in (*METRICS, "late_s") if name in found}
        row = {name: str(value) for name, value in {"late_s": "", **key, **numbers}.items()}
        self.rows.append(row)
        with self.path.open("a", newline="", encoding="utf-8") as file:
            csv.DictWriter(file, HEADER, lineterminator="\n").writerow(row)

    def has(self, key: dict[str, object]) -> bool:
        """Whether a run is in it."""
        return any(all(row[name] == str(value) for name, value in key.items()) for row in self.rows)

    def mean(self, key: dict[str, object], metric: str) -> float:
        """Return a run's metric, the mean of its repeats."""
        found = [float(row[metric]) for row in self.rows if all(row[name] == str(key[name]) for name in key)]
        return float(np.mean(found)) if found else math.nan


def bills(
    table: Table, keys: Callable[[int, str, str], dict[str, object]], names: list[str], seeds: list[int]
) -> list[dict[str, str]]:
    """Return a row of text for each run: the real bill and the simulated one."""
    rows = []
    for seed in seeds:
        for name in names:
            both = {m: [table.mean(keys(seed, name, where), m) for where in ("real", "simulated")] for m in METRICS}
            (real, simulated), evicted, waits = both["bill"], both["evicted"], both["waiting_p99_s"]
            values = (
                seed, name, f"{real:.3f}", f"{simulated:.3f}", f"{simulated / real - 1.0:+.1%}",
                *(f"{each:.0f}" for each in (*evicted, *waits)),
            )  # fmt: skip
            rows.append(dict(zip(BILLS, map(str, values), strict=True)))
    return rows


def ratios(
    table: Table, keys: Callable[[int, str, str], dict[str, object]], names: list[str], seeds: list[int]
) -> list[dict[str, str]]:
    """Return a row of text for each scheduler and metric, in terms of the first one's and of packing's."""
    rows = []
    for against in dict.fromkeys((names[0], PACKING_NAME if PACKING_NAME in names else names[0])):
        others = [name for name in names if name != against]
        for name, metric in product(others, COMPARED):
            told = list[str]()
            for where in ("real", "simulated"):
                mine, theirs = (
                    [table.mean(keys(seed, each, where), metric) for seed in seeds] for each in (name, against)
                )
                ratio = paired(mine, theirs, "lower").ratio
                known = ratio and (f"{ratio:.3f}" if ratio.count > 1 else f"{ratio.mean:.3f}")
                told.append(known or "unknown")
            rows.append(dict(zip(RATIOS, (name, against, str(len(seeds)), metric, *told), strict=True)))
    return rows


def report(table: Table, keys: Callable[[int, str, str], dict[str, object]], names: list[str], seeds: list[int]) -> str:
    """Return what is told: each bill for real and simulated, and each scheduler against the first."""
    lines = [f"{len(seeds)} seeds: {', '.join(map(str, seeds))}", ""]
    if late := [row for row in table.rows if says_nothing(row)]:
        told = ", ".join(f"{row['scheduler']} of {row['seed']} ({float(row['late_s']):.0f} s)" for row in late)
        lines += [
            f"NOT VALID, because the machine was too busy to do things when they were due: {told}",
            "Their seeds are left out. The same command plays these runs again.",
            "",
        ]
    rows = [dict(zip(BILLS, BILLS, strict=True)), *bills(table, keys, names, seeds)]
    widths = {title: max(len(row[title]) for row in rows) for title in BILLS}
    lines += ["  ".join(f"{row[title]:>{widths[title]}}" for title in BILLS) for row in rows]
    errors = {
        name: [
            table.mean(keys(s, name, "simulated"), "bill") / table.mean(keys(s, name, "real"), "bill") - 1.0
            for s in seeds
        ]
        for name in names
    }
    whole = [error for each in errors.values() for error in each]
    lines += [
        "",
        f"Simulated bills are {np.mean(whole):+.1%} off, in absolute value {np.mean(np.abs(whole)):.1%}; by scheduler:",
    ]
    lines += [f"  {name:28} {mean_interval(each):+.1%}" for name, each in errors.items()]
    for row in ratios(table, keys, names, seeds):
        lines.append(f"{row['metric']} of {row['scheduler']}, of {row['against']}'s: "
                     f"real {row['real']}, simulated {row['simulated']}")  # fmt: skip
    return "\n".join(lines)


def main() -> None:  # noqa: C901
    """Run what is not in the table yet, and print what all of it says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schedulers", nargs="+", default=[STOCK, PACKING_NAME])
    parser.add_argument(
        "--task",
        default="bill",
        choices=[n for n, t in BILL_TASKS.items() if isinstance(t.autoscaler, KarpenterSettings)],
    )
    parser.add_argument("--seeds", default="1000..1009")
    parser.add_argument("--nodes", type=int, default=20, help="about how many nodes there are")
    parser.add_argument(
        "--minutes", type=float, default=60.0, help="of an episode, at most; its own length where that is less"
    )
    parser.add_argument("--speed", type=int, default=5, choices=SPEEDS)
    parser.add_argument("--repeats", type=int, default=4, help="simulated runs a real one, with other delays")
    parser.add_argument("--at-once", type=int, default=0, help="real runs side by side; 0: all schedulers of a seed")
    parser.add_argument("--out", type=Path, default=Path("runs/bill-real"))
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))  # so that clusters are taken down
    schedulers, seeds = entries(args.schedulers), list(parse_seeds(args.seeds))
    task = replace(BILL_TASKS[args.task], nodes=args.nodes)
    table = Table(args.out / "runs.csv")

    def key(seed: int, name: str, where: str) -> dict[str, object]:
        said = {"task": args.task, "seed": seed, "minutes": args.minutes, "nodes": args.nodes, "speed": args.speed}
        return {**said, "scheduler": name, "where": where}

    ensure_programs()
    build_karpenter(args.speed)
    for each in schedulers:
        if each.live.startswith(PLUGIN):
            build_plugin(plugin_of(each.live))
    at_once = args.at_once or len(schedulers)
    for seed in seeds:
        hour = Hour.of(task, seed, args.minutes)
        waiting = [each for each in schedulers if not table.has(key(seed, each.name, "real"))]
        for chunk in (waiting[first : first + at_once] for first in range(0, len(waiting), at_once)):
            told = ", ".join(each.name for each in chunk)
            print(f"seed {seed}: {len(hour.pods)} pods, {hour.until_s / args.speed:.0f} s: {told}", file=sys.stderr)
            for each, found in side_by_side(hour, chunk, args.speed):
                table.add(key(seed, each.name, "real"), found)
        for each in schedulers:
            if not table.has(key(seed, each.name, "simulated")):
                for found in [hour.simulate(each, repeat) for repeat in range(args.repeats)]:
                    table.add(key(seed, each.name, "simulated"), found)
    names = [each.name for each in schedulers]
    late = {row["seed"] for row in table.rows if says_nothing(row)}
    valid = [seed for seed in seeds if str(seed) not in late]
    if not valid:
        raise UserError("no seed is valid: the machine was too busy; the same command plays them again")
    for file, header, rows in (
        ("bills.csv", BILLS, bills(table, key, names, valid)),
        ("ratios.csv", RATIOS, ratios(table, key, names, valid)),
    ):
        writer = RowWriter(args.out / file, header)
        for row in rows:
            writer.write(row)
    text = report(table, key, names, valid)
    (args.out / "report.txt").write_text(text + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    try:
        main()
    except (UserError, StoppedError) as error:
        sys.exit(f"bench_bill: {error}")
    except KeyboardInterrupt:
        sys.exit("bench_bill: stopped; the same command goes on where it was")
