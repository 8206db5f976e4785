"""Writes whose answers nobody waits for: one thread sends them all and hears what became of each.

Two writes a pod, its bind and its event, are most of what a live scheduler asks of the API server. A thread for each
request under way spends most of its time on waking up and on the interpreter's lock; one thread that asks the system
which connections have something to read does the same with a third of the CPU (benchmarks/bench_requests.py). It never
waits: connections are opened by threads of their own, and what is not answered with a success is left to the caller.
"""

import logging
import selectors
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from aaml import threads
from aaml.kube.connection import Answer, Coming
from aaml.kube.jobs import JobThreads

log = logging.getLogger(__name__)
Body = Callable[[], Mapping[str, Any] | None]
"""Makes what is sent, when it is about to be sent; None: it is not to be sent any more."""
Done = Callable[[Exception | None], None]
"""Gets what a request failed with, or None; called in the thread of the lanes, so it must not wait."""

_OPENERS = 4
_READ_BYTES = 1 << 14  # what one record of TLS holds
_TICK_S = 1.0
_MORE = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class NotSent(Exception):  # noqa: N818  (nothing went wrong)
    """The request was not to be sent any more, or not in this way."""


class LaneTransport(Protocol):
    """What the lanes need of a transport."""

    def open(self) -> Any:
        """Return a connected socket; may block. Raises `NotSent` where a request has to go another way."""

    def answered(self, connection: Any) -> None:
        """Take note of a socket on which an answer was read."""

    def encode(self, path: str, body: Mapping[str, Any]) -> bytes:
        """Return a POST as it is sent."""

    def judge(self, answer: Answer) -> Exception | None:
        """Return the error that an answer is, None for a success."""

    def explain(self, error: Exception, *, sent: bool) -> Exception:
        """Return what an error of the network is called here."""


class _Post:
    """A request, from its submission to its answer."""

    __slots__ = ("body", "done", "path")

    def __init__(self, path: str, body: Body, done: Done) -> None:
        self.path, self.body, self.done = path, body, done


class _Connection:
    """A socket, and the request that is under way on it."""

    __slots__ = ("coming", "deadline_s", "lane", "post", "socket", "unsent")

    def __init__(self, sock: Any, lane: "Lane") -> None:
        self.socket, self.lane = sock, lane
        self.post: _Post | None = None
        self.coming = Coming()
        self.unsent = b""
        self.deadline_s = 0.0


class Lane:
    """Requests of one kind, at most `at_once` of them under way; another lane's never wait for these."""

    def __init__(self, lanes: "Lanes", at_once: int) -> None:
        self.at_once = at_once
        self._lanes = lanes
        self._empty = threading.Condition()
        self._left = 0  # submitted and not ended
        self.waiting: deque[_Post] = deque()  # these are of the lanes' thread
        self.idle: list[_Connection] = []
        self.connections: set[_Connection] = set()
        self.opening = 0

    def __len__(self) -> int:
        """How many requests have not ended."""
        return self._left

    def post(self, path: str, body: Body, done: Done) -> None:
        """Send a POST as soon as a connection is free, in the order of submission; returns at once."""
        with self._empty:
            self._left += 1
        self._lanes.submit(self, _Post(path, body, done))

    def wait_empty(self, timeout_s: float) -> bool:
        """Wait until every request has ended; returns whether that is so."""
        with self._empty:
            return self._empty.wait_for(lambda: not self._left, timeout_s)

    def end(self, post: _Post, error: Exception | None) -> None:
        """Say what became of a request."""
        try:
            post.done(error)
        finally:
            with self._empty:
                self._left -= 1
                if not self._left:
                    self._empty.notify_all()


