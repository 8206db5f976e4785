"""The rules that look at lifetimes, on hand-made nodes, and the past that they learn from."""

import numpy as np
import pytest

from aaml.cluster.objects import Node, Pod
from aaml.cluster.state import ClusterState
from aaml.policies.heuristics import PolicyOptions
from aaml.policies.lifetime_rules import added_time, lifetime_class
from aaml.policies.registry import make_policy
from aaml.scheduling.observation import Context
from aaml.scheduling.play import play
from aaml.scheduling.queue import QueueSettings
from aaml.sim.cluster import SimCluster
from aaml.workload.model import Workload

HOUR, DAY = 3600.0, 86_400.0


def test_nilas_grades_by_how_much_longer_a_node_is_in_use_in_doubling_steps():
    """An hour's pod keeps a node that is empty in 61, 59 or 30 minutes, or now, busy for 0, 1, 30 or 60 more."""
    assert added_time(np.array([3660.0, 3540.0, 1800.0, 0.0]), HOUR).tolist() == [0.0, 1.0, 5.0, 6.0]


def test_lava_fills_the_nearest_longer_class_first_then_its_own_then_shorter_ones_then_empty_nodes():
    """Classes of ten: a pod of 20 minutes is of class 1 (10 to 100 minutes)."""
    nodes = np.array([2 * DAY, 4 * HOUR, 30 * 60.0, 5 * 60.0, 0.0])  # classes 3, 2, 1, 0, and an empty node
    assert np.argsort(lifetime_class(nodes, 20 * 60.0), kind="stable").tolist() == [1, 0, 2, 3, 4]


@pytest.mark.parametrize(("name", "chosen"), [("clairvoyant", "late"), ("best-fit", "soon")])
def test_a_long_run_goes_where_a_node_lasts_anyway_though_another_is_fuller(name, chosen):
    state = ClusterState([Node(each, {"cpu": 1000, "memory": 1000, "pods": 9}) for each in ("empty", "soon", "late")])
    state.assume(Pod("a", requests={"cpu": 500, "memory": 500}, lifetime_s=60.0), "soon")
    state.assume(Pod("b", requests={"cpu": 300, "memory": 300}, lifetime_s=DAY), "late")
    pod = Pod("p", requests={"cpu": 100, "memory": 100}, lifetime_s=HOUR)
    decision = make_policy(name).act(Context(state, pod, np.ones(3, dtype=bool)))
    assert state.names[decision.node_index] == chosen


@pytest.mark.parametrize("name", ["nilas", "lava"])
def test_the_rules_learn_from_the_past_whose_pods_last(name):
    """Jobs ran for a minute, services on and on; what the pods at hand will do is not looked at."""
    past = [Pod(f"j{i}", owner="Job/j", created_s=float(i), lifetime_s=60.0) for i in range(3000)]
    past += [Pod(f"s{i}", owner="ReplicaSet/s", created_s=0.0, lifetime_s=1e6) for i in range(50)]
    state = ClusterState([Node(each, {"cpu": 1000, "memory": 1000, "pods": 9}) for each in ("empty", "job", "service")])
    state.assume(Pod("a", owner="Job/j", requests={"cpu": 500, "memory": 500}, lifetime_s=1e9), "job")
    state.assume(Pod("b", owner="ReplicaSet/s", requests={"cpu": 300, "memory": 300}, lifetime_s=1.0), "service")
    pod = Pod("p", owner="ReplicaSet/s", requests={"cpu": 100, "memory": 100}, lifetime_s=1.0)
    options = PolicyOptions(expected=sorted(past, key=lambda each: each.created_s))
    decision = make_policy(name, options).act(Context(state, pod, np.ones(3, dtype=bool)))
    assert state.names[decision.node_index] == "service"


@pytest.mark.parametrize(("name", "waits"), [("nilas", 738.0), ("shortest-first", 198.0)])
def test_what_ends_soon_goes_before_what_runs_long_though_it_came_later(name, waits):
    """One node for a pod at a time: as a job ran for 100 s there came a service, for 1,000, and then three jobs."""
    past = [Pod(f"j{i}", owner="Job/j", created_s=float(i), lifetime_s=100.0) for i in range(3000)]
    past += [Pod(f"s{i}", owner="ReplicaSet/s", created_s=float(i), lifetime_s=1000.0) for i in range(3000)]
    options = PolicyOptions(expected=sorted(past, key=lambda each: each.created_s))
    whole = {"cpu": 1000}
    kinds = ["Job/j", "ReplicaSet/s", *["Job/j"] * 3]
    pods = tuple(
        Pod(f"p{i}", owner=owner, requests=whole, created_s=float(i), lifetime_s=100.0 if owner == "Job/j" else 1000.0)
        for i, owner in enumerate(kinds)
    )
    cluster = SimCluster([Node("n", {**whole, "pods": 9})], Workload(pods), queue=QueueSettings(0.0, 0.0))
    play(cluster, make_policy(name, options))
    metrics = cluster.metrics()
    assert metrics["bound"] == 5
    assert metrics["waiting_mean_s"] == pytest.approx(waits)  # the jobs wait for 98, 197 and 296 s, or for 1,000 more


@pytest.mark.parametrize(("name", "waits"), [("smallest-first", 399.0), ("least-work-first", 99.0)])
def test_a_large_pod_that_ends_soon_goes_before_a_small_one_that_runs_long(name, waits):
    """A job that takes the whole node runs for 100 s; a service of half a node comes, for 1,000 s, then another job."""
    past = [Pod(f"j{i}", owner="Job/j", created_s=float(i), lifetime_s=100.0) for i in range(3000)]
    past += [Pod(f"s{i}", owner="ReplicaSet/s", created_s=float(i), lifetime_s=1000.0) for i in range(3000)]
    options = PolicyOptions(expected=sorted(past, key=lambda each: each.created_s))
    runs = [("Job/j", 1000, 100.0), ("ReplicaSet/s", 500, 1000.0), ("Job/j", 1000, 100.0)]
    pods = tuple(
        Pod(f"p{i}", owner=owner, requests={"cpu": cpu}, created_s=float(i), lifetime_s=lifetime_s)
        for i, (owner, cpu, lifetime_s) in enumerate(runs)
    )
    cluster = SimCluster([Node("n", {"cpu": 1000, "pods": 9})], Workload(pods), queue=QueueSettings(0.0, 0.0))
    play(cluster, make_policy(name, options))
    assert cluster.metrics()["waiting_mean_s"] == pytest.approx(waits)  # 199 and 98 s, or 99 and 1,098
