"""Requests to one server over connections that are kept, by HTTP/1.1 as an API server speaks it.

A scheduler sends two short requests a pod. urllib3 spends several times as long on them, and the standard library's
http.client, which reads the headers of an answer as those of an e-mail, twice (benchmarks/bench_requests.py). urllib3
still opens the connections (`pool`), with all that a kubeconfig says of certificates and names, and does watches and
everything through a proxy.
"""

import select
from collections import deque
from collections.abc import Mapping
from http.client import BadStatusLine, IncompleteRead, RemoteDisconnected
from io import BufferedReader
from typing import Any, NamedTuple

_MOST_OF_A_LINE = 1 << 16
_CONTINUE, _EMPTY = 100, {204, 304}


class Answer(NamedTuple):
    """What a server said: the status, the headers (their names in small letters), the whole body."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class _Connection(NamedTuple):
    socket: Any  # its SSLSocket, or a plain one
    file: BufferedReader

    def close(self) -> None:
        self.file.close()
        self.socket.close()


class Connections:
    """Connections of an urllib3 `pool` (to the server itself, not by a proxy), at most `most` of them kept idle.

    Threads share them; each request has one to itself.
    """

    def __init__(self, pool: Any, most: int) -> None:
        self._pool, self._most = pool, most
        host = f"[{pool.host}]" if ":" in pool.host else pool.host
        self._host = host if pool.port == pool.ConnectionCls.default_port else f"{host}:{pool.port}"
        self._idle: deque[_Connection] = deque()

    def exchange(
        self, method: str, target: str, body: bytes | None, headers: Mapping[str, str], timeout_s: float
    ) -> Answer:
        """Send a request and return its answer, for whose next bytes `timeout_s` are waited each time.

        `target` and `headers` are sent as they are. Raises urllib3's errors when it cannot connect, an OSError when the
        connection breaks, and an HTTPException of http.client when what comes is no HTTP.
        """
        lines = [f"{method} {target} HTTP/1.1", f"Host: {self._host}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if body is not None:
            lines.append(f"Content-Length: {len(body)}")
        request = "\r\n".join([*lines, "", ""]).encode("latin-1") + (body or b"")
        connection = self._take()
        try:
            connection.socket.settimeout(timeout_s)
            connection.socket.sendall(request)
            answer, goes_on = _read(connection.file)
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

    def _take(self) -> _Connection:
        """Return the connection that was used last, or a new one: the server may have closed those that were idle."""
        while self._idle:
            try:
                connection = self._idle.pop()
            except IndexError:  # another thread took it
                break
            if _is_quiet(connection):
                return connection
            connection.close()
        opened = self._pool._new_conn()  # noqa: SLF001  (what `urlopen` begins with: all settings are in it)
        try:
            opened.connect()
        except BaseException:
            opened.close()
            raise
        return _Connection(opened.sock, opened.sock.makefile("rb"))


def _is_quiet(connection: _Connection) -> bool:
    """Whether nothing has come since the last answer, not even the end."""
    poll = select.poll()
    poll.register(connection.socket, select.POLLIN)
    return not poll.poll(0)


def _read(file: BufferedReader) -> tuple[Answer, bool]:
    """Return an answer, and whether the connection goes on after it (RFC 9112)."""
    status = _CONTINUE
    while status == _CONTINUE:
        line = file.readline(_MOST_OF_A_LINE)
        if not line:
            raise RemoteDisconnected("the connection was closed without an answer")
        version, _, rest = line.partition(b" ")
        if not version.startswith(b"HTTP/1.") or not rest[:3].isdigit():
            raise BadStatusLine(line[:100].decode(errors="replace"))
        status, headers = int(rest[:3]), _headers(file)
    goes_on = version == b"HTTP/1.1" and headers.get("connection", "").lower() != "close"
    if status in _EMPTY:
        return Answer(status, headers, b""), goes_on
    if headers.get("transfer-encoding", "").lower() == "chunked":
        return Answer(status, headers, _chunks(file)), goes_on
    if "content-length" in headers:
        return Answer(status, headers, _exactly(file, headers["content-length"], 10)), goes_on
    return Answer(status, headers, file.read()), False


def _headers(file: BufferedReader) -> dict[str, str]:
    """Read header lines, and the empty one behind them."""
    headers = {}
    while (line := file.readline(_MOST_OF_A_LINE)) not in {b"\r\n", b"\n"}:
        name, colon, value = line.decode("latin-1").partition(":")
        if not colon or not line.endswith(b"\n"):
            raise IncompleteRead(line)
        headers[name.lower()] = value.strip()
    return headers


def _chunks(file: BufferedReader) -> bytes:
    """Read a body in chunks, and what follows the last one."""
    chunks = []
    while chunk := _exactly(file, file.readline(_MOST_OF_A_LINE).partition(b";")[0], 16):
        chunks.append(chunk)
        file.readline(_MOST_OF_A_LINE)
    _headers(file)
    return b"".join(chunks)


def _exactly(file: BufferedReader, size: str | bytes, base: int) -> bytes:
    """Read as many bytes as `size` says in digits of a base."""
    try:
        expected = int(size, base)
    except ValueError:
        raise BadStatusLine(f"no size: {size[:100]!r}") from None
    data = file.read(expected)
    if len(data) < expected:
        raise IncompleteRead(data, expected - len(data))
    return data
