"""The scheduling queue: order, backoff, and which events bring a pod back. Times are worked out by hand."""

from dataclasses import replace

import hypothesis.strategies as st
import pytest
from hypothesis import given

from aaml.cluster.objects import (
    Affinity,
    GpuRequest,
    HostPort,
    LabelSelector,
    Node,
    NodeSelectorTerm,
    Pod,
    PodAffinityTerm,
    Requirement,
    Taint,
    Toleration,
    TopologySpread,
)
from aaml.cluster.state import ClusterState
from aaml.scheduling.lifetimes import KnownLifetimes
from aaml.scheduling.queue import SchedulingQueue
from aaml.scheduling.queue_sort import QueueSort
from support import make

FIT = frozenset({"NodeResourcesFit"})


@pytest.fixture
def clock():
    return make.Clock()


@pytest.fixture
def queue(clock):
    return SchedulingQueue(clock)


def popped_names(queue):
    names = []
    while (queued := queue.pop()) is not None:
        names.append(queued.pod.name)
        queue.done(queued.uid)
    return names


def fail(queue, pod, plugins=FIT):
    """Queue a pod and let its first try fail."""
    queue.add(pod)
    queued = queue.pop()
    assert queued.pod is pod
    queue.requeue(queued, plugins)
    return queued


def test_higher_priority_first_then_the_older(queue, clock):
    for name, priority in [("old", 0), ("low", -5), ("high", 10), ("young", 0)]:
        queue.add(Pod(name, priority=priority))
        clock.now += 1
    assert [pod.name for pod in queue.upcoming(10)] == ["high", "old", "young", "low"]
    assert [pod.name for pod in queue.upcoming(2)] == ["high", "old"]
    assert popped_names(queue) == ["high", "old", "young", "low"]
    assert queue.pop() is None


def test_a_pod_that_was_tried_goes_behind_those_that_came_before_its_return(queue, clock):
    first = fail(queue, Pod("first"))
    clock.now += 20
    queue.add(Pod("second"))
    clock.now += 1
    queue.activate([first.uid])
    # Its age counts from its return at 100, before "second" came at 120.
    assert popped_names(queue) == ["first", "second"]


def test_an_unschedulable_pod_waits_for_an_event_that_can_help(queue, clock):
    fail(queue, Pod("p", requests={"cpu": 500}))
    clock.now += 50
    assert queue.pop() is None
    assert queue.counts() == {"active": 0, "backoff": 0, "unschedulable": 1, "gated": 0}
    assert queue.on_event("pod_add", Pod("other", node_name="n")) == 0
    assert queue.on_event("node_add", Node("small", allocatable={"cpu": 100, "pods": 10})) == 0
    assert queue.on_event("pod_delete", Pod("other", node_name="n")) == 1
    assert queue.pop().attempts == 2


def test_backoff_doubles_from_one_to_ten_seconds(clock):
    queue = SchedulingQueue(clock, pop_from_backoff=False)
    queue.add(Pod("p"))
    for expected_s in [1, 2, 4, 8, 10, 10]:
        queued = queue.pop()
        queue.requeue(queued, FIT)
        queue.on_event("pod_delete", Pod("gone", node_name="n"))
        assert queue.counts()["backoff"] == 1
        assert queue.next_ready_s() == clock.now + expected_s
        clock.now += expected_s - 0.01
        assert queue.pop() is None
        clock.now += 0.01


def test_an_idle_scheduler_takes_a_pod_out_of_backoff_early_but_not_after_an_error(queue, clock):
    queued = fail(queue, Pod("p"))
    queue.on_event("any")
    assert queue.counts()["backoff"] == 1
    assert queue.next_ready_s() == clock.now
    assert queue.pop() is queued
    queue.retry(queued)
    assert queue.pop() is None
    assert queue.next_ready_s() == 102.0  # the second with which it ends, 101, must be over
    clock.now = 101.9
    assert queue.pop() is None
    clock.now = 102.0
    assert queue.pop() is queued


