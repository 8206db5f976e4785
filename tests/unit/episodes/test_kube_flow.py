"""Compiled episodes of kube-scheduler against the simulator that they stand for."""

from dataclasses import replace

import numpy as np
import pytest

from aaml.cluster.objects import HOSTNAME_LABEL, ZONE_LABEL, Node, Pod, Taint
from aaml.cluster.quantity import CPU, EPHEMERAL_STORAGE, MEMORY, PODS
from aaml.episodes.kube_flow import KubeFlow
from aaml.errors import UserError
from aaml.nodes.catalogue import Catalogue, Offering
from aaml.nodes.catalogue_file import shipped_catalogue
from aaml.nodes.node_policy import NodePolicy
from aaml.nodes.settings import HighNodeUtilizationSettings, KarpenterSettings
from aaml.policies.kube_scores import DEFAULT_WEIGHTS, KubeScheduler, KubeSchedulerConfig
from aaml.policies.kube_scores.config import GPU_MILLI, PACKING
from aaml.scheduling.play import play
from aaml.sim.bill import BILL_TASKS, Descheduled
from aaml.sim.cluster import SimCluster
from aaml.sim.tasks import find_task
from aaml.workload.model import Workload

RESOURCES = ((CPU, 3), (MEMORY, 1))
CONFIGS = {
    "stock": KubeSchedulerConfig(ties="fixed"),
    "packing": KubeSchedulerConfig({"NodeResourcesFit": 1}, "MostAllocated", RESOURCES, ties="fixed"),
    "ratio": KubeSchedulerConfig(
        weights={**DEFAULT_WEIGHTS, "NodeResourcesFit": 5}, strategy="RequestedToCapacityRatio", resources=RESOURCES,
        shape=((0, 0), (30, 10), (60, 3), (100, 0)), ties="fixed",
    ),
    "hasty": KubeSchedulerConfig(ties="fixed", backoff_s=(1, 2)),
    "gpus": replace(PACKING, ties="fixed", resources=(*PACKING.resources, (EPHEMERAL_STORAGE, 2))),
}  # fmt: skip


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize(("task", "nodes"), [("balance", 6), ("varied", 5), ("waiting", 4), ("fragmentation", 6)])
def test_metrics_are_those_of_the_simulator_to_the_bit(task, nodes, config):
    cluster = find_task(task).build(3, nodes)
    play(cluster, KubeScheduler(np.random.default_rng(0), config))
    expected, played = cluster.metrics(), KubeFlow.of(find_task(task).build(3, nodes)).play(config)
    assert expected["bound"] > 20
    same = {name: played[name] for name in played if name in expected}
    assert same == pytest.approx({name: expected[name] for name in same}, rel=1e-12, nan_ok=True)


POOLS = {
    "usual": KarpenterSettings(consolidate_after_s=15.0),
    "few types": KarpenterSettings(instance_types=("compute-1", "general-4", "memory-12"), budgets=("30%",)),
    "learned": NodePolicy(),
    "long batches": KarpenterSettings("WhenEmpty", 30.0, batch_idle_duration_s=5.0, batch_max_duration_s=15.0),
}  # fmt: skip


@pytest.mark.parametrize("pool", POOLS.values(), ids=POOLS)
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_where_nodes_are_bought_metrics_are_those_of_the_simulator_to_the_bit(pool, config):
    task = replace(BILL_TASKS["bill"], autoscaler=pool, catalogue=shipped_catalogue(), fixed_prices=True)
    cluster = task.build(2, 4)
    play(cluster, KubeScheduler(np.random.default_rng(0), config))
    assert KubeFlow.of(task.build(2, 4)).play(config) == pytest.approx(cluster.metrics(), rel=1e-12, nan_ok=True)


@pytest.mark.parametrize("resource", [GPU_MILLI, "nvidia.com/gpu", EPHEMERAL_STORAGE])
def test_so_they_are_where_nodes_with_gpus_are_bought_and_these_count(resource):
    config = replace(PACKING, ties="fixed", resources=((CPU, 1), (MEMORY, 1), (resource, 3)))
    cluster = BILL_TASKS["bill-openb"].build(5, 6, pods=120)
    play(cluster, KubeScheduler(np.random.default_rng(0), config))
    played = KubeFlow.of(BILL_TASKS["bill-openb"].build(5, 6, pods=120)).play(config)
    assert played == pytest.approx(cluster.metrics(), rel=1e-12, nan_ok=True)


