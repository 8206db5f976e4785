"""Requests over kept connections: every shape of an answer, and every way in which one breaks off."""

import json
import re
import socket
import threading
from contextlib import contextmanager

import pytest

from aaml.errors import UserError
from aaml.kube.transport import ApiError, Transport, Unreachable

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def is_whole(request):
    head, end, body = request.partition(b"\r\n\r\n")
    length = re.search(rb"Content-Length: (\d+)", head)
    return bool(end) and len(body) >= (int(length[1]) if length else 0)


@contextmanager
def server(*connections):
    """Serve connections one after the other: a list of answers each, in pieces; after the last one it is closed.

    Yields a client, the requests as they come, and a semaphore that tells of each connection that was closed.
    """
    asked: list[bytes] = []
    closed = threading.Semaphore(0)
    listening = socket.create_server(("127.0.0.1", 0))

    def serve():
        for answers in connections:
            with listening.accept()[0] as peer:
                for pieces in answers:
                    request = b""
                    while not is_whole(request):
                        request += peer.recv(65536)
                    asked.append(request)
                    for piece in pieces if isinstance(pieces, list) else [pieces]:
                        peer.sendall(piece)
            closed.release()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    with listening:
        yield Transport(server=f"http://127.0.0.1:{listening.getsockname()[1]}"), asked, closed
        thread.join(10.0)


@pytest.mark.parametrize(
    ("answer", "body"),
    [
        (OK, b"{}"),
        ([OK[i : i + 1] for i in range(len(OK))], b"{}"),
        (b"HTTP/1.1 200 OK\r\ncontent-length:  2 \r\n\r\n{}", b"{}"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + OK, b"{}"),
        (
            CHUNKED + b"3;note=x\r\nabc\r\nA\r\n0123456789\r\n0\r\nTrailer: y\r\n\r\n",
            b"abc0123456789",
        ),
        (CHUNKED + b"0\r\n\r\n", b""),
        (b"HTTP/1.1 200\r\nContent-Length: 2\r\n\r\n{}", b"{}"),
    ],
)
def test_an_answer_of_any_shape_is_read_whole_and_the_connection_takes_the_next_request(answer, body):
    with server([answer, OK]) as (transport, asked, _):
        assert transport.request("GET", "/first") == body
        assert transport.request("GET", "/second") == b"{}"
    assert [request.split(b" ")[1] for request in asked] == [b"/first", b"/second"]


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\n\r\n{}",
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n{}",
        OK,
    ],
)
def test_where_the_server_closes_the_connection_the_next_request_opens_another(answer):
    with server([answer], [OK]) as (transport, _, closed):
        assert transport.request("GET", "/first") == b"{}"
        assert closed.acquire(timeout=30.0)
        assert transport.request("GET", "/second") == b"{}"


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\n{}",
        CHUNKED + b"5\r\nab",
        b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
    ],
)
def test_an_answer_that_breaks_off_or_is_none_may_have_been_carried_out_and_spoils_no_other(answer):
    with server([answer], [OK]) as (transport, _, _):
        with pytest.raises(Unreachable) as lost:
            transport.request("POST", "/first", {})
        assert lost.value.sent
        assert transport.request("GET", "/second") == b"{}"


def test_a_server_that_does_not_answer_is_given_up_and_one_that_is_not_there_was_sent_nothing():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"http://127.0.0.1:{listening.getsockname()[1]}"
        with pytest.raises(Unreachable, match="timed out") as silent:
            Transport(server=address).request("GET", "/", timeout_s=0.05)
        assert silent.value.sent
    with pytest.raises(Unreachable, match="refused") as absent:
        Transport(server=address).request("GET", "/")
    assert not absent.value.sent


def test_a_request_says_what_it_brings_and_names_are_quoted():
    with server([OK, OK]) as (transport, asked, _):
        transport.request("POST", "/pods/a b\r\nHost: c", {"n": 1}, query={"limit": "2"})
        transport.request("DELETE", "/pods/x?gracePeriodSeconds=0")
    head, _, body = asked[0].partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    assert lines[0] == b"POST /pods/a%20b%0D%0AHost:%20c?limit=2 HTTP/1.1"
    assert re.fullmatch(rb"Host: 127\.0\.0\.1:\d+", lines[1])
    assert b"Content-Length: 7" in lines
    assert b"Content-Type: application/json" in lines
    assert body == b'{"n":1}'
    assert asked[1].startswith(b"DELETE /pods/x?gracePeriodSeconds=0 HTTP/1.1\r\n")
    assert b"Content-Length" not in asked[1]


def test_an_error_brings_the_servers_words_and_when_to_try_again():
    said = b'{"reason":"TooManyRequests","message":"slow down"}'
    answer = b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 7\r\nContent-Length: %d\r\n\r\n%b" % (len(said), said)
    with server([answer]) as (transport, _, _), pytest.raises(ApiError, match="slow down") as refused:
        transport.request("GET", "/")
    assert (refused.value.status, refused.value.retry_after_s) == (429, 7.0)


def test_a_token_with_a_line_break_is_refused_without_being_shown(tmp_path):
    config = {
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
        "users": [{"name": "u", "user": {"token": "se\ncret"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    }  # fmt: skip
    (tmp_path / "config").write_text(json.dumps(config))
    transport = Transport(tmp_path / "config")
    for ask in (lambda: transport.request("GET", "/version"), lambda: transport.watch("/api/v1/pods", {}, 1.0)):
        with pytest.raises(UserError, match="line break") as refused:
            ask()
        assert "cret" not in str(refused.value)


@pytest.mark.parametrize(
    ("reason", "line"), [("Forbidden", "403 Forbidden: no"), ("", "403: no")], ids=["a reason", "none: plain text"]
)
def test_a_refusal_is_one_line(reason, line):
    assert str(ApiError(403, reason, "no")) == line


def test_credentials_that_are_missing_for_a_moment_are_an_answer_that_did_not_come():
    """A pod's token file is gone for a moment while the kubelet renews it; what reads it raises an error of its own."""

    def hook(settings):
        raise FileNotFoundError(2, "No such file or directory", "/var/run/secrets/token")

    with server([OK]) as (transport, _, _):
        transport._settings.api_key = {"authorization": "bearer old"}
        transport._settings.refresh_api_key_hook = hook
        for ask in (lambda: transport.request("GET", "/"), lambda: transport.watch("/api/v1/pods", {}, 1.0)):
            with pytest.raises(Unreachable, match="No such file") as missing:
                ask()
            assert not missing.value.sent
        assert "credentials" in str(transport.explain(missing.value))
        transport._settings.refresh_api_key_hook = None
        assert transport.request("GET", "/")
