"""What Karpenter provisions for pods with scheduling constraints: zones, labels, each other, ports, volumes."""

import numpy as np
import pytest

from aaml.cluster.objects import (
    CAPACITY_TYPE_LABEL,
    HOSTNAME_LABEL,
    TYPE_LABEL,
    ZONE_LABEL,
    Affinity,
    HostPort,
    LabelSelector,
    NodeSelectorTerm,
    PodAffinityTerm,
    PreferredNode,
    Requirement,
    TopologySpread,
    UnboundClaim,
    VolumeNeeds,
    WeightedPodAffinityTerm,
)
from aaml.errors import UserError
from aaml.nodes.catalogue import Catalogue, Offering
from aaml.nodes.cluster_autoscaler import ClusterAutoscaler
from aaml.nodes.karpenter import Karpenter
from aaml.nodes.packing import pack, types_of
from aaml.nodes.requirements import Values, only, required
from aaml.nodes.rules import Rule, Rules
from aaml.nodes.settings import ClusterAutoscalerSettings, KarpenterSettings, NodeTimes
from aaml.policies.registry import make_policy
from aaml.scheduling.play import play
from aaml.sim.cluster import SimCluster
from aaml.sim.supply import NodeSupply
from support.nodes_to_buy import Moment, kind, measured, pod


def sold(name, cores, **prices):
    """Return a type that is sold on demand in these zones at these prices."""
    return kind(name, cores, 0.0, offerings=tuple(Offering(price, zone=zone) for zone, price in prices.items()))


SMALL, LARGE = sold("small", 2, a=1.0, b=1.2, c=1.1), sold("large", 8, a=3.6, b=3.9)
TYPES = Catalogue((SMALL, LARGE))
WEB = LabelSelector((Requirement("app", "In", ("web",)),))


def zones(*values, operator="In"):
    return NodeSelectorTerm((Requirement(ZONE_LABEL, operator, values),))


def web(name, cores=1.0, **other):
    return pod(name, cores, labels={"app": "web"}, **other)


def spread(key, skew=1, **other):
    return (TopologySpread(skew, key, WEB, **other),)


def apart(key):
    return Affinity(required_anti_pods=(PodAffinityTerm(key, WEB, frozenset({"default"})),))


def near(key):
    return Affinity(required_pods=(PodAffinityTerm(key, WEB, frozenset({"default"})),))


def buys(*pods, moment=None):
    """Return (type, zone, pods) of each node that is launched for pods that wait."""
    seen = (moment or Moment()).waits(*pods).seen
    packed = pack(TYPES, measured(seen, TYPES), [each.pod for each in seen.waiting.values()])
    found = []
    for claim in packed.claims:
        first = types_of(TYPES, claim)[0]
        found.append((first.name, first.cheapest.zone, claim.pods))
    return sorted(found)


def test_the_cheapest_zone_is_bought_and_the_cheapest_of_those_that_a_pod_allows():
    assert buys(pod("p")) == [("small", "a", 1)]
    assert buys(pod("p", node_selector={ZONE_LABEL: "b"})) == [("small", "b", 1)]
    both = Affinity(required_nodes=(zones("b", "c"),))
    assert buys(pod("p", affinity=both)) == [("small", "c", 1)]
    assert buys(pod("p", 4, affinity=both)) == [("large", "b", 1)], "the large one is not sold in c"
    assert buys(pod("p", affinity=Affinity(required_nodes=(zones("a", operator="NotIn"),)))) == [("small", "c", 1)]
    assert buys(pod("p", node_selector={ZONE_LABEL: "d"})) == []


def test_a_claim_narrows_to_the_zone_of_its_pods():
    one, other = (pod(name, node_selector={ZONE_LABEL: zone}) for name, zone in (("p", "b"), ("q", "c")))
    assert buys(one, pod("r")) == [("small", "b", 2)]
    assert buys(one, other) == [("small", "b", 1), ("small", "c", 1)]


def test_terms_of_node_affinity_are_tried_one_after_the_other():
    terms = Affinity(required_nodes=(zones("d"), zones("c"), zones("a")))
    assert buys(pod("p", affinity=terms)) == [("small", "c", 1)]
    types = Affinity(required_nodes=(NodeSelectorTerm((Requirement(TYPE_LABEL, "NotIn", ("small",)),)),))
    assert buys(pod("p", affinity=types)) == [("large", "a", 1)]
    assert buys(pod("p", node_selector={CAPACITY_TYPE_LABEL: "spot"})) == []
    assert buys(pod("p", node_selector={HOSTNAME_LABEL: "n"})) == [], "Karpenter buys no named node"


