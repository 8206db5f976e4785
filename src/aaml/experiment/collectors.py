"""Streams dealt out over processes or a Ray cluster: the experience of one process, even when a worker dies.

A worker says with every answer what its streams would go on from. When it is lost, another one goes on from there and
does the request again: streams are rebuilt from their actions, so that nothing in the result tells of the loss.
"""

import multiprocessing
import os
import pickle
import signal
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from aaml.experiment.rollouts import Actor, Collector, LocalCollector, Setting, Steps
from aaml.experiment.workers import RETRIES, enter, open_ray, parse_workers, ray_slots

States = list[dict[str, Any]]


class WorkerLostError(Exception):
    """A worker was killed, or its machine is gone."""


class Part:
    """Some of the streams, where they are collected; made when first asked. `arguments` are `LocalCollector`'s."""

    def __init__(self, folder: str, *arguments: Any) -> None:
        self._folder = folder
        self._arguments = arguments
        self._collector: LocalCollector | None = None

    def answer(self, request: bytes) -> bytes:
        """Do a pickled (states to go on from or None, method, its arguments).

        Returns (error or None, result, states after it), pickled too: arrays that Ray hands over are not writable.
        """
        states, method, values = pickle.loads(request)  # noqa: S301  (our own)
        try:
            if self._collector is None:
                enter(self._folder)
                self._collector = LocalCollector(*self._arguments)
            if states is not None:
                self._collector.restore(states)
            result = getattr(self._collector, method)(*values)
            return pickle.dumps((None, result, self._collector.state()), pickle.HIGHEST_PROTOCOL)
        except Exception as error:  # noqa: BLE001  (raised again by the one who asked)
            error.add_note(traceback.format_exc())
            return pickle.dumps((error, None, None))


class Worker(Protocol):
    """Holds a `Part` elsewhere, and takes one request at a time."""

    def send(self, request: bytes) -> None:
        """Ask without waiting."""
        ...

    def receive(self) -> bytes:
        """Return the answer to what was sent. Raises `WorkerLostError`."""
        ...

    def close(self) -> None:
        """End the worker."""
        ...


class ProcessWorker:
    """A process of this machine."""

    def __init__(self, arguments: Sequence[Any]) -> None:
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        context = multiprocessing.get_context("spawn")  # torch and numba keep threads that do not survive a fork
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, arguments), daemon=True)
        self._process.start()
        theirs.close()

    def send(self, request: bytes) -> None:
        """Ask without waiting."""
        with suppress(BrokenPipeError):  # `receive` tells
            self._connection.send_bytes(request)

    def receive(self) -> bytes:
        """Return the answer to what was sent."""
        try:
            return self._connection.recv_bytes()
        except (EOFError, ConnectionResetError) as error:
            raise WorkerLostError(f"process {self._process.pid} has died") from error

    def close(self) -> None:
        """End the process."""
        self._connection.close()
        self._process.terminate()
        self._process.join()


def _serve(connection: Connection, arguments: Sequence[Any]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when to end
    part = Part(*arguments)
    with suppress(EOFError):  # the parent is gone
        while True:
            connection.send_bytes(part.answer(connection.recv_bytes()))


class RayWorker:
    """An actor of a Ray cluster. `cpus` are what it waits for: 0 shares one, for a lost node may leave none free."""

    def __init__(self, ray: Any, arguments: Sequence[Any], cpus: int) -> None:
        self._ray = ray
        self._actor = ray.remote(num_cpus=cpus, scheduling_strategy="SPREAD")(Part).remote(*arguments)

    def send(self, request: bytes) -> None:
        """Ask without waiting."""
        self._answer = self._actor.answer.remote(request)

    def receive(self) -> bytes:
        """Return the answer to what was sent."""
        try:
            return bytes(self._ray.get(self._answer))
        except (self._ray.exceptions.RayActorError, self._ray.exceptions.ObjectLostError) as error:
            raise WorkerLostError(str(error).partition("\n")[0]) from error

    def close(self) -> None:
        """End the actor."""
        self._ray.kill(self._actor)


class DealtCollector:
    """Streams dealt out over workers; steps come back in the order that one process would have made them in.

    `open_worker` takes the indices of a worker's streams, and whether it comes in the place of a lost one.
    """

    def __init__(self, open_worker: Callable[[Sequence[int], bool], Worker], streams: int, workers: int) -> None:
        self._open = open_worker
        self._parts = [part.tolist() for part in np.array_split(np.arange(streams), min(workers, streams))]
        self._workers = [open_worker(part, False) for part in self._parts]
        self._states: list[States | None] = [None] * len(self._parts)

    def collect(self, weights: Mapping[str, Any], steps: int) -> Steps:
        """Let every stream make `steps` decisions. Raises RuntimeError when workers die again and again."""
        return [step for part in self._ask("collect", [(weights, steps)] * len(self._parts)) for step in part]

    def cut(self) -> None:
        """Forget steps whose continuation is awaited."""
        self._ask("cut", [()] * len(self._parts))

    def state(self) -> States:
        """Return the streams' states."""
        return [state for part in self._ask("state", [()] * len(self._parts)) for state in part]

    def restore(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Go on from states."""
        self._ask("restore", [([states[index] for index in part],) for part in self._parts])

    def close(self) -> None:
        """End the workers."""
        for worker in self._workers:
            worker.close()

    def _ask(self, method: str, values: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Return what the method gives for each part with its values."""
        for worker, each in zip(self._workers, values, strict=True):
            worker.send(pickle.dumps((None, method, each)))
        return [self._receive(place, method, each) for place, each in enumerate(values)]

    def _receive(self, place: int, method: str, values: tuple[Any, ...]) -> Any:
        losses = 0
        while True:
            try:
                answer = self._workers[place].receive()
                break
            except WorkerLostError as loss:
                losses += 1
                if losses > RETRIES:
                    raise RuntimeError(f"workers that collect experience are lost again and again: {loss}") from loss
                self._workers[place].close()
                self._workers[place] = self._open(self._parts[place], True)
                self._workers[place].send(pickle.dumps((self._states[place], method, values)))
        error, result, states = pickle.loads(answer)  # noqa: S301  (our own)
        if error is not None:
            raise error
        self._states[place] = states
        return result


@contextmanager
def collector(setting: Setting, actor: Actor, seed: int, streams: int, workers: int | str = 1) -> Iterator[Collector]:
    """Open `streams` streams on what `parse_workers` reads. Raises `UserError` for a cluster that cannot be reached."""
    where = parse_workers(workers)

    def arguments(indices: Sequence[int]) -> tuple[Any, ...]:
        return str(Path.cwd()), setting, actor, seed, indices

    if where.ray:
        with open_ray(where.ray) as ray:

            def open_actor(indices: Sequence[int], replaces: bool) -> Worker:
                return RayWorker(ray, arguments(indices), cpus=0 if replaces else 1)

            with closing(DealtCollector(open_actor, streams, ray_slots(ray))) as dealt:
                yield dealt
    elif where.processes == 1:
        yield LocalCollector(setting, actor, seed, range(streams))
    else:

        def open_process(indices: Sequence[int], _replaces: bool) -> Worker:
            return ProcessWorker(arguments(indices))

        with closing(DealtCollector(open_process, streams, where.processes)) as dealt:
            yield dealt
