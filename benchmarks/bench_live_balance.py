"""How evenly pods that come and go are spread on a real cluster: kube-scheduler, heuristics, models on the same pods.

    .venv/bin/python benchmarks/bench_live_balance.py                                 # 10 nodes, seeds 1 to 3
    .venv/bin/python benchmarks/bench_live_balance.py --nodes 100 --seeds 1 --csv balance-100.csv
    .venv/bin/python benchmarks/bench_live_balance.py --schedulers kube-scheduler kube-scheduler:tuned.yaml

A real KWOK cluster is started and taken down. Each scheduler gets the same episodes of the balance task, at `--speed`
times the simulator's: pods are created when they arrive and deleted when their lifetime is over. The variance of use is
that of the task (CPU's and memory's over the nodes, their mean), read from the API server every second and
averaged over the episode. A scheduler is a policy, a model file, or a plugin in kube-scheduler (the folder of
`aaml export`, `plugin:` and a model). `kube-scheduler:FILE` is the real one with a profile of a
KubeSchedulerConfiguration, beside the default profile in the same process. Models do not learn meanwhile. Latencies are
`--speed` times as long in the episode's time.
"""

import argparse
import csv
import heapq
import json
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from aaml.cluster.objects import Node, Pod
from aaml.cluster.quantity import CPU, MEMORY
from aaml.evaluation.policies import frozen, load_policy
from aaml.evaluation.statistics import paired
from aaml.kube.cluster import KubeCluster
from aaml.kube.objects.convert import node_from_json, pod_from_json, pod_to_json
from aaml.kube.provision import ClusterOptions, KwokCluster, Owner
from aaml.kube.transport import ApiError, Transport
from aaml.live.scheduler import Scheduler
from aaml.plugin.build import build
from aaml.plugin.module import is_plugin
from aaml.plugin.run import plugin_of
from aaml.policies.kube_scores.document import document, write_configuration
from aaml.policies.kube_scores.profile import API_VERSION, KIND, names_profile, profile_file, read_profile
from aaml.sim.tasks import find_task
from plugin_process import PluginProcess

PODS = "/api/v1/namespaces/default/pods"
KUBE_SCHEDULER, OURS = "kube-scheduler", "balance-bench"
MODELS = tuple(
    str(Path(__file__).parents[1] / "models" / f"{stem}_balance_s0.pth")
    for stem in ("DQN_Model_dqn", "GNN_Model_gnn", "Actor_acdqn", "Actor_acgnn")
)
WAIT_S = 120.0


def arrivals(seed: int, nodes: int) -> list[Pod]:
    """Return the pods of an episode by their arrival, with names that an API server takes."""
    drawn = find_task("balance").build(seed, nodes).workload.pods
    return [replace(pod, name=f"p{number:05}", uid="") for number, pod in enumerate(drawn)]


def profile_name(scheduler: str) -> str:
    """Return what pods call a profile of the real kube-scheduler."""
    return "default-scheduler" if scheduler == KUBE_SCHEDULER else profile_file(scheduler).stem


def configuration(schedulers: list[str], folder: Path) -> Path:
    """Write a configuration of kube-scheduler with its default profile and those that take part."""
    named = [name for name in schedulers if names_profile(name)]
    profiles: list[dict[str, Any]] = [{"schedulerName": profile_name(KUBE_SCHEDULER)}]
    for name in named:
        (profile,) = document(read_profile(name).config)["profiles"]
        profiles.append({**profile, "schedulerName": profile_name(name)})
    path = folder / "kube-scheduler.yaml"
    write_configuration(path, {"apiVersion": API_VERSION, "kind": KIND, "profiles": profiles})
    return path


@contextmanager
def at_work(name: str, cluster: KwokCluster) -> Iterator[str]:
    """Let a scheduler place pods meanwhile; yields the name that they ask for it by."""
    if name == KUBE_SCHEDULER or names_profile(name):
        yield profile_name(name)
        return
    if is_plugin(name):
        with (
            tempfile.TemporaryDirectory() as folder,
            PluginProcess(plugin_of(name), cluster.kubeconfig, Path(folder), scheduler_name=OURS),
        ):
            yield OURS
        return
    policy = load_policy(name)
    with frozen(policy), closing(KubeCluster.connect(OURS, kubeconfig=cluster.kubeconfig)) as live:
        scheduler = Scheduler(live, policy)
        thread = threading.Thread(target=scheduler.run)
        thread.start()
        try:
            yield OURS
        finally:
            scheduler.stop()
            thread.join(WAIT_S)


