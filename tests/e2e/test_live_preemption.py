"""Preemption on a real API server: who leaves, who gets the room, and what kubectl shows of it."""

import json
import secrets
from collections.abc import Iterator
from typing import Any

import pytest

from aaml.cluster import audit
from aaml.cluster.fleet import NodeShape, node, registered
from aaml.kube.cluster import KubeCluster, LiveOptions
from aaml.kube.objects.manifest import node_to_json
from aaml.kube.provision import KwokCluster
from aaml.kube.transport import Transport
from support.kwok import answers, pod, pods, until
from support.live_scheduler import LiveScheduler, take

SCHEDULER = "aaml-preempts"
PATIENT = LiveOptions(sync_s=30.0, close_s=30.0)
CLASSES = {"aaml-low": (10, {}), "aaml-mid": (50, {}), "aaml-high": (1000, {}),
           "aaml-polite": (1000, {"preemptionPolicy": "Never"})}  # fmt: skip


def read(api: Transport, path: str) -> Any:
    return json.loads(api.request("GET", path))


@pytest.fixture(scope="module", autouse=True)
def priority_classes(kwok: KwokCluster) -> Iterator[None]:
    api, path = kwok.api(), "/apis/scheduling.k8s.io/v1/priorityclasses"
    for name, (value, more) in CLASSES.items():
        api.request("POST", path, {"metadata": {"name": name}, "value": value, **more})
    yield
    for name in CLASSES:
        api.request("DELETE", f"{path}/{name}")


class Stage:
    """Nodes of 4 cores that only the pods of this test go to; `count` of them are made by `nodes`."""

    def __init__(self, kwok: KwokCluster, namespace: str) -> None:
        self.api, self.namespace = kwok.api(), namespace
        self.transport = Transport(kwok.kubeconfig)
        self.names: list[str] = []
        self.path = f"/api/v1/namespaces/{namespace}/pods"

    def nodes(self, count: int) -> list[str]:
        for _ in range(count):
            name = f"stage-{secrets.token_hex(4)}"
            shape = NodeShape(cpu="4", memory="16Gi", labels=(f"stage={self.namespace}",))
            self.api.request("POST", "/api/v1/nodes", node_to_json(registered(node(name, shape))))
            self.names.append(name)
        for name in self.names:
            until(lambda name=name: not read(self.api, f"/api/v1/nodes/{name}")["spec"].get("taints"), f"{name} ready")
        return self.names

    def pod(self, name: str, cpu: str, priority: str, node: str = "", scheduler: str = SCHEDULER, **more: Any) -> None:
        """Create a pod for a node of the stage: `node`, or any."""
        where = {"kubernetes.io/hostname": node} if node else {"stage": self.namespace}
        body = pod(name, cpu, schedulerName=scheduler, priorityClassName=priority, nodeSelector=where)
        body["metadata"] |= more
        self.api.request("POST", self.path, body)

    def node_of(self, name: str) -> str:
        """Return the node of a pod, "" without one."""
        return read(self.api, f"{self.path}/{name}")["spec"].get("nodeName", "")

    def bound(self, *names: str) -> None:
        until(lambda: all(self.node_of(name) for name in names), f"{', '.join(names)} bound")

    def names_left(self) -> set[str]:
        return {each["metadata"]["name"] for each in pods(self.api, self.namespace)}

    def messages(self, name: str, reason: str) -> list[str]:
        found = read(self.api, f"/api/v1/namespaces/{self.namespace}/events")["items"]
        return [e["message"] for e in found if (e["involvedObject"]["name"], e["reason"]) == (name, reason)]

    def hold(self, name: str) -> None:
        """Keep a pod terminating once it is deleted, until `let_go`."""
        self._finalizers(name, ["example.com/hold"])

    def let_go(self, name: str) -> None:
        self._finalizers(name, None)

    def _finalizers(self, name: str, value: list[str] | None) -> None:
        self.transport.request(
            "PATCH", f"{self.path}/{name}", {"metadata": {"finalizers": value}},
            content_type="application/merge-patch+json",
        )  # fmt: skip


@pytest.fixture
def stage(kwok: KwokCluster, namespace: str) -> Iterator[Stage]:
    made = Stage(kwok, namespace)
    yield made
    for each in pods(made.api, namespace):
        if each["metadata"].get("finalizers"):
            made.let_go(each["metadata"]["name"])
    for name in made.names:
        if answers(made.api, f"/api/v1/nodes/{name}"):
            made.api.request("DELETE", f"/api/v1/nodes/{name}")
    made.transport.close()


@pytest.fixture
def running(kwok: KwokCluster, stage: Stage) -> Iterator[LiveScheduler]:
    with LiveScheduler(SCHEDULER, kwok.kubeconfig, PATIENT) as scheduler:
        yield scheduler


def test_the_least_important_pods_leave_and_the_preemptor_is_bound(stage: Stage, running: LiveScheduler):
    """Of 4 cores 2.5 are wanted: the mid pod of 2 cannot stay, the other mid pod of 1 can, the low one then cannot."""
    (node,) = stage.nodes(1)
    stage.pod("low", "1", "aaml-low")
    stage.bound("low")
    stage.pod("mid", "2", "aaml-mid")
    stage.pod("more", "1", "aaml-mid")
    stage.bound("mid", "more")
    stage.pod("vip", "2500m", "aaml-high")
    until(lambda: stage.node_of("vip") == node, "the important pod bound")
    assert stage.names_left() == {"more", "vip"}
    uid = read(stage.api, f"{stage.path}/vip")["metadata"]["uid"]
    until(lambda: stage.messages("low", "Preempted") and stage.messages("mid", "Preempted"), "the events Preempted")
    assert stage.messages("low", "Preempted") == [f"Preempted by pod {uid} on node {node}"]
    assert "1 Insufficient cpu" in stage.messages("vip", "FailedScheduling")[0]
    audit.check(running.cluster.state)


