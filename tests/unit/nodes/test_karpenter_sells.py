"""Karpenter's disruption: which nodes may go, in which order, for what, and what happens to a plan. Counted by hand."""

import pytest

from aaml.nodes.catalogue import Catalogue, Offering
from aaml.nodes.karpenter import Karpenter
from aaml.nodes.ports import Delete, Provision, Replace
from aaml.nodes.settings import KarpenterSettings
from support.nodes_to_buy import CATALOGUE, LARGE, MEDIUM, SMALL, Moment, kind, pod

ALL = ("100%",)


def seller(catalogue=CATALOGUE, **settings):
    given = {"consolidate_after_s": 15.0, "budgets": ALL, **settings}
    return Karpenter(KarpenterSettings(**given), catalogue, 1000.0)


def decided(moment, buyer=None, after_s=15.0):
    """Return the orders after a look at 1000 s and a second one `after_s` later."""
    buyer = buyer or seller()
    assert buyer.act(moment.at(1000.0)) == []
    return buyer.act(moment.at(1000.0 + after_s))


def test_empty_nodes_go_after_a_look_and_a_second_look_fifteen_seconds_later():
    moment, buyer = Moment().node("a").node("b").node("c", SMALL, [pod("p", 2)]), seller()
    assert buyer.act(moment.at(1000.0)) == []
    assert buyer.next_s == 1015.0
    assert buyer.act(moment.at(1014.0)) == []
    assert buyer.act(moment.at(1015.0)) == [Delete(("a", "b"))]


def test_of_empty_nodes_those_go_that_are_still_empty():
    moment, buyer = Moment().node("a").node("b"), seller()
    buyer.act(moment.at(1000.0))
    moment.seen.pods["a"] = {"p": pod("p")}
    assert buyer.act(moment.at(1015.0)) == [Delete(("b",))]


@pytest.mark.parametrize(("since_s", "goes"), [(985.0, True), (985.9, True), (986.0, False)])
def test_every_pod_event_on_a_node_starts_its_time_anew_in_whole_seconds(since_s, goes):
    moment, buyer = Moment().node("a", last_pod_event_s=since_s), seller()
    buyer.act(moment.at(1000.0))
    assert buyer.act(moment.at(1015.0)) == ([Delete(("a",))] if goes else [])


def test_a_node_that_never_had_a_pod_counts_from_when_it_was_ready():
    assert decided(Moment().node("a", initialized_s=980.0, last_pod_event_s=None)) == [Delete(("a",))]
    moment, buyer = Moment().node("a", initialized_s=990.0, last_pod_event_s=None), seller()
    assert decided(moment, buyer) == []


def test_nodes_never_go_where_consolidation_is_off():
    assert decided(Moment().node("a"), seller(consolidate_after_s=None)) == []


@pytest.mark.parametrize(("nodes", "budget", "go"), [(10, "10%", 1), (11, "10%", 2), (10, "3", 3), (10, "0", 0)])
def test_a_budget_is_a_number_or_a_share_rounded_up(nodes, budget, go):
    moment = Moment()
    for number in range(nodes):
        moment.node(f"n{number}")
    orders = decided(moment, seller(budgets=(budget,)))
    assert sum(len(order.names) for order in orders) == go


def test_the_least_of_several_budgets_counts_less_what_is_on_its_way_out():
    moment = Moment().node("out", deleting=True)
    for number in range(9):
        moment.node(f"n{number}")
    assert len(decided(moment, seller(budgets=("50%", "3")))[0].names) == 2


def test_nodes_that_are_not_ready_count_for_no_budget_and_do_not_go():
    moment = Moment()
    for number in range(30):
        moment.node(f"new{number}", ready=False)
    assert decided(moment.node("a").node("b"), seller(budgets=("10%",))) == [Delete(("a",))]


def test_a_node_kept_for_pods_that_were_packed_on_it_does_not_go_for_twenty_seconds():
    moment, buyer = Moment(990.0).node("a", LARGE), seller()
    buyer.act(moment.waits(pod("p")).at(990.0))
    assert buyer.act(moment.at(991.0)) == [], "the pod has room on the node, which is nominated until 1011"
    moment.seen.waiting.clear()
    buyer.act(moment.at(1000.0))
    assert buyer.act(moment.at(1010.0)) == []
    buyer.act(moment.at(1020.0))
    assert buyer.act(moment.at(1035.0)) == [Delete(("a",))]


def test_of_two_half_empty_nodes_the_dearer_goes_where_its_pods_have_room_on_the_other():
    moment = Moment().node("a", SMALL, [pod("p", 1)]).node("b", MEDIUM, [pod("q", 1)])
    assert decided(moment) == [Delete(("b",))], "1.9 for one pod comes before 1.0 for one pod"


