"""Binds in flight: bindings are asynchronous writes, and a few threads settle those that are not simply accepted.

A lost answer does not tell whether the pod was bound, so the pod is read before the bind is sent again. The API server
refuses to bind a pod twice, and the binding names the pod's uid, so a new pod of the same name is never meant.

A pod that is found on the node that was asked for was bound by us only where an answer of ours was lost. Without that
a refusal (409) says that another scheduler chose the same node. The API server does not record who bound a pod, so
after a lost answer the two cannot be told apart and the bind counts as ours.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import msgspec

from aaml.cluster.objects import Pod
from aaml.kube.async_writes import NotSent
from aaml.kube.jobs import JobThreads
from aaml.kube.objects import wire
from aaml.kube.reflector import Backoff
from aaml.kube.transport import CONFLICT, NOT_FOUND, ApiError, Transport, Unreachable
from aaml.scheduling.ports import BindResult, BindStatus

log = logging.getLogger(__name__)

_MOST_THREADS = 16
_BUSY = 429
_SERVER_ERROR = 500


@dataclass(slots=True)
class BindJob:
    """A bind that was decided. `cancelled` says why it should not be sent any more, "" while it should."""

    pod: Pod
    node_name: str
    gpus: tuple[int, ...] = ()
    cancelled: str = ""
    started_s: float = field(default_factory=time.monotonic)


class Binder:
    """Posts `at_once` bindings at a time; `sink` gets each result, from a thread of the binder's.

    A bind that gets no clear answer within `give_up_s` ends as "failed": the pod goes back to the queue.
    """

    def __init__(
        self, transport: Transport, sink: Callable[[BindResult], None], *, at_once: int = 64, give_up_s: float = 60.0
    ) -> None:
        self._transport, self._sink, self._give_up_s = transport, sink, give_up_s
        self.revoked = ""
        """Why no bind is to be sent any more, "" while they may; any thread may set it."""
        self._write_queue = transport.write_queue(at_once)
        self._threads = JobThreads("binder", min(at_once, _MOST_THREADS), self._settle, self._fail)

    def submit(self, job: BindJob) -> None:
        """Send a bind as soon as a connection is free; returns at once."""
        self._write_queue.post(
            f"{_path(job)}/binding", lambda: None if self._why_not(job) else _binding(job), partial(self._hear, job)
        )

    def close(self, timeout_s: float) -> None:
        """Stop trying again, and end once what was submitted has ended one way or the other."""
        self._threads.closing.set()
        begin = time.monotonic()
        self._write_queue.wait_empty(timeout_s)
        self._threads.close(max(0.0, begin + timeout_s - time.monotonic()))

    def _why_not(self, job: BindJob) -> str:
        return job.cancelled or self.revoked

    def _hear(self, job: BindJob, error: Exception | None) -> None:
        if error is None:
            self._end(job, "bound")
        else:
            self._threads.submit((job, error))

    def _settle(self, refused: tuple[BindJob, Exception]) -> None:
        job, error = refused
        self._end(job, *self.bind(job, error))

    def _end(self, job: BindJob, status: BindStatus, message: str = "") -> None:
        self._sink(BindResult(job.pod, job.node_name, status, message, time.monotonic() - job.started_s))

    def _fail(self, refused: tuple[BindJob, Exception], error: Exception) -> None:
        job, _ = refused
        log.error("bind of %s: an error of ours", job.pod.key, exc_info=error)
        self._end(job, "failed", f"{type(error).__name__}: {error}")

    def bind(self, job: BindJob, first: Exception | None = None) -> tuple[BindStatus, str]:  # noqa: C901
        """Post a binding and wait for its outcome: a status and, where it is not "bound", the reason.

        `first` is the error of an earlier try.
        """
        path = _path(job)
        body, backoff, message, doubtful = _binding(job), Backoff(0.1, 3.0), "", False
        while True:
            try:
                if first is not None and not isinstance(first, NotSent):
                    error, first = first, None
                    raise error
                if doubtful and (fate := self._look(job, path, doubtful)) is not None:
                    return fate
                if why := self._why_not(job):
                    return "gone", why
                self._transport.request("POST", f"{path}/binding", body)
            except Unreachable as error:
                doubtful, message, wait_s = doubtful or error.sent, str(error), backoff.next_s()
            except ApiError as error:
                message, wait_s = str(error), max(error.retry_after_s, backoff.next_s())
                if error.status in {CONFLICT, NOT_FOUND}:
                    try:
                        return self._look(job, path, doubtful) or ("conflict", error.message)
                    except (ApiError, Unreachable) as second:
                        log.debug("bind of %s: %s, and reading it: %s", job.pod.key, error, second)
                elif error.status >= _SERVER_ERROR:
                    doubtful = True
                elif error.status != _BUSY:
                    return "failed", message
            else:
                return "bound", ""
            if time.monotonic() - job.started_s > self._give_up_s or self._threads.closing.wait(wait_s):
                return "failed", f"no clear answer in time: {message}"

    def _look(self, job: BindJob, path: str, doubtful: bool) -> tuple[BindStatus, str] | None:
        """Read where the pod is; None when it can still be bound. `doubtful`: an earlier try may have bound it."""
        try:
            seen = msgspec.json.decode(self._transport.request("GET", path), type=wire.PodObject)
        except ApiError as error:
            if error.status == NOT_FOUND:
                return "gone", "the pod was deleted"
            raise
        if seen.metadata.uid != job.pod.uid:
            return "gone", "the pod was deleted; another one has its name"
        if doubtful and seen.spec.node_name == job.node_name:
            return "bound", "found bound after an answer was lost"
        if seen.spec.node_name:
            return "conflict", f"bound to {seen.spec.node_name} by somebody else"
        if seen.metadata.deletion_timestamp is not None:
            return "gone", "the pod is being deleted"
        return None


def _path(job: BindJob) -> str:
    return f"/api/v1/namespaces/{job.pod.namespace}/pods/{job.pod.name}"


def _binding(job: BindJob) -> dict[str, object]:
    """Return the Binding object; the API server copies its annotations to the pod, so devices need no second write."""
    metadata: dict[str, object] = {"name": job.pod.name, "namespace": job.pod.namespace, "uid": job.pod.uid}
    if job.gpus:
        metadata["annotations"] = {wire.GPU_INDEX: "-".join(map(str, job.gpus))}
    target = {"apiVersion": "v1", "kind": "Node", "name": job.node_name}
    return {"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": target}