def test_while_the_victim_terminates_its_room_is_kept_for_the_nominated_pod(
    stage: Stage, running: LiveScheduler, kwok: KwokCluster
):
    """The victim is shown as a disruption's target, the claim is shown on the pod, and a less important pod waits."""
    (node,) = stage.nodes(1)
    stage.pod("low", "3", "aaml-low", finalizers=["example.com/hold"])
    stage.bound("low")
    stage.pod("vip", "4", "aaml-high")
    until(lambda: read(stage.api, f"{stage.path}/vip")["status"].get("nominatedNodeName") == node, "the nomination")
    until(lambda: read(stage.api, f"{stage.path}/low")["metadata"].get("deletionTimestamp"), "the victim deleted")
    conditions = {each["type"]: each for each in read(stage.api, f"{stage.path}/low")["status"]["conditions"]}
    target = conditions["DisruptionTarget"]
    assert (target["status"], target["reason"]) == ("True", "PreemptionByScheduler")
    assert target["message"] == f"{SCHEDULER}: preempting to accommodate a higher priority pod"
    # One core is free: it would take it if it were not for the claim of the nominated pod.
    stage.pod("thief", "1", "aaml-mid")
    until(lambda: stage.messages("thief", "FailedScheduling"), "the less important pod rejected")
    stage.let_go("low")
    until(lambda: stage.node_of("vip") == node, "the nominated pod bound")
    assert not stage.node_of("thief")
    assert stage.names_left() == {"vip", "thief"}
    stage.api.request("DELETE", f"{stage.path}/vip?gracePeriodSeconds=0")
    until(lambda: stage.node_of("thief") == node, "the other one bound when the room is free")


def test_a_disruption_budget_turns_the_choice_to_another_node(stage: Stage, running: LiveScheduler):
    """Without the budget the less important pod would leave; it is protected, so the other node's pod does."""
    protected, other = stage.nodes(2)
    stage.pod("guarded", "3", "aaml-low", protected, labels={"app": "guarded"})
    stage.pod("loose", "3", "aaml-mid", other)
    stage.bound("guarded", "loose")
    path = f"/apis/policy/v1/namespaces/{stage.namespace}/poddisruptionbudgets"
    spec = {"minAvailable": 1, "selector": {"matchLabels": {"app": "guarded"}}}
    stage.api.request("POST", path, {"metadata": {"name": "guard"}, "spec": spec})
    until(lambda: read(stage.api, f"{path}/guard")["status"].get("expectedPods") == 1, "the budget counted")
    stage.pod("vip", "3", "aaml-high")
    until(lambda: stage.node_of("vip") == other, "the important pod bound")
    assert stage.names_left() == {"guarded", "vip"}


def test_a_pod_that_never_preempts_waits(stage: Stage, running: LiveScheduler):
    (node,) = stage.nodes(1)
    stage.pod("low", "3", "aaml-low")
    stage.bound("low")
    stage.pod("polite", "3", "aaml-polite")
    until(lambda: stage.messages("polite", "FailedScheduling"), "the event")
    assert stage.messages("polite", "FailedScheduling")[0].endswith(
        "preemption: not eligible due to preemptionPolicy=Never."
    )
    # A pod that may preempt comes after it and does, so the first one had its chance.
    stage.pod("vip", "3", "aaml-high")
    until(lambda: stage.node_of("vip") == node, "the other one bound")
    assert stage.names_left() == {"polite", "vip"}
    assert not stage.node_of("polite")


def test_what_failed_scheduling_says_is_what_kube_scheduler_says(stage: Stage, running: LiveScheduler):
    """Nobody is less important: both schedulers say why making room does not help."""
    stage.nodes(1)
    stage.pod("first", "3", "aaml-high")
    stage.pod("known", "100m", "aaml-high", scheduler="default-scheduler")
    stage.bound("first", "known")  # Both have seen every node that was made or removed up to here.
    stage.pod("ours", "3", "aaml-mid")
    stage.pod("theirs", "3", "aaml-mid", scheduler="default-scheduler")
    for name in ("ours", "theirs"):
        until(lambda name=name: stage.messages(name, "FailedScheduling"), f"the event of {name}")
    ours, theirs = (stage.messages(name, "FailedScheduling")[0] for name in ("ours", "theirs"))
    assert ours == theirs.replace(" no new claims to deallocate,", "")  # of dynamic resource allocation
    assert "1 No preemption victims found for incoming pod" in ours


@pytest.mark.parametrize("options", [LiveOptions(preemption=False), LiveOptions(dry_run=True)], ids=["off", "dry run"])
def test_nobody_leaves_where_preemption_is_not_wanted(stage: Stage, kwok: KwokCluster, options: LiveOptions):
    stage.nodes(1)
    with LiveScheduler(SCHEDULER, kwok.kubeconfig, PATIENT):
        stage.pod("low", "3", "aaml-low")
        stage.bound("low")
    cluster = KubeCluster.connect(SCHEDULER, kubeconfig=kwok.kubeconfig, options=options)
    try:
        stage.pod("vip", "3", "aaml-high")
        vip = take(cluster)
        assert not cluster.feasible(vip).any()
        cluster.reject(vip)
        assert "poddisruptionbudgets" not in cluster.reflectors
        assert not cluster.state.nominated
    finally:
        cluster.close()
    assert stage.names_left() == {"low", "vip"}
