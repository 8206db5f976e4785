"""A reflector: lists a kind of objects, then watches it, and reports every change; from one thread of its own.

It resumes where a watch ended, lists again when the server has forgotten that point (410), reconnects when the server
is silent, and waits longer and longer while the server cannot be reached. Whatever happened meanwhile, the changes that
it reports lead from what it reported before to what there is. At each list and each watch it makes sure that the
address still tells the same history; in a new one every object is another, whatever its name and version.
https://kubernetes.io/docs/reference/using-api/api-concepts/#efficient-detection-of-changes
"""

import logging
import random
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar

import msgspec

from aaml import threads
from aaml.errors import UserError
from aaml.kube.history import History
from aaml.kube.objects import wire
from aaml.kube.transport import ApiError, Transport, Unreachable, Watch

log = logging.getLogger(__name__)

T = TypeVar("T")
W = TypeVar("W")

_GONE = 410
_PAGE = 500
_SHORT_S = 1.0
_WATCH_FAILURES = 3  # refused watches in a row after which the objects are listed anew


@dataclass(frozen=True, slots=True)
class Delta(Generic[T]):
    """One change: the object now (its last state when deleted) and before (None when it is new)."""

    kind: Literal["added", "modified", "deleted"]
    obj: T
    before: T | None = None


@dataclass(frozen=True, slots=True)
class Changes(Generic[T]):
    """Changes of one source in their order; `synced` marks the end of a list.

    After a `Trouble`, changes, which may be empty, mean that the source can be read again.
    """

    source: str
    deltas: tuple[Delta[T], ...]
    synced: bool = False


@dataclass(frozen=True, slots=True)
class Trouble:
    """A request of a reflector failed; it goes on trying."""

    source: str
    error: ApiError | Unreachable


@dataclass(frozen=True)
class Source(Generic[T]):
    """What to watch: `wire` is the struct to decode, `convert` makes the reported object of it or raises UserError.

    `key` is what tells a reported object from others, and `wire_key` gives the same of the wire's object, which may be
    one that cannot be converted; None where these are the same. `brought_by`: the program whose installation defines
    the resource, "" for one that every cluster has.
    """

    name: str
    path: str
    wire: Any
    convert: Callable[[Any], T]
    key: Callable[[T], str]
    version: Callable[[T], str]
    query: Mapping[str, str] = field(default_factory=dict)
    brought_by: str = ""
    wire_key: Callable[[Any], str] | None = None


class Backoff:
    """Growing waits in seconds with jitter: half to all of `initial_s` * 2^n, at most `max_s`."""

    def __init__(self, initial_s: float = 0.2, max_s: float = 10.0, rng: random.Random | None = None) -> None:
        self._initial_s, self._max_s, self._failures = initial_s, max_s, 0
        self._rng = rng or random.Random()

    def reset(self) -> None:
        """Start again from the shortest wait."""
        self._failures = 0

    def next_s(self) -> float:
        """Return how long to wait now."""
        longest = min(self._max_s, self._initial_s * 2.0 ** min(self._failures, 30))
        self._failures += 1
        return longest * self._rng.uniform(0.5, 1.0)


class _WatchEvent(msgspec.Struct, Generic[W]):
    type: str
    object: W


