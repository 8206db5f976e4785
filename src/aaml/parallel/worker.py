"""A worker: something elsewhere that does one request at a time, and the desk at its far end that does it."""

import os
import pickle
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import aaml.own_files  # noqa: F401  (so that what a request brings of a person's own file can be opened)

AnyWorker = TypeVar("AnyWorker", bound="Worker")


class WorkerLostError(Exception):
    """A worker was killed, or its machine is gone."""


class Worker(Protocol):
    """The near end of a worker; requests and answers are what `Desk.answer` takes and gives."""

    def send(self, request: bytes) -> None:
        """Ask without waiting; the answer to the request before has been received."""
        ...

    def receive(self) -> bytes:
        """Wait for the answer to what was sent. Raises `WorkerLostError`."""
        ...

    def close(self) -> None:
        """End the worker, whatever it is doing."""
        ...


class Host(Protocol[AnyWorker]):
    """Where workers of one kind are started: this machine's processes, or a Ray cluster."""

    size: int

    def start(self, target: Callable[..., Any], *, replaces: bool = False) -> AnyWorker:
        """Start a worker whose desk calls `target`; `replaces` tells that it takes the place of a lost one."""
        ...

    def wait(self, workers: Sequence[AnyWorker], timeout_s: float) -> Sequence[AnyWorker]:
        """Wait until some of the workers that were asked have an answer or are lost, and return those.

        It returns none where nothing came in time.
        """
        ...


class Desk:
    """The far end of a worker: calls `target` with the arguments of each request.

    `folder` is where the one who asks works; if there is one of that name here, relative paths mean the same.
    """

    def __init__(self, folder: str, target: Callable[..., Any]) -> None:
        if Path(folder).is_dir():
            os.chdir(folder)
        self._target = target

    def answer(self, request: bytes) -> bytes:
        """Call with pickled arguments; returns (error or None, result), pickled too.

        Bytes go both ways because arrays that Ray hands over by itself are not writable.
        """
        try:
            result = self._target(*pickle.loads(request))  # noqa: S301  (our own)
            return pickle.dumps((None, result), pickle.HIGHEST_PROTOCOL)
        except Exception as error:  # noqa: BLE001  (raised again by the one who asked)
            error.add_note(traceback.format_exc())
            return pickle.dumps((error, None))


def open_answer(answer: bytes) -> Any:
    """Return the result in an answer, or raise the error in it as it was."""
    error, result = pickle.loads(answer)  # noqa: S301  (our own)
    if error is not None:
        raise error
    return result
