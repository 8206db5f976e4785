"""`aaml autoscale` where things go wrong: limits, budgets, sold-out types, NodePools, nodes out of order, templates."""

import json
import logging
import os
import signal
from contextlib import closing
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from aaml.cli import run as command
from aaml.cluster.objects import (
    CAPACITY_TYPE_LABEL,
    ZONE_LABEL,
    DisruptionBudget,
    LabelSelector,
    Requirement,
    Taint,
    Toleration,
)
from aaml.errors import UserError
from aaml.kube.objects import wire
from aaml.kube.objects.convert import node_from_api
from aaml.kube.sources import BUDGETS, NODE_CLAIMS, NODE_POOLS, NODES, PODS, SeenBudget, SeenPod, see_budget
from aaml.kube.transport import Transport
from aaml.live.autoscale_metrics import AutoscaleMetrics
from aaml.live.node_claims import OURS, new_claim, offering_of
from aaml.live.node_controller import MoveLimits, steady_clock
from aaml.live.node_pools import active
from aaml.live.node_template import NodeTemplate
from aaml.live.owned_nodes import OwnedNodes
from aaml.nodes.catalogue import Catalogue, Offering
from aaml.nodes.node_policy import NodePolicy
from aaml.nodes.requirements import usual_key
from aaml.threads import Background
from support import make
from support.kwok import until
from support.scripted_api import HANG, ScriptedApi, listing, one_node, status, write_kubeconfig
from support.watched_nodes import CATALOGUE, EAGER, GIB, NOW_S, PATH, Live, claim, pod

MINUTE = 60.0
POOLS = "/apis/karpenter.sh/v1/nodepools"


@pytest.fixture
def api() -> Any:
    with ScriptedApi() as server, closing(Transport(server=server.server)) as transport:
        server.live = Live(transport)  # type: ignore[attr-defined]
        yield server


@pytest.fixture
def logged(caplog: Any) -> Any:
    """Return what the log says so far."""
    caplog.set_level(logging.INFO, "aaml")
    return lambda: [each.message for each in caplog.records]


def deleted(api: Any) -> list[str]:
    return [path.rpartition("/")[2] for method, path, *_ in api.requests if method == "DELETE"]


def provisioned(api: Any) -> list[str]:
    """Return the types that were ordered."""
    asked = (body["spec"]["requirements"] for body in api.bodies("POST", PATH))
    return [next(each["values"][0] for each in one if each["key"].endswith("instance-type")) for one in asked]


def made(body: bytes) -> tuple[int, Any]:
    """Answer an order as the API server does."""
    asked = json.loads(body)
    return 201, {**asked, "metadata": {**asked["metadata"], "uid": f"u-{asked['metadata']['name']}"}}


def budget(name: str, allowed: int, app: str = "web") -> SeenBudget:
    selector = LabelSelector((Requirement("app", "In", (app,)),))
    return SeenBudget(DisruptionBudget(name, selector=selector, disruptions_allowed=allowed), "1")


# ---- limits ----------------------------------------------------------------------------------------------------------


def not_ready(live: Live) -> None:
    for name in "ab":
        live.node(name, taints=(Taint("node.kubernetes.io/not-ready"),))


def cordoned(live: Live) -> None:
    for name in "ab":
        live.node(name, unschedulable=True)


def of_a_type_that_is_gone(live: Live) -> None:
    live.tell(NODE_CLAIMS, claim("a", "huge"), claim("b", "huge", ready_s=None))


def on_their_way_out(live: Live) -> None:
    for name in "ab":
        live.tell(NODE_CLAIMS, claim(name, deletion_timestamp="2026-11-27T08:00:00Z"))


def that_lost_their_nodes(live: Live) -> None:
    live.tell(NODE_CLAIMS, claim("a"), claim("b"))


@pytest.mark.parametrize("two", [not_ready, cordoned, of_a_type_that_is_gone, on_their_way_out, that_lost_their_nodes])
def test_claims_of_ours_count_whatever_state_their_nodes_are_in(api: Any, two: Any) -> None:
    api.on("POST", PATH, made)
    two(api.live.waits(*(pod(f"p{number}", 7.5) for number in range(5))))
    controller = api.live.controller(EAGER, limits=MoveLimits(most_nodes=3), apply=True)
    for _ in range(5):
        controller.step()
        api.live.now_s += 11.0
    assert len(provisioned(api)) == 1


def test_an_order_without_an_answer_counts_until_the_watch_would_have_told_of_it(api: Any) -> None:
    api.on("POST", PATH, (504, status(504, "Timeout")))
    controller = api.live.waits(pod("p")).controller(EAGER, limits=MoveLimits(most_nodes=1), apply=True)
    for _ in range(5):
        controller.step()
        api.live.now_s += 11.0
    assert len(provisioned(api)) == 1, "it may have been carried out"
    for _ in range(5):
        controller.step()
        api.live.now_s += 11.0
    assert len(provisioned(api)) == 2


