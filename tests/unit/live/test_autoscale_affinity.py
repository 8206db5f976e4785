"""`aaml autoscale` and pods that kube-scheduler refuses where there is room: what it heeds, and what it remembers."""

from dataclasses import replace
from typing import Any

import pytest

from aaml.cluster.objects import HOSTNAME_LABEL, ZONE_LABEL, Affinity, LabelSelector, PodAffinityTerm, Requirement
from aaml.kube.sources import NODES, PODS, SeenPod
from aaml.live.node_controller import MoveLimits, NodeController
from aaml.live.node_template import NodeTemplate
from aaml.live.owned_nodes import OwnedNodes
from aaml.nodes.catalogue import Catalogue
from support import make
from support.fake_karpenter import FakeCluster, Follower
from support.watched_nodes import CATALOGUE, EAGER, NOW_S, Live, kind, pod

WEB = {"app": "web"}


def from_web(key: str, **more: Any) -> Affinity:
    """Return required anti-affinity to the pods of the web."""
    term = PodAffinityTerm(key, LabelSelector((Requirement("app", "In", ("web",)),)), frozenset({"default"}))
    return Affinity(required_anti_pods=(replace(term, **more),))


def labelled(live: Live, name: str, of: str, *pods: Any) -> Live:
    """Add a claim with its node, in zone a, that has a host name."""
    live.node(name, of, *pods)
    offered = dict(CATALOGUE[of].allocatable)
    labels = {HOSTNAME_LABEL: f"host-{name}", ZONE_LABEL: "a"}
    return live.tell(NODES, make.node(f"n-{name}", offered["cpu"], offered["memory"], labels=labels))


def orders(live: Live) -> list[tuple[str, str]]:
    controller = live.controller(EAGER)
    for _ in range(8):
        controller.step()
        live.now_s += 30.0
    return [(each.verb, each.what.partition(" ")[0]) for each in live.told]


def resident(affinity: Affinity) -> Any:
    return pod("db", owner="ReplicaSet/db", labels={"app": "db"}, affinity=affinity, do_not_disrupt=True)


@pytest.mark.parametrize(
    ("affinity", "drained"),
    [
        (Affinity(), True),
        (from_web(HOSTNAME_LABEL), False),
        (from_web("no/label-of-the-node"), True),
        (from_web(HOSTNAME_LABEL, namespaces=frozenset({"other"})), True),
        (from_web(HOSTNAME_LABEL, namespaces=frozenset({"other"}), namespace_selector=LabelSelector()), False),
    ],
)
def test_a_node_is_drained_only_where_anti_affinity_of_running_pods_lets_its_pods_go(affinity, drained) -> None:
    live = labelled(Live(), "a", "large", resident(affinity))
    labelled(live, "b", "small", pod("w1", 0.5, labels=WEB), pod("w2", 0.5, labels=WEB))
    assert orders(live) == ([("delete", "b")] if drained else [])


def test_a_pod_that_is_refused_where_there_is_room_gets_a_node_of_its_own() -> None:
    live = labelled(Live(), "a", "large", resident(from_web(HOSTNAME_LABEL))).waits(pod("w", 0.5, labels=WEB))
    assert orders(live) == [("provision", "small")]


@pytest.mark.parametrize(("labels", "provisioned"), [(WEB, []), ({}, [("provision", "small")])])
def test_anti_affinity_of_pods_on_nodes_of_others_counts_for_new_nodes_too(labels, provisioned) -> None:
    """It keeps the web out of zone a, and none but that is sold."""
    theirs = pod("db", labels={"app": "db"}, affinity=from_web(ZONE_LABEL), node_name="theirs")
    live = Live().tell(NODES, make.node("theirs", labels={ZONE_LABEL: "a"})).tell(PODS, SeenPod(theirs))
    assert orders(live.waits(pod("w", 0.5, labels=labels))) == provisioned


@pytest.mark.parametrize(("team", "provisioned"), [("x", []), ("y", [("provision", "small")])])
def test_labels_of_the_template_count_for_new_nodes(team, provisioned) -> None:
    theirs = pod("db", labels={"app": "db"}, affinity=from_web("team"), node_name="theirs")
    live = Live().tell(NODES, make.node("theirs", labels={"team": "x"})).tell(PODS, SeenPod(theirs))
    live.nodes = OwnedNodes(live.watch, CATALOGUE, replace(NodeTemplate.plain(), labels={"team": team}))
    assert orders(live.waits(pod("w", 0.5, labels=WEB))) == provisioned


# ---- what did not help -----------------------------------------------------------------------------------------------


def refused(seconds: int, *, refuses: bool = True) -> tuple[FakeCluster, NodeController, Follower]:
    """Return a cluster after so many seconds in which kube-scheduler refuses the only pod."""
    cluster = FakeCluster({"small": 2000}, NOW_S)
    cluster.replicas, cluster.refuses = 1, refuses
    follower = Follower(cluster)
    controller = NodeController(
        OwnedNodes(follower.watch, Catalogue((kind("small", 2, 1.0),))), EAGER, NodeTemplate.plain(), lambda _: None,
        limits=MoveLimits(most_nodes=5), apply=True, clock=lambda: cluster.now_s,
    )  # fmt: skip
    controller.begin(lambda: False)
    go_on(cluster, controller, follower, seconds)
    return cluster, controller, follower


def go_on(cluster: FakeCluster, controller: NodeController, follower: Follower, seconds: int) -> None:
    for _ in range(seconds):
        cluster.tick(1.0)
        follower.hear()
        controller.step()


def test_a_node_that_does_not_help_is_provisioned_again_later_and_later(caplog) -> None:
    cluster, controller, follower = refused(3600)
    assert len(cluster.created) == 5, "at 0, and 3, 6, 12 and 24 minutes after each was found to stay empty"
    assert not cluster.claims, "none stays"
    said = [each.getMessage() for each in caplog.records if "stays empty" in each.getMessage()]
    assert [line.partition("in the next ")[2].partition(";")[0] for line in said] == [
        "3 min", "6 min", "12 min", "24 min", "30 min",
    ]  # fmt: skip
    assert "1 pod waits for which it was provisioned (default/web-1): no node is provisioned for it" in said[0]
    assert said[0].endswith("kube-scheduler says of default/web-1: none fits")
    cluster.refuses = False
    go_on(cluster, controller, follower, 1800)
    assert cluster.bound == 1


def test_a_pod_that_came_later_gets_a_node_meanwhile() -> None:
    cluster, controller, follower = refused(120)
    assert len(cluster.created) == 1
    cluster.replicas, cluster.refuses = 2, False
    cluster.pods["default/web-1"] = replace(cluster.pods["default/web-1"], node_name="n-theirs")
    go_on(cluster, controller, follower, 60)
    assert len(cluster.created) == 2
    assert cluster.bound == 2


def test_a_node_that_helps_one_pod_is_not_in_vain_for_the_others() -> None:
    cluster, controller, follower = refused(5, refuses=False)
    go_on(cluster, controller, follower, 60)
    cluster.replicas = 4
    go_on(cluster, controller, follower, 60)
    assert cluster.bound == 4
