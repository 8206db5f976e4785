"""Posts that nobody waits for: every way in which one ends, and that none holds up another's queue."""

import queue
import threading

import pytest

from aaml.kube.async_writes import NotSent
from aaml.kube.transport import ApiError, Transport, Unreachable
from support.scripted_api import CUT, ScriptedApi, status

PATH = "/api/v1/namespaces/default/events"
MADE = (201, {"kind": "Event"})


@pytest.fixture
def api():
    with ScriptedApi() as server:
        yield server


class Ended(queue.SimpleQueue):
    """What requests ended with, in the order of their ends."""

    def next(self):
        return self.get(timeout=30)


def post(queue, ended, body=None):
    queue.post(PATH, lambda: body if body is not None else {"kind": "Event"}, ended.put)


def test_each_of_many_is_sent_once_and_connections_are_kept(api):
    api.on("POST", PATH, MADE)
    transport, ended = Transport(server=api.server), Ended()
    queue = transport.write_queue(4)
    for number in range(100):
        post(queue, ended, {"number": number})
    assert queue.wait_empty(30)
    assert [ended.next() for _ in range(100)] == [None] * 100
    assert sorted(body["number"] for body in api.bodies("POST", PATH)) == list(range(100))
    assert 1 <= len(queue.connections) <= 4
    transport.close()


def test_a_refusal_is_the_servers_words_and_the_next_one_goes_on(api):
    api.on("POST", PATH, (403, status(403, "Forbidden", "no events for you")), MADE)
    transport, ended = Transport(server=api.server), Ended()
    queue = transport.write_queue(1)
    post(queue, ended)
    post(queue, ended)
    refused = ended.next()
    assert isinstance(refused, ApiError)
    assert (refused.status, refused.message) == (403, "no events for you")
    assert ended.next() is None
    transport.close()


def test_a_lost_answer_may_have_been_carried_out_and_is_not_sent_again(api):
    api.on("POST", PATH, (0, CUT), MADE)
    transport, ended = Transport(server=api.server), Ended()
    queue = transport.write_queue(1)
    post(queue, ended)
    lost = ended.next()
    assert isinstance(lost, Unreachable)
    assert lost.sent
    post(queue, ended)
    assert ended.next() is None
    assert len(api.bodies("POST", PATH)) == 2
    transport.close()


def test_nobody_listens(api):
    api.down()
    transport, ended = Transport(server=api.server), Ended()
    queue = transport.write_queue(8)
    for _ in range(20):
        post(queue, ended)
    for _ in range(20):
        lost = ended.next()
        assert isinstance(lost, Unreachable)
        assert not lost.sent
    assert queue.wait_empty(30)
    transport.close()


def test_an_answer_that_does_not_come_in_time(api):
    answer = threading.Event()

    def slow(_body):
        answer.wait(30)
        return MADE

    api.on("POST", PATH, slow)
    transport, ended = Transport(server=api.server, timeout_s=0.2), Ended()
    post(transport.write_queue(1), ended)
    late = ended.next()
    assert isinstance(late, Unreachable)
    assert (str(late), late.sent) == ("timed out", True)
    answer.set()
    transport.close()


def test_what_is_withdrawn_before_it_is_sent_is_not_sent(api):
    transport, ended = Transport(server=api.server), Ended()
    transport.write_queue(1).post(PATH, lambda: None, ended.put)
    assert isinstance(ended.next(), NotSent)
    assert not api.requests
    transport.close()


def test_a_request_that_cannot_be_made_fails_alone_and_its_traceback_is_kept(api, caplog):
    caplog.set_level("DEBUG", "aaml")
    api.on("POST", PATH, MADE)
    transport, ended = Transport(server=api.server), Ended()
    queue = transport.write_queue(1)
    post(queue, ended, {"what": object()})
    post(queue, ended)
    unmade = ended.next()
    assert isinstance(unmade, Unreachable)
    assert not unmade.sent
    assert ended.next() is None
    assert [record.exc_info[0] for record in caplog.records if record.exc_info] == [TypeError]
    transport.close()


def test_a_lane_whose_answers_are_slow_does_not_hold_up_another(api):
    go_on = threading.Event()

    def slow(_body):
        go_on.wait(30)
        return MADE

    api.on("POST", PATH, slow)
    api.on("POST", "/quick", MADE)
    transport, ended, slow_ended = Transport(server=api.server), Ended(), Ended()
    queue, other = transport.write_queue(2), transport.write_queue(2)
    for _ in range(5):
        post(queue, slow_ended)
    other.post("/quick", dict, ended.put)
    assert ended.next() is None
    assert slow_ended.empty()
    assert len(queue) == 5
    go_on.set()
    assert [slow_ended.next() for _ in range(5)] == [None] * 5
    transport.close()


def test_a_large_request_is_sent_in_pieces(api):
    api.on("POST", PATH, MADE)
    transport, ended = Transport(server=api.server), Ended()
    post(transport.write_queue(1), ended, {"text": "x" * 20_000_000})
    assert ended.next() is None
    assert len(api.bodies("POST", PATH)[0]["text"]) == 20_000_000
    transport.close()


def test_closing_ends_what_is_under_way_and_what_comes_later(api):
    go_on, begun = threading.Event(), threading.Event()

    def slow(_body):
        begun.set()
        go_on.wait(30)
        return MADE

    api.on("POST", PATH, slow)
    transport, ended = Transport(server=api.server), Ended()
    queue = transport.write_queue(1)
    post(queue, ended)
    post(queue, ended)
    assert begun.wait(30)
    transport.close()
    go_on.set()
    post(queue, ended)
    ends = [ended.next() for _ in range(3)]
    assert [type(each) for each in ends] == [Unreachable, NotSent, NotSent]
    assert ends[0].sent
    assert queue.wait_empty(1.0)


def test_by_a_proxy_another_way_has_to_be_taken(api, monkeypatch):
    monkeypatch.setattr("aaml.kube.transport._LOOPBACK", set())
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    transport, ended = Transport(server=api.server), Ended()
    post(transport.write_queue(1), ended)
    assert isinstance(ended.next(), NotSent)
    transport.close()


def test_an_error_whose_text_is_no_utf_8_ends_its_request_and_nothing_else(api):
    api.on("POST", PATH, (500, b'{"message": "\xff\xfe"}'), MADE)
    transport, ended = Transport(server=api.server), Ended()
    queue = transport.write_queue(1)
    post(queue, ended)
    refused = ended.next()
    assert isinstance(refused, ApiError)
    assert refused.status == 500
    post(queue, ended)
    assert ended.next() is None
    transport.close()


def test_lanes_whose_thread_has_ended_end_what_was_sent_and_send_no_more(api, caplog):
    """An error of ours, whatever it is: who posts hears of it and goes another way."""
    api.on("POST", PATH, MADE)
    transport, ended = Transport(server=api.server), Ended()
    queue = transport.write_queue(1)

    def strange(_error):
        raise ZeroDivisionError("in what hears of the end")

    queue.post(PATH, dict, strange)
    post(queue, ended)
    assert isinstance(ended.next(), NotSent | Unreachable)
    post(queue, ended)
    assert isinstance(ended.next(), NotSent)
    assert queue.wait_empty(10)
    assert "thread 'writes' ended: ZeroDivisionError: in what hears of the end" in caplog.text
    transport.close()