def test_after_a_start_an_interval_passes_before_a_node_is_given_back(api: Any) -> None:
    api.live.node("a")
    api.on("DELETE", f"{PATH}/a", (200, {}))
    controller = api.live.controller(EAGER, limits=MoveLimits(moves=1, interval_s=60.0), apply=True)
    controller.begin(lambda: False)
    for passed_s, gone in ((0, []), (59, []), (80, ["a"])):
        api.live.now_s = NOW_S + passed_s
        controller.step()
        assert deleted(api) == gone


def test_a_process_that_is_to_stop_writes_nothing_any_more(api: Any) -> None:
    api.live.node("a").waits(pod("p", 7.5))
    controller = api.live.controller(EAGER, apply=True)
    controller.begin(lambda: True)
    api.live.now_s += 100.0
    controller.step()
    assert api.requests == []


def test_a_purchase_of_several_nodes_gives_its_reason_once(api: Any) -> None:
    api.on("POST", PATH, made)
    api.live.waits(*(pod(f"p{number}", 7.5) for number in range(3)))
    api.live.controller(EAGER, apply=True).step()
    waiting = "3 pods wait (default/p0, default/p1, default/p2), 30 s the longest"
    assert api.live.lines() == [f"provision 3 large: {waiting}; costs $10.8000 an hour"]


# ---- disruption budgets ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("budgets", "goes"),
    [([], True), ([budget("b", 1)], True), ([budget("b", 0)], False), ([budget("b", 0, "other")], True),
     ([budget("b", 1), budget("c", 1)], False)],
    ids=["none", "one may go", "none may go", "about others", "two budgets, which Kubernetes refuses"],
)  # fmt: skip
def test_a_node_goes_only_where_budgets_let_its_pods_go(api: Any, budgets: Any, goes: bool) -> None:
    web = pod("web", labels={"app": "web"})
    api.live.tell(BUDGETS, *budgets).node("a", "small", web).node("b", "small", pod("big", 1.0, owner=""))
    api.on("DELETE", f"{PATH}/a", (200, {}))
    controller = api.live.controller(EAGER, apply=True)
    for _ in range(3):
        controller.step()
        api.live.now_s += 10.0
    assert deleted(api) == (["a"] if goes else [])


def test_two_nodes_do_not_go_on_one_budget_that_lets_one_pod_go(api: Any) -> None:
    for name in "ab":
        api.live.node(name, "small", pod(f"web-{name}", labels={"app": "web"}))
        api.on("DELETE", f"{PATH}/{name}", (200, {}))
    api.live.tell(BUDGETS, budget("b", 1)).node("c", "large", pod("big", 1.0, owner=""))
    controller = api.live.controller(replace(EAGER, most_at_once=1.0), apply=True)
    for _ in range(4):
        controller.step()
        api.live.now_s += 10.0
    assert len(deleted(api)) == 1, "its pod has not been evicted yet"


def test_a_drain_that_is_stuck_is_told_with_what_keeps_it_and_blocks_no_other(api: Any, logged: Any) -> None:
    api.live.node("stuck", "small", pod("web", labels={"app": "web"}), taints=(Taint("karpenter.sh/disrupted"),))
    api.live.tell(NODE_CLAIMS, claim("stuck", deletion_timestamp="2026-11-27T08:00:00Z"), change="modified")
    api.live.tell(BUDGETS, budget("never", 0)).node("a", "small", pod("b", 0.5)).node("b", "small", pod("c", 0.5))
    for name in "ab":
        api.on("DELETE", f"{PATH}/{name}", (200, {}))
    controller = api.live.controller(replace(EAGER, most_at_once=0.3), apply=True)
    controller.step()
    assert deleted(api) == [], "one of three may be on its way out at once"
    for _ in range(20):
        api.live.now_s += MINUTE
        controller.step()
    assert len(deleted(api)) == 1
    told = [each for each in logged() if each.startswith("stuck ")]
    kept = "stuck is being drained for 15 min; default/web is kept by budget never; it counts, and is paid for"
    assert told == [kept], "and again every 15 minutes"


# ---- what is out of order --------------------------------------------------------------------------------------------


def play(api: Any, minutes: int, policy: NodePolicy = EAGER) -> None:
    controller = api.live.controller(policy, apply=True)
    for _ in range(minutes):
        controller.step()
        api.live.now_s += MINUTE
    controller.step()


