"""Preemption by a pod group and of whole groups, with victims that were worked out by hand."""

import numpy as np
import pytest

from aaml.cluster.filters import feasible
from aaml.cluster.objects import Affinity, DisruptionBudget, LabelSelector, PodAffinityTerm, PodGroup, Requirement
from aaml.scheduling import preemption
from aaml.scheduling.group_preemption import NO_VICTIMS, ONGOING, Imagined
from aaml.scheduling.pod_groups import GroupAttempt
from aaml.scheduling.queue_entries import Member, QueuedGroup
from support import make

URGENT = PodGroup("urgent", 2, "rack", priority=100)
HOST = "kubernetes.io/hostname"


def racks(*sizes):
    return [
        make.node(f"r{rack}n{number}", labels={"rack": f"r{rack}", HOST: f"r{rack}n{number}"})
        for rack, size in enumerate(sizes)
        for number in range(size)
    ]


def members(count=2, cpu=3000, group=URGENT, **fields):
    return [make.pod(f"g{i}", cpu, group=group, uid=f"g{i}", priority=group.priority, **fields) for i in range(count)]


def running(name, cpu, started=1.0, **fields):
    return make.pod(name, cpu, uid=name, started_s=started, **fields)


def preempts(state, pods, budgets=()):
    """Try the group by first fit without those who are less important; returns the plan."""
    imagined = Imagined(state, pods[0].group, pods)
    assert imagined.refusal == ""
    queued = QueuedGroup(pods[0], 0.0, 0.0, group=pods[0].group, members=[Member(pod, i) for i, pod in enumerate(pods)])
    attempt = GroupAttempt(imagined.state, queued, np.random.default_rng(0))
    while not attempt.outcome:
        attempt.turn(0.0)
        if (pod := attempt.pod) is not None:
            nodes = np.flatnonzero(attempt.narrow(feasible(imagined.state, pod).mask))
            attempt.place(int(nodes[0]), None, 0.0) if nodes.size else attempt.skip("")
    assert attempt.outcome == "scheduled"
    return imagined.spare(attempt.placed, budgets)


def names(plan):
    return [victim.name for victim in plan.victims]


def test_those_who_leave_room_stay_and_the_more_important_are_asked_first():
    """Nodes of 4 cores, pods of 3: a core a node is left. Of two with a core each the more important one stays.

    On the other node the older of 600m stays, and then 500m or 600m more are too much.
    """
    state = make.cluster(
        racks(2),
        r0n0=[running("low", 1000), running("high", 1000, priority=5)],
        r0n1=[
            running("old", 600, started=1.0),
            running("middle", 500, started=5.0),
            running("young", 600, started=9.0),
        ],
    )
    plan = preempts(state, members())
    assert names(plan) == ["low", "middle", "young"]
    assert plan.message == f"found a placement for podgroup, preempting {len(plan.victims)} victims"
    assert sorted(state.placements) == ["high", "low", "middle", "old", "young"], "the state is as it was"


def test_a_group_that_is_disrupted_as_a_whole_leaves_everywhere_or_nowhere():
    """Its pod on the first node has to go, and the one in the other rack goes with it."""
    whole = PodGroup("whole", whole=True)
    state = make.cluster(
        [*racks(1), make.node("far", labels={"rack": "far", HOST: "far"})],
        r0n0=[running("a", 2000, group=whole)],
        far=[running("b", 3500, group=whole), running("important", 4000 - 3500, priority=200)],
    )
    plan = preempts(state, members(1, group=PodGroup("urgent", 1, "rack", priority=100)))
    assert sorted(names(plan)) == ["a", "b"]


def test_a_single_pod_takes_a_whole_group_too():
    whole = PodGroup("whole", whole=True)
    state = make.cluster(racks(2), r0n0=[running("a", 2000, group=whole)], r0n1=[running("b", 2000, group=whole)])
    plan = preemption.plan(state, make.pod("p", 3000, priority=1))
    assert plan is not None
    assert sorted(victim.name for victim in plan.victims) == ["a", "b"]


def test_the_groups_priority_counts_for_its_pods():
    important = PodGroup("important", priority=1000)
    state = make.cluster(racks(1), r0n0=[running("a", 2000, group=important)])
    assert preemption.plan(state, make.pod("p", 3000, priority=1)) is None
    assert Imagined(state, URGENT, members()).refusal == NO_VICTIMS


def test_pods_of_a_budget_are_put_back_first():
    """One of the two has to leave; the protected one, although it is younger, stays."""
    budget = DisruptionBudget("b", selector=LabelSelector((Requirement("app", "In", ("x",)),)))
    old, young = running("old", 900, 1.0), running("young", 900, 9.0, labels={"app": "x"})
    state = make.cluster(racks(1), r0n0=[old, young])
    pods = members(1, group=PodGroup("urgent", 1, priority=100))
    assert names(preempts(state, pods)) == ["young"]
    plan = preempts(state, pods, [budget])
    assert (names(plan), plan.violations) == (["old"], 0)


def test_a_pod_that_wants_to_be_alone_is_put_back_where_nobody_looked_for_its_terms():
    """kube-scheduler skips InterPodAffinity for the group, as no pod that is left in the try has terms about it."""
    alone = Affinity(required_anti_pods=(PodAffinityTerm(HOST, LabelSelector(()), frozenset({"default"})),))
    state = make.cluster(racks(1), r0n0=[running("alone", 500, affinity=alone), running("big", 1000)])
    pods = members(1, group=PodGroup("urgent", 1, priority=100))
    assert not feasible(state, pods[0]).mask.any()
    assert "alone" not in names(preempts(state, pods))
    more = Affinity(required_anti_pods=alone.required_anti_pods)
    asked = [make.pod("g0", 3000, group=pods[0].group, uid="g0", priority=100, affinity=more)]
    assert "alone" in names(preempts(state, asked))


@pytest.mark.parametrize("policy", ["group", "pod"])
def test_who_must_not_preempt_does_not(policy):
    state = make.cluster(racks(1), r0n0=[running("a", 2000)])
    group = PodGroup("urgent", 1, priority=100, preemption_policy="Never" if policy == "group" else "")
    fields = {"preemption_policy": "Never"} if policy == "pod" else {}
    assert Imagined(state, group, members(1, group=group, **fields)).refusal == preemption.NEVER


def test_a_group_waits_while_a_victim_leaves_the_node_that_it_is_nominated_to():
    leaving = running("a", 2000, terminating=True, preempted=True)
    state = make.cluster(racks(1), r0n0=[leaving])
    group = PodGroup("urgent", 1, priority=100)
    assert Imagined(state, group, members(1, group=group, nominated_node="r0n0")).refusal == ONGOING
