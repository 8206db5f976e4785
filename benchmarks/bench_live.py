"""Pods bound per second on one real cluster: AAML's learning agents in turns with kube-scheduler without its rate cap.

All pods are created first, then one scheduler at a time is started as a process of its own; its rate is the number of
pods over the time from the first bind to the last, as a watch of this process saw them. kube-scheduler posts an event
for each pod and cannot be told not to, so AAML is measured without and with such events.

    .venv/bin/python benchmarks/bench_live.py                      # 10 nodes, 1,000 pods, 3 rounds: about 10 minutes
    .venv/bin/python benchmarks/bench_live.py --pods 300 --rounds 1 --schedulers dqn
    .venv/bin/python benchmarks/bench_live.py --nodes 1000 --schedulers round-robin dqn

A scheduler is `dqn`, `gnn`, `acdqn`, `acgnn` (each learns, writes its curves and saves its model, as its command does),
one of these with `-frozen` behind it (as it begins, without learning), a model file, or the name of a heuristic, which
shows what the loop itself can do.
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
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from aaml.cluster.objects import Pod
from aaml.kube.objects import wire
from aaml.kube.objects.convert import pod_to_json
from aaml.kube.provision import ClusterOptions, KwokCluster, Owner
from aaml.kube.provision.binaries import programs_dir
from aaml.kube.reflector import Changes, Reflector, Source, Trouble
from aaml.kube.transport import Transport

if TYPE_CHECKING:
    from aaml.scheduling.ports import Policy

AGENTS = ("dqn", "gnn", "acdqn", "acgnn")
FROZEN = "-frozen"
KUBE_SCHEDULER = "kube-scheduler"
HEADER = ("scheduler", "pods_s_median", "pods_s_least", "pods_s_most", "scheduler_ms", "server_ms")
RATES = ("--kube-api-qps=5000", "--kube-api-burst=10000")
SHAPES = ((50, 64), (100, 128), (200, 512), (400, 256))  # cpu_milli, memory in MiB, taken in turn
PODS_A_DEPLOYMENT = 20
WAIT_S = 600.0


@dataclass(frozen=True)
class Rate:
    """One run: what was bound, how fast, and what it cost in CPU of the scheduler and of the API server."""

    pods_s: float
    scheduler_ms: float
    server_ms: float


class Observer:
    """Watches a namespace's pods and keeps when it saw each bound, resuming when the server cuts a slow watcher off."""

    def __init__(self, transport: Transport, namespace: str) -> None:
        self._bound: dict[str, float] = {}
        source: Source[wire.PodObject] = Source(
            "observed pods", f"/api/v1/namespaces/{namespace}/pods", wire.PodObject, lambda raw: raw,
            key=lambda raw: raw.metadata.name, version=lambda raw: raw.metadata.resource_version,
        )  # fmt: skip
        self.cpu_before_s = 0.0  # of the scheduler's process just before its first bind
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

    def wait(self, count: int, process: "subprocess.Popen[bytes]") -> None:
        """Wait until so many pods are bound."""
        deadline = time.monotonic() + WAIT_S
        while len(self._bound) < count:
            if not self._bound:
                self.cpu_before_s = cpu_s(process.pid)
            if process.poll() is not None:
                raise SystemExit(f"the scheduler ended with {len(self._bound)} of {count} pods bound")
            if time.monotonic() > deadline:
                raise SystemExit(f"{len(self._bound)} of {count} pods bound after {WAIT_S:g} s")
            time.sleep(0.05)

    def pods_s(self) -> float:
        """Return the rate from the first bind to the last."""
        times = sorted(self._bound.values())
        return (len(times) - 1) / (times[-1] - times[0])

    def end(self) -> None:
        """Stop watching."""
        self._reflector.stop()
        self._reflector.join(10.0)


def cpu_s(pid: int) -> float:
    """Return the CPU seconds that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def workload(transport: Transport, scheduler: str, count: int) -> Iterator[str]:
    """Create the pods in a fresh namespace, whose name is yielded; its pods are deleted in the end."""
    namespace = f"bench-{time.time_ns():x}"
    transport.request("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
    account = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    while not json.loads(transport.request("GET", account))["items"]:
        time.sleep(0.05)

    def create(index: int) -> None:
        cpu, memory = SHAPES[index % len(SHAPES)]
        deployment = index // PODS_A_DEPLOYMENT
        pod = pod_to_json(
            Pod(
                name=f"web-{deployment}-{index}",
                namespace=namespace,
                requests={"cpu": cpu, "memory": memory << 20},
                labels={"app": f"web-{deployment}"},
                scheduler_name=scheduler,
            )
        )
        transport.request("POST", f"/api/v1/namespaces/{namespace}/pods", pod)

    path = f"/api/v1/namespaces/{namespace}/pods"
    try:
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(create, range(count)))
        yield namespace
    finally:
        transport.request("DELETE", path, query={"gracePeriodSeconds": "0"}, timeout_s=120.0)
        transport.request("DELETE", f"/api/v1/namespaces/{namespace}")


def command(cluster: KwokCluster, scheduler: str, events: bool) -> list[str]:
    """Return the command line of a scheduler's process."""
    if scheduler == KUBE_SCHEDULER:
        program = programs_dir() / "kube-scheduler"
        return [str(program), f"--kubeconfig={cluster.kubeconfig}", "--leader-elect=false", "--secure-port=0", *RATES]
    this = [sys.executable, __file__, "--child", scheduler, "--kubeconfig", str(cluster.kubeconfig)]
    return [*this, "--events"] if events else this