class Lanes:
    """The thread behind all lanes of a server. `timeout_s` is how long an answer may take."""

    def __init__(self, wire: LaneTransport, timeout_s: float) -> None:
        self._wire, self._timeout_s = wire, timeout_s
        self._selector = selectors.DefaultSelector()
        self._bell, self._ring = socket.socketpair()
        for end in (self._bell, self._ring):
            end.setblocking(False)
        self._selector.register(self._bell, selectors.EVENT_READ, None)
        self._news: deque[tuple[Lane, Any]] = deque()  # requests, opened sockets, and why there is none
        self._lanes: list[Lane] = []
        self._asleep = self._closing = self._over = False
        self._openers = JobThreads("connect", _OPENERS, self._open, self.submit)
        self._thread = threads.start(self._run, "lanes", self._fail)

    def lane(self, at_once: int) -> Lane:
        """Return a new lane."""
        lane = Lane(self, at_once)
        self._lanes.append(lane)
        return lane

    def submit(self, lane: Lane, news: Any) -> None:
        """Hand something to the thread."""
        if self._closing and isinstance(news, _Post):
            lane.end(news, NotSent())
            return
        self._news.append((lane, news))
        if self._over:
            self._turn_away()
        if self._asleep:  # set before the thread looks at the news for the last time
            self._wake()

    def close(self) -> None:
        """Close all connections; what is under way ends without an answer."""
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
        """Let go of what came when the thread had ended, or was about to."""
        while self._news:
            try:
                lane, news = self._news.popleft()
            except IndexError:  # another thread took it
                return
            if isinstance(news, _Post):
                lane.end(news, NotSent())
            elif isinstance(news, socket.socket):
                news.close()

    def _open(self, lane: Lane) -> None:
        try:
            opened = self._wire.open()
            opened.setblocking(False)
        except Exception as error:  # noqa: BLE001  (the request gets it, whatever it is)
            self.submit(lane, error if isinstance(error, NotSent) else self._wire.explain(error, sent=False))
        else:
            self.submit(lane, opened)

    # ---- in the lanes' thread ----------------------------------------------------------------------------------------

    def _run(self) -> None:
        look_s = 0.0
        while not self._closing:
            self._take_in()
            for lane in self._lanes:
                self._start(lane)
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
        """End everything that was submitted; what comes later has to go another way."""
        log.error("requests whose answers nobody waits for", exc_info=error)
        self._closing = True
        self._end_all(error)

    def _end_all(self, error: Exception) -> None:
        self._take_in()
        for lane in self._lanes:
            for connection in list(lane.connections):
                self._lose(connection, error)
            while lane.waiting:
                lane.end(lane.waiting.popleft(), NotSent())
        self._over = True
        self._turn_away()

    def _take_in(self) -> None:
        while self._news:
            lane, news = self._news.popleft()
            if isinstance(news, _Post):
                lane.waiting.append(news)
                continue
            lane.opening -= 1
            if isinstance(news, Exception):
                if lane.waiting:
                    lane.end(lane.waiting.popleft(), news)
                continue
            connection = _Connection(news, lane)
            self._selector.register(news, selectors.EVENT_READ, connection)
            lane.connections.add(connection)
            lane.idle.append(connection)

    def _start(self, lane: Lane) -> None:
        """Send what waits on connections that are idle, and have more opened where they do not suffice."""
        while lane.waiting and lane.idle:
            post = lane.waiting.popleft()
            try:
                body = post.body()
                request = None if body is None else self._wire.encode(post.path, body)
            except Exception as error:  # noqa: BLE001  (the request gets it, whatever it is)
                lane.end(post, self._wire.explain(error, sent=False))
                continue
            if request is None:
                lane.end(post, NotSent())
                continue
            connection = lane.idle.pop()
            connection.post, connection.unsent = post, request
            connection.deadline_s = time.monotonic() + self._timeout_s
            self._send(connection)
        room = lane.at_once - len(lane.connections) - lane.opening
        for _ in range(min(len(lane.waiting) - lane.opening, room)):
            lane.opening += 1
            self._openers.submit(lane)

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
                if connection.post is None:  # nothing was asked: it is the end, or no API server
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
        post, connection.post = connection.post, None
        self._wire.answered(connection.socket)
        if goes_on:
            connection.coming = Coming()
            connection.lane.idle.append(connection)
        else:
            self._drop(connection)
        if post is not None:
            connection.lane.end(post, self._wire.judge(answer))

    def _lose(self, connection: _Connection, error: Exception) -> None:
        post, connection.post = connection.post, None
        self._drop(connection)
        if post is not None:
            connection.lane.end(post, self._wire.explain(error, sent=True))

    def _drop(self, connection: _Connection) -> None:
        lane = connection.lane
        lane.connections.discard(connection)
        if connection in lane.idle:
            lane.idle.remove(connection)
        self._selector.unregister(connection.socket)
        connection.socket.close()

    def _end_late(self, now_s: float) -> None:
        for lane in self._lanes:
            for connection in [each for each in lane.connections if each.post and now_s > each.deadline_s]:
                self._lose(connection, TimeoutError("timed out"))
