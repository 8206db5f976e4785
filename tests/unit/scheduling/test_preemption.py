"""Preemption on small clusters; the order of choices is the one that Kubernetes' documentation gives."""

from dataclasses import replace

from aaml.cluster import audit
from aaml.cluster.filters import feasible
from aaml.cluster.objects import (
    Affinity,
    DisruptionBudget,
    GpuRequest,
    HostPort,
    LabelSelector,
    Pod,
    PodAffinityTerm,
    Requirement,
    Taint,
)
from aaml.cluster.state import ClusterState
from aaml.scheduling.preemption import Preemption, attempt, plan
from support import make

VIP = Pod("vip", priority=100, requests={"cpu": 3000})
WEB = LabelSelector((Requirement("app", "In", ("web",)),))


def cluster(**placed):
    """A cluster of nodes with 4 cores: name -> pods that run there."""
    return make.cluster([make.node(name, labels={"kubernetes.io/hostname": name}) for name in placed], **placed)


def small(name, priority=0, cpu=2000, **fields):
    return Pod(name, priority=priority, requests={"cpu": cpu}, started_s=fields.pop("started_s", 100.0), **fields)


def chosen(state, pod=VIP, budgets=()):
    found = plan(state, pod, budgets)
    return None if found is None else (found.node_name, [victim.name for victim in found.victims])


def test_only_as_many_leave_as_must_and_the_most_important_stay():
    state = cluster(a=[small("low", 1, 1000), small("mid", 2, 1000), small("high", 3, 1000), small("other", 4, 1000)])
    # 3 of 4 cores are needed: only one of 1 core can stay.
    assert chosen(state) == ("a", ["high", "mid", "low"])
    assert chosen(state, replace(VIP, requests={"cpu": 1000})) == ("a", ["low"])


def test_of_equal_priority_the_longest_running_stays():
    state = cluster(a=[small("new", started_s=20.0), small("old", started_s=10.0)])
    assert chosen(state, replace(VIP, requests={"cpu": 2000})) == ("a", ["new"])


def test_equally_important_pods_are_never_victims():
    state = cluster(a=[small("p", 100), small("q", 100)])
    assert attempt(state, VIP).message == "0/1 nodes are available: 1 No preemption victims found for incoming pod."


def test_policy_never():
    state = cluster(a=[small("p"), small("q")])
    result = attempt(state, replace(VIP, preemption_policy="Never"))
    assert result.preemption is None
    assert feasible(state, VIP).message(result.message) == (
        "0/1 nodes are available: 1 Insufficient cpu. preemption: not eligible due to preemptionPolicy=Never."
    )


def test_nothing_is_changed():
    state = cluster(a=[small("p"), small("q")])
    generation, placements = state.generation, dict(state.placements)
    assert plan(state, VIP) is not None
    assert state.generation == generation
    assert state.placements == placements
    audit.check(state)


def test_node_with_fewest_broken_budgets():
    budget = DisruptionBudget("web", selector=WEB, disruptions_allowed=0)
    state = cluster(a=[small("w", -5, 4000, labels={"app": "web"})], b=[small("x", 5, 4000)])
    assert chosen(state) == ("a", ["w"])
    assert chosen(state, budgets=[budget]) == ("b", ["x"])
    assert chosen(state, budgets=[replace(budget, namespace="other")]) == ("a", ["w"])
    assert chosen(state, budgets=[replace(budget, disruptions_allowed=1)]) == ("a", ["w"])
    assert chosen(state, budgets=[replace(budget, disrupted=frozenset({"w"}))]) == ("a", ["w"])
    assert chosen(state, budgets=[replace(budget, selector=LabelSelector())]) == ("a", ["w"])


def test_budgets_are_used_up_pod_by_pod():
    budget = DisruptionBudget("web", selector=WEB, disruptions_allowed=1)
    pods = [small(f"w{number}", number, 2000, labels={"app": "web"}) for number in range(2)]
    # Both must leave; the budget covers one of them.
    assert plan(cluster(a=pods), replace(VIP, requests={"cpu": 4000}), [budget]) == Preemption(
        "a", tuple(replace(pod, node_name="a") for pod in reversed(pods)), violations=1
    )


def test_a_pod_that_would_break_a_budget_is_spared_before_more_important_ones():
    budget = DisruptionBudget("web", selector=WEB, disruptions_allowed=0)
    state = cluster(a=[small("w", 0, labels={"app": "web"}), small("x", 50)])
    assert chosen(state, replace(VIP, requests={"cpu": 2000})) == ("a", ["w"])
    assert chosen(state, replace(VIP, requests={"cpu": 2000}), [budget]) == ("a", ["x"])


