"""Pod groups in the scheduling queue: gates, order, backoff, and what becomes of their pods."""

from dataclasses import replace

import pytest

from aaml.cluster.objects import PodGroup
from aaml.scheduling.queue import SchedulingQueue
from aaml.scheduling.queue_entries import QueuedGroup
from support import make

GANG = PodGroup("g", 2)


@pytest.fixture
def clock():
    return make.Clock()


@pytest.fixture
def placed():
    """How many pods of the group have a node, by its key."""
    return {}


@pytest.fixture
def queue(clock, placed):
    return SchedulingQueue(clock, placed=lambda key: placed.get(key, 0))


def member(name, group=GANG, **fields):
    return make.pod(name, group=group, **fields)


def names(queued):
    return [each.pod.name for each in queued.waiting()]


def popped(queue):
    queued = queue.pop()
    assert isinstance(queued, QueuedGroup)
    return queued


def test_a_group_waits_for_as_many_pods_as_it_needs_and_is_popped_whole(queue):
    queue.add(member("a"))
    assert queue.pop() is None
    assert queue.counts()["gated"] == len(queue) == 1
    queue.add(member("b"))
    queue.add(make.pod("alone"))
    assert queue.counts() == {"active": 3, "backoff": 0, "unschedulable": 0, "gated": 0}
    assert [pod.name for pod in queue.upcoming(9)] == ["a", "b", "alone"]
    group = popped(queue)
    assert (names(group), group.size) == (["a", "b"], 2)
    assert queue.pop().pod.name == "alone"


def test_pods_that_have_a_node_count(queue, placed):
    queue.add(member("a"))
    placed["default/g"] = 1
    assert queue.pop() is None
    queue.on_event("pod_add", member("b"))
    assert names(popped(queue)) == ["a"]


def test_a_gate_of_one_pod_shuts_the_group_and_so_does_a_group_that_nobody_has_seen(queue):
    queue.add(member("a"))
    queue.add(member("b", gates=("x",)))
    assert queue.pop() is None
    queue.update(member("b"))
    assert names(popped(queue)) == ["a", "b"]
    unseen = PodGroup("later", seen=False)
    queue.add(member("c", unseen))
    assert queue.pop() is None
    queue.update(member("c", PodGroup("later")))
    assert names(popped(queue)) == ["c"]


def test_fewer_pods_are_needed_once_the_group_says_so(queue):
    queue.add(member("a", PodGroup("g", 3)))
    queue.add(member("b", PodGroup("g", 3)))
    assert queue.pop() is None
    queue.update(member("b", PodGroup("g", 2)))
    assert names(popped(queue)) == ["a", "b"]


def test_the_groups_priority_counts_and_then_the_age_of_its_first_pod(queue, clock):
    queue.add(make.pod("old"))
    clock.now = 101.0
    queue.add(make.pod("young", priority=5))
    for name in "ab":
        queue.add(member(name, replace(GANG, priority=7)))
    assert names(popped(queue)) == ["a", "b"]
    assert queue.pop().pod.name == "young"
    for name in "cd":
        queue.add(member(name, PodGroup("late", 2)))
    assert queue.pop().pod.name == "old"


def test_a_failed_group_backs_off_for_longer_with_its_size_and_no_event_helps_it(queue, clock):
    """The attempts of a waiting group of eight that were measured: 0, 1.4, 4.4, 9.4 and 18.4 s after the first."""
    clock.now = 100.6
    group = PodGroup("g", 8)
    for number in range(8):
        queue.add(member(f"m{number}", group))
    attempts = []
    while len(attempts) < 8:
        queued = popped(queue)
        attempts.append(round(clock.now - 100.6, 1))
        queue.attempted(queued, "unschedulable")
        queue.on_event("node_add", make.node("n"))
        assert queue.pop() is None
        clock.now = queue.next_ready_s()
    # Then 16 s, and no more than 10 s times the root of eight, which is 28.28 s: each to the end of its second.
    assert attempts == [0.0, 1.4, 4.4, 9.4, 18.4, 35.4, 64.4, 93.4]


def test_a_failed_group_goes_behind_all_that_came_meanwhile(queue, clock):
    for name in "ab":
        queue.add(member(name))
    queued = popped(queue)
    clock.now = 101.0
    queue.add(make.pod("later"))
    queue.attempted(queued, "unschedulable")
    clock.now = 110.0
    assert [pod.name for pod in queue.upcoming(3)] == ["later", "a", "b"]


def test_what_a_good_try_leaves_is_tried_at_once_and_a_failed_bind_puts_its_pod_back(queue, placed):
    for name in "abc":
        queue.add(member(name))
    queued = popped(queue)
    placed["default/g"] = 2
    queue.attempted(queued, "scheduled", [member("a").uid, member("b").uid])
    assert len(queue) == 1
    assert member("a").uid in queue
    assert names(popped(queue)) == ["c"]
    queue.put_back(member("a"))
    queue.done(member("b").uid)
    assert member("b").uid not in queue
    assert sorted(each.pod.name for each in queue.pods()) == ["a", "c"]


def test_pods_that_came_during_a_try_are_tried_with_the_next(queue):
    for name in "ab":
        queue.add(member(name))
    queued = popped(queue)
    queue.add(member("c"))
    queue.attempted(queued, "scheduled", [member("a").uid, member("b").uid])
    for name in "ab":
        queue.done(member(name).uid)
    assert queue.pop() is None, "one of two that are needed, as no pod counts as placed here"
    queue.add(member("d"))
    assert names(popped(queue)) == ["c", "d"]


def test_a_pod_that_is_gone_leaves_its_group(queue):
    for name in "abc":
        queue.add(member(name))
    queue.remove(member("a").uid)
    assert [pod.name for pod in queue.upcoming(9)] == ["b", "c"]
    queue.remove(member("b").uid)
    assert (queue.pop(), len(queue)) == (None, 1)
    queue.remove(member("c").uid)
    assert (len(queue), list(queue.pods())) == (0, [])


def test_without_backoff_a_failed_group_waits_for_an_event(clock):
    queue = SchedulingQueue(clock, 0.0)
    for name in "ab":
        queue.add(member(name))
    queue.attempted(popped(queue), "unschedulable")
    assert queue.pop() is None
    queue.on_event("pod_delete", make.pod("other"))
    assert names(popped(queue)) == ["a", "b"]


def test_a_fork_goes_its_own_way(queue, clock):
    for name in "ab":
        queue.add(member(name))
    twin = queue.fork(clock)
    twin.remove(member("a").uid)
    assert twin.pop() is None
    assert names(popped(queue)) == ["a", "b"]
