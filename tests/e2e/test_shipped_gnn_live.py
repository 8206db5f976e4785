"""The GNN that ships, on a real cluster: the same mixed pods by kube-scheduler and by it, variances compared."""

from pathlib import Path

import numpy as np

from aaml.cluster.quantity import amount
from aaml.experiment.policies import load_policy
from aaml.kube.cluster import KubeCluster
from aaml.kube.provision import KwokCluster
from aaml.scheduling.cycle import SchedulingCycle
from aaml.scheduling.loop import SchedulerLoop
from aaml.scheduling.registry import make_reward
from support.kwok import pod, pods, until

MODEL = Path(__file__).parents[2] / "models" / "GNN_Model_gnn_balance_s0.pth"
SHAPES = (("500m", "1Gi"), ("2", "4Gi"), ("1", "24Gi"), ("8", "8Gi"), ("4", "32Gi"))
COUNT, NODES = 120, 10
CPU_MILLI, MEMORY_BYTES = 64_000, 256 * 2**30


def submit(kwok: KwokCluster, namespace: str, prefix: str, scheduler: str) -> None:
    """Create the same seeded pods one after another."""
    rng, api = np.random.default_rng(7), kwok.api()
    for number, shape in enumerate(rng.integers(len(SHAPES), size=COUNT)):
        cpu, memory = SHAPES[shape]
        body = pod(f"{prefix}-{number}", cpu, memory, schedulerName=scheduler)
        api.send("POST", f"/api/v1/namespaces/{namespace}/pods", body)


def bound(kwok: KwokCluster, namespace: str, prefix: str) -> list[dict]:
    """Return the pods of a run that have a node."""
    found = pods(kwok.api(), namespace)
    return [p for p in found if p["metadata"]["name"].startswith(prefix) and p["spec"].get("nodeName")]


def variance(placed: list[dict]) -> float:
    """Return the mean of the variances of CPU and memory use over the workers, as the API server tells it."""
    used: dict[str, np.ndarray] = {f"kwok-std-node-{i}": np.zeros(2) for i in range(NODES)}
    for each in placed:
        requests = each["spec"]["containers"][0]["resources"]["requests"]
        used[each["spec"]["nodeName"]] += (
            amount("cpu", requests["cpu"]) / CPU_MILLI,
            amount("memory", requests["memory"]) / MEMORY_BYTES,
        )
    return float(np.array(list(used.values())).var(axis=0).mean())


def test_it_spreads_mixed_pods_more_evenly_than_kube_scheduler(kwok: KwokCluster, namespace: str) -> None:
    submit(kwok, namespace, "default", "default-scheduler")
    until(lambda: len(bound(kwok, namespace, "default")) == COUNT, "kube-scheduler's binds")
    theirs = variance(bound(kwok, namespace, "default"))
    kwok.api().send("DELETE", f"/api/v1/namespaces/{namespace}/pods?gracePeriodSeconds=0")
    until(lambda: not pods(kwok.api(), namespace), "an empty namespace")

    submit(kwok, namespace, "gnn", "shipped-gnn")
    policy, featurizer = load_policy(str(MODEL))
    cluster = KubeCluster.connect("shipped-gnn", kubeconfig=kwok.kubeconfig)
    loop = SchedulerLoop(SchedulingCycle(cluster, make_reward("balance"), featurizer), policy, learn=False)
    stats = loop.run(max_decisions=COUNT)
    assert stats.binds["bound"] == COUNT
    ours = variance(bound(kwok, namespace, "gnn"))
    print(f"variance of use over {NODES} nodes: kube-scheduler {theirs:.3g}, shipped GNN {ours:.3g}")
    assert ours < theirs
