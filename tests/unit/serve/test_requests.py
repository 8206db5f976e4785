"""What a web page, a neighbour or a slow client may do to the services: refusals, and ten thousand odd requests."""

import json
import random
import re
import socket
import threading
import time
from contextlib import contextmanager, suppress

import pytest
from starlette.responses import Response
from starlette.testclient import TestClient

from aaml.errors import UserError
from aaml.serve.app import Access, create_app
from aaml.serve.gate import LOOPBACK, names_of
from aaml.serve.health import HealthServer, create_probe_app
from aaml.serve.listen import MOST_CONNECTIONS, PatientServer, listener
from aaml.serve.metrics import Metrics
from support.asgi import CANARY, ODD, ask_all, fuzz, touched
from unit.serve.test_service_app import View, pod_json, service

BIND = {"podName": "p", "podNamespace": "default", "podUID": "u", "node": "n1"}


def client(view, **options):
    return TestClient(create_app(service(view), Metrics(), **options), base_url="http://127.0.0.1:8899")


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},  # every browser says so with a POST
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"host": "evil.example"},
        {"host": "evil.example", "origin": "http://evil.example"},  # a name that its owner points to this machine
    ],
)
def test_no_page_of_a_browser_binds_a_pod(headers):
    """A form of another site needs nobody's leave to post text."""
    view = View()
    asked = client(view, access=Access(hosts=LOOPBACK), binds=True)
    answer = asked.post("/bind", content=json.dumps(BIND), headers={"content-type": "text/plain", **headers})
    assert (answer.status_code, view.bound) == (403, [])
    assert asked.post("/bind", json=BIND).json() == {}, "kube-scheduler may"
    assert view.bound == [("p", "n1")]


def test_names_are_checked_on_loopback_and_not_where_other_hosts_ask():
    assert names_of("127.0.0.1") == names_of("localhost") == {"127.0.0.1", "localhost", "::1"}
    assert names_of("127.0.0.5") == {"127.0.0.1", "127.0.0.5", "localhost", "::1"}
    assert names_of("0.0.0.0") is names_of("build-host") is None
    assert client(View()).get("/healthz", headers={"host": "aaml.kube-system.svc:8899"}).status_code == 200


def test_a_page_reads_no_metrics():
    probes = create_probe_app(Metrics().text, lambda: "", lambda: "", LOOPBACK)
    asked = TestClient(probes, base_url="http://127.0.0.1:9090")
    assert asked.get("/metrics").status_code == 200
    assert asked.get("/metrics", headers={"host": "evil.example"}).status_code == 403
    assert asked.get("/metrics", headers={"sec-fetch-site": "cross-site"}).status_code == 403


def odd_body(draw):
    """Bodies that are nearly right, cut off, far too deep, and no JSON at all."""
    whole = json.dumps(
        {**BIND, "pod": pod_json(), "nodenames": ["n1", CANARY], "nodes": draw.choice([None, [], {}, 7])}
    )
    return draw.choice([
        b"", whole.encode(), whole[: draw.randrange(len(whole))].encode(), b"[" * 20_000, b"\xff\xfe", b"null", b"7",
        json.dumps(draw.choice(ODD)).encode(), json.dumps({"pod": draw.choice(ODD), "node": draw.choice(ODD)}).encode(),
        b"x" * 200_000,
    ])  # fmt: skip


def test_ten_thousand_odd_requests_to_the_service_open_nothing_and_none_fails():
    view = View()
    app = create_app(service(view), Metrics(), max_body_bytes=100_000, access=Access(hosts=LOOPBACK), binds=True)
    paths = ["/filter", "/prioritize", "/bind", "/score", "/healthz", "/readyz", "/metrics", "/openapi.json"]
    statuses = set()

    def look(request, answer):
        statuses.add(answer.status)
        assert answer.status in {200, 400, 403, 404, 405, 413, 422}, request
        if answer.status in {400, 413, 422} and request.method != "HEAD":
            assert list(json.loads(answer.body)) == ["error"]

    with touched() as opened:
        ask_all(app, fuzz(2, 10_000, paths, ["pod", "policy"], odd_body), look)
    assert opened == []
    assert statuses >= {200, 400, 403, 404, 405, 413}


