"""What remains of each node's load, against the model asked pod by pod while pods and nodes come and go."""

from math import log1p

import numpy as np
import pytest

from aaml.cluster.objects import GpuRequest, Node, Pod
from aaml.cluster.state import ClusterState
from aaml.scheduling.lifetimes import KnownLifetimes, LifetimeModel
from aaml.scheduling.observation import NODE_FEATURES, PAIR_FEATURES, POD_FEATURES, ObservationSpec
from aaml.scheduling.remaining import HORIZONS_S, NODE_REMAINING, PAIR_REMAINING, RunningPods


def nodes(count: int) -> list[Node]:
    return [Node(f"n{i}", {"cpu": 8000, "memory": 1 << 30, "pods": 10}, gpu_count=2) for i in range(count)]


def test_what_a_clairvoyant_expects_to_remain_is_what_remains():
    """At 100 s: 700 m until 130 s and 300 m until 800 s on one node, a device and a half until 4,000 s on another."""
    state = ClusterState(nodes(3))
    state.assume(Pod("a", requests={"cpu": 700, "memory": 70}, lifetime_s=30.0), "n0", since_s=100.0)
    state.assume(Pod("b", requests={"cpu": 300, "memory": 30}, lifetime_s=800.0), "n0", since_s=0.0)
    view = RunningPods.of(state, known := KnownLifetimes())
    state.assume(Pod("c", gpu=GpuRequest(1, 500), lifetime_s=4000.0), "n2", since_s=0.0)
    state.assume(Pod("d", gpu=GpuRequest(1, 1000), lifetime_s=4000.0), "n2", since_s=0.0)
    load, empty_s = view.remaining(100.0)
    assert HORIZONS_S.tolist() == [60.0, 600.0, 3600.0]
    assert load[0].tolist() == [[300.0, 30.0, 0.0], [300.0, 30.0, 0.0], [0.0, 0.0, 0.0]]
    assert load[1].tolist() == [[0.0] * 3] * 3
    assert load[2, :, 2].tolist() == [1500.0, 1500.0, 1500.0]
    assert empty_s == pytest.approx([700.0, 0.0, 3900.0], abs=1e-6)
    assert RunningPods.of(state, known) is view
    spec = ObservationSpec(lifetime_model=known)
    seen = spec.observe(state, Pod("e", lifetime_s=880.0), np.ones(3, dtype=bool), now_s=100.0)
    shown = {name: seen.nodes[:, NODE_FEATURES.index(name)].tolist() for name in NODE_REMAINING}
    shown |= {name: seen.pairs[:, PAIR_FEATURES.index(name)].tolist() for name in PAIR_REMAINING}
    assert shown["cpu_in_10m"] == pytest.approx([300 / 8000, 0.0, 0.0])
    assert shown["memory_in_1m"] == pytest.approx([30 / (1 << 30), 0.0, 0.0])
    assert shown["gpu_in_1h"] == pytest.approx([0.0, 0.0, 0.75])
    assert shown["empty_in"] == pytest.approx([0.2 * log1p(700 / 60), 0.0, 0.2 * log1p(65)])
    assert shown["extends"] == pytest.approx([0.2 * log1p(3), 0.2 * log1p(880 / 60), 0.0])
    assert shown["outlived"] == pytest.approx([0.0, 0.0, 0.2 * log1p(3020 / 60)])
    assert seen.pod[[POD_FEATURES.index("lifetime"), POD_FEATURES.index("lifetime_known")]] == pytest.approx(
        [log1p(880) / 10, 1.0]
    )


def test_what_remains_is_kept_current_while_pods_nodes_and_knowledge_come_and_go():
    rng, model = np.random.default_rng(0), LifetimeModel()
    state = ClusterState(nodes(4))
    view = RunningPods.of(state, model)
    for step in range(150):
        pod = Pod(f"p{step}", requests={"cpu": int(rng.integers(900))}, owner=f"Job/j{rng.integers(5)}-12345678")
        state.assume(pod, state.names[int(rng.integers(len(state)))], since_s=float(step))
        if step % 3 == 0:
            gone = state.remove_pod(list(state.placements)[int(rng.integers(len(state.placements)))])
            assert gone is not None
            model.learn(gone.pod, step - gone.since_s)
        if step == 70:
            state.remove_node("n1")
        if step == 110:
            state.upsert_node(nodes(5)[4])
    expected, until_s = np.zeros((len(state), 3)), np.zeros(len(state))
    for placement in state.placements.values():
        node_index, age_s = state.index[placement.node_name], 150.0 - placement.since_s
        until_s[node_index] = max(until_s[node_index], model.remaining_s(placement.pod, age_s))
        for h, horizon_s in enumerate(HORIZONS_S.tolist()):
            expected[node_index, h] += round(
                placement.pod.request("cpu") * model.survival(placement.pod, age_s, horizon_s)
            )
    load, empty_s = view.remaining(150.0)
    assert load[:, :, 0].tolist() == expected.tolist()
    assert empty_s == pytest.approx(until_s)
    assert view.empty_s(150.0).tolist() == empty_s.tolist()
