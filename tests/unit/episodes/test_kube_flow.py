"""Compiled episodes of kube-scheduler against the simulator that they stand for."""

from dataclasses import replace

import numpy as np
import pytest

from aaml.cluster.objects import Node, Pod, Taint
from aaml.cluster.quantity import CPU, MEMORY, PODS
from aaml.episodes.kube_flow import KubeFlow
from aaml.errors import UserError
from aaml.nodes.catalogue import Catalogue
from aaml.nodes.catalogue_file import shipped_catalogue
from aaml.nodes.node_policy import NodePolicy
from aaml.nodes.settings import KarpenterSettings
from aaml.policies.kube_scores import DEFAULT_WEIGHTS, KubeScheduler, KubeSchedulerConfig
from aaml.scheduling.play import play
from aaml.sim.bill import BILL_TASKS
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


def test_nodes_of_several_zones_are_refused():
    [kind, *_] = shipped_catalogue().types
    zones = replace(kind, offerings=tuple(replace(kind.cheapest, zone=zone) for zone in ("a", "b")))
    task = replace(BILL_TASKS["bill"], catalogue=Catalogue((zones,)), fixed_prices=True)
    with pytest.raises(UserError, match="in one zone"):
        KubeFlow.of(task.build(2, 4))


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