def variance(api: Transport, nodes: list[Node]) -> float:
    """Return the variance of use now, as the API server's pods tell it."""
    place = {node.name: node_index for node_index, node in enumerate(nodes)}
    used = np.zeros((len(nodes), 2))
    for item in json.loads(api.request("GET", f"{PODS}?resourceVersion=0"))["items"]:
        if (node_index := place.get(item["spec"].get("nodeName", ""))) is not None:
            pod = pod_from_json(item)
            used[node_index] += pod.request(CPU), pod.request(MEMORY)
    there = np.array([(node.allocatable[CPU], node.allocatable[MEMORY]) for node in nodes])
    return float((used / there).var(axis=0).mean())


def episode(cluster: KwokCluster, nodes: list[Node], pods: list[Pod], scheduler: str, speed: float) -> float:
    """Play an episode to its last arrival; returns the time-averaged variance of use."""
    api, due = cluster.api(), [(pod.created_s, number, pod) for number, pod in enumerate(pods)]
    seen: list[tuple[float, float]] = []
    over = threading.Event()

    def watch() -> None:
        while not over.wait(1.0):
            seen.append((time.monotonic(), variance(api, nodes)))

    def delete(pod: Pod) -> None:
        with suppress(ApiError):
            api.request("DELETE", f"{PODS}/{pod.name}?gracePeriodSeconds=0")

    with ThreadPoolExecutor(8) as requests:
        watcher = threading.Thread(target=watch)
        watcher.start()
        begun_s = time.monotonic()
        while due and due[0][0] <= pods[-1].created_s:
            due_s, number, pod = heapq.heappop(due)
            time.sleep(max(begun_s + due_s / speed - time.monotonic(), 0.0))
            if number < 0:
                requests.submit(delete, pod)
            else:
                requests.submit(api.request, "POST", PODS, pod_to_json(replace(pod, scheduler_name=scheduler)))
                heapq.heappush(due, (pod.created_s + (pod.lifetime_s or 0.0), -number - 1, pod))
        over.set()
        watcher.join()
    api.request("DELETE", f"{PODS}?gracePeriodSeconds=0", timeout_s=WAIT_S)
    times, values = np.array(seen).T
    return float(np.average(values, weights=np.diff(times, prepend=begun_s)))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=10)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--speed", type=float, default=60.0)
    parser.add_argument("--schedulers", nargs="+", default=[KUBE_SCHEDULER, "least-variance", *MODELS])
    parser.add_argument("--csv", type=Path, help="a file for the values")
    given = parser.parse_args()
    for name in filter(is_plugin, given.schedulers):
        build(plugin_of(name))
    cluster = KwokCluster(f"bench-live-balance-{given.nodes}")
    folder = tempfile.TemporaryDirectory()
    config = configuration(given.schedulers, Path(folder.name))
    options = ClusterOptions(nodes=given.nodes, scheduler=True, scheduler_config=config, owner=Owner.this_process())
    cluster.up(options, progress=False)
    values: dict[str, list[float]] = {name: [] for name in given.schedulers}
    try:
        listed = json.loads(cluster.api().request("GET", "/api/v1/nodes"))["items"]
        nodes = [node for node in map(node_from_json, listed) if not node.taints]
        for seed in given.seeds:
            pods = arrivals(seed, len(nodes))
            for name in given.schedulers:
                with at_work(name, cluster) as asked_for:
                    values[name].append(episode(cluster, nodes, pods, asked_for, given.speed))
                print(f"{Path(name).stem}, {len(nodes)} nodes, seed {seed}: {values[name][-1]:.3g}", flush=True)
    finally:
        cluster.down()
        folder.cleanup()
    rows = []
    for name, found in values.items():
        row: dict[str, object] = {"scheduler": Path(name).stem, "nodes": given.nodes, "episodes": len(found)}
        row["variance"] = f"{np.mean(found):.3g}"
        for other in given.schedulers[:2]:
            better = sum(ours < theirs for ours, theirs in zip(found, values[other], strict=True))
            if name != other:
                row[f"difference from {other}"] = str(paired(found, values[other], "lower").difference)
            row |= {f"of {other}'s": f"{np.mean(found) / np.mean(values[other]):.2f}", f"better than {other}": better}
        rows.append(row)
        print(row)
    if given.csv is not None:
        with given.csv.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(dict.fromkeys(name for row in rows for name in row)))
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()
