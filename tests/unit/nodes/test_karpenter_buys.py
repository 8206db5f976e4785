"""Karpenter's provisioning: batches, first fit decreasing, claims that narrow to the cheapest type. Counted by hand."""

import pytest

from aaml.nodes.catalogue import Catalogue
from aaml.nodes.karpenter import Karpenter
from aaml.nodes.packing import pack, types_of
from aaml.nodes.ports import Provision
from aaml.nodes.settings import KarpenterSettings
from support.nodes_to_buy import CATALOGUE, LARGE, MEDIUM, SMALL, Moment, kind, measured, pod


def karpenter(catalogue=CATALOGUE, **settings):
    return Karpenter(KarpenterSettings(consolidate_after_s=None, **settings), catalogue, 10_000.0)


def names(bought):
    return [[each.name for each in buy.types] for buy in bought]


def test_a_batch_ends_a_second_after_the_last_new_pod():
    buyer, moment = karpenter(), Moment(100.0).waits(pod("a"))
    assert buyer.act(moment.at(100.0)) == []
    assert buyer.next_s == 101.0
    moment.waits(pod("b"))
    assert buyer.act(moment.at(100.6)) == []
    assert buyer.act(moment.at(101.0)) == [], "the second pod has extended the batch"
    assert buyer.next_s == 101.6
    assert names(buyer.act(moment.at(101.6))) == [["small", "medium", "large"]], "two cores in all fit the smallest"


def test_a_batch_ends_ten_seconds_after_it_began_whatever_comes():
    buyer, moment = karpenter(), Moment(0.0)
    for tenth in range(0, 100, 9):
        assert buyer.act(moment.waits(pod(f"p{tenth}", 0.1)).at(tenth / 10)) == []
    assert buyer.next_s == 10.0
    assert len(buyer.act(moment.at(10.0))) == 1


def test_a_pod_that_still_waits_asks_again_after_ten_seconds_and_only_once_a_batch():
    buyer, moment = karpenter(), Moment(0.0).waits(pod("a"))
    buyer.act(moment.at(0.0))
    assert buyer.act(moment.at(0.5)) == []
    assert len(buyer.act(moment.at(1.0))) == 1, "seeing it again has not extended the batch"
    assert buyer.next_s == 10.0
    moment.node("n", SMALL, ready=False)
    assert buyer.act(moment.at(10.0)) == []
    assert buyer.act(moment.at(11.0)) == [], "it has room on the node in the making"


def test_a_batch_takes_longer_where_that_is_set():
    buyer, moment = karpenter(batch_idle_duration_s=5.0, batch_max_duration_s=30.0), Moment(0.0).waits(pod("a"))
    buyer.act(moment.at(0.0))
    assert buyer.next_s == 5.0


@pytest.mark.parametrize(
    ("pods", "claims"),
    [
        ([1, 4, 3], [["large"]]),
        ([4, 1, 1, 3], [["large"], ["small", "medium", "large"]]),  # 4 + 3 + 1 fill the largest
        ([2, 2], [["medium", "large"]]),
        ([8, 8], [["large"], ["large"]]),
        ([9], []),  # fits no type
        ([0.5], [["small", "medium", "large"]]),
    ],
)
def test_pods_are_packed_the_largest_first(pods, claims):
    moment = Moment().waits(*(pod(f"p{number}", cores) for number, cores in enumerate(pods)))
    packed = pack(CATALOGUE, measured(moment.seen, CATALOGUE), [each.pod for each in moment.seen.waiting.values()])
    assert [[kind.name for kind in types_of(CATALOGUE, claim)] for claim in packed.claims] == claims


def test_a_pod_goes_to_the_claim_with_the_fewest_pods_that_has_room():
    # 6 cores open a claim with 2 left, 5 cores one with 3 left; 2 cores go to the first (both have one pod),
    # the next 2 to the second, which has fewer by then.
    moment = Moment()
    pods = [pod("a", 6), pod("b", 5), pod("c", 2), pod("d", 2)]
    packed = pack(CATALOGUE, measured(moment.seen, CATALOGUE), pods)
    assert sorted(claim.request[0] for claim in packed.claims) == [7000, 8000]
    assert [claim.pods for claim in packed.claims] == [2, 2]


def test_memory_counts_as_cpu_does():
    lean, fat = kind("lean", 4, 1.0, gib=4), kind("fat", 4, 1.5, gib=32)
    catalogue = Catalogue((fat, lean))
    packed = pack(catalogue, measured(Moment().seen, catalogue), [pod("a", 1, gib=3), pod("b", 1, gib=3)])
    assert [each.name for each in types_of(catalogue, packed.claims[0])] == ["fat"]


def test_nodes_that_are_there_are_filled_first_ready_ones_before_others_by_name():
    moment = Moment().node("a", SMALL, ready=False).node("c", SMALL).node("b", SMALL, [pod("x", 1.5)])
    packed = pack(CATALOGUE, measured(moment.seen, CATALOGUE), [pod("p", 1), pod("q", 1), pod("r", 1)])
    assert packed.used == ("c", "a"), "b has half a core left; c takes two, the node in the making one"
    assert not packed.claims


def test_nodes_on_their_way_out_take_nothing_and_their_pods_are_packed_too():
    buyer = karpenter()
    moment = Moment(0.0).node("going", LARGE, [pod("on", 3), pod("kept", 1, do_not_disrupt=True)], deleting=True)
    buyer.act(moment.waits(pod("p", 1)).at(0.0))
    assert names(buyer.act(moment.at(1.0))) == [["medium", "large"]], "3 + 1 cores, without the pod that stays"


def test_nodes_on_their_way_out_are_replaced_for_pods_that_leave_before_they_end():
    stay = [pod("guarded", 2, do_not_disrupt=True), pod("stuck", 2), pod("stops", 2)]
    moment = Moment(0.0).node("out", LARGE, [*stay, pod("db", 2, owner="StatefulSet/db")], deleting=True)
    moment.seen.stuck, moment.seen.stopping = frozenset({"stuck"}), {"stops", "db"}
    buyer = karpenter()
    buyer.act(moment.at(0.0))
    assert names(buyer.act(moment.at(1.0))) == [["small", "medium", "large"]], "a StatefulSet's next pod has to wait"


def test_a_node_selector_narrows_the_types():
    packed = pack(
        CATALOGUE, measured(Moment().seen, CATALOGUE),
        [pod("p", 1, node_selector={"node.kubernetes.io/instance-type": "medium"}), pod("q", 1)],
    )  # fmt: skip
    assert [[each.name for each in types_of(CATALOGUE, claim)] for claim in packed.claims] == [["medium"]]


def test_the_copy_of_an_autoscaler_goes_its_own_way():
    buyer, moment = karpenter(), Moment(0.0).waits(pod("a"))
    buyer.act(moment.at(0.0))
    twin = buyer.copy()
    assert buyer.act(moment.at(1.0)) == [Provision((SMALL, MEDIUM, LARGE))]
    assert twin.next_s == 1.0
    assert twin.act(moment.at(1.0)) == [Provision((SMALL, MEDIUM, LARGE))]


def test_of_types_at_one_price_the_first_by_name_is_bought():
    dear, alike = kind("z", 2, 1.1), [kind(name, 2, 1.0) for name in ("b", "a")]
    buyer, moment = karpenter(Catalogue((dear, *alike))), Moment(0.0).waits(pod("p"))
    buyer.act(moment.at(0.0))
    assert names(buyer.act(moment.at(1.0))) == [["a", "b", "z"]]
