"""Parts of the scheduling queue: a heap that tolerates outdated entries, and the log of recent cluster events."""

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from aaml.scheduling.queue_hints import EventKind

EVENTS_KEPT = 100_000
_LEAST_SWEPT = 1024  # entries below which outdated ones are left where they are


class TicketHeap:
    """A heap of pods by a key.

    Each entry carries a ticket. An entry is outdated when its pod has another ticket by now. It is dropped when it
    comes to the top, or with all other outdated ones once these may be more than the rest: behind a pod that stays on
    top they would only ever become more.
    """

    def __init__(self, is_valid: Callable[[str, int], bool]) -> None:
        self._entries: list[tuple[tuple[float, ...], int, str]] = []
        self._is_valid = is_valid
        self._most = _LEAST_SWEPT

    def __len__(self) -> int:
        """How many entries there are, outdated ones included."""
        return len(self._entries)

    def push(self, key: tuple[float, ...], ticket: int, uid: str) -> None:
        """Add an entry; among equal keys the lower ticket comes first."""
        heapq.heappush(self._entries, (key, ticket, uid))
        if len(self._entries) > self._most:
            self._entries = [entry for entry in self._entries if self._is_valid(entry[2], entry[1])]
            heapq.heapify(self._entries)
            self._most = max(_LEAST_SWEPT, 2 * len(self._entries))

    def peek(self) -> tuple[tuple[float, ...], str] | None:
        """Return (key, uid) of the first valid entry, None when there is none."""
        while self._entries:
            key, ticket, uid = self._entries[0]
            if self._is_valid(uid, ticket):
                return key, uid
            heapq.heappop(self._entries)
        return None

    def pop(self) -> str:
        """Take out the entry that `peek` showed."""
        return heapq.heappop(self._entries)[2]

    def copy(self, is_valid: Callable[[str, int], bool]) -> "TicketHeap":
        """Return an independent copy for another queue."""
        twin = TicketHeap(is_valid)
        twin._entries, twin._most = list(self._entries), self._most
        return twin

    def in_order(self) -> Iterator[str]:
        """Yield uids in order without taking them out.

        A frontier walks down the heap, so that the first k of them cost O(k log k).
        """
        frontier = [(self._entries[0], 0)] if self._entries else []
        while frontier:
            (_, ticket, uid), at = heapq.heappop(frontier)
            for child in (2 * at + 1, 2 * at + 2):
                if child < len(self._entries):
                    heapq.heappush(frontier, (self._entries[child], child))
            if self._is_valid(uid, ticket):
                yield uid


@dataclass(frozen=True, slots=True)
class ClusterEvent:
    """A cluster event as `SchedulingQueue.on_event` took it."""

    kind: EventKind
    now: Any
    before: Any


@dataclass(slots=True)
class EventLog:
    """The events since the oldest pod under way was popped, the latest `EVENTS_KEPT` of them at most.

    One of them may already help a pod that fails to find a node.
    """

    events: list[ClusterEvent] = field(default_factory=list)
    first: int = 0  # number of events before events[0]

    @property
    def count(self) -> int:
        """How many events there have been in all."""
        return self.first + len(self.events)

    def add(self, event: ClusterEvent) -> None:
        """Take an event; where there are too many the older half is let go."""
        self.events.append(event)
        if len(self.events) > EVENTS_KEPT:
            self.drop_before(self.first + EVENTS_KEPT // 2)

    def knows(self, number: int) -> bool:
        """Whether all events are kept that came when `count` was `number` or later."""
        return number >= self.first

    def since(self, number: int) -> list[ClusterEvent]:
        """Return the events that are kept of those that came when `count` was `number` or later."""
        return self.events[max(0, number - self.first) :]

    def drop_before(self, number: int) -> None:
        """Forget the events that nobody will ask for."""
        del self.events[: max(0, number - self.first)]
        self.first = max(self.first, number)