def test_ten_thousand_odd_requests_to_the_metrics_port_open_nothing_and_none_fails():
    metrics = Metrics()
    app = create_probe_app(metrics.text, lambda: "", lambda: "the cluster is away", LOOPBACK)
    statuses = set()

    def look(request, answer):
        statuses.add(answer.status)
        assert answer.status in {200, 403, 404, 405, 503}, request

    size = len(metrics.text())
    with touched() as opened:
        ask_all(app, fuzz(3, 10_000, ["/healthz", "/readyz", "/metrics"], ["name", "x"], odd_body), look)
    assert opened == []
    assert statuses == {200, 403, 404, 405, 503}
    assert len(metrics.text()) == size, "what is asked leaves nothing behind"


# ---- slow clients, on a socket ---------------------------------------------------------------------------------------


@contextmanager
def listening(app, **options):
    """Serve on loopback with a patience of a second."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = PatientServer(app, **{"client_s": 1.0, **options})
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield listener.getsockname()
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


async def large(scope, receive, send):
    """Answer with 64 MB, which no socket holds."""
    await Response(b"x" * 64_000_000)(scope, receive, send)


def hung_up(connection):
    """Wait until the server has ended a connection; returns how much came before."""
    connection.settimeout(20)
    size = 0
    with suppress(ConnectionResetError):
        while data := connection.recv(1 << 16):
            size += len(data)
    return size


@pytest.mark.parametrize(
    "begun",
    [
        b"",
        b"GET /healthz HTTP/1.1\r\nHost: 127",  # a request that never ends
        b"POST /score HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000\r\n\r\n{",  # a body that never comes
    ],
)
def test_a_client_that_never_ends_its_request_is_hung_up_on(begun):
    with listening(create_app(service(None), Metrics())) as address, socket.create_connection(address) as slow:
        slow.sendall(begun)
        assert hung_up(slow) == 0


def test_one_that_sends_a_byte_now_and_then_is_hung_up_on_too():
    sent = 0
    with (
        listening(create_app(service(None), Metrics())) as address,
        socket.create_connection(address) as slow,
        suppress(ConnectionError),
    ):
        for byte in b"GET /" + b"a" * 1000:
            slow.sendall(bytes([byte]))
            sent += 1
            time.sleep(0.05)
    assert sent < 1000


def test_one_that_does_not_read_its_answer_is_hung_up_on():
    with listening(large) as address, socket.create_connection(address) as slow:
        slow.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        time.sleep(3)
        assert hung_up(slow) < 64_000_000


def test_slow_clients_keep_nobody_else_waiting_and_only_so_many_are_held():
    app = create_probe_app(Metrics().text, lambda: "", lambda: "")
    with HealthServer("127.0.0.1", 0, app) as server:
        address = ("127.0.0.1", server.port)
        slow = [socket.create_connection(address) for _ in range(MOST_CONNECTIONS - 1)]
        with socket.create_connection(address) as quick:
            quick.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            assert quick.recv(100).startswith(b"HTTP/1.1 200")
            with socket.create_connection(address) as one_more:
                assert hung_up(one_more) == 0
        for each in slow:
            each.close()


def test_headers_without_end_are_refused():
    with listening(create_app(service(None), Metrics())) as address, socket.create_connection(address) as wide:
        wide.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n" + b"X: " + b"a" * 100_000)
        assert wide.recv(100).startswith(b"HTTP/1.1 400")


def test_bytes_that_are_no_request_end_nothing():
    draw = random.Random(4)
    with listening(create_app(service(None), Metrics())) as address:
        for _ in range(300):
            with socket.create_connection(address) as rude, suppress(ConnectionError):
                rude.sendall(
                    draw.choice([draw.randbytes(200), b"GET / HTTP/9.9\r\n\r\n", b"\x16\x03\x01" + draw.randbytes(99)])
                )
                rude.shutdown(socket.SHUT_WR)
                hung_up(rude)  # or the server may hold too many of them to take one more
        with socket.create_connection(address) as asked:
            asked.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            assert asked.recv(100).startswith(b"HTTP/1.1 200")


@pytest.mark.skipif(not socket.has_ipv6, reason="this machine has no IPv6")
@pytest.mark.parametrize("host", ["::1", "127.0.0.1", "localhost"])
def test_a_host_of_either_protocol_is_listened_at(host):
    with listener(host, 0, "host, port") as one:
        port = one.getsockname()[1]
        socket.create_connection((host, port), timeout=5).close()
        with pytest.raises(
            UserError, match=rf"^host, port: '\[?{re.escape(host)}\]?:{port}' is not accepted; expected a free"
        ):
            listener(host, port, "host, port")
