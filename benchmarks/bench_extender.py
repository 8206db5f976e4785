"""What `aaml serve` costs behind kube-scheduler: time of /prioritize, pods a second with and without it, in one run.

    .venv/bin/python benchmarks/bench_extender.py                         # 1,000 nodes, 300 pods, an untrained GNN
    .venv/bin/python benchmarks/bench_extender.py --model models/mine.pth --nodes 1000
    .venv/bin/python benchmarks/bench_extender.py --policies least-allocated --nodes 100

A real KWOK cluster is started and taken down. /prioritize is asked over loopback on one kept connection, with the names
of all nodes, as kube-scheduler does with nodeCacheCapable; the time is the client's, from the request's first byte to
the reply's last. kube-scheduler is started anew for each rate, without its API rate cap; pods are there before it is.
CPU times are those of kube-scheduler and of `aaml serve` from the first bind to the last: whose time a pod takes.
"no answer" is a service that reads what it is asked and says "no node is better than another" at once: what an extender
costs that costs nothing.
"""

import argparse
import http.client
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import yaml

from aaml.kube.provision import ClusterOptions, KwokCluster, Owner
from aaml.kube.provision.binaries import programs_dir
from aaml.kube.transport import Transport

CONFIGURATION = Path(__file__).parents[1] / "deploy/kubernetes/extender/kube-scheduler-configuration.yaml"
AAML = str(Path(sys.executable).with_name("aaml"))
WAIT_S = 300.0
SCHEDULER = "bench"


def pod(name: str) -> dict[str, Any]:
    """Return a pod as a Deployment makes them."""
    requests = {"cpu": "100m", "memory": "128Mi"}
    container = {"name": "main", "image": "registry.example/pause", "resources": {"requests": requests}}
    metadata = {"name": name, "namespace": "default", "labels": {"app": "bench"}}
    return {"metadata": metadata, "spec": {"schedulerName": SCHEDULER, "containers": [container]}}


def untrained(folder: Path) -> str:
    """Write the model of an untrained GNN and return its path."""
    from aaml.learning.agents import make_agent
    from aaml.learning.config import LIVE

    return str(make_agent(LIVE["gnn"], seed=0).save(str(folder), "untrained")[0])


@dataclass(frozen=True)
class Service:
    """A running service, such as `aaml serve`."""

    port: int
    process: psutil.Process


@dataclass(frozen=True)
class Rate:
    """Pods bound a second, and the CPU milliseconds that each took kube-scheduler and the service."""

    pods_s: float
    scheduler_ms: float
    service_ms: float

    def __str__(self) -> str:
        """One phrase."""
        served = f", the service {self.service_ms:.1f}" if self.service_ms else ""
        return f"{self.pods_s:.0f} pods/s (CPU ms a pod: kube-scheduler {self.scheduler_ms:.1f}{served})"


def cpu_ms(process: psutil.Process | None) -> float:
    """Return the CPU milliseconds that a process has used, 0 without one."""
    if process is None:
        return 0.0
    used = process.cpu_times()
    return 1000.0 * float(used.user + used.system)


@contextmanager
def running(command: list[str]) -> Iterator[Service]:
    """Run a service whose first line ends with its port."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            if process.stdout is None or not (line := process.stdout.readline()):
                raise RuntimeError("the service has ended")
            yield Service(int(line.rsplit(":", 1)[1]), psutil.Process(process.pid))
        finally:
            process.terminate()


NO_ANSWER = """
import socket
answer = b"HTTP/1.1 200 OK\\r\\nContent-Type: application/json\\r\\nContent-Length: 2\\r\\n\\r\\n[]"
listener = socket.create_server(("127.0.0.1", 0))
print(f"listening on :{listener.getsockname()[1]}", flush=True)
while True:
    asker, _ = listener.accept()
    asker.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    read = b""
    while piece := asker.recv(1 << 20):
        read += piece
        head, end, rest = read.partition(b"\\r\\n\\r\\n")
        length = next((int(l[15:]) for l in head.split(b"\\r\\n") if l.lower().startswith(b"content-length:")), 0)
        if end and len(rest) >= length:
            asker.sendall(answer)
            read = b""
