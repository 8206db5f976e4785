"""What `aaml autoscale` sees of a cluster, and what it never does whatever the autoscaler orders."""

import re
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from aaml.cli import run as command
from aaml.cluster.objects import TYPE_LABEL, Affinity, HostPort, NodeSelectorTerm, Taint
from aaml.errors import UserError
from aaml.kube.objects import wire
from aaml.kube.reflector import Trouble
from aaml.kube.sources import NODE_CLAIMS, NODES, PODS, SeenPod
from aaml.kube.transport import Transport, Unreachable
from aaml.live.autoscale_metrics import AutoscaleMetrics
from aaml.live.node_claims import OURS
from aaml.live.node_controller import MoveLimits
from aaml.live.node_template import NodeTemplate
from aaml.live.owned_nodes import OwnedNodes
from aaml.nodes.commitments import Commitments, Reservation
from aaml.nodes.learned_rules import LAUNCH_S, LEAD_S
from support import make
from support.scripted_api import HANG, ScriptedApi, listing, one_node, write_kubeconfig
from support.watched_nodes import CATALOGUE, EAGER, GIB, NOW_S, PATH, UNSCHEDULABLE, Live, claim, pod

# ---- what is seen ----------------------------------------------------------------------------------------------------


def test_a_node_is_known_from_its_claim_on_with_the_pods_that_run_there() -> None:
    live = Live().node(
        "a", "small", pod("web"), pod("logs", 0.1, owner="DaemonSet/logs"), pod("gone", terminating=True)
    )
    live.tell(NODE_CLAIMS, claim("b", "large", ready_s=None)).waits(pod("next"))
    seen = live.nodes.observe(NOW_S)
    assert {name: (node.type.name, node.launched_s, node.initialized_s) for name, node in seen.nodes.items()} == {
        "a": ("small", NOW_S - 630, NOW_S - 600),
        "b": ("large", NOW_S - 630, None),
    }
    assert {each.name for each in seen.pods_on("a").values()} == {"web", "gone"}, "daemons come and go with the node"
    assert seen.stopping == {"default/gone"}
    assert [(each.pod.name, each.since_s) for each in seen.waiting.values()] == [("next", NOW_S - 30)]


def test_on_a_cluster_that_goes_five_times_faster_a_second_counts_five() -> None:
    kept = pod("web", do_not_disrupt=True, do_not_disrupt_s=60.0, started_s=NOW_S - 20)
    live = Live().node("a", "small", kept).waits(pod("next", 2.0))
    live.nodes = OwnedNodes(live.watch, CATALOGUE, speed=5.0)
    controller = live.controller(replace(EAGER, idle_s=50.0, patience_s=200.0, patience_growth=0.0, look_s=1000.0))
    assert controller.step() == 1.0, "50 s are 10 s of the clock: it looks again as late as it ever does"
    now_s = NOW_S * 5
    seen = live.nodes.observe(now_s)
    assert (seen.nodes["a"].launched_s, seen.nodes["a"].initialized_s) == (now_s - 630 * 5, now_s - 600 * 5)
    assert [each.since_s for each in seen.waiting.values()] == [now_s - 30 * 5]
    assert seen.released_s == {kept.uid: now_s + 40 * 5}
    live.now_s += 9.9
    assert controller.step() == pytest.approx(0.2), (
        "half a second is left: a tenth on the clock, less than it ever waits"
    )
    assert live.told == []
    live.now_s += 0.2
    controller.step()
    assert [order.verb for order in live.told] == ["provision"]


def test_the_claims_of_others_are_seen_only_where_all_are_asked_for() -> None:
    live = Live().node("theirs", labels={"karpenter.sh/nodepool": "default"})
    assert live.nodes.observe(NOW_S).nodes == {}
    assert OwnedNodes(live.watch, CATALOGUE, all_claims=True).observe(NOW_S).nodes.keys() == {"theirs"}


@pytest.mark.parametrize(
    "fields",
    [
        {"unschedulable": True},
        {"taints": (Taint("node.kubernetes.io/unreachable", effect="NoExecute"),)},
    ],
)
def test_a_node_that_takes_no_pods_is_neither_room_nor_given_back(fields: Any) -> None:
    assert Live().node("a", **fields).nodes.observe(NOW_S).nodes == {}


