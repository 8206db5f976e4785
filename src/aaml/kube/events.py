"""What kubectl users read about a pod: events, the PodScheduled condition and the nominated node, written aside.

A pod that fits nowhere gets a FailedScheduling event (one, with a count, as long as the reason is the same) and the
condition PodScheduled=False with reason Unschedulable; a victim of preemption gets a Preempted event. Events of success
are optional: each is one more write a pod, so they are asynchronous writes; threads retry those that are not accepted.
https://kubernetes.io/docs/reference/kubernetes-api/cluster-resources/event-v1/
"""

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

import msgspec

from aaml import threads
from aaml.cluster.objects import Pod
from aaml.kube.objects import wire
from aaml.kube.reflector import Backoff
from aaml.kube.sources import GROUP_CONDITION, POD_GROUPS_API
from aaml.kube.transport import CONFLICT, NOT_FOUND, STRATEGIC_MERGE, ApiError, Transport, Unreachable

log = logging.getLogger(__name__)

SCHEDULED = "Scheduled"
"""The reason of a group's condition that is true."""
_THREADS = 2
_TRIES = 12
_MOST_WAITING = 10_000
_MOST_REMEMBERED = 10_000


@dataclass(slots=True)
class _Failure:
    """The last FailedScheduling event of a pod, to be counted up, and the message of its condition."""

    name: str = ""
    message: str = ""
    count: int = 0
    condition: tuple[str, str] = ("", "")  # message, nominated node


