"""A decision taken apart, on clusters small enough to work out by hand."""

import json
from dataclasses import replace

import numpy as np
import pytest

from aaml.cluster.filters import feasible
from aaml.cluster.objects import GpuRequest, Pod
from aaml.errors import UserError
from aaml.insight.explain import explain
from aaml.insight.explanation import Explanation
from aaml.policies.formulas.text import parse
from aaml.policies.heuristics import PolicyOptions
from aaml.policies.heuristics.linear import FEATURES, TERMS, LinearPolicy
from aaml.policies.heuristics.policies import GpuFormula
from aaml.policies.registry import make_policy
from aaml.scheduling.observation import PAIR_FEATURES, Context, Observation
from aaml.scheduling.ports import Decision
from support import make
from support.make import GIB


def waiting() -> Context:
    """Four nodes of 4 CPU and 8 GiB: empty, half full, cordoned, and full but for half a CPU."""
    cordoned = replace(make.node("c"), unschedulable=True)
    nodes = [make.node("a"), make.node("b"), cordoned, make.node("d")]
    state = make.cluster(nodes, used=[(1, 2000, 4 * GIB), (3, 3500, GIB)])
    pod = make.pod("web", 1000, 2 * GIB)
    return Context(state, pod, feasible(state, pod).mask, now_s=7.0)


def gpu_pod(name: str, milli: int) -> Pod:
    return make.pod(name, gpu=GpuRequest(1, milli))


def weights(**by_feature: float) -> np.ndarray:
    table = np.zeros((len(TERMS), len(FEATURES)))
    for name, weight in by_feature.items():
        table[0, FEATURES.index(name)] = weight
    return table


class Network:
    """Scores a node by three times the CPU in use after the pod is there, and nothing else."""

    name = "stub"

    def act(self, context: Context) -> Decision:
        return Decision(int(np.where(context.mask, self.scores(context), -np.inf).argmax()))

    def observation_of(self, context: Context) -> Observation:
        return context.observation

    def preferences(self, observation: Observation) -> np.ndarray:
        return 3.0 * observation.pairs[:, PAIR_FEATURES.index("cpu_after")]

    def scores(self, context: Context) -> np.ndarray:
        return self.preferences(self.observation_of(context))


def test_each_refused_node_has_the_filter_and_the_reason_that_kube_scheduler_would_give():
    said = explain(waiting(), make_policy("kube-scheduler"))
    assert said.mask.tolist() == [True, True, False, False]
    assert said.refusals[2] == ("NodeUnschedulable", "node(s) were unschedulable")
    assert said.refusals[3] == ("NodeResourcesFit", "Insufficient cpu")
    assert said.refused[("NodeResourcesFit", "Insufficient cpu")] == 1


def test_kube_schedulers_score_is_the_sum_of_its_plugins():
    said = explain(waiting(), make_policy("kube-scheduler"))
    # With the pod a quarter of `a` is asked for and three quarters of `b`, of CPU and memory alike.
    assert said.parts["NodeResourcesFit"][:2].tolist() == [75.0, 25.0]
    assert said.parts["TaintToleration"][:2].tolist() == [300.0, 300.0]
    assert sum(said.parts.values())[:2].tolist() == said.scores[:2].tolist()
    assert (said.node, said.nodes[said.second], said.margin) == ("a", "b", 50.0)
    assert said.telling[0] == "NodeResourcesFit"
    assert np.isnan(said.scores[2:]).all()


def test_a_linear_scorers_score_is_the_sum_of_its_weighted_features():
    said = explain(waiting(), LinearPolicy(weights(cpu=-2.0, empty=0.25)))
    assert {name: values[:2].tolist() for name, values in said.parts.items()} == {
        "cpu": [-0.5, -1.5], "empty": [0.25, 0.0],
    }  # fmt: skip
    assert said.scores[:2].tolist() == [-0.25, -1.5]


def test_the_terms_of_a_shipped_scorer_add_up_to_its_scores():
    policy = LinearPolicy(np.random.default_rng(1).normal(size=(len(TERMS), len(FEATURES))))
    state = make.cluster(make.nodes(3, gpus=4), used=[(1, 3970, GIB)])
    pod = make.pod("g", 30, GIB, gpu=make.pod("x").gpu.__class__(1, 500))
    context = make.context(state, pod)
    assert sum(policy.terms(context).values()) == pytest.approx(policy.scores(context))


def test_a_networks_features_are_taken_away_one_by_one():
    said = explain(waiting(), Network())
    # CPU after: 0.25 on `a`, 0.75 on `b`; their mean is 0.5, so the scores lose 3 x (0.25 - 0.5) and 3 x (0.75 - 0.5).
    assert said.parts["cpu_after"][:2] == pytest.approx([-0.75, 0.75])
    assert all(not values.any() for name, values in said.parts.items() if name != "cpu_after")
    assert (said.node, said.telling[0]) == ("b", "cpu_after")
    assert "no sum" in said.parts_are


def test_a_pod_that_fits_nowhere_is_explained_by_the_filters_alone():
    context = waiting()
    huge = replace(context.pod, requests={"cpu": 64_000, "memory": GIB})
    said = explain(replace(context, pod=huge, mask=feasible(context.state, huge).mask), make_policy("kube-scheduler"))
    assert said.chosen is None
    assert said.refused == {
        ("NodeResourcesFit", "Insufficient cpu"): 3, ("NodeUnschedulable", "node(s) were unschedulable"): 1,
    }  # fmt: skip
    assert "-> nowhere" in str(said)