def test_backoffs_that_end_with_the_same_second_are_ordered_by_priority_and_then_by_age(queue, clock):
    """First tries fail at 100.1, 100.3, 100.6 and 101.0: backoffs of 1 s end with the seconds 101 (three) and 102."""
    for name, priority, moment in (("old", 0, 100.1), ("young", 0, 100.3), ("vip", 5, 100.6), ("late", 9, 101.0)):
        clock.now = moment
        fail(queue, Pod(name, priority=priority))
    queue.on_event("any")
    assert queue.counts()["backoff"] == 4
    assert [pod.name for pod in queue.upcoming(4)] == ["vip", "old", "young", "late"]
    clock.now = 101.99
    assert queue.counts()["backoff"] == 4
    clock.now = 102.0
    assert queue.next_ready_s() == 102.0
    assert queue.counts() == {"active": 3, "backoff": 1, "unschedulable": 0, "gated": 0}
    assert popped_names(queue) == ["vip", "old", "young", "late"]


def test_a_priority_that_is_raised_during_backoff_counts(queue, clock):
    for name in "ab":
        fail(queue, Pod(name))
    queue.on_event("any")
    queue.update(Pod("b", priority=1))
    assert popped_names(queue) == ["b", "a"]


def test_requeue_without_a_plugin_is_an_error(queue, clock):
    queue.add(Pod("p"))
    queue.requeue(queue.pop(), frozenset())
    assert queue.counts()["backoff"] == 1


def test_without_backoff_an_event_makes_ready_at_once(clock):
    queue = SchedulingQueue(clock, initial_backoff_s=0.0)
    queued = fail(queue, Pod("p"))
    queue.on_event("any")
    assert queue.counts()["active"] == 1
    assert queue.pop() is queued


def test_an_unschedulable_pod_is_tried_again_after_five_minutes(queue, clock):
    fail(queue, Pod("p"))
    assert queue.next_ready_s() == 400.0
    clock.now = 399.9
    assert queue.pop() is None
    clock.now = 400.0
    assert queue.pop() is not None


def test_infinite_flush_means_never(clock):
    queue = SchedulingQueue(clock, flush_after_s=float("inf"))
    fail(queue, Pod("p"))
    assert queue.next_ready_s() is None


def test_an_event_during_the_try_counts(queue, clock):
    """A pod was deleted while the pod was under way: the failure may be outdated, so it does not wait for another."""
    queue.add(Pod("p"))
    queued = queue.pop()
    queue.on_event("pod_delete", Pod("gone", node_name="n"))
    queue.requeue(queued, FIT)
    assert queue.counts()["backoff"] == 1


def test_an_event_before_the_try_does_not_count(queue):
    queue.add(Pod("a"))
    queue.add(Pod("b"))
    first = queue.pop()
    queue.on_event("pod_delete", Pod("gone", node_name="n"))
    second = queue.pop()
    queue.requeue(second, FIT)
    assert queue.counts()["unschedulable"] == 1
    queue.requeue(first, FIT)
    assert queue.counts() == {"active": 0, "backoff": 1, "unschedulable": 1, "gated": 0}


def test_gated_pods_are_kept_apart_until_their_gates_are_gone(queue):
    pod = Pod("p", gates=("example.com/quota",))
    queue.add(pod)
    assert queue.counts()["gated"] == 1
    assert queue.upcoming(5) == []
    queue.on_event("any")
    queue.activate([pod.uid])
    assert queue.pop() is None
    assert queue.next_ready_s() is None
    queue.update(replace(pod, gates=()))
    assert queue.pop().pod.gates == ()


def test_removed_pods_never_come_up(queue):
    pods = [Pod(name) for name in "abc"]
    for pod in pods:
        queue.add(pod)
    queue.remove(pods[1].uid)
    assert len(queue) == 2
    assert popped_names(queue) == ["a", "c"]
    queue.remove("unknown")


