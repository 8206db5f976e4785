"""A few threads that carry out jobs whose results nobody waits for."""

import queue
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from aaml import threads

Job = TypeVar("Job")


class JobThreads(Generic[Job]):
    """Does each submitted job in one of `count` threads, begun in the order of submission.

    A job that raises ends with that: `failed` gets both, in the thread, which goes on. `closing` is set once nothing
    should be tried again.
    """

    def __init__(
        self, name: str, count: int, work: Callable[[Job], None], failed: Callable[[Job, Exception], None]
    ) -> None:
        self.closing = threading.Event()
        self._work, self._failed = work, failed
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._threads = [threads.start(self._run, f"{name}-{i}", threads.end_process) for i in range(count)]

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
            try:
                self._work(job)
            except Exception as error:  # noqa: BLE001  (whatever it is, the job ends with it)
                self._failed(job, error)
