"""Pods bound per second on one real cluster: AAML's learning agents in turns with kube-scheduler without its rate cap.

All pods are created first, then one scheduler at a time is started as a process of its own; its rate is the number of
pods over the time from the first bind to the last, as a watch of this process saw them. kube-scheduler posts an event
for each pod and cannot be told not to, so AAML is measured without and with such events.

    .venv/bin/python benchmarks/bench_live.py                      # 10 nodes, 1,000 pods, 3 rounds: about 10 minutes
    .venv/bin/python benchmarks/bench_live.py --pods 300 --rounds 1 --schedulers dqn
    .venv/bin/python benchmarks/bench_live.py --nodes 1000 --schedulers round-robin dqn

A scheduler is `dqn`, `gnn`, `acdqn`, `acgnn` (each learns, writes its curves and saves its model, as its command does),
one of these with `-frozen` behind it (as it begins, without learning), a model file, the name of a heuristic, which
shows what the loop itself can do, or a plugin in kube-scheduler: the folder of `aaml export`, or `plugin:` and a model.

Beside the rates stand what does not move with what else the machine does: milliseconds of CPU a pod, from the first
bind to the last, of the process that decides, of the one that learns for it, and of the API server; the most memory
that the two had (a process that has only imported torch has some 300 MiB); how many updates came a thousand pods; and
which share of the events was written when the last pod was bound.
"""

import argparse
import csv
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import psutil

from aaml.cluster.objects import Pod
from aaml.kube.objects import wire
from aaml.kube.objects.convert import pod_to_json
from aaml.kube.provision import ClusterOptions, KwokCluster, Owner
from aaml.kube.provision.binaries import programs_dir
from aaml.kube.provision.ports import free_port
from aaml.kube.reflector import Changes, Reflector, Source, Trouble
from aaml.kube.transport import Transport
from aaml.plugin.build import build
from aaml.plugin.module import is_plugin
from aaml.plugin.run import command as plugin_command
from aaml.plugin.run import fetch, plugin_of, write_configuration
from aaml.scheduling.curves import CRITIC_LOSS, VALUE_LOSS
from aaml.scheduling.node_sampling import ALL, NodeSampling
from aaml.scheduling.ports import Sampler

if TYPE_CHECKING:
    from aaml.scheduling.ports import Policy

AGENTS = ("dqn", "gnn", "acdqn", "acgnn")
FROZEN = "-frozen"
KUBE_SCHEDULER = "kube-scheduler"
HEADER = (
    "scheduler", "pods_s_median", "pods_s_least", "pods_s_most",
    "scheduler_ms", "learner_ms", "server_ms", "scheduler_mib", "learner_mib", "updates", "events_percent",
)  # fmt: skip
RATES = ("--kube-api-qps=5000", "--kube-api-burst=10000")
SHAPES = ((50, 64), (100, 128), (200, 512), (400, 256))  # cpu_milli, memory in MiB, taken in turn
PODS_A_DEPLOYMENT = 20
PODS_A_DELETION = 250
WAIT_S = 600.0
_DECIDED = 0.99


@dataclass(frozen=True)
class Rate:
    """One run: how fast it bound; CPU ms a pod and MiB of memory that it took; updates a thousand pods.

    `events_percent` is how many of its events were written at the last bind: who leaves them for later binds faster.
    """

    pods_s: float
    scheduler_ms: float
    learner_ms: float
    server_ms: float
    scheduler_mib: float
    learner_mib: float
    updates: float
    events_percent: float


class Costs:
    """What a scheduler's process, its learner's and the API server's have used since the scheduler's first bind."""

    def __init__(self, scheduler: int, server: int) -> None:
        self._processes = {"scheduler": psutil.Process(scheduler), "server": psutil.Process(server)}
        self._before_s: dict[str, float] = {}
        self.begin()

    def begin(self) -> None:
        """Count from now on."""
        for child in self._processes["scheduler"].children():  # it may have others for a moment
            with suppress(psutil.NoSuchProcess):
                if any("learner_process" in argument for argument in child.cmdline()):
                    self._processes["learner"] = child
        self._before_s = {name: cpu_s(process) for name, process in self._processes.items()}
        self.since = time.time()

    def ms(self, name: str) -> float:
        """Return the milliseconds of CPU of a process, 0 where there is none."""
        return 1000.0 * (cpu_s(self._processes[name]) - self._before_s[name]) if name in self._processes else 0.0

    def mib(self, name: str) -> float:
        """Return the most memory that a process has had so far, 0 where there is none."""
        if name not in self._processes:
            return 0.0
        status = Path(f"/proc/{self._processes[name].pid}/status").read_text(encoding="utf-8")
        return int(status.partition("VmHWM:")[2].split()[0]) / 1024.0