def test_a_preference_is_required_until_the_pod_would_have_no_place():
    liked = PreferredNode(10, zones("b"))
    assert buys(pod("p", affinity=Affinity(preferred_nodes=(liked,)))) == [("small", "b", 1)]
    heavier = PreferredNode(20, zones("d"))
    assert buys(pod("p", affinity=Affinity(preferred_nodes=(liked, heavier)))) == [("small", "b", 1)]
    lonely = WeightedPodAffinityTerm(-50, apart(HOSTNAME_LABEL).required_anti_pods[0])
    pods = [web(name, 0.5, affinity=Affinity(preferred_pods=(lonely,))) for name in "pq"]
    assert buys(*pods) == [("small", "a", 1), ("small", "a", 1)]


def test_spread_pods_go_where_the_fewest_of_them_are():
    pods = [web(f"p{number}", 0.5, spread=spread(ZONE_LABEL)) for number in range(5)]
    assert buys(*pods) == [("small", "a", 2), ("small", "b", 2), ("small", "c", 1)]
    there = Moment().node("n", SMALL, [web("x"), web("y")])  # in a, whose two cores they fill
    assert buys(*pods[:2], moment=there) == [("small", "b", 1), ("small", "c", 1)]
    hosts = [web(f"p{number}", 0.5, spread=spread(HOSTNAME_LABEL, 2)) for number in range(5)]
    assert [count for *_, count in buys(*hosts)] == [1, 2, 2]


def test_karpenter_counts_alike_for_node_affinity_on_the_same_labels():
    """It tells groups apart by the labels that node affinity names, not by their values, and so counts no pod in c.

    The real Karpenter, asked the same, puts q on n in c, where two such pods are, and buys one node.
    """
    there = Moment().node("n", sold("large", 8, c=3.0), [web("x", 0.5), web("y", 0.5)])
    pods = [
        web(name, affinity=Affinity(required_nodes=(zones(other, operator="NotIn"),)), spread=spread(ZONE_LABEL))
        for name, other in (("p", "c"), ("q", "b"))
    ]
    assert buys(*pods, moment=there) == [("small", "a", 1)]


def test_pods_that_keep_apart_get_a_node_or_a_zone_each():
    hosts = [web(f"p{number}", 0.1, affinity=apart(HOSTNAME_LABEL)) for number in range(4)]
    assert buys(*hosts) == [("small", "a", 1)] * 4
    in_zones = [
        web(f"p{number}", 0.1, affinity=apart(ZONE_LABEL), node_selector={ZONE_LABEL: zone})
        for number, zone in enumerate("abc")
    ]
    assert buys(*in_zones) == [("small", "a", 1), ("small", "b", 1), ("small", "c", 1)]
    lonely = Moment().node("n", LARGE, [web("x", affinity=apart(HOSTNAME_LABEL))])
    assert buys(web("p"), moment=lonely) == [("small", "a", 1)], "the pod that is there wants no other"
    assert buys(pod("p"), moment=lonely) == []


def test_pods_that_belong_together_wait_for_the_first_of_them():
    """The largest is packed first and has nobody to be near to; it is tried again once the other has a place."""
    follower, first = pod("big", 1.5, affinity=near(ZONE_LABEL)), web("p", 1.0, node_selector={ZONE_LABEL: "b"})
    assert buys(follower, first) == [("large", "b", 2)], "a claim grows while a type is left"
    assert buys(follower) == []
    alike = [web(f"p{number}", 0.5, affinity=near(HOSTNAME_LABEL)) for number in range(3)]
    assert buys(*alike) == [("small", "a", 3)]


def test_a_host_port_is_taken_once_on_a_node_and_a_volume_is_where_it_is():
    pods = [pod(f"p{number}", 0.1, host_ports=(HostPort(80),)) for number in range(2)]
    assert buys(*pods, pod("q", 0.1, host_ports=(HostPort(80, "UDP"),))) == [("small", "a", 1), ("small", "a", 2)]
    assert buys(pods[1], moment=Moment().node("n", LARGE, pods[:1])) == [("small", "a", 1)]
    stored = VolumeNeeds(node_terms=((zones("c"), zones("b")),))
    assert buys(pod("p", volumes=stored)) == [("small", "c", 1)], "the first of its terms"
    assert buys(pod("p", 4, volumes=stored)) == [("large", "b", 1)]