def test_nodes_of_several_zones_are_refused():
    [kind, *_] = shipped_catalogue().types
    zones = replace(kind, offerings=tuple(replace(kind.cheapest, zone=zone) for zone in ("a", "b")))
    task = replace(BILL_TASKS["bill"], catalogue=Catalogue((zones,)), fixed_prices=True)
    with pytest.raises(UserError, match="in one zone"):
        KubeFlow.of(task.build(2, 4))


# ---- pods that have siblings -----------------------------------------------------------------------------------------

RACK = "rack"
TWO_KEYS = {"default_spreading": ((1, ZONE_LABEL), (2, RACK), (3, HOSTNAME_LABEL)), "system_spreading": False}
SPREADING = {
    "system": CONFIGS["stock"],
    "packing": replace(CONFIGS["packing"], weights={"NodeResourcesFit": 1, "PodTopologySpread": 2}),
    "list": replace(CONFIGS["stock"], **TWO_KEYS),
    "zones": replace(CONFIGS["stock"], default_spreading=((2, ZONE_LABEL),), weights={"PodTopologySpread": 1}),
    "sampled": replace(CONFIGS["stock"], percentage_of_nodes_to_score=40),
    "off": replace(CONFIGS["stock"], weights={"NodeResourcesFit": 1}),
}


def with_siblings(pods, seed):
    """Return pods, most of them of owners: some have a label of their own, others share theirs with other owners'."""
    rng, found = np.random.default_rng(seed), []
    for pod in pods:
        number, app = int(rng.integers(6)), "ab"[int(rng.integers(2))]
        owner, labels = (
            (f"ReplicaSet/web-{number}", {"app": app, "pod-template-hash": str(number)}),
            (f"StatefulSet/db-{app}", {"app": app, "apps.kubernetes.io/pod-index": str(len(found))}),
            (f"ReplicationController/{app}{number % 2}", {"app": app, "tier": str(number % 2)}),
            (f"Job/{number}", {"app": app}),
            ("", {"pod-template-hash": str(number)}),
            ("ReplicaSet/bare", {}),
        )[int(rng.integers(6))]
        space = ("default", "other")[int(rng.integers(2))]
        found.append(replace(pod, owner=owner, labels=labels, namespace=space))
    return tuple(found)


def labelled(nodes, how, seed):
    """Return nodes with labels of hosts, zones and racks: all of them, of some nodes, or none."""
    rng, found = np.random.default_rng(seed), []
    for node in nodes:
        labels = {HOSTNAME_LABEL: node.name, ZONE_LABEL: "abc"[int(rng.integers(3))], RACK: str(rng.integers(2))}
        kept = {key for key in labels if how == "all" or (how == "some" and rng.random() < 0.8)}
        found.append(replace(node, labels={key: value for key, value in labels.items() if key in kept}))
    return found


def spreading_cluster(task, how, seed, nodes, **size):
    cluster = find_task(task).build(seed, nodes, **size)
    pods = with_siblings(cluster.workload.pods, seed)
    return SimCluster(labelled(cluster.state.nodes, how, seed), replace(cluster.workload, pods=pods))


@pytest.mark.parametrize("config", SPREADING.values(), ids=SPREADING)
@pytest.mark.parametrize("how", ["all", "some", "none"])
@pytest.mark.parametrize(("task", "nodes"), [("balance", 6), ("waiting", 4)])
def test_siblings_are_spread_as_in_the_simulator(task, nodes, how, config):
    cluster = spreading_cluster(task, how, 3, nodes)
    flow = KubeFlow.of(spreading_cluster(task, how, 3, nodes))
    assert flow.knows(config)
    play(cluster, KubeScheduler(np.random.default_rng(0), config))
    expected, played = cluster.metrics(), flow.play(config)
    assert expected["bound"] > 20
    same = {name: expected[name] for name in played if name in expected}
    assert {name: played[name] for name in same} == pytest.approx(same, rel=1e-12, nan_ok=True)
    if task == "balance" and how == "all" and "PodTopologySpread" in config.weights:
        alone = replace(config, default_spreading=())
        assert flow.play(alone)["mean_variance"] != played["mean_variance"], "it counts"


def test_so_they_are_where_a_part_of_many_nodes_is_scored():
    cluster, flow = (spreading_cluster("balance", "some", 1, 130, pods=600) for _ in range(2))
    config = SPREADING["sampled"]
    play(cluster, KubeScheduler(np.random.default_rng(0), config))
    metric = "mean_variance"
    assert KubeFlow.of(flow).play(config)[metric] == pytest.approx(cluster.metrics()[metric], rel=1e-12)


def drawn_with_siblings(count, rng):
    """Draw the pods of a bill, of which most have siblings."""
    workload, until_s = BILL_TASKS["bill"].rhythm(count, rng)
    return replace(workload, pods=with_siblings(workload.pods, count)), until_s


