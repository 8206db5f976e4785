"""KubeCluster: a real Kubernetes API behind the `Cluster` port of the scheduling loop.

Reflectors and the binder run in threads of their own and put what they learn into one inbox. Only the thread that calls
`next_pod` empties it, changes the state and decides, so there are no locks. A pod is assumed on its node when its bind
is sent; the API's latency is hidden by up to `4 * binds_at_once` binds in flight. Claims that wait for their first
consumer get their volumes between the two.
"""

import logging
import queue
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from aaml import threads
from aaml.cluster.filters import Feasibility, feasible
from aaml.cluster.objects import Pod
from aaml.cluster.state import ClusterState
from aaml.errors import UserError
from aaml.kube import rights
from aaml.kube.binder import Binder, BindJob
from aaml.kube.events import SCHEDULED, EventWriter
from aaml.kube.evictor import Evicted, Evictor
from aaml.kube.history import History
from aaml.kube.inbox import Inbox
from aaml.kube.informer_handlers import InformerHandlers
from aaml.kube.preemptor import Preemptor
from aaml.kube.reflector import Changes, Reflector, Source, Trouble
from aaml.kube.sources import BUDGETS, NODES, PODS
from aaml.kube.transport import Transport
from aaml.kube.volume_binder import VolumeBinder, VolumesWritten
from aaml.scheduling.pod_groups import GroupAttempt, count_placed
from aaml.scheduling.ports import BindResult, BindStatus
from aaml.scheduling.queue import BACKOFF_S, SchedulingQueue
from aaml.scheduling.queue_entries import QueuedGroup, QueuedPod
from aaml.scheduling.queue_sort import QueueSort

if TYPE_CHECKING:
    from aaml.scheduling.group_preemption import Imagined

log = logging.getLogger(__name__)

_IN_FLIGHT = 4  # times what is under way at the API server
_CONNECTIONS = 32  # for watches, and for writers that wait for their answers: binds in doubt, failures, evictors
_NO_NODES = frozenset({"NoNodes"})  # no plugin's name, so the queue tries again at every event


@dataclass(frozen=True)
class LiveOptions:
    """How a live cluster is served.

    `namespaces` empty: pods of all namespaces are scheduled (those of others always count as load). `dry_run` decides
    and never writes: on each pod that another scheduler places, from the state just before, and on those that nobody
    has placed after `dry_run_wait_s`. `preemption` lets pods that fit nowhere take the room of less important ones, as
    far as the account may delete pods and read disruption budgets. `scheduled_events` posts an event for each bound
    pod too, one more write a pod. `binds_at_once` are under way at the API server; etcd writes to its disk once for all
    that comes meanwhile, so that many at a time cost less each. A pod waits at most `volumes_s` for volumes of its
    claims, as with kube-scheduler (`bindTimeoutSeconds`), and is tried again then. A watch lasts `watch_s` and counts
    as dead after `silence_s` without a word; the first lists must be there within `sync_s`, and `drain` waits `close_s`
    for binds in flight.
    """

    namespaces: Collection[str] = ()
    dry_run: bool = False
    dry_run_wait_s: float = 5.0
    preemption: bool = True
    scheduled_events: bool = True
    binds_at_once: int = 64
    volumes_s: float = 600.0
    watch_s: int = 300
    silence_s: float = 90.0
    sync_s: float = 60.0
    close_s: float = 15.0

    @property
    def rights(self) -> rights.Rights:
        """What the account has to be allowed."""
        return rights.scheduling(self.namespaces, preemption=self.preemption, dry_run=self.dry_run)

    @property
    def granted_by(self) -> str:
        """The folder of deploy/kubernetes that grants these rights."""
        return "shadow" if self.dry_run else "scheduler"


@dataclass(frozen=True)
class LookingOptions(LiveOptions):
    """For whoever looks at the queue as a scheduler sees it, and never takes a pod from it: nothing is written."""

    preemption: bool = False
    scheduled_events: bool = False

    @property
    def rights(self) -> rights.Rights:
        """What the account has to be allowed: to read."""
        return rights.QUEUE

    @property
    def granted_by(self) -> str:
        """The folder of deploy/kubernetes that grants most of them."""
        return "shadow"


