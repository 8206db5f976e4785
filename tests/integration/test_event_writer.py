"""Events and conditions are told once, counted up, and never against what has happened since."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from aaml.cluster.objects import Pod, PodGroup
from aaml.kube.events import EventWriter
from aaml.kube.objects import wire
from aaml.kube.transport import Transport
from support.scripted_api import CUT, Answer, ScriptedApi, pod, status

EVENTS = "/api/v1/namespaces/default/events"
POD = "/api/v1/namespaces/default/pods/p"
OK: Answer = (200, {})
CONFLICT: Answer = (409, status(409, "Conflict", "the object has been modified"))
WAITING = Pod("p", uid="u-p", resource_version="1")


@pytest.fixture
def api() -> Iterator[ScriptedApi]:
    with ScriptedApi() as server:
        server.on("POST", EVENTS, (201, {}))
        server.on("PATCH", f"{POD}/status", OK)
        yield server


def writer(api: ScriptedApi, *, waiting: bool = True) -> EventWriter:
    return EventWriter(Transport(server=api.server), "mine", lambda _uid: waiting)


def test_a_failure_is_an_event_and_a_condition(api):
    writing = writer(api)
    writing.failed(WAITING, "0/1 nodes are available: 1 Insufficient cpu.")
    writing.close(30)
    (event,) = api.bodies("POST", EVENTS)
    assert (event["type"], event["reason"], event["count"]) == ("Warning", "FailedScheduling", 1)
    assert event["involvedObject"]["uid"] == "u-p"
    assert event["source"] == {"component": "mine"}
    (patch,) = api.bodies("PATCH", f"{POD}/status")
    assert patch["metadata"] == {"uid": "u-p", "resourceVersion": "1"}
    (condition,) = patch["status"]["conditions"]
    assert (condition["type"], condition["status"], condition["reason"]) == ("PodScheduled", "False", "Unschedulable")
    assert condition["message"] == event["message"] == "0/1 nodes are available: 1 Insufficient cpu."


def test_the_same_failure_again_is_counted_and_another_is_told(api):
    writing = writer(api)
    for text in ("full", "full", "full", "tainted"):
        writing.failed(WAITING, text)
        while writing._waiting or writing._busy:  # else a newer word replaces one that waits
            pass
        name = api.bodies("POST", EVENTS)[0]["metadata"]["name"]
        api.on("PATCH", f"{EVENTS}/{name}", OK)
    writing.close(30)
    assert [event["message"] for event in api.bodies("POST", EVENTS)] == ["full", "tainted"]
    assert [patch["count"] for patch in api.bodies("PATCH", f"{EVENTS}/{name}")] == [2, 3]
    assert len(api.bodies("PATCH", f"{POD}/status")) == 2


def test_a_pod_that_was_bound_meanwhile_keeps_its_condition(api):
    api.on("PATCH", f"{POD}/status", CONFLICT)
    api.on("GET", POD, (200, pod("p", 2, node="n1")))
    writing = writer(api)
    writing.failed(WAITING, "full")
    writing.close(30)
    assert len(api.bodies("PATCH", f"{POD}/status")) == 1


def test_a_pod_that_changed_otherwise_gets_it_after_all(api):
    api.on("PATCH", f"{POD}/status", CONFLICT, OK)
    api.on("GET", POD, (200, pod("p", 2)))
    writing = writer(api)
    writing.failed(WAITING, "full")
    writing.close(30)
    versions = [patch["metadata"]["resourceVersion"] for patch in api.bodies("PATCH", f"{POD}/status")]
    assert versions == ["1", "2"]


def test_a_pod_that_no_longer_waits_is_let_be(api):
    writing = writer(api, waiting=False)
    writing.failed(WAITING, "full")
    writing.close(30)
    assert not api.bodies("PATCH", f"{POD}/status")


def test_want_of_permission_is_said_once_and_stops_nothing(api, caplog):
    api.on("POST", EVENTS, (403, status(403, "Forbidden", "no events for you")))
    writing = writer(api)
    for name in "abc":
        writing.failed(Pod(name, uid=name), "full")
    writing.scheduled(WAITING, "n1")
    writing.close(30)
    assert caplog.text.count("no events for you") == 1
    assert len(api.bodies("POST", EVENTS)) == 4


def test_success_is_told_when_asked_for(api):
    writing = writer(api)
    writing.scheduled(WAITING, "n1", "decision 7 of run.jsonl")
    writing.close(30)
    (event,) = api.bodies("POST", EVENTS)
    assert (event["type"], event["reason"]) == ("Normal", "Scheduled")
    assert event["message"] == "Successfully assigned default/p to n1 (decision 7 of run.jsonl)"


def test_an_outage_delays_events(api):
    api.down()
    writing = writer(api)
    writing.failed(WAITING, "full")
    api.up()
    writing.close(30)
    assert len(api.bodies("POST", EVENTS)) == 1


def test_the_nominated_node_is_written_with_the_condition_and_taken_back(api):
    writing = writer(api)
    for node in ("n1", "n1", ""):
        writing.failed(WAITING, "full", node)
        with writing._written:  # else a newer word replaces one that waits
            assert writing._written.wait_for(lambda: not writing._waiting and not writing._busy, 30)
        name = api.bodies("POST", EVENTS)[0]["metadata"]["name"]
        api.on("PATCH", f"{EVENTS}/{name}", OK)
    writing.close(30)
    assert [patch["status"]["nominatedNodeName"] for patch in api.bodies("PATCH", f"{POD}/status")] == ["n1", None]


def test_two_threads_write_a_pods_words_in_their_order(api):
    """The claim follows at once on a word without it, which is still being written."""
    first, go_on = threading.Event(), threading.Event()

    def slow(_body: bytes) -> Answer:
        first.set()
        go_on.wait(30)
        return 201, {}

    api.on("POST", EVENTS, slow, (201, {}))
    writing = EventWriter(Transport(server=api.server), "mine", lambda _uid: True)
    writing.failed(WAITING, "full")
    assert first.wait(30)
    writing.failed(WAITING, "full, with room", "n1")
    other = Pod("q", uid="u-q", resource_version="1")
    writing.scheduled(other, "n2")  # the second thread has taken up what comes after it
    with writing._changed:
        writing._changed.wait_for(lambda: ("scheduled", "u-q") not in writing._waiting and len(writing._busy) == 1, 30)
    go_on.set()
    writing.close(30)
    claims = [patch["status"]["nominatedNodeName"] for patch in api.bodies("PATCH", f"{POD}/status")]
    assert claims == [None, "n1"]


def told(writing: EventWriter) -> None:
    """Wait until all is written."""
    with writing._written:
        assert writing._written.wait_for(lambda: not writing._waiting and not writing._busy, 30)


def test_an_event_that_somebody_deleted_is_told_anew(api):
    """Events live for an hour; what counts them up finds none then (404 is the script's answer to the patch)."""
    writing = writer(api)
    for _ in range(3):
        writing.failed(WAITING, "full")
        told(writing)
    writing.close(30)
    events = api.bodies("POST", EVENTS)
    assert [event["message"] for event in events] == ["full"] * 3
    assert len({event["metadata"]["name"] for event in events}) == 3


def test_a_claim_that_changed_is_written_though_the_event_was_deleted(api):
    writing = writer(api)
    for node in ("n1", ""):
        writing.failed(WAITING, "full", node)
        told(writing)
    writing.close(30)
    assert [patch["status"]["nominatedNodeName"] for patch in api.bodies("PATCH", f"{POD}/status")] == ["n1", None]


def test_a_claim_is_written_by_an_account_that_may_not_write_events(api):
    api.on("POST", EVENTS, (403, status(403, "Forbidden", "no events for you")))
    writing = writer(api)
    writing.failed(WAITING, "full", "n1")
    writing.close(30)
    assert [patch["status"]["nominatedNodeName"] for patch in api.bodies("PATCH", f"{POD}/status")] == ["n1"]


def test_a_condition_whose_answer_was_lost_is_written_again(api):
    api.on("PATCH", f"{POD}/status", (0, CUT), OK)
    writing = writer(api)
    writing.failed(WAITING, "full", "n1")
    told(writing)
    writing.close(30)
    assert len(api.bodies("PATCH", f"{POD}/status")) == 2
    assert len(api.bodies("POST", EVENTS)) == 1, "what was written before it is not written again"


def test_whatever_goes_wrong_with_a_word_the_next_one_is_written(api, caplog, monkeypatch):
    writing = writer(api)
    with monkeypatch.context() as patch:
        patch.setattr(writing, "_event", lambda *_: 1 / 0)
        writing.failed(WAITING, "full")
        told(writing)
    writing.failed(Pod("q", uid="u-q", resource_version="1"), "full")
    writing.close(30)
    assert [event["involvedObject"]["name"] for event in api.bodies("POST", EVENTS)] == ["q"]
    assert "division by zero" in caplog.text


def test_what_is_remembered_of_pods_that_failed_has_a_bound(api, monkeypatch):
    """A pod that goes while its failure is being written is remembered after all; of these there may be many."""
    monkeypatch.setattr("aaml.kube.events._MOST_REMEMBERED", 10)
    writing = writer(api, waiting=False)
    for number in range(50):
        uid = f"u-{number}"
        writing.failed(Pod(f"p{number}", uid=uid), "full")
        told(writing)
    assert len(writing._failures) == 10
    writing.close(30)


GROUP = "/apis/scheduling.k8s.io/v1beta1/namespaces/default/podgroups/g"
OF_GROUP = Pod("p", uid="u-p", group=PodGroup("g", 2))


def conditions(api: ScriptedApi) -> list[dict[str, str]]:
    return [patch["status"]["conditions"][0] for patch in api.bodies("PATCH", f"{GROUP}/status")]


def test_the_condition_of_a_group_is_written_where_it_changes_and_its_time_with_its_status(api):
    """As kube-scheduler: SetStatusCondition keeps lastTransitionTime while the status stays, and says what differs."""
    api.on("PATCH", f"{GROUP}/status", OK)
    writing = writer(api)
    known = wire.TimedCondition("PodGroupInitiallyScheduled", "False", "Unschedulable", "full",
                                datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC))  # fmt: skip
    for message in ("full", "full", "no rack", "no rack"):
        writing.group(OF_GROUP, "Unschedulable", message, known)
        told(writing)
    writing.close(30)
    assert [(each["message"], each["lastTransitionTime"]) for each in conditions(api)] == [
        ("no rack", "2026-01-02T03:04:05Z")
    ]


