"""Inbox: what other threads tell the one that decides. It has a bound: who watches waits while too much lies in it.

A watch that is not read is slowed down by TCP and ended by the API server; its reflector goes on from there, or lists
again. So a process that does nothing for a while holds no more than so many changes, and loses none.
"""

import queue
import threading
from typing import Any

from aaml.kube.reflector import Changes

MOST = 10_000
"""Changes that may wait, one batch of them beyond that: a list comes as one."""


class Inbox:
    """A bounded queue for one reader. Results of its own requests are `put` at once; changes wait for space."""

    def __init__(self, most: int | None = None) -> None:
        self._items: queue.SimpleQueue[tuple[Any, int]] = queue.SimpleQueue()  # with the changes that each counts as
        self._most = MOST if most is None else most
        self._room = threading.Condition()
        self._changes = 0  # that wait
        self._closed = False

    def __len__(self) -> int:
        """How many items wait, each result or batch of changes as one."""
        return self._items.qsize()

    @property
    def changes(self) -> int:
        """How many changes wait."""
        return self._changes

    def put(self, item: Any) -> None:
        """Put an item in, at once."""
        self._items.put((item, 0))

    def put_changes(self, item: Any) -> None:
        """Add changes of a reflector once there is space; what comes after `close` is dropped."""
        weight = max(1, len(item.deltas)) if isinstance(item, Changes) else 1
        with self._room:
            self._room.wait_for(lambda: self._changes < self._most or self._closed)
            if self._closed:
                return
            self._changes += weight
        self._items.put((item, weight))

    def get(self, timeout_s: float) -> Any:
        """Take out the oldest item, for which `timeout_s` are waited. Raises `queue.Empty` without one."""
        item, weight = self._items.get(timeout=timeout_s) if timeout_s > 0 else self._items.get_nowait()
        if weight:
            with self._room:
                self._changes -= weight
                self._room.notify_all()
        return item

    def close(self) -> None:
        """Let nobody wait for space any more."""
        with self._room:
            self._closed = True
            self._room.notify_all()
