"""Asynchronous writes: one thread sends them over a pool of connections and calls back with each result.

Two writes a pod, its bind and its event, are most of the requests of a live scheduler. A thread for each request in
flight spends most of its time on waking up and on the interpreter's lock. One thread that selects the readable sockets
needs a third of the CPU (benchmarks/bench_requests.py). It never blocks: other threads open the connections, and the
caller deals with errors.
"""

import logging
import selectors
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from aaml import threads
from aaml.kube.connection import Answer, Coming, Connections
from aaml.kube.jobs import JobThreads

log = logging.getLogger(__name__)
Body = Callable[[], Mapping[str, Any] | None]
"""Returns the body just before it is sent; None cancels the request."""
Done = Callable[[Exception | None], None]
"""Called with the error of a request, or None; it runs in the writer's thread and must not block."""

_OPENERS = 4
_READ_BYTES = 1 << 14  # what one record of TLS holds
_TICK_S = 1.0
_MORE = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class NotSent(Exception):  # noqa: N818  (nothing went wrong)
    """The request was cancelled, or has to be sent another way."""


class _Write:
    """A POST request from its submission to its answer."""

    __slots__ = ("body", "done", "path")

    def __init__(self, path: str, body: Body, done: Done) -> None:
        self.path, self.body, self.done = path, body, done


class _Connection:
    """A socket, and the write in flight on it."""

    __slots__ = ("coming", "deadline_s", "queue", "socket", "unsent", "write")

    def __init__(self, sock: Any, queue: "WriteQueue") -> None:
        self.socket, self.queue = sock, queue
        self.write: _Write | None = None
        self.coming = Coming()
        self.unsent = b""
        self.deadline_s = 0.0


class WriteQueue:
    """Writes of one kind, at most `max_in_flight` at a time. Queues do not wait for one another."""

    def __init__(self, writer: "AsyncWriter", max_in_flight: int) -> None:
        self.max_in_flight = max_in_flight
        self._writer = writer
        self._empty = threading.Condition()
        self._left = 0  # submitted and not ended
        self.waiting: deque[_Write] = deque()  # these belong to the writer's thread
        self.idle: list[_Connection] = []
        self.connections: set[_Connection] = set()
        self.opening = 0

    def __len__(self) -> int:
        """How many writes have not ended."""
        return self._left

    def post(self, path: str, body: Body, done: Done) -> None:
        """Send a POST as soon as a connection is free, in the order of submission; returns at once."""
        with self._empty:
            self._left += 1
        self._writer.submit(self, _Write(path, body, done))

    def wait_empty(self, timeout_s: float) -> bool:
        """Wait until every write has ended; returns whether that is so."""
        with self._empty:
            return self._empty.wait_for(lambda: not self._left, timeout_s)

    def end(self, write: _Write, error: Exception | None) -> None:
        """Report the result of a write."""
        try:
            write.done(error)
        finally:
            with self._empty:
                self._left -= 1
                if not self._left:
                    self._empty.notify_all()