def cpu_s(process: psutil.Process) -> float:
    """Return the CPU seconds that a process has used."""
    used = process.cpu_times()
    return float(used.user + used.system)


class Observer:
    """Watches a namespace's pods and keeps when it saw each bound, resuming when the server cuts a slow watcher off."""

    def __init__(self, transport: Transport, namespace: str) -> None:
        self._bound: dict[str, float] = {}
        source: Source[wire.PodObject] = Source(
            "observed pods", f"/api/v1/namespaces/{namespace}/pods", wire.PodObject, lambda raw: raw,
            key=lambda raw: raw.metadata.name, version=lambda raw: raw.metadata.resource_version,
        )  # fmt: skip
        self._listed = threading.Event()
        self._reflector = Reflector(transport, source, self._take)
        self._reflector.start()
        self._listed.wait()

    def _take(self, changes: Changes[wire.PodObject] | Trouble) -> None:
        now = time.perf_counter()
        if isinstance(changes, Changes):
            for delta in changes.deltas:
                if delta.obj.spec.node_name:
                    self._bound.setdefault(delta.obj.metadata.name, now)
            self._listed.set()

    def wait(self, count: int, process: "subprocess.Popen[bytes]", costs: Costs) -> None:
        """Wait until so many pods are bound; costs count from the first one on."""
        deadline = time.monotonic() + WAIT_S
        while len(self._bound) < count:
            if not self._bound:
                costs.begin()
            if process.poll() is not None:
                raise SystemExit(f"the scheduler ended with {len(self._bound)} of {count} pods bound")
            if time.monotonic() > deadline:
                raise SystemExit(f"{len(self._bound)} of {count} pods bound after {WAIT_S:g} s")
            time.sleep(0.05)

    def pods_s(self) -> float:
        """Return the rate from the first bind to the last."""
        times = sorted(self._bound.values())
        return (len(times) - 1) / (times[-1] - times[0])

    def bound_at(self, name: str) -> float:
        """Return when a pod was seen bound, on this process' clock."""
        return self._bound[name]

    def end(self) -> None:
        """Stop watching."""
        self._reflector.stop()
        self._reflector.join(10.0)


@contextmanager
def fresh_namespace(transport: Transport, count: int) -> Iterator[str]:
    """Yield a namespace's name; its pods, `count` or so, are deleted in the end."""
    namespace = f"bench-{time.time_ns():x}"
    transport.request("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
    account = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    while not json.loads(transport.request("GET", account))["items"]:
        time.sleep(0.05)
    try:
        yield namespace
    finally:
        path = f"/api/v1/namespaces/{namespace}/pods"
        for _ in range(0, count, PODS_A_DELETION):  # of more at a time the server would give up after a minute
            query = {"gracePeriodSeconds": "0", "limit": str(PODS_A_DELETION)}
            transport.request("DELETE", path, query=query, timeout_s=120.0)
        transport.request("DELETE", f"/api/v1/namespaces/{namespace}")


def create(transport: Transport, namespace: str, scheduler: str, index: int) -> str:
    """Create the pod of a number, and return its name."""
    cpu, memory = SHAPES[index % len(SHAPES)]
    deployment = index // PODS_A_DEPLOYMENT
    name = f"web-{deployment}-{index}"
    pod = Pod(
        name=name,
        namespace=namespace,
        requests={"cpu": cpu, "memory": memory << 20},
        labels={"app": f"web-{deployment}"},
        scheduler_name=scheduler,
    )
    transport.request("POST", f"/api/v1/namespaces/{namespace}/pods", pod_to_json(pod))
    return name


@contextmanager
def workload(transport: Transport, scheduler: str, count: int) -> Iterator[str]:
    """Create the pods in a fresh namespace, whose name is yielded; its pods are deleted in the end."""
    with fresh_namespace(transport, count) as namespace:
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(lambda index: create(transport, namespace, scheduler, index), range(count)))
        yield namespace


def profile(scheduler: str) -> str:
    """Return the name that pods ask for a scheduler by."""
    return "default-scheduler" if scheduler == KUBE_SCHEDULER or is_plugin(scheduler) else "aaml-bench"


