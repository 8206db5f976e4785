"""Requests to one server over connections that are kept: HTTP/1.1 with as little as an API server's answers need.

A scheduler sends two short requests a pod, on which urllib3 spends eight times as long (benchmarks/bench_requests.py).
It still opens the connections (`pool`), with all that a kubeconfig says of certificates and names, and does watches and
everything through a proxy. https://www.rfc-editor.org/rfc/rfc9112
"""

import select
from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

_CHUNK_BYTES = 1 << 16
_LONGEST_HEAD = 1 << 20
_FINAL = 200  # below are interim answers
_WITHOUT_BODY = {204, 304}


class Answer(NamedTuple):
    """What a server said: the status, the headers by their names in lower case, the whole body."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Connections:
    """Connections of an urllib3 `pool` (to the server itself, not by a proxy), at most `most` of them kept idle.

    Threads share them; each request has one to itself.
    """

    def __init__(self, pool: Any, most: int) -> None:
        self._pool, self._most = pool, most
        self._idle: deque[_Connection] = deque()

    def exchange(self, request: bytes, timeout_s: float) -> Answer:
        """Send a request and return its answer, for whose next bytes `timeout_s` are waited each time.

        Raises urllib3's errors when it cannot connect, and an OSError when the connection breaks or what comes is no
        HTTP.
        """
        connection = self._take()
        try:
            answer, goes_on = connection.exchange(request, timeout_s)
        except BaseException:
            connection.close()
            raise
        if goes_on and len(self._idle) < self._most:
            self._idle.append(connection)
        else:
            connection.close()
        return answer

    def close(self) -> None:
        """Close the idle ones."""
        while self._idle:
            self._idle.pop().close()

    def _take(self) -> "_Connection":
        """Return the connection that was used last, or a new one: the server may have closed those that were idle."""
        while self._idle:
            try:
                connection = self._idle.pop()
            except IndexError:  # another thread took it
                break
            if connection.is_quiet():
                return connection
            connection.close()
        opened = self._pool._new_conn()  # noqa: SLF001  (what `urlopen` begins with: all settings are in it)
        try:
            opened.connect()
        except BaseException:
            opened.close()
            raise
        return _Connection(opened)


class _Connection:
    """One connection: a request at a time, its answer before the next."""

    def __init__(self, opened: Any) -> None:
        self._opened, self._socket = opened, opened.sock
        self._rest = b""
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)

    def is_quiet(self) -> bool:
        """Whether nothing has come since the last answer, not even the end."""
        return not self._rest and not self._poll.poll(0)

    def exchange(self, request: bytes, timeout_s: float) -> tuple[Answer, bool]:
        """Return the answer to a request, and whether the connection can take another."""
        self._socket.settimeout(timeout_s)
        self._socket.sendall(request)
        version, status, headers = self._head()
        while status < _FINAL:
            version, status, headers = self._head()
        goes_on = version == "HTTP/1.1" and headers.get("connection", "").lower() != "close"
        if status in _WITHOUT_BODY:
            body = b""
        elif headers.get("transfer-encoding", "").lower() == "chunked":
            body = self._chunks()
        elif (length := headers.get("content-length")) is not None:
            body = self._exactly(_number(length, 10))
        else:
            body, goes_on = self._to_the_end(), False
        return Answer(status, headers, body), goes_on

    def close(self) -> None:
        """Close it."""
        self._opened.close()

    def _head(self) -> tuple[str, int, dict[str, str]]:
        """Read the status line and the headers."""
        start, *lines = self._until(b"\r\n\r\n").decode("latin-1").split("\r\n")
        version, _, status = start.partition(" ")
        headers = {}
        for line in lines:
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        return version, _number(status[:3], 10), headers

    def _chunks(self) -> bytes:
        parts = []
        while size := _number(self._until(b"\r\n").partition(b";")[0], 16):
            parts.append(self._exactly(size))
            self._until(b"\r\n")
        while self._until(b"\r\n"):  # trailers
            pass
        return b"".join(parts)

    def _until(self, mark: bytes) -> bytes:
        """Read up to a mark, which is left out."""
        while (place := self._rest.find(mark)) < 0:
            if len(self._rest) > _LONGEST_HEAD:
                raise ConnectionError("the server sends headers without an end")
            self._rest += self._receive()
        found, self._rest = self._rest[:place], self._rest[place + len(mark) :]
        return found

    def _exactly(self, size: int) -> bytes:
        parts, left = [self._rest[:size]], size - len(self._rest)
        self._rest = self._rest[size:]
        while left > 0:
            part = self._receive(min(left, _CHUNK_BYTES))
            left -= len(part)
            parts.append(part)
        return b"".join(parts)

    def _to_the_end(self) -> bytes:
        parts, self._rest = [self._rest], b""
        while part := self._socket.recv(_CHUNK_BYTES):
            parts.append(part)
        return b"".join(parts)

    def _receive(self, most: int = _CHUNK_BYTES) -> bytes:
        part: bytes = self._socket.recv(most)
        if not part:
            raise ConnectionError("the server closed the connection before its answer was complete")
        return part


def _number(text: str | bytes, base: int) -> int:
    try:
        return int(text, base)
    except ValueError:
        raise ConnectionError(f"the server's answer is no HTTP: {text[:40]!r}") from None