def test_a_node_that_karpenter_drains_is_on_its_way_out() -> None:
    live = Live().node("a", taints=(Taint("karpenter.sh/disrupted"),))
    live.tell(NODE_CLAIMS, claim("b", deletion_timestamp="2026-11-27T08:00:00Z"))
    assert {name: node.deleting for name, node in live.nodes.observe(NOW_S).nodes.items()} == {"a": True, "b": True}


ONE_TERM = Affinity(required_nodes=(NodeSelectorTerm(),))


@pytest.mark.parametrize(
    "other",
    [
        pod("p", gates=("later",)),
        pod("p", nominated_node="n"),
        pod("p", owner="DaemonSet/d"),
        pod("p", 9.0),  # fits no type
        pod("p", node_selector={"disk": "fast"}),
        pod("p", affinity=ONE_TERM),
        pod("p", host_ports=(HostPort(80),)),
        replace(pod("p"), requests={"cpu": 100, "example.com/fpga": 1}),
    ],
)
def test_no_node_is_bought_for_a_pod_that_it_would_not_help(other: Any) -> None:
    assert Live().waits(other).nodes.observe(NOW_S).waiting == {}


def test_a_pod_that_the_scheduler_has_not_tried_yet_does_not_wait_for_a_node() -> None:
    assert Live().waits(pod("p"), why="").nodes.observe(NOW_S).waiting == {}


def test_pods_that_nobody_makes_again_or_that_need_more_than_room_keep_their_node() -> None:
    live = Live().node("a", "large", pod("bare", owner=""), pod("tied", affinity=ONE_TERM), pod("web"))
    live.tell(PODS, SeenPod(replace(pod("disk"), node_name="n-a"), claims=wire.PodObject()))
    assert live.nodes.observe(NOW_S).blocked == {"default/bare", "default/tied", "default/disk"}


def test_what_nodes_keep_for_themselves_and_for_daemons_is_not_sold_again() -> None:
    live = Live().node("a", "small", pod("logs", 0.2, owner="DaemonSet/logs"), pod("web"), less=300)
    assert live.nodes.measure()
    assert not live.nodes.measure(), "it has been seen"
    left = {each.name: dict(each.allocatable)["cpu"] for each in live.nodes.catalogue.types}
    assert left == {"small": 2000 - 300 - 200, "large": 8000 - 200}, "how much a large node keeps is not known yet"


def test_the_room_of_types_grows_again_when_daemons_go() -> None:
    greedy = pod("greedy", 1.9, owner="DaemonSet/greedy")
    live = Live().node("a", "small", greedy).node("b", "large", pod("greedy-b", 1.9, owner="DaemonSet/greedy"))
    live.nodes.measure()
    live.tell(NODE_CLAIMS, claim("b", "large"), change="deleted").tell(NODES, make.node("n-b"), change="deleted")
    live.tell(PODS, SeenPod(replace(greedy, node_name="n-a")), change="deleted")
    assert live.nodes.measure()
    left = {each.name: dict(each.allocatable)["cpu"] for each in live.nodes.catalogue.types}
    assert left == {"small": 2000, "large": 8000}


# ---- what is ordered -------------------------------------------------------------------------------------------------


def test_a_dry_run_says_what_it_would_do_and_why_once_and_writes_nothing() -> None:
    live = Live().waits(pod("a"), pod("b"))  # no transport: a request would fail
    metrics = AutoscaleMetrics()
    controller = live.controller(EAGER, metrics=metrics)
    for _ in range(30):
        controller.step()
        live.now_s += 5.0
    said = "would provision small: 2 pods wait (default/a, default/b), 30 s the longest; costs $1.0000 an hour"
    assert live.lines() == [said], "two pods of a core fill the small one"
    second = metrics.registry.get_sample_value("aaml_autoscale_second_dollars_per_hour")
    assert second == pytest.approx(1.0 / 3600.0), "one node of a dollar an hour, however often it is ordered"


