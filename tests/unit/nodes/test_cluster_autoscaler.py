"""The Cluster Autoscaler's rule: groups of one type, expanders, nodes that were idle for long enough. By hand."""

import pytest

from aaml.cluster.objects import HOSTNAME_LABEL, Affinity, LabelSelector, PodAffinityTerm, WeightedPodAffinityTerm
from aaml.nodes.cluster_autoscaler import ClusterAutoscaler
from aaml.nodes.ports import Delete, Provision
from aaml.nodes.settings import ClusterAutoscalerSettings
from support.nodes_to_buy import CATALOGUE, LARGE, MEDIUM, SMALL, Moment, pod


def scaler(**settings):
    given = {"scale_down_unneeded_time_s": 60.0, "scale_down_delay_after_add_s": 0.0, **settings}
    return ClusterAutoscaler(ClusterAutoscalerSettings(**given), CATALOGUE, 1000.0)


@pytest.mark.parametrize(
    ("pods", "bought"),
    [
        ([2], [SMALL]),  # nothing is wasted
        ([3], [MEDIUM]),
        ([2, 2, 2], [SMALL, SMALL, SMALL]),
        ([5, 3], [LARGE]),
        ([9], []),
    ],
)
def test_the_group_grows_that_leaves_the_least_unused(pods, bought):
    moment = Moment().waits(*(pod(f"p{number}", cores, gib=4 * cores) for number, cores in enumerate(pods)))
    assert scaler().act(moment.at(1000.0)) == [Provision((kind,)) for kind in bought]


def test_a_preference_makes_no_group_grow():
    about = PodAffinityTerm(HOSTNAME_LABEL, LabelSelector(), frozenset({"default"}))
    lonely = Affinity(preferred_pods=(WeightedPodAffinityTerm(-100, about),))
    moment = Moment().waits(*(pod(name, 1, gib=4, affinity=lonely) for name in "pq"))
    assert scaler().act(moment.at(1000.0)) == [Provision((SMALL,))], "both fit on one node"


def test_or_the_cheapest_for_what_its_pods_are_worth():
    # Two cores are worth 2 / 8 of the large type, 0.9: small 1.0 (1.11), medium 1.9, large 3.6.
    # Four pods of 2 cores are worth 3.6: four small ones cost 4.0, two medium ones 3.8, one large one 3.6.
    for count, kind in ((1, SMALL), (4, LARGE)):
        moment = Moment().waits(*(pod(f"p{number}", 2, gib=8) for number in range(count)))
        assert scaler(expander="price").act(moment.at(1000.0)) == [Provision((kind,))]


def test_pods_with_room_on_nodes_in_the_making_make_no_group_grow():
    moment = Moment().node("new", LARGE, ready=False).waits(pod("p", 4), pod("q", 4))
    assert scaler().act(moment.at(1000.0)) == []
    assert scaler().act(moment.waits(pod("r", 2, gib=8)).at(1000.0)) == [Provision((SMALL,))]


def test_it_looks_every_ten_seconds_and_grows_to_the_most_nodes_there_may_be():
    buyer, moment = scaler(max_nodes_total=2), Moment().waits(*(pod(f"p{i}", 2, gib=8) for i in range(3)))
    assert buyer.act(moment.at(999.0)) == ()
    assert len(buyer.act(moment.at(1000.0))) == 2
    assert buyer.next_s == 1010.0


def test_a_node_goes_that_was_used_less_than_half_for_long_enough_and_whose_pods_have_room_elsewhere():
    moment, seller = Moment().node("a", LARGE, [pod("p", 3)]).node("b", LARGE, [pod("q", 5)]), scaler()
    for now_s in range(1000, 1060, 10):
        assert seller.act(moment.at(float(now_s))) == []
    assert seller.act(moment.at(1060.0)) == [Delete(("a",))]


@pytest.mark.parametrize(
    "kept",
    [
        {"pods": [pod("p", 4)]},  # exactly half
        {"pods": [pod("p", 1, do_not_disrupt=True)]},
        {"pods": [pod("p", 1, owner="")]},  # nobody would make it anew
        {"pods": [pod("p", 3.5)]},  # no room on the other
    ],
)
def test_a_node_stays_that_is_used_or_whose_pods_must_stay(kept):
    moment, seller = Moment().node("a", LARGE, **kept).node("b", LARGE, [pod("q", 5)]), scaler()
    for now_s in range(1000, 1200, 10):
        assert seller.act(moment.at(float(now_s))) == []


def test_a_node_may_go_once_its_pod_need_not_stay_any_more():
    moment = Moment().node("a", LARGE, [pod("p", 1, do_not_disrupt=True)]).node("b", LARGE, [pod("q", 5)])
    moment.seen.released_s, seller = {"p": 1015.0}, scaler()
    for now_s in range(1000, 1080, 10):
        assert seller.act(moment.at(float(now_s))) == []
    assert seller.act(moment.at(1080.0)) == [Delete(("a",))], "sixty seconds after it looked at 1020 s"


def test_empty_nodes_go_together_and_none_after_the_cluster_has_grown():
    moment, seller = Moment().node("a").node("b").node("c", SMALL, [pod("q", 2)]), scaler()
    assert seller.act(moment.at(1000.0)) == []
    assert seller.act(moment.at(1060.0)) == [Delete(("a", "b"))]
    seller = scaler(scale_down_delay_after_add_s=600.0)
    seller.act(moment.waits(pod("big", 8)).at(1000.0))
    moment.seen.waiting.clear()
    assert all(seller.act(moment.at(float(now_s))) == [] for now_s in range(1010, 1600, 10))
    assert seller.act(moment.at(1600.0)) == [Delete(("a", "b"))]


def test_a_node_that_was_used_in_between_begins_anew():
    moment, seller = Moment().node("a", MEDIUM, [pod("p", 1)]).node("b", LARGE, [pod("q", 5)]), scaler()
    seller.act(moment.at(1000.0))
    moment.seen.pods["a"]["r"] = pod("r", 2)
    seller.act(moment.at(1030.0))
    del moment.seen.pods["a"]["r"]
    assert [seller.act(moment.at(at_s)) for at_s in (1040.0, 1090.0)] == [[], []]
    assert seller.act(moment.at(1100.0)) == [Delete(("a",))]
