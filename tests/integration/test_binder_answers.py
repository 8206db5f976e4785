"""What a bind's answer, or the want of one, comes to: every pod is bound once, and none is forgotten."""

import queue
import threading
from collections.abc import Iterator

import pytest

from aaml.cluster.objects import Pod
from aaml.kube.binder import Binder, BindJob
from aaml.kube.transport import Transport
from aaml.scheduling.ports import BindResult
from support.scripted_api import CUT, Answer, ScriptedApi, pod, status

POD = "/api/v1/namespaces/default/pods/p"
BINDING = f"{POD}/binding"
DONE: Answer = (201, {"kind": "Status", "status": "Success"})
LOST: Answer = (0, CUT)
CONFLICT: Answer = (409, status(409, "Conflict", 'pod p is already assigned to node "n9"'))


@pytest.fixture
def api() -> Iterator[ScriptedApi]:
    with ScriptedApi() as server:
        yield server


def bind(api: ScriptedApi, gpus: tuple[int, ...] = (), cancelled: str = "", give_up_s: float = 20.0) -> BindResult:
    """Bind pod p to n1 and return what came of it."""
    results: queue.SimpleQueue[BindResult] = queue.SimpleQueue()
    binder = Binder(Transport(server=api.server), results.put, at_once=1, give_up_s=give_up_s)
    binder.submit(BindJob(Pod(name="p", uid="u-p"), "n1", gpus, cancelled))
    result = results.get(timeout=30)
    binder.close(10)
    return result


def test_one_write_a_pod_which_names_its_uid_and_devices(api):
    api.on("POST", BINDING, DONE)
    assert bind(api, gpus=(2, 3)).status == "bound"
    assert [(method, path) for method, path, _, _ in api.requests] == [("POST", BINDING)]
    (body,) = api.bodies("POST", BINDING)
    assert body["metadata"]["uid"] == "u-p"
    assert body["metadata"]["annotations"] == {"alibabacloud.com/gpu-index": "2-3"}
    assert body["target"] == {"apiVersion": "v1", "kind": "Node", "name": "n1"}


def test_an_answer_lost_after_the_bind_is_found_out_by_reading(api):
    api.on("POST", BINDING, LOST)
    api.on("GET", POD, (200, pod("p", 2, node="n1")))
    assert bind(api).status == "bound"
    assert len(api.bodies("POST", BINDING)) == 1


def test_a_request_lost_before_the_bind_is_sent_again(api):
    api.on("POST", BINDING, LOST, DONE)
    api.on("GET", POD, (200, pod("p", 1)))
    assert bind(api).status == "bound"
    assert len(api.bodies("POST", BINDING)) == 2


def test_a_bind_that_lands_late_after_all_is_bound(api):
    """The first request is still under way while the pod is read; the second one is refused because of it."""
    api.on("POST", BINDING, LOST, CONFLICT)
    api.on("GET", POD, (200, pod("p", 1)), (200, pod("p", 2, node="n1")))
    assert bind(api).status == "bound"


@pytest.mark.parametrize("code", [429, 500, 503, 504])
def test_a_busy_server_is_asked_again(api, code):
    api.on("POST", BINDING, (code, status(code, "Busy")), DONE)
    api.on("GET", POD, (200, pod("p", 1)))
    assert bind(api).status == "bound"


def test_bound_by_somebody_else(api):
    api.on("POST", BINDING, CONFLICT)
    api.on("GET", POD, (200, pod("p", 2, node="n9")))
    result = bind(api)
    assert (result.status, result.message) == ("conflict", "bound to n9 by somebody else")


def test_bound_by_somebody_else_to_the_node_that_we_wanted_is_not_our_bind(api):
    api.on("POST", BINDING, CONFLICT)
    api.on("GET", POD, (200, pod("p", 2, node="n1")))
    result = bind(api)
    assert (result.status, result.message) == ("conflict", "bound to n1 by somebody else")


def test_a_bind_that_was_turned_away_unread_is_not_ours_either(api):
    """429 says that the request was not carried out, unlike a server error: whoever bound the pod, it was not we."""
    for code, expected in ((429, "conflict"), (504, "bound")):
        api.on("POST", BINDING, (code, status(code, "Busy")), CONFLICT)
        api.on("GET", POD, (200, pod("p", 2, node="n1")))
        assert bind(api).status == expected


def test_a_bind_that_nobody_heard_of_is_not_ours(api):
    """While nobody listens a request is not sent, so that whoever bound the pod meanwhile was not we."""
    api.on("POST", BINDING, CONFLICT)
    api.on("GET", POD, (200, pod("p", 2, node="n1")))
    api.down()
    threading.Timer(0.5, api.up).start()
    assert bind(api).status == "conflict"


def test_a_refusal_for_another_reason_is_a_conflict_with_the_servers_words(api):
    api.on("POST", BINDING, (409, status(409, "Conflict", "pod p has non-empty .spec.schedulingGates")))
    api.on("GET", POD, (200, pod("p", 2)))
    result = bind(api)
    assert (result.status, result.message) == ("conflict", "pod p has non-empty .spec.schedulingGates")


