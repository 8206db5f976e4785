"""How long a pod waits: from the request that creates it to the event that shows it bound, pods coming at a fixed rate.

The rate is kept whatever the scheduler does (open loop): one that cannot keep up is seen to fall behind. kube-scheduler
without its rate cap and AAML's agents take turns on one cluster; both post an event a pod.

    .venv/bin/python benchmarks/bench_latency.py                          # 1,000 nodes, 150 pods/s for 20 s, two rounds
    .venv/bin/python benchmarks/bench_latency.py --nodes 100 --rate 100 --schedulers dqn dqn-frozen least-variance

A scheduler is what `bench_live.py` takes. Measured times include the API server's own, and this process' as it watches.
"""

import argparse
import csv
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

import bench_live as live
from aaml.kube.provision import ClusterOptions, KwokCluster, Owner
from aaml.kube.transport import Transport
from aaml.scheduling.node_sampling import ALL

HEADER = ("scheduler", "p50_ms", "p90_ms", "p99_ms", "most_ms", "scheduler_ms", "learner_ms")
FIRST = 50  # pods before the measured ones: a scheduler's first decisions compile and load


def measure(cluster: KwokCluster, scheduler: str, rate: float, count: int) -> tuple[np.ndarray, list[float]]:
    """Return each pod's wait in milliseconds, and the CPU ms a pod of the process that decides and its learner's."""
    transport = Transport(cluster.kubeconfig, connections=20)
    name = live.profile(scheduler)
    server = cluster.pid("kube-apiserver")
    if server is None:
        raise SystemExit("the API server has ended")
    with (
        live.fresh_namespace(transport, FIRST + count) as namespace,
        tempfile.TemporaryDirectory() as folder,
        (Path(folder) / "log").open("wb") as log,
        ThreadPoolExecutor(32) as pool,
    ):
        observer = live.Observer(transport, namespace)
        command = live.command(cluster, scheduler, events=True, percentage=ALL, folder=Path(folder))
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, cwd=folder, env=environment)
        try:
            costs = live.Costs(process.pid, server)
            for index in range(FIRST):
                live.create(transport, namespace, name, index)
            observer.wait(FIRST, process, costs)
            costs.begin()
            asked: dict[str, float] = {}
            lock = threading.Lock()

            def create(index: int, due: float) -> None:
                time.sleep(max(0.0, due - time.perf_counter()))
                begun = time.perf_counter()
                pod = live.create(transport, namespace, name, index)
                with lock:
                    asked[pod] = begun

            start = time.perf_counter() + 1.0
            for each in [pool.submit(create, FIRST + k, start + k / rate) for k in range(count)]:
                each.result()
            observer.wait(FIRST + count, process, costs)
            spent = [costs.ms(each) / count for each in ("scheduler", "learner")]
        except SystemExit:
            sys.stderr.write((Path(folder) / "log").read_text(errors="replace")[-2000:])
            raise
        finally:
            observer.end()
            live.end(process)
    transport.close()
    return 1000.0 * np.array([observer.bound_at(pod) - begun for pod, begun in asked.items()]), spent


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--rate", type=float, default=150.0, help="pods a second")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--schedulers", nargs="*", default=list(live.AGENTS))
    parser.add_argument("--csv", type=Path, help="file for the table, a row a scheduler")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))  # so that the cluster is taken down
    schedulers = [str(Path(each).resolve()) if Path(each).exists() else each for each in arguments.schedulers]
    runs = [live.KUBE_SCHEDULER, *schedulers]
    waits: dict[str, list[np.ndarray]] = {run: [] for run in runs}
    costs: dict[str, list[list[float]]] = {run: [] for run in runs}
    cluster = KwokCluster(f"bench-{os.getpid()}")
    cluster.up(ClusterOptions(nodes=arguments.nodes, scheduler=False, owner=Owner.this_process()))
    try:
        for round_ in range(arguments.rounds):
            for run in runs:
                found, spent = measure(cluster, run, arguments.rate, round(arguments.rate * arguments.seconds))
                waits[run].append(found)
                costs[run].append(spent)
                p50, p99 = np.percentile(found, (50, 99))
                print(f"round {round_ + 1}: {live.words((run, True))}: {p50:.0f} ms, p99 {p99:.0f}", file=sys.stderr)
    finally:
        cluster.down()
    table = []
    for run in runs:
        times = np.concatenate(waits[run])
        shown = [f"{value:.1f}" for value in (*np.percentile(times, (50, 90, 99)), times.max())]
        table.append([live.words((run, True)), *shown, *(f"{value:.2f}" for value in np.mean(costs[run], axis=0))])
    print(f"{arguments.rate:g} pods/s, {arguments.seconds:g} s, {arguments.nodes} nodes, {arguments.rounds} rounds\n")
    print(f"{HEADER[0]:42}", *(f"{title:>13}" for title in HEADER[1:]))
    for name, *values in table:
        print(f"{name:42}", *(f"{value:>13}" for value in values))
    if arguments.csv:
        arguments.csv.parent.mkdir(parents=True, exist_ok=True)
        with arguments.csv.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([HEADER, *table])
    print("\nfrom the request that creates a pod to the event that shows it bound; CPU ms a pod of our two processes")


if __name__ == "__main__":
    main()