def test_a_dry_run_goes_on_as_if_an_empty_node_that_it_would_delete_were_gone() -> None:
    live = Live().node("empty").node("dear", "large", pod("web", 1.5))
    controller = live.controller(EAGER)
    for _ in range(5):
        controller.step()
        live.now_s += 3.0
    assert live.lines() == [
        "would delete empty (small): it has no pods; saves $1.0000 an hour",
        "would provision small: in place of dear; saves $2.6000 an hour",
    ], "the empty one is no room for the pod"
    live.tell(PODS, SeenPod(replace(pod("new", 0.5), node_name="n-empty")))
    live.now_s += 60.0
    for _ in range(3):
        controller.step()
        live.now_s += 3.0
    assert live.lines()[2:] == ["would delete dear (large): its pod fits on other nodes; saves $3.6000 an hour"]


def test_an_empty_node_stays_that_a_reservation_pays_for_and_takes_the_pods_of_one_on_demand() -> None:
    live = Live().node("empty").node("other").node("dear", "large", pod("web", 0.5))
    reserved = Reservation(instance_type="small", count=1, dollars_per_hour=0.6)
    controller = live.controller(EAGER, commitments=Commitments(reservations=(reserved,)))
    for _ in range(5):
        controller.step()
        live.now_s += 3.0
    first, *others = live.lines()
    assert re.match(r"would delete (empty|other) \(small\): it has no pods; saves", first)
    assert others == ["would delete dear (large): its pod fits on other nodes; saves $3.6000 an hour"]


def test_a_dry_run_says_that_claims_of_others_are_not_judged(caplog: Any) -> None:
    caplog.set_level("INFO", "aaml")
    live = Live().node("theirs", labels={}).node("mine", "small", pod("web", 2.0))
    live.controller(EAGER).begin(lambda: False)
    assert caplog.messages == ["NodeClaims that are not ours, and are left alone: 1; --all-claims looks at them too"]
    live.nodes = OwnedNodes(live.watch, CATALOGUE, all_claims=True)
    live.controller(EAGER).begin(lambda: False)
    assert len(caplog.messages) == 1


def test_a_dry_run_over_all_claims_says_which_are_not_ours() -> None:
    live = Live().node("theirs", labels={})
    live.nodes = OwnedNodes(live.watch, CATALOGUE, all_claims=True)
    live.controller(EAGER).step()
    assert live.lines() == ["would delete theirs (small, not ours): it has no pods; saves $1.0000 an hour"]


@pytest.fixture
def api() -> Any:
    with ScriptedApi() as server, closing(Transport(server=server.server)) as transport:
        server.live = Live(transport)  # type: ignore[attr-defined]
        yield server


def deleted(api: Any) -> list[str]:
    return [path.rpartition("/")[2] for method, path, *_ in api.requests if method == "DELETE"]


def test_a_bought_node_is_a_claim_of_ours_that_names_all_of_it(api: Any) -> None:
    made = {"metadata": {"name": "aaml-x", "uid": "u", "labels": OURS}, "spec": {"requirements": [
        {"key": TYPE_LABEL, "operator": "In", "values": ["small"]}]}}  # fmt: skip
    api.on("POST", PATH, (201, made))
    controller = api.live.waits(pod("a")).controller(EAGER, apply=True)
    controller.step()
    (body,) = api.bodies("POST", PATH)
    assert re.fullmatch("aaml-[0-9a-f]{10}", body["metadata"].pop("name"))
    assert body["metadata"] == {"labels": OURS}
    assert body["spec"].keys() == {"nodeClassRef", "requirements", "expireAfter"}
    assert body["spec"]["expireAfter"] == "720h", "as Karpenter has it where nobody says otherwise"
    assert body["spec"]["nodeClassRef"] == {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "default"}
    assert {each["key"]: each["values"] for each in body["spec"]["requirements"]} == {
        "node.kubernetes.io/instance-type": ["small"],
        "karpenter.sh/capacity-type": ["on-demand"],
        "kubernetes.io/arch": ["amd64"],
        "kubernetes.io/os": ["linux"],
        "topology.kubernetes.io/zone": ["a"],
    }
    api.live.now_s += 30.0
    controller.step()
    assert len(api.bodies("POST", PATH)) == 1, "it is known before the watch tells of it"


