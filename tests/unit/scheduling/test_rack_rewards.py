"""Topology rewards against values worked out by hand."""

import pytest

from aaml.cluster.objects import CONTROL_PLANE_LABEL, Pod, PodGroup
from aaml.cluster.state import ClusterState
from aaml.policies.registry import make_reward
from aaml.scheduling.rack_rewards import rack_use
from support import make


def two_racks() -> ClusterState:
    """Two nodes of 1 core in each of two racks, and the control plane in the first."""
    nodes = [make.node(f"n{i}", 1000, labels={"rack": f"r{i // 2}"}) for i in range(4)]
    return make.cluster([*nodes, make.node("master", 1000, labels={CONTROL_PLANE_LABEL: "", "rack": "r0"})])


def reward_of(name: str, state: ClusterState, pod: Pod, node_index: int) -> float:
    reward = make_reward(name)
    context = make.context(state, pod)
    reward.before(context)
    state.assume(pod, state.names[node_index])
    return reward.after(context, node_index)


def test_use_is_counted_by_rack_and_the_control_plane_is_no_capacity() -> None:
    state = two_racks()
    state.assume(Pod("a", requests={"cpu": 500}), "n1")
    assert rack_use(state).tolist() == [0.25, 0.0]


def test_rack_spread_rewards_the_emptier_rack_whatever_the_node() -> None:
    # Use (0.25, 0): deviation 0.125. Into r1: (0.25, 0.25), deviation 0; into r0: (0.5, 0), deviation 0.25.
    for node_index, expected in ((2, 0.125), (3, 0.125), (0, -0.125)):
        state = two_racks()
        state.assume(Pod("a", requests={"cpu": 500}), "n1")
        value = reward_of("rack-spread", state, Pod("b", requests={"cpu": 500}), node_index)
        assert value == pytest.approx(expected * 2 / (500 / 2000))


def test_a_gang_is_rewarded_for_staying_in_its_rack() -> None:
    state = two_racks()
    assert reward_of("gang-rack", state, Pod("g1", group=PodGroup("g")), 0) == 1.0
    assert reward_of("gang-rack", state, Pod("g2", group=PodGroup("g")), 1) == 1.0
    assert reward_of("gang-rack", state, Pod("g3", group=PodGroup("g")), 2) == 0.0
    assert reward_of("gang-rack", state, Pod("g4", group=PodGroup("g")), 3) == pytest.approx(1 / 3)
    assert reward_of("gang-rack", state, Pod("alone"), 3) == 0.0


def test_both_work_without_labels_and_in_sums() -> None:
    state = make.cluster(make.nodes(2, 1000))
    pod = Pod("p", requests={"cpu": 100}, group=PodGroup("g"))
    assert reward_of("rack-spread=1,gang-rack=0.5", state, pod, 0) < 0.5
