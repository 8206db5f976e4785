"""Preemption as the deciding thread sees it: what is asked of the evictor, and what becomes of claims and the queue."""

from dataclasses import replace
from typing import Any

import pytest

from aaml.cluster.filters import feasible
from aaml.cluster.objects import DisruptionBudget, LabelSelector, Node, Pod, Requirement
from aaml.cluster.state import ClusterState
from aaml.kube.evictor import Evicted
from aaml.kube.objects.convert import budget_from_api
from aaml.kube.objects.wire import BudgetObject
from aaml.kube.preemptor import Preemptor
from aaml.kube.reflector import Changes, Delta, Trouble
from aaml.kube.sources import BUDGETS, SeenBudget
from aaml.kube.transport import ApiError, Unreachable
from aaml.scheduling.preemption import Preemption
from aaml.scheduling.queue import SchedulingQueue

VIP = Pod("vip", uid="vip", priority=100, requests={"cpu": 1000})
PROTECTED = DisruptionBudget("guard", selector=LabelSelector((Requirement("app", "In", ("web",)),)))


class Rig:
    """Two nodes of one core, each with a pod that fills it; `asked` is what the evictor was given."""

    def __init__(self) -> None:
        self.now = 0.0
        self.state = ClusterState(Node(name, {"cpu": 1000, "pods": 10}) for name in ("a", "b"))
        self.state.upsert_pod(Pod("web", uid="web", labels={"app": "web"}, requests={"cpu": 1000}, node_name="a"))
        self.state.upsert_pod(Pod("job", uid="job", priority=1, requests={"cpu": 1000}, node_name="b"))
        self.queue = SchedulingQueue(lambda: self.now)
        self.asked: list[tuple[str, Preemption]] = []
        self.watched: list[str] = []
        self.preemptor = Preemptor(self.state, self.queue, self, lambda source: self.watched.append(source.name))  # type: ignore[arg-type]

    def submit(self, pod: Pod, preemption: Preemption) -> None:
        self.asked.append((pod.uid, preemption))

    def reject(self, pod: Pod) -> str:
        """What a rejection does: make room, put back in the queue."""
        self.queue.add(pod)
        self.queue.activate([pod.uid])
        queued = self.queue.pop()
        while queued is not None and queued.uid != pod.uid:
            self.queue.requeue(queued, frozenset({"NodeResourcesFit"}))
            queued = self.queue.pop()
        assert queued is not None
        message = self.preemptor.make_room(pod, feasible(self.state, pod))
        self.queue.requeue(queued, frozenset({"NodeResourcesFit"}))
        return message

    def budgets(self, *budgets: DisruptionBudget) -> None:
        deltas = tuple(Delta("added", SeenBudget(each, "1"), None) for each in budgets)
        self.preemptor.on_changes(Changes(BUDGETS.name, deltas, True))

    def active(self) -> int:
        self.now += 60.0  # past any backoff
        return len(self.queue.upcoming(10))


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_budgets_are_watched_when_the_first_pod_could_preempt_and_are_waited_for(rig):
    rig.reject(replace(VIP, uid="equal", priority=0))
    assert rig.watched == []
    assert rig.reject(VIP) == ""
    assert (rig.watched, rig.asked, rig.active()) == (["poddisruptionbudgets"], [], 0)
    rig.budgets()
    assert rig.active() == 1


def test_a_pod_without_anybody_below_it_is_told_so_at_once(rig):
    message = rig.preemptor.make_room(replace(VIP, priority=0), feasible(rig.state, replace(VIP, priority=0)))
    assert message == "0/2 nodes are available: 2 No preemption victims found for incoming pod."


def test_the_pod_is_nominated_and_its_victims_are_asked_to_leave(rig):
    rig.budgets()
    assert rig.reject(VIP) == "found a potential placement for pod on node a, preempting 1 victims"
    assert [(uid, what.node_name, [v.name for v in what.victims]) for uid, what in rig.asked] == [("vip", "a", ["web"])]
    assert rig.state.nominated["vip"][1] == "a"
    assert rig.preemptor.evictions == 1
    rig.reject(VIP)
    assert len(rig.asked) == 1, "one at a time"
    rig.preemptor.settle(Evicted(VIP, "a"))
    assert rig.state.nominated["vip"][1] == "a"
    assert rig.preemptor.evictions == 0


def test_a_budget_turns_the_choice(rig):
    rig.budgets(PROTECTED)
    rig.reject(VIP)
    assert [what.node_name for _, what in rig.asked] == ["b"]


