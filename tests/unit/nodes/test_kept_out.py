"""The autoscaler `learned` keeps pods out of where required anti-affinity of running pods keeps them out."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aaml.cluster.objects import (
    CAPACITY_TYPE_LABEL,
    HOSTNAME_LABEL,
    ZONE_LABEL,
    LabelSelector,
    Pod,
    PodAffinityTerm,
    Requirement,
)
from aaml.cluster.selectors import matches_labels, matches_pod
from aaml.nodes import kept_out as module
from aaml.nodes.catalogue import Catalogue, Offering
from aaml.nodes.kept_out import keep_out
from aaml.nodes.learned import LearnedNodes
from aaml.nodes.node_policy import NodePolicy
from aaml.nodes.ports import Delete, KeptOut, Observed, Provision
from support.nodes_to_buy import CATALOGUE, LARGE, SMALL, Moment, kind, pod

EAGER = NodePolicy(idle_s=0.0, patience_s=0.0, eviction_dollars=0.0001, size_power=0.0, spare_value=0.0)
WEB, OTHER = {"app": "web"}, {"app": "other"}


def from_web(key, values, *nodes, **more):
    term = PodAffinityTerm(key, LabelSelector((Requirement("app", "In", ("web",)),)), frozenset({"default"}))
    return KeptOut(term, frozenset(values), frozenset(nodes), **more)


def ordered(moment, *kept_out, catalogue=CATALOGUE):
    moment.seen.kept_out = kept_out
    autoscaler = LearnedNodes(EAGER, catalogue)
    return [
        (type(each), each.types[0] if isinstance(each, Provision) else each.names)
        for now_s in (1000.0, 1001.0, 1060.0)
        for each in autoscaler.act(moment.at(now_s))
    ]


@pytest.mark.parametrize(("labels", "kept"), [(WEB, True), (OTHER, False)])
def test_a_node_is_not_drained_where_its_pods_are_kept_out_of_the_other(labels, kept):
    moment = Moment().node("a", LARGE, [pod("db", 1.0, do_not_disrupt=True)])
    moment.node("b", SMALL, [pod("w", 0.5, labels=labels)])
    orders = ordered(moment, from_web(HOSTNAME_LABEL, {"a"}, "a"))
    assert orders == [] if kept else orders[0] == (Delete, ("b",))


@pytest.mark.parametrize(("labels", "kept"), [(WEB, True), (OTHER, False)])
def test_a_pod_gets_a_node_of_its_own_where_it_is_kept_out_of_the_room_there_is(labels, kept):
    moment = Moment().node("a", LARGE, [pod("db", 1.0, do_not_disrupt=True)]).waits(pod("w", 0.5, labels=labels))
    orders = ordered(moment, from_web(HOSTNAME_LABEL, {"a"}, "a"))
    assert (Provision in dict(orders)) == kept


@pytest.mark.parametrize(
    ("key", "values", "bought"),
    [
        (ZONE_LABEL, {"a"}, "b"),
        ("failure-domain.beta.kubernetes.io/zone", {"a"}, "b"),
        (ZONE_LABEL, {"b"}, "a"),
        (ZONE_LABEL, {"a", "b"}, None),
        (CAPACITY_TYPE_LABEL, {"on-demand"}, None),
        (HOSTNAME_LABEL, {"x"}, "a"),
    ],
)
def test_a_new_node_is_provisioned_where_the_pod_is_not_kept_out(key, values, bought):
    catalogue = Catalogue((kind("small", 2, 1.0, offerings=(Offering(1.0, zone="a"), Offering(1.2, zone="b"))),))
    orders = ordered(Moment().waits(pod("w", 0.5, labels=WEB)), from_web(key, values), catalogue=catalogue)
    zones = {each.cheapest.zone for how, each in orders if how is Provision}
    assert zones == ({bought} if bought else set())


def test_zones_of_one_price_are_told_apart():
    catalogue = Catalogue((kind("small", 2, 1.0, offerings=tuple(Offering(1.0, zone=zone) for zone in "abc")),))
    orders = ordered(Moment().waits(pod("w", 0.5, labels=WEB)), from_web(ZONE_LABEL, {"a", "b"}), catalogue=catalogue)
    assert {way.zone for _, each in orders for way in each.launched} == {"c"}


def test_a_pod_that_selects_a_capacity_type_keeps_it_in_the_zones_that_are_left():
    ways = (Offering(1.0, zone="a"), Offering(0.4, "spot", "a"), Offering(1.0, zone="b"), Offering(0.5, "spot", "b"))
    moment = Moment().waits(pod("w", 0.5, labels=WEB, node_selector={CAPACITY_TYPE_LABEL: "spot"}))
    catalogue = Catalogue((kind("small", 2, 1.0, offerings=ways),))
    orders = ordered(moment, from_web(ZONE_LABEL, {"a"}), catalogue=catalogue)
    assert {each.cheapest for _, each in orders} == {Offering(0.5, "spot", "b")}


def test_nothing_is_provisioned_where_every_new_node_lies_in_the_domain():
    orders = ordered(Moment().waits(pod("w", 0.5, labels=WEB)), from_web("team", {"x"}, all_new=True))
    assert orders == []


def kept_out_of_all(pods, *selectors):
    """Return which pods are kept out of every type by terms of these selectors."""
    term = PodAffinityTerm(ZONE_LABEL, None, frozenset({"default"}))
    terms = [replace(term, selector=LabelSelector(each)) for each in selectors]
    may = np.ones((len(pods), len(CATALOGUE)), np.bool_)
    seen = Observed(0.0, kept_out=[KeptOut(each, frozenset({"a"}), frozenset(), all_new=True) for each in terms])
    keep_out(may, seen, pods, CATALOGUE.types, ())
    return [number for number, allowed in enumerate(may) if not allowed.any()]


def test_terms_are_not_compared_with_the_pods_of_each_other_workload(monkeypatch):
    compared = []
    monkeypatch.setattr(module, "matches_pod", lambda *each: compared.append(each) or matches_pod(*each))
    pods = [Pod(f"{app}-{copy}", labels={"app": str(app), "tier": "web"}) for app in range(40) for copy in range(3)]
    apart = [(Requirement("tier", "In", ("web",)), Requirement("app", "In", (str(app),))) for app in range(1, 40)]
    assert kept_out_of_all(pods, *apart) == list(range(3, 120))
    assert len(compared) == 39


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist"]),
                          st.sampled_from([("1",), ("2",), ("1", "2")])), max_size=3))  # fmt: skip
def test_the_pods_that_a_selector_selects_are_kept_out(drawn):
    selector = tuple(Requirement(key, word, values if "In" in word else ()) for key, word, values in drawn)
    pods = [Pod(str(number), labels=labels) for number, labels in enumerate([{}, {"a": "1"}, {"a": "2", "b": "1"}])]
    selected = [int(pod.name) for pod in pods if matches_labels(LabelSelector(selector), pod.labels)]
    assert kept_out_of_all(pods, selector) == selected
