"""kube-scheduler's scores, each worked out by hand from the plugin's formula."""

from dataclasses import replace

import numpy as np
import pytest

from aaml.cluster.filters import feasible
from aaml.cluster.objects import (
    HOSTNAME_LABEL,
    Affinity,
    GpuRequest,
    LabelSelector,
    Node,
    NodeSelectorTerm,
    Pod,
    PodAffinityTerm,
    PreferredNode,
    Requirement,
    Taint,
    Toleration,
    TopologySpread,
    WeightedPodAffinityTerm,
)
from aaml.cluster.state import ClusterState
from aaml.policies.kube_scores import PACKING, KubeScheduler, KubeSchedulerConfig, plugin_scores, total_scores
from aaml.policies.kube_scores.sampling import heap_top, nodes_to_find, search, zone_order
from support import make

GIB = 1 << 30
MIB = 1 << 20
ROOM = {"cpu": 4000, "memory": 8 * GIB, "pods": 10}
POD = Pod("q", requests={"cpu": 1000, "memory": GIB}, labels={"app": "x"})


def two_nodes():
    """`a` is empty, `b` has 2 cores and 1 GiB taken."""
    state = ClusterState([Node("a", ROOM), Node("b", ROOM)])
    state.upsert_pod(Pod("p", requests={"cpu": 2000, "memory": GIB}, node_name="b"))
    return state


def scores(state, pod, plugin, config=None, mask=None):
    mask = np.ones(len(state), dtype=bool) if mask is None else mask
    found = plugin_scores(state, pod, mask, config or KubeSchedulerConfig())
    return found[plugin].tolist() if plugin in found else None


def test_least_allocated():
    # a: (75 + 87) / 2, b: (25 + 75) / 2
    assert scores(two_nodes(), POD, "NodeResourcesFit") == [81, 50]


def test_most_allocated():
    # a: (25 + 12) / 2, b: (75 + 25) / 2
    assert scores(two_nodes(), POD, "NodeResourcesFit", KubeSchedulerConfig(strategy="MostAllocated")) == [18, 50]


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        (((0, 0), (100, 10)), [19, 50]),  # a: 25 and 12, mean 18.5 rounded up
        (((0, 10), (100, 0)), [82, 50]),  # a: 75 and 88, mean 81.5 rounded up
        (((0, 0), (50, 0), (100, 10)), [0, 50]),  # zeros are not counted in the mean: b is CPU's 50 alone
    ],
)
def test_requested_to_capacity_ratio(shape, expected):
    config = KubeSchedulerConfig(strategy="RequestedToCapacityRatio", shape=shape)
    assert scores(two_nodes(), POD, "NodeResourcesFit", config) == expected