@pytest.mark.parametrize(
    ("fields", "minutes", "what"),
    [
        (
            {"taints": (Taint("node.kubernetes.io/not-ready"),)},
            30,
            "takes no pods: it has the taint",
        ),
        ({"of": "huge"}, 15, "is of type huge, which is not among those to provision"),
    ],
)
def test_a_node_that_is_of_no_use_is_told_of_again_and_given_back_in_the_end(
    api: Any, logged: Any, fields: Any, minutes: int, what: str
) -> None:
    of = fields.pop("of", "small")
    api.live.tell(NODE_CLAIMS, claim("a", of)).tell(NODES, make.node("n-a", 2000, 8 * GIB, **fields))
    api.live.tell(PODS, SeenPod(replace(pod("web"), node_name="n-a")))
    api.on("DELETE", f"{PATH}/a", (200, {}))
    play(api, minutes - 1)
    assert deleted(api) == []
    told = [each for each in logged() if what in each]
    assert len(told) == (minutes - 1) // 15 + 1
    api.live.now_s += MINUTE
    play(api, minutes)
    assert deleted(api)[:1] == ["a"]


@pytest.mark.parametrize(("promised", "goes"), [(0.0, []), (3.0, ["a"])])
def test_a_node_of_a_type_that_is_gone_is_drained_as_far_as_a_promise_of_evictions_allows(
    api: Any, promised: float, goes: list[str]
) -> None:
    api.live.tell(NODE_CLAIMS, claim("a", "huge")).tell(NODES, make.node("n-a", 2000, 8 * GIB))
    api.live.tell(PODS, *(SeenPod(replace(pod(name), node_name="n-a")) for name in ("web", "db")))
    api.on("DELETE", f"{PATH}/a", (200, {}))
    play(api, 15, replace(EAGER, evictions_per_pod_hour=promised))
    assert deleted(api) == [], "two pods have run for a quarter of an hour each, of which at most one may be evicted"
    play(api, 30, replace(EAGER, evictions_per_pod_hour=promised))
    assert deleted(api)[:1] == goes


def test_pods_on_nodes_of_types_that_are_gone_count_as_evicted_while_these_are_drained(api: Any) -> None:
    """14 pods run. After 15 minutes 2.8 of them may be evicted, after 20 minutes 3.7."""
    promise = replace(EAGER, evictions_per_pod_hour=0.8)
    for name in "ab":
        api.live.tell(NODE_CLAIMS, claim(name, "huge")).tell(NODES, make.node(f"n-{name}", 2000, 8 * GIB))
        pods = [SeenPod(replace(pod(f"{name}{at}"), node_name=f"n-{name}")) for at in range(2)]
        api.live.tell(PODS, *pods)
        api.on("DELETE", f"{PATH}/{name}", (200, {}))
    for at in range(10):
        api.live.node(f"full-{at}", "small", pod(f"full-{at}", 1.9))
    play(api, 15, promise)
    (gone,) = set(deleted(api))
    going = claim(gone, "huge", deletion_timestamp="2026-01-01T00:00:00Z")
    api.live.tell(NODE_CLAIMS, going, change="modified")
    play(api, 5, promise)
    assert set(deleted(api)) == {gone}
    play(api, 5, promise)
    assert set(deleted(api)) == {"a", "b"}


def test_a_node_that_never_becomes_ready_goes_fifteen_minutes_after_its_order(api: Any, logged: Any) -> None:
    api.live.tell(NODE_CLAIMS, claim("a", ready_s=None))  # 630 s old
    api.on("DELETE", f"{PATH}/a", (200, {}))
    api.live.waits(pod("p"))
    play(api, 4)
    assert deleted(api) == provisioned(api) == [], "the pod is provided for by what is on its way"
    play(api, 1)
    assert deleted(api)[:1] == ["a"]
    play(api, 1)
    assert provisioned(api)[:1] == ["large"], "a small one was not even launched"
    assert "a has not become ready for 15 min; it counts, and is paid for" in logged()


def test_a_node_that_somebody_cordoned_keeps_its_pods_and_goes_without_any(api: Any) -> None:
    api.live.node("a", "small", pod("web"), unschedulable=True).node("b", "small", unschedulable=True)
    for name in "ab":
        api.on("DELETE", f"{PATH}/{name}", (200, {}))
    play(api, 60)
    assert set(deleted(api)) == {"b"}


def test_where_more_than_a_fifth_is_out_of_order_none_is_drained(api: Any, logged: Any) -> None:
    for name in "abc":
        api.live.node(name, "small", pod(f"web-{name}"), taints=(Taint("node.kubernetes.io/unreachable"),))
    play(api, 60)
    assert deleted(api) == []
    assert "3 nodes with pods are out of order, more than a fifth: none of them is drained" in logged()


# ---- sold out --------------------------------------------------------------------------------------------------------