"""


def latencies_ms(port: int, api: Transport, count: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Ask /prioritize `count` times about a pod and all workers; returns milliseconds [count]."""
    nodes = json.loads(api.request("GET", "/api/v1/nodes"))["items"]
    names = [node["metadata"]["name"] for node in nodes if not node["spec"].get("taints")]
    body = json.dumps({"pod": pod("asked"), "nodes": None, "nodenames": names}).encode()
    connection = http.client.HTTPConnection("127.0.0.1", port)
    taken = np.zeros(count + 20)
    for turn in range(len(taken)):
        started = time.perf_counter()
        connection.request("POST", "/prioritize", body, {"Content-Type": "application/json"})
        reply = connection.getresponse()
        scores = reply.read()
        taken[turn] = 1000.0 * (time.perf_counter() - started)
        if reply.status != 200 or scores.count(b'"score"') != len(names):
            raise RuntimeError(f"{reply.status}: {scores[:200]!r}")
    return taken[20:]


def some(api: Transport, selector: str) -> bool:
    """Say whether there is a pod of ours with that node."""
    query = f"fieldSelector=spec.nodeName{selector},spec.schedulerName%3D{SCHEDULER}&limit=1"
    return bool(json.loads(api.request("GET", f"/api/v1/namespaces/default/pods?{query}"))["items"])


def rate(cluster: KwokCluster, folder: Path, count: int, service: Service | None) -> Rate:
    """Return how fast kube-scheduler binds, with an extender or without any."""
    api = cluster.api()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda i: api.request("POST", "/api/v1/namespaces/default/pods", pod(f"p{i}")), range(count)))
    settings = yaml.safe_load(CONFIGURATION.read_text(encoding="utf-8"))
    settings["leaderElection"]["leaderElect"] = False
    settings["profiles"][0]["schedulerName"] = SCHEDULER
    settings["clientConnection"] = {"kubeconfig": str(cluster.kubeconfig), "qps": 5000, "burst": 10000}
    if service is None:
        del settings["extenders"]
    else:
        settings["extenders"][0]["urlPrefix"] = f"http://127.0.0.1:{service.port}"
    path = folder / "scheduler.yaml"
    path.write_text(yaml.safe_dump(settings), encoding="utf-8")
    with (folder / "scheduler.log").open("wb") as log:
        command = [str(programs_dir() / "kube-scheduler"), f"--config={path}", "--secure-port=0"]
        process = subprocess.Popen(command, stdout=log, stderr=log)
    both = psutil.Process(process.pid), service.process if service else None
    try:
        first_s = _when(lambda: some(api, "!%3D"))
        before = [cpu_ms(each) for each in both]
        last_s = _when(lambda: not some(api, "%3D"))
        took = [(cpu_ms(each) - start) / count for each, start in zip(both, before, strict=True)]
    finally:
        process.kill()
        process.wait()
    api.request("DELETE", "/api/v1/namespaces/default/pods?gracePeriodSeconds=0")
    return Rate(count / (last_s - first_s), *took)


def _when(condition: Any) -> float:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"kube-scheduler did not get there in {WAIT_S:g} s")
        time.sleep(0.02)
    return time.monotonic()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--pods", type=int, default=300)
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--model", help="a model file; without it an untrained GNN")
    parser.add_argument("--policies", nargs="*", default=[], help="heuristics to measure too")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        policies = [given.model or untrained(folder), *given.policies]
        cluster = KwokCluster("bench-extender")
        cluster.up(
            ClusterOptions(nodes=given.nodes, scheduler=False, wait_s=600, owner=Owner.this_process()), progress=False
        )
        try:
            for turn in range(given.rounds):
                print(f"round {turn + 1}: kube-scheduler alone {rate(cluster, folder, given.pods, None)}")
                with running([sys.executable, "-c", NO_ANSWER]) as service:
                    print(f"no answer: behind kube-scheduler {rate(cluster, folder, given.pods, service)}", flush=True)
                for policy in policies:
                    command = [AAML, "serve", f"--policy={policy}", "--port=0", f"--kubeconfig={cluster.kubeconfig}"]
                    with running(command) as service:
                        taken = latencies_ms(service.port, cluster.api(), given.requests)
                        behind = rate(cluster, folder, given.pods, service)
                    p50, p99 = np.percentile(taken, [50, 99])
                    print(
                        f"{Path(policy).name}: /prioritize of {given.nodes} nodes p50 {p50:.2f} ms, p99 {p99:.2f} ms; "
                        f"behind kube-scheduler {behind}",
                        flush=True,
                    )
        finally:
            cluster.down()


if __name__ == "__main__":
    main()