def test_no_more_nodes_go_in_an_interval_than_are_allowed(api: Any) -> None:
    for name in "abcd":
        api.live.node(name)
        api.on("DELETE", f"{PATH}/{name}", (200, {}))
    controller = api.live.controller(EAGER, limits=MoveLimits(moves=2, interval_s=60.0), apply=True)
    for _ in range(5):
        controller.step()
        api.live.now_s += 10.0
    assert len(deleted(api)) == 2
    for _ in range(3):
        controller.step()
        api.live.now_s += 10.0
    assert sorted(deleted(api)) == ["a", "b", "c", "d"], "60 s later, each once"
    assert api.bodies("DELETE", f"{PATH}/a")[0]["preconditions"] == {"uid": "u-a"}


def test_a_claim_that_is_not_ours_is_never_deleted(api: Any) -> None:
    api.live.node("theirs", labels={"karpenter.sh/nodepool": "default"})
    api.live.nodes = OwnedNodes(api.live.watch, CATALOGUE, all_claims=True)
    api.live.controller(EAGER, apply=True).step()
    assert api.requests == []


def test_a_node_with_a_pod_that_may_not_be_disrupted_stays(api: Any) -> None:
    api.live.node("a", "small", pod("job", 0.1, do_not_disrupt=True)).node("b", "large", pod("web"))
    api.live.controller(EAGER, apply=True).step()
    assert "a" not in deleted(api)


def test_a_pod_that_may_not_be_disrupted_for_a_time_keeps_its_node_until_then(api: Any) -> None:
    kept = {"do_not_disrupt": True, "do_not_disrupt_s": 60.0}
    api.live.node("a", "small", pod("web", started_s=NOW_S - 20, **kept))
    api.live.node("b", "large", pod("more", 5.0), pod("unknown", 0.1, **kept))
    api.on("DELETE", f"{PATH}/a", (200, {}))
    controller = api.live.controller(EAGER, apply=True)
    for passed_s in range(0, 60, 3):
        api.live.now_s = NOW_S + passed_s
        controller.step()
        assert deleted(api) == (["a"] if passed_s >= 40 else []), "nobody says when the pod on the other began to run"


def test_a_node_whose_pods_fit_elsewhere_goes_and_one_whose_pods_do_not_stays(api: Any) -> None:
    api.live.node("a", "small", pod("web", 1.0)).node("b", "small", pod("more", 0.5))
    for name in "ab":
        api.on("DELETE", f"{PATH}/{name}", (200, {}))
    controller = api.live.controller(EAGER, apply=True)
    for _ in range(10):
        controller.step()
        api.live.now_s += 3.0
    assert len(deleted(api)) == 1, "the pods of the one that stays would have nowhere to go"
    assert "its pod fits on other nodes; saves $1.0000 an hour" in api.live.lines()[0]


def test_a_cheaper_node_is_bought_first_and_the_dear_one_goes_once_that_is_ready(api: Any) -> None:
    live = api.live.node("dear", "large", pod("web", 1.5))
    ordered = claim("aaml-x", ready_s=None)
    made = {"metadata": {"name": "aaml-x", "uid": "u-aaml-x", "labels": ordered.metadata.labels}}
    api.on("POST", PATH, (201, made))
    api.on("DELETE", f"{PATH}/dear", (200, {}))
    controller = live.controller(EAGER, apply=True)
    for _ in range(3):
        controller.step()
        live.now_s += 10.0
    assert live.lines() == ["provision small: in place of dear; saves $2.6000 an hour"]
    live.tell(NODE_CLAIMS, claim("aaml-x", ready_s=live.now_s), change="modified")
    controller.step()
    assert deleted(api) == [], "its node has not been seen"
    live.tell(NODES, make.node("n-aaml-x", 2000, 8 * GIB))
    live.now_s += 1.0
    controller.step()
    assert deleted(api) == ["dear"]
    live.now_s += 5.0
    controller.step()
    assert deleted(api) == ["dear"], "the new one is empty until the pods have come"