@dataclass(slots=True)
class _BindInFlight:
    job: BindJob
    queued: QueuedPod | None  # None for a pod of a group
    decision: int


class _Wake:
    """Put into the inbox to end a wait."""


class KubeCluster:
    """The `Cluster` of pods whose `schedulerName` is `scheduler_name`. Make one with `connect`.

    Every method but `stop` and `revoke` belongs to one thread.
    """

    def __init__(self, transport: Transport, scheduler_name: str, options: LiveOptions | None = None) -> None:
        self.options = options or LiveOptions()
        self.scheduler_name = scheduler_name
        self.decision_log = ""
        """Where whoever decides writes its decisions, so that events can say in which one a pod got its node."""
        self._decisions = 0
        self._transport = transport
        self._state = ClusterState()
        self._queue = SchedulingQueue(time.monotonic, placed=lambda key: count_placed(self._state, key))
        self._attempt: GroupAttempt | None = None
        self._refused: GroupAttempt | None = None  # of a group for which room is imagined now
        self._imagined: Imagined | None = None
        self._ties = np.random.default_rng()
        self._inbox = Inbox()
        self._broken: threads.ThreadError | None = None  # a thread without which nothing goes on
        self._taken: dict[str, QueuedPod] = {}  # handed out by `next_pod`, not decided yet
        self._flights: dict[str, _BindInFlight] = {}
        self._results: list[BindResult] = []
        self._shadow: list[str] = []  # uids assumed for a dry run until the next decision
        self._filtered: tuple[str, Feasibility] | None = None
        self._stopped = self._closed = False
        self.reflectors: dict[str, Reflector[Any]] = {}
        self._history = History(transport)
        self._binder = Binder(transport, self._inbox.put, at_once=self.options.binds_at_once)
        self._events = EventWriter(
            transport, scheduler_name, self._queue.__contains__, at_once=2 * self.options.binds_at_once
        )
        self._preemptor: Preemptor | None = None
        if self.options.preemption and not self.options.dry_run:
            self._evictor = Evictor(transport, scheduler_name, self._events, self._inbox.put)
            self._preemptor = Preemptor(self._state, self._queue, self._evictor, self._watch)
        self._handlers = InformerHandlers(
            self._state, self._queue, scheduler_name=scheduler_name, namespaces=self.options.namespaces,
            hold_s=self.options.dry_run_wait_s if self.options.dry_run else None,
            watch=self._watch, cancel=self._cancel, forget=self._events.forget,
        )  # fmt: skip
        self._volumes = VolumeBinder(
            transport, self._state, self._handlers.storage, self._inbox.put, self._have_volumes,
            wait_s=self.options.volumes_s, revoked=lambda: self._binder.revoked,
        )  # fmt: skip

    @classmethod
    def connect(
        cls,
        scheduler_name: str,
        *,
        kubeconfig: Path | str | None = None,
        context: str | None = None,
        server: str | None = None,
        options: LiveOptions | None = None,
    ) -> "KubeCluster":
        """Connect to a cluster and wait until its nodes and pods are known.

        Raises `UserError` when there is no configuration, no answer or no permission, all of which it names.
        """
        transport = Transport(kubeconfig, context=context, server=server, connections=_CONNECTIONS)
        cluster = cls(transport, scheduler_name, options)
        try:
            rights.check(transport, cluster.options.rights, cluster.options.granted_by)
            cluster.start()
        except BaseException:
            cluster.close()
            raise
        return cluster

    def start(self) -> None:
        """Begin to watch; returns once the first lists have arrived. Raises `UserError` where they cannot be read."""
        for source in (NODES, PODS):
            self._watch(source)
        deadline = time.monotonic() + self.options.sync_s
        while self._handlers.unsynced:
            try:
                item = self._inbox.get(deadline - time.monotonic())
            except queue.Empty:
                missing = ", ".join(sorted(self._handlers.unsynced))
                raise UserError(
                    f"{self._transport.server}: no list of {missing} in {self.options.sync_s:g} s"
                ) from None
            if isinstance(item, Trouble) and item.source in self._handlers.unsynced:
                raise self._transport.explain(item.error)
            self._take(item)
            self._check()

    def chosen(self, uid: str) -> str:
        """Return the node on which another scheduler put the pod that a dry run decides on, "" while none has."""
        return self._handlers.chosen.get(uid, "")

    def settle(self, timeout_s: float) -> bool:
        """Take in what happened until all that decisions wait for is known; False where that takes too long."""
        deadline = time.monotonic() + timeout_s
        while True:
            self._drain()
            if not self._handlers.awaited:
                return True
            try:
                self._take(self._inbox.get(deadline - time.monotonic()))
            except queue.Empty:
                return False

    def waits(self, uid: str) -> Pod | None:
        """Return a pod of ours that waits, as it would be decided on; None where there is none."""
        return next((queued.pod for queued in self._queue.pods() if queued.uid == uid), None)

    def waiting(self) -> Sequence[Pod]:
        """Return all pods of ours that wait, whether they can be tried or not, in the order in which they came."""
        return self._queue.waiting()

    # ---- the Cluster port --------------------------------------------------------------------------------------------

    @property
    def state(self) -> ClusterState:
        """What runs where; during a try of a group, as that sees it."""
        return self._state if self._attempt is None else self._attempt.state

    @property
    def where(self) -> str:
        """The server of the API."""
        return self._transport.server

    @property
    def exhausted(self) -> bool:
        """False: anything can happen on a live cluster."""
        return False

    def now_s(self) -> float:
        """Return monotonic seconds."""
        return time.monotonic()

    def next_pod(self, timeout_s: float) -> Pod | None:
        """Take in what happened and return the next pod to decide on; None after `timeout_s` or `stop` without one.

        Raises `ThreadError` once a thread that watches has ended.
        """
        deadline = time.monotonic() + timeout_s
        self._end_shadow()
        if (pod := self._next_of_group()) is not None:
            return pod
        while True:
            self._drain()
            self._volumes.step()
            self._check()
            if self._stopped:
                return None
            if self._may_decide() and (queued := self._queue.pop()) is not None:
                if isinstance(queued, QueuedGroup):
                    self._attempt = GroupAttempt(self._state, queued, self._ties)
                    if (pod := self._next_of_group()) is not None:
                        return pod
                    continue
                if queued.uid in self._flights:  # a restored backup has brought it back before its bind ended
                    self._queue.retry(queued)
                    continue
                self._taken[queued.uid] = queued
                return queued.pod
            now = time.monotonic()
            ready_s = self._queue.next_ready_s() if self._may_decide() else None
            until = min(deadline, self._handlers.due_s, self._volumes.due_s, deadline if ready_s is None else ready_s)
            if now >= deadline:
                return None
            try:
                self._take(self._inbox.get(max(until - now, 0.001)))
            except queue.Empty:
                continue

    def sort_queue(self, sort: QueueSort | None, backoff_s: tuple[float, float] | None = None) -> None:
        """Hand out waiting pods in this order, with these backoffs, from now on; None: kube-scheduler's."""
        self._queue.back_off(*(backoff_s or BACKOFF_S))
        self._queue.sort_by(None if sort is None else lambda pod: sort.delay_s(self._state, pod))

    def upcoming(self, count: int) -> Sequence[Pod]:
        """Return up to `count` pods that wait behind the current one."""
        return self._queue.upcoming(count)

    def pending_count(self) -> int:
        """Return how many pods wait."""
        return len(self._queue)

    def waiting_by_queue(self) -> Mapping[str, int]:
        """Return the number of pods that are active, in backoff, unschedulable and gated; safe from any thread."""
        return self._queue.counts()

    def feasible(self, pod: Pod) -> npt.NDArray[np.bool_]:
        """Return [N], the nodes that pass kube-scheduler's filters; the nominated node alone where that is one.

        In a dry run another scheduler nominates: that is its decision, or its preemption, and binds nobody here.
        """
        state = self.state
        verdict = feasible(state, pod)
        self._filtered = (pod.uid, verdict)
        mask = verdict.mask if self._attempt is None else self._attempt.narrow(verdict.mask)
        nominated = None if self.options.dry_run else state.nominated.get(pod.uid)
        node_index = state.index.get(nominated[1]) if nominated is not None else None
        if node_index is None or not mask[node_index]:
            return mask
        only = np.zeros_like(mask)
        only[node_index] = True
        return only

    def bind(self, pod: Pod, node_index: int, gpus: tuple[int, ...] | None = None) -> str:
        """Assume the pod on a node and send the bind; returns the node's name. A dry run only assumes, for a moment."""
        if self._attempt is not None:
            self._decisions += 1
            node_name = self._attempt.place(node_index, gpus, self.now_s())
            self._go_on()
            return node_name
        queued, node_name = self._taken.pop(pod.uid), self._state.names[node_index]
        placement = self._state.assume(pod, node_name, gpus, self.now_s())
        if self.options.dry_run:
            self._shadow.append(pod.uid)
            self._handlers.decided(pod.uid)
            self._queue.done(pod.uid)
            self._results.append(BindResult(pod, node_name, "shadow"))
        else:
            self._send(BindJob(pod, node_name, placement.gpus), queued)
        self._decisions += 1
        return node_name

    def reject(self, pod: Pod) -> None:
        """Preempt for a pod that fits nowhere, or report why not; it is tried again after a change that may help."""
        if self._attempt is not None:
            filtered = self._filtered
            self._attempt.skip(filtered[1].message() if filtered is not None and filtered[0] == pod.uid else "")
            self._go_on()
            return
        queued = self._taken.pop(pod.uid)
        if self._filtered is None or self._filtered[0] != pod.uid:
            self.feasible(pod)
        filtered = self._filtered
        if filtered is None:
            raise AssertionError("feasible() keeps its verdict")
        preemption = ""
        if self._preemptor is not None and len(self._state):
            preemption = self._preemptor.make_room(pod, filtered[1])
        message = filtered[1].message(preemption) if len(self._state) else "no nodes available to schedule pods"
        plugins = filtered[1].plugins if len(self._state) else _NO_NODES
        self._queue.requeue(queued, plugins or _NO_NODES)
        log.info("%s: %s", pod.key, message)
        if not self.options.dry_run:
            nominated = self._state.nominated.get(pod.uid)
            self._events.failed(pod, message, nominated[1] if nominated is not None else "")

    def defer(self, pod: Pod) -> None:
        """Put the pod back; it is tried again after a backoff. One of a group goes without a node in this trial."""
        if self._attempt is not None:
            self._decisions += 1
            self._attempt.skip("left pending by the policy")
            self._go_on()
            return
        self._queue.retry(self._taken.pop(pod.uid))
        self._decisions += 1

    def failed_over(self, pod: Pod, message: str) -> None:
        """Write an event of this pod that another policy decides from now on."""
        self._events.failed_over(pod, message)

    def results(self) -> Sequence[BindResult]:
        """Return the binds that ended since the last call."""
        ended, self._results = self._results, []
        return ended

    def stop(self) -> None:
        """Make `next_pod` return at once from now on; safe from a signal handler or another thread."""
        self._stopped = True
        self._inbox.put(_Wake())

    def revoke(self, why: str) -> None:
        """Send no bind any more; those on their way end as they may. For another thread, once a lease is lost."""
        self._binder.revoked = why

    def drain(self) -> None:
        """Wait at most `close_s` for binds in flight; a cluster that was closed has none any more."""
        self._end_shadow()
        deadline = time.monotonic() + self.options.close_s
        while self._flights and not self._closed and (left := deadline - time.monotonic()) > 0:
            try:
                self._take(self._inbox.get(left))
            except queue.Empty:
                break
            self._volumes.step()

    def close(self) -> None:
        """Wait for binds in flight, write what still has to be written, and end all threads; again: do nothing."""
        if self._closed:
            return
        self._stopped = True
        deadline = time.monotonic() + self.options.close_s
        self.drain()
        self._inbox.close()
        self._closed = True
        self._volumes.close(1.0)
        self._binder.close(max(1.0, deadline - time.monotonic()))
        if self._preemptor is not None:
            self._evictor.close(max(1.0, deadline - time.monotonic()))
        self._drain()
        if self._flights:
            log.warning(
                "%d binds were given up unanswered; their pods are as the API server has them", len(self._flights)
            )
        if self._handlers.left_out:
            log.warning("left out: %d pods of pod groups, on which nothing was decided", self._handlers.left_out)
        self._events.close(2.0)
        for reflector in self.reflectors.values():
            reflector.stop()
        for reflector in self.reflectors.values():
            reflector.join(2.0)
        self._transport.close()

    # ---- groups ------------------------------------------------------------------------------------------------------

    def _next_of_group(self) -> Pod | None:
        """Return the next pod of the group that is being tried, None where there is none, or no more of it.

        Nothing is taken in meanwhile: all of its pods see the same cluster.
        """
        if self._attempt is not None and not self._stopped:
            self._attempt.turn(self.now_s())
            self._go_on()
        return None if self._attempt is None or self._stopped else self._attempt.pod

    def _go_on(self) -> None:
        """Take in what has come of the try of a group; where it has ended, all of its binds are sent, or none."""
        attempt = self._attempt
        if attempt is None:
            return
        self._results += [BindResult(pod, name, status, attempt.message) for pod, name, status in attempt.ended()]
        if not attempt.outcome:
            return
        self._attempt = None
        preemption = ""
        if self._imagined is not None and self._refused is not None and self._preemptor is not None:
            self._results += [BindResult(each.pod, each.node_name, "tried") for each in attempt.placed]
            group_uid = self._handlers.group_uids.get(attempt.queued.pod.group_key, "")
            preemption = self._preemptor.make_room_for_group(self._imagined, attempt, group_uid)
            attempt, self._refused, self._imagined = self._refused, None, None
        elif attempt.outcome == "unschedulable" and self._preemptor is not None:
            preemption, self._imagined = self._preemptor.imagine(attempt.queued, attempt.pods)
            if self._imagined is not None:
                self._refused = attempt
                self._attempt = GroupAttempt(self._imagined.state, attempt.queued, self._ties)
                self._go_on()
                return
        if preemption:
            attempt.message += f", pod group preemption: {preemption}"
        self._finish(attempt)

    def _finish(self, attempt: GroupAttempt) -> None:
        """Send the binds of a group, or put it back, and tell what has come of its try."""
        pods = [each.pod for each in attempt.queued.waiting()]
        placed = {each.pod.uid for each in attempt.placed}
        self._queue.attempted(attempt.queued, attempt.outcome or "error", placed)
        for each in attempt.placed:
            if each.volumes is not None:
                each.volumes.release(self._state)
            self._send(BindJob(each.pod, each.node_name, each.gpus or ()), None)
        left = [pod for pod in pods if pod.uid not in placed]
        if left:
            log.info("pod group %s: %d of %d pods wait: %s", pods[0].group_key, len(left), len(pods), attempt.message)
        for pod in left:
            _, nominated = self._state.nominated.get(pod.uid, (pod, ""))
            self._events.failed(pod, attempt.refused.get(pod.uid) or attempt.message, nominated)
        known = self._handlers.group_conditions.get(pods[0].group_key) if pods else None
        if placed:
            self._events.group(pods[0], SCHEDULED, known=known)
        elif left and attempt.outcome != "scheduled":
            reason = "Unschedulable" if attempt.outcome == "unschedulable" else "SchedulerError"
            self._events.group(pods[0], reason, attempt.message, known)

    def _send(self, job: BindJob, queued: QueuedPod | None) -> None:
        """Send the bind of an assumed pod, once its claims have their volumes."""
        self._flights[job.pod.uid] = _BindInFlight(job, queued, self._decisions)
        if job.pod.volumes.unbound:
            self._volumes.begin(job)
        else:
            self._binder.submit(job)

    # ---- taking in what happened -------------------------------------------------------------------------------------

    def _may_decide(self) -> bool:
        under_way = len(self._flights) - len(self._volumes)  # nobody waits for who waits for volumes
        return not self._handlers.awaited and under_way < _IN_FLIGHT * self.options.binds_at_once

    def _watch(self, source: Source[Any]) -> None:
        reflector = Reflector(
            self._transport, source, self._inbox.put_changes,
            watch_s=self.options.watch_s, silence_s=self.options.silence_s, history=self._history,
        )  # fmt: skip
        self.reflectors[source.name] = reflector
        reflector.start()

    def _end_shadow(self) -> None:
        while self._shadow:
            self._state.forget(self._shadow.pop())

    def _drain(self) -> None:
        """Take in what lies in the inbox; a dry run stops at each pod that it can decide on.

        What comes meanwhile is for the next time: a flood is not to keep pods waiting.
        """
        left = len(self._inbox)
        while not (self.options.dry_run and self._queue.counts()["active"]):
            if self._handlers.step():
                continue
            if not left:
                return
            left -= 1
            self._take(self._inbox.get(0.0))

    def _take(self, item: object) -> None:  # noqa: C901
        match item:
            case Changes(source=BUDGETS.name) if self._preemptor is not None:
                self._preemptor.on_changes(item)
            case Trouble(source=BUDGETS.name) if self._preemptor is not None:
                self._preemptor.on_trouble(item)
            case Evicted() if self._preemptor is not None:
                self._preemptor.settle(item)
            case Changes():
                self._handlers.on_changes(item)
                self._volumes.on_changes(item)
            case VolumesWritten():
                self._volumes.settle(item)
                if item.forbidden:
                    self._handlers.on_patch_forbidden(item.forbidden, item.error)
            case BindResult():
                self._settle(item)
            case Trouble():
                self._handlers.on_trouble(item)
            case threads.ThreadError():
                self._broken = item
            case _Wake():
                pass
            case _:
                raise AssertionError(f"unexpected in the inbox: {item!r}")

    def _check(self) -> None:
        if self._broken is not None:
            raise self._broken

    def _have_volumes(self, job: BindJob, status: BindStatus, message: str) -> None:
        """Bind the pod once its claims have their volumes. Where that failed, end this attempt."""
        if status == "bound":
            job.started_s = time.monotonic()
            self._binder.submit(job)
            return
        self._settle(BindResult(job.pod, job.node_name, status, message, time.monotonic() - job.started_s))
        if status == "failed":
            self._events.failed(job.pod, message)
        self._queue.on_event("volume_change")  # what was reserved is free again

    def _settle(self, result: BindResult) -> None:
        """End a flight: keep the placement of a bound pod, undo any other and queue the pod again."""
        pod = result.pod
        flight = self._flights.pop(pod.uid)
        self._results.append(result)
        if result.status == "bound":
            self._queue.done(pod.uid)
            self._events.forget(pod.uid)
            if self.options.scheduled_events:
                found = f"decision {flight.decision} of {self.decision_log}" if self.decision_log else ""
                self._events.scheduled(pod, result.node_name, found)
            return
        log.warning("bind of %s to %s: %s, %s", pod.key, result.node_name, result.status, result.message)
        self._state.forget(pod.uid)
        # A pod that is gone or bound leaves the queue when its watch says so.
        if flight.queued is None:
            self._queue.put_back(pod)
        elif self._queue.retry(flight.queued) and flight.queued.pod.nominated_node:
            self._state.nominate(flight.queued.pod, flight.queued.pod.nominated_node)
        self._queue.on_event("pod_delete", pod)

    def _cancel(self, uid: str, node_name: str, why: str) -> None:
        """Keep binds that are still waiting for a thread from being sent: their pod or node is gone."""
        if uid:
            if uid in self._flights:
                self._flights[uid].job.cancelled = why
                self._volumes.cancel(uid)
            return
        for flight in self._flights.values():
            if flight.job.node_name == node_name:
                flight.job.cancelled = why
                self._volumes.cancel(flight.job.pod.uid)
