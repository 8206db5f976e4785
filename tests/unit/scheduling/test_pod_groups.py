"""The pod-group cycle: domains, trials and the choice between them, with numbers that were worked out by hand."""

import numpy as np
import pytest

from aaml.cluster.filters import feasible
from aaml.cluster.objects import PodGroup
from aaml.scheduling.pod_groups import GroupAttempt, count_placed, fullness, placement_scores
from aaml.scheduling.queue_entries import Member, QueuedGroup
from support import make
from support.make import GIB

RACKED = PodGroup("g", 2, "rack")


def racks(*sizes, cpu=4000):
    """Racks r0, r1 ... of so many nodes each, with 4 cores and 8 GiB."""
    return [
        make.node(f"r{rack}n{number}", cpu, labels={"rack": f"r{rack}"})
        for rack, size in enumerate(sizes)
        for number in range(size)
    ]


def members(group, count, cpu=3000, **fields):
    return [make.pod(f"g{number}", cpu, group=group, uid=f"g{number}", **fields) for number in range(count)]


def attempt(state, pods, seed=0):
    group = pods[0].group
    queued = QueuedGroup(pods[0], 0.0, 0.0, group=group, members=[Member(pod, i) for i, pod in enumerate(pods)])
    return GroupAttempt(state, queued, np.random.default_rng(seed))


def run(state, pods, seed=0):
    """Try a group with first fit; returns the try and the decisions, with None for a pod that fits nowhere."""
    tried, log = attempt(state, pods, seed), []
    while not tried.outcome:
        tried.turn(0.0)
        if (pod := tried.pod) is None:
            continue
        nodes = np.flatnonzero(tried.narrow(feasible(state, pod).mask))
        log.append((pod.name, state.names[nodes[0]] if nodes.size else None))
        tried.place(int(nodes[0]), None, 0.0) if nodes.size else tried.skip("full")
    return tried, log


def where(tried):
    return {each.pod.name: each.node_name for each in tried.placed}


def test_every_rack_is_tried_and_the_fullest_is_taken():
    """Two pods of 3 cores and 1 GiB: rack 1 runs a pod of 4 cores and 1 GiB already, and is the fuller then.

    Rack 0: 6 of 12 cores and 2 of 24 GiB, (50 + 8) // 2 = 29. Rack 1: 10 of 12 and 3 of 24, (83 + 12) // 2 = 47.
    """
    state = make.cluster(racks(3, 3), used=[(5, 4000, GIB)])
    tried, log = run(state, members(RACKED, 2))
    assert log == [("g0", "r0n0"), ("g1", "r0n1"), ("g0", "r1n0"), ("g1", "r1n1")]
    assert where(tried) == {"g0": "r1n0", "g1": "r1n1"}
    assert tried.best == ("r1",)
    assert {pod.name: status for pod, _, status in tried.ended()} == {"g0": "tried", "g1": "tried"}
    assert sorted(state.placements) == ["default/used0", "g0", "g1"]
    assert count_placed(state, "default/g") == 2


def test_fullness_is_that_of_the_whole_domain_in_whole_per_cents():
    state = make.cluster(racks(2, 1), used=[(0, 1000, GIB)])
    mask = np.array([True, True, False])
    # (1000 + 3000) of 8000 is 50; 2 of 16 GiB is 12 (12.5): 62 // 2.
    assert fullness(state, mask, [make.pod("p", 3000)]) == 31
    # Without requests a pod counts with 100m and 200Mi: 1100 of 8000 is 13, 1224 of 16384 Mi is 7.
    assert fullness(state, mask, [make.pod("p", 0, 0)]) == 10
    assert placement_scores([31, 10], [2, 4]) == [81, 110]


def test_racks_that_are_as_full_are_drawn():
    state = make.cluster(racks(1, 1, 1))
    taken = {where(run(state.fork(), members(PodGroup("g", 1, "rack"), 1), seed)[0])["g0"] for seed in range(20)}
    assert taken == {"r0n0", "r1n0", "r2n0"}


