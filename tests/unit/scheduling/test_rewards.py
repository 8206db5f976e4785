"""Rewards on hand-made decisions."""

from math import sqrt

import numpy as np
import pytest

from aaml.cluster.objects import CONTROL_PLANE_LABEL, GpuRequest, Pod
from aaml.errors import UserError
from aaml.policies.fragment_meter import FragmentMeter
from aaml.policies.registry import make_reward, register_reward
from aaml.scheduling.rewards import RewardOptions
from support import make


def cluster(used=(), nodes=3, gpus=0):
    """Nodes of 1 core and 1,000 bytes; `used` tells (node_index, milli-cores, bytes) of pods."""
    return make.cluster(make.nodes(nodes, 1000, 1000, gpus=gpus), used)


def give(reward, state, node_index, pod=None, mask=None, **more):
    """Return the reward of placing the pod on the node."""
    context = make.context(state, pod or make.pod("p", 100, 100), mask, **more)
    reward.before(context)
    state.assume(context.pod, state.names[node_index])
    return reward.after(context, node_index)


def test_balance_is_the_scaled_fall_of_the_variance():
    used = [(0, 300, 100), (1, 100, 500)]
    for node_index in range(3):
        state = cluster(used)
        before = 3 * (np.var([0.3, 0.1, 0]) + np.var([0.1, 0.5, 0]))
        cpu, memory = np.array([0.3, 0.1, 0.0]), np.array([0.1, 0.5, 0.0])
        cpu[node_index] += 0.1
        memory[node_index] += 0.2
        after = 3 * (cpu.var() + memory.var())
        asked, spread = sqrt(0.1**2 + 0.2**2), sqrt(before / 3)
        pod = make.pod("p", 100, 200)
        assert give(make_reward("balance"), state, node_index, pod) == pytest.approx(
            (before - after) / (asked * (spread + asked))
        )


def test_balance_ignores_the_control_plane_and_pods_without_requests():
    nodes = [make.node("control", 1000, 1000, labels={CONTROL_PLANE_LABEL: ""}), make.node("n0", 1000, 1000)]
    assert give(make_reward("balance"), make.cluster(nodes), 0) == 0.0
    assert give(make_reward("balance"), cluster(), 0, Pod("p")) == 0.0


def test_balance_level_is_the_spread_left():
    state = cluster(nodes=2)
    assert give(make_reward("balance-level"), state, 0) == pytest.approx(-10 * sqrt(2 * 0.05**2))


def test_compress_rewards_full_nodes_and_punishes_opening_one():
    assert give(make_reward("compress"), cluster([(0, 500, 300)]), 0) == pytest.approx(0.5)  # (0.6 + 0.4) / 2
    assert give(make_reward("compress"), cluster([(0, 500, 300)]), 1) == pytest.approx(0.1 - 1.0)
    # Where no used node can take the pod, opening one is no fault.
    assert give(make_reward("compress"), cluster([(0, 500, 300)]), 1, mask=[0, 1, 1]) == pytest.approx(0.1)


def test_waiting_time_adds_up_to_minutes():
    reward, state = make_reward("waiting-time"), cluster()
    assert give(reward, state, 0, Pod("a"), now_s=0.0, queue_length=2) == 0.0
    # For 30 s two pods waited at first and (this one included) four at the end: 90 pod-seconds.
    assert give(reward, state, 0, Pod("b"), now_s=30.0, queue_length=3) == pytest.approx(-1.5)


def test_seed_a_as_written():
    reward, state = make_reward("seed-a"), cluster(nodes=2)
    first = give(reward, state, 0, Pod("a", requests={"cpu": 400}))
    assert first == pytest.approx(1 - 4 * 0.04)  # use (0.4, 0): variance 0.04
    again = give(reward, state, 0, Pod("b", requests={"cpu": 200}))
    assert again == pytest.approx(-(1 - 4 * 0.09) / sqrt(2))
    other = give(reward, state, 1, Pod("c", requests={"cpu": 600}))
    assert other == pytest.approx(1.0)  # (0.6, 0.6)