def test_nodes_come_in_the_order_of_their_price_for_each_thing_that_is_disturbed():
    # 3.6 / (1 + 3 pods) = 0.9 comes after 1.9 / (1 + 1 pod) = 0.95
    moment = Moment().node("a", LARGE, [pod(f"p{i}", 0.1) for i in range(3)]).node("b", MEDIUM, [pod("q", 0.1)])
    assert decided(moment, seller(budgets=("1",))) == [Delete(("b",))]


def test_a_pod_of_priority_counts_more():
    # 2^25 of priority is one pod more: 3.6 / (1 + 2) = 1.2 comes before 1.9 / 2 without, and after with four times that
    pods = [pod("p", 0.1, priority=4 << 25)]
    moment = Moment().node("a", LARGE, pods).node("b", MEDIUM, [pod("q", 0.1)])
    assert decided(moment, seller(budgets=("1",))) == [Delete(("b",))]


def test_a_pod_that_may_not_be_disrupted_for_a_time_keeps_its_node_until_then():
    moment = Moment().node("a", SMALL, [pod("p", 1, do_not_disrupt=True)]).node("b", LARGE, [pod("q", 7)])
    moment.seen.released_s = {"p": 1000.5}
    assert decided(moment) == []
    moment.seen.released_s = {"p": 1000.0}
    assert decided(moment) == [Delete(("a",))]


def test_a_pod_that_may_not_be_disrupted_keeps_its_node():
    moment = Moment().node("a", LARGE, [pod("p", 0.1, do_not_disrupt=True)]).node("b", LARGE, [pod("q", 7.95)])
    assert decided(moment) == []
    moment = Moment().node("a", LARGE, [pod("p", 0.1)]).node("b", LARGE, [pod("q", 7.95)])
    moment.seen.blocked = frozenset({"p"})
    assert decided(moment) == [], "a disruption budget keeps it, too"


def test_running_pods_are_not_moved_to_nodes_that_are_busy_or_not_ready():
    moment = Moment().node("a", SMALL, [pod("p", 2)]).node("busy", LARGE, last_pod_event_s=999.0)
    assert decided(moment, seller(Catalogue((SMALL, LARGE)))) == []
    moment = Moment().node("a", SMALL, [pod("p", 2)]).node("new", LARGE, ready=False)
    assert decided(moment, seller(Catalogue((SMALL, LARGE)))) == []


def test_a_node_is_replaced_where_a_cheaper_type_does():
    moment = Moment().node("a", LARGE, [pod("p", 3)])
    assert decided(moment) == [Replace(("a",), (MEDIUM,))], "not the same type, and no smaller one has room"


def test_a_node_of_the_cheapest_type_that_does_is_left_alone():
    moment, buyer = Moment().node("a", MEDIUM, [pod("p", 3)]), seller()
    assert buyer.act(moment.at(1000.0)) == []
    assert buyer.next_s == 1010.0, "nothing was found: the next look is after ten seconds"


def test_a_node_is_not_replaced_by_two():
    dear = kind("dear", 16, 30.0)
    moment = Moment().node("a", dear, [pod("p", 8), pod("q", 8)])
    assert decided(moment, seller(Catalogue((SMALL, MEDIUM, LARGE, dear)))) == []


def test_an_empty_node_that_gets_a_pod_is_replaced_by_what_is_right_for_that_pod():
    moment, buyer = Moment().node("a", LARGE), seller()
    buyer.act(moment.at(1000.0))
    moment.seen.pods["a"] = {"p": pod("p", 3)}
    assert buyer.act(moment.at(1015.0)) == [], "it is empty no more: another plan for the same node"
    assert buyer.act(moment.at(1030.0)) == [Replace(("a",), (MEDIUM,))]


def test_as_many_of_the_first_nodes_go_at_once_as_one_that_costs_less_can_stand_in_for():
    # Three small nodes (3.0) with 1.5 cores each: 4.5 cores need a large one (3.6). Two (2.0): 3 cores, a medium (1.9).
    moment = Moment().node("a", SMALL, [pod("p", 1.5)]).node("b", SMALL, [pod("q", 1.5)])
    assert decided(moment) == [Replace(("a", "b"), (MEDIUM,))]
    moment.node("c", SMALL, [pod("r", 1.5)])
    assert decided(moment) == [Replace(("a", "b"), (MEDIUM,))]


def test_several_nodes_are_not_replaced_by_a_type_that_one_of_them_has():
    # a (medium) and b (small) with one core each would fit a small node, but then b had better stay: a alone goes.
    moment = Moment().node("a", MEDIUM, [pod("p", 1)]).node("b", SMALL, [pod("q", 1)])
    assert decided(moment, seller(Catalogue((SMALL, MEDIUM)))) == [Delete(("a",))]