def test_a_pod_deleted_while_under_way_does_not_return(queue):
    queue.add(Pod("p"))
    queued = queue.pop()
    assert len(queue) == 0
    assert queued.uid in queue
    queue.remove(queued.uid)
    queue.requeue(queued, FIT)
    queue.retry(queued)
    assert len(queue) == 0
    assert queued.uid not in queue


def test_a_raised_priority_reorders(queue):
    queue.add(Pod("a"))
    queue.add(Pod("b"))
    queue.update(Pod("b", priority=1))
    assert popped_names(queue) == ["b", "a"]


def test_an_update_that_cannot_help_leaves_the_pod_waiting(queue):
    pod = Pod("p", requests={"cpu": 500})
    fail(queue, pod)
    queue.update(replace(pod, labels={"a": "b"}))
    assert queue.counts()["unschedulable"] == 1
    queue.update(replace(pod, requests={"cpu": 100}))
    assert queue.counts()["unschedulable"] == 0


def test_a_pod_that_asks_for_less_of_a_gpu_is_tried_again(queue):
    pod = Pod("p", gpu=GpuRequest(1, 800))
    fail(queue, pod, frozenset({"GpuDevices"}))
    queue.update(replace(pod, labels={"a": "b"}))
    assert queue.counts()["unschedulable"] == 1
    queue.update(replace(pod, gpu=GpuRequest(1, 300)))
    assert queue.counts()["unschedulable"] == 0


def test_a_pod_that_asks_for_less_during_its_try_is_tried_again(queue):
    for name in "pq":
        queue.add(Pod(name, requests={"cpu": 500}))
    first, second = queue.pop(), queue.pop()
    queue.update(Pod("p", requests={"cpu": 100}))
    queue.requeue(first, FIT)
    queue.requeue(second, FIT)
    assert queue.counts() == {"active": 0, "backoff": 1, "unschedulable": 1, "gated": 0}


TERM = PodAffinityTerm("zone", LabelSelector((Requirement("app", "In", ("db",)),)), frozenset({"default"}))
DB = Pod("db", labels={"app": "db"}, node_name="n")
WEB = Pod("web", labels={"app": "web"}, node_name="n")
NEAR = Pod("p", affinity=Affinity(required_pods=(TERM,)))
FAR = Pod("p", affinity=Affinity(required_anti_pods=(TERM,)))
SHARES, HOLDS = Pod("p", gpu=GpuRequest(1, 300)), Pod("p", gpu=GpuRequest(1, 1000))
PORT_80 = Pod("p", host_ports=(HostPort(80),))
SPREAD = Pod("p", spread=(TopologySpread(1, "zone", TERM.selector),))
ON_SSD = Pod("p", affinity=Affinity(required_nodes=(NodeSelectorTerm((Requirement("disk", "In", ("ssd",)),)),)))


