"""A long run at half load: pods come and go for an hour, and memory, handles, loss and latency are written down.

The same with an agent whose learner cannot live, and with an extender that nobody asks anything: what they keep has a
bound.
"""

import itertools
import json
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from aaml.chaos.settings import SoakSettings
from aaml.chaos.site import Site
from aaml.errors import UserError
from aaml.files import write_text
from aaml.kube.provision import KwokCluster
from aaml.scheduling.curves import VALUE_LOSS
from aaml.threads import Background, ThreadPool

_READY_S = 600.0
_AT_ONCE = 16
_KILL_EVERY_S = 0.2
_MIB = 1 << 20


@dataclass(frozen=True)
class Sample:
    """What was seen at one moment; latency is from the creation of a pod to its bind, since the sample before.

    `loss` is the latest that the scheduler has written, empty before its first update and for what does not learn.
    """

    seconds: float
    created: int
    bound: int
    memory_mib: float
    handles: int
    threads: int
    latency_p50_s: float
    latency_p99_s: float
    loss: float | None
    restarts: int


def soak(cluster: KwokCluster, settings: SoakSettings, tell: Callable[[Sample], None]) -> tuple[list[Sample], int]:
    """Let pods come and go; returns the samples and how many pods had no node a minute after the last had come.

    Raises `UserError` where the scheduler finds that its state is not as pods and nodes say.
    """
    with Site(cluster, settings.scheduler, serves=settings.run == "idle-extender") as site, ExitStack() as stack:
        ended = threading.Event()
        if settings.run == "without-learner":
            stack.enter_context(Background(lambda: _kill_learners(site, ended), "soak-killer"))
            stack.callback(ended.set)
        site.wait(site.ready, "a scheduler that is ready", _READY_S)
        samples: list[Sample] = []
        began_s = time.monotonic()
        with Background(lambda: _come_and_go(site, settings, ended), "soak") as coming:
            try:
                while (now_s := time.monotonic()) - began_s < 60.0 * settings.minutes:
                    time.sleep(min(settings.every_s, began_s + 60.0 * settings.minutes - now_s))
                    coming.check()
                    samples.append(_look(site, time.monotonic() - began_s))
                    tell(samples[-1])
            finally:
                ended.set()
        deadline_s = time.monotonic() + 60.0
        while (waiting := sum(not pod["spec"].get("nodeName") for pod in site.workload.pods())) > 0:
            if time.monotonic() > deadline_s:
                break
            time.sleep(0.2)
        site.scheduler.stop()
        if wrong := site.wrong_states():
            raise UserError(f"soak: the scheduler's state was wrong: {wrong[0]}")
        return samples, waiting


def _kill_learners(site: Site, ended: threading.Event) -> None:
    """Kill every process that the scheduler starts, long before it has loaded what it needs to learn."""
    while not ended.wait(_KILL_EVERY_S):
        for process in site.scheduler.children():
            with suppress(psutil.NoSuchProcess):
                process.kill()


def _come_and_go(site: Site, settings: SoakSettings, ended: threading.Event) -> None:
    """Create pods at an even rate, and delete each when its time has come; as many as the API server keeps up with."""
    leaving: deque[tuple[float, str]] = deque()
    free = threading.Semaphore(_AT_ONCE)
    began_s = time.monotonic()

    def submit(task: Callable[[Sequence[Any]], None], what: Sequence[Any]) -> None:
        pool.check()
        free.acquire()  # else what the API server is behind with would grow, and come after the end
        pool.submit(task, what).add_done_callback(lambda _: free.release())

    with ThreadPool(_AT_ONCE, "soak") as pool:
        for index in itertools.count():
            if ended.wait(max(0.0, began_s + index / settings.rate - time.monotonic())):
                return
            submit(site.workload.create, [index])
            leaving.append((time.monotonic() + settings.lifetime_s, f"p-{index}"))
            while leaving and leaving[0][0] < time.monotonic():
                submit(site.workload.delete, [leaving.popleft()[1]])


def _look(site: Site, seconds: float) -> Sample:
    memory, handles, threads = 0.0, 0, 0
    with suppress(psutil.NoSuchProcess):  # between an end and the next start
        for process in [psutil.Process(site.scheduler.pid), *site.scheduler.children()] if site.scheduler.pid else []:
            memory += process.memory_info().rss / _MIB
            handles += process.num_fds()
            threads += process.num_threads()
    latencies = site.workload.take_latencies() or [float("nan")]
    p50, p99 = np.percentile(latencies, [50, 99])
    workload = site.workload
    return Sample(
        seconds, workload.created, workload.bound(), memory, handles, threads, float(p50), float(p99), _loss(site),
        site.scheduler.restarts,
    )  # fmt: skip


def _loss(site: Site) -> float | None:
    """Return the latest loss in the scheduler's records."""
    latest = None
    for path in site.folder.glob("scheduler-0/logs/*.jsonl"):
        for line in _last_lines(path):
            with suppress(ValueError, KeyError, TypeError):
                record = json.loads(line)
                latest = float(record["value"]) if record["name"] == VALUE_LOSS else latest
    return latest


def _last_lines(path: Path, size: int = 1 << 16) -> Iterator[bytes]:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - size))
        yield from file.read().splitlines()


def grown(samples: Sequence[Sample], name: str) -> float:
    """Return by what factor a column is larger in the last quarter of the samples than in the second, by medians.

    The first quarter is left out: programs load and caches fill.
    """
    values = np.array([getattr(each, name) for each in samples], dtype=float)
    quarter = max(1, len(values) // 4)
    before, after = np.nanmedian(values[quarter : 2 * quarter]), np.nanmedian(values[-quarter:])
    return float(after / before)


def write(path: Path, samples: Sequence[Sample]) -> None:
    """Write the samples as a CSV file, whole or not at all."""
    lines = [[field.name for field in fields(Sample)]]
    lines += [[f"{each:.4g}" if isinstance(each, float) else str(each) for each in astuple(one)] for one in samples]
    write_text(path, "".join(",".join(line) + "\n" for line in lines), field="out")