def measure(cluster: KwokCluster, scheduler: str, events: bool, count: int) -> Rate:
    """Run one scheduler over a fresh workload."""
    transport = Transport(cluster.kubeconfig, connections=20)
    name = "default-scheduler" if scheduler == KUBE_SCHEDULER else "aaml-bench"
    server = cluster.pid("kube-apiserver")
    if server is None:
        raise SystemExit("the API server has ended")
    with (
        workload(transport, name, count) as namespace,
        tempfile.TemporaryDirectory() as folder,
        (Path(folder) / "log").open("wb") as log,
    ):
        observer = Observer(transport, namespace)
        before = cpu_s(server)
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(
            command(cluster, scheduler, events), stdout=log, stderr=subprocess.STDOUT, cwd=folder, env=environment
        )
        try:
            observer.wait(count, process)
            rate = Rate(
                observer.pods_s(),
                (cpu_s(process.pid) - observer.cpu_before_s) / count * 1000,
                (cpu_s(server) - before) / count * 1000,
            )
        except SystemExit:
            sys.stderr.write((Path(folder) / "log").read_text(errors="replace")[-2000:])
            raise
        finally:
            observer.end()
            end(process)
    transport.close()
    return rate


def end(process: "subprocess.Popen[bytes]") -> None:
    """End a scheduler: it may finish what it does, for a minute at most."""
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def child(scheduler: str, kubeconfig: str, events: bool) -> None:
    """Be an AAML scheduler until SIGTERM."""
    from aaml.kube.cluster import KubeCluster, LiveOptions

    cluster = KubeCluster.connect(
        "aaml-bench", kubeconfig=kubeconfig, options=LiveOptions(scheduled_events=events, close_s=30.0)
    )
    if scheduler in AGENTS:
        from aaml.live.agents import SCHEDULERS

        learner = SCHEDULERS[scheduler](cluster=cluster)  # type: ignore[index]
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
    warm_up(policy)
    play(cluster, policy, make_reward("balance"), stop=ended.is_set)
    cluster.close()


def frozen(scheduler: str) -> "Policy":
    """Return a policy by its name, an agent that does not learn, or what a model file holds."""
    if (kind := scheduler.removesuffix(FROZEN)) in AGENTS:
        from aaml.learning.agent import make_agent
        from aaml.learning.config import LIVE

        return make_agent(LIVE[kind], learn=False)  # type: ignore[index]
    from aaml.evaluation.policies import load_policy

    return load_policy(scheduler)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=10)
    parser.add_argument("--pods", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--schedulers", nargs="*", default=list(AGENTS))
    parser.add_argument("--events-only", action="store_true", help="leave out the runs without events")
    parser.add_argument("--no-events", action="store_true", help="leave out the runs with an event a pod")
    parser.add_argument("--csv", type=Path, help="file for the table, a row a scheduler")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--kubeconfig", help=argparse.SUPPRESS)
    parser.add_argument("--events", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child(arguments.child, arguments.kubeconfig, arguments.events)
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))  # so that the cluster is taken down
    schedulers = [str(Path(each).resolve()) if Path(each).is_file() else each for each in arguments.schedulers]
    runs = [(KUBE_SCHEDULER, True)]
    runs += [] if arguments.events_only else [(each, False) for each in schedulers]
    runs += [] if arguments.no_events else [(each, True) for each in schedulers]
    rates: dict[tuple[str, bool], list[Rate]] = {run: [] for run in runs}
    cluster = KwokCluster(f"bench-{os.getpid()}")
    cluster.up(ClusterOptions(nodes=arguments.nodes, scheduler=False, owner=Owner.this_process()))
    try:
        for round_ in range(arguments.rounds):
            for run in runs:
                rate = measure(cluster, *run, arguments.pods)
                rates[run].append(rate)
                print(f"round {round_ + 1}: {words(run)}: {rate.pods_s:.0f} pods/s", file=sys.stderr, flush=True)
    finally:
        cluster.down()
    table = [[words(run), *summary(found)] for run, found in rates.items()]
    print(f"{arguments.pods} pods on {arguments.nodes} nodes, first bind to last, {arguments.rounds} rounds in turns\n")
    print(f"{'scheduler':42} {'pods/s: median':>14} {'least':>7} {'most':>7} {'scheduler ms':>13} {'server ms':>10}")
    for name, median, least, most, own, server in table:
        print(f"{name:42} {median:>14} {least:>7} {most:>7} {own:>13} {server:>10}")
    if arguments.csv:
        arguments.csv.parent.mkdir(parents=True, exist_ok=True)
        with arguments.csv.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([HEADER, *table])
    print("\nms: CPU a pod of the scheduler's process from its first bind on, and of the API server")


def summary(rates: list[Rate]) -> list[str]:
    """Return the columns of `HEADER` after the first."""
    speeds = [rate.pods_s for rate in rates]
    costs = [[rate.scheduler_ms for rate in rates], [rate.server_ms for rate in rates]]
    return [
        *(f"{speed:.0f}" for speed in (statistics.median(speeds), min(speeds), max(speeds))),
        *(f"{statistics.median(cost):.1f}" for cost in costs),
    ]


def words(run: tuple[str, bool]) -> str:
    """Name a run."""
    scheduler, events = run
    if scheduler == KUBE_SCHEDULER:
        return f"{scheduler} (uncapped, an event a pod)"
    if scheduler not in AGENTS:
        scheduler = Path(scheduler).name
    return f"{scheduler} ({'learning, ' if scheduler in AGENTS else ''}{'an event a pod' if events else 'no events'})"


if __name__ == "__main__":
    main()
