"""Victims leave in kube-scheduler's order, and every answer of the API server has a clear end."""

from collections.abc import Iterator
from queue import SimpleQueue

import pytest

from aaml.cluster.objects import Pod
from aaml.kube.events import EventWriter
from aaml.kube.evictor import Evicted, Evictor
from aaml.kube.transport import Transport
from aaml.scheduling.preemption import Preemption
from support.scripted_api import CUT, Answer, ScriptedApi, status

PODS = "/api/v1/namespaces/default/pods"
EVENTS = "/api/v1/namespaces/default/events"
OK: Answer = (200, {})
FORBIDDEN: Answer = (403, status(403, "Forbidden", 'pods "low" is forbidden: User "u" cannot delete resource "pods"'))
VIP = Pod("vip", uid="u-vip", priority=100)
LOW, MID = Pod("low", uid="u-low"), Pod("mid", uid="u-mid", priority=1)


@pytest.fixture
def api() -> Iterator[ScriptedApi]:
    with ScriptedApi() as server:
        server.on("POST", EVENTS, (201, {}))
        for name in ("low", "mid"):
            server.on("PATCH", f"{PODS}/{name}/status", OK)
            server.on("DELETE", f"{PODS}/{name}", OK)
        yield server


def evict(api: ScriptedApi, preemption: Preemption) -> Evicted:
    """Carry a preemption out, and what is to be told of it; returns what the evictor reports."""
    transport, told = Transport(server=api.server), SimpleQueue[Evicted]()
    events = EventWriter(transport, "mine", lambda _uid: True)
    evictor = Evictor(transport, "mine", events, told.put, threads=1)
    evictor.submit(VIP, preemption)
    report = told.get(timeout=60)  # before `close`, which would end the tries
    evictor.close(30)
    events.close(30)
    return report


def writes(api: ScriptedApi) -> list[tuple[str, str]]:
    return [(method, path.removeprefix(PODS)) for method, path, _, _ in api.requests if path.startswith(PODS)]


def test_a_group_that_preempts_is_named_as_kube_scheduler_names_it(api):
    """executor.go: "Preempted by %s %v on node %v" with podgroup, its uid, and the node "cluster"."""
    evict(api, Preemption("cluster", (LOW,), by="podgroup u-train"))
    (event,) = api.bodies("POST", EVENTS)
    assert event["message"] == "Preempted by podgroup u-train on node cluster"
    (mark,) = api.bodies("PATCH", f"{PODS}/low/status")
    assert mark["status"]["conditions"][0]["message"] == "mine: preempting to accommodate a higher priority podgroup"


def test_each_victim_is_marked_then_deleted_then_told(api):
    assert evict(api, Preemption("n1", (MID, LOW))) == Evicted(VIP, "n1")
    assert writes(api) == [("PATCH", "/mid/status"), ("DELETE", "/mid"), ("PATCH", "/low/status"), ("DELETE", "/low")]
    (mark,) = api.bodies("PATCH", f"{PODS}/low/status")
    assert mark["metadata"] == {"uid": "u-low"}
    (condition,) = mark["status"]["conditions"]
    assert (condition["type"], condition["status"]) == ("DisruptionTarget", "True")
    assert condition["reason"] == "PreemptionByScheduler"
    (deletion,) = api.bodies("DELETE", f"{PODS}/low")
    assert deletion["preconditions"] == {"uid": "u-low"}
    assert "gracePeriodSeconds" not in deletion, "the pod's own grace period holds"
    told = {event["involvedObject"]["name"]: event for event in api.bodies("POST", EVENTS)}
    assert told.keys() == {"low", "mid"}
    assert (told["low"]["type"], told["low"]["reason"], told["low"]["action"]) == ("Normal", "Preempted", "Preempting")
    assert told["low"]["message"] == "Preempted by pod u-vip on node n1"


def test_a_victim_that_terminates_already_is_only_waited_for(api):
    terminating = Pod("low", uid="u-low", terminating=True)
    assert evict(api, Preemption("n1", (terminating,))) == Evicted(VIP, "n1")
    assert writes(api) == []


def test_a_claim_that_is_withdrawn_is_taken_off_the_pod(api):
    evict(api, Preemption("n1", (), withdrawn=(MID,)))
    assert api.bodies("PATCH", f"{PODS}/mid/status") == [
        {"metadata": {"uid": "u-mid"}, "status": {"nominatedNodeName": None}}
    ]


@pytest.mark.parametrize("code", [404, 409])
def test_a_victim_that_is_gone_is_no_error_and_the_next_one_leaves(api, code):
    api.on("DELETE", f"{PODS}/mid", (code, status(code, "Gone")))
    assert evict(api, Preemption("n1", (MID, LOW))) == Evicted(VIP, "n1")
    assert writes(api)[-1] == ("DELETE", "/low")
    assert [event["involvedObject"]["name"] for event in api.bodies("POST", EVENTS)] == ["low"]


@pytest.mark.parametrize("trouble", [(500, status(500, "InternalError")), (429, status(429, "Busy")), (0, CUT)])
def test_a_server_that_fails_for_a_moment_is_asked_again(api, trouble):
    api.on("DELETE", f"{PODS}/low", trouble, OK)
    assert evict(api, Preemption("n1", (LOW,))) == Evicted(VIP, "n1")
    assert len(api.bodies("DELETE", f"{PODS}/low")) == 2


def test_an_account_that_may_not_delete_is_told_apart_from_a_webhook_that_refuses_one_pod(api):
    api.on("DELETE", f"{PODS}/low", FORBIDDEN)
    report = evict(api, Preemption("n1", (LOW, MID)))
    assert report.forbidden
    assert "cannot delete" in report.error
    assert not api.bodies("DELETE", f"{PODS}/mid"), "nobody else leaves for nothing"
    refusal = status(403, "Forbidden", 'admission webhook "keep.example.com" denied the request: keep it')
    api.on("DELETE", f"{PODS}/low", (403, refusal))
    report = evict(api, Preemption("n1", (LOW,)))
    assert report.error
    assert not report.forbidden