def test_how_long_nodes_take_to_come_here_says_when_they_are_provisioned(api: Any) -> None:
    live, metrics = api.live.node("old", ready_s=NOW_S - 500.0), AutoscaleMetrics()
    live.tell(NODE_CLAIMS, claim("new", ready_s=None))
    controller = live.controller(replace(EAGER, wait_p99_s=60.0), metrics=metrics)

    def lead_s() -> float:
        controller.step()
        live.now_s += 1.0
        found = metrics.registry.get_sample_value("aaml_autoscale_lead_seconds")
        assert found is not None
        return found

    before = lead_s()
    assert lead_s() == before
    live.tell(NODE_CLAIMS, claim("new", ready_s=NOW_S - 1.0), change="modified").tell(NODES, make.node("n-new", 2000))
    after = lead_s()
    assert after == pytest.approx(before + 0.2 * 2.0 * LAUNCH_S), "ready 629 s after its launch, which counts as less"
    assert lead_s() == after, "once"
    for unschedulable in (True, False):
        cordoned = make.node("n-new", 2000, unschedulable=unschedulable)
        live.tell(NODES, cordoned, change="modified")
        assert lead_s() == after, "a node that was cordoned has not come again"


def test_pods_for_which_a_limit_refuses_nodes_are_late_and_bring_no_others_forward(api: Any) -> None:
    live, metrics = api.live.node("a", "large", pod("web", 7.0)), AutoscaleMetrics()
    controller = live.controller(
        replace(EAGER, wait_p99_s=45.0), metrics=metrics, apply=True, limits=MoveLimits(most_nodes=1)
    )
    jobs = [pod(f"job-{at}", 0.5) for at in range(60)]
    live.waits(*jobs)
    for _ in range(3):
        controller.step()
        live.now_s += 100.0
    lead_s = metrics.registry.get_sample_value("aaml_autoscale_lead_seconds")
    live.tell(PODS, *(SeenPod(replace(each, node_name="n-a")) for each in jobs), change="modified")
    controller.step()
    assert metrics.registry.get_sample_value("aaml_autoscale_late_pods_total") == 60.0
    assert metrics.registry.get_sample_value("aaml_autoscale_lead_seconds") == lead_s == LAUNCH_S + LEAD_S


def test_a_pod_waits_for_a_node_from_when_its_gates_are_gone(api: Any) -> None:
    live, metrics = api.live.node("a", "large", pod("web", 6.0)), AutoscaleMetrics()
    controller = live.controller(replace(EAGER, wait_p99_s=45.0), metrics=metrics)
    jobs = [pod(f"job-{at}", 0.5, gates=("kueue.x-k8s.io/admission",)) for at in range(2)]
    live.waits(*jobs, why="")
    for _ in range(2):
        controller.step()
        live.now_s += 1800.0
    controller.step()
    free, waits = (replace(each, gates=()) for each in jobs)
    live.tell(PODS, SeenPod(replace(free, node_name="n-a", started_s=live.now_s + 1.0)), change="modified")
    live.tell(PODS, SeenPod(waits, why=UNSCHEDULABLE), change="modified")
    live.now_s += 2.0
    controller.step()
    assert metrics.registry.get_sample_value("aaml_autoscale_late_pods_total") == 0.0
    assert metrics.registry.get_sample_value("aaml_autoscale_waited_seconds_total") == 1.0
    (waiting,) = live.nodes.observe(live.now_s).waiting.values()
    assert (waiting.pod.uid, waiting.since_s) == (waits.uid, live.now_s - 2.0)


@pytest.mark.parametrize("answer", [200, 502])
def test_a_pod_that_is_gone_before_the_next_look_counts_as_evicted(api: Any, answer: int) -> None:
    live = api.live.node("a", "small", pod("web", 0.5)).node("b", "large", pod("other", 2.0))
    api.on("DELETE", f"{PATH}/a", (answer, {}))
    metrics = AutoscaleMetrics()
    controller = live.controller(EAGER, apply=True, metrics=metrics)
    while not deleted(api):
        controller.step()
        live.now_s += 1.0
    assert deleted(api) == ["a"]
    live.tell(PODS, SeenPod(replace(pod("web", 0.5), node_name="n-a")), change="deleted")
    live.tell(NODE_CLAIMS, claim("a", "small"), change="deleted").tell(NODES, make.node("n-a"), change="deleted")
    controller.step()
    assert metrics.registry.get_sample_value("aaml_autoscale_evicted_pods_total") == 1.0


