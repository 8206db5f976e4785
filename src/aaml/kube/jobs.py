"""JobThreads: a few threads that do what is submitted, for answers of the API server that nobody should wait for."""

import queue
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

Job = TypeVar("Job")


class JobThreads(Generic[Job]):
    """Does each submitted job in one of `count` threads, begun in the order of submission.

    `closing` is set once nothing should be tried again.
    """

    def __init__(self, name: str, count: int, work: Callable[[Job], None]) -> None:
        self.closing = threading.Event()
        self._work = work
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._threads = [threading.Thread(target=self._run, name=f"{name}-{i}", daemon=True) for i in range(count)]
        for thread in self._threads:
            thread.start()

    def submit(self, job: Job) -> None:
        """Have a job done as soon as a thread is free."""
        self._jobs.put(job)

    def close(self, timeout_s: float) -> None:
        """Set `closing`, and end the threads once what was submitted is done, or after `timeout_s` in any case."""
        self.closing.set()
        deadline = time.monotonic() + timeout_s
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            self._work(job)