def test_weights_of_resources():
    config = KubeSchedulerConfig(resources=(("cpu", 3), ("memory", 1)))
    assert scores(two_nodes(), POD, "NodeResourcesFit", config) == [(3 * 75 + 87) // 4, (3 * 25 + 75) // 4]


def test_packing_prefers_the_fuller_node_and_weighs_gpus_three_times():
    # (75 + 25) / 2 on b, which evenness does not outweigh: the default profile would take a.
    assert scores(two_nodes(), POD, "NodeResourcesFit", PACKING) == [18, 50]
    assert "NodeResourcesBalancedAllocation" not in plugin_scores(two_nodes(), POD, np.array([True, True]), PACKING)
    state = ClusterState([Node("a", ROOM, gpu_count=4), Node("b", ROOM, gpu_count=2), Node("c", ROOM)])
    state.upsert_pod(Pod("p", gpu=GpuRequest(1, 500), node_name="a"))
    pod = replace(POD, gpu=GpuRequest(1, 500))
    # CPU 1100 of 4000 (27), memory 1224 of 8192 MiB (14) on a with the other pod's defaults, else 25 and 12;
    # GPUs 1000 of 4000 (25) and 500 of 2000 (25); c offers none.
    assert scores(state, pod, "NodeResourcesFit", PACKING) == [(27 + 14 + 75) // 5, (25 + 12 + 75) // 5, 37 // 2]
    assert scores(state, POD, "NodeResourcesFit", PACKING) == [41 // 2, 37 // 2, 37 // 2]


def test_extended_resources_count_only_for_pods_that_want_them():
    state = ClusterState([Node("a", {**ROOM, "example.com/fpga": 4}), Node("b", ROOM)])
    config = KubeSchedulerConfig(resources=(("cpu", 1), ("example.com/fpga", 1)))
    assert scores(state, POD, "NodeResourcesFit", config) == [75, 75]
    pod = replace(POD, requests={"cpu": 1000, "example.com/fpga": 1})
    assert scores(state, pod, "NodeResourcesFit", config) == [75, 75]
    pod = replace(POD, requests={"cpu": 1000, "example.com/fpga": 2})
    assert scores(state, pod, "NodeResourcesFit", config) == [(75 + 50) // 2, 75]


def test_a_pod_without_requests_counts_as_100m_and_200mi():
    # (3900 * 100 // 4000, 7992 * 100 // 8192) = (97, 97)
    assert scores(two_nodes(), Pod("q"), "NodeResourcesFit")[0] == 97


def test_balanced_allocation_compares_with_and_without_the_pod():
    # a: 93 with, 100 without -> 50 + (50 - 7) / 2; b: 75 with, 81 without -> 50 + (50 - 6) / 2
    assert scores(two_nodes(), POD, "NodeResourcesBalancedAllocation") == [71, 72]
    assert scores(two_nodes(), Pod("q"), "NodeResourcesBalancedAllocation") is None


def test_balanced_allocation_over_three_resources():
    state = ClusterState([Node("a", {**ROOM, "ephemeral-storage": 100 * GIB})])
    config = KubeSchedulerConfig(balanced_resources=("cpu", "memory", "ephemeral-storage"))
    pod = Pod("q", requests={"cpu": 2000, "memory": 4 * GIB, "ephemeral-storage": 20 * GIB})
    # Fractions 0.5, 0.5, 0.2: mean 0.4, variance (0.01 + 0.01 + 0.04) / 3 = 0.02, deviation 0.1414 -> 85; without 100.
    assert scores(state, pod, "NodeResourcesBalancedAllocation", config) == [50 + (50 + 85 - 100) // 2]


def test_total():
    # 3 * 100 for tolerated taints, then the two resource scores; no node has images.
    assert total_scores(two_nodes(), POD, np.array([True, True])).tolist() == [300 + 81 + 71, 300 + 50 + 72]
    assert total_scores(two_nodes(), POD, np.array([True, False])).tolist() == [452, -1]
    config = KubeSchedulerConfig(weights={"NodeResourcesFit": 2})
    assert total_scores(two_nodes(), POD, np.array([True, True]), config).tolist() == [162, 100]


def test_soft_taints():
    soft = [Taint(key, effect="PreferNoSchedule") for key in "ab"]
    state = ClusterState(
        [Node("none", ROOM), Node("one", ROOM, taints=(soft[0],)), Node("two", ROOM, taints=tuple(soft))]
    )
    assert scores(state, POD, "TaintToleration") == [100, 50, 0]
    assert scores(state, POD, "TaintToleration", mask=np.array([True, True, False]))[:2] == [100, 0]
    tolerant = replace(POD, tolerations=(Toleration("a", "Exists"),))
    assert scores(state, tolerant, "TaintToleration") == [100, 100, 0]
    not_for_soft = replace(POD, tolerations=(Toleration("a", "Exists", effect="NoSchedule"),))
    assert scores(state, not_for_soft, "TaintToleration") == [100, 50, 0]


def test_preferred_nodes():
    state = ClusterState([Node(name, ROOM, dict.fromkeys(name, "1")) for name in ("x", "y", "xy", "z")])
    terms = tuple(
        PreferredNode(weight, NodeSelectorTerm((Requirement(key, "Exists"),))) for key, weight in [("x", 30), ("y", 40)]
    )
    pod = replace(POD, affinity=Affinity(preferred_nodes=terms))
    assert scores(state, pod, "NodeAffinity") == [30 * 100 // 70, 40 * 100 // 70, 100, 0]
    assert scores(state, POD, "NodeAffinity") is None


# ---- topology --------------------------------------------------------------------------------------------------------

APP = LabelSelector((Requirement("app", "In", ("x",)),))


def zones(*counts):
    """A node in each zone with so many pods of the app."""
    state = ClusterState([Node(f"n{z}", ROOM, {"zone": f"z{z}", HOSTNAME_LABEL: f"n{z}"}) for z in range(len(counts))])
    for z, count in enumerate(counts):
        for number in range(count):
            state.upsert_pod(Pod(f"p{z}-{number}", labels={"app": "x"}, node_name=f"n{z}"))
    return state


def soft(key="zone", max_skew=1):
    return replace(POD, spread=(TopologySpread(max_skew, key, APP, hard=False),))


def test_soft_spreading():
    # 3 and 1 pods times ln(4) = 1.386: 4.16 and 1.39, rounded 4 and 1; 100 * (4 + 1 - s) / 4
    assert scores(zones(3, 1), soft(), "PodTopologySpread") == [25, 100]
    # maxSkew 3 adds 2: 6 and 3; 100 * (9 - s) / 6
    assert scores(zones(3, 1), soft(max_skew=3), "PodTopologySpread") == [50, 100]
    assert scores(zones(0, 0), soft(), "PodTopologySpread") == [100, 100]
    assert scores(zones(3, 1), POD, "PodTopologySpread") is None


def test_soft_spreading_over_hosts_counts_hosts_that_are_scored():
    # Two of three hosts: ln(4) again, and the third host's pods do not matter.
    state = zones(3, 1, 9)
    assert scores(state, soft(HOSTNAME_LABEL), "PodTopologySpread", mask=np.array([True, True, False]))[:2] == [25, 100]


def test_a_node_without_the_key_gets_nothing():
    state = zones(3, 1)
    state.upsert_node(Node("bare", ROOM))
    assert scores(state, soft(), "PodTopologySpread") == [25, 100, 0]


def test_default_spreading_needs_to_know_the_pods_siblings():
    config = KubeSchedulerConfig(default_selector=lambda _pod: APP)
    # Hosts only, as the nodes have no topology.kubernetes.io/zone: 3 and 1 times ln(4), plus maxSkew 3 - 1: 6 and 3.
    assert scores(zones(3, 1), POD, "PodTopologySpread", config) == [50, 100]
    assert (
        scores(zones(3, 1), POD, "PodTopologySpread", KubeSchedulerConfig(default_selector=lambda _pod: None)) is None
    )


def prefer(weight, selector=APP):
    term = PodAffinityTerm("zone", selector, frozenset({"default"}))
    return replace(POD, affinity=Affinity(preferred_pods=(WeightedPodAffinityTerm(weight, term),)))


def test_preferred_pods():
    # 10 * 2, 10 * 1, 0 scaled from least to greatest
    assert scores(zones(2, 1, 0), prefer(10), "InterPodAffinity") == [100, 50, 0]
    assert scores(zones(2, 1, 0), prefer(-10), "InterPodAffinity") == [0, 50, 100]
    assert scores(zones(1, 1), prefer(10), "InterPodAffinity") == [0, 0]
    assert scores(zones(2, 1), POD, "InterPodAffinity") is None


def test_preferences_of_placed_pods_about_this_one():
    state = zones(0, 0, 0)
    state.upsert_pod(replace(prefer(-5), name="hates", uid="hates", node_name="n0"))
    state.upsert_pod(replace(prefer(5), name="likes", uid="likes", node_name="n1"))
    assert scores(state, POD, "InterPodAffinity") == [0, 100, 50]
    assert (
        scores(state, POD, "InterPodAffinity", KubeSchedulerConfig(ignore_preferred_terms_of_existing_pods=True))
        is None
    )


def test_required_affinity_of_placed_pods_counts_one():
    state = zones(0, 0)
    term = PodAffinityTerm("zone", APP, frozenset({"default"}))
    state.upsert_pod(Pod("p", labels={"app": "y"}, affinity=Affinity(required_pods=(term,)), node_name="n1"))
    assert scores(state, POD, "InterPodAffinity") == [0, 100]
    assert scores(state, POD, "InterPodAffinity", KubeSchedulerConfig(hard_pod_affinity_weight=0)) is None


def test_image_locality():
    state = ClusterState([Node("a", ROOM, images={"db:1": 523 * MIB, "web:latest": 2000 * MIB}), Node("b", ROOM)])
    # Present on half of the nodes: 261.5 MiB; 100 * (261.5 - 23) / (1000 - 23) = 24.4
    assert scores(state, replace(POD, images=("db:1",)), "ImageLocality") == [24, 0]
    assert scores(state, replace(POD, images=("web",)), "ImageLocality") == [100, 0]
    # Two containers: up to 2000 MiB; 1000 + 261.5: 100 * (1261.5 - 23) / (2000 - 23) = 62.6
    assert scores(state, replace(POD, images=("web", "db:1")), "ImageLocality") == [62, 0]
    assert scores(state, replace(POD, images=("registry:5000/web",)), "ImageLocality") == [0, 0]


# ---- sampling and ties -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nodes", "percentage", "expected"),
    [(50, 0, 50), (100, 0, 100), (1000, 0, 420), (5000, 0, 500), (6000, 0, 300), (1000, 30, 300), (1000, 5, 100)],
)
def test_how_many_feasible_nodes_are_searched(nodes, percentage, expected):
    assert nodes_to_find(nodes, percentage) == expected


def test_zones_take_turns():
    zone = "topology.kubernetes.io/zone"
    nodes = [Node("a", labels={zone: "1"}), Node("b", labels={zone: "1"}), Node("c", labels={zone: "2"}), Node("d")]
    assert zone_order(nodes).tolist() == [0, 2, 3, 1]


def test_the_search_goes_on_where_it_stopped():
    found, start = search(np.ones(10, dtype=bool), np.arange(10), 8, 3)
    assert found.tolist() == [8, 9, 0]
    assert start == 1
    mask = np.array([False, True, False, True, True])
    found, start = search(mask, np.arange(5), 0, 2)
    assert found.tolist() == [1, 3]
    assert start == 4
    found, start = search(mask, np.arange(5), 2, 3)
    assert found.tolist() == [3, 4, 1]
    assert start == 2


@pytest.mark.parametrize(("values", "top"), [([7, 7, 7], 0), ([1, 5, 5], 1), ([1, 2, 3, 3], 3), ([4], 0)])
def test_the_top_of_a_go_heap(values, top):
    assert heap_top(values) == top


def act(policy, state, pod):
    return policy.act(make.context(state, pod, feasible(state, pod).mask)).node_index


def test_the_policy_takes_the_best_node():
    assert act(KubeScheduler(np.random.default_rng(0)), two_nodes(), POD) == 0
    assert act(KubeScheduler(np.random.default_rng(0)), two_nodes(), replace(POD, requests={"cpu": 3500})) == 0


def test_ties_are_broken_at_random_or_by_order():
    state = ClusterState([Node(f"n{i}", ROOM) for i in range(4)])
    policy = KubeScheduler(np.random.default_rng(0))
    assert {act(policy, state, POD) for _ in range(100)} == {0, 1, 2, 3}
    assert {
        act(KubeScheduler(np.random.default_rng(0), KubeSchedulerConfig(ties=ties)), state, POD)
        for ties in ("fixed", "heap")
    } == {0}


def test_a_nominated_node_comes_first():
    assert act(KubeScheduler(np.random.default_rng(0)), two_nodes(), replace(POD, nominated_node="b")) == 1
    assert act(KubeScheduler(np.random.default_rng(0)), two_nodes(), replace(POD, nominated_node="gone")) == 0


def test_each_cluster_is_searched_in_an_order_of_its_own():
    # Three labels and three nodes: both states have changed three times. The first one has a row, the second three.
    watched = ClusterState([Node("only", ROOM)])
    for version in "12":
        watched.upsert_node(Node("only", ROOM, {"version": version}))
    posted = ClusterState([Node("a", ROOM), Node("b", ROOM), Node("large", {**ROOM, "cpu": 64_000})])
    for first, second in ((watched, posted), (posted, watched)):
        policy = KubeScheduler(np.random.default_rng(0))
        expected = {id(watched): 0, id(posted): 2}
        assert [act(policy, state, POD) for state in (first, second)] == [expected[id(first)], expected[id(second)]]


def test_a_large_cluster_is_searched_in_parts():
    state = ClusterState([Node(f"n{i}", ROOM) for i in range(300)])
    policy = KubeScheduler(np.random.default_rng(0), KubeSchedulerConfig(percentage_of_nodes_to_score=40, ties="fixed"))
    assert [act(policy, state, POD) for _ in range(4)] == [0, 120, 240, 60]