@pytest.mark.parametrize(
    ("plugin", "pod", "kind", "obj", "before", "helps"),
    [
        ("InterPodAffinity", NEAR, "pod_add", DB, None, True),
        ("InterPodAffinity", NEAR, "pod_add", WEB, None, False),
        ("InterPodAffinity", NEAR, "pod_delete", DB, None, False),
        ("InterPodAffinity", NEAR, "node_add", Node("n", labels={"zone": "a"}), None, True),
        ("InterPodAffinity", NEAR, "node_add", Node("n"), None, False),
        ("InterPodAffinity", FAR, "pod_delete", DB, None, True),
        ("InterPodAffinity", FAR, "pod_delete", WEB, None, False),
        ("InterPodAffinity", DB, "pod_delete", replace(FAR, node_name="n", uid="x"), None, True),
        ("InterPodAffinity", FAR, "pod_update", replace(DB, labels={}), DB, True),
        ("PodTopologySpread", SPREAD, "pod_add", DB, None, True),
        ("PodTopologySpread", SPREAD, "pod_add", WEB, None, False),
        ("PodTopologySpread", SPREAD, "pod_add", replace(DB, namespace="other"), None, False),
        ("PodTopologySpread", SPREAD, "node_delete", Node("n", labels={"zone": "a"}), None, True),
        ("PodTopologySpread", SPREAD, "node_add", Node("n"), None, False),
        ("NodeAffinity", ON_SSD, "node_add", Node("n", labels={"disk": "ssd"}), None, True),
        ("NodeAffinity", ON_SSD, "node_add", Node("n", labels={"disk": "hdd"}), None, False),
        ("NodeAffinity", ON_SSD, "node_update", Node("n", labels={"disk": "ssd"}), Node("n"), True),
        ("NodeAffinity", ON_SSD, "pod_delete", DB, None, False),
        ("TaintToleration", WEB, "node_update", Node("n"), Node("n", taints=(Taint("k"),)), True),
        ("TaintToleration", WEB, "node_update", Node("n", taints=(Taint("k"),)), Node("n"), False),
        ("TaintToleration", WEB, "node_add", Node("n", taints=(Taint("k"),)), None, False),
        ("NodeUnschedulable", WEB, "node_update", Node("n"), Node("n", unschedulable=True), True),
        ("NodeUnschedulable", WEB, "node_add", Node("n", unschedulable=True), None, False),
        ("NodePorts", PORT_80, "pod_delete", PORT_80, None, True),
        ("NodePorts", PORT_80, "pod_delete", Pod("q", host_ports=(HostPort(81),)), None, False),
        ("NodeDeclaredFeatures", WEB, "node_update", Node("n", declared_features=frozenset({"F"})), Node("n"), True),
        ("NodeDeclaredFeatures", WEB, "node_update", Node("n", unschedulable=True), Node("n"), False),
        ("NodeDeclaredFeatures", WEB, "pod_delete", DB, None, False),
        ("GpuDevices", SHARES, "pod_update", replace(SHARES, uid="q"), replace(HOLDS, uid="q"), True),
        ("GpuDevices", SHARES, "pod_update", replace(HOLDS, uid="q"), replace(SHARES, uid="q"), False),
        (
            "NodeResourcesFit", Pod("p", requests={"cpu": 2000}), "node_update",
            Node("n", allocatable={"cpu": 4000, "pods": 9}), Node("n", allocatable={"cpu": 1000, "pods": 9}), True,
        ),
        (
            "NodeResourcesFit", Pod("p", requests={"cpu": 2000}), "node_update",
            Node("n", allocatable={"cpu": 4000, "pods": 9, "memory": 2}),
            Node("n", allocatable={"cpu": 4000, "pods": 9, "memory": 1}), False,
        ),
        ("VolumeBinding", WEB, "volume_change", None, None, True),
        ("SomePluginOfOurs", WEB, "pod_add", DB, None, True),
    ],
)  # fmt: skip
def test_hints(queue, plugin, pod, kind, obj, before, helps):
    fail(queue, pod, frozenset({plugin}))
    assert queue.on_event(kind, obj, before) == int(helps)


def test_a_new_toleration_brings_back_a_pod_that_a_taint_rejected(queue):
    pod = Pod("p")
    fail(queue, pod, frozenset({"TaintToleration"}))
    queue.update(replace(pod, tolerations=(Toleration("k", "Exists"),)))
    assert queue.counts()["unschedulable"] == 0


@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(0, 3)), max_size=30), st.integers(0, 40))
def test_upcoming_is_the_order_of_pops(arrivals, count):
    clock = make.Clock()
    queue = SchedulingQueue(clock)
    for number, (priority, wait_s) in enumerate(arrivals):
        clock.now += wait_s
        queue.add(Pod(f"p{number}", priority=priority))
    expected = [pod.name for pod in queue.upcoming(count)]
    by_hand = sorted(range(len(arrivals)), key=lambda number: (-arrivals[number][0], number))
    assert expected == [f"p{number}" for number in by_hand[:count]]
    assert popped_names(queue)[:count] == expected