def test_a_type_that_is_sold_out_is_not_ordered_again_and_another_is(api: Any, logged: Any) -> None:
    """Karpenter deletes a claim that finds no capacity."""
    api.on("POST", PATH, made)
    controller = api.live.waits(pod("p")).controller(EAGER, apply=True)
    for waited_s, orders in ((0, ["small"]), (11, ["small", "large"])):
        api.live.now_s += waited_s
        controller.step()
        assert provisioned(api) == orders
        gone = msgspec.convert(made(api.requests[-1][3])[1], wire.NodeClaimObject)
        api.live.tell(NODE_CLAIMS, gone)
        controller.step()
        api.live.tell(NODE_CLAIMS, gone, change="deleted")
        controller.step()
    for _ in range(16):
        api.live.now_s += 10.0
        controller.step()
    assert provisioned(api) == ["small", "large"], "nothing can be had"
    told = [f"{kind} (on-demand, a) cannot be had: others are provisioned" for kind in ("small", "large")]
    assert [each for each in logged() if "cannot be had" in each] == told
    for _ in range(3):
        api.live.now_s += 10.0
        controller.step()
    assert provisioned(api) == ["small", "large", "small"], "three minutes later it is tried again"


def test_after_failures_in_a_row_it_pauses_up_to_a_minute(api: Any) -> None:
    api.on("POST", PATH, (422, status(422, "Invalid")))
    controller = api.live.waits(pod("p")).controller(EAGER, apply=True)
    for _ in range(60):
        controller.step()
        api.live.now_s += 10.0
    assert 10 <= len(provisioned(api)) <= 15, "1, 2, 4, ... 60 s after one another, and a pod asks every 10 s"


def test_a_claim_that_comes_and_goes_between_two_looks_has_failed_too(api: Any) -> None:
    api.on("POST", PATH, made)
    controller = api.live.waits(pod("p")).controller(EAGER, apply=True)
    controller.step()
    gone = msgspec.convert(made(api.requests[-1][3])[1], wire.NodeClaimObject)
    api.live.tell(NODE_CLAIMS, gone).tell(NODE_CLAIMS, gone, change="deleted")
    for _ in range(2):
        controller.step()
        api.live.now_s += 11.0
    controller.step()
    assert provisioned(api) == ["small", "large"]


def test_a_claim_that_was_confirmed_and_is_never_seen_has_failed_too(api: Any) -> None:
    """It came and went while the watch was interrupted."""
    api.on("POST", PATH, made)
    controller = api.live.waits(pod("p")).controller(EAGER, apply=True)
    for _ in range(8):
        controller.step()
        api.live.now_s += 10.0
    assert provisioned(api) == ["small", "large"]


def test_a_claim_whose_launch_fails_is_given_back_with_its_reason(api: Any, logged: Any) -> None:
    failed = claim("a", ready_s=None)
    failed.status.conditions.append(wire.TimedCondition("Launched", "Unknown", "LaunchFailed", "quota exceeded"))
    api.on("DELETE", f"{PATH}/a", (200, {}))
    api.live.tell(NODE_CLAIMS, failed)
    api.live.controller(EAGER, apply=True).step()
    assert deleted(api) == ["a"]
    assert "small (on-demand) cannot be had (quota exceeded): others are provisioned" in logged()


# ---- NodePools -------------------------------------------------------------------------------------------------------


def pool(name: str = "default", limits: Any = None, used: Any = None, **more: Any) -> wire.NodePoolObject:
    conditions = more.pop("conditions", None)
    return wire.NodePoolObject(
        wire.Metadata(name, **{key: value for key, value in more.items() if key != "replicas"}),
        wire.NodePoolSpec(limits, more.get("replicas")),
        wire.NodePoolStatus(used, conditions),
    )


def test_a_pool_can_buy_unless_it_is_used_up_fixed_not_ready_or_on_its_way_out() -> None:
    pools = [
        pool("plain"), pool("room", {"cpu": "10"}, {"cpu": "9500m"}), pool("zero", {"cpu": "0"}),
        pool("full", {"cpu": "10", "memory": "9Ti"}, {"cpu": "10"}), pool("static", replicas=3),
        pool("unready", conditions=[wire.Condition("Ready", "False")]), pool("going", deletion_timestamp="2026"),
    ]  # fmt: skip
    assert active(pools) == ["plain", "room"]


def test_nothing_is_bought_while_karpenter_buys_itself(api: Any, logged: Any) -> None:
    api.on("POST", PATH, made)
    controller = api.live.waits(pod("p")).tell(NODE_POOLS, pool()).controller(EAGER, apply=True)
    controller.step()
    assert provisioned(api) == []
    assert "nothing is provisioned: Karpenter provisions for the same pods itself, by the NodePool default" in logged()
    api.live.tell(NODE_POOLS, pool(limits={"cpu": "0"}), change="modified")
    api.live.now_s += 11.0
    controller.step()
    assert provisioned(api) == ["small"]


