"""Requests to one server over connections that are kept, by HTTP/1.1 as an API server speaks it.

A scheduler sends two short requests a pod. urllib3 spends several times as long on them, and the standard library's
http.client, which reads the headers of an answer as those of an e-mail, twice (benchmarks/bench_requests.py). So
answers are read by llhttp, Node's parser, as httptools wraps it. urllib3 still opens the connections (`pool`), with all
that a kubeconfig says of certificates and names, and does watches and everything through a proxy.
"""

import select
from collections import deque
from collections.abc import Mapping
from http.client import BadStatusLine, IncompleteRead, RemoteDisconnected
from typing import Any, NamedTuple

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from aaml.kube.tls import ResumingContext

_AT_ONCE_BYTES = 1 << 16
_FIRST_FINAL = 200  # statuses below say that the answer is still to come


class Answer(NamedTuple):
    """A server's answer: the status, the headers (names in lower case), the whole body."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Connections:
    """Connections of an urllib3 `pool` (to the server itself, not by a proxy), at most `most` of them kept idle.

    Threads share them; each request has one to itself. `tls` is the pool's context, if it has one.
    """

    def __init__(self, pool: Any, most: int, tls: ResumingContext | None = None) -> None:
        self._pool, self._most, self._tls = pool, most, tls
        host = f"[{pool.host}]" if ":" in pool.host else pool.host
        self._host = host if pool.port == pool.ConnectionCls.default_port else f"{host}:{pool.port}"
        self._idle: deque[Any] = deque()  # sockets, of TLS or plain

    def exchange(
        self, method: str, target: str, body: bytes | None, headers: Mapping[str, str], timeout_s: float
    ) -> Answer:
        """Send a request and return its answer, for whose next bytes `timeout_s` are waited each time.

        `target` and `headers` are sent as they are. Raises urllib3's errors when it cannot connect, an OSError when the
        connection breaks, and an HTTPException of http.client when what comes is no HTTP.
        """
        request = self.encode(method, target, body, headers)
        connection = self._take()
        try:
            connection.settimeout(timeout_s)
            connection.sendall(request)
            answer, goes_on = _read(connection)
            self.answered(connection)
        except BaseException:
            connection.close()
            raise
        if goes_on and len(self._idle) < self._most:
            self._idle.append(connection)
        else:
            connection.close()
        return answer

    def encode(self, method: str, target: str, body: bytes | None, headers: Mapping[str, str]) -> bytes:
        """Return a request as it is sent."""
        lines = [f"{method} {target} HTTP/1.1", f"Host: {self._host}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if body is not None:
            lines.append(f"Content-Length: {len(body)}")
        return "\r\n".join([*lines, "", ""]).encode("latin-1") + (body or b"")

    def open(self) -> Any:
        """Return a new socket, of TLS or plain, connected within the pool's time; raises urllib3's errors."""
        opened = self._pool._new_conn()  # noqa: SLF001  (what `urlopen` begins with: all settings are in it)
        try:
            opened.connect()
        except BaseException:
            opened.close()
            raise
        return opened.sock

    def answered(self, connection: Any) -> None:
        """Take note of a connection on which an answer was read: the next one goes on with its session."""
        if self._tls is not None:
            self._tls.remember(connection)

    def close(self) -> None:
        """Close the idle ones."""
        while self._idle:
            self._idle.pop().close()

    def _take(self) -> Any:
        """Return the connection that was used last, or a new one: the server may have closed those that were idle."""
        while self._idle:
            try:
                connection = self._idle.pop()
            except IndexError:  # another thread took it
                break
            if _is_quiet(connection):
                return connection
            connection.close()
        return self.open()


def _is_quiet(connection: Any) -> bool:
    """Whether nothing has come since the last answer, not even the end."""
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    return not poll.poll(0)


def _read(connection: Any) -> tuple[Answer, bool]:
    """Return the answer that comes, and whether the connection goes on after it."""
    coming = Coming()
    while not coming.whole:
        data = connection.recv(_AT_ONCE_BYTES)
        if not data:
            return coming.ended(), False
        coming.feed(data)
    return coming.answer(), coming.goes_on


class Coming:
    """An answer as it comes. The parser calls the methods whose names begin with `on_`."""

    def __init__(self) -> None:
        self._parser = HttpResponseParser(self)
        self._begun = self._headed = self.whole = self.goes_on = False
        self._headers: dict[str, str] = {}
        self._parts: list[bytes] = []

    def feed(self, data: bytes) -> None:
        """Take in what came; raises `BadStatusLine` when it is no HTTP."""
        self._begun = True
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade) as error:
            raise BadStatusLine(f"{error}: {data[:100].decode(errors='replace')}") from None

    def ended(self) -> Answer:
        """Return the answer of a server that has closed the connection, which may be how it ends one."""
        if not self._begun:
            raise RemoteDisconnected("the connection was closed without an answer")
        if not self._headed or self._headers.keys() & {"content-length", "transfer-encoding"}:
            raise IncompleteRead(b"".join(self._parts))
        return self.answer()

    def answer(self) -> Answer:
        """Return what has come."""
        return Answer(self._parser.get_status_code(), self._headers, b"".join(self._parts))

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header."""
        if not self._headed:  # and not behind the body
            self._headers[name.decode("latin-1").lower()] = value.decode("latin-1").strip()

    def on_headers_complete(self) -> None:
        """All headers have come."""
        self._headed = True

    def on_body(self, data: bytes) -> None:
        """Keep a part of the body."""
        self._parts.append(data)

    def on_message_complete(self) -> None:
        """End an answer, unless it was an interim one (status 1xx)."""
        if self._parser.get_status_code() < _FIRST_FINAL:
            self._headed = False
            self._headers.clear()
        else:
            self.whole, self.goes_on = True, self._parser.should_keep_alive()
