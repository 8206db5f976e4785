"""Nodes that come and go in a simulated cluster: what they cost, when they take pods, and that no pod is lost."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from aaml.cluster.objects import PodGroup
from aaml.errors import UserError
from aaml.nodes.budgets import PodBudget, allowed_evictions, stuck_pods
from aaml.nodes.node_policy import NodePolicy
from aaml.nodes.ports import Delete, Provision, Replace
from aaml.nodes.settings import ClusterAutoscalerSettings, KarpenterSettings, NodeTimes, Prices
from aaml.policies.registry import make_policy
from aaml.scheduling.play import play
from aaml.sim.cluster import SimCluster
from aaml.sim.recorded_bill import under
from aaml.sim.supply import NodeSupply
from aaml.sim.tasks import find_task
from aaml.sim.timeline import DeletePod
from aaml.workload.model import Workload
from support.nodes_to_buy import CATALOGUE, SMALL, pod

EXACT = NodeTimes(registration_delay_s=20.0, initialization_s=0.0, initialization_spread_s=0.0)


class Script:
    """An autoscaler that gives orders at fixed times; a name stands for the node that was bought as number so many."""

    def __init__(self, *orders):
        self.left = sorted(orders, key=lambda each: each[0])
        self.next_s = self.left[0][0] if self.left else float("inf")

    def act(self, seen):
        if seen.now_s < self.next_s:
            return []
        _, order = self.left.pop(0)
        self.next_s = self.left[0][0] if self.left else float("inf")
        return [order(list(seen.nodes))] if callable(order) else [order]

    def copy(self):
        return Script(*self.left)


def simulated(pods, *orders, until_s=200.0, times=EXACT, timeline=(), policy=None, **options):
    supply = NodeSupply(Script(*orders), CATALOGUE, np.random.default_rng(1), times=times, **options)
    cluster = SimCluster(
        (), Workload(tuple(pods)), until_s=until_s, timeline=timeline, supply=supply, invariants=True
    )  # fmt: skip
    play(cluster, policy or make_policy("first-fit"))
    return cluster, cluster.metrics()


def test_a_node_costs_from_its_purchase_and_takes_pods_once_it_is_ready():
    cluster, told = simulated([pod("p", 1, lifetime_s=60.0)], (10.0, Provision((SMALL,))))
    assert told["waiting_mean_s"] == 30.0
    assert told["departed"] == 1
    assert told["bill"] == pytest.approx(190 / 200), "1 dollar an hour for 190 of 200 s"
    assert told["bill_per_core_hour"] == pytest.approx(190 / 60)
    assert len(cluster.state) == 1


def test_the_cheapest_of_several_types_is_bought():
    cluster, _ = simulated([], (0.0, Provision(tuple(reversed(CATALOGUE.types)))))
    assert cluster.state.nodes[0].labels["node.kubernetes.io/instance-type"] == "small"


def test_a_deleted_node_is_paid_until_its_pods_are_gone_and_for_five_seconds_at_least():
    _, told = simulated([], (0.0, Provision((SMALL,))), (100.0, lambda names: Delete((names[0],))))
    assert told["bill"] == pytest.approx(105 / 200)
    kept = pod("p", 1, lifetime_s=120.0, do_not_disrupt=True)
    _, told = simulated([kept], (0.0, Provision((SMALL,))), (100.0, lambda names: Delete((names[0],))))
    assert told["bill"] == pytest.approx(140 / 200), "the pod runs from 20 to 140 s"
    assert told["evicted"] == 0


def test_a_pod_that_may_not_be_disrupted_for_a_time_is_evicted_once_that_is_over():
    kept = pod("p", 1, do_not_disrupt=True, do_not_disrupt_s=60.5)  # from 20.3 s on, which is 20 s to the API server
    late = NodeTimes(registration_delay_s=20.3, initialization_s=0.0, initialization_spread_s=0.0)
    orders = (0.0, Provision((SMALL,))), (50.0, lambda names: Delete((names[0],)))
    _, told = simulated([kept], *orders, times=late)
    assert (told["bill"], told["evicted"]) == (pytest.approx(80.5 / 200), 1)
    _, told = simulated([kept], *orders, times=late, until_s=80.0)
    assert (told["bill"], told["evicted"]) == (pytest.approx(1.0), 0)
    _, told = simulated([kept], orders[0], (100.0, orders[1][1]), times=late)
    assert told["bill"] == pytest.approx(105 / 200), "it is as any other by then"


def tried(times, *pods, until_s):
    """Play pods on a node that is bought at 3 s and has room for one of them; return rejections, and who ran when."""
    cluster, _ = simulated(pods, (3.0, Provision((SMALL,))), until_s=until_s, times=times)
    ran = {each.pod.name: round(each.since_s, 6) for each in cluster.state.placements.values()}
    return cluster.journal.counts["rejected"], ran


def test_a_node_that_joins_in_steps_lets_pods_be_tried_in_vain():
    pods = [pod(name, 2, created_s=at_s) for name, at_s in (("a", 0.0), ("b", 1.0), ("c", 2.0))]
    assert tried(EXACT, *pods, until_s=30.0) == (3 + 2, {"a": 23.0}), "as each comes, and two once the node is there"
    stepped = replace(EXACT, join_step_s=0.1)
    assert tried(stepped, *pods, until_s=30.0) == (3 + 3 + 3 + 2, {"a": 23.0}), "all of them at two steps before, too"


def test_tries_that_take_time_are_overtaken_by_the_next_step():
    # a is tried at 22.8 s, b at 22.95 s. At 23.1 s, with the node there, c has waited longest since its last try.
    pods = [pod(name, 2, created_s=at_s) for name, at_s in (("a", 0.0), ("b", 1.0), ("c", 2.0))]
    slow = replace(EXACT, join_step_s=0.1, failed_try_s=0.15)
    assert tried(slow, *pods, until_s=30.0)[1].keys() == {"c"}


def test_who_waits_behind_a_pod_that_fits_nowhere_waits_for_its_try():
    behind = [pod("large", 9, created_s=30.0), pod("p", 1, created_s=30.0)]
    times = replace(EXACT, failed_try_s=0.5)
    assert tried(EXACT, *behind, until_s=60.0) == (1, {"p": 30.0})
    assert tried(times, *behind, until_s=60.0) == (1, {"p": 30.5})
    assert tried(times, *reversed(behind), until_s=60.0) == (1, {"p": 30.0})
    assert tried(times, *behind, until_s=30.2) == (1, {}), "the end comes first"


def test_a_service_that_is_evicted_runs_for_what_was_left_and_a_job_from_the_start():
    orders = (0.0, Provision((SMALL,))), (50.0, Provision((SMALL,))), (100.0, lambda names: Delete((names[0],)))
    service = pod("p", 1, lifetime_s=90.0)  # from 20 to 100 s, then the other ten from 101.2 s on
    cluster, told = simulated([service], *orders, until_s=111.0)
    assert (told["evicted"], told["departed"]) == (1, 0)
    cluster, told = simulated([service], *orders, until_s=112.0)
    assert told["departed"] == 1
    job = pod("p", 1, lifetime_s=90.0, owner="Job/p")
    _, told = simulated([job], *orders, until_s=191.0)
    assert told["departed"] == 0
    _, told = simulated([job], *orders, until_s=192.0)
    assert told["departed"] == 1
    assert told["waiting_mean_s"] == pytest.approx(20.0), "made anew after 1.2 s, it finds room at once"
    assert not cluster.state.placements


def test_a_pod_without_an_owner_is_lost_and_counted():
    bare = pod("p", 1, owner="")
    cluster, told = simulated([bare], (0.0, Provision((SMALL,))), (100.0, lambda names: Delete((names[0],))))
    assert (told["evicted"], told["lost"], told["pending"]) == (1, 1, 0)
    assert not cluster.state.placements


def test_a_node_is_replaced_once_the_other_is_ready():
    moved = pod("p", 1)
    cluster, told = simulated(
        [moved], (0.0, Provision((SMALL,))), (100.0, lambda names: Replace((names[0],), (SMALL,)))
    )
    # The old one until 120 + 5 s, the new one from 100 s on.
    assert told["bill"] == pytest.approx((125 + 100) / 200)
    assert told["evicted"] == 1
    assert [each.since_s for each in cluster.state.placements.values()] == [121.2]


def test_a_pod_stops_after_its_grace():
    times = NodeTimes(initialization_s=0.0, initialization_spread_s=0.0, grace_s=30.0)
    _, told = simulated(
        [pod("p", 1)], (0.0, Provision((SMALL,))), (100.0, lambda names: Delete((names[0],))), times=times
    )
    assert told["bill"] == pytest.approx(130 / 200)


def test_a_deleted_pod_is_not_made_anew():
    orders = (0.0, Provision((SMALL,))), (100.0, lambda names: Delete((names[0],)))
    cluster, told = simulated([pod("p", 1)], *orders, timeline=[DeletePod(100.5, "p")])
    assert (told["evicted"], told["pending"], told["deleted"]) == (1, 0, 1)
    assert not cluster.state.placements


def test_a_disruption_budget_lets_pods_go_one_after_another():
    web = [pod(f"web-{number}", 0.5, labels={"app": "web"}) for number in range(2)]
    budget = PodBudget({"app": "web"}, max_unavailable=1)
    orders = (0.0, Provision((SMALL,))), (50.0, Provision((SMALL,))), (100.0, lambda names: Delete((names[0],)))
    cluster, told = simulated(web, *orders, budgets=[budget])
    # The second goes when the first runs elsewhere and it is tried again, after five seconds.
    assert sorted(each.since_s for each in cluster.state.placements.values()) == [101.2, 106.2]
    assert told["evicted"] == 2


@pytest.mark.parametrize(
    ("budget", "running", "missing", "allowed"),
    [
        ({"max_unavailable": 1}, 3, 0, 1),
        ({"max_unavailable": 1}, 2, 1, 0),
        ({"max_unavailable": "50%"}, 3, 0, 2),  # rounded up
        ({"min_available": 2}, 3, 0, 1),
        ({"min_available": "100%"}, 3, 0, 0),
        ({"max_unavailable": 0}, 3, 0, 0),
    ],
)
def test_what_a_disruption_budget_allows(budget, running, missing, allowed):
    pods = [pod(f"p{number}", labels={"app": "web"}) for number in range(running + missing)]
    mine = [PodBudget({"app": "web"}, **budget)]
    assert allowed_evictions(mine, pods[0], pods[:running], pods[running:]) == allowed
    assert allowed_evictions(mine * 2, pods[0], pods[:running], []) == 0, "Kubernetes takes one budget for a pod"
    assert allowed_evictions(mine, pod("other"), pods, []) == float("inf")


def test_a_disruption_budget_says_one_thing():
    with pytest.raises(UserError, match="expected max_unavailable or min_available, and not both"):
        PodBudget({}, max_unavailable=1, min_available=1)


def test_waits_beyond_the_target_and_evictions_have_their_price():
    orders = (40.0, Provision((SMALL,))), (100.0, lambda names: Delete((names[0],)))
    _, told = simulated(
        [pod("p", 1, lifetime_s=35.0)], *orders, until_s=3600.0,
        prices=Prices(wait_target_s=24.0, wait_per_hour=10.0, eviction=0.5),
    )  # fmt: skip
    assert told["cost"] - told["bill"] == pytest.approx(10.0 * 36 / 3600), "60 s of waiting, 24 of them free"
    _, told = simulated([pod("p", 1)], (0.0, Provision((SMALL,))), (100.0, lambda names: Delete((names[0],))),
                        until_s=110.0, prices=Prices(wait_target_s=600.0, eviction=0.5))  # fmt: skip
    assert told["cost"] - told["bill"] == pytest.approx(0.5 * 3600 / 110)


def test_pods_that_no_autoscaler_here_understands_are_refused():
    with pytest.raises(UserError, match="default/p: it has a gang; simulated autoscalers take"):
        simulated([pod("p", group=PodGroup("g", 2))])
    with pytest.raises(ValueError, match="needs until_s"):
        simulated([], until_s=float("inf"))


@pytest.mark.parametrize("task", ["bill", "bill-when-empty", "bill-cluster-autoscaler"])
def test_no_pod_is_lost_whatever_nodes_do(task):
    cluster = find_task(task).build(7, 6, invariants=True)
    play(cluster, make_policy("kube-scheduler"))
    told, journal = cluster.metrics(), cluster.journal
    running, waiting = cluster.state.placements.keys(), journal.waiting_since_s.keys()
    made_anew = cluster._supply._later.values()
    everyone = Counter([*running, *waiting, *(each.uid for each in made_anew)])
    assert told["arrived"] == told["departed"] + sum(everyone.values()) == len(cluster.workload)
    assert max(everyone.values(), default=1) == 1
    assert told["lost"] == 0
    if task != "bill-when-empty":
        assert told["evicted"] > 0


def test_the_same_seed_gives_the_same_bits():
    runs = []
    for _ in range(2):
        cluster = find_task("bill").build(11, 5)
        play(cluster, make_policy("kube-scheduler-packing"))
        runs.append(dict(cluster.metrics()))
    assert runs[0] == runs[1]


@pytest.mark.parametrize("task", ["bill", "bill-cluster-autoscaler"])
def test_a_fork_goes_on_alike(task):
    cluster, policy = find_task(task).build(11, 5), make_policy("first-fit")
    play(cluster, policy, max_decisions=60)
    twin = cluster.fork()
    play(twin, policy)
    play(cluster, policy)
    assert dict(twin.metrics()) == dict(cluster.metrics())
    assert twin.state.names == cluster.state.names
    assert twin.metrics()["nodes_bought"] > 5


@pytest.mark.parametrize(
    ("limits", "stuck"),
    [
        ([{"max_unavailable": 0}], True),
        ([{"max_unavailable": "0%"}], True),
        ([{"min_available": "100%"}], True),
        ([{"min_available": 9}], False),  # the rest may be more, one day
        ([{"max_unavailable": 1}] * 2, True),
        ([], False),
    ],
)
def test_a_pod_is_stuck_where_no_state_of_the_others_lets_it_go(limits, stuck):
    web = pod("web", labels={"app": "web"})
    budgets = [PodBudget({"app": "web"}, **limit) for limit in limits]
    assert stuck_pods(budgets, [web, pod("other")]) == ({"web"} if stuck else set())


@pytest.mark.parametrize("buyer", [KarpenterSettings(), ClusterAutoscalerSettings(), NodePolicy()])
def test_no_node_is_bought_and_no_room_kept_for_a_pod_that_requests_what_no_type_names(buyer):
    def bought(*pods):
        supply = under(find_task("bill"), buyer).supply(np.random.default_rng(1), CATALOGUE)
        cluster = SimCluster((), Workload(tuple(pods)), until_s=600.0, supply=supply, invariants=True)
        play(cluster, make_policy("first-fit"))
        told = cluster.metrics()
        return told["nodes_bought"], {each.pod.name for each in cluster.state.placements.values()}

    plain = [pod(name, 1, lifetime_s=None) for name in ("a", "b")]
    strange = [replace(pod(f"s{n}", 1), requests={**plain[0].requests, "ephemeral-storage": 1}) for n in range(3)]
    assert not CATALOGUE.fits(strange[0]).any()
    assert CATALOGUE.lacking(strange[0]) == "ephemeral-storage"
    assert bought(*strange) == (0, set())
    assert bought(*strange, *plain) == bought(*plain)