class Reflector(Generic[T]):
    """Keeps `sink` informed about a source. A watch lasts `watch_s`, or until nothing has come for `silence_s`.

    The server sends a bookmark about every minute, and the first one of a kind of which nothing has changed after two:
    that a watch was silent says nothing, the next one tells whether the server is there. `sink` is called from the
    reflector's thread; should an error of ours end that, it gets a `ThreadError` as the last. Reflectors of one cluster
    share its `history`.
    """

    def __init__(
        self,
        transport: Transport,
        source: Source[T],
        sink: Callable[[Changes[T] | Trouble | threads.ThreadError], None],
        *,
        watch_s: int = 300,
        silence_s: float = 90.0,
        backoff: Backoff | None = None,
        history: History | None = None,
    ) -> None:
        self._transport, self._source, self._sink = transport, source, sink
        self._wire_key = source.wire_key or source.key
        self._watch_s, self._silence_s = watch_s, silence_s
        self._backoff = backoff or Backoff()
        self._events = msgspec.json.Decoder(_WatchEvent[source.wire])  # type: ignore[name-defined]
        self._lists = msgspec.json.Decoder(wire.ListOf[source.wire])  # type: ignore[name-defined]
        self._history = history or History(transport)
        self._known: dict[str, T] = {}
        self._number, self._version = 0, ""  # of the history that `_known` belongs to, and how far it was followed
        self._resumes = False  # whether a watch may go on from there
        self._refused = 0
        self._healthy = True
        self._stumbled = False
        self._stopping = threading.Event()
        self._watch: Watch | None = None
        self._thread: threading.Thread | None = None
        self.lists = self.watches = 0  # how often each was done: a watch that is cut off costs no list

    def start(self) -> None:
        """Begin."""
        self._thread = threads.start(self._run, f"reflector-{self._source.name}", self._sink)

    def stop(self) -> None:
        """Tell it to end; returns at once."""
        self._stopping.set()
        watch = self._watch
        if watch is not None:
            watch.cut()

    def join(self, timeout_s: float) -> None:
        """Wait until it has ended."""
        if self._thread is not None:
            self._thread.join(timeout_s)

    # ---- in its thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                if not self._resumes:
                    self._list()
                self._follow()
            except (ApiError, Unreachable) as error:
                if self._stopping.is_set():
                    return
                self._failed(error)
            except (msgspec.ValidationError, msgspec.DecodeError) as error:
                # What the unreadable message said is lost: only a list tells.
                log.warning("%s: unreadable answer of the API server (%s); listing again", self._source.name, error)
                self._resumes = False
                self._stopping.wait(self._backoff.next_s())

    def _failed(self, error: ApiError | Unreachable) -> None:
        if isinstance(error, ApiError):
            self._refused += 1
            if error.status == _GONE or self._refused >= _WATCH_FAILURES:
                self._resumes = False
            if error.status == _GONE and self._refused == 1:
                log.info("%s: the watch has expired; listing again", self._source.name)
                return
        if self._healthy:
            log.warning("%s: %s; trying again", self._source.name, error)
        self._healthy = False
        self._sink(Trouble(self._source.name, error))
        self._stopping.wait(self._backoff.next_s())

    def _works(self) -> None:
        if not self._healthy:
            log.info("%s: the API server answers again", self._source.name)
            self._sink(Changes(self._source.name, ()))
        self._healthy, self._refused = True, 0
        self._backoff.reset()

    def _list(self) -> None:
        """Take stock, page by page, and report how it differs from what is known."""
        self.lists += 1
        number = self._history.current(self._number, self._version)
        query = {**self._source.query, "limit": str(_PAGE)}
        listed: dict[str, T] = {}
        while True:
            page = self._lists.decode(self._transport.request("GET", self._source.path, query=query))
            for raw in page.items or ():
                obj = self._convert(raw)
                if obj is not None:
                    listed[self._source.key(obj)] = obj
            if not page.metadata.continue_:
                break
            query["continue"] = page.metadata.continue_
        known = self._known if number == self._number else {}
        deltas = [
            Delta("deleted", obj, obj) for key, obj in self._known.items() if key not in listed or key not in known
        ]
        for key, obj in listed.items():
            before = known.get(key)
            if before is None:
                deltas.append(Delta("added", obj))
            elif self._source.version(before) != self._source.version(obj):
                deltas.append(Delta("modified", obj, before))
        self._known = listed
        self._number, self._version, self._resumes = number, page.metadata.resource_version, True
        self._sink(Changes(self._source.name, tuple(deltas), synced=True))

    def _follow(self) -> None:
        """Watch from where the last list or watch ended, until this watch ends."""
        self.watches += 1
        query = {
            **self._source.query,
            "resourceVersion": self._version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(self._watch_s),
        }
        started, heard = time.monotonic(), False
        self._watch = self._transport.watch(self._source.path, query, self._silence_s)
        try:
            if self._stopping.is_set():  # `stop` may have come before there was anything to cut
                return
            # Only now: a server that was replaced before this watch began is found out.
            if self._history.current(self._number, self._version) != self._number:
                self._resumes = False
                return
            for lines in self._watch.lines():
                self._take(lines)
                if not heard:
                    heard = True
                    self._works()
        finally:
            self._watch.close()
            self._watch = None
        if not heard and time.monotonic() - started < _SHORT_S:
            self._stopping.wait(self._backoff.next_s())  # a server that ends watches at once must not be hammered
        else:
            self._works()

    def _take(self, lines: Iterable[bytes]) -> None:
        deltas: list[Delta[T]] = []
        try:
            for line in lines:
                delta = self._read(line)
                if delta is not None:
                    deltas.append(delta)
        finally:
            if deltas:
                self._sink(Changes(self._source.name, tuple(deltas)))

    def _read(self, line: bytes) -> Delta[T] | None:
        try:
            event = self._events.decode(line)
        except msgspec.ValidationError:
            _raise_error_event(line)
            raise
        if event.type == "ERROR":  # its object may happen to be readable as one of ours
            _raise_error_event(line)
        self._version = event.object.metadata.resource_version
        if event.type == "BOOKMARK":
            return None
        key, obj = self._wire_key(event.object), self._convert(event.object)
        if event.type == "DELETED" or obj is None:  # what cannot be read any more is left out, as in a list
            before = self._known.pop(key, None)
            return None if before is None else Delta("deleted", obj or before, before)
        before = self._known.get(key)
        self._known[key] = obj
        if before is None:
            return Delta("added", obj)
        return None if self._source.version(before) == self._source.version(obj) else Delta("modified", obj, before)

    def _convert(self, raw: Any) -> T | None:
        try:
            return self._source.convert(raw)
        except UserError as error:
            log.error("%s %s: %s; it is left out", self._source.name, raw.metadata.name, error)  # noqa: TRY400
        except Exception as error:
            logged, self._stumbled = self._stumbled, True
            log.error(  # noqa: TRY400  (the traceback is told once)
                "%s %s: an error of ours (%s: %s); it is left out",
                self._source.name, raw.metadata.name, type(error).__name__, error, exc_info=None if logged else error,
            )  # fmt: skip
        return None


def _raise_error_event(line: bytes) -> None:
    """Raise the error that an ERROR event brings; do nothing when the line is none."""
    event = msgspec.json.decode(line, type=_WatchEvent[wire.ApiStatus])
    if event.type == "ERROR":
        raise ApiError(event.object.code, event.object.reason, event.object.message)