def test_while_a_victim_terminates_nobody_else_has_to_leave(rig):
    rig.budgets()
    rig.reject(VIP)
    rig.preemptor.settle(Evicted(VIP, "a"))
    rig.state.upsert_pod(replace(rig.state.placements["web"].pod, terminating=True, preempted=True))
    assert rig.reject(VIP) == "not eligible due to a terminating pod on the nominated node."
    assert len(rig.asked) == 1
    assert rig.state.nominated["vip"][1] == "a"


def test_a_claim_that_has_become_useless_is_given_up(rig):
    rig.budgets()
    rig.reject(VIP)
    rig.preemptor.settle(Evicted(VIP, "a"))
    for name, uid in (("a", "web"), ("b", "job")):
        rig.state.remove_pod(uid)
        rig.state.upsert_pod(Pod(f"boss-{name}", uid=name, priority=200, requests={"cpu": 1000}, node_name=name))
    assert "2 No preemption victims found" in rig.reject(VIP)
    assert rig.state.nominated == {}


def test_a_less_important_claim_on_the_node_is_withdrawn(rig):
    rig.budgets()
    mid = replace(VIP, name="mid", uid="mid", priority=50)
    rig.reject(mid)
    rig.preemptor.settle(Evicted(mid, "a"))
    rig.reject(VIP)
    assert [(uid, what.node_name, what.withdrawn) for uid, what in rig.asked[1:]] == [("vip", "a", (mid,))]
    assert {uid: node for uid, (_, node) in rig.state.nominated.items()} == {"vip": "a"}


FORBIDDEN = ApiError(403, "Forbidden", "pods is forbidden")


@pytest.mark.parametrize("where", ["delete", "budgets"])
def test_an_account_that_may_not_schedules_on_and_says_so_once(rig, caplog, where):
    if where == "budgets":
        rig.reject(VIP)
        for _ in range(2):
            rig.preemptor.on_trouble(Trouble(BUDGETS.name, FORBIDDEN))
    else:
        rig.budgets()
        rig.reject(VIP)
        rig.preemptor.settle(Evicted(VIP, "a", "403 Forbidden", forbidden=True))
    assert rig.active() == 1, "the pod is tried again"
    assert rig.reject(VIP) == ""
    assert rig.state.nominated == {}
    assert len(rig.asked) == (where == "delete")
    assert sum("scheduling goes on without preemption" in line for line in caplog.messages) == 1


def test_it_preempts_again_once_budgets_can_be_read(rig):
    rig.reject(VIP)
    rig.preemptor.on_trouble(Trouble(BUDGETS.name, FORBIDDEN))
    rig.reject(VIP)
    assert rig.active() == 0
    rig.budgets()
    assert rig.active() == 1
    rig.reject(VIP)
    assert len(rig.asked) == 1


def test_an_outage_is_waited_out(rig):
    rig.reject(VIP)
    rig.preemptor.on_trouble(Trouble(BUDGETS.name, Unreachable("gone")))
    rig.budgets()
    rig.reject(VIP)
    assert len(rig.asked) == 1


def test_after_an_error_the_claim_ends_and_the_pod_tries_again(rig):
    rig.budgets()
    rig.reject(VIP)
    rig.preemptor.settle(Evicted(VIP, "a", "500 InternalError"))
    assert rig.state.nominated == {}
    assert rig.active() == 1
    rig.reject(VIP)
    assert len(rig.asked) == 2


def test_what_is_read_of_a_disruption_budget():
    import msgspec

    document: dict[str, Any] = {
        "metadata": {"name": "guard", "namespace": "shop", "uid": "u"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}},
        "status": {"disruptionsAllowed": 2, "disruptedPods": {"web-1": "2026-01-01T00:00:00Z"}},
    }
    assert budget_from_api(msgspec.convert(document, BudgetObject)) == DisruptionBudget(
        "guard", "shop", PROTECTED.selector, 2, frozenset({"web-1"})
    )


def test_pods_that_went_while_budgets_could_not_be_read_are_not_remembered(rig, monkeypatch):
    monkeypatch.setattr("aaml.kube.preemptor._MOST_HELD", 10)
    for number in range(100):
        rig.reject(replace(VIP, name=f"p{number}", uid=f"u{number}"))
        rig.queue.remove(f"u{number}")
    assert len(rig.preemptor._held) <= 11