def test_a_trial_ends_where_too_few_are_left_and_nothing_stays():
    """Three pods of 3 cores in racks of two nodes: the third fits nowhere, and none may."""
    state = make.cluster(racks(2, 2))
    tried, log = run(state, members(PodGroup("g", 3, "rack"), 3))
    assert log == [("g0", "r0n0"), ("g1", "r0n1"), ("g2", None), ("g0", "r1n0"), ("g1", "r1n1"), ("g2", None)]
    assert (tried.outcome, dict(state.placements)) == ("unschedulable", {})
    assert tried.message == (
        "pod group is unschedulable, 0/2 placements are available, first placement status: minCount (3) cannot be "
        "satisfied: 2 scheduled, 0 remaining"
    )
    # A first pod that fits nowhere ends the trial at once.
    assert run(state, members(PodGroup("g", 3, "rack"), 3, cpu=5000))[1] == [("g0", None), ("g0", None)]


def test_all_that_fit_are_placed_beyond_the_least_number():
    state = make.cluster(racks(3))
    tried, log = run(state, members(RACKED, 4))
    assert log[-1] == ("g3", None)
    assert (tried.outcome, sorted(where(tried)), tried.refused) == ("scheduled", ["g0", "g1", "g2"], {"g3": "full"})


def test_more_pods_of_a_group_in_one_rack_are_worth_more_than_its_fullness():
    """Rack 0 takes 2 of 3 pods and would be 75% full in CPU, rack 1 all three: 100 * 2 // 3 is 66 against 100."""
    state = make.cluster([*racks(2), *[make.node(f"big{i}", 5000, labels={"rack": "big"}) for i in range(3)]])
    tried, _ = run(state, members(RACKED, 3))
    assert set(where(tried).values()) == {"big0", "big1", "big2"}


def test_the_more_important_and_then_the_older_pods_come_first():
    state = make.cluster(racks(2))
    pods = members(PodGroup("g", 1), 2)
    queued = QueuedGroup(pods[0], 0.0, 0.0, group=pods[0].group, members=[Member(pods[0], 2), Member(pods[1], 1, 1)])
    assert GroupAttempt(state, queued, np.random.default_rng(0)).pod.name == "g1"


def test_pods_that_run_keep_the_others_in_their_rack():
    state = make.cluster(racks(2, 2))
    first, *others = members(RACKED, 3)
    state.assume(first, "r1n0")
    tried, log = run(state, others)
    assert log == [("g1", "r1n1"), ("g2", None)]
    assert (tried.outcome, where(tried)) == ("scheduled", {"g1": "r1n1"})


def test_a_group_without_a_constraint_may_go_anywhere():
    state = make.cluster(racks(1, 1))
    tried, _ = run(state, members(PodGroup("g", 2), 2))
    assert where(tried) == {"g0": "r0n0", "g1": "r1n0"}


@pytest.mark.parametrize(
    ("group", "changes", "message"),
    [
        (PodGroup("g", 1, priority=3), {}, "the same priority as the pod group's priority, got 0 and 3"),
        (PodGroup("g", 1), {"scheduler_name": "other"}, "the same .spec.schedulerName set"),
        (PodGroup("g", 1), {"preemption_policy": "Never"}, "the same preemption policy"),
        (PodGroup("g", 1, preemption_policy="Never"), {"priority": 0}, "the same preemption policy as the pod group"),
    ],
)
def test_pods_that_differ_where_they_must_not_are_an_error(group, changes, message):
    state = make.cluster(racks(2))
    pods = members(group, 2)
    other = make.pod("other", group=group, **changes)
    tried = attempt(state, [*pods, other])
    assert tried.outcome == "error"
    assert message in tried.message


def test_a_label_that_no_node_has_and_pods_in_two_racks_are_told():
    state = make.cluster(racks(1, 1))
    nowhere = PodGroup("g", 1, "row")
    assert attempt(state, members(nowhere, 1)).outcome == "unschedulable"
    for number, name in enumerate(("r0n0", "r1n0")):
        state.assume(make.pod(f"there{number}", 100, group=RACKED), name)
    tried = attempt(state, members(RACKED, 1))
    assert tried.outcome == "error"
    assert "more than 1 domain found for pod group: r0, r1" in tried.message