@pytest.mark.parametrize("config", [SPREADING["system"], SPREADING["packing"]], ids=["system", "packing"])
@pytest.mark.parametrize("zone", ["", "a"])
@pytest.mark.parametrize(
    "pool", [POOLS["usual"], POOLS["learned"], "descheduled"], ids=["usual", "learned", "descheduled"]
)
def test_siblings_are_spread_over_nodes_that_are_bought(pool, zone, config):
    if pool == "descheduled":
        pool = Descheduled(HighNodeUtilizationSettings(thresholds=("cpu=60",)), POOLS["long batches"])
    types = [replace(kind, offerings=(Offering(kind.cheapest.price, zone=zone),)) for kind in shipped_catalogue().types]
    task = replace(
        BILL_TASKS["bill"], autoscaler=pool, catalogue=Catalogue(tuple(types)), fixed_prices=True,
        rhythm=drawn_with_siblings,
    )  # fmt: skip
    cluster = task.build(2, 8)
    play(cluster, KubeScheduler(np.random.default_rng(0), config))
    flow = KubeFlow.of(task.build(2, 8))
    played = flow.play(config)
    assert played == pytest.approx(cluster.metrics(), rel=1e-12, nan_ok=True)
    assert flow.play(replace(config, default_spreading=())) != played, "it counts"
    racks = replace(config, **TWO_KEYS)
    assert not flow.knows(racks), "how new nodes differ by other labels is not known"
    with pytest.raises(UserError, match="where nodes are bought spread over hosts and zones"):
        flow.play(racks)


def test_a_selector_of_ones_own_is_not_known():
    flow = KubeFlow.of(find_task("balance").build(3, 4))
    assert flow.knows(KubeSchedulerConfig())
    assert not flow.knows(KubeSchedulerConfig(default_selector=lambda _pod: None))


def test_a_part_of_the_nodes_is_scored_as_in_the_simulator():
    config = KubeSchedulerConfig(percentage_of_nodes_to_score=10, ties="fixed")
    cluster = find_task("balance").build(1, 150, pods=900)
    play(cluster, KubeScheduler(np.random.default_rng(0), config))
    flow = KubeFlow.of(find_task("balance").build(1, 150, pods=900))
    metric = "mean_variance"
    assert flow.play(config)[metric] == pytest.approx(cluster.metrics()[metric], rel=1e-12)
    every = KubeSchedulerConfig(percentage_of_nodes_to_score=100, ties="fixed")
    assert flow.play(config)[metric] != flow.play(every)[metric]  # 100 of 150 nodes are not all


def test_backoffs_are_those_of_the_configuration():
    def waits(backoff_s):
        cluster = find_task("waiting").build(3, 4)
        play(cluster, KubeScheduler(np.random.default_rng(0), KubeSchedulerConfig(ties="fixed", backoff_s=backoff_s)))
        return cluster.metrics()["waiting_mean_s"]

    assert waits((1, 10)) == waits(None)
    assert waits((1, 10)) != waits((30, 60))


def test_equal_nodes_are_drawn_from_and_the_same_seed_draws_the_same():
    nodes = [Node(f"n{i}", {CPU: 10_000, MEMORY: 10 << 30, PODS: 110}) for i in range(4)]
    pods = tuple(Pod(f"p{i}", requests={CPU: 100, MEMORY: 1 << 20}, created_s=float(i)) for i in range(2))
    flow = KubeFlow.of(SimCluster(nodes, Workload(pods)))
    one = KubeSchedulerConfig(weights={"ImageLocality": 1})  # tells no node from another: two pods meet by one in four
    empty = np.array([flow.play(one, seed)["final_empty_nodes"] for seed in range(400)])
    assert set(empty) == {2.0, 3.0}
    assert (empty == 3.0).mean() == pytest.approx(0.25, abs=0.08)  # 3.7 standard errors
    assert [flow.play(one, seed)["final_empty_nodes"] for seed in range(400)] == empty.tolist()


def test_what_other_plugins_tell_apart_is_refused():
    node = Node("n", {CPU: 1000, MEMORY: 1 << 30, PODS: 110})
    pod = Pod("p", requests={CPU: 100, MEMORY: 1 << 20})
    soft = Node("soft", node.allocatable, taints=(Taint("a", effect="PreferNoSchedule"),))
    with pytest.raises(UserError, match="soft: it has images or soft taints"):
        KubeFlow.of(SimCluster([soft], Workload((pod,))))
    with pytest.raises(UserError, match="requests no CPU or no memory"):
        KubeFlow.of(SimCluster([node], Workload((Pod("p", requests={CPU: 100}),))))
