"""Requests to one server over connections that are kept, by the standard library's http.client.

A scheduler sends two short requests a pod, on which urllib3 spends nearly twice as long (benchmarks/bench_requests.py).
It still opens the connections (`pool`), with all that a kubeconfig says of certificates and names, and does watches and
everything through a proxy.
"""

import select
from collections import deque
from collections.abc import Mapping
from email.message import Message
from http.client import HTTPConnection
from typing import Any, NamedTuple


class Answer(NamedTuple):
    """What a server said: the status, the headers (their names in any case), the whole body."""

    status: int
    headers: Message
    body: bytes


class Connections:
    """Connections of an urllib3 `pool` (to the server itself, not by a proxy), at most `most` of them kept idle.

    Threads share them; each request has one to itself.
    """

    def __init__(self, pool: Any, most: int) -> None:
        self._pool, self._most = pool, most
        self._idle: deque[HTTPConnection] = deque()

    def exchange(
        self, method: str, target: str, body: bytes | None, headers: Mapping[str, str], timeout_s: float
    ) -> Answer:
        """Send a request and return its answer, for whose next bytes `timeout_s` are waited each time.

        Raises urllib3's errors when it cannot connect, an OSError when the connection breaks, and an HTTPException of
        http.client when what comes is no HTTP.
        """
        connection = self._take()
        try:
            connection.sock.settimeout(timeout_s)
            connection.request(method, target, body, headers)
            response = connection.getresponse()
            answer = Answer(response.status, response.headers, response.read())
        except BaseException:
            connection.close()
            raise
        if connection.sock is not None and len(self._idle) < self._most:
            self._idle.append(connection)
        else:
            connection.close()
        return answer

    def close(self) -> None:
        """Close the idle ones."""
        while self._idle:
            self._idle.pop().close()

    def _take(self) -> HTTPConnection:
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
        connection = HTTPConnection(opened.host, opened.port)
        connection.sock = opened.sock
        return connection


def _is_quiet(connection: HTTPConnection) -> bool:
    """Whether nothing has come since the last answer, not even the end."""
    poll = select.poll()
    poll.register(connection.sock, select.POLLIN)
    return not poll.poll(0)