class EventWriter:
    """Writes for one scheduler. `still_waiting(uid)` says whether a pod is without a node.

    Successes are written `at_once` at a time, all else from a few threads, in order for each pod. When more than 10,000
    writes wait, some are dropped: events tell, they do not steer. Of so many pods is remembered what was said last.
    """

    def __init__(
        self, transport: Transport, scheduler_name: str, still_waiting: Callable[[str], bool], *, at_once: int = 64
    ) -> None:
        self._transport, self._component, self._still_waiting = transport, scheduler_name, still_waiting
        self._waiting: OrderedDict[tuple[str, str], tuple[Pod, str, str]] = OrderedDict()  # (kind, uid) -> ...
        self._failures: OrderedDict[str, _Failure] = OrderedDict()  # by uid, the one that failed last at the end
        self._conditions: OrderedDict[str, wire.TimedCondition] = OrderedDict()  # of groups, by namespace/name
        self._busy: set[str] = set()  # uids: of one pod one thing is written at a time, in order
        self._closing = threading.Event()
        self._forbidden = False
        self._write_queue = transport.write_queue(at_once)
        lock = threading.Lock()
        self._changed = threading.Condition(lock)  # there is something to write, or all is over
        self._written = threading.Condition(lock)  # there is nothing to write any more
        self._threads = [threads.start(self._work, f"events-{i}", threads.end_process) for i in range(_THREADS)]

    def failed(self, pod: Pod, message: str, nominated: str = "") -> None:
        """Write that a pod fits nowhere, and its nominated node; a newer message replaces one not written yet."""
        self._put("failed", pod, message, nominated)

    def group(self, pod: Pod, reason: str, message: str = "", known: wire.TimedCondition | None = None) -> None:
        """Write the condition of a pod's group: whether it is scheduled, and why not.

        As kube-scheduler does it: what is so already is not written, the time is that since which it is scheduled or is
        not, and a group that was scheduled once stays so. `known` is its condition where none was written here yet.
        """
        with self._changed:
            if known is not None:
                self._conditions.setdefault(pod.group_key, known)
            _, _, waiting = self._waiting.get(_key("group", pod), (pod, "", ""))
        if waiting != SCHEDULED or reason == SCHEDULED:
            self._put("group", pod, message, reason)

    def preempted(self, victim: Pod, by: str, node_name: str) -> None:
        """Say that a pod has to leave a node for another one, or for a group: `by` names what it is, and its uid."""
        self._put("preempted", victim, f"Preempted by {by} on node {node_name}")

    def failed_over(self, pod: Pod, message: str) -> None:
        """Write an event of this pod that another policy decides from now on."""
        self._put("failed-over", pod, message)

    def scheduled(self, pod: Pod, node_name: str, found: str = "") -> None:
        """Say that a pod was bound, and where the decision is found."""
        text = f"Successfully assigned {pod.key} to {node_name}{found and f' ({found})'}"
        if len(self._write_queue) < _MOST_WAITING:
            event = partial(self._event, pod, "Normal", "Scheduled", text)
            self._write_queue.post(_events_path(pod), event, partial(self._hear, pod, text))

    def _hear(self, pod: Pod, text: str, error: Exception | None) -> None:
        if isinstance(error, ApiError):
            self._refused(error)
        elif error is not None:
            self._put("scheduled", pod, text)

    def forget(self, uid: str) -> None:
        """Drop the failure of a pod that has a node or is gone, or by its key the condition of a group that is gone."""
        with self._changed:
            self._conditions.pop(uid, None)
            self._waiting.pop(("failed", uid), None)
            self._failures.pop(uid, None)

    def close(self, timeout_s: float) -> None:
        """Write what waits, for `timeout_s` at most, and end."""
        deadline = time.monotonic() + timeout_s
        self._write_queue.wait_empty(timeout_s)
        with self._changed:
            left_s = max(0.0, deadline - time.monotonic())
            self._written.wait_for(lambda: not (self._waiting or self._busy), left_s)
            self._closing.set()
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(max(0.1, deadline - time.monotonic()))

    def _put(self, kind: str, pod: Pod, text: str, node_name: str = "") -> None:
        with self._changed:
            self._waiting[_key(kind, pod)] = (pod, text, node_name)
            if len(self._waiting) > _MOST_WAITING:
                self._waiting.popitem(last=False)
            self._changed.notify()

    # ---- in the threads ----------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while True:
            with self._changed:
                while (key := self._next()) is None and not self._closing.is_set():
                    self._changed.wait()
                if key is None or self._closing.is_set():
                    return
                kind, uid = key
                pod, text, node_name = self._waiting.pop(key)
                self._busy.add(uid)
            try:
                self._tell(kind, pod, text, node_name)
            except Exception:
                log.exception("an event or a condition is left out: an error of ours")
            finally:
                with self._changed:  # what waits for this pod is taken by this thread, which looks next
                    self._busy.discard(uid)
                    if not (self._waiting or self._busy):
                        self._written.notify_all()

    def _next(self) -> tuple[str, str] | None:
        return next((key for key in self._waiting if key[1] not in self._busy), None)

    def _carefully(self, write: Callable[[], object]) -> bool:
        """Write, again while the server is away; returns whether it was written."""
        backoff = Backoff(0.5, 10.0)
        for _ in range(_TRIES):
            try:
                write()
            except Unreachable:
                if self._closing.wait(backoff.next_s()):
                    return False
            except ApiError as error:
                self._refused(error)
                return False
            else:
                return True
        return False

    def _refused(self, error: ApiError) -> None:
        """Go on without: the pod may be gone, or the service account may not write events."""
        if error.status != NOT_FOUND and not self._forbidden:
            self._forbidden = error.status in {401, 403}
            log.warning("events and conditions: %s", error)

    def _tell(self, kind: str, pod: Pod, text: str, nominated: str) -> None:
        if kind == "scheduled":
            self._carefully(lambda: self._create_event(pod, "Normal", "Scheduled", text))
            return
        if kind == "failed-over":
            self._create_event(pod, "Warning", "PolicyHandedOver", text)
            return
        if kind == "group":
            self._carefully(lambda: self._set_group_condition(pod, nominated, text))
            return
        if kind == "preempted":
            self._carefully(lambda: self._create_event(pod, "Normal", "Preempted", text, action="Preempting"))
            return
        failure = self._remember(pod.uid)
        self._carefully(lambda: self._count_failure(pod, failure, text))
        # The condition is another write, by another right: it is made whatever became of the event.
        if failure.condition != (text, nominated) and self._carefully(
            lambda: self._set_condition(pod, text, nominated)
        ):
            failure.condition = (text, nominated)

    def _remember(self, uid: str) -> _Failure:
        with self._changed:
            failure = self._failures.setdefault(uid, _Failure())
            self._failures.move_to_end(uid)
            if len(self._failures) > _MOST_REMEMBERED:
                self._failures.popitem(last=False)
            return failure

    def _count_failure(self, pod: Pod, failure: _Failure, text: str) -> None:
        """Count the event of a failure up, or create another one where the failure is another or the event is gone."""
        if failure.name and failure.message == text:
            try:
                self._patch(
                    f"{_events_path(pod)}/{failure.name}", {"count": failure.count + 1, "lastTimestamp": _now()}
                )
            except ApiError as error:
                if error.status != NOT_FOUND:
                    raise
            else:
                failure.count += 1
                return
        failure.name, failure.message, failure.count = (
            self._create_event(pod, "Warning", "FailedScheduling", text),
            text,
            1,
        )

    def _create_event(self, pod: Pod, kind: str, reason: str, message: str, action: str = "Scheduling") -> str:
        event = self._event(pod, kind, reason, message, action)
        self._transport.request("POST", _events_path(pod), event)
        return str(event["metadata"]["name"])

    def _event(self, pod: Pod, kind: str, reason: str, message: str, action: str = "Scheduling") -> dict[str, Any]:
        now = _now()
        return {
            "metadata": {"namespace": pod.namespace, "name": f"{pod.name[:230]}.{time.time_ns():x}"},
            "involvedObject": {
                "apiVersion": "v1", "kind": "Pod", "namespace": pod.namespace, "name": pod.name, "uid": pod.uid,
            },
            "type": kind, "reason": reason, "message": message[:1024], "action": action, "count": 1,
            "firstTimestamp": now, "lastTimestamp": now,
            "source": {"component": self._component}, "reportingComponent": self._component,
        }  # fmt: skip

    def _set_condition(self, pod: Pod, message: str, nominated: str) -> None:
        """Set PodScheduled=False and the nominated node, unless the pod has got a node meanwhile.

        Its version guards against the race.
        """
        path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}"
        version = pod.resource_version
        condition = {
            "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message,
            "lastProbeTime": None, "lastTransitionTime": _now(),
        }  # fmt: skip
        for _ in range(_TRIES):
            if not self._still_waiting(pod.uid):
                return
            status = {"conditions": [condition], "nominatedNodeName": nominated or None}
            body = {"metadata": {"uid": pod.uid, "resourceVersion": version}, "status": status}
            try:
                self._patch(f"{path}/status", body)
            except ApiError as error:
                if error.status != CONFLICT:
                    raise
            else:
                return
            seen = msgspec.json.decode(self._transport.request("GET", path), type=wire.PodObject)
            if seen.metadata.uid != pod.uid or seen.spec.node_name:
                return
            version = seen.metadata.resource_version

    def _set_group_condition(self, pod: Pod, reason: str, message: str) -> None:
        if pod.group is None:
            return
        path = f"{POD_GROUPS_API}/namespaces/{pod.namespace}/podgroups/{pod.group.name}/status"
        now, status = datetime.now(UTC), "True" if reason == SCHEDULED else "False"
        with self._changed:
            before = self._conditions.get(pod.group_key)
        if before is not None and before.status == status:
            if (before.reason, before.message) == (reason, message):
                return
            now = before.last_transition_time or now
        elif before is not None and before.status == "True":
            return
        condition = {
            "type": GROUP_CONDITION, "status": status, "reason": reason, "message": message,
            "lastTransitionTime": _of(now),
        }  # fmt: skip
        self._patch(path, {"status": {"conditions": [condition]}})
        with self._changed:
            self._conditions[pod.group_key] = wire.TimedCondition(GROUP_CONDITION, status, reason, message, now)
            self._conditions.move_to_end(pod.group_key)
            if len(self._conditions) > _MOST_REMEMBERED:
                self._conditions.popitem(last=False)

    def _patch(self, path: str, body: dict[str, Any]) -> None:
        self._transport.request("PATCH", path, body, content_type=STRATEGIC_MERGE)


def _key(kind: str, pod: Pod) -> tuple[str, str]:
    """Return what is written, and of whom: of a group, whichever of its pods stands for it."""
    return kind, f"PodGroup/{pod.group_key}" if kind == "group" else pod.uid


def _events_path(pod: Pod) -> str:
    return f"/api/v1/namespaces/{pod.namespace}/events"


def _now() -> str:
    return _of(datetime.now(UTC))


def _of(time: datetime) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")