def test_beside_a_pool_it_begins_only_where_somebody_says_so(tmp_path: Any, capsys: Any) -> None:
    with one_node() as server:
        kubeconfig = write_kubeconfig(tmp_path, server.server, token="t")
        server.on(
            "POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", (201, {"status": {"allowed": True}})
        )
        for path in (PATH, "/apis/policy/v1/poddisruptionbudgets"):
            server.on_list(path, listing())
        server.on_list(POOLS, listing({"metadata": {"name": "default"}, "spec": {}}))
        for path in (PATH, POOLS, "/apis/policy/v1/poddisruptionbudgets"):
            server.on_watch(path, [HANG])
        flags = ["--kubeconfig", str(kubeconfig), "--apply", "--no-leader-elect"]
        assert command("autoscale", flags) == 2
    error = capsys.readouterr().err
    assert (
        "Karpenter provisions for the same pods itself, by the NodePool default; delete it, set its limits to 0"
        in error
    )


# ---- several processes ----------------------------------------------------------------------------------------------

LEASE = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/aaml-autoscale"


def test_while_another_process_has_the_lease_nothing_is_looked_at_or_bought(tmp_path: Any, logged: Any) -> None:
    held = {"holderIdentity": "another", "leaseDurationSeconds": 15, "renewTime": "2026-01-01T00:00:00.000000Z"}
    with one_node() as server:
        server.on_list(LEASE, {"metadata": {"name": "aaml-autoscale", "resourceVersion": "1"}, "spec": held})
        reviews = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
        server.on("POST", reviews, (201, {"status": {"allowed": True}}))
        kubeconfig = write_kubeconfig(tmp_path, server.server, token="t")

        def stop() -> None:
            until(lambda: len(server.asked("GET", LEASE)) > 1, "it has looked at the lease twice")
            os.kill(os.getpid(), signal.SIGTERM)

        with Background(stop, "stop"):
            assert command("autoscale", ["--kubeconfig", str(kubeconfig), "--apply"]) == 0
        asked = {(method, path) for method, path, *_ in server.requests}
    assert asked == {("POST", reviews), ("GET", LEASE)}
    assert "standing by: another leads" in logged()


# ---- templates -------------------------------------------------------------------------------------------------------

NODEPOOL = """
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: default}
spec:
  template:
    metadata:
      labels: {team: shop}
      annotations: {note: by hand}
    spec:
      nodeClassRef: {group: karpenter.k8s.aws, kind: EC2NodeClass, name: mine}
      expireAfter: 48h
      terminationGracePeriod: 1h
      taints: [{key: shop, value: "yes", effect: NoSchedule}]
      startupTaints: [{key: cni, effect: NoExecute}]
      requirements:
        - {key: node.kubernetes.io/instance-type, operator: NotIn, values: [compute-1]}
        - {key: karpenter.sh/capacity-type, operator: In, values: [spot]}
"""


def test_a_template_says_what_nodes_are_like_and_which_may_be_bought(api: Any, tmp_path: Any) -> None:
    (tmp_path / "pool.yaml").write_text(NODEPOOL)
    template = NodeTemplate.read(tmp_path / "pool.yaml")
    assert template.spec == {
        "nodeClassRef": {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "mine"},
        "expireAfter": "48h",
        "terminationGracePeriod": "1h",
        "taints": [{"key": "shop", "value": "yes", "effect": "NoSchedule"}],
        "startupTaints": [{"key": "cni", "effect": "NoExecute"}],
    }
    body = new_claim(CATALOGUE["small"], template)
    assert body["metadata"]["labels"] == {"team": "shop", **OURS}
    assert body["metadata"]["annotations"] == {"note": "by hand"}
    assert body["spec"].items() >= template.spec.items()
    sold = template.catalogue(None)
    assert "compute-1" not in sold.numbers
    assert "compute-2" in sold.numbers
    assert {offering.capacity_type for kind in sold.types for offering in kind.offerings} == {"spot"}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("karpenter.sh/capacity-type", "spot"), ("node.kubernetes.io/instance-type", "compute-2"),
        ("beta.kubernetes.io/instance-type", "compute-2"), ("topology.kubernetes.io/zone", "zone-a"),
    ],
)  # fmt: skip
def test_a_label_that_every_type_has_is_a_requirement_as_it_is_for_karpenter(
    tmp_path: Any, key: str, value: str
) -> None:
    pool = NODEPOOL.replace("labels: {team: shop}", f"labels: {{team: shop, {key}: {value}}}")
    pool = pool.replace("[spot]", "[spot, on-demand]")
    (tmp_path / "pool.yaml").write_text(pool)
    template = NodeTemplate.read(tmp_path / "pool.yaml")
    sold = template.catalogue(None)
    for kind in sold.types:
        claim = msgspec.convert(new_claim(kind, template), wire.NodeClaimObject)
        assert claim.metadata.labels == {"team": "shop", **OURS}
        required = {each.key: each.values for each in claim.spec.requirements or ()}
        assert required[usual_key(key)] == [value]
        assert offering_of(claim, kind) == kind.cheapest, "its own claim is read as what was ordered"
    (tmp_path / "pool.yaml").write_text(pool.replace("[compute-1]", "[compute-2]"))
    if value == "compute-2":
        with pytest.raises(UserError, match=r"instance types: .* is not accepted; expected one with a type for"):
            NodeTemplate.read(tmp_path / "pool.yaml").catalogue(None)