def command(
    cluster: KwokCluster, scheduler: str, events: bool, percentage: int, folder: Path, port: int = 0
) -> list[str]:
    """Return the command line of a scheduler's process, which works in a folder; a plugin's has metrics on a port."""
    if is_plugin(scheduler):
        module, file = plugin_of(scheduler), folder / "kube-scheduler.yaml"
        write_configuration(module, cluster.kubeconfig, file, nodes_percentage=percentage)
        return plugin_command(module, file, port=port)
    if scheduler == KUBE_SCHEDULER:
        program = programs_dir() / "kube-scheduler"
        return [str(program), f"--kubeconfig={cluster.kubeconfig}", "--leader-elect=false", "--secure-port=0", *RATES]
    this = [
        sys.executable,
        str(Path(__file__).absolute()),
        "--child",
        scheduler,
        "--kubeconfig",
        str(cluster.kubeconfig),
    ]
    return [*this, "--percentage", str(percentage), *(["--events"] if events else [])]


def measure(
    cluster: KwokCluster,
    scheduler: str,
    events: bool,
    count: int,
    percentage: int,
    look: Callable[[Callable[[], str]], None] = lambda _: None,
) -> Rate:
    """Run one scheduler over a fresh workload; `look` may ask for a plugin's metrics once the last pod is bound.

    Ends the program where a plugin left a hundredth of the pods to others: that would be another scheduler's rate.
    """
    port = free_port()
    transport = Transport(cluster.kubeconfig, connections=20)
    name = profile(scheduler)
    server = cluster.pid("kube-apiserver")
    if server is None:
        raise SystemExit("the API server has ended")
    with (
        workload(transport, name, count) as namespace,
        tempfile.TemporaryDirectory() as folder,
        (Path(folder) / "log").open("wb") as log,
    ):
        observer = Observer(transport, namespace)
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(
            command(cluster, scheduler, events, percentage, Path(folder), port),
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=environment,
        )
        try:
            costs = Costs(process.pid, server)
            observer.wait(count, process, costs)
            until, told = time.time(), events_written(transport, namespace)
            spent = [costs.ms(name) / count for name in ("scheduler", "learner", "server")]
            memory = [costs.mib(name) for name in ("scheduler", "learner")]
            if is_plugin(scheduler):
                ask = lambda: fetch(port, "/metrics")  # noqa: E731
                look(ask)
                check_decided(ask(), count)
        except SystemExit:
            sys.stderr.write((Path(folder) / "log").read_text(errors="replace")[-2000:])
            raise
        finally:
            observer.end()
            end(process)
        updates = updates_between(Path(folder), costs.since, until) / count * 1000
    transport.close()
    return Rate(observer.pods_s(), *spent, *memory, updates, 100.0 * told / count)


def metric(text: str, name: str) -> float:
    """Return the sum of a counter in the text that /metrics answers."""
    lines = (line.rsplit(" ", 1) for line in text.splitlines() if line.startswith((f"{name} ", f"{name}{{")))
    return sum(float(value) for _, value in lines)


def check_decided(text: str, count: int) -> None:
    """End the program where a plugin's policy has not decided on nearly all of the pods, by what /metrics answers."""
    if (decided := metric(text, "aaml_plugin_decisions_total")) < _DECIDED * count:
        own = [line for line in text.splitlines() if line.startswith("aaml_plugin_") and "_bucket" not in line]
        raise SystemExit(f"the policy decided on {decided:.0f} of {count} pods: {'; '.join(own)}")


def events_written(transport: Transport, namespace: str) -> int:
    """Return how many events there are in a namespace."""
    path = f"/api/v1/namespaces/{namespace}/events"
    page = json.loads(transport.request("GET", path, query={"limit": "1"}))
    return len(page["items"]) + int(page["metadata"].get("remainingItemCount", 0))


def updates_between(folder: Path, since: float, until: float) -> int:
    """Return how many updates the records in a folder tell of, in a time."""
    events = (msgspec.json.decode(line) for file in folder.rglob("*.jsonl") for line in file.read_bytes().splitlines())
    return sum(each.get("name") in {VALUE_LOSS, CRITIC_LOSS} and since <= each["time"] <= until for each in events)


def end(process: "subprocess.Popen[bytes]") -> None:
    """End a scheduler: it may finish what it does, for a minute at most."""
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def child(scheduler: str, kubeconfig: str, events: bool, percentage: int) -> None:
    """Be an AAML scheduler until SIGTERM."""
    from aaml.kube.cluster import KubeCluster, LiveOptions

    cluster = KubeCluster.connect(
        "aaml-bench", kubeconfig=kubeconfig, options=LiveOptions(scheduled_events=events, close_s=30.0)
    )
    if scheduler in AGENTS:
        from aaml.live.agents import SCHEDULERS

        learner = SCHEDULERS[scheduler](cluster=cluster, percentage_of_nodes_to_score=percentage)  # type: ignore[index]
        _ = learner.agent
        signal.signal(signal.SIGTERM, lambda *_: (learner.stop(), cluster.stop()))
        learner.run()
        cluster.close()
        return
    from aaml.live.warm_up import warm_up
    from aaml.policies.registry import make_reward
    from aaml.scheduling.play import play

    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: (ended.set(), cluster.stop()))
    policy = frozen(scheduler)
    if isinstance(policy, Sampler) and percentage < ALL:
        policy.score_some(NodeSampling(percentage))
    warm_up(policy)
    play(cluster, policy, make_reward("balance"), stop=ended.is_set)
    cluster.close()


