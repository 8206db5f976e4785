"""The queue of pods that wait for a node, as kube-scheduler keeps it.

active         ready to be tried: higher priority first, then who has waited longest since it was last queued; or in
               the order of the policy (`aaml.scheduling.queue_sort`)
backoff        tried without success, but something has changed since: ready when its backoff is over
unschedulable  tried without success, nothing that could help has happened since
gated          has scheduling gates: not tried until they are gone

https://kubernetes.io/docs/concepts/scheduling-eviction/scheduling-framework/ describes the parts, the default times
are those of kube-scheduler's `podInitialBackoffSeconds` and `podMaxBackoffSeconds`.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from math import floor, inf
from typing import Any, Literal

from aaml.cluster.objects import Pod
from aaml.scheduling.queue_hints import EventKind, helped_by, helped_by_own_update, interested
from aaml.scheduling.queue_parts import ClusterEvent, EventLog, TicketHeap

QueueName = Literal["new", "active", "backoff", "unschedulable", "gated", "in_flight"]
BACKOFF_S = (1, 10)
"""kube-scheduler's podInitialBackoffSeconds and podMaxBackoffSeconds where nothing else is said."""
NO_PLUGINS: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """Times of a simulated scheduling queue. Backoff 0 retries at once when something has changed."""

    initial_backoff_s: float = 1.0
    max_backoff_s: float = 10.0
    flush_after_s: float = inf  # every event is known here, so that none can have been missed


@dataclass(slots=True)
class QueuedPod:
    """A pod in the queue, with what is known of the tries to place it; times are seconds of the queue's clock.

    `attempts` counts the tries so far, with the one under way, and `last_failure` names the plugins that rejected the
    pod.
    """

    pod: Pod
    first_added_s: float
    added_s: float  # when it was last put in the queue: its age for the order
    attempts: int = 0
    failures: int = 0  # tries that ended without a node: doubles the backoff
    errors: int = 0  # tries in a row that ended in an error, such as a conflict
    last_failure: frozenset[str] = NO_PLUGINS
    queue: QueueName = "new"
    ticket: int = 0  # identifies the valid heap entry
    popped_at_event: int = 0
    delay_s: float = 0.0  # how much later than it did it counts as having come, where the policy sorts

    @property
    def uid(self) -> str:
        """The pod's uid."""
        return self.pod.uid