@pytest.mark.parametrize("key", ["kubernetes.io/hostname", "karpenter.sh/nodepool", "karpenter.kwok.sh/instance-size"])
def test_a_label_that_nodes_cannot_have_in_common_is_refused(tmp_path: Any, key: str) -> None:
    (tmp_path / "pool.yaml").write_text(NODEPOOL.replace("labels: {team: shop}", f"labels: {{{key}: x}}"))
    with pytest.raises(UserError, match=f"metadata.labels: '{key}' is not accepted; expected .* labels of your own"):
        NodeTemplate.read(tmp_path / "pool.yaml")


def test_nodes_with_taints_are_bought_for_pods_that_tolerate_them(tmp_path: Any) -> None:
    (tmp_path / "pool.yaml").write_text(NODEPOOL)
    live = Live().waits(
        pod("no"), pod("yes", tolerations=(Toleration("shop", "Exists"),), node_selector={"team": "shop"})
    )
    live.nodes = OwnedNodes(live.watch, CATALOGUE, NodeTemplate.read(tmp_path / "pool.yaml"))
    live.node("a", taints=(Taint("shop", "yes"),), labels={**OURS, "team": "shop"})
    seen = live.nodes.observe(NOW_S)
    assert [each.pod.name for each in seen.waiting.values()] == ["yes"]
    assert seen.nodes["a"].initialized_s is not None, "its taint and label are how it was ordered"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("operator: NotIn", "operator: Gt", "Gt on node.kubernetes.io/instance-type"),
        ("key: karpenter.sh/capacity-type", "key: karpenter.k8s.aws/instance-family", "instance-family"),
        ("expireAfter", "expiresAfter", "unknown field `expiresAfter`"),
        ("values: [spot]", "values: [rented]", "instance types"),
        ("expireAfter: 48h", "expireAfter: 2 days", "expireAfter"),
        ("terminationGracePeriod: 1h", "terminationGracePeriod: Never", "terminationGracePeriod"),
        ("effect: NoExecute", "effect: NoEntry", "NoEntry"),
    ],
)
def test_what_a_template_says_and_nobody_honours_is_refused_by_name(
    tmp_path: Any, old: str, new: str, message: str
) -> None:
    (tmp_path / "pool.yaml").write_text(NODEPOOL.replace(old, new))
    with pytest.raises(UserError, match=message):
        NodeTemplate.read(tmp_path / "pool.yaml").catalogue(None)


# ---- what other templates, people, clocks and the API do ------------------------------------------------------------


def of_another_template(live: Live, name: str, *pods: Any) -> Live:
    """Add a node that was provisioned with a taint."""
    other = claim(name, "large")
    other.spec.taints = [wire.TaintObject("shop", "NoSchedule", "yes")]
    live.tell(NODE_CLAIMS, other).tell(NODES, make.node(f"n-{name}", 8000, 32 * GIB, taints=(Taint("shop", "yes"),)))
    return live.tell(PODS, *(SeenPod(replace(each, node_name=f"n-{name}")) for each in pods))


def test_nodes_with_taints_of_another_template_are_no_room_for_other_pods(api: Any, logged: Any) -> None:
    api.on("POST", PATH, made)
    of_another_template(api.live, "a", pod("shop", 1.0, tolerations=(Toleration("shop", "Exists"),)))
    api.live.node("b", "small", pod("web", 1.5)).waits(pod("p"))
    controller = api.live.controller(EAGER, apply=True)
    controller.step()
    assert provisioned(api) == ["small"]
    assert deleted(api) == [], "the pod of b cannot go to a"
    assert any("a takes no pods: it has the taint shop of another template" in each for each in logged())


def test_nodes_without_a_label_of_the_template_are_no_room_for_pods_that_select_it(api: Any, tmp_path: Any) -> None:
    (tmp_path / "pool.yaml").write_text(NODEPOOL.split("      taints:", maxsplit=1)[0])
    api.on("POST", PATH, made)
    api.live.nodes = OwnedNodes(api.live.watch, CATALOGUE, NodeTemplate.read(tmp_path / "pool.yaml"))
    api.live.node("a", "large", pod("web", 3.0)).waits(pod("p"))
    controller = api.live.controller(EAGER, apply=True)
    controller.step()
    assert provisioned(api) == [], "it has room for a pod that selects nothing"
    api.live.waits(pod("q", node_selector={"team": "shop"}))
    api.live.now_s += 11.0
    controller.step()
    assert provisioned(api) == ["small"]


