"""What a Lease says of a promise, and how it is shown."""

import threading
import time
from datetime import UTC, datetime, timedelta
from math import inf

import pytest

from aaml.kube.lease import LeaderLease, LeaseOptions
from aaml.kube.transport import Transport
from aaml.live.promise import ANNOTATION, LEASE, LatestPromise, PromiseMeter, PromiseState, read_promise
from aaml.nodes.node_policy import Promise
from aaml.telemetry.snapshot import Snapshot
from aaml.telemetry.top import TopModel, render
from support import make
from support.scripted_api import ScriptedApi, status

LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"
PATH = f"{LEASES}/{LEASE}"
OPTIONS = LeaseOptions(LEASE, duration_s=2.0, renew_deadline_s=1.0, retry_s=0.05)
STATE = PromiseState(
    wait_p99_s=45.0, wait_mean_s=12.0, evictions_per_pod_hour=0.5, served=400, late=3, waited_s=3720.0, evicted=31.0,
    pod_hours=100.0, second_dollars_per_hour=0.00123, eviction_dollars=0.007,
)  # fmt: skip
TEXT = (
    "promise: 99% wait at most 45 s (3 of 400 pods did not), the last second costs $0.0012 an hour; "
    "mean wait at most 12 s (9.3 s so far); evictions for a pod's hour at most 0.5 (0.31 so far), "
    "the next one counts $0.0070"
)


def lease(text, *, holder="someone", ago_s=1.0):
    renewed = (datetime.now(UTC) - timedelta(seconds=ago_s)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return {
        "metadata": {"name": LEASE, "annotations": {ANNOTATION: text, "theirs": "stays"}},
        "spec": {"holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": renewed},
    }


def test_what_is_written_is_read_and_shown():
    with ScriptedApi() as server:
        server.on_list(PATH, lease(STATE.to_json()))
        transport = Transport(server=server.server)
        assert read_promise(transport) == STATE
        latest = LatestPromise(transport)
        assert latest.text() == TEXT
        assert latest.text() == TEXT
        assert len(server.asked("GET", PATH)) == 2, "it is not read anew at each look"


@pytest.mark.parametrize(
    "answer",
    {
        "nobody's": lease(STATE.to_json(), holder=""),
        "of one that is gone": lease(STATE.to_json(), ago_s=120.0),
        "without a time": {"metadata": {"annotations": {ANNOTATION: STATE.to_json()}}, "spec": {"holderIdentity": "a"}},
        "without a promise": {"metadata": {}, "spec": lease("")["spec"]},
        "no JSON": lease("45 s"),
        "another's": lease('{"served": "many"}'),
        "nonsense": (200, b"<html>"),
        "forbidden": (403, status(403, "Forbidden")),
        "none": (404, status(404, "NotFound")),
    }.items(),
    ids=lambda each: each[0],
)
def test_where_there_is_no_promise_to_read_none_is_shown(answer):
    with ScriptedApi() as server:
        server.on_list(PATH, answer[1])
        assert read_promise(Transport(server=server.server)) is None


def test_a_leader_writes_it_and_takes_it_back_when_it_ends():
    with ScriptedApi() as server:
        theirs = lease("old", holder="me")
        server.on_list(PATH, theirs)
        server.on("PUT", PATH, (200, {}))
        leader = LeaderLease(Transport(server=server.server), "me", OPTIONS)
        leader.annotation, leader.tell = ANNOTATION, STATE.to_json
        assert leader.acquire(lambda: False, threading.Event().set)
        deadline_s = time.monotonic() + 10.0
        while len(server.bodies("PUT", PATH)) < 3 and time.monotonic() < deadline_s:
            time.sleep(0.01)
        leader.release()
        *renewals, last = server.bodies("PUT", PATH)
    assert len(renewals) >= 2
    assert all(body["metadata"]["annotations"] == {ANNOTATION: STATE.to_json(), "theirs": "stays"} for body in renewals)
    assert last["spec"]["holderIdentity"] == ""
    assert last["metadata"]["annotations"] == {"theirs": "stays"}


def test_pods_are_late_by_what_is_promised():
    meter = PromiseMeter(Promise(wait_p99_s=45.0, evictions_per_pod_hour=0.0))
    assert [meter.serve(waited_s) for waited_s in (45.0, 45.1, 3.0)] == [False, True, False]
    state = meter.state(evicted=0.0, pod_hours=0.0, second_dollars_per_hour=0.0, eviction_dollars=inf)
    assert state == PromiseState(wait_p99_s=45.0, evictions_per_pod_hour=0.0, served=3, late=1, waited_s=93.1)
    assert state.text.endswith("evictions for a pod's hour at most 0 (none yet), no more now")


def test_where_nothing_is_promised_nothing_is_written():
    meter = PromiseMeter(Promise())
    assert not meter.serve(1000.0)
    state = meter.state(evicted=0.0, pod_hours=0.0, second_dollars_per_hour=0.0, eviction_dollars=0.007)
    assert state.to_json() == ""


def test_the_table_of_a_cluster_shows_it():
    state, model = make.cluster(make.nodes(2)), TopModel("kwok", promise=TEXT)
    text = render(model, state, width=100)
    assert "99% wait at most 45 s (3 of 400 pods did not)" in text
    assert "the next one counts $0.0070" in text
    assert all(len(line) <= 100 for line in text.splitlines())
    assert Snapshot.take(model, state).to_dict()["promise"] == TEXT
    assert "promise" not in render(TopModel("kwok"), state, width=100)
