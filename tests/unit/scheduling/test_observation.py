"""Features against values worked out by hand, and the promises that networks rely on."""

import numpy as np
import pytest

from aaml.cluster.objects import CONTROL_PLANE_LABEL, GpuRequest, Node, Pod
from aaml.cluster.state import ClusterState
from aaml.cluster.topology import rack_graph, star_graph, to_networkx
from aaml.scheduling.observation import NODE_FEATURES, PAIR_FEATURES, PLAIN, POD_FEATURES, ObservationSpec

GI = 2**30


def state_of(*sizes: int) -> ClusterState:
    return ClusterState(
        Node(f"n{i}", {"cpu": cpu, "memory": 8 * GI, "pods": 10}, labels={"rack": f"r{i // 2}"})
        for i, cpu in enumerate(sizes)
    )


def column(matrix: np.ndarray, names: tuple[str, ...], name: str) -> list[float]:
    return [pytest.approx(v, abs=1e-6) for v in matrix[:, names.index(name)].tolist()]


def test_node_and_pair_features_by_hand() -> None:
    state = state_of(4000, 2000)
    state.assume(Pod("a", requests={"cpu": 1000, "memory": 2 * GI}), "n0")
    seen = PLAIN.observe(state, Pod("b", requests={"cpu": 500, "memory": GI}), np.array([True, True]))
    assert column(seen.nodes, NODE_FEATURES, "cpu_used") == [0.25, 0.0]
    assert column(seen.nodes, NODE_FEATURES, "cpu_used_minus_mean") == [0.125, -0.125]
    assert column(seen.nodes, NODE_FEATURES, "cpu_size") == [1.0, 0.5]
    assert column(seen.nodes, NODE_FEATURES, "empty") == [0.0, 1.0]
    assert column(seen.pairs, PAIR_FEATURES, "cpu_after") == [0.375, 0.25]
    assert column(seen.pairs, PAIR_FEATURES, "memory_after") == [0.375, 0.125]
    assert column(seen.pairs, PAIR_FEATURES, "cpu_after_rank") == [1.0, 0.0]
    assert column(seen.pairs, PAIR_FEATURES, "variance_rank") == [1.0, 0.0]
    assert column(seen.pairs, PAIR_FEATURES, "newly_used") == [0.0, 1.0]
    unit = 1 / 6 * (1 / 8 + 1 / 6) + 1 / 8 * (1 / 8 + 1 / 8)  # the pod on the mean node: a sixth of its CPU
    assert column(seen.pairs, PAIR_FEATURES, "cpu_growth_scaled") == [0.0390625 / unit, -0.03125 / unit]
    assert column(seen.pairs, PAIR_FEATURES, "cpu_gap_scaled") == [3 / 7, -3 / 7]
    assert column(seen.pairs, PAIR_FEATURES, "memory_gap_scaled") == [0.5, -0.5]
    named = dict(zip(POD_FEATURES, seen.pod.tolist(), strict=True))
    assert named["cpu"] == pytest.approx(500 / 3000)
    assert named["cpu_mean"] == pytest.approx(0.125)
    assert named["cpu_spread"] == pytest.approx(0.125)
    assert named["feasible_fraction"] == 1.0


def test_a_node_that_is_full_to_the_brim_is_told_from_one_that_lacks_a_little() -> None:
    state = state_of(1000, 1000, 1000)
    state.assume(Pod("a", requests={"cpu": 490, "memory": GI}), "n0")
    state.assume(Pod("b", requests={"cpu": 250, "memory": GI}), "n1")
    state.assume(Pod("c", requests={"cpu": 250, "memory": GI}), "n1")
    seen = PLAIN.observe(state, Pod("d", requests={"cpu": 500, "memory": GI}), np.ones(3, dtype=bool))
    assert column(seen.pairs, PAIR_FEATURES, "cpu_after") == pytest.approx([0.99, 1.0, 0.5])
    assert column(seen.pairs, PAIR_FEATURES, "cpu_full_after") == [0.0, 1.0, 0.0]
    assert column(seen.pairs, PAIR_FEATURES, "memory_full_after") == [0.0, 0.0, 0.0]
    assert column(seen.pairs, PAIR_FEATURES, "pods") == pytest.approx([np.log(2) / 3, np.log(3) / 3, 0.0])


def test_scaled_features_are_the_same_where_all_is_a_hundred_times_smaller() -> None:
    scaled = [PAIR_FEATURES.index(name) for name in PAIR_FEATURES if name.endswith("_scaled")]
    seen = []
    for times in (1, 100):
        state = ClusterState(
            Node(
                f"n{i}",
                {"cpu": 400_000, "memory": 800 * GI, "pods": 10},
                labels={CONTROL_PLANE_LABEL: ""} if i == 3 else {},
            )
            for i in range(4)
        )
        for node, share in (("n0", 3), ("n1", 1), ("n3", 2)):
            state.assume(Pod(node, requests={"cpu": 400 * times * share, "memory": GI * times}), node)
        pod = Pod("b", requests={"cpu": 500 * times, "memory": 2 * GI * times})
        seen.append(PLAIN.observe(state, pod, np.array([True, True, True, False])).pairs[:, scaled])
    assert seen[0] == pytest.approx(seen[1], abs=1e-5)
    assert (np.abs(seen[0][:3]).max(axis=0) > 0.2).all()
    assert (seen[0][3] == 0.0).all(), "the control plane has no part in the variance"


