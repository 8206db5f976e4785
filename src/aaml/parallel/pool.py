"""Where work runs: in this process, in processes beside it, or on a Ray cluster. The results are the same.

A pool does two kinds of work. Jobs are calls of a function that need nothing from one another: they run in any order,
on whichever worker is free. Kept objects live at a worker of their own and remember; when that worker is lost, another
one goes on from the object's last state and does the request again, so that nothing in the results tells of the loss.
"""

import pickle
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Generic, Protocol, TypeVar

import cloudpickle

from aaml.errors import StoppedError
from aaml.parallel.processes import ProcessHost
from aaml.parallel.ray_cluster import RayHost, open_ray
from aaml.parallel.worker import AnyWorker, Host, Worker, WorkerLostError, open_answer
from aaml.parallel.workers import parse_workers

Result = TypeVar("Result")
RETRIES = 3  # of a request whose worker was lost
_LOOK_S = 0.5  # between two questions whether to stop


class Stateful(Protocol):
    """What a pool can keep: an object whose state can be taken out and put into another one of its kind."""

    def state(self) -> Any:
        """Return what `restore` takes."""
        ...

    def restore(self, state: Any) -> None:
        """Continue from a state that `state` returned."""
        ...


@contextmanager
def open_pool(workers: int | str = 1) -> "Iterator[Pool]":
    """Open a pool by what `parse_workers` reads. Raises `UserError` for a cluster that cannot be reached.

    All its workers are ended with the block.
    """
    where = parse_workers(workers)
    if where.ray:
        with open_ray(where.ray) as ray, _open(RayHost(ray)) as pool:
            yield pool
    elif where.processes == 1:
        yield Here()
    else:
        with _open(ProcessHost(where.processes)) as pool:
            yield pool


class Here:
    """Runs jobs and keeps objects, in the calling process; `size` is how many at once."""

    size = 1

    def run(
        self,
        function: Callable[..., Result],
        jobs: Sequence[tuple[Any, ...]],
        stopped: Callable[[], bool] = lambda: False,
    ) -> Iterator[tuple[int, Result]]:
        """Call a module's function with each job's arguments; yields (position of the job, result) as they complete.

        The first exception of a job is raised as it was. What still waits or runs when the iterator is left is dropped.
        Raises `StoppedError` soon after `stopped` says so; here that is asked between two jobs.
        """
        for position, job in enumerate(jobs):
            _go_on(stopped)
            yield position, function(*job)

    def keep(self, make: Callable[..., Stateful], *arguments: Any) -> "KeptHere":
        """Make an object at a worker of its own, when it is first asked for something."""
        return KeptHere(make(*arguments))


class KeptHere:
    """An object of this process."""

    def __init__(self, kept: Stateful) -> None:
        self._kept = kept

    def send(self, method: str, *values: Any) -> None:
        """Call one of its methods, without waiting."""
        self._result = getattr(self._kept, method)(*values)

    def receive(self) -> Any:
        """Wait for what the method returned; an exception is raised as it was."""
        return self._result


@contextmanager
def _open(host: Host[AnyWorker]) -> "Iterator[Crew[AnyWorker]]":
    crew = Crew(host)
    try:
        yield crew
    finally:
        crew.close()


class Crew(Generic[AnyWorker]):
    """Workers of one host, started as they are needed. Those that ended their job wait for the next."""

    def __init__(self, host: Host[AnyWorker]) -> None:
        self.size = host.size
        self._host = host
        self._idle: list[AnyWorker] = []
        self._kept: list[KeptElsewhere] = []

    def run(
        self,
        function: Callable[..., Result],
        jobs: Sequence[tuple[Any, ...]],
        stopped: Callable[[], bool] = lambda: False,
    ) -> Iterator[tuple[int, Result]]:
        """Deal the jobs out; who has ended one gets the next before its result is looked at."""
        waiting = deque((position, 0) for position in range(len(jobs)))
        busy: dict[AnyWorker, tuple[int, int]] = {}  # position of the job, and how many workers it has lost

        def deal() -> None:
            while waiting and len(busy) < self.size:
                position, losses = waiting.popleft()
                worker = self._idle.pop() if self._idle else self._host.start(_call, replaces=losses > 0)
                busy[worker] = position, losses
                worker.send(cloudpickle.dumps((function, jobs[position])))

        try:
            deal()
            while busy:
                _go_on(stopped)
                for worker in self._host.wait(list(busy), _LOOK_S):
                    position, losses = busy[worker]
                    try:
                        answer = worker.receive()
                    except WorkerLostError as loss:
                        _again(losses + 1, loss)
                        del busy[worker]
                        worker.close()
                        waiting.appendleft((position, losses + 1))
                        deal()
                        continue
                    del busy[worker]
                    self._idle.append(worker)
                    result = open_answer(answer)
                    deal()
                    yield position, result
        finally:
            for worker in busy:
                worker.close()

    def keep(self, make: Callable[..., Stateful], *arguments: Any) -> "KeptElsewhere":
        """Start a worker for an object."""
        keeper = Keeper(make, arguments)
        self._kept.append(KeptElsewhere(lambda replaces: self._host.start(keeper, replaces=replaces)))
        return self._kept[-1]

    def close(self) -> None:
        """End all workers."""
        for worker in self._idle:
            worker.close()
        for kept in self._kept:
            kept.close()


class KeptElsewhere:
    """The near end of an object at a worker; `start` takes whether the worker comes in the place of a lost one."""

    def __init__(self, start: Callable[[bool], Worker]) -> None:
        self._start = start
        self._worker = start(False)
        self._state: Any = None

    def send(self, method: str, *values: Any) -> None:
        """Call a method, without waiting."""
        self._call = method, values
        self._worker.send(pickle.dumps((None, *self._call), pickle.HIGHEST_PROTOCOL))

    def receive(self) -> Any:
        """Wait for what it returned. Raises RuntimeError when workers are lost again and again."""
        losses = 0
        while True:
            try:
                result, state = open_answer(self._worker.receive())
            except WorkerLostError as loss:
                losses += 1
                _again(losses, loss)
                self._worker.close()
                self._worker = self._start(True)
                self._worker.send(pickle.dumps((self._state, *self._call), pickle.HIGHEST_PROTOCOL))
                continue
            self._state = state
            return result

    def close(self) -> None:
        """End the worker."""
        self._worker.close()


class Keeper:
    """The far end of a kept object, which is made at the first call."""

    def __init__(self, make: Callable[..., Stateful], arguments: tuple[Any, ...]) -> None:
        self._make = make
        self._arguments = arguments
        self._kept: Stateful | None = None

    def __call__(self, state: Any, method: str, values: Sequence[Any]) -> tuple[Any, Any]:
        """Call a method, after going on from a state if one is given; returns its result and the state after it."""
        if self._kept is None:
            self._kept = self._make(*self._arguments)
        if state is not None:
            self._kept.restore(state)
        return getattr(self._kept, method)(*values), self._kept.state()


Pool = Here | Crew[Any]
Kept = KeptHere | KeptElsewhere


def _call(function: Callable[..., Result], job: tuple[Any, ...]) -> Result:
    return function(*job)


def _go_on(stopped: Callable[[], bool]) -> None:
    """Raise `StoppedError` once `stopped()` is true."""
    if stopped():
        raise StoppedError


def _again(losses: int, loss: WorkerLostError) -> None:
    """Raise RuntimeError when a request has lost too many workers to be tried again."""
    if losses > RETRIES:
        raise RuntimeError(f"workers are lost again and again: {loss}") from loss