def test_seed_a_corrected_depends_on_state_and_action_alone():
    def of(node_index):
        return give(
            make_reward("seed-a-corrected"),
            cluster([(0, 400, 0)], nodes=2),
            node_index,
            Pod("p", requests={"cpu": 200}),
        )

    # Deviation 0.2 before; 0.3 after on n0, 0.1 on n1; times N / D = 2 / 0.2.
    assert of(0) == pytest.approx(-1.0)
    assert of(1) == pytest.approx(1.0)
    assert give(make_reward("seed-a-corrected"), cluster(), 0, Pod("p", requests={"memory": 5})) == 0.0


def test_fragmentation_counts_gpus_made_useless():
    expected = [Pod("e", requests={"cpu": 1}, gpu=GpuRequest(1, 1000))]
    options = RewardOptions(FragmentMeter.of(expected))
    pod = Pod("p", requests={"cpu": 1}, gpu=GpuRequest(1, 600))
    # A device with 0.4 left serves nobody who wants a whole one.
    assert give(make_reward("fragmentation", options), cluster(gpus=2), 0, pod) == pytest.approx(-0.4)
    state = cluster(gpus=1)
    state.assume(Pod("u", gpu=GpuRequest(1, 400)), "n0")
    assert give(make_reward("fragmentation", options), state, 0, pod) == pytest.approx(0.6)
    with pytest.raises(UserError, match="no expected pods"):
        make_reward("fragmentation")


def test_growth_of_fragments_agrees_with_the_amounts_before_and_after():
    rng = np.random.default_rng(2)
    expected = [
        Pod(f"e{i}", requests={"cpu": int(rng.integers(1, 500))}, gpu=GpuRequest(1, int(rng.choice([200, 500, 1000]))))
        for i in range(20)
    ]
    meter, state = FragmentMeter.of(expected), cluster(nodes=4, gpus=3)
    for i in range(8):
        state.assume(Pod(f"u{i}", requests={"cpu": 100}, gpu=GpuRequest(1, 300)), f"n{i % 4}")
    pod = Pod("p", requests={"cpu": 50}, gpu=GpuRequest(1, 1000))  # takes a whole device: no choice of device to make
    growth = meter.growth(state, pod)
    for node_index in range(4):
        after = state.fork()
        after.assume(pod, f"n{node_index}")
        assert growth[node_index] == pytest.approx(meter(after)[node_index] - meter(state)[node_index], abs=1e-6)


def test_weighted_sums_and_own_rewards(tmp_path):
    alone = give(make_reward("compress"), cluster([(0, 500, 300)]), 1)
    level = give(make_reward("balance-level"), cluster([(0, 500, 300)]), 1)
    both = give(make_reward("compress=2, balance-level=0.5"), cluster([(0, 500, 300)]), 1)
    assert both == pytest.approx(2 * alone + 0.5 * level)

    @register_reward("test-potential")
    def used(state):
        return float(state.requested[:, 0].sum()) / 1000

    assert give(make_reward("test-potential"), cluster([(0, 500, 300)]), 1) == pytest.approx(0.1)
    file = tmp_path / "own_rewards.py"
    file.write_text("def row(context, row):\n    return 10.0 * row\n", encoding="utf-8")
    assert give(make_reward(f"{file}:row"), cluster(), 2) == 20.0
    assert give(make_reward(f"{file}:row=0.1,compress=0"), cluster(), 2) == pytest.approx(2.0)
    for weight in ("much", "nan", "1e400"):
        with pytest.raises(UserError, match=f"weight of reward balance: '{weight}'"):
            make_reward(f"balance={weight}")
    with pytest.raises(UserError, match="reward: 'joy' is not accepted; expected one of balance"):
        make_reward("joy")
    file.write_text("def three(a, b, c):\n    return 1.0\n", encoding="utf-8")
    other = tmp_path / "three.py"
    other.write_text("def three(a, b, c):\n    return 1.0\n", encoding="utf-8")
    with pytest.raises(UserError, match="not of 3 arguments"):
        make_reward(f"{other}:three")
