"""Where work runs: in this process, in processes beside it, or on a Ray cluster. The results are the same.

A node of a Ray cluster needs this package and Ray in the same versions, and every file that a job names (models, a
policy of one's own) at the same path.
"""

import multiprocessing
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from aaml.errors import UserError, bad_value

Result = TypeVar("Result")
RETRIES = 3  # of work whose worker was killed
_CONNECT_S = 10.0


@dataclass(frozen=True, slots=True)
class Workers:
    """Processes of this machine (1: this one), or a Ray cluster by address ("local": one started for the while)."""

    processes: int = 1
    ray: str = ""


def parse_workers(value: int | str) -> Workers:
    """Read a number of processes, "ray" (RAY_ADDRESS, or else a local one) or "ray:HOST:PORT". Raises `UserError`."""
    kind, colon, address = str(value).partition(":")
    if kind == "ray":
        host, _, port = address.rpartition(":")
        if not colon:
            return Workers(ray=os.environ.get("RAY_ADDRESS") or "local")
        if host and "/" not in host and port.isdigit() and 0 < int(port) < 1 << 16:
            return Workers(ray=address)
    elif not colon and kind.isdigit() and int(kind) > 0:
        return Workers(processes=int(kind))
    raise bad_value("workers", value, "a number of processes from 1, ray, or ray:HOST:PORT")


class Pool(Protocol):
    """Runs jobs; `size` is how many at once."""

    size: int

    def run(self, function: Callable[..., Result], jobs: Sequence[tuple[Any, ...]]) -> Iterator[tuple[int, Result]]:
        """Call a module's function with each job's arguments; yields (position of the job, result) as they complete.

        The first exception of a job is raised as it was. Jobs that still wait are dropped when the pool closes.
        """
        ...


class _Here:
    size = 1

    def run(self, function: Callable[..., Result], jobs: Sequence[tuple[Any, ...]]) -> Iterator[tuple[int, Result]]:
        for position, job in enumerate(jobs):
            yield position, function(*job)


class _Processes:
    def __init__(self, executor: ProcessPoolExecutor, size: int) -> None:
        self.size = size
        self._executor = executor

    def run(self, function: Callable[..., Result], jobs: Sequence[tuple[Any, ...]]) -> Iterator[tuple[int, Result]]:
        futures = {self._executor.submit(function, *job): position for position, job in enumerate(jobs)}
        for future in as_completed(futures):
            yield futures[future], future.result()


class _RayTasks:
    def __init__(self, ray: Any) -> None:
        self.size = ray_slots(ray)
        self._ray = ray
        self._waiting: dict[Any, int] = {}

    def run(self, function: Callable[..., Result], jobs: Sequence[tuple[Any, ...]]) -> Iterator[tuple[int, Result]]:
        ray, folder = self._ray, str(Path.cwd())
        task = ray.remote(num_cpus=1, max_retries=RETRIES, scheduling_strategy="SPREAD")(_in_folder)
        waiting = {task.remote(folder, function, job): position for position, job in enumerate(jobs)}
        self._waiting |= waiting
        while waiting:
            (reference,), _ = ray.wait(list(waiting), num_returns=1)
            position = waiting.pop(reference)
            del self._waiting[reference]
            try:
                result = ray.get(reference)
            except ray.exceptions.RayTaskError as error:
                raise error.cause from error
            yield position, result

    def cancel(self) -> None:
        """Drop what waits and kill what runs."""
        for reference in self._waiting:
            self._ray.cancel(reference, force=True)


def _in_folder(folder: str, function: Callable[..., Result], job: tuple[Any, ...]) -> Result:
    enter(folder)
    return function(*job)


def enter(folder: str) -> None:
    """Work in a folder if there is one: relative paths then mean what they mean to the one who asked."""
    if Path(folder).is_dir():
        os.chdir(folder)


@contextmanager
def open_pool(workers: int | str = 1) -> Iterator[Pool]:
    """Open a pool by what `parse_workers` reads. Raises `UserError` for a cluster that cannot be reached."""
    where = parse_workers(workers)
    if where.ray:
        with open_ray(where.ray) as ray:
            tasks = _RayTasks(ray)
            try:
                yield tasks
            finally:
                tasks.cancel()
    elif where.processes == 1:
        yield _Here()
    else:
        with _executor(where.processes) as executor:
            yield _Processes(executor, where.processes)


@contextmanager
def _executor(count: int) -> Iterator[ProcessPoolExecutor]:
    # Spawned, not forked: torch and numba keep threads that do not survive a fork. Ctrl-C is the parent's to handle.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    spawn = multiprocessing.get_context("spawn")
    executor = ProcessPoolExecutor(count, spawn, signal.signal, (signal.SIGINT, signal.SIG_IGN))
    try:
        yield executor
    except BaseException:
        processes = list((executor._processes or {}).values())  # noqa: SLF001  (terminate_workers, from Python 3.14)
        executor.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.terminate()
        raise
    executor.shutdown(cancel_futures=True)


@contextmanager
def open_ray(address: str) -> Iterator[Any]:
    """Connect to a Ray cluster, "local" for one of this machine alone that ends with the block; yields the module.

    A connection that is there already is used and left open. Raises `UserError` without Ray or its cluster.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if address == "local":
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # elsewhere too: listens on loopback alone
    try:
        import ray
    except ImportError as error:
        raise UserError("workers: ray is not installed; get it with `pip install 'aaml[ray]'`") from error
    if ray.is_initialized():
        yield ray
        return
    terminate = signal.getsignal(signal.SIGTERM)
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    try:
        if address == "local":
            options["include_dashboard"] = False
        elif address != "auto":  # what RAY_ADDRESS may say
            host, _, port = address.rpartition(":")
            socket.create_connection((host, int(port)), timeout=_CONNECT_S).close()  # Ray itself tries for minutes
        ray.init(address=address, **options)
    except Exception as error:  # Ray raises bare ones when its own processes do not start in time
        reason = str(error).strip().partition("\n")[0]
        accepted = f"the address of a Ray cluster that this machine is a node of ({reason})"
        raise bad_value("workers", f"ray:{address}", accepted) from error
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, terminate)  # Ray takes it for itself
    try:
        yield ray
    finally:
        ray.shutdown()


def ray_slots(ray: Any) -> int:
    """Return how many jobs of one CPU the cluster runs at once."""
    return max(1, int(ray.cluster_resources().get("CPU", 1)))
