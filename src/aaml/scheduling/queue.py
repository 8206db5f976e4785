"""The queue of pods that wait for a node, as kube-scheduler keeps it.

active         ready to be tried: higher priority first, then who has waited longest since it was last queued; or in
               the order of the policy (`aaml.scheduling.queue_sort`)
backoff        tried without success, but something has changed since: ready when its backoff is over
unschedulable  tried without success, nothing that could help has happened since
gated          has scheduling gates: not tried until they are gone. A pod group is gated while one of its pods is, and
               while too few of them are known

A pod group stands in the queue as one, as with kube-scheduler 1.37. After a try that failed it backs off, whatever
happens meanwhile, and goes behind all that has come since.

https://kubernetes.io/docs/concepts/scheduling-eviction/scheduling-framework/ describes the parts, the default times
are those of kube-scheduler's `podInitialBackoffSeconds` and `podMaxBackoffSeconds`.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from math import floor, inf
from typing import Any, Literal

from aaml.cluster.objects import Pod, PodGroup
from aaml.scheduling.queue_entries import NO_PLUGINS, Member, QueuedGroup, QueuedPod, QueueName
from aaml.scheduling.queue_hints import EventKind, helped_by, helped_by_own_update, interested
from aaml.scheduling.queue_parts import ClusterEvent, EventLog, TicketHeap

BACKOFF_S = (1, 10)
"""kube-scheduler's podInitialBackoffSeconds and podMaxBackoffSeconds where nothing else is said."""
_OF_A_GROUP = frozenset({"PodGroup"})  # no plugin's name, so that every event may help


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """Times of a simulated scheduling queue. Backoff 0 retries at once when something has changed."""

    initial_backoff_s: float = 1.0
    max_backoff_s: float = 10.0
    flush_after_s: float = inf  # every event is known here, so that none can have been missed


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
        placed: Callable[[str], int] = lambda _key: 0,
    ) -> None:
        self._clock, self._placed = clock, placed
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
        self._tickets = self._sequence = 0
        self._member_of: dict[str, str] = {}  # uid of a pod -> uid of its group
        self._binding: set[str] = set()  # uids of pods of groups that have a node and are being bound
        self._delay_s: Callable[[Pod], float] | None = None

    def __len__(self) -> int:
        """Return the number of pods that wait, without those under way."""
        return sum(self._counts.values())

    def __contains__(self, uid: object) -> bool:
        """Whether a pod waits or is under way."""
        return uid in self._pods or uid in self._member_of or uid in self._binding

    def counts(self) -> dict[str, int]:
        """Return how many pods are active, in backoff, unschedulable and gated (kube-scheduler's `pending_pods`)."""
        return dict(self._counts)

    def pods(self) -> Iterator[QueuedPod | Member]:
        """Yield every pod that waits or is under way, in the order in which they, or the first of their group, came."""
        for queued in self._pods.values():
            yield from queued.waiting()

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
        if pod.uid in self:
            self.update(pod)
            return
        if pod.group is not None:
            self._join(pod)
            return
        now = self._clock()
        queued = self._pods[pod.uid] = QueuedPod(pod, first_added_s=now, added_s=now, delay_s=self._delay_of(pod))
        self._enter(queued, "gated" if pod.gates else "active")

    def update(self, pod: Pod) -> None:
        """Take the new version of a waiting pod, which becomes ready when the change may help it.

        A pod that is not known is added.
        """
        if pod.uid in self._member_of:
            self._update_member(pod)
            return
        queued = self._pods.get(pod.uid)
        if queued is None:
            if pod.uid not in self._binding:
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
        self._binding.discard(uid)
        if uid in self._member_of:
            self._remove_member(uid)
            return
        queued = self._pods.get(uid)
        if queued is not None:
            self._leave(queued)
            del self._pods[uid]
            self._trim_events()

    # ---- the scheduler's cycle ---------------------------------------------------------------------------------------

    def pop(self) -> QueuedPod | None:
        """Take the next pod to try, or None when none is ready.

        What becomes of it is told by `done`, `requeue` or `retry`, and what becomes of a group by `attempted`.
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
        if isinstance(queued, QueuedGroup):
            for member in queued.members:
                member.attempts += 1
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

    def attempted(
        self,
        queued: QueuedGroup,
        outcome: Literal["scheduled", "unschedulable", "error"],
        placed: Collection[str] = (),
    ) -> None:
        """Put back what is left of a group after a try.

        The pods whose uids are `placed` are being bound: `done` or `put_back` says what became of them. Where the try
        was no success, all go back and back off together.
        """
        if self._pods.get(queued.uid) is not queued or queued.queue != "in_flight":
            return
        left = [member for member in queued.waiting() if isinstance(member, Member) and member.uid not in placed]
        tried = [member for member in queued.members if member.uid not in placed]
        for uid in placed:
            if self._member_of.pop(uid, ""):
                self._binding.add(uid)
        for member in left:
            member.sequence = self._next()
        queued.members, queued.coming = left, []
        if not left:
            self._leave(queued)
            del self._pods[queued.uid]
            self._trim_events()
            return
        queued.pod = left[0].pod
        if outcome != "scheduled" or not tried:
            queued.added_s = self._clock()
        queued.size_failed = len(left)
        if outcome == "scheduled":
            queued.failures = queued.errors = 0
            self._settle(queued, "active")
        else:
            queued.failures += outcome == "unschedulable"
            queued.errors = queued.errors + 1 if outcome == "error" else 0
            if self._initial_backoff_s:
                self._settle(queued, "backoff")
            else:
                queued.last_failure = _OF_A_GROUP
                self._settle(queued, "unschedulable")
        self._trim_events()

    def put_back(self, pod: Pod) -> None:
        """Let a pod of a group wait again whose bind has failed."""
        if pod.uid in self._binding:
            self._binding.discard(pod.uid)
            self._join(pod)

    def on_event(self, kind: EventKind, obj: Any = None, before: Any = None) -> int:
        """Make ready the unschedulable pods that an event may help, and return how many there were.

        `obj` is the node or the placed pod, in its last state where it was deleted, and `before` is its earlier state
        where it was updated. An update without `before` is taken as one that may have changed everything.
        """
        if self._flying:
            self._flight.add(ClusterEvent(kind, obj, before))
        if kind == "pod_add" and obj is not None and obj.group is not None:
            self._look_again(QueuedGroup.uid_of(obj))
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
            queued = self._pods.get(self._member_of.get(uid, uid))
            if queued is not None and queued.queue in {"backoff", "unschedulable"}:
                self._settle(queued, "active")

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
                if len(found) >= count:
                    return found[:count]
                found.extend(each.pod for each in self._pods[uid].waiting())
        return found[:count]

    def waiting(self) -> list[Pod]:
        """Return all pods that wait, whether ready or not, in the order in which they came into the queue."""
        entries = sorted(self._pods.values(), key=lambda queued: (-queued.priority, queued.added_s))
        return [each.pod for queued in entries for each in queued.waiting()]

    def in_flight(self, uid: str) -> QueuedPod:
        """Return a pod under way. Raises KeyError when it is not."""
        return self._flying[uid]

    def ready_or_backing_off(self) -> Iterator[str]:
        """Yield the uids of all that will be tried without that anything happens."""
        return (uid for uid, queued in self._pods.items() if queued.queue in {"active", "backoff"})

    def fork(
        self,
        clock: Callable[[], float],
        delay_s: Callable[[Pod], float] | None = None,
        placed: Callable[[str], int] = lambda _key: 0,
    ) -> "SchedulingQueue":
        """Return an independent copy, to look ahead on, with another clock that shows the same time.

        `delay_s` is that of `sort_by`, where this queue is sorted.
        """
        twin = SchedulingQueue(
            clock, self._initial_backoff_s, self._max_backoff_s, self._flush_after_s,
            pop_from_backoff=self._pop_from_backoff, placed=placed,
        )  # fmt: skip
        twin._pods = {uid: queued.copy() for uid, queued in self._pods.items()}
        twin._member_of, twin._binding = dict(self._member_of), set(self._binding)
        twin._sequence = self._sequence
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
            self._counts[queued.queue] -= queued.size
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
        self._counts[queue] += queued.size
        ticket, uid = queued.ticket, queued.uid
        if queue == "active":
            since_s = queued.added_s if self._delay_s is None else queued.first_added_s + queued.delay_s
            self._active.push((-queued.priority, since_s), ticket, uid)
        elif queue == "backoff":
            heap = self._error_backoff if queued.errors or isinstance(queued, QueuedGroup) else self._backoff
            heap.push((self._backoff_end_s(queued), -queued.priority, queued.added_s), ticket, uid)
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
        sorted_by_policy = self._delay_s is not None and not isinstance(queued, QueuedGroup)
        tries = queued.errors or (0 if sorted_by_policy else queued.failures)
        if not tries or not self._initial_backoff_s:
            return -inf
        # The exponent is capped because a float overflows beyond 2^1023.
        most_s = self._max_backoff_s * queued.longer
        end_s = queued.added_s + min(most_s, self._initial_backoff_s * 2.0 ** min(tries - 1, 60))
        return float(floor(end_s)) if self._window_s else end_s

    def _is_over(self, backoff_end_s: float, now_s: float) -> bool:
        """Whether a backoff is over: its whole window is, where there are windows."""
        return backoff_end_s + self._window_s <= now_s

    # ---- groups ------------------------------------------------------------------------------------------------------

    def _next(self) -> int:
        self._sequence += 1
        return self._sequence

    def _join(self, pod: Pod) -> None:
        """Let a pod wait in its group."""
        if pod.group is None:
            raise AssertionError("only a pod of a group joins one")
        uid, member, now = QueuedGroup.uid_of(pod), Member(pod, self._next()), self._clock()
        self._member_of[pod.uid] = uid
        queued = self._pods.get(uid)
        if queued is None:
            group = self._pods[uid] = QueuedGroup(pod, now, now, group=pod.group, delay_s=self._delay_of(pod))
            group.members.append(member)
            self._settle(group, "active")
        elif isinstance(queued, QueuedGroup):
            if queued.queue == "in_flight":
                queued.coming.append(member)
                queued.group = pod.group
            else:
                self._changed(queued, lambda: queued.members.append(member), pod.group)

    def _update_member(self, pod: Pod) -> None:
        queued = self._pods[self._member_of[pod.uid]]
        if not isinstance(queued, QueuedGroup) or pod.group is None:
            return
        member = next(each for each in (*queued.members, *queued.coming) if each.uid == pod.uid)
        before, member.pod = member.pod, pod
        if queued.pod.uid == pod.uid:
            queued.pod = pod
        if queued.queue == "in_flight":
            queued.group = pod.group
        elif before.gates != pod.gates or queued.group != pod.group:
            self._changed(queued, lambda: None, pod.group)

    def _remove_member(self, uid: str) -> None:
        queued = self._pods[self._member_of.pop(uid)]
        if not isinstance(queued, QueuedGroup):
            return

        def take_out() -> None:
            queued.members = [each for each in queued.members if each.uid != uid]
            queued.coming = [each for each in queued.coming if each.uid != uid]

        if queued.queue == "in_flight":
            take_out()
        elif queued.size > 1:
            self._changed(queued, take_out, queued.group)
            queued.pod = queued.members[0].pod
        else:
            self._leave(queued)
            del self._pods[queued.uid]

    def _changed(self, queued: QueuedGroup, change: Callable[[], None], group: PodGroup) -> None:
        """Change a group that waits. It stays where it is, but for gates that are open or shut now."""
        queue = queued.queue
        self._leave(queued)
        queued.queue = "new"
        change()
        queued.group = group
        if queue in {"gated", "unschedulable"}:
            over = self._is_over(self._backoff_end_s(queued), self._clock())
            queue = "active" if over else "backoff"
        self._settle(queued, queue)

    def _look_again(self, uid: str) -> None:
        """See whether enough pods of a group are known now."""
        queued = self._pods.get(uid)
        if isinstance(queued, QueuedGroup) and queued.queue == "gated":
            self._changed(queued, lambda: None, queued.group)

    def _settle(self, queued: QueuedPod, queue: QueueName) -> None:
        """Put an entry where it belongs: a group among the gated ones while it must not be tried."""
        self._enter(queued, "gated" if isinstance(queued, QueuedGroup) and self._is_gated(queued) else queue)

    def _is_gated(self, queued: QueuedGroup) -> bool:
        group = queued.group
        if not group.seen or any(member.pod.gates for member in queued.members):
            return True
        return queued.size + self._placed(queued.pod.group_key) < group.least

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