def test_pods_that_do_not_tolerate_the_templates_taints_keep_their_nodes(api: Any, tmp_path: Any) -> None:
    (tmp_path / "pool.yaml").write_text(NODEPOOL)
    template = NodeTemplate.read(tmp_path / "pool.yaml")
    api.live.nodes = OwnedNodes(api.live.watch, CATALOGUE, template)
    api.live.node("old", "small", pod("web", 0.5))
    api.live.node("new", "large", pod("shop", tolerations=(Toleration("shop", "Exists"),)), taints=template.taints)
    controller = api.live.controller(EAGER, apply=True)
    for _ in range(5):
        controller.step()
        api.live.now_s += 10.0
    assert "old" not in deleted(api)


@pytest.mark.parametrize("on", ["node", "claim"])
def test_a_node_that_is_annotated_stays_and_keeps_no_other_from_going(api: Any, on: str) -> None:
    kept = {"karpenter.sh/do-not-disrupt": "true"}
    api.live.tell(NODE_CLAIMS, claim("a", **({"annotations": kept} if on == "claim" else {})))
    raw = {"metadata": {"name": "n-a", "annotations": kept if on == "node" else {}},
           "status": {"allocatable": {"cpu": "2", "memory": "8Gi", "pods": "110"}}}  # fmt: skip
    api.live.tell(NODES, node_from_api(msgspec.convert(raw, wire.NodeObject)))
    api.live.node("b", "small", pod("web", 0.5))
    api.on("DELETE", f"{PATH}/b", (200, {}))
    play(api, 20)
    assert deleted(api) == ["b"], "a has room for its pod"


def test_a_node_that_the_api_does_not_let_go_keeps_no_other_from_going(api: Any, logged: Any) -> None:
    api.live.node("a").node("b", "small", pod("web", 0.5))
    api.on("DELETE", f"{PATH}/a", (403, status(403, "Forbidden")))
    api.on("DELETE", f"{PATH}/b", (200, {}))
    controller = api.live.controller(EAGER, apply=True)
    for _ in range(8):
        controller.step()
        api.live.now_s += 10.0
    assert deleted(api).count("b") == 1
    assert deleted(api).count("a") == 2, "it is tried again a minute later"
    assert len([each for each in logged() if "is not terminated" in each]) == 1


def test_orders_that_fail_alike_are_told_once(api: Any, logged: Any) -> None:
    """The API server's text names the claim, and each order has a name of its own."""

    def refused(body: bytes) -> tuple[int, Any]:
        name = json.loads(body)["metadata"]["name"]
        return 422, {**status(422, "Invalid"), "message": f'NodeClaim.karpenter.sh "{name}" is invalid'}

    api.on("POST", PATH, refused)
    controller = api.live.waits(pod("p")).controller(EAGER, apply=True)
    for _ in range(10):
        controller.step()
        api.live.now_s += 61.0
    assert len(provisioned(api)) > 3
    assert len([each for each in logged() if "is provisioned: 422" in each]) == 1


def test_pods_that_wait_although_there_is_room_are_told_with_what_kube_scheduler_says(api: Any, logged: Any) -> None:
    why = "0/1 nodes are available: 1 node(s) didn't satisfy existing pods anti-affinity rules."
    api.live.node("a", "large", pod("alone", 7.0)).waits(pod("p"), why=why)
    play(api, 40)
    told = [each for each in logged() if each.startswith("1 pod waits for 15 min and longer (default/p)")]
    assert len(told) == 2
    assert told[0].endswith(f"kube-scheduler says of default/p: {why}")


def test_a_pod_that_keeps_its_node_takes_nothing_of_a_budget(api: Any) -> None:
    web = {"labels": {"app": "web"}}
    api.live.node("stuck", "small", pod("kept", do_not_disrupt=True, **web), taints=(Taint("karpenter.sh/disrupted"),))
    api.live.tell(NODE_CLAIMS, claim("stuck", deletion_timestamp="2026-11-27T08:00:00Z"), change="modified")
    api.live.node("a", "small", pod("web", 0.5, **web)).node("b", "large", pod("big", 2.0)).tell(
        BUDGETS, budget("b", 1)
    )
    api.on("DELETE", f"{PATH}/a", (200, {}))
    play(api, 20)
    assert deleted(api)[:1] == ["a"]


