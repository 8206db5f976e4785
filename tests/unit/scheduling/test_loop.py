"""The scheduling loop over a scripted cluster: what the policy, cluster, learner and observers get, and when."""

import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import closing

import numpy as np
import pytest

from aaml.cluster.objects import Node, Pod, PodGroup
from aaml.cluster.state import ClusterState
from aaml.policies.heuristics import PolicyOptions
from aaml.policies.registry import make_policy
from aaml.scheduling.loop import SchedulingLoop, deployments, whole_run
from aaml.scheduling.observation import Context, Observation
from aaml.scheduling.play import Stats, play
from aaml.scheduling.ports import Attempt, BindResult, BindStatus, Decision, Observer, Outcome, Step, Transition
from aaml.scheduling.queue_sort import QueueSort
from aaml.scheduling.rewards import after_bind, nothing_placed
from aaml.sim.cluster import SimCluster
from support import make


class ScriptedCluster:
    """Two nodes and a given list of pods; pods that ask for more than 1000m fit nowhere.

    A bind ends as `fates` says ("bound" if it does not), after the decision that follows, or `late` at the end.
    """

    def __init__(self, pods: Sequence[Pod], fates: Mapping[str, BindStatus] = {}, late: Sequence[str] = ()) -> None:
        self.state = ClusterState([Node("a", {"cpu": 4000}), Node("b", {"cpu": 4000})])
        self.waiting = deque(pods)
        self.calls: list[tuple[str, str]] = []
        self._fates, self._late = fates, late
        self._results: list[BindResult] = []
        self._flying: list[BindResult] = []

    exhausted = property(lambda self: not self.waiting)

    def now_s(self) -> float:
        return 0.0

    def next_pod(self, timeout_s: float) -> Pod | None:
        return self.waiting.popleft() if self.waiting else None

    def sort_queue(self, sort: QueueSort | None, backoff_s: tuple[float, float] | None = None) -> None:
        self.queue_sort = sort

    def upcoming(self, count: int) -> Sequence[Pod]:
        return list(self.waiting)[:count]

    def pending_count(self) -> int:
        return len(self.waiting)

    def feasible(self, pod: Pod) -> np.ndarray:
        return np.array([pod.request("cpu") <= 1000, pod.request("cpu") <= 1000])

    def bind(self, pod: Pod, node_index: int, gpus: tuple[int, ...] | None = None) -> str:
        self.state.assume(pod, self.state.names[node_index], gpus)
        self.calls.append(("bind", pod.name))
        result = BindResult(pod, self.state.names[node_index], self._fates.get(pod.name, "bound"))
        (self._flying if pod.name in self._late else self._results).append(result)
        return self.state.names[node_index]

    def reject(self, pod: Pod) -> None:
        self.calls.append(("reject", pod.name))

    def defer(self, pod: Pod) -> None:
        self.calls.append(("defer", pod.name))

    def results(self) -> Sequence[BindResult]:
        taken, self._results = self._results, []
        return taken

    def drain(self) -> None:
        self.calls.append(("drain", ""))
        self._results += self._flying
        self._flying.clear()

    def close(self) -> None:
        self.calls.append(("close", ""))


class ChosenNode:
    """A reward that is the node's index itself, so that a test can tell steps apart."""

    def before(self, context: Context) -> None:
        assert context.pod.uid not in context.state.placements

    def after(self, context: Context, node_index: int) -> float:
        assert context.pod.uid in context.state.placements
        return float(node_index)


class Learner:
    """Takes what the script says and keeps what it is told."""

    name = "learner"

    def __init__(self, choices: Sequence[int | None]) -> None:
        self.choices = deque(choices)
        self.seen: list[Transition] = []
        self.known: list[int] = []  # how many steps had been seen at each decision

    def observation_of(self, context: Context) -> Observation:
        return context.observation

    def act(self, context: Context) -> Decision:
        self.known.append(len(self.seen))
        return Decision(self.choices.popleft())

    def observe(self, transition: Transition) -> None:
        self.seen.append(transition)

    def learn(self) -> Mapping[str, float]:
        return {"2. Loss/Train": 0.5}

    def save(self, directory: str, stem: str) -> Sequence[str]:
        return []


def pod(name: str, owner: str = "d1", cpu: int = 100) -> Pod:
    return Pod(name, owner=owner, requests={"cpu": cpu})


def drive(cluster: ScriptedCluster, learner: Learner, **options: object) -> Stats:
    return play(cluster, learner, ChosenNode(), **{"learn": True, **options})  # type: ignore[arg-type]