@given(st.lists(st.sampled_from(["add", "pop", "fail", "error", "event", "remove", "tick", "done"]), max_size=60))
def test_no_pod_is_lost_or_doubled(steps):
    clock = make.Clock()
    queue = SchedulingQueue(clock)
    flying, expected = [], set()
    for number, step in enumerate(steps):
        if step == "add":
            queue.add(Pod(f"p{number}", priority=number % 3))
            expected.add(f"default/p{number}")
        elif step == "pop" and (queued := queue.pop()) is not None:
            flying.append(queued)
        elif step == "fail" and flying:
            queue.requeue(flying.pop(), FIT)
        elif step == "error" and flying:
            queue.retry(flying.pop(0))
        elif step == "done" and flying:
            expected.discard(flying[0].uid)
            queue.done(flying.pop(0).uid)
        elif step == "event":
            queue.on_event("pod_delete", Pod("gone", node_name="n"))
        elif step == "remove" and expected:
            gone = min(expected)
            expected.discard(gone)
            queue.remove(gone)
            flying = [queued for queued in flying if queued.uid != gone]
        elif step == "tick":
            clock.now += 3
        assert {queued.uid for queued in queue.pods()} == expected
        assert len(queue) + len(flying) == len(expected)
        assert sum(queue.counts().values()) == len(queue)
    for queued in flying:
        queue.requeue(queued, FIT)
    clock.now += 1000
    seen = []
    while (queued := queue.pop()) is not None:
        seen.append(queued.uid)
    assert sorted(seen) == sorted(expected)


# ---- a policy's own order --------------------------------------------------------------------------------------------


def by_cpu(pod):
    return 10.0 * pod.request("cpu")


def test_a_sorted_queue_goes_by_first_coming_and_size(clock, queue):
    queue.sort_by(by_cpu)
    queue.add(Pod("large", requests={"cpu": 3}))  # counts from 130 on
    clock.now = 105.0
    queue.add(Pod("middle", requests={"cpu": 2}))  # 125
    clock.now = 115.0
    queue.add(Pod("small", requests={"cpu": 1}))  # 125, but it came later
    queue.add(Pod("urgent", requests={"cpu": 9}, priority=1))
    clock.now = 120.0
    queue.add(Pod("late", requests={"cpu": 0}))  # 120
    assert [pod.name for pod in queue.upcoming(9)] == ["urgent", "late", "middle", "small", "large"]
    assert popped_names(queue) == ["urgent", "late", "middle", "small", "large"]


def test_a_sorted_queue_keeps_a_pods_age_and_does_not_back_off(clock, queue):
    queue.sort_by(by_cpu)
    fail(queue, Pod("first", requests={"cpu": 1}))
    clock.now = 101.0
    queue.add(Pod("second", requests={"cpu": 1}))
    assert queue.next_ready_s() == 101.0
    queue.on_event("pod_delete", Pod("gone", requests={"cpu": 1}))
    assert popped_names(queue) == ["first", "second"]


def test_a_sorted_queue_still_backs_off_after_errors(clock, queue):
    queue.sort_by(by_cpu)
    queue.add(Pod("p"))
    queue.retry(queue.pop())
    assert queue.pop() is None
    assert queue.next_ready_s() == 102.0


def test_a_sort_takes_waiting_pods_along_and_can_be_taken_back(clock, queue):
    queue.add(Pod("large", requests={"cpu": 3}))
    queue.add(Pod("small", requests={"cpu": 1}))
    failed = fail(queue, Pod("failed", requests={"cpu": 2}, priority=5))
    queue.on_event("pod_delete", Pod("gone", requests={"cpu": 1}))
    assert failed.queue == "backoff"
    queue.sort_by(by_cpu)
    assert [pod.name for pod in queue.upcoming(9)] == ["failed", "small", "large"]
    assert queue.counts()["active"] == 3
    queue.sort_by(None)
    assert [pod.name for pod in queue.upcoming(9)] == ["large", "small", "failed"]


