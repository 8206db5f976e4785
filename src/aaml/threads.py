"""Threads: ours are all started here, so that none ends unheard; those of numerical libraries are kept to one each.

An exception in a thread belongs to somebody. `start` hands it to a function, `Background` and `ThreadPool` raise it in
the thread that waits for what they do. Where nobody can go on without the thread, `end_process` ends the process with
status 1, and whoever supervises it starts it again.
"""

import os
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, Generic, ParamSpec, Self, TypeVar

T = TypeVar("T")
P = ParamSpec("P")
_FAILED = 1


class ThreadError(Exception):
    """A thread ended by an error, which is the cause of this one."""

    def __init__(self, name: str, error: BaseException) -> None:
        super().__init__(f"thread {name!r} ended: {type(error).__name__}: {error}")
        self.__cause__ = error


def end_process(error: ThreadError) -> None:
    """End the process at once with what ended a thread and status 1."""
    traceback.print_exception(error)
    os._exit(_FAILED)


def start(work: Callable[[], object], name: str, failed: Callable[[ThreadError], object]) -> threading.Thread:
    """Do `work` in a daemon thread, which is returned. `failed` gets what ended it, in that thread.

    Where `failed` raises too, the process ends (`end_process`).
    """

    def run() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001  (whatever it is, somebody hears of it)
            try:
                failed(ThreadError(name, error))
            except BaseException as second:  # noqa: BLE001
                end_process(ThreadError(name, second))

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread


class Background(Generic[T]):
    """Work in a thread of its own, begun at once. Who asks for its end gets what it returned, or what it raised.

    As a context manager it is waited for at the end of the block, which raises what it raised.
    """

    def __init__(self, work: Callable[[], T], name: str) -> None:
        self._future: Future[T] = Future()
        self._thread = start(lambda: self._future.set_result(work()), name, self._failed)

    def _failed(self, error: ThreadError) -> None:
        self._future.set_exception(error.__cause__)

    @property
    def running(self) -> bool:
        """Whether it has not ended yet."""
        return not self._future.done()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until it has ended, for `timeout_s` at most; returns whether it has."""
        self._thread.join(timeout_s)
        return not self.running

    def check(self) -> None:
        """Raise what ended it, if it has ended so."""
        if not self.running:
            self._future.result()

    def result(self) -> T:
        """Wait, and return what it returned or raise what it raised."""
        self._thread.join()
        return self._future.result()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.join()
        if kind is None:
            self._future.result()


class ThreadPool(ThreadPoolExecutor):
    """A few threads that share out work; `map` and each future raise what their work raised.

    What was raised is raised by `check` too, and at the end of a `with` block, so that nobody need keep each future.
    """

    def __init__(self, threads: int, name: str) -> None:
        super().__init__(threads, thread_name_prefix=name)
        self._raised: list[BaseException] = []  # the first one, once there is one

    def submit(self, work: Callable[P, T], /, *args: P.args, **options: P.kwargs) -> "Future[T]":
        """Have work done as soon as a thread is free."""
        future = super().submit(work, *args, **options)
        future.add_done_callback(self._note)
        return future

    def check(self) -> None:
        """Raise the first of what was raised so far, if anything was."""
        if self._raised:
            raise self._raised[0]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        if kind is None:
            self.check()

    def _note(self, future: "Future[Any]") -> None:
        if not self._raised and not future.cancelled() and (error := future.exception()) is not None:
            self._raised.append(error)


def one_thread() -> None:
    """Let libraries that are loaded from now on use one thread each, unless the environment says otherwise.

    The products of a decision are too small to share out: threads that wait for such work take the cores from the
    cluster (behind kube-scheduler at 1,000 nodes a GNN took 10 ms of CPU a pod with two threads, 3 ms with one).
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")