def test_a_decision_that_passed_a_better_node_over_says_so():
    said = explain(waiting(), make_policy("kube-scheduler"), Decision(1, info={"explored": 1.0}), number=4)
    assert said.margin == -50.0
    assert "50 below the best other node (a)" in str(said)
    assert "to explore" in str(said)


def test_a_policy_without_scores_is_explained_as_far_as_it_goes():
    said = explain(waiting(), make_policy("random"), Decision(1))
    assert said.scores is None
    assert said.margin is None
    assert "random chooses without scores" in said.notes


def test_it_prints_the_pod_its_node_and_its_parts_and_a_notebook_shows_the_same():
    said = explain(waiting(), make_policy("kube-scheduler"), number=4)
    text = str(said)
    assert text.startswith("default/web (cpu 1, memory 2Gi) -> a, decision 4 of kube-scheduler at 7.0 s")
    assert "2 of 4 nodes are feasible" in text
    assert "NodeUnschedulable refuses 1: node(s) were unschedulable" in text
    assert ">a *</td>" in said._repr_html_()
    assert said.frame().loc[3, "reason"] == "Insufficient cpu"


def test_a_file_keeps_the_best_nodes_and_counts_those_that_it_left_out():
    said = explain(waiting(), make_policy("kube-scheduler"))
    kept = Explanation.from_dict(json.loads(json.dumps(said.to_dict(top=1))))
    assert kept.nodes == ("a", "c")
    assert (kept.node, kept.scores[0]) == ("a", said.scores[0])
    assert kept.refused == said.refused, "b and d are not in it, and yet it knows of them"
    text = str(kept)
    assert "2 of 4 nodes are feasible" in text
    assert "NodeUnschedulable refuses 1" in text
    assert "NodeResourcesFit refuses 1" in text
    assert "1 more feasible node is not in this record" in text
    assert Explanation.from_dict(json.loads(json.dumps(kept.to_dict()))).refused == said.refused
    whole = Explanation.from_dict(json.loads(json.dumps(said.to_dict())))
    assert (whole.margin, whole.refused) == (said.margin, said.refused)
    with pytest.raises(UserError, match="explanation: is not one"):
        Explanation.from_dict({"pod": "x"})


def test_nodes_that_are_not_shown_are_called_lower_only_where_they_are():
    """Fifteen equal nodes, and one that is half full: ten are shown."""
    state = make.cluster(make.nodes(16), used=[(7, 2000, 4 * GIB)])
    said = str(explain(make.context(state, make.pod("p")), make_policy("kube-scheduler"), Decision(3)))
    assert "level with the best other node" in said
    assert "6 more feasible nodes: 5 with the score of the last one shown, 1 with a lower one" in said
    state = make.cluster(make.nodes(12))
    said = str(explain(make.context(state, make.pod("p")), make_policy("kube-scheduler"), Decision(3)))
    assert "2 more feasible nodes with the score of the last one shown" in said
    state = make.cluster(make.nodes(12), used=[(row, 100 * row, GIB) for row in range(1, 12)])
    said = str(explain(make.context(state, make.pod("p")), make_policy("least-allocated"), Decision(0)))
    assert "2 more feasible nodes with lower scores" in said


@pytest.mark.slow
def test_a_formula_of_gpu_devices_is_taken_apart_on_each_node_and_device():
    """A pod with 0.3 of a GPU: on node a devices have 0.5 and 1 left, on node b 0.4; what it leaves counts less 0.1."""
    shares = [gpu_pod("p", 500), gpu_pod("q", 600), gpu_pod("r", 1000)]
    state = make.cluster(make.node(name, gpus=2, gpu_model="T4") for name in "ab")
    for pod, node, device in zip(shares, "abb", (0, 0, 1), strict=True):
        state.assume(pod, node, (device,) if pod.gpu.milli < 1000 else None)
    pod = gpu_pod("web", 300)
    policy = GpuFormula(parse("-gpu.device_left - 0.1 * gpu.whole_left * 8"), "rule", PolicyOptions(expected=[pod]))
    said = explain(Context(state, pod, feasible(state, pod).mask), policy)
    assert said.node == "b"
    told = [(said.nodes[each.node_index], each.device, *each.parts.values(), each.score) for each in said.devices]
    assert [(node, device) for node, device, *_ in told] == [("a", 0), ("a", 1), ("b", 0)]
    assert np.array([numbers for _, _, *numbers in told]) == pytest.approx(
        np.array([(-0.2, -0.1, -0.3), (-0.7, 0.0, -0.7), (-0.1, 0.0, -0.1)])
    )
    assert said.scores == pytest.approx([-0.3, -0.1])
    assert sum(said.parts.values()) == pytest.approx(said.scores)
    lines = str(said).splitlines()
    (at,) = (number for number, line in enumerate(lines) if line.lstrip().startswith("b *"))
    assert lines[at + 1].split()[:3] == ["GPU", "0", "-0.1"]
    again = Explanation.from_dict(json.loads(json.dumps(said.to_dict(top=1))))
    assert [(again.nodes[each.node_index], each.device) for each in again.devices] == [("b", 0)]


def test_of_a_pod_with_whole_gpus_there_are_no_devices_to_tell():
    state, pod = make.cluster(make.node(name, gpus=2, gpu_model="T4") for name in "ab"), gpu_pod("web", 1000)
    policy = GpuFormula(parse("gpu.whole_left - gpu.cpu_left"), "rule", PolicyOptions(expected=[pod]))
    said = explain(Context(state, pod, feasible(state, pod).mask), policy)
    assert said.devices == ()
    assert said.scores is not None
    assert said.parts["gpu.whole_left"].tolist() == [1 / 8, 1 / 8]