def test_a_fork_of_a_sorted_queue_goes_on_alike(clock, queue):
    queue.sort_by(by_cpu)
    for cores in (3, 1, 2):
        queue.add(Pod(f"p{cores}", requests={"cpu": cores}))
    twin = queue.fork(clock, by_cpu)
    twin.add(Pod("p0", requests={"cpu": 0}))
    assert popped_names(twin) == ["p0", "p1", "p2", "p3"]
    assert popped_names(queue) == ["p1", "p2", "p3"]


def test_updates_of_a_pod_in_a_sorted_queue_count(clock, queue):
    queue.sort_by(by_cpu)
    pod = Pod("p", requests={"cpu": 2})
    failed = fail(queue, pod)
    queue.add(Pod("q", requests={"cpu": 1}))
    queue.update(replace(pod, requests={"cpu": 0}))  # it asks for less now
    assert failed.queue == "active"
    assert popped_names(queue) == ["p", "q"]


@pytest.mark.parametrize(
    ("sort", "delay_s"),
    [
        (QueueSort(), 0.0),
        (QueueSort(cpu_s=100.0), 25.0),
        (QueueSort(memory_s=100.0), 50.0),
        (QueueSort(larger_s=100.0), 50.0),
        (QueueSort(-100.0, 10.0, 4.0), -18.0),
        (QueueSort(cpu_s=100.0, rest=0.5).knowing(KnownLifetimes()), 55.0),
        (QueueSort(work=2.0).knowing(KnownLifetimes()), 60.0),
        (QueueSort(rest=0.5, work=2.0).knowing(KnownLifetimes()), 90.0),
    ],
)
def test_delays_are_by_shares_of_a_mean_node(sort, delay_s):
    nodes = (Node("a", {"cpu": 3000, "memory": 10}), Node("b", {"cpu": 5000, "memory": 30}))
    assert sort.delay_s(
        ClusterState(nodes), Pod("p", requests={"cpu": 1000, "memory": 10}, lifetime_s=60.0)
    ) == pytest.approx(delay_s)


# ---- memory ----------------------------------------------------------------------------------------------------------


def test_what_comes_and_goes_behind_a_pod_that_stays_on_top_leaves_nothing(clock):
    """As under load, where less important pods are deleted by who made them before their turn comes."""
    queue = SchedulingQueue(clock)
    queue.add(Pod("top", uid="top", priority=10))
    for number in range(20_000):
        queue.add(Pod(f"p{number}", uid=f"u{number}"))
        queue.remove(f"u{number}")
    assert len(queue._active) < 2_000
    assert queue.pop().uid == "top"
    assert queue.pop() is None


def test_what_is_swept_are_the_outdated_entries_alone(clock):
    queue = SchedulingQueue(clock)
    for number in range(5_000):
        queue.add(Pod(f"p{number}", uid=f"u{number}", priority=number % 7))
        if number % 3:
            queue.remove(f"u{number}")
    expected = sorted((number for number in range(0, 5_000, 3)), key=lambda number: (-(number % 7), number))
    assert [queue.pop().uid for _ in expected] == [f"u{number}" for number in expected]


def test_events_that_come_while_a_pod_is_under_way_have_a_bound_and_none_is_missed(clock, monkeypatch):
    """Where some had to be let go, one of these may have helped: the pod is tried again."""
    monkeypatch.setattr("aaml.scheduling.queue_parts.EVENTS_KEPT", 100)
    queue = SchedulingQueue(clock)
    queue.add(Pod("p", uid="u", requests={"cpu": 1000}))
    popped = queue.pop()
    queue.on_event("node_add", Node("helps", {"cpu": 4000, "pods": 110}))
    for number in range(10_000):
        queue.on_event("node_add", Node(f"full-{number}", {"cpu": 0, "pods": 0}))
    assert len(queue._flight.events) <= 100
    queue.requeue(popped, FIT)
    assert queue.counts()["unschedulable"] == 0
    clock.now += 10.0
    assert queue.pop() is popped
