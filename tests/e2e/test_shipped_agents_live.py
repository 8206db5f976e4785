"""The agents that ship, on a real cluster: the same pods by kube-scheduler and by each of them, variances compared."""

from pathlib import Path

import numpy as np
import pytest

from aaml.cluster.quantity import CPU, MEMORY, amount
from aaml.evaluation.policies import load_policy
from aaml.kube.cluster import KubeCluster
from aaml.kube.provision import KwokCluster
from aaml.scheduling.play import play
from aaml.sim.tasks import find_task
from support.kwok import pod, pods, until

MODELS = {
    "gnn": "GNN_Model_gnn_balance_s0.pth", "dqn": "DQN_Model_dqn_balance_s0.pth",
    "acgnn": "Actor_acgnn_balance_s0.pth", "acdqn": "Actor_acdqn_balance_s0.pth",
}  # fmt: skip
SHAPES = (("500m", "1Gi"), ("2", "4Gi"), ("1", "24Gi"), ("8", "8Gi"), ("4", "32Gi"))
NODES, SEED = 10, 7
DRAWS = 5
CPU_MILLI, MEMORY_BYTES = 64_000, 256 * 2**30
Requests = list[tuple[str, str]]


def mixed() -> Requests:
    """Return the requests of mixed pods."""
    return [SHAPES[shape] for shape in np.random.default_rng(SEED).integers(len(SHAPES), size=120)]


def seed_a() -> Requests:
    """Return those of the container platform's own workload: deployments of equal pods, to a fifth of the cluster."""
    drawn = find_task("seed-a").build(SEED, NODES).workload.pods
    return [(f"{each.request(CPU)}m", str(each.request(MEMORY))) for each in drawn]


def submit(kwok: KwokCluster, namespace: str, prefix: str, scheduler: str, requests: Requests) -> None:
    """Create pods one after another."""
    api = kwok.api()
    for number, (cpu, memory) in enumerate(requests):
        body = pod(f"{prefix}-{number}", cpu, memory, schedulerName=scheduler)
        api.request("POST", f"/api/v1/namespaces/{namespace}/pods", body)


def bound(kwok: KwokCluster, namespace: str, prefix: str) -> list[dict]:
    """Return the pods of a run that have a node."""
    found = pods(kwok.api(), namespace)
    return [p for p in found if p["metadata"]["name"].startswith(f"{prefix}-") and p["spec"].get("nodeName")]


def use(placed: list[dict]) -> np.ndarray:
    """Return [workers, 2], the shares of CPU and memory that pods asked for, as the API server tells it."""
    used: dict[str, np.ndarray] = {f"kwok-std-node-{i}": np.zeros(2) for i in range(NODES)}
    for each in placed:
        requests = each["spec"]["containers"][0]["resources"]["requests"]
        used[each["spec"]["nodeName"]] += (
            amount("cpu", requests["cpu"]) / CPU_MILLI,
            amount("memory", requests["memory"]) / MEMORY_BYTES,
        )
    return np.array(list(used.values()))


def clear(kwok: KwokCluster, namespace: str) -> None:
    """Delete the pods."""
    kwok.api().request("DELETE", f"/api/v1/namespaces/{namespace}/pods?gracePeriodSeconds=0")
    until(lambda: not pods(kwok.api(), namespace), "an empty namespace")


def by_kube_scheduler(kwok: KwokCluster, namespace: str, requests: Requests) -> np.ndarray:
    """Let kube-scheduler place the pods; returns the use of the nodes."""
    submit(kwok, namespace, "default", "default-scheduler", requests)
    until(lambda: len(bound(kwok, namespace, "default")) == len(requests), "kube-scheduler's binds")
    used = use(bound(kwok, namespace, "default"))
    clear(kwok, namespace)
    return used


def by_agent(kwok: KwokCluster, namespace: str, requests: Requests, kind: str) -> np.ndarray:
    """Let a shipped agent place the pods; returns the use of the nodes."""
    submit(kwok, namespace, kind, f"shipped-{kind}", requests)
    policy = load_policy(str(Path(__file__).parents[2] / "models" / MODELS[kind]))
    cluster = KubeCluster.connect(f"shipped-{kind}", kubeconfig=kwok.kubeconfig)
    stats = play(cluster, policy, max_decisions=len(requests))
    cluster.close()
    assert stats.binds["bound"] == len(requests)
    used = use(bound(kwok, namespace, kind))
    clear(kwok, namespace)
    return used


def test_the_agents_spread_mixed_pods_more_evenly_than_kube_scheduler(kwok: KwokCluster, namespace: str) -> None:
    """kube-scheduler breaks ties at random, and one draw may be twice as good as another: means are compared."""
    requests = mixed()
    theirs = np.mean([by_kube_scheduler(kwok, namespace, requests).var(axis=0).mean() for _ in range(DRAWS)])
    ours = {kind: by_agent(kwok, namespace, requests, kind).var(axis=0).mean() for kind in MODELS}
    print(f"variance of use over {NODES} nodes: kube-scheduler {theirs:.3g} (mean of {DRAWS}), shipped agents {ours}")
    assert np.mean(list(ours.values())) < theirs


@pytest.mark.parametrize("kind", MODELS)
def test_every_agent_evens_out_cpu_on_the_deployments_of_the_container_platform(
    kwok: KwokCluster, namespace: str, kind: str
) -> None:
    requests = seed_a()
    theirs = by_kube_scheduler(kwok, namespace, requests)[:, 0].var()
    ours = by_agent(kwok, namespace, requests, kind)[:, 0].var()
    print(f"variance of CPU use over {NODES} nodes: kube-scheduler {theirs:.3g}, shipped {kind} {ours:.3g}")
    assert ours < theirs
