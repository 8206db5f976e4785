"""The one loop, driven by a scripted cluster: what reaches the policy, the cluster and the learner, in which order."""

from collections import deque
from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from aaml.cluster.objects import Node, Pod
from aaml.cluster.state import ClusterState
from aaml.scheduling.cycle import SchedulingCycle
from aaml.scheduling.heuristics import PolicyOptions
from aaml.scheduling.loop import SchedulerLoop
from aaml.scheduling.observation import Context, Featurizer
from aaml.scheduling.ports import BindResult, Decision, Transition
from aaml.scheduling.queue_sort import QueueSort
from aaml.scheduling.registry import make_policy


class ScriptedCluster:
    """Two nodes and a given list of pods; pods that ask for more than 1000m fit nowhere."""

    def __init__(self, pods: Sequence[Pod], results: Sequence[BindResult] = ()) -> None:
        self.state = ClusterState([Node("a", {"cpu": 4000}), Node("b", {"cpu": 4000})])
        self.waiting = deque(pods)
        self.calls: list[tuple[str, str]] = []
        self._results = list(results)

    exhausted = property(lambda self: not self.waiting)

    def now_s(self) -> float:
        return 0.0

    def next_pod(self, timeout_s: float) -> Pod | None:
        return self.waiting.popleft() if self.waiting else None

    def sort_queue(self, sort: QueueSort | None) -> None:
        self.queue_sort = sort

    def upcoming(self, count: int) -> Sequence[Pod]:
        return list(self.waiting)[:count]

    def pending_count(self) -> int:
        return len(self.waiting)

    def feasible(self, pod: Pod) -> np.ndarray:
        return np.array([pod.request("cpu") <= 1000, pod.request("cpu") <= 1000])

    def bind(self, pod: Pod, row: int, gpus: tuple[int, ...] | None = None) -> str:
        self.state.assume(pod, self.state.names[row], gpus)
        self.calls.append(("bind", pod.name))
        return self.state.names[row]

    def reject(self, pod: Pod) -> None:
        self.calls.append(("reject", pod.name))

    def defer(self, pod: Pod) -> None:
        self.calls.append(("defer", pod.name))

    def results(self) -> Sequence[BindResult]:
        taken, self._results = self._results, []
        return taken

    def close(self) -> None:
        self.calls.append(("close", ""))


class ChosenNode:
    """A reward that is the row itself, so that a test can tell steps apart."""

    def before(self, context: Context) -> None:
        assert context.pod.uid not in context.state.placements

    def after(self, context: Context, row: int) -> float:
        assert context.pod.uid in context.state.placements
        return float(row)


class Learner:
    """Takes what the script says and keeps what it is told."""

    name = "learner"

    def __init__(self, rows: Sequence[int | None]) -> None:
        self.rows = deque(rows)
        self.seen: list[Transition] = []

    def act(self, context: Context) -> Decision:
        return Decision(self.rows.popleft())

    def observe(self, transition: Transition) -> None:
        self.seen.append(transition)

    def learn(self) -> Mapping[str, float]:
        return {"2. Loss/Train": 0.5}

    def save(self, directory: str, stem: str) -> Sequence[str]:
        return []


def pod(name: str, owner: str = "d1", cpu: int = 100) -> Pod:
    return Pod(name, owner=owner, requests={"cpu": cpu})


def drive(cluster: ScriptedCluster, learner: Learner, **options: object) -> SchedulerLoop:
    loop = SchedulerLoop(SchedulingCycle(cluster, ChosenNode(), Featurizer()), learner, **options)  # type: ignore[arg-type]
    loop.run()
    return loop


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


def test_a_pod_that_fits_nowhere_is_rejected_and_never_shown_to_the_policy() -> None:
    cluster, learner = ScriptedCluster([pod("big", cpu=9000), pod("p")]), Learner([0])
    stats = drive(cluster, learner).stats
    assert cluster.calls == [("reject", "big"), ("bind", "p"), ("close", "")]
    assert (stats.decisions, stats.outcomes["unschedulable"], stats.outcomes["assumed"]) == (1, 1, 1)


def test_leaving_a_pod_pending_is_a_decision_without_experience() -> None:
    cluster, learner = ScriptedCluster([pod("p")]), Learner([None])
    drive(cluster, learner)
    assert cluster.calls == [("defer", "p"), ("close", "")]
    assert learner.seen == []


def test_a_policy_that_leaves_the_mask_is_stopped() -> None:
    cluster = ScriptedCluster([pod("p")])
    cluster.feasible = lambda pod: np.array([True, False])  # type: ignore[method-assign]
    with pytest.raises(ValueError, match="row 1 for default/p, which is not feasible"):
        drive(cluster, Learner([1]))
    assert not cluster.state.placements


def test_bind_results_are_counted_and_passed_on() -> None:
    told: list[BindResult] = []
    results = [BindResult(pod("p"), "a", "bound"), BindResult(pod("q"), "a", "conflict", "taken")]
    stats = drive(ScriptedCluster([pod("r")], results), Learner([0]), on_result=told.append).stats
    assert dict(stats.binds) == {"bound": 1, "conflict": 1}
    assert told == results


def test_without_learning_the_agent_is_only_asked() -> None:
    learner = Learner([0])
    drive(ScriptedCluster([pod("p")]), learner, learn=False)
    assert learner.seen == []


def test_stop_is_honoured_before_the_next_pod() -> None:
    cluster, learner = ScriptedCluster([pod("p"), pod("q")]), Learner([0, 0])
    loop = SchedulerLoop(SchedulingCycle(cluster, ChosenNode(), Featurizer()), learner)
    loop.run(stop=lambda: loop.stats.decisions >= 1)
    assert [call for call in cluster.calls if call[0] == "bind"] == [("bind", "p")]
    assert cluster.calls[-1] == ("close", "")


@pytest.mark.parametrize(
    ("policy", "sort"),
    [
        ("first-come", QueueSort()),
        ("smallest-first", QueueSort(larger_s=2000.0)),
        ("least-variance", None),
        ("fgd", None),
    ],
)
def test_the_loop_asks_the_cluster_for_the_policys_order(policy, sort):
    cluster = ScriptedCluster([Pod("a")])
    cycle = SchedulingCycle(cluster, ChosenNode(), Featurizer())
    SchedulerLoop(cycle, make_policy(policy, PolicyOptions(expected=[Pod("a")]))).run()
    assert cluster.queue_sort == sort