class AsyncWriter:
    """The thread that sends the writes of all queues to one server; an answer may take `timeout_s` seconds.

    `encode(path, body)` returns the bytes of a POST request, `refusal` the error in an answer (None for a success), and
    `explain(error, sent)` an error of the network as one of this package's. Without `connections` every write ends with
    `NotSent`.
    """

    def __init__(
        self, connections: Connections | None, encode: Callable[[str, Mapping[str, Any]], bytes],
        refusal: Callable[[Answer], Exception | None], explain: Callable[[Exception, bool], Exception],
        timeout_s: float,
    ) -> None:  # fmt: skip
        self._connections, self._encode, self._refusal, self._explain = connections, encode, refusal, explain
        self._timeout_s = timeout_s
        self._selector = selectors.DefaultSelector()
        self._bell, self._ring = socket.socketpair()
        for end in (self._bell, self._ring):
            end.setblocking(False)
        self._selector.register(self._bell, selectors.EVENT_READ, None)
        self._news: deque[tuple[WriteQueue, Any]] = deque()  # requests, opened sockets, and why there is none
        self._queues: list[WriteQueue] = []
        self._asleep = self._closing = self._over = False
        self._openers = JobThreads("connect", _OPENERS, self._open, self.submit)
        self._thread = threads.start(self._run, "writes", self._fail)

    def queue(self, max_in_flight: int) -> WriteQueue:
        """Return a new queue."""
        queue = WriteQueue(self, max_in_flight)
        self._queues.append(queue)
        return queue

    def submit(self, queue: WriteQueue, news: Any) -> None:
        """Give the thread a write, an opened socket, or the error of opening one."""
        if self._closing and isinstance(news, _Write):
            queue.end(news, NotSent())
            return
        self._news.append((queue, news))
        if self._over:
            self._turn_away()
        if self._asleep:  # set before the thread looks at the news for the last time
            self._wake()

    def close(self) -> None:
        """Close all connections; writes in flight end without an answer."""
        self._closing = True
        self._wake()
        self._thread.join(10.0)
        self._openers.close(0.0)
        self._turn_away()
        self._selector.close()
        for end in (self._bell, self._ring):
            end.close()

    # ---- in threads --------------------------------------------------------------------------------------------------

    def _wake(self) -> None:
        try:
            self._ring.send(b"\0")
        except (BlockingIOError, OSError):
            return  # it is rung already, or the thread has ended

    def _turn_away(self) -> None:
        """End what was submitted after the thread ended, or while it did."""
        while self._news:
            try:
                queue, news = self._news.popleft()
            except IndexError:  # another thread took it
                return
            if isinstance(news, _Write):
                queue.end(news, NotSent())
            elif isinstance(news, socket.socket):
                news.close()

    def _open(self, queue: WriteQueue) -> None:
        try:
            if self._connections is None:
                raise NotSent  # noqa: TRY301
            opened = self._connections.open()
            opened.setblocking(False)
        except Exception as error:  # noqa: BLE001  (the request gets it, whatever it is)
            self.submit(queue, error if isinstance(error, NotSent) else self._explain(error, False))
        else:
            self.submit(queue, opened)

    # ---- in the writer's thread --------------------------------------------------------------------------------------

    def _run(self) -> None:
        look_s = 0.0
        while not self._closing:
            self._take_in()
            for queue in self._queues:
                self._start(queue)
            self._asleep = True
            ready = self._selector.select(0.0 if self._news or self._closing else _TICK_S)
            self._asleep = False
            for key, mask in ready:
                if key.data is None:
                    self._bell.recv(_READ_BYTES)
                elif mask & selectors.EVENT_WRITE:
                    self._send(key.data)
                else:
                    self._read(key.data)
            now_s = time.monotonic()
            if now_s >= look_s:
                look_s = now_s + _TICK_S
                self._end_late(now_s)
        self._end_all(ConnectionAbortedError("closed before an answer came"))

    def _fail(self, error: threads.ThreadError) -> None:
        """End everything that was submitted; later writes end with `NotSent`."""
        log.error("asynchronous writes", exc_info=error)
        self._closing = True
        self._end_all(error)

    def _end_all(self, error: Exception) -> None:
        self._take_in()
        for queue in self._queues:
            for connection in list(queue.connections):
                self._lose(connection, error)
            while queue.waiting:
                queue.end(queue.waiting.popleft(), NotSent())
        self._over = True
        self._turn_away()

    def _take_in(self) -> None:
        while self._news:
            queue, news = self._news.popleft()
            if isinstance(news, _Write):
                queue.waiting.append(news)
                continue
            queue.opening -= 1
            if isinstance(news, Exception):
                if queue.waiting:
                    queue.end(queue.waiting.popleft(), news)
                continue
            connection = _Connection(news, queue)
            self._selector.register(news, selectors.EVENT_READ, connection)
            queue.connections.add(connection)
            queue.idle.append(connection)

    def _start(self, queue: WriteQueue) -> None:
        """Send the writes that wait on idle connections, and open more connections where these do not suffice."""
        while queue.waiting and queue.idle:
            write = queue.waiting.popleft()
            try:
                body = write.body()
                request = None if body is None else self._encode(write.path, body)
            except Exception as error:  # noqa: BLE001  (the request gets it, whatever it is)
                queue.end(write, self._explain(error, False))
                continue
            if request is None:
                queue.end(write, NotSent())
                continue
            connection = queue.idle.pop()
            connection.write, connection.unsent = write, request
            connection.deadline_s = time.monotonic() + self._timeout_s
            self._send(connection)
        free = queue.max_in_flight - len(queue.connections) - queue.opening
        for _ in range(min(len(queue.waiting) - queue.opening, free)):
            queue.opening += 1
            self._openers.submit(queue)

    def _send(self, connection: _Connection) -> None:
        begun = len(connection.unsent)
        try:
            while connection.unsent:
                connection.unsent = connection.unsent[connection.socket.send(connection.unsent) :]
        except _MORE:
            self._selector.modify(connection.socket, selectors.EVENT_WRITE, connection)
        except (OSError, ValueError) as error:
            self._lose(connection, error)
        else:
            if begun and self._selector.get_key(connection.socket).events != selectors.EVENT_READ:
                self._selector.modify(connection.socket, selectors.EVENT_READ, connection)

    def _read(self, connection: _Connection) -> None:
        coming = connection.coming
        try:
            while not coming.whole:
                data = connection.socket.recv(_READ_BYTES)
                if connection.write is None:  # nothing was asked: it is the end, or no API server
                    raise ConnectionResetError("the server ended the connection")  # noqa: TRY301
                if not data:
                    self._finish(connection, coming.ended(), goes_on=False)
                    return
                coming.feed(data)
        except _MORE:
            connection.deadline_s = time.monotonic() + self._timeout_s
        except Exception as error:  # noqa: BLE001  (a broken connection, or no HTTP)
            self._lose(connection, error)
        else:
            self._finish(connection, coming.answer(), goes_on=coming.goes_on)

    def _finish(self, connection: _Connection, answer: Answer, *, goes_on: bool) -> None:
        write, connection.write = connection.write, None
        if self._connections is not None:
            self._connections.answered(connection.socket)
        if goes_on:
            connection.coming = Coming()
            connection.queue.idle.append(connection)
        else:
            self._drop(connection)
        if write is not None:
            connection.queue.end(write, self._refusal(answer))

    def _lose(self, connection: _Connection, error: Exception) -> None:
        write, connection.write = connection.write, None
        self._drop(connection)
        if write is not None:
            connection.queue.end(write, self._explain(error, True))

    def _drop(self, connection: _Connection) -> None:
        queue = connection.queue
        queue.connections.discard(connection)
        if connection in queue.idle:
            queue.idle.remove(connection)
        self._selector.unregister(connection.socket)
        connection.socket.close()

    def _end_late(self, now_s: float) -> None:
        for queue in self._queues:
            for connection in [each for each in queue.connections if each.write and now_s > each.deadline_s]:
                self._lose(connection, TimeoutError("timed out"))
