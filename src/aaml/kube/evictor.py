"""Carries out preemptions by the API: victims are marked, deleted with their grace period, and get an event.

As kube-scheduler does it: the condition DisruptionTarget first, then the deletion, then the event `Preempted`.
https://kubernetes.io/docs/concepts/workloads/pods/disruptions/#pod-disruption-conditions
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

from aaml.cluster.objects import Pod
from aaml.kube.events import EventWriter
from aaml.kube.jobs import JobThreads
from aaml.kube.reflector import Backoff
from aaml.kube.transport import STRATEGIC_MERGE, ApiError, Transport, Unreachable
from aaml.scheduling.preemption import Preemption

log = logging.getLogger(__name__)

_FORBIDDEN = frozenset({401, 403})
_GONE = frozenset({404, 409})  # no such pod, or another one of its name: the uid is a precondition
_BUSY = 429
_SERVER_ERROR = 500
_TRIES = 6


@dataclass(frozen=True, slots=True)
class Evicted:
    """The result of an eviction for `pod`: `error` is "" when every victim is terminating.

    `forbidden`: the account may not evict, so trying again is of no use.
    """

    pod: Pod
    node_name: str
    error: str = ""
    forbidden: bool = False


class Evictor:
    """Deletes victims with `threads` threads, which call `sink` with the outcome of each preemption."""

    def __init__(
        self,
        transport: Transport,
        scheduler_name: str,
        events: EventWriter,
        sink: Callable[[Evicted], None],
        *,
        threads: int = 2,
    ) -> None:
        self._transport, self._scheduler_name, self._events, self._sink = transport, scheduler_name, events, sink
        self._threads = JobThreads("evictor", threads, self._work, self._fail)

    def submit(self, pod: Pod, preemption: Preemption) -> None:
        """Evict the victims for a pod as soon as a thread is free."""
        self._threads.submit((pod, preemption))

    def close(self, timeout_s: float) -> None:
        """Stop trying again, and end the threads once what was submitted has ended."""
        self._threads.close(timeout_s)

    # ---- in the threads ----------------------------------------------------------------------------------------------

    def _work(self, job: tuple[Pod, Preemption]) -> None:
        pod, preemption = job
        error, forbidden = "", False
        try:
            for other in preemption.withdrawn:
                self._insist(partial(self._patch_status, other, {"nominatedNodeName": None}))
            for victim in preemption.victims:
                if not victim.terminating:
                    self._evict(victim, preemption.by or f"pod {pod.uid}", preemption.node_name)
        except ApiError as refusal:
            # A webhook's refusal has the same status, and is about this victim only.
            forbidden = refusal.status in _FORBIDDEN and not refusal.message.startswith("admission webhook")
            error = str(refusal)
        except Unreachable as silence:
            error = str(silence)
        self._sink(Evicted(pod, preemption.node_name, error, forbidden))

    def _fail(self, job: tuple[Pod, Preemption], error: Exception) -> None:
        pod, preemption = job
        log.error("preemption for %s: an error of ours", pod.key, exc_info=error)
        self._sink(Evicted(pod, preemption.node_name, f"{type(error).__name__}: {error}"))

    def _evict(self, victim: Pod, by: str, node_name: str) -> None:
        kind, _, _ = by.partition(" ")
        why = {
            "type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler",
            "message": f"{self._scheduler_name}: preempting to accommodate a higher priority {kind}",
            "lastProbeTime": None, "lastTransitionTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        }  # fmt: skip
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": victim.uid}}
        if not self._insist(partial(self._patch_status, victim, {"conditions": [why]})):
            return
        if self._insist(partial(self._transport.request, "DELETE", _path(victim), body)):
            log.info("%s is preempted on node %s by %s", victim.key, node_name, by)
            self._events.preempted(victim, by, node_name)

    def _patch_status(self, pod: Pod, status: dict[str, Any]) -> None:
        body = {"metadata": {"uid": pod.uid}, "status": status}
        self._transport.request("PATCH", f"{_path(pod)}/status", body, content_type=STRATEGIC_MERGE)

    def _insist(self, write: Callable[[], object]) -> bool:
        """Write, again when the server is away or busy; False when the pod is gone."""
        backoff = Backoff(0.1, 3.0)
        for turn in range(1, _TRIES + 1):
            try:
                write()
            except Unreachable:
                if turn == _TRIES or self._threads.closing.wait(backoff.next_s()):
                    raise
            except ApiError as error:
                if error.status in _GONE:
                    return False
                busy = error.status == _BUSY or error.status >= _SERVER_ERROR
                if not busy or turn == _TRIES or self._threads.closing.wait(max(error.retry_after_s, backoff.next_s())):
                    raise
            else:
                return True
        raise AssertionError("the last turn returns or raises")


def _path(pod: Pod) -> str:
    return f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}"
