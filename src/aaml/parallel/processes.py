"""Workers that are processes of this machine."""

import multiprocessing
import pickle
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import FrameType
from typing import Any

import cloudpickle

from aaml.parallel.worker import Desk, WorkerLostError
from aaml.threads import one_thread

_GRACE_S = 5.0


class ProcessWorker:
    """One process; it ends when this one does."""

    def __init__(self, target: Callable[..., Any]) -> None:
        one_thread()
        made = cloudpickle.dumps(target)  # a person's task may hold functions that no other process finds by name
        context = multiprocessing.get_context("spawn")  # torch and numba keep threads that do not survive a fork
        self.connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, str(Path.cwd()), made), daemon=True)
        self._process.start()
        theirs.close()

    def send(self, request: bytes) -> None:
        """Ask without waiting."""
        with suppress(BrokenPipeError):  # `receive` tells
            self.connection.send_bytes(request)

    def receive(self) -> bytes:
        """Return the answer to what was sent."""
        try:
            return self.connection.recv_bytes()
        except (EOFError, ConnectionResetError) as error:
            raise WorkerLostError(f"process {self._process.pid} has died") from error

    def close(self) -> None:
        """End the process; it may clean up for a moment."""
        self.connection.close()
        self._process.terminate()
        self._process.join(_GRACE_S)
        self._process.kill()
        self._process.join()


class ProcessHost:
    """Starts processes beside this one, `size` at once."""

    def __init__(self, size: int) -> None:
        self.size = size

    def start(self, target: Callable[..., Any], *, replaces: bool = False) -> ProcessWorker:  # noqa: ARG002
        """Start a process."""
        return ProcessWorker(target)

    def wait(self, workers: Sequence[ProcessWorker], timeout_s: float) -> Sequence[ProcessWorker]:
        """Wait for answers; a process that died counts as one."""
        ready = wait([worker.connection for worker in workers], timeout_s)
        return [worker for worker in workers if worker.connection in ready]


def _serve(connection: Connection, folder: str, target: bytes) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which decides when to end
    signal.signal(signal.SIGTERM, _end)
    sys.unraisablehook = _tell_unraised
    desk = Desk(folder, pickle.loads(target))  # noqa: S301  (our own)
    with suppress(EOFError, BrokenPipeError):  # the parent is gone
        while True:
            connection.send_bytes(desk.answer(connection.recv_bytes()))
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it ends anyway, and what cleans up is not to be interrupted


def _end(_number: int, _frame: FrameType | None) -> None:
    """End the process by what cleans up, which another signal does not interrupt."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit()


def _tell_unraised(unraisable: "sys.UnraisableHookArgs") -> None:
    """Tell what a callback could not raise, but that it is to end: then it ends with its answer, which nobody takes."""
    if not isinstance(unraisable.exc_value, SystemExit):
        sys.__unraisablehook__(unraisable)
