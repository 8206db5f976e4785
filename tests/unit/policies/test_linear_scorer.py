"""The linear scorer: hand-computed scores, and the heuristics that it holds as special cases."""

from dataclasses import replace

import numpy as np
import pytest

from aaml.cluster.objects import Node, Pod
from aaml.cluster.state import ClusterState
from aaml.nodes.ports import OwnedNode
from aaml.policies.heuristics.linear import FEATURES, TERMS, LinearPolicy
from aaml.policies.registry import make_policy
from aaml.scheduling.costs import NodeCosts
from aaml.scheduling.lifetimes import KnownLifetimes
from aaml.scheduling.observation import Context, ObservationSpec
from aaml.training.linear import start_weights
from support import make
from support.make import GIB
from support.nodes_to_buy import LARGE, SMALL


def cluster(*used: tuple[int, int]) -> ClusterState:
    """Nodes of 10 cores and 100 GiB with (cores, GiB) used by one pod each; (0, 0): empty."""
    pods = [(node_index, cpu * 1000, memory * GIB) for node_index, (cpu, memory) in enumerate(used) if cpu or memory]
    return make.cluster(make.nodes(len(used), 10_000, 100 * GIB), pods)


def context(state: ClusterState, cpu: int, memory: int) -> Context:
    return make.context(state, make.pod("new", cpu * 1000, memory * GIB))


def weights(**values: float) -> np.ndarray:
    """Weights by "term__feature"."""
    result = np.zeros((len(TERMS), len(FEATURES)))
    for name, value in values.items():
        term, _, feature = name.partition("__")
        result[TERMS.index(term), FEATURES.index(feature)] = value
    return result


@pytest.mark.parametrize(
    ("chosen", "scores"),
    [
        ({"one__cpu": 1.0}, [0.2, 0.7, 0.5]),
        ({"one__memory": 2.0}, [0.2, 0.6, 1.6]),
        ({"one__cpu_squared": 1.0, "one__memory_squared": 1.0}, [0.05, 0.58, 0.89]),
        ({"one__cpu_memory": 1.0}, [0.02, 0.21, 0.4]),
        ({"one__empty": -3.0}, [-3.0, 0.0, 0.0]),
        ({"one__pods": 1.0}, [0.0, np.log(2.0), np.log(2.0)]),
        ({"one__imbalance": 1.0}, [0.1, 0.4, 0.3]),
        ({"one__fullest": 1.0}, [0.2, 0.7, 0.8]),
        ({"pod_cpu__cpu": 1.0}, [0.2, 0.7, 0.5]),  # 5 x a pod of a fifth of the CPU
        ({"pod_memory__cpu": 1.0}, [0.1, 0.35, 0.25]),  # 5 x a tenth of the memory
    ],
)
def test_scores_are_as_computed_by_hand(chosen, scores):
    state = cluster((0, 0), (5, 20), (3, 70))  # after a pod of 2 cores and 10 GiB: (.2, .1), (.7, .3), (.5, .8)
    np.testing.assert_allclose(LinearPolicy(weights(**chosen)).scores(context(state, 2, 10)), scores, atol=1e-12)


def test_full_nodes_are_told_apart():
    state = cluster((8, 20), (3, 90), (3, 20))
    policy = LinearPolicy(weights(one__cpu_full=1.0, one__memory_full=10.0))
    np.testing.assert_array_equal(policy.scores(context(state, 2, 10)), [1.0, 10.0, 0.0])


@pytest.mark.parametrize("name", ["least-variance", "most-allocated", "least-allocated"])
def test_heuristics_are_special_cases(name):
    rng = np.random.default_rng(1)
    policy, heuristic = LinearPolicy(start_weights(name)), make_policy(name)
    for _ in range(40):
        state = cluster(*((int(c), int(m)) for c, m in zip(rng.integers(1, 7, 6), rng.integers(1, 70, 6), strict=True)))
        seen = context(state, int(rng.integers(1, 3)), int(rng.integers(1, 20)))
        ours, theirs = policy.act(seen).node_index, heuristic.act(seen).node_index
        grades = heuristic.scores(seen)
        assert ours == theirs or grades[ours] == pytest.approx(grades[theirs])  # ties may fall either way


def test_weights_of_another_shape_are_refused():
    with pytest.raises(ValueError, match=r"shape \(3,\)"):
        LinearPolicy(np.zeros(3))


def test_a_scorer_that_knows_lifetimes_keeps_a_node_from_lasting_longer():
    """Most allocated takes the fuller node, which is soon empty; one that minds takes the node that lasts anyway."""
    state = ClusterState([Node(name, {"cpu": 1000, "memory": 1000, "pods": 9}) for name in ("soon", "late", "empty")])
    state.assume(Pod("a", requests={"cpu": 500}, lifetime_s=60.0), "soon")
    state.assume(Pod("b", requests={"cpu": 300}, lifetime_s=7200.0), "late")
    pod = Pod("p", requests={"cpu": 100}, lifetime_s=3600.0)
    here = Context(state, pod, np.ones(3, dtype=bool))
    knows = ObservationSpec(lifetime_model=KnownLifetimes())
    packs = weights(one__cpu=1.0, one__empty=-9.0)
    assert LinearPolicy(packs, observation_spec=knows).act(here).node_index == 0
    minds = LinearPolicy(weights(one__cpu=1.0, one__empty=-9.0, one__extends=-2.0), observation_spec=knows)
    assert minds.act(here).node_index == 1
    # 59 minutes more on "soon": 0.2 log(60) times -2; it is expected to outlive the pod on "late" by an hour.
    assert minds.terms(here)["extends"] == pytest.approx([-0.4 * np.log(60.0), 0.0, 0.0])
    assert minds.scores(here) == pytest.approx(sum(minds.terms(here).values()))
    lasting = LinearPolicy(weights(pod_rest__stays=1.0), observation_spec=knows).scores(here)
    assert lasting[1] == pytest.approx(0.2 * np.log(61.0) * 0.2 * np.log(121.0))


def test_what_nodes_cost_counts_where_the_scorer_is_shown_it():
    """A node of 1 and one of 3.6 dollars, which a pod of 9 minutes keeps from being empty for 9 and 6 minutes more."""
    bought = {each.name: OwnedNode(each.name, each, each.cheapest, 0.0, 20.0) for each in (SMALL, LARGE)}
    state = ClusterState(each.type.node(name, each.offering) for name, each in bought.items())
    NodeCosts(state, bought, 15.0, lambda _now_s: 0.0)
    state.assume(make.pod("runs", life=180.0), "large", since_s=0.0)
    seen = ObservationSpec(lifetime_model=KnownLifetimes(), costs=True)
    new = make.context(state, make.pod("new", life=540.0), spec=seen, now_s=0.0)
    price = [1 / 3.6, 1.0]
    scorer = LinearPolicy(weights(one__price=1.0), observation_spec=seen)
    np.testing.assert_allclose(scorer.scores(new), price, rtol=1e-6)
    scorer = LinearPolicy(weights(one__added_price=1.0), observation_spec=seen)
    added = [price[0] * np.log(10) / 5, np.log(7) / 5]
    np.testing.assert_allclose(scorer.scores(new), added, rtol=1e-6)
    np.testing.assert_allclose(scorer.terms(new)["added_price"], added, rtol=1e-6)
    blind = LinearPolicy(weights(one__price=1.0, one__added_price=1.0), observation_spec=replace(seen, costs=False))
    assert blind.scores(new).tolist() == [0.0, 0.0]