@pytest.mark.parametrize(
    ("operator", "values", "allowed"),
    [
        ("In", ("1", "2"), "12"), ("NotIn", ("1",), "23x"), ("Exists", (), "123x"), ("DoesNotExist", (), ""),
        ("Gt", ("1",), "23"), ("Lt", ("2",), "1"),
    ],
)  # fmt: skip
def test_requirements_allow_what_their_operators_say(operator, values, allowed):
    found = required([Requirement("k", operator, values)])["k"]
    assert "".join(each for each in "123x" if found.allows(each)) == allowed
    between = found.both(Values(least=2))
    assert "".join(each for each in "123x" if between.allows(each)) == allowed.replace("1", "").replace("x", "")
    assert found.meets(only("3")) == ("3" in allowed)


def played(pods, autoscaler, *, until_s=200.0):
    exact = NodeTimes(initialization_s=0.0, initialization_spread_s=0.0)
    supply = NodeSupply(autoscaler, TYPES, np.random.default_rng(1), times=exact)
    cluster = SimCluster((), pods, until_s=until_s, supply=supply, invariants=True)
    play(cluster, make_policy("kube-scheduler"))
    return cluster


def test_kube_scheduler_places_the_pods_on_what_was_bought_for_them():
    pods = [web(f"p{number}", 0.5, affinity=apart(HOSTNAME_LABEL), spread=spread(ZONE_LABEL)) for number in range(6)]
    cluster = played(pods, Karpenter(KarpenterSettings(consolidate_after_s=None), TYPES))
    assert len(cluster.state.placements) == len({each.node_name for each in cluster.state.placements.values()}) == 6
    assert sorted(node.labels[ZONE_LABEL] for node in cluster.state.nodes) == list("aabbcc")
    assert cluster.metrics()["bill"] > 0.0


def test_consolidation_keeps_pods_apart_and_in_their_zones():
    """Three nodes of a core each in use: their pods would fit on one node, and may not go there."""
    settings = KarpenterSettings(consolidate_after_s=0.0, budgets=("100%",))
    kept = [web(f"p{number}", 0.5, affinity=apart(HOSTNAME_LABEL)) for number in range(3)]
    plain = [web(f"p{number}", 0.5, node_selector={}) for number in range(3)]
    assert len(played(kept, Karpenter(settings, TYPES)).state.nodes) == 3
    assert len(played(plain, Karpenter(settings, TYPES)).state.nodes) == 1


def test_what_no_autoscaler_here_heeds_is_refused_in_a_line():
    karpenter = Karpenter(KarpenterSettings(), TYPES)
    unbound = VolumeNeeds(unbound=(UnboundClaim("default/c"),))
    with pytest.raises(UserError, match="default/p: it has volumes that are not bound; simulated autoscalers take no"):
        played([pod("p", volumes=unbound)], karpenter)
    on_a_node = VolumeNeeds(node_terms=((NodeSelectorTerm((Requirement(HOSTNAME_LABEL, "In", ("n",)),)),),))
    with pytest.raises(UserError, match="default/p: it has a volume that is on one node"):
        played([pod("p", volumes=on_a_node)], karpenter)
    with pytest.raises(UserError, match="default/p: it has required topology spread; Karpenter heeds that, this auto"):
        played([web("p", spread=spread(ZONE_LABEL))], ClusterAutoscaler(ClusterAutoscalerSettings(), TYPES, 0.0))


def test_rules_know_pods_that_come_later_and_the_labels_that_namespaces_have_now():
    term = PodAffinityTerm(
        ZONE_LABEL, LabelSelector(), namespace_selector=LabelSelector((Requirement("team", "In", ("a",)),))
    )
    rules, rule = Rules(), Rule("near", term)
    rules.heed({"ours": {"team": "a"}})
    first = rules.shape(pod("first", 1, namespace="ours"))
    assert rules.selection(rule).selected == {first}
    later = rules.shape(pod("later", 1, namespace="ours", labels={"app": "web"}))
    assert rules.selection(rule).selected == {first, later}
    rules.heed({"ours": {"team": "b"}})
    assert rules.selection(rule).selected == set()


def test_a_packing_ends_where_more_nodes_are_needed_than_may_be_bought():
    seen = Moment().waits(web("p", 6.0, spread=spread(ZONE_LABEL)), web("q", 6.0), pod("r", 6.0)).seen
    packed = pack(TYPES, measured(seen, TYPES), [each.pod for each in seen.waiting.values()], most_claims=1)
    assert packed.failed
    assert len(packed.claims) == 2, "the third pod is not tried"