def frozen(scheduler: str) -> "Policy":
    """Return a policy by its name, an agent that does not learn, or what a model file holds."""
    if (kind := scheduler.removesuffix(FROZEN)) in AGENTS:
        from aaml.learning.config import LIVE
        from aaml.learning.policy import new_policy

        return new_policy(LIVE[kind])  # type: ignore[index]
    from aaml.evaluation.policies import load_policy

    return load_policy(scheduler)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=10)
    parser.add_argument("--pods", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--schedulers", nargs="*", default=list(AGENTS))
    parser.add_argument("--alone", action="store_true", help="leave out kube-scheduler, for figures that need no turns")
    parser.add_argument("--events-only", action="store_true", help="leave out the runs without events")
    parser.add_argument("--no-events", action="store_true", help="leave out the runs with an event a pod")
    parser.add_argument(
        "--percentage", type=int, default=ALL, help="of nodes that networks score; 0: as kube-scheduler"
    )
    parser.add_argument("--csv", type=Path, help="file for the table, a row a scheduler")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--kubeconfig", help=argparse.SUPPRESS)
    parser.add_argument("--events", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child(arguments.child, arguments.kubeconfig, arguments.events, arguments.percentage)
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))  # so that the cluster is taken down
    schedulers = [str(Path(each).resolve()) if Path(each).exists() else each for each in arguments.schedulers]
    runs = [] if arguments.alone else [(KUBE_SCHEDULER, True)]
    runs += [] if arguments.events_only else [(each, False) for each in schedulers if not is_plugin(each)]
    runs += [] if arguments.no_events else [(each, True) for each in schedulers]
    rates: dict[tuple[str, bool], list[Rate]] = {run: [] for run in runs}
    for scheduler in filter(is_plugin, schedulers):
        build(plugin_of(scheduler))
    cluster = KwokCluster(f"bench-{os.getpid()}")
    cluster.up(ClusterOptions(nodes=arguments.nodes, scheduler=False, owner=Owner.this_process()))
    try:
        for round_ in range(arguments.rounds):
            for run in runs:
                rate = measure(cluster, *run, arguments.pods, arguments.percentage)
                rates[run].append(rate)
                print(f"round {round_ + 1}: {words(run)}: {rate.pods_s:.0f} pods/s", file=sys.stderr, flush=True)
    finally:
        cluster.down()
    table = [[words(run), *summary(found)] for run, found in rates.items()]
    print(f"{arguments.pods} pods on {arguments.nodes} nodes, first bind to last, {arguments.rounds} rounds in turns\n")
    print(f"{HEADER[0]:42}", *(f"{title:>13}" for title in HEADER[1:]))
    for name, *values in table:
        print(f"{name:42}", *(f"{value:>13}" for value in values))
    if arguments.csv:
        arguments.csv.parent.mkdir(parents=True, exist_ok=True)
        with arguments.csv.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([HEADER, *table])
    print("\nms: CPU a pod from the first bind on; MiB: the most memory; updates: a thousand pods; events: by then")


def summary(rates: list[Rate]) -> list[str]:
    """Return the columns of `HEADER` after the first."""
    speeds, *others = zip(*map(astuple, rates), strict=True)
    return [
        *(f"{speed:.0f}" for speed in (statistics.median(speeds), min(speeds), max(speeds))),
        *(
            f"{statistics.median(values):.{2 if title.endswith('_ms') else 0}f}"
            for title, values in zip(HEADER[4:], others, strict=True)
        ),
    ]


def words(run: tuple[str, bool]) -> str:
    """Name a run."""
    scheduler, events = run
    if scheduler == KUBE_SCHEDULER:
        return f"{scheduler} (uncapped, an event a pod)"
    if scheduler not in AGENTS:
        scheduler = ("plugin:" if is_plugin(scheduler) else "") + Path(scheduler.removeprefix("plugin:")).name
    return f"{scheduler} ({'learning, ' if scheduler in AGENTS else ''}{'an event a pod' if events else 'no events'})"


if __name__ == "__main__":
    main()
