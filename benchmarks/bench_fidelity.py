"""How far a placement in the simulator is the one on a cluster: the same nodes, pods and policy in both, pod by pod.

    .venv/bin/python benchmarks/bench_fidelity.py                   # 20 nodes, 400 pods, 3 seeds
    .venv/bin/python benchmarks/bench_fidelity.py --policies least-variance models/mine.pth --nodes 100 --pods 1000

A real KWOK cluster is started and taken down. Its nodes, as its API server shows them, are the simulator's too. Pods of
the synthetic workload are created in order before the scheduler starts, and none ends. The policies are without
randomness, so that every difference has a cause: the first one of a run is shown, with both nodes, for what comes after
it happens in another state.
"""

import argparse
import json
import time
from dataclasses import dataclass, field, replace
from typing import Any

from aaml.cluster.objects import Node, Pod
from aaml.evaluation.policies import frozen, load_policy
from aaml.kube.cluster import KubeCluster
from aaml.kube.objects.convert import node_from_json, pod_to_json
from aaml.kube.provision import ClusterOptions, KwokCluster, Owner
from aaml.scheduling.play import play
from aaml.scheduling.ports import Attempt, Cluster, Observer, Policy
from aaml.sim.cluster import SimCluster
from aaml.sim.tasks import find_task

SCHEDULER = "fidelity"
WAIT_S = 300.0
DETERMINISTIC = (
    "least-allocated",
    "most-allocated",
    "balanced-allocation",
    "least-variance",
    "best-fit",
    "round-robin",
)


@dataclass
class Placements(Observer):
    """Where pods were put, in the order of the decisions: name -> node, "" where none was feasible."""

    nodes: dict[str, str] = field(default_factory=dict)

    def on_attempt(self, attempt: Attempt) -> None:
        """Keep what a pod's last attempt led to."""
        self.nodes.pop(attempt.pod.name, None)
        self.nodes[attempt.pod.name] = attempt.outcome.node_name or ""


def workload(seed: int, nodes: int, count: int) -> list[Pod]:
    """Return pods of the balance task that never end and wait from the start, named in their order."""
    drawn = find_task("balance").build(seed, nodes, pods=count).workload.pods[:count]
    return [Pod(f"p{number:05}", uid=f"p{number:05}", requests=pod.requests) for number, pod in enumerate(drawn)]


def simulated(policy: Policy, nodes: list[Node], pods: list[Pod]) -> Placements:
    """Place the pods in the simulator."""
    placements = Placements()
    play(SimCluster(nodes, pods), policy, observers=[placements], stop=lambda: len(placements.nodes) == len(pods))
    return placements


def on_cluster(policy: Policy, cluster: KwokCluster, pods: list[Pod]) -> Placements:
    """Place the pods on the cluster, and take them away."""
    api, placements = cluster.api(), Placements()
    for pod in pods:
        api.request("POST", "/api/v1/namespaces/default/pods", pod_to_json(replace(pod, scheduler_name=SCHEDULER)))
    deadline = time.monotonic() + WAIT_S
    live: Cluster = KubeCluster.connect(SCHEDULER, kubeconfig=cluster.kubeconfig)
    try:
        play(
            live, policy, observers=[placements],
            stop=lambda: len(placements.nodes) == len(pods) or time.monotonic() > deadline,
        )  # fmt: skip
    finally:
        live.close()
    listed: list[dict[str, Any]] = json.loads(api.request("GET", "/api/v1/namespaces/default/pods"))["items"]
    bound = {item["metadata"]["name"]: item["spec"].get("nodeName", "") for item in listed}
    api.request("DELETE", "/api/v1/namespaces/default/pods?gracePeriodSeconds=0", timeout_s=WAIT_S)
    return Placements({name: bound[name] for name in placements.nodes})


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=20)
    parser.add_argument("--pods", type=int, default=400)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--policies", nargs="+", default=DETERMINISTIC)
    given = parser.parse_args()
    cluster = KwokCluster("bench-fidelity")
    cluster.up(ClusterOptions(nodes=given.nodes, scheduler=False, owner=Owner.this_process()), progress=False)
    try:
        listed = json.loads(cluster.api().request("GET", "/api/v1/nodes"))["items"]
        nodes = [node_from_json(item) for item in listed]
        print(
            f"{len(nodes)} nodes, {given.pods} pods, seeds {given.seeds}\npolicy, seed, equal, order, first difference"
        )
        for name in given.policies:
            for seed in given.seeds:
                pods = workload(seed, given.nodes, given.pods)
                with frozen(policy := load_policy(name)):
                    ours = simulated(policy, nodes, pods)
                with frozen(policy := load_policy(name)):
                    theirs = on_cluster(policy, cluster, pods)
                same = [pod for pod in ours.nodes if ours.nodes[pod] == theirs.nodes.get(pod)]
                first = next((pod for pod in ours.nodes if ours.nodes[pod] != theirs.nodes.get(pod)), None)
                told = "" if first is None else f"{first}: {ours.nodes[first]} and {theirs.nodes.get(first)}"
                order = list(ours.nodes) == list(theirs.nodes)
                print(f"{name}, {seed}, {len(same)} of {len(pods)}, {'yes' if order else 'no'}, {told}", flush=True)
    finally:
        cluster.down()


if __name__ == "__main__":
    main()
