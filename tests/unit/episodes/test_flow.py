"""Compiled episodes against the simulator that they stand for."""

from dataclasses import replace

import numpy as np
import pytest

from aaml.cluster.objects import Node, Pod, PodGroup
from aaml.cluster.quantity import CPU, MEMORY, PODS
from aaml.episodes.flow import Flow
from aaml.errors import UserError
from aaml.policies.fragment_meter import FragmentMeter
from aaml.policies.heuristics.linear import COST, FEATURES, GPU, TERMS, LinearPolicy
from aaml.scheduling.lifetimes import expected_lifetimes
from aaml.scheduling.observation import ObservationSpec
from aaml.scheduling.play import play
from aaml.scheduling.queue_sort import QueueSort
from aaml.sim.bill import BillTask
from aaml.sim.cluster import SimCluster
from aaml.sim.tasks import find_task
from aaml.workload.model import Workload
from support.bills import hastened

USE = ("variance", "cpu_variance", "memory_variance", "empty_fraction")
METRICS = (*(f"mean_{name}" for name in USE), *(f"final_{name}" for name in USE))


@pytest.mark.parametrize(("task", "nodes"), [("compress", 6), ("balance", 5), ("seed-a", 4), ("seedc", 3)])
@pytest.mark.parametrize("seed", [1, 2])
def test_metrics_are_those_of_the_simulator(task, nodes, seed):
    weights = np.random.default_rng(seed).normal(size=(len(TERMS), len(FEATURES)))
    flow = Flow.of(find_task(task).build(seed, nodes))
    cluster = find_task(task).build(seed, nodes)
    play(cluster, LinearPolicy(weights))
    expected = cluster.metrics()
    assert expected["bound"] == expected["arrived"] > 20
    played = flow.play(weights)
    for name in (*METRICS, "waiting_mean_s", "waiting_p99_s", "pending"):
        assert played[name] == pytest.approx(expected[name], rel=1e-9, abs=1e-12), name


@pytest.mark.parametrize("remaining_lifetimes", ["learned", "known"])
def test_metrics_are_those_of_the_simulator_for_a_scorer_that_looks_at_lifetimes(remaining_lifetimes):
    task, weights = find_task("services-and-jobs"), np.random.default_rng(5).normal(size=(len(TERMS), len(FEATURES)))
    spec = ObservationSpec(lifetime_model=expected_lifetimes(remaining_lifetimes, task.expected()))
    played = Flow.of(task.build(1, 4, pods=300), spec).play(weights)
    cluster = task.build(1, 4, pods=300)
    play(cluster, LinearPolicy(weights, observation_spec=spec))
    expected = cluster.metrics()
    for name in (*METRICS, "waiting_mean_s", "pending"):
        assert played[name] == pytest.approx(expected[name], rel=1e-9, abs=1e-12), name
    assert played != Flow.of(task.build(1, 4, pods=300)).play(weights)  # lifetimes count


@pytest.mark.parametrize("costs", [False, True])
def test_a_scorer_that_knows_lifetimes_knows_what_is_left_of_an_evicted_pods(costs):
    task, weights = find_task("bill"), np.random.default_rng(5).normal(size=(len(TERMS), len(FEATURES)))
    spec = ObservationSpec(lifetime_model=expected_lifetimes("known", task.expected()), costs=costs)
    expected = simulated(task.build(2, 6), weights, spec)
    assert expected["evicted"] > 10
    assert Flow.of(task.build(2, 6), spec).play(weights) == pytest.approx(expected, rel=1e-9, abs=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(("task", "nodes", "seed"), [("bill-openb", 6, 1), ("fragmentation", 5, 3)])
def test_a_scorer_looks_at_gpus_and_costs_as_in_the_simulator(task, nodes, seed):
    task = find_task(task)
    if isinstance(task, BillTask):
        task = replace(task, rhythm=hastened(task.rhythm, 12.0))
    weights = np.random.default_rng(6).normal(size=(len(TERMS), len(FEATURES)))
    spec = ObservationSpec(costs=True, fragmentation=FragmentMeter.of(task.expected()))
    expected = simulated(task.build(seed, nodes), weights, spec)
    assert expected["mean_gpu_allocation"] > 0.1
    played = Flow.of(task.build(seed, nodes), spec).play(weights)
    assert played == pytest.approx(expected, rel=1e-9, abs=1e-12)
    for part in (GPU, COST):
        weights[:, [FEATURES.index(name) for name in part]] = 0.0
    assert Flow.of(task.build(seed, nodes), spec).play(weights) != expected


def simulated(cluster, weights, spec):
    play(cluster, LinearPolicy(weights, queue_sort=QueueSort(), observation_spec=spec))
    return cluster.metrics()


@pytest.mark.parametrize("sort", [QueueSort(), QueueSort(200.0, -300.0, 1500.0), QueueSort(rest=-0.1, work=10.0)])
@pytest.mark.parametrize("seed", [3, 4])
def test_pods_wait_as_in_the_simulator_under_an_order_of_the_policys_own(seed, sort):
    weights = np.random.default_rng(seed).normal(size=(len(TERMS), len(FEATURES)))
    task = find_task("waiting")
    lifetime_model = expected_lifetimes("learned", task.expected())
    spec = ObservationSpec(lifetime_model=lifetime_model)
    flow, cluster = Flow.of(task.build(seed, 4), spec), task.build(seed, 4)
    policy = LinearPolicy(weights, queue_sort=sort, observation_spec=spec)
    play(cluster, policy)
    expected, played = cluster.metrics(), flow.play(weights, sort.knowing(lifetime_model))
    assert expected["rejected"] > 100
    for name in (*METRICS, "waiting_mean_s", "waiting_p99_s", "pending"):
        assert played[name] == pytest.approx(expected[name], rel=1e-9, abs=1e-12), name


def test_pods_that_fit_nowhere_wait_for_the_next_departure():
    node = Node("n", {CPU: 1000, MEMORY: 1 << 30, PODS: 110})
    wants = ((0.0, 800, 10.0), (1.0, 600, 5.0), (2.0, 300, 50.0), (3.0, 150, 50.0))
    # 800 until 10, when 600 follows until 15; 300 fits beside neither; 150 fits at once.
    pods = tuple(
        Pod(f"p{i}", requests={CPU: cpu}, created_s=at, lifetime_s=life) for i, (at, cpu, life) in enumerate(wants)
    )
    pods += (Pod("late", requests={CPU: 900}, created_s=20.0, lifetime_s=1.0),)  # never: it waits until the end at 40
    cluster = SimCluster([node], Workload(pods), until_s=40.0)
    played = Flow.of(cluster).play(np.zeros((len(TERMS), len(FEATURES))))
    assert played["waiting_mean_s"] == pytest.approx((0 + 9 + 13 + 0 + 20) / 5)
    assert played["pending"] == 1
    assert played["mean_empty_fraction"] == 0.0


def test_pods_with_more_than_requests_are_refused():
    node = Node("n", {CPU: 1000, MEMORY: 1 << 30, PODS: 110})
    plain = Pod("p", requests={CPU: 100})
    changes = ({"priority": 1}, {"node_selector": {"a": "b"}}, {"group": PodGroup("g")})
    for pod in (replace(plain, **change) for change in changes):
        with pytest.raises(UserError, match="compiled episodes take pods"):
            Flow.of(SimCluster([node], Workload((pod,))))