def test_device_features_by_hand() -> None:
    state = ClusterState([Node("g", {"cpu": 4000, "memory": GI, "pods": 10}, gpu_count=2, gpu_model="T4")])
    state.assume(Pod("a", gpu=GpuRequest(1, 400)), "g")
    seen = PLAIN.observe(state, Pod("b", gpu=GpuRequest(1, 500, frozenset({"T4"}))), np.array([True]))
    assert column(seen.nodes, NODE_FEATURES, "gpu_free") == [0.8]
    assert column(seen.nodes, NODE_FEATURES, "largest_free_device") == [1.0]
    assert column(seen.pairs, PAIR_FEATURES, "device_left") == [0.1]  # 600 left on the shared device, 500 asked
    assert column(seen.pairs, PAIR_FEATURES, "gpu_free_after") == [0.55]
    named = dict(zip(POD_FEATURES, seen.pod.tolist(), strict=True))
    assert (named["is_share"], named["wants_model"]) == (1.0, 1.0)


def test_an_observation_does_not_change_with_the_cluster() -> None:
    state = state_of(4000, 4000)
    mask = np.array([True, True])
    seen = PLAIN.observe(state, Pod("a", requests={"cpu": 100}), mask)
    before = seen.nodes.copy(), seen.pairs.copy(), seen.mask.copy()
    state.assume(Pod("b", requests={"cpu": 3000}), "n0")
    mask[0] = False
    assert all(np.array_equal(x, y) for x, y in zip(before, (seen.nodes, seen.pairs, seen.mask), strict=True))


def test_features_follow_their_node_when_nodes_are_listed_in_another_order() -> None:
    forward, backward = state_of(4000, 2000, 8000), ClusterState()
    for node in reversed(forward.nodes):
        backward.upsert_node(node)
    for state in (forward, backward):
        state.assume(Pod("a", requests={"cpu": 1500, "memory": GI}), "n2")
    pod, mask = Pod("b", requests={"cpu": 300, "memory": GI}), np.array([True, False, True])
    one, other = PLAIN.observe(forward, pod, mask), PLAIN.observe(backward, pod, mask[::-1])
    np.testing.assert_allclose(one.nodes, other.nodes[::-1])
    np.testing.assert_allclose(one.pairs, other.pairs[::-1])
    np.testing.assert_allclose(one.pod, other.pod)


def test_everything_is_finite_and_of_about_unit_size_on_extreme_clusters() -> None:
    state = ClusterState(
        [Node("zero"), Node("full", {"cpu": 1, "memory": 1, "pods": 1}), Node("big", {"cpu": 10**9, "memory": 2**60})]
    )
    state.assume(Pod("a", requests={"cpu": 10**6, "memory": 2**50}), "full")
    seen = ObservationSpec(lookahead=2).observe(
        state, Pod("b", requests={"cpu": 7}), np.ones(3, dtype=bool), [Pod("c")]
    )
    assert np.isfinite(seen.pairs).all()
    assert np.isfinite(seen.pod).all()
    assert np.abs(seen.pairs[:, :3]).max() <= 2.0


def test_the_pods_that_follow_are_shown_and_padded_with_zeros() -> None:
    state = state_of(4000)
    spec = ObservationSpec(lookahead=2)
    seen = spec.observe(state, Pod("a"), np.array([True]), [Pod("b", requests={"cpu": 2000, "memory": 4 * GI})])
    assert seen.pod.shape == (spec.pod_size,)
    assert seen.pod[len(POD_FEATURES) :].tolist() == [0.5, 0.5, 0.0, 0.0, 0.0, 0.0]


def test_the_star_has_the_control_plane_in_the_middle_and_racks_make_a_tree() -> None:
    state = state_of(1000, 1000, 1000)
    star = star_graph(state)
    assert star.edge_index.tolist() == [[0, 1, 2, 3, 3, 3], [3, 3, 3, 0, 1, 2]]
    assert star_graph(state) is star  # kept until a node changes
    racks = rack_graph(state)
    assert racks.hubs == ("control-plane", "rack:r0", "rack:r1")
    drawn = to_networkx(state, racks)
    assert sorted(drawn.neighbors("rack:r0")) == ["control-plane", "n0", "n1"]
    state.upsert_node(Node("n9", labels={CONTROL_PLANE_LABEL: ""}))
    assert star_graph(state).node_count == 4
    assert state.capacity.tolist() == [True, True, True, False]