class SchedulingQueue:
    """Pods that wait for a node. `clock` returns seconds and never goes back; no other clock is read here.

    After its n-th failure a pod backs off for `initial_backoff_s` * 2^(n-1) seconds, at most `max_backoff_s`; 0 turns
    backoff off. A pod counts as unschedulable for at most `flush_after_s`, which may be infinite. With
    `pop_from_backoff`, kube-scheduler's default, a pod in backoff is tried early when nothing else is ready, unless its
    last try ended in an error. Backoffs then end with the second of the clock in which they are over, and of those that
    end with the same second higher priority comes first, then who has waited longest.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        initial_backoff_s: float = BACKOFF_S[0],
        max_backoff_s: float = BACKOFF_S[1],
        flush_after_s: float = 300.0,
        *,
        pop_from_backoff: bool = True,
    ) -> None:
        self._clock = clock
        self.back_off(initial_backoff_s, max_backoff_s)
        self._flush_after_s, self._pop_from_backoff = flush_after_s, pop_from_backoff
        self._window_s = 1.0 if pop_from_backoff else 0.0
        self._pods: dict[str, QueuedPod] = {}
        self._active = TicketHeap(self._is_valid)
        self._backoff = TicketHeap(self._is_valid)
        self._error_backoff = TicketHeap(self._is_valid)
        self._unschedulable: dict[frozenset[str], dict[str, QueuedPod]] = {}  # by the plugins that rejected them
        self._flush = TicketHeap(self._is_valid)
        self._flight = EventLog()
        self._flying: dict[str, QueuedPod] = {}
        self._counts = {"active": 0, "backoff": 0, "unschedulable": 0, "gated": 0}
        self._tickets = 0
        self._delay_s: Callable[[Pod], float] | None = None

    def __len__(self) -> int:
        """Return the number of pods that wait, without those under way."""
        return len(self._pods) - len(self._flying)

    def __contains__(self, uid: object) -> bool:
        """Whether a pod waits or is under way."""
        return uid in self._pods

    def counts(self) -> dict[str, int]:
        """Return how many pods are active, in backoff, unschedulable and gated (kube-scheduler's `pending_pods`)."""
        return dict(self._counts)

    def pods(self) -> Iterator[QueuedPod]:
        """Yield every pod that waits or is under way, in the order in which they came."""
        return iter(self._pods.values())

    def back_off(self, initial_s: float, max_s: float) -> None:
        """Let pods back off for so many seconds after their first failure, and at most, from their next one on."""
        self._initial_backoff_s, self._max_backoff_s = initial_s, max_s

    def sort_by(self, delay_s: Callable[[Pod], float] | None) -> None:
        """Let pods be tried in the order in which they first came, each later by the seconds that `delay_s` says.

        Such pods are tried again as soon as an event may help them: only errors make them back off. None brings back
        kube-scheduler's order and backoff.
        """
        if delay_s is self._delay_s is None:
            return
        self._delay_s = delay_s
        for queued in self._pods.values():
            queued.delay_s = self._delay_of(queued.pod)
            if queued.queue in {"active", "backoff"}:
                self._ready(queued)

    # ---- what the cluster says of a waiting pod ----------------------------------------------------------------------

    def add(self, pod: Pod) -> None:
        """Queue a new pod; one that is known already is updated."""
        if pod.uid in self._pods:
            self.update(pod)
            return
        now = self._clock()
        queued = self._pods[pod.uid] = QueuedPod(pod, first_added_s=now, added_s=now, delay_s=self._delay_of(pod))
        self._enter(queued, "gated" if pod.gates else "active")

    def update(self, pod: Pod) -> None:
        """Take the new version of a waiting pod, which becomes ready when the change may help it.

        A pod that is not known is added.
        """
        queued = self._pods.get(pod.uid)
        if queued is None:
            self.add(pod)
            return
        before, queued.pod, queued.delay_s = queued.pod, pod, self._delay_of(pod)
        queue = queued.queue
        if queue == "gated":
            if not pod.gates:
                self._enter(queued, "active")
        elif queue == "unschedulable":
            if before != pod and helped_by_own_update(pod, before, queued.last_failure):
                self._ready(queued)
        elif queue == "in_flight":
            self._flight.events.append(ClusterEvent("own_update", pod, before))
        elif before.priority != pod.priority:
            self._enter(queued, queue)

    def remove(self, uid: str) -> None:
        """Forget a pod that was deleted, was bound, or is no longer this scheduler's."""
        queued = self._pods.get(uid)
        if queued is not None:
            self._leave(queued)
            del self._pods[uid]
            self._trim_events()

    # ---- the scheduler's cycle ---------------------------------------------------------------------------------------

    def pop(self) -> QueuedPod | None:
        """Take the next pod to try, or None when none is ready.

        What becomes of it is told by `done`, `requeue` or `retry`.
        """
        self._advance()
        top = self._active.peek()
        heap = self._active
        if top is None and self._pop_from_backoff:
            heap, top = self._backoff, self._backoff.peek()
        if top is None:
            return None
        queued = self._pods[heap.pop()]
        self._leave(queued)
        queued.queue, queued.popped_at_event = "in_flight", self._flight.count
        self._flying[queued.uid] = queued
        queued.attempts += 1
        return queued

    def done(self, uid: str) -> None:
        """Forget a pod that was under way and has a node now."""
        self.remove(uid)

    def requeue(self, queued: QueuedPod, plugins: frozenset[str]) -> None:
        """Put back a pod that found no node, because of these plugins; without plugins it counts as an error.

        Where an event that may help it has come since it was popped, it backs off, and otherwise it waits for one.
        """
        if not plugins:
            self.retry(queued)
            return
        if not self._returns(queued):
            return
        queued.last_failure = plugins
        queued.failures += 1
        queued.errors = 0
        log = self._flight
        helped = any(self._helps(each, queued, plugins) for each in log.since(queued.popped_at_event))
        if helped or not log.knows(queued.popped_at_event):
            self._ready(queued)
        else:
            self._enter(queued, "unschedulable")
        self._trim_events()

    def retry(self, queued: QueuedPod) -> bool:
        """Put back a pod whose try ended in an error, such as a refused bind, and return whether it still waits.

        It is ready again after its backoff.
        """
        if not self._returns(queued):
            return False
        queued.last_failure = NO_PLUGINS
        queued.errors += 1
        self._ready(queued)
        self._trim_events()
        return True

    def on_event(self, kind: EventKind, obj: Any = None, before: Any = None) -> int:
        """Make ready the unschedulable pods that an event may help, and return how many there were.

        `obj` is the node or the placed pod, in its last state where it was deleted, and `before` is its earlier state
        where it was updated. An update without `before` is taken as one that may have changed everything.
        """
        if self._flying:
            self._flight.add(ClusterEvent(kind, obj, before))
        helped = [
            queued
            for plugins, group in self._unschedulable.items()
            if interested(plugins, kind)
            for queued in group.values()
            if helped_by(queued.pod, plugins, kind, obj, before)
        ]
        for queued in helped:
            self._ready(queued)
        return len(helped)

    def activate(self, uids: Iterable[str]) -> None:
        """Make waiting pods ready at once, without backoff; those with scheduling gates go on waiting."""
        for uid in uids:
            queued = self._pods.get(uid)
            if queued is not None and queued.queue in {"backoff", "unschedulable"}:
                self._enter(queued, "active")

    # ---- looking ahead -----------------------------------------------------------------------------------------------

    def next_ready_s(self) -> float | None:
        """Return the time at which a pod can be popped, which is now when one is ready.

        It is None when none will become ready by itself.
        """
        self._advance()
        if self._active.peek() is not None or (self._pop_from_backoff and self._backoff.peek() is not None):
            return self._clock()
        times = [
            top[0][0] + wait_s
            for heap, wait_s in (
                (self._backoff, self._window_s),
                (self._error_backoff, self._window_s),
                (self._flush, 0.0),
            )
            if (top := heap.peek()) is not None and top[0][0] < inf
        ]
        return min(times, default=None)

    def upcoming(self, count: int) -> list[Pod]:
        """Return up to `count` pods in the order in which they would be popped.

        Pods that are ready come first, then those that back off.
        """
        self._advance()
        found: list[Pod] = []
        for heap in (self._active, self._backoff, self._error_backoff):
            for uid in heap.in_order():
                if len(found) == count:
                    return found
                found.append(self._pods[uid].pod)
        return found

    def in_flight(self, uid: str) -> QueuedPod:
        """Return a pod under way. Raises KeyError when it is not."""
        return self._flying[uid]

    def fork(self, clock: Callable[[], float], delay_s: Callable[[Pod], float] | None = None) -> "SchedulingQueue":
        """Return an independent copy, to look ahead on, with another clock that shows the same time.

        `delay_s` is that of `sort_by`, where this queue is sorted.
        """
        twin = SchedulingQueue(
            clock, self._initial_backoff_s, self._max_backoff_s, self._flush_after_s,
            pop_from_backoff=self._pop_from_backoff,
        )  # fmt: skip
        twin._pods = {uid: replace(queued) for uid, queued in self._pods.items()}
        twin._flying = {uid: twin._pods[uid] for uid in self._flying}
        twin._unschedulable = {
            plugins: {uid: twin._pods[uid] for uid in group} for plugins, group in self._unschedulable.items()
        }
        for name in ("_active", "_backoff", "_error_backoff", "_flush"):
            setattr(twin, name, getattr(self, name).copy(twin._is_valid))
        twin._flight = EventLog(list(self._flight.events), self._flight.first)
        twin._counts, twin._tickets, twin._delay_s = dict(self._counts), self._tickets, delay_s
        return twin

    # ---- inside ------------------------------------------------------------------------------------------------------

    def _is_valid(self, uid: str, ticket: int) -> bool:
        queued = self._pods.get(uid)
        return queued is not None and queued.ticket == ticket and queued.queue != "in_flight"

    def _leave(self, queued: QueuedPod) -> None:
        """Take a pod out of where it is; its heap entry goes stale."""
        if queued.queue in self._counts:
            self._counts[queued.queue] -= 1
        else:
            self._flying.pop(queued.uid, None)
        if queued.queue == "unschedulable":
            group = self._unschedulable[queued.last_failure]
            del group[queued.uid]
            if not group:
                del self._unschedulable[queued.last_failure]
        self._tickets += 1
        queued.ticket = self._tickets

    def _enter(self, queued: QueuedPod, queue: QueueName) -> None:
        self._leave(queued)
        queued.queue = queue
        self._counts[queue] += 1
        ticket, uid = queued.ticket, queued.uid
        if queue == "active":
            since_s = queued.added_s if self._delay_s is None else queued.first_added_s + queued.delay_s
            self._active.push((-queued.pod.priority, since_s), ticket, uid)
        elif queue == "backoff":
            heap = self._error_backoff if queued.errors else self._backoff
            heap.push((self._backoff_end_s(queued), -queued.pod.priority, queued.added_s), ticket, uid)
        elif queue == "unschedulable":
            self._unschedulable.setdefault(queued.last_failure, {})[uid] = queued
            if self._flush_after_s < inf:  # else the heap would only ever grow
                self._flush.push((queued.added_s + self._flush_after_s,), ticket, uid)

    def _delay_of(self, pod: Pod) -> float:
        return 0.0 if self._delay_s is None else self._delay_s(pod)

    def _ready(self, queued: QueuedPod) -> None:
        over = self._is_over(self._backoff_end_s(queued), self._clock())
        self._enter(queued, "active" if over else "backoff")

    def _returns(self, queued: QueuedPod) -> bool:
        """Whether a popped pod still belongs in the queue; its age starts anew."""
        if self._pods.get(queued.uid) is not queued or queued.queue != "in_flight":
            return False
        queued.added_s = self._clock()
        return True

    def _backoff_end_s(self, queued: QueuedPod) -> float:
        tries = queued.errors or (queued.failures if self._delay_s is None else 0)
        if not tries or not self._initial_backoff_s:
            return -inf
        # The exponent is capped because a float overflows beyond 2^1023.
        end_s = queued.added_s + min(self._max_backoff_s, self._initial_backoff_s * 2.0 ** min(tries - 1, 60))
        return float(floor(end_s)) if self._window_s else end_s

    def _is_over(self, backoff_end_s: float, now_s: float) -> bool:
        """Whether a backoff is over: its whole window is, where there are windows."""
        return backoff_end_s + self._window_s <= now_s

    def _advance(self) -> None:
        """Move what has become ready by the passing of time."""
        now = self._clock()
        for heap in (self._backoff, self._error_backoff):
            while (top := heap.peek()) is not None and self._is_over(top[0][0], now):
                self._enter(self._pods[top[1]], "active")
        while (top := self._flush.peek()) is not None and top[0][0] <= now:
            self._ready(self._pods[top[1]])

    @staticmethod
    def _helps(event: ClusterEvent, queued: QueuedPod, plugins: frozenset[str]) -> bool:
        """Whether an event that came during a pod's try may have cured what the plugins rejected."""
        if event.kind == "own_update":
            return bool(event.now.uid == queued.uid) and helped_by_own_update(event.now, event.before, plugins)
        return helped_by(queued.pod, plugins, event.kind, event.now, event.before)

    def _trim_events(self) -> None:
        oldest = min((queued.popped_at_event for queued in self._flying.values()), default=self._flight.count)
        self._flight.drop_before(oldest)