def test_deleted_or_being_deleted_or_replaced(api):
    api.on("POST", BINDING, (404, status(404, "NotFound")))
    assert bind(api).status == "gone"  # the script has no pod to read either
    going = pod("p", 2)
    going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    other = pod("p", 3)
    other["metadata"]["uid"] = "u-new"
    for seen in (going, other):
        api.on("POST", BINDING, CONFLICT)
        api.on("GET", POD, (200, seen))
        assert bind(api).status == "gone"


def test_forbidden_is_final(api):
    api.on("POST", BINDING, (403, status(403, "Forbidden", "no rights to create pods/binding")))
    result = bind(api)
    assert result.status == "failed"
    assert "no rights" in result.message


def test_no_clear_answer_in_time_is_a_failure_that_says_so(api):
    api.on("POST", BINDING, (503, status(503, "ServiceUnavailable", "down")))
    api.on("GET", POD, (503, status(503, "ServiceUnavailable", "down")))
    result = bind(api, give_up_s=0.3)
    assert result.status == "failed"
    assert "no clear answer" in result.message


def test_a_bind_cancelled_before_it_was_sent_is_not_sent(api):
    assert bind(api, cancelled="node n1 was deleted") == BindResult(
        Pod(name="p", uid="u-p"), "n1", "gone", "node n1 was deleted", pytest.approx(0.0, abs=30)
    )
    assert not api.requests


def test_a_bind_cancelled_after_a_lost_answer_is_looked_up_first(api):
    """Its node was deleted while the answer was lost: where the server has the pod is what counts."""
    job = BindJob(Pod(name="p", uid="u-p"), "n1")

    def lose(_body: bytes) -> Answer:
        job.cancelled = "node n1 was deleted"
        return LOST

    for node, expected in (("n1", "bound"), ("", "gone")):
        job.cancelled = ""
        api.on("POST", BINDING, lose)
        api.on("GET", POD, (200, pod("p", 2, node=node)))
        results: queue.SimpleQueue[BindResult] = queue.SimpleQueue()
        binder = Binder(Transport(server=api.server), results.put, at_once=1)
        binder.submit(job)
        assert results.get(timeout=30).status == expected
        binder.close(10)


def test_close_ends_tries_and_threads(api):
    tried = threading.Event()

    def busy(_body: bytes) -> Answer:
        tried.set()
        return 503, status(503, "ServiceUnavailable")

    api.on("POST", BINDING, busy)
    api.on("GET", POD, (503, status(503, "ServiceUnavailable")))
    results: queue.SimpleQueue[BindResult] = queue.SimpleQueue()
    binder = Binder(Transport(server=api.server), results.put, at_once=2, give_up_s=3600.0)
    binder.submit(BindJob(Pod(name="p", uid="u-p"), "n1"))
    assert tried.wait(30)
    binder.close(30)
    assert results.get(timeout=1).status == "failed"
    assert not any(thread.is_alive() for thread in binder._threads._threads)


def test_a_token_that_is_missing_for_a_moment_delays_binds(api):
    """The kubelet renews a pod's token file; for a moment there is none."""
    api.on("POST", BINDING, DONE)
    transport = Transport(server=api.server)
    missing = [True] * 5

    def read_token(settings):
        if missing:
            missing.pop()
            raise FileNotFoundError(2, "No such file or directory")
        settings.api_key = {"authorization": "bearer new"}

    transport._settings.api_key = {"authorization": "bearer old"}
    transport._settings.refresh_api_key_hook = read_token
    results: queue.SimpleQueue[BindResult] = queue.SimpleQueue()
    binder = Binder(transport, results.put, at_once=1)
    binder.submit(BindJob(Pod(name="p", uid="u-p"), "n1"))
    assert results.get(timeout=30).status == "bound"
    assert not missing
    binder.close(10)


def test_whatever_goes_wrong_with_a_bind_is_its_result_and_the_next_one_is_made(api, monkeypatch):
    api.on("POST", BINDING, CONFLICT, DONE)
    results: queue.SimpleQueue[BindResult] = queue.SimpleQueue()
    binder = Binder(Transport(server=api.server), results.put, at_once=1)
    with monkeypatch.context() as patch:
        patch.setattr(binder, "_look", lambda *_: 1 / 0)
        binder.submit(BindJob(Pod(name="p", uid="u-p"), "n1"))
        result = results.get(timeout=30)
    assert (result.status, result.message) == ("failed", "ZeroDivisionError: division by zero")
    binder.submit(BindJob(Pod(name="p", uid="u-p"), "n1"))
    assert results.get(timeout=30).status == "bound"
    binder.close(10)


def test_no_bind_is_sent_once_it_may_not_any_more(api):
    """As when the lease is lost: another replica may decide by then."""
    api.on("POST", BINDING, DONE)
    results: queue.SimpleQueue[BindResult] = queue.SimpleQueue()
    binder = Binder(Transport(server=api.server), results.put, at_once=1)
    binder.revoked = "the lease was lost"
    binder.submit(BindJob(Pod(name="p", uid="u-p"), "n1"))
    result = results.get(timeout=30)
    assert (result.status, result.message) == ("gone", "the lease was lost")
    assert not api.bodies("POST", BINDING)
    binder.close(10)