def test_a_node_that_is_ready_just_now_is_kept_for_the_pods_that_wait_for_it(api: Any) -> None:
    api.live.node("new", ready_s=NOW_S - 5).waits(pod("p"))
    api.on("DELETE", f"{PATH}/new", (200, {}))
    controller = api.live.controller(EAGER, apply=True)
    controller.step()
    assert deleted(api) == []
    api.live.now_s += 60.0
    controller.step()
    assert deleted(api) == ["new"], "nobody came"


def test_no_more_nodes_are_bought_than_are_allowed(api: Any, caplog: Any) -> None:
    api.on("POST", PATH, *((201, {"metadata": {"name": f"x{n}", "uid": f"x{n}"}}) for n in range(9)))
    api.live.waits(*(pod(f"p{n}", 7.5) for n in range(5)))
    api.live.controller(EAGER, limits=MoveLimits(most_nodes=2), apply=True).step()
    assert len(api.bodies("POST", PATH)) == 2
    assert caplog.messages == ["0 of 2 nodes (--most-nodes): 3 of 5 are not provisioned; 5 pods wait"]


def test_where_the_nodes_are_as_many_as_allowed_no_larger_one_takes_the_place_of_a_smaller_and_the_log_says_so(
    api: Any, caplog: Any
) -> None:
    for name in "abc":
        api.live.node(name, "small", pod(f"on-{name}", 1.5))
    api.live.waits(*(pod(f"p{n}") for n in range(5)))
    controller = api.live.controller(EAGER, limits=MoveLimits(most_nodes=3), apply=True)
    for _ in range(10):
        controller.step()
        api.live.now_s += 10.0
    assert api.requests == []
    assert caplog.messages == ["3 of 3 nodes (--most-nodes): nothing is provisioned; 5 pods wait"]


def test_nothing_is_decided_while_a_part_of_the_cluster_is_not_heard(api: Any) -> None:
    controller = api.live.node("a").controller(EAGER, apply=True)
    api.live.watch._take(Trouble(PODS.name, Unreachable("gone")))
    controller.step()
    assert deleted(api) == []
    api.on("DELETE", f"{PATH}/a", (200, {}))
    api.live.tell(PODS)
    controller.step()
    assert deleted(api) == ["a"]


# ---- the command -----------------------------------------------------------------------------------------------------


def test_a_class_that_is_not_written_as_one_is_refused() -> None:
    with pytest.raises(UserError, match="node_class: 'default' is not accepted; expected GROUP/KIND/NAME"):
        NodeTemplate.plain("default")


def test_mistakes_are_told_in_one_line(tmp_path: Any, capsys: Any) -> None:
    (tmp_path / "pool.yaml").write_text("apiVersion: karpenter.sh/v1\nkind: NodePool\nspec: {}\n")
    for arguments, said in (
        (["--apply", "--all-claims"], "all-claims: goes with a dry run alone"),
        (["--nodes", str(tmp_path / "pool.yaml")], "a NodePool is for Karpenter"),
        (["--nodes", "none.yaml"], "nodes: 'none.yaml' is not accepted"),
    ):
        assert command("autoscale", arguments) == 2
        error = capsys.readouterr().err
        assert said in error
        assert error.count("\n") == 1


def test_a_cluster_without_karpenter_is_told_so(tmp_path: Any, capsys: Any) -> None:
    with one_node() as server:
        kubeconfig = write_kubeconfig(tmp_path, server.server, token="t")
        server.on(
            "POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", (201, {"status": {"allowed": True}})
        )
        server.on_list(PATH, (404, {}))
        for path in ("/apis/karpenter.sh/v1/nodepools", "/apis/policy/v1/poddisruptionbudgets"):
            server.on_list(path, listing())
            server.on_watch(path, [HANG])
        assert command("autoscale", ["--kubeconfig", str(kubeconfig)]) == 2
    assert "Karpenter is not installed on this cluster: it has no nodeclaims" in capsys.readouterr().err