def test_only_empty_nodes_go_with_when_empty():
    moment = Moment().node("a", LARGE, [pod("p", 1)]).node("b", LARGE, [pod("q", 1)])
    buyer = seller(consolidation_policy="WhenEmpty")
    assert decided(moment, buyer) == []
    assert decided(moment.node("c"), seller(consolidation_policy="WhenEmpty")) == [Delete(("c",))]


def test_balanced_wants_a_share_of_the_savings_that_is_half_the_share_of_what_is_disturbed():
    # Deleting a (3.6 of 5.5) disturbs 2 of 4: 0.65 >= 0.5 / 2. Deleting b with nine pods, 10 of 12: 0.35 < 0.83 / 2.
    moment = Moment().node("a", LARGE, [pod("p", 1)]).node("b", MEDIUM, [pod("q", 0.1)])
    assert decided(moment, seller(consolidation_policy="Balanced", budgets=("1",))) == [Delete(("a",))]
    crowd = [pod(f"q{number}", 0.1) for number in range(9)]
    moment = Moment().node("a", LARGE, [pod("p", 7, do_not_disrupt=True)]).node("b", MEDIUM, crowd)
    assert decided(moment, seller(budgets=("1",))) == [Delete(("b",))]
    assert decided(moment, seller(consolidation_policy="Balanced", budgets=("1",))) == []


def test_a_plan_is_dropped_where_a_node_has_become_busy_and_the_next_method_looks():
    moment, buyer = Moment().node("a", SMALL, [pod("p", 1)]).node("b", LARGE, [pod("q", 1)]), seller()
    buyer.act(moment.at(1000.0))
    moment.seen.nodes["b"].last_pod_event_s = 1010.0
    assert buyer.act(moment.at(1015.0)) == []
    assert buyer.next_s == 1025.0, "it was the last method: the next look is after ten seconds"


def test_a_replacement_is_dropped_where_its_type_does_not_do_any_more():
    moment, buyer = Moment().node("a", LARGE, [pod("p", 3)]), seller()
    buyer.act(moment.at(1000.0))
    moment.seen.pods["a"]["q"] = pod("q", 2)
    assert buyer.act(moment.at(1015.0)) == [], "five cores need a large node again"


def test_after_an_order_the_next_look_is_at_once():
    moment, buyer = Moment().node("a").node("b"), seller(budgets=("1",))
    buyer.act(moment.at(1000.0))
    assert buyer.act(moment.at(1015.0)) == [Delete(("a",))]
    assert buyer.next_s == 1015.0
    del moment.seen.nodes["a"]
    assert buyer.act(moment.at(1015.0)) == []
    assert buyer.next_s == 1030.0, "b is empty too, and looked at again fifteen seconds later"


def test_spot_takes_the_place_of_on_demand_and_not_of_spot_unless_asked():
    both = [
        kind(f"k{size}", size, 0.0, offerings=(Offering(1.0 * size), Offering(0.4 * size, "spot"))) for size in (2, 4)
    ]
    catalogue = Catalogue(tuple(both))
    moment = Moment().node("a", both[1].of(("on-demand",)), [pod("p", 1)])
    (order,) = decided(moment, seller(catalogue))
    assert {offering.capacity_type for each in order.types for offering in each.offerings} == {"spot"}
    moment = Moment().node("a", both[1], [pod("p", 1)])
    assert moment.seen.nodes["a"].offering.capacity_type == "spot"
    assert decided(moment, seller(catalogue)) == []
    assert decided(moment, seller(catalogue, spot_to_spot_consolidation=True)) == [], "fifteen cheaper types are needed"


def test_what_waits_is_bought_for_before_nodes_are_looked_at():
    moment, buyer = Moment(999.0).node("a", SMALL, [pod("x", 2)]), seller()
    buyer.act(moment.waits(pod("p", 3)).at(999.0))
    assert buyer.act(moment.at(1000.0)) == [Provision((MEDIUM, LARGE))]


def test_multi_node_consolidation_takes_at_most_101_nodes():
    """Karpenter says 100, and searches the prefixes [0..100]."""
    moment, prices = Moment(), Catalogue((SMALL, kind("vast", 400, 40.0)))
    for number in range(130):
        moment.node(f"n{number:03}", SMALL, [pod(f"p{number}", 2, priority=number)])
    orders = decided(moment, seller(prices))
    assert [len(order.names) for order in orders] == [101]


def test_the_nodes_are_kept_on_which_a_plans_pods_had_room_when_it_was_made():
    guarded = {"do_not_disrupt": True}
    moment, buyer = Moment().node("a", SMALL, [pod("p")]).node("b", SMALL, [pod("q", **guarded)]), seller()
    buyer.act(moment.node("c", SMALL, [pod("r", **guarded)]).at(1000.0))
    moment.seen.pods["b"]["s"] = pod("s")
    assert buyer.act(moment.at(1015.0)) == [Delete(("a",))], "b is full by now, but c has room"
    assert buyer.nominated_s == {"b": 1035.0}