def test_then_the_lowest_highest_priority():
    state = cluster(a=[small("p", 5, 4000)], b=[small("q", 3), small("r", 3)])
    assert chosen(state) == ("b", ["q", "r"])


def test_then_the_lowest_sum_and_fewest_victims():
    state = cluster(a=[small("p", 5), small("q", 4)], b=[small("r", 5), small("s", 3)])
    assert chosen(state) == ("b", ["r", "s"])
    state = cluster(a=[small("p", -5), small("q", -5)], b=[small("r", -5, 4000)])
    assert chosen(state) == ("b", ["r"])


def test_then_the_latest_start_of_the_most_important_victims():
    state = cluster(a=[small("p", 5, 4000, started_s=10.0)], b=[small("q", 5, 4000, started_s=20.0)])
    assert chosen(state) == ("b", ["q"])


def test_nodes_that_no_preemption_cures():
    state = cluster(a=[small("p"), small("q")])
    state.upsert_node(make.node("small", 1000))
    state.upsert_node(make.node("tainted", taints=(Taint("t"),)))
    assert chosen(state) == ("a", ["p", "q"])
    result = attempt(state, replace(VIP, priority=0))
    assert result.message == (
        "0/3 nodes are available: 1 No preemption victims found for incoming pod, "
        "2 Preemption is not helpful for scheduling."
    )


def test_a_node_where_the_more_important_pods_alone_are_too_many():
    state = cluster(a=[small("p", 200), small("q", 0)])
    assert attempt(state, VIP).message == "0/1 nodes are available: 1 Insufficient cpu."


def test_ports_and_anti_affinity_are_made_free():
    state = cluster(a=[small("p", 0, 100, host_ports=(HostPort(80),)), small("q", 0, 100)])
    assert chosen(state, Pod("vip", priority=1, host_ports=(HostPort(80),))) == ("a", ["p"])
    term = PodAffinityTerm("kubernetes.io/hostname", WEB, frozenset({"default"}))
    state = cluster(a=[small("p", 0, 100, labels={"app": "web"}), small("q", 0, 100)])
    assert chosen(state, Pod("vip", priority=1, affinity=Affinity(required_anti_pods=(term,)))) == ("a", ["p"])


def test_devices_are_made_free():
    state = make.cluster([make.node("a", gpus=2)])
    for number, (uid, milli) in enumerate([("p", 700), ("q", 600)]):
        state.upsert_pod(Pod(uid, gpu=GpuRequest(1, milli), priority=number, node_name="a"), gpus=(number,))
    # Without p its device has 1000 thousandths; without q, the other one: the less important one leaves.
    assert chosen(state, Pod("vip", priority=9, gpu=GpuRequest(1, 900))) == ("a", ["p"])


def test_a_pod_that_is_deleted_by_somebody_else_does_not_make_the_nominated_pod_wait():
    """kube-scheduler waits only for pods with the condition DisruptionTarget and the reason PreemptionByScheduler."""
    state = cluster(a=[small("p", terminating=True), small("q")])
    assert chosen(state, replace(VIP, nominated_node="a")) == ("a", ["p", "q"])


def test_the_pod_waits_while_victims_leave_its_nominated_node():
    state = cluster(a=[small("p", terminating=True, preempted=True), small("q")], b=[small("r"), small("s")])
    pod = replace(VIP, nominated_node="a")
    result = attempt(state, pod)
    assert result.preemption is None
    assert result.message == "not eligible due to a terminating pod on the nominated node."
    # Room for it can never be made on a node that has become too small: it may look elsewhere.
    state.upsert_node(make.node("a", 1000))
    assert chosen(state, pod) == ("b", ["r", "s"])


def test_more_important_nominated_pods_keep_the_room_made_for_them():
    state = cluster(a=[small("p", 0, 2000), small("q", 0, 2000)])
    state.nominate(Pod("king", priority=1000, requests={"cpu": 2000}), "a")
    assert attempt(state, VIP).message == "0/1 nodes are available: 1 Insufficient cpu."
    assert chosen(state, replace(VIP, requests={"cpu": 2000})) == ("a", ["p", "q"])


def test_less_important_nominated_pods_are_withdrawn():
    state = cluster(a=[small("p", 0, 4000)])
    squire = Pod("squire", priority=10, requests={"cpu": 4000})
    state.nominate(squire, "a")
    assert plan(state, VIP).withdrawn == (squire,)


def test_an_empty_cluster():
    result = attempt(ClusterState(), VIP)
    assert result.preemption is None
