"""The index stays what it would be if it were made anew, whatever happens to pods and nodes."""

import hypothesis.strategies as st
import numpy as np
from hypothesis import given, settings

from aaml.cluster.filters import FilterIndex, feasible, rejecting_plugins
from aaml.cluster.objects import (
    Affinity,
    HostPort,
    LabelSelector,
    Node,
    Pod,
    PodAffinityTerm,
    Requirement,
    Taint,
    Toleration,
    TopologySpread,
    VolumeNeeds,
    WeightedPodAffinityTerm,
)
from aaml.cluster.state import ClusterState

apps = st.sampled_from(["x", "y", "z"])
keys = st.sampled_from(["zone", "kubernetes.io/hostname"])
selectors = st.builds(lambda app: LabelSelector((Requirement("app", "In", (app,)),)), apps)
terms = st.builds(PodAffinityTerm, keys, selectors, st.just(frozenset({"default"})))
affinities = st.builds(
    Affinity,
    required_pods=st.lists(terms, max_size=1).map(tuple),
    required_anti_pods=st.lists(terms, max_size=2).map(tuple),
    preferred_pods=st.lists(st.builds(WeightedPodAffinityTerm, st.integers(-9, 9), terms), max_size=1).map(tuple),
)
spreads = st.lists(st.builds(TopologySpread, st.integers(1, 2), keys, selectors), max_size=2).map(tuple)
pods = st.builds(
    Pod,
    name=st.sampled_from([f"p{number}" for number in range(8)]),
    requests=st.sampled_from([{}, {"cpu": 1}, {"cpu": 2}]),
    labels=st.builds(lambda app: {"app": app}, apps),
    affinity=affinities,
    spread=spreads,
    tolerations=st.sampled_from([(), (Toleration(operator="Exists"),)]),
    host_ports=st.sampled_from([(), (HostPort(80),)]),
    volumes=st.sampled_from(
        [VolumeNeeds(), VolumeNeeds(exclusive=frozenset({"a"}), attachments=frozenset({("d", "v")}))]
    ),
    terminating=st.booleans(),
)
nodes = st.builds(
    Node,
    name=st.sampled_from(["a", "b", "c", "d"]),
    allocatable=st.just({"cpu": 4, "pods": 5}),
    labels=st.sampled_from([{}, {"zone": "1"}, {"zone": "2"}, {"zone": "1", "kubernetes.io/hostname": "h"}]),
    taints=st.sampled_from([(), (Taint("t"),)]),
    volume_limits=st.sampled_from([{}, {"d": 1}]),
)
steps = st.one_of(
    st.tuples(st.just("node"), nodes),
    st.tuples(st.just("drop"), st.sampled_from(["a", "b", "c", "d"])),
    st.tuples(st.just("place"), pods, st.sampled_from(["a", "b", "c", "d"])),
    st.tuples(st.just("remove"), pods),
    st.tuples(st.just("ask"), pods),
)


@settings(deadline=None, max_examples=150)
@given(st.lists(steps, max_size=40), st.lists(pods, min_size=1, max_size=3))
def test_following_a_state_equals_starting_from_it(history, questions):
    state = ClusterState()
    index = FilterIndex.of(state)
    for step in history:
        match step:
            case ("node", node):
                state.upsert_node(node)
            case ("drop", name) if name in state.index:
                state.remove_node(name)
            case ("place", pod, name) if pod.uid not in state.placements and name in state.index:
                state.assume(pod, name)
            case ("remove", pod):
                state.remove_pod(pod.uid)
            case ("ask", pod):
                feasible(state, pod)
    for pod in questions:
        followed, fresh = feasible(state, pod, index), feasible(state.fork(), pod)
        assert np.array_equal(followed.mask, fresh.mask)
        assert followed.diagnosis.by_node == fresh.diagnosis.by_node
        # A node is feasible exactly when no filter gives a reason against it.
        assert [not reasons for reasons in followed.diagnosis.by_node] == followed.mask.tolist()
        assert rejecting_plugins(state, pod) == followed.plugins