def test_a_budget_whose_status_is_of_a_version_before_lets_nothing_go(api: Any) -> None:
    selector = {"matchLabels": {"app": "web"}}
    raw = {"metadata": {"name": "b", "namespace": "default", "generation": 2}, "spec": {"selector": selector},
           "status": {"disruptionsAllowed": 1, "observedGeneration": 1}}  # fmt: skip
    api.live.node("a", "small", pod("web", labels={"app": "web"})).node("b", "large", pod("big", 2.0))
    api.live.tell(BUDGETS, see_budget(msgspec.convert(raw, wire.BudgetObject)))
    api.on("DELETE", f"{PATH}/a", (200, {}))
    controller = api.live.controller(EAGER, apply=True)
    controller.step()
    assert deleted(api) == []
    raw["status"]["observedGeneration"] = 2
    api.live.tell(BUDGETS, see_budget(msgspec.convert(raw, wire.BudgetObject)), change="modified")
    api.live.now_s += 10.0
    controller.step()
    assert deleted(api) == ["a"]


def test_a_new_node_is_kept_for_pods_that_wait_also_where_karpenters_clock_is_an_hour_behind(api: Any) -> None:
    api.on("POST", PATH, made)
    controller = api.live.waits(pod("p")).controller(EAGER, apply=True)
    controller.step()
    name = made(api.requests[-1][3])[1]["metadata"]["name"]
    api.live.now_s += 30.0
    api.live.tell(NODE_CLAIMS, claim(name, ready_s=api.live.now_s - 3600)).tell(NODES, make.node(f"n-{name}", 2000))
    for _ in range(5):
        api.live.now_s += 10.0
        controller.step()
    assert deleted(api) == []


def test_a_clock_that_somebody_sets_moves_nothing(monkeypatch: Any) -> None:
    clock = steady_clock()
    before_s = clock()
    monkeypatch.setattr("time.time", lambda: before_s - 3600.0)
    assert 0.0 <= clock() - before_s < 60.0


def test_as_many_moves_as_anybody_may_write_take_no_memory(api: Any) -> None:
    api.live.controller(EAGER, limits=MoveLimits(moves=10**15), apply=True).begin(lambda: False)


# ---- metrics ---------------------------------------------------------------------------------------------------------


def test_metrics_tell_nodes_orders_and_refusals(api: Any) -> None:
    metrics = AutoscaleMetrics()
    api.on("POST", PATH, made)
    api.live.node("a", taints=(Taint("mine"),)).waits(*(pod(f"p{number}", 7.5) for number in range(5)))
    api.live.controller(EAGER, limits=MoveLimits(most_nodes=3), apply=True, metrics=metrics).step()
    text = metrics.text().decode()
    for line in (
        "aaml_autoscale_node_claims 3.0", "aaml_autoscale_most_nodes 3.0", 'aaml_autoscale_nodes{state="trouble"} 1.0',
        "aaml_autoscale_waiting_pods 5.0", 'aaml_autoscale_orders_total{verb="buy"} 2.0',
        'aaml_autoscale_refused_total{reason="most-nodes"} 3.0', 'aaml_autoscale_orders_total{verb="delete"} 0.0',
    ):  # fmt: skip
        assert line in text


# ---- ways to buy a type ----------------------------------------------------------------------------------------------


def in_zones(*ways: tuple[float, str, str]) -> Any:
    """Return a type that can be bought in these ways: a price, a capacity type, a zone."""
    return replace(CATALOGUE["small"], offerings=tuple(Offering(*each) for each in ways))


@pytest.mark.parametrize("dearer", [1.0, 1.5])
@pytest.mark.parametrize("key", [ZONE_LABEL, "failure-domain.beta.kubernetes.io/zone"])
def test_a_node_is_provisioned_in_the_zone_that_pods_select(api: Any, logged: Any, dearer: float, key: str) -> None:
    api.on("POST", PATH, made)
    sold = Catalogue((in_zones((1.0, "on-demand", "a"), (dearer, "on-demand", "b"), (0.5, "spot", "a")),))
    api.live.nodes = OwnedNodes(api.live.watch, sold)
    api.live.waits(pod("p", 1.5, node_selector={key: "b"}), pod("q", 1.5, node_selector={CAPACITY_TYPE_LABEL: "spot"}))
    api.live.controller(EAGER, apply=True).step()
    ordered = [
        {each["key"]: each["values"][0] for each in body["spec"]["requirements"]} for body in api.bodies("POST", PATH)
    ]
    provisioned_in = sorted((each[ZONE_LABEL], each[CAPACITY_TYPE_LABEL]) for each in ordered)
    assert provisioned_in == [("a", "spot"), ("b", "on-demand")]
    assert not [each for each in logged() if "fits no instance type" in each]


def test_a_zone_in_which_nothing_is_sold_is_told(api: Any, logged: Any) -> None:
    api.live.nodes = OwnedNodes(api.live.watch, Catalogue((in_zones((1.0, "on-demand", "a")),)))
    api.live.waits(pod("p", node_selector={ZONE_LABEL: "c"}))
    play(api, 1)
    assert provisioned(api) == []
    assert [each for each in logged() if "default/p waits" in each and "fits no instance type" in each]
