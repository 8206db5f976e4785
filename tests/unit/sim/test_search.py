"""Look-ahead: it sees past greed, knows the distribution but not the future, and leaves the cluster alone."""

import numpy as np
import pytest

from aaml.errors import UserError
from aaml.policies.registry import make_policy
from aaml.scheduling.cycle import SchedulingCycle
from aaml.sim.cluster import SimCluster
from aaml.sim.search import Future, Search
from aaml.sim.search_config import SearchConfig
from aaml.sim.task import Task
from aaml.workload.model import Workload
from support import make


def pod(name, cores, **fields):
    """A pod of so many cores; all of them have the memory that they need."""
    return make.pod(name, cores * 1000, 1 << 20, **fields)


def problem(*pods, metric="final_cpu_allocation", nodes=(6, 10)):
    """A task whose arrivals are always these."""
    return Task(
        "problem", "made by hand", metric, "balance", len(nodes), 1.0,
        make_nodes=lambda _count: tuple(make.node(f"n{i}", cores * 1000) for i, cores in enumerate(nodes)),
        draw=lambda _nodes, _pods, _rng: Workload(pods),
    )  # fmt: skip


def decide(task, config, pods, *, rng=0):
    """Return the greedy and the searched choice for the first pod, by index of node, and the cluster."""
    cluster = SimCluster(task.make_nodes(task.nodes), pods)
    greedy = make_policy("most-allocated")
    search = Search(Future(task), task, greedy.scores, greedy, config)
    context = SchedulingCycle(cluster).begin(cluster.next_pod())
    return (
        greedy.act(context).node_index,
        search.choose(cluster, context, np.random.default_rng(rng)).node_index,
        cluster,
    )


# The small node is the fuller one after a pod of 4 CPU; but two pods of 6 CPU fit only if it goes to the large one.
LARGE_ONES = (pod("p", 6, at=1.0), pod("q", 6, at=2.0))


@pytest.mark.parametrize(("horizon", "expected"), [(1, 0), (2, 1)])
def test_two_arrivals_ahead_it_leaves_room_where_greed_does_not(horizon, expected):
    greedy, searched, _ = decide(problem(*LARGE_ONES), SearchConfig(2, 1, horizon), [pod("now", 4)])
    assert greedy == 0
    assert searched == expected


def test_lower_is_better_where_the_task_says_so():
    task = problem(*LARGE_ONES, pod("end", 0, at=3.0), metric="mean_pending_pods")
    assert decide(task, SearchConfig(2, 1, 3), [pod("now", 4)])[1] == 1


def test_the_true_future_makes_no_difference_and_the_cluster_stays():
    small = [pod("now", 4), pod("one", 1, at=1.0), pod("two", 1, at=2.0)]
    _, searched, cluster = decide(problem(*LARGE_ONES), SearchConfig(2, 2, 2), small)
    assert searched == 1
    assert (cluster.now_s(), cluster.next_pod().name, len(cluster.state.placements)) == (0.0, "now", 0)
    cluster.bind(cluster.next_pod(), 0)
    assert cluster.next_pod().name == "one"


def test_noise_alone_changes_no_decision():
    """Futures in which the first or the second node is the right one, alike often: the favourite stays."""

    def draw(_nodes, _pods, rng):
        return Workload(LARGE_ONES if rng.random() < 0.5 else (pod("p", 10, at=1.0), pod("q", 2, at=2.0)))

    from dataclasses import replace

    task = replace(problem(*LARGE_ONES), draw=draw)
    chosen = [decide(task, SearchConfig(2, 64, 2), [pod("now", 4)], rng=rng)[1] for rng in range(8)]
    assert chosen.count(0) >= 6


def test_nodes_in_the_same_state_are_tried_once():
    task = problem(*LARGE_ONES, nodes=(10, 10, 10, 6))
    greedy = make_policy("least-allocated")
    cluster = SimCluster(task.make_nodes(4), [pod("now", 4)])
    context = SchedulingCycle(cluster).begin(cluster.next_pod())
    search = Search(Future(task), task, greedy.scores, greedy, SearchConfig(3, 1, 2))
    assert search._candidates(context) == [0, 3]


def test_a_running_pod_lives_on_as_pods_of_its_age_do():
    """Half of the kind live 10 s and half 100 s: after 50 s it is one of the latter, whatever its own lifetime."""
    task = problem(*(pod(f"s{i}", 1, at=60.0 + i, life=10.0 if i % 2 else 100.0, owner="web") for i in range(40)))
    cluster = SimCluster(
        task.make_nodes(2), [pod("old", 1, life=70.0, owner="web"), pod("now", 1, at=50.0, owner="web")]
    )
    cluster.bind(cluster.next_pod(), 0)
    assert cluster.next_pod().name == "now"
    assert cluster.now_s() == 50.0
    twin = cluster.fork()
    Future(task).imagine(twin, 40, np.random.default_rng(0))
    twin.bind(twin.next_pod(), 1)
    while twin.next_pod() is not None and twin.now_s() < 110.0:
        twin.bind(twin.next_pod(), 1) if twin.feasible(twin.next_pod())[1] else twin.reject(twin.next_pod())
        assert ("old" in twin.state.placements) == (twin.now_s() < 100.0)
    assert cluster.metrics()["bound"] == 1  # the true one goes on by itself
    cluster.bind(cluster.next_pod(), 1)
    assert cluster.next_pod() is None
    assert cluster.now_s() == 70.0


@pytest.mark.parametrize("name", ["candidates", "samples", "horizon"])
def test_numbers_below_one_are_named(name):
    with pytest.raises(UserError, match=name):
        SearchConfig(**{name: 0})