class Diary(Observer):
    """Writes down what it is told, in order."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, ...]] = []
        self.steps: list[Step] = []
        self.contexts: list[Context] = []

    def on_attempt(self, attempt: Attempt) -> None:
        self.lines.append(("attempt", attempt.pod.name, attempt.outcome.kind))

    def on_decision(self, context: Context, decision: Decision, outcome: Outcome) -> None:
        self.lines.append(("decision", context.pod.name, outcome.node_name))
        self.contexts.append(context)

    def on_result(self, result: BindResult) -> None:
        self.lines.append(("result", result.pod.name, result.status))

    def on_step(self, step: Step) -> None:
        self.lines.append(("step", step.pod.name, step.outcome.kind))
        self.steps.append(step)

    def on_learned(self, scalars: Mapping[str, float], decisions: int) -> None:
        self.lines.append(("learned", *scalars, str(decisions)))


def test_each_step_is_handed_over_with_the_observation_that_followed() -> None:
    learner = Learner([1, 0, 1])
    drive(ScriptedCluster([pod("p"), pod("q"), pod("r", owner="d2")]), learner)
    first, second, third = learner.seen
    assert (first.action, first.reward, first.truncated) == (1, 1.0, False)
    assert first.next_observation is second.observation
    assert (second.truncated, second.terminated) == (True, False)  # a new deployment begins
    assert second.next_observation is third.observation
    assert third.next_observation is None
    assert third.truncated


def test_a_step_is_learned_from_before_the_decision_that_follows_it() -> None:
    learner = Learner([1, 0, 1])
    drive(ScriptedCluster([pod("p"), pod("q"), pod("r")]), learner)
    assert learner.known == [0, 1, 2]


@pytest.mark.parametrize(
    ("status", "reward"),
    [
        ("bound", 1.0),  # the reward of the placement: the node's index
        ("shadow", 1.0),
        ("gone", 1.0),  # nobody's fault
        ("conflict", -1.0),  # none of the good that was promised, and one unit less
        ("failed", -1.0),
    ],
)
def test_what_became_of_a_bind_reaches_the_learner(status: BindStatus, reward: float) -> None:
    learner, diary = Learner([1, 0]), Diary()
    stats = drive(ScriptedCluster([pod("p"), pod("q")], {"p": status}), learner, observers=[diary])
    assert [step.reward for step in learner.seen] == [reward, 0.0]
    assert [(step.outcome.kind, step.outcome.reward) for step in diary.steps] == [(status, reward), ("bound", 0.0)]
    assert stats.reward == reward
    assert stats.binds == {"bound": 2} if status == "bound" else {status: 1, "bound": 1}


@pytest.mark.parametrize("promised", [-3.0, -1.0, -0.2, 0.0, 0.7])
def test_a_failed_bind_never_pays(promised: float) -> None:
    for status in ("conflict", "failed"):
        assert after_bind(promised, status) <= promised - 1.0
        assert after_bind(promised, status) <= nothing_placed() == -1.0


def test_steps_wait_for_their_binds_and_keep_their_order() -> None:
    cluster, learner = ScriptedCluster([pod("p"), pod("q"), pod("r")], {"p": "failed"}, late=["p"]), Learner([1, 0, 1])
    drive(cluster, learner)
    assert learner.known == [0, 0, 0]  # p's bind was under way until the end
    assert [(step.action, step.reward) for step in learner.seen] == [(1, -1.0), (0, 0.0), (1, 1.0)]
    assert learner.seen[0].next_observation is learner.seen[1].observation


def test_the_end_waits_for_binds_and_leaves_the_cluster_open() -> None:
    cluster = ScriptedCluster([pod("p")], late=["p"])
    assert drive(cluster, Learner([0])).binds == {"bound": 1}
    assert cluster.calls == [("bind", "p"), ("drain", "")]


def test_a_step_whose_bind_was_never_answered_is_left_out() -> None:
    cluster, learner = ScriptedCluster([pod("p")], late=["p"]), Learner([0])
    cluster.drain = lambda: None  # type: ignore[method-assign]
    drive(cluster, learner)
    assert learner.seen == []


def test_a_policy_that_breaks_leaves_no_bind_unawaited() -> None:
    cluster, learner = ScriptedCluster([pod("p"), pod("q")]), Learner([0])
    with pytest.raises(IndexError):
        drive(cluster, learner)
    assert cluster.calls == [("bind", "p"), ("drain", "")]


def test_an_observer_that_breaks_leaves_no_bind_unawaited() -> None:
    class Broken(Observer):
        def on_decision(self, context: Context, decision: Decision, outcome: Outcome) -> None:
            raise OSError("the disk is full")

    cluster = ScriptedCluster([pod("p")])
    with pytest.raises(OSError, match="disk is full") as caught:
        drive(cluster, Learner([0]), observers=[Broken()])
    assert caught.tb is not None  # it holds the scheduling loop, which must have ended all the same
    assert cluster.calls == [("bind", "p"), ("drain", "")]


def test_a_pod_that_fits_nowhere_is_rejected_and_never_shown_to_the_policy() -> None:
    cluster, learner = ScriptedCluster([pod("big", cpu=9000), pod("p")]), Learner([0])
    stats = drive(cluster, learner)
    assert cluster.calls == [("reject", "big"), ("bind", "p"), ("drain", "")]
    assert (stats.decisions, stats.outcomes) == (1, {"unschedulable": 1, "assumed": 1})


def test_leaving_a_pod_pending_is_a_decision_without_experience() -> None:
    cluster, learner = ScriptedCluster([pod("p")]), Learner([None])
    stats = drive(cluster, learner)
    assert cluster.calls == [("defer", "p"), ("drain", "")]
    assert (stats.decisions, stats.outcomes) == (1, {"declined": 1})
    assert learner.seen == []


def test_a_policy_that_leaves_the_mask_is_stopped() -> None:
    cluster = ScriptedCluster([pod("p")])
    cluster.feasible = lambda pod: np.array([True, False])  # type: ignore[method-assign]
    with pytest.raises(ValueError, match="node index 1 for default/p, which is not feasible"):
        drive(cluster, Learner([1]))
    assert not cluster.state.placements


def test_an_observer_is_told_of_everything_in_order() -> None:
    diary = Diary()
    pods = [pod("big", cpu=9000), pod("p"), pod("q")]
    drive(ScriptedCluster(pods, {"p": "conflict"}), Learner([0, 1]), observers=[diary])
    assert diary.lines == [
        ("attempt", "big", "unschedulable"),
        ("attempt", "p", "assumed"),
        ("decision", "p", "a"),
        ("learned", "2. Loss/Train", "1"),
        ("result", "p", "conflict"),
        ("step", "p", "conflict"),
        ("attempt", "q", "assumed"),
        ("decision", "q", "b"),
        ("learned", "2. Loss/Train", "2"),
        ("result", "q", "bound"),
        ("step", "q", "bound"),
    ]


def test_without_learning_the_agent_is_only_asked() -> None:
    learner, diary = Learner([0]), Diary()
    drive(ScriptedCluster([pod("p")]), learner, learn=False, observers=[diary])
    assert learner.seen == []
    assert diary.steps[0].transition is None
    assert "observation" not in vars(diary.contexts[0])  # nobody asked for features: none were computed


def test_what_a_decision_saw_is_not_kept_until_its_bind_has_ended() -> None:
    cluster = ScriptedCluster([pod("p"), pod("q"), pod("r")], late=["p", "q", "r"])
    loop, seen = SchedulingLoop(cluster, Learner([0, 0, 0])), list[weakref.ref[Context]]()
    with closing(loop.events()) as events:
        for event in events:
            if isinstance(event, Attempt) and event.context is not None:
                seen.append(weakref.ref(event.context))
            if len(seen) == 2:
                break
        assert loop.awaited == 2
        assert seen[0]() is None


def test_stop_is_honoured_before_the_next_pod() -> None:
    cluster, stats = ScriptedCluster([pod("p"), pod("q")]), Stats()
    drive(cluster, Learner([0, 0]), observers=[stats], stop=lambda: stats.decisions >= 1)
    assert cluster.calls == [("bind", "p"), ("drain", "")]
    cluster = ScriptedCluster([pod("p"), pod("q")])
    assert drive(cluster, Learner([0, 0]), max_decisions=1).decisions == 1
    assert cluster.calls == [("bind", "p"), ("drain", "")]


@pytest.mark.parametrize(
    ("policy", "sort"),
    [
        ("first-come", QueueSort()),
        ("smallest-first", QueueSort(larger_s=2000.0)),
        ("least-variance", None),
        ("fgd", None),
    ],
)
def test_the_cluster_is_asked_for_the_policys_order(policy: str, sort: QueueSort | None) -> None:
    cluster = ScriptedCluster([Pod("a")])
    play(cluster, make_policy(policy, PolicyOptions(expected=[Pod("a")])))
    assert cluster.queue_sort == sort


def test_episodes_end_as_their_rule_says() -> None:
    here, there = (pod("p", owner) for owner in ("d1", "d2"))
    rules = (deployments, whole_run(continuing=True), whole_run(continuing=False))
    assert [rule(here, here) for rule in rules] == ["", "", ""]
    assert [rule(here, there) for rule in rules] == ["truncated", "", ""]
    assert [rule(here, None) for rule in rules] == ["truncated", "truncated", "terminated"]


def test_a_gang_that_is_not_placed_whole_has_failed() -> None:
    """Two of three members fit: their placements are undone, and a step that the policy could have known better of."""
    gang = [make.pod(f"g{i}", 2000, group=PodGroup("g", 3)) for i in range(3)]
    diary = Diary()
    play(SimCluster([make.node("n", 4000)], gang), make_policy("first-fit"), ChosenNode(), observers=[diary])
    assert [(step.pod.name, step.outcome.kind) for step in diary.steps] == [("g0", "failed"), ("g1", "failed")]


def test_a_walk_that_was_cut_forgets_what_is_not_complete() -> None:
    cluster = ScriptedCluster([pod("p"), pod("q"), pod("r")], late=["p", "q"])
    loop = SchedulingLoop(cluster, Learner([0, 1, 0]), observation_of=lambda context: context.pod.name)
    with closing(loop.events()) as events:
        attempts = [event for event in (next(events), next(events)) if isinstance(event, Attempt)]
        assert len(attempts) == loop.awaited == 2
        loop.cut(keep=1)
        steps = [event.transition for event in events if isinstance(event, Step)]
    assert [(step.observation, step.next_observation) for step in steps if step is not None] == [
        ("q", "r"),
        ("r", None),
    ]