def test_a_group_that_was_scheduled_once_stays_so_whichever_of_its_pods_fails_later(api):
    api.on("PATCH", f"{GROUP}/status", OK)
    writing = writer(api)
    writing.group(OF_GROUP, "Unschedulable", "full")
    told(writing)
    for pod_of, reason in ((OF_GROUP, "Scheduled"), (replace(OF_GROUP, uid="u-q"), "Unschedulable")):
        writing.group(pod_of, reason, "" if reason == "Scheduled" else "one more fits nowhere")
    told(writing)
    writing.group(OF_GROUP, "Unschedulable", "and again")
    told(writing)
    writing.forget("default/g")  # a new group of this name
    writing.group(OF_GROUP, "Unschedulable", "full")
    writing.close(30)
    assert [each["status"] for each in conditions(api)] == ["False", "True", "False"]


def test_what_waits_to_be_written_has_a_bound_and_the_newest_is_kept(api, monkeypatch):
    monkeypatch.setattr("aaml.kube.events._MOST_WAITING", 100)
    go_on = threading.Event()

    def slow(_body: bytes) -> Answer:
        go_on.wait(30)
        return 201, {}

    api.on("POST", EVENTS, slow)
    writing = writer(api, waiting=False)
    for number in range(1000):
        writing.failed(Pod(f"p{number}", uid=f"u-{number}"), "full")
        writing.scheduled(Pod(f"s{number}", uid=f"s-{number}"), "n1")
    assert len(writing._waiting) <= 100
    assert len(writing._write_queue) <= 100
    assert ("failed", "u-999") in writing._waiting
    go_on.set()
    writing.close(30)
