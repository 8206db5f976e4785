"""A replay tells the use of nodes at any time and gives back the state that a decision was made in."""

import numpy as np
import pytest

from aaml.errors import UserError
from aaml.evaluation.evaluate import evaluate
from aaml.evaluation.results import Results
from aaml.evaluation.run_spec import RunSpec, find_attempt
from aaml.insight.replay import GPU, RESOURCES, Replay
from aaml.policies.registry import make_policy
from aaml.scheduling.play import play
from aaml.sim.cluster import SimCluster
from aaml.sim.tasks import make_task
from support import make

CPU = RESOURCES.index("cpu")


def played() -> Replay:
    """One node of 4 CPU: `a` (1 CPU) from 0 to 10 s, `b` (2 CPU) from 5 s on, `c` (4 CPU) fits at no time."""
    pods = [make.pod("a", 1000, at=0.0, life=10.0), make.pod("b", 2000, at=5.0), make.pod("c", 4000, at=6.0)]
    cluster, policy = SimCluster(make.nodes(1), pods), make_policy("first-fit")
    replay = Replay.of(cluster, policy)
    play(cluster, policy, observers=[replay])
    return replay


def test_the_use_of_a_node_is_what_its_pods_ask_for_at_that_time():
    replay = played()
    use = replay.use(np.array([0.0, 4.9, 5.0, 10.0]))
    assert use[:, 0, CPU].tolist() == [0.25, 0.25, 0.75, 0.5]
    assert np.isnan(use[:, 0, RESOURCES.index(GPU)]).all(), "a node without GPUs uses none of none"
    assert use[2, 0, RESOURCES.index("pods")] == pytest.approx(2 / 110)


def test_groups_of_nodes_are_added_up():
    cluster, policy = SimCluster(make.nodes(3), [make.pod("a", 3000), make.pod("b", 1000)]), make_policy("round-robin")
    replay = Replay.of(cluster, policy)
    play(cluster, policy, observers=[replay])
    assert replay.use(np.array([0.0]), [0, 0, 1])[0, :, CPU].tolist() == [0.5, 0.0]


def test_attempts_are_scenes_and_those_with_a_choice_are_decisions():
    replay = played()
    assert [record.kind for record in replay.decisions] == ["assumed", "assumed"]
    assert {replay.pods[record.pod].name for record in replay.attempts if record.kind == "unschedulable"} == {"c"}
    assert replay.span_s == (0.0, 10.0)


class Spy:
    """Remembers the state in which it was asked."""

    def __init__(self, policy) -> None:
        self.name, self._policy, self.seen = policy.name, policy, []

    def act(self, context):
        self.seen.append((context.pod.key, context.state.requested.copy(), context.mask.copy()))
        return self._policy.act(context)


@pytest.mark.parametrize("task", ["balance", "fragmentation"])
def test_the_state_before_each_decision_is_the_one_that_was(task):
    cluster, spy = make_task(task, nodes=5).build(3, pods=40), Spy(make_policy("first-fit"))
    replay = Replay.of(cluster, spy)
    play(cluster, spy, observers=[replay])
    assert len(spy.seen) == len(replay.decisions) > 20
    for record, (pod, requested, mask) in zip(replay.decisions, spy.seen, strict=True):
        context = replay.context(record, spy)
        assert context.pod.key == pod
        assert np.array_equal(context.state.requested[:, : requested.shape[1]], requested)
        assert np.array_equal(context.mask, mask)


def test_results_explain_a_decision_of_their_runs(tmp_path):
    results = evaluate(["kube-scheduler", "mine=least-variance"], seeds=[5, 6], nodes=4, pods=12, progress=False)
    said = results.explain(3, policy="mine", seed=6)
    assert (said.policy, said.number) == ("mine", 3)
    assert results.explain(said.pod.removeprefix("default/"), policy="mine", seed=6).node == said.node
    again = Results.read(results.save(tmp_path)).explain(3, policy="mine", seed=6)
    assert str(again).splitlines()[:4] == str(said).splitlines()[:4], "labels and pods are kept beside the results"
    with pytest.raises(UserError, match="decision: 99 is not accepted; expected 0 to"):
        results.explain(99)
    with pytest.raises(UserError, match="pod: 'nobody' was not decided on"):
        results.explain("nobody")
    with pytest.raises(UserError, match="seed: 7 is not accepted; expected one of 5, 6"):
        results.explain(seed=7)


def test_another_policy_may_be_asked_about_the_same_state():
    spec = RunSpec(make_task("balance", nodes=4), pods=10)
    replay = spec.replay("most-allocated", 1)
    record = find_attempt(replay, 5)
    own, other = spec.explain(replay, record), spec.explain(replay, record, "least-variance")
    assert own.node == replay.nodes[record.node].name
    assert other.policy == "least-variance"
    assert other.node != own.node, "the one fills nodes, the other evens them out"


def test_a_replay_whose_beginning_is_forgotten_says_the_same_of_the_rest():
    """Use, states and numbers of decisions, with what ran at the cut; and it goes on in the place of the whole one."""
    pods = [make.pod(f"p{i}", 100 * (1 + i % 3), at=float(i), life=7.0 + i % 5) for i in range(60)]
    cluster, policy = SimCluster(make.nodes(4), pods), make_policy("least-variance")
    whole = Replay.of(cluster, policy)
    play(cluster, policy, observers=[whole])
    times = np.arange(30.0, 60.0, 0.5)
    use, last = whole.use(times), whole.decisions[-1]
    states = [whole.state_before(record).requested for record in whole.decisions if record.time_s >= 30.0]
    late = whole.later(30.0)
    np.testing.assert_allclose(late.use(times), use, rtol=1e-12)
    assert np.array_equal([late.state_before(record).requested for record in late.decisions], states)
    assert late.forgotten + len(late.decisions) == len(whole.decisions) == 60
    assert late.pods[late.decisions[-1].pod] == whole.pods[last.pod]
    assert {late.pods[move.pod].name for move in late.moves}.isdisjoint({"p0", "p1", "p15"}), "they had ended"
    assert len(late.moves) < len(whole.moves)
    assert late.later(45.0).forgotten == sum(record.time_s < 45.0 for record in whole.decisions)


def test_only_the_later_replay_goes_on():
    state = make.cluster(make.nodes(1))
    whole = Replay(state, lambda: 1.0)
    late = whole.later(1.0)
    state.assume(make.pod("p", 1000), "n0")
    assert (len(whole.moves), len(late.moves)) == (0, 1)
