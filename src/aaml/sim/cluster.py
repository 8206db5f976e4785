"""SimCluster: the in-process cluster on a virtual clock, behind the same port as a real one."""

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from math import inf
from typing import Protocol

import numpy as np
import numpy.typing as npt

from aaml.cluster import audit
from aaml.cluster.filters import feasible as feasible_rows
from aaml.cluster.filters import rejecting_plugins
from aaml.cluster.filters.volume_binding import plan_volumes
from aaml.cluster.gpu import DEVICE_MILLI
from aaml.cluster.objects import NO_AFFINITY, NO_VOLUMES, Node, Pod
from aaml.cluster.state import ClusterState
from aaml.errors import UserError
from aaml.scheduling.pod_groups import GroupAttempt, count_placed
from aaml.scheduling.ports import BindResult
from aaml.scheduling.queue import QueueSettings, SchedulingQueue
from aaml.scheduling.queue_entries import QueuedGroup, QueuedPod
from aaml.scheduling.queue_sort import QueueSort
from aaml.sim.journal import Journal
from aaml.sim.timeline import AddNode, Cordon, DeletePod, Drain, PlacePod, RemoveNode, Timeline, TimelineEvent
from aaml.workload.model import Workload

Feasible = Callable[[ClusterState, Pod], npt.NDArray[np.bool_]]
Lifetimes = Callable[[Pod, float], float | None]
"""(pod, seconds it has run already) -> how long it runs in all; None: on and on."""
FurtherMetrics = Callable[["SimCluster"], Mapping[str, float]]
"""What a run is judged by besides the usual numbers, worked out from the cluster."""
_REJECTED_BY = frozenset({"NodeResourcesFit", "GpuDevices", "NodeUnschedulable", "TaintToleration"})
_DEFERRED_BY = frozenset({"SchedulingGates"})  # no event helps: this cluster activates the pod itself
_DEPARTURE, _TIMELINE = 0, 1  # order at the same time: pods leave, then nodes change, then pods arrive


class Supply(Protocol):
    """Who adds and removes nodes of a simulated cluster as it runs, such as `aaml.sim.supply.NodeSupply`."""

    @property
    def next_s(self) -> float:
        """When it wants its next turn; inf: only when something happens."""
        ...

    def attach(self, cluster: "SimCluster") -> None:
        """Look after this cluster's nodes from now on."""
        ...

    def rejected(self, pod: Pod) -> float:
        """Take note of a pod that fits nowhere now, and return for how many seconds no other pod is tried."""
        ...

    def deleted(self, uid: str) -> None:
        """Take note of a pod that is deleted, wherever it is."""
        ...

    def turn(self) -> bool:
        """Change nodes, once no pod is left to try at this moment; returns whether pods may fit elsewhere now."""
        ...

    def metrics(self) -> Mapping[str, float]:
        """Return what it adds to the metrics of the run."""
        ...

    def fork(self, cluster: "SimCluster") -> "Supply":
        """Return an independent copy that looks after a fork of the cluster."""
        ...


class Gate(Protocol):
    """Who lets jobs in before their pods are scheduled, such as `aaml.sim.kueue.KueueGate`."""

    @property
    def next_s(self) -> float:
        """When it wants its next turn; inf: only when something happens."""
        ...

    def takes(self, pod: Pod) -> bool:
        """Let a pod that has come wait with its job; False where its job was let in already."""
        ...

    def left(self, uid: str, now_s: float) -> None:
        """Take note of a pod that has ended or was deleted, wherever it was."""
        ...

    def turn(self, now_s: float) -> Sequence[Pod]:
        """Return the pods of jobs that are let in now, as they are to be scheduled."""
        ...

    def fork(self) -> "Gate":
        """Return an independent copy."""
        ...


class SimCluster:
    """A `Cluster` (see `aaml.scheduling.ports`) whose time only moves when every pod that could be tried has been.

    Pods arrive as the workload says, run for their lifetime from their bind on, and leave. A pod that fits nowhere
    waits in the scheduling queue until something changes. A pod group is tried as a whole
    (`aaml.scheduling.pod_groups`), and again after its backoffs for as long as anything changes. The simulation ends
    (`exhausted`) when nothing can happen any more, or at `until_s`. Binds succeed at once, those of a group when its
    try has ended well. The same workload and decisions give the same bits: nothing is drawn but one of the domains that
    suit a group equally, from the seed `ties`. `further_metrics` works out more numbers that a run is judged by. A
    `supply` provisions and terminates nodes; as that never ends by itself, it needs an `until_s` (else ValueError). A
    `gate` lets jobs in before their pods are scheduled; nodes stay as they are then.
    """

    def __init__(
        self,
        nodes: Iterable[Node],
        workload: Workload | Iterable[Pod] = (),
        *,
        timeline: Timeline = (),
        until_s: float = inf,
        feasible: Feasible | None = None,
        queue: QueueSettings = QueueSettings(),  # noqa: B008  (frozen)
        invariants: bool = False,
        averages: bool = True,
        supply: Supply | None = None,
        ties: int = 0,
        further_metrics: FurtherMetrics | None = None,
        gate: Gate | None = None,
    ) -> None:
        if supply is not None and until_s == inf:
            raise ValueError("a cluster whose nodes come and go needs until_s")
        if gate is not None and supply is not None:
            raise ValueError("jobs are let in by the nodes that a cluster begins with; these come and go")
        self._state = ClusterState(nodes)
        self.workload = workload if isinstance(workload, Workload) else Workload.of(workload)
        self.until_s = until_s
        self.journal = Journal()
        self._feasible = feasible or _filtered
        self._queue_settings = queue
        self._invariants, self._averages = invariants, averages
        self._now_s = min(0.0, self.workload[0].created_s) if self.workload.pods else 0.0
        self._queue = SchedulingQueue(
            self.now_s, queue.initial_backoff_s, queue.max_backoff_s, queue.flush_after_s, pop_from_backoff=True,
            placed=self._placed_of,
        )  # fmt: skip
        self._queue_sort: QueueSort | None = None
        self._next_arrival = 0
        self._heap: list[tuple[float, int, int, str | TimelineEvent]] = []
        self._sequence = 0
        self._departures: dict[str, int] = {}  # uid -> sequence number of its departure; other entries are stale
        self._flight: QueuedPod | None = None
        self._attempt: GroupAttempt | None = None
        self._declined = False  # whether the policy has left a pod of the group under way pending
        self._ties: int | np.random.Generator = ties
        self._quiet: set[str] = set()  # groups in the queue that failed since anything has changed
        self._hopeless: set[str] = set()  # those of them that would fail again whatever the policy chose
        self._busy_until_s = -inf
        self._deferred: list[str] = []
        self._results: list[BindResult] = []
        self._ended = False
        self._lifetime_s: Lifetimes = _own_lifetime
        for event in timeline:
            self._push(event.at_s, _TIMELINE, event)
        self._further_metrics = further_metrics
        self._supply, self._gate = supply, gate
        if supply is not None:
            supply.attach(self)

    # ---- the Cluster port --------------------------------------------------------------------------------------------

    @property
    def state(self) -> ClusterState:
        """The state; mutated only by this object."""
        return self._state

    def now_s(self) -> float:
        """Virtual time."""
        return self._now_s

    def next_pod(self, timeout_s: float = 0.0) -> Pod | None:  # noqa: ARG002  (virtual time waits for nobody)
        """Return the next pod to place, moving the clock as far as needed; None only when `exhausted`.

        The same pod is returned until its fate is told by `bind`, `reject` or `defer`.
        """
        if self._flight is not None:
            return self._flight.pod
        if (pod := self._next_of_group()) is not None:
            return pod
        while True:
            if self._now_s < self._busy_until_s < min(self._next_event_s(), self.until_s):
                self._move_to(self._busy_until_s)
            queued = self._queue.pop() if len(self._queue) and self._now_s >= self._busy_until_s else None
            if queued is None:
                if not self.advance():
                    return None
            elif (pod := self._hand_out(queued)) is not None:
                return pod

    def sort_queue(self, sort: QueueSort | None, backoff_s: tuple[float, float] | None = None) -> None:
        """Hand out waiting pods in this order, with these backoffs, from now on; None: kube-scheduler's, the task's."""
        usual = self._queue_settings
        self._queue.back_off(*(backoff_s or (usual.initial_backoff_s, usual.max_backoff_s)))
        self._queue_sort = sort
        self._queue.sort_by(None if sort is None else self._delay_s)

    def upcoming(self, count: int) -> Sequence[Pod]:
        """Return up to `count` pods that wait behind the current one."""
        rest = list(self._attempt.todo[1:]) if self._attempt is not None else []
        return (rest + self._queue.upcoming(count - len(rest)))[:count] if len(rest) < count else rest[:count]

    def pending_count(self) -> int:
        """Return how many pods wait besides the one handed out."""
        return len(self.journal.waiting_since_s) - (self._flight is not None or self._attempt is not None)

    def feasible(self, pod: Pod) -> npt.NDArray[np.bool_]:
        """Return [N], which nodes pass the filters."""
        mask = self._feasible(self._state, pod)
        return mask if self._attempt is None else self._attempt.narrow(mask)

    def bind(self, pod: Pod, node_index: int, gpus: tuple[int, ...] | None = None) -> str:
        """Place the pod that was handed out and return the node's name. Raises RuntimeError for any other pod."""
        attempt = self._current(pod)
        if attempt is not None:
            name = attempt.place(node_index, gpus, self._now_s)
            self._go_on()
        else:
            name, self._flight = self._state.names[node_index], None
            if pod.volumes.unbound:
                plan_volumes(self._state, pod, node_index).reserve(self._state, name)
            self._state.assume(pod, name, gpus, self._now_s)
            self._queue.done(pod.uid)
            self._bound(pod)
        if self._invariants:
            audit.check(self._state)
        return name

    def reject(self, pod: Pod) -> None:
        """The pod fits nowhere: it waits for a change. One of a group goes without a node in this trial."""
        self.journal.counts["rejected"] += 1
        if (attempt := self._current(pod)) is not None:
            attempt.skip("")
            self._go_on()
            return
        if self._supply is not None and (busy_s := self._supply.rejected(pod)):
            self._busy_until_s = self._now_s + busy_s
        plugins = _REJECTED_BY if _is_plain(pod) else rejecting_plugins(self._state, pod) | _REJECTED_BY
        self._queue.requeue(self._give_up(pod), plugins)

    def defer(self, pod: Pod) -> None:
        """The policy left the pod pending: it is tried again after the next event. One of a group is as if rejected."""
        self.journal.counts["declined"] += 1
        if (attempt := self._current(pod)) is not None:
            self._declined = True
            attempt.skip("")
            self._go_on()
            return
        queued = self._give_up(pod)
        self._queue.requeue(queued, _DEFERRED_BY)
        self._deferred.append(queued.uid)

    def results(self) -> Sequence[BindResult]:
        """Return the binds since the last call."""
        ended, self._results = self._results, []
        return ended

    @property
    def untouched(self) -> bool:
        """Whether nothing has happened yet, there is no timeline and no gate, and the filters are the usual ones."""
        under_way = self._flight or self._attempt
        begun = self.journal.counts or self.journal.waiting_since_s or self._state.placements or under_way
        return not (begun or self._heap or self._further_metrics or self._gate) and self._feasible is _filtered

    @property
    def supply(self) -> Supply | None:
        """Who provisions and terminates nodes; None where they stay."""
        return self._supply

    @property
    def elastic(self) -> bool:
        """Whether nodes are provisioned and terminated as the simulation runs."""
        return self._supply is not None

    @property
    def exhausted(self) -> bool:
        """Whether nothing can happen any more, or `until_s` has come."""
        return self._ended

    def drain(self) -> None:
        """Nothing to wait for: binds end at once."""

    def close(self) -> None:
        """Nothing to let go of."""

    # ---- the simulation ----------------------------------------------------------------------------------------------

    def metrics(self) -> Mapping[str, float]:
        """Return what the run is judged by so far (`Journal.metrics`)."""
        own = self.journal.metrics(self._state, self._now_s)
        further = {} if self._further_metrics is None else self._further_metrics(self)
        return {**own, **further, **({} if self._supply is None else self._supply.metrics())}

    def advance(self) -> bool:
        """Move the clock to the next event and let all events of that moment happen; False when there is none."""
        if self._supply is not None and self._supply.turn():
            self._happened()
            return True
        arrivals, heap = self.workload.pods, self._heap
        ready_s = self._queue.next_ready_s() if len(self._queue) else None
        if ready_s is None or ready_s <= self._now_s:  # what is ready already is for `next_pod`, not for the clock
            ready_s = inf
        event_s = self._next_event_s()
        if event_s == inf and self._quiet and self._quiet.issuperset(self._queue.ready_or_backing_off()):
            ready_s = inf  # what failed would fail again
        at_s = min(ready_s, event_s)
        if at_s > self.until_s or at_s == inf:
            if self.until_s < inf:
                self._move_to(self.until_s)
            self._ended = True
            return False
        self._move_to(at_s)
        while heap and heap[0][0] <= at_s:
            _, _, sequence, event = heapq.heappop(heap)
            if not isinstance(event, str):
                self._apply(event)
            elif self._departures.get(event) == sequence:
                self.journal.counts["departed"] += 1
                self._leave(event)
                self._tell_gate(event)
        while self._next_arrival < len(arrivals) and arrivals[self._next_arrival].created_s <= at_s:
            self.journal.counts["arrived"] += 1
            self._wait(arrivals[self._next_arrival])
            self._next_arrival += 1
        self._happened()
        return True

    def announce(self, node: Node) -> None:
        """Tell of a node that takes no pods yet: those that it would have room for are tried, and may fail again."""
        self._changed()
        self._queue.on_event("node_add", node)

    def happen(self, event: TimelineEvent) -> None:
        """Let an event of the timeline happen now, whatever its own time. Raises ValueError for an unknown node."""
        self._apply(event)
        self._happened()

    def submit(self, pods: Iterable[Pod]) -> None:
        """Let pods arrive now, besides those of the workload; a simulation that had come to its end goes on."""
        for pod in pods:
            self.journal.counts["arrived"] += 1
            self._wait(pod)
        self._happened()

    def delete(self, uid: str) -> None:
        """Delete a pod, whether it waits or runs; one that is handed out is decided first."""
        self._delete(uid)
        self._happened()

    def evict(self, uid: str) -> None:
        """Take a running pod off its node: it waits again, its lifetime starts anew. KeyError when it does not run."""
        self._wait(self.displace(uid))

    def displace(self, uid: str) -> Pod:
        """Take a running pod off its node, to `wait_again` or for good. KeyError when it does not run."""
        pod = self._state.placements[uid].pod
        self.journal.counts["evicted"] += 1
        self._leave(uid)
        return pod

    def wait_again(self, pod: Pod) -> None:
        """Let a pod wait that was displaced, as it was or as its owner makes it anew."""
        self._wait(pod)

    def migrate(self, uid: str, node_index: int, gpus: tuple[int, ...] | None = None) -> bool:
        """Move a running pod to another node, as a descheduler or defragmenter does; its lifetime goes on.

        Returns False, leaving all as it was, when the filters refuse that node. KeyError when the pod does not run.
        """
        placement = self._state.placements[uid]
        self._state.remove_pod(uid)
        if not self._feasible(self._state, placement.pod)[node_index]:
            self._state.assume(placement.pod, placement.node_name, placement.gpus, placement.since_s)
            return False
        self._state.assume(placement.pod, self._state.names[node_index], gpus, placement.since_s)
        self.journal.counts["migrated"] += 1
        self._changed()
        self._queue.on_event("pod_delete", placement.pod)
        return True

    def fork(self) -> "SimCluster":
        """Return an independent copy that goes on from this very moment, for look-ahead search; pods are shared.

        A fork that is kept aside is a snapshot: fork it again to return to it.
        """
        twin = SimCluster(
            (), self.workload, until_s=self.until_s, feasible=self._feasible, queue=self._queue_settings,
            invariants=self._invariants, averages=self._averages, further_metrics=self._further_metrics,
        )  # fmt: skip
        twin._state, twin._now_s = self._state.fork(), self._now_s
        twin._queue_sort = self._queue_sort
        twin._queue = self._queue.fork(twin.now_s, None if self._queue_sort is None else twin._delay_s, twin._placed_of)
        twin.journal = self.journal.copy()
        twin._ties, twin._quiet, twin._declined = deepcopy(self._ties), set(self._quiet), self._declined
        twin._hopeless = set(self._hopeless)
        twin._heap, twin._departures = list(self._heap), dict(self._departures)
        twin._next_arrival, twin._sequence, twin._ended = self._next_arrival, self._sequence, self._ended
        twin._busy_until_s = self._busy_until_s
        twin._deferred, twin._lifetime_s = list(self._deferred), self._lifetime_s
        if self._flight is not None:
            twin._flight = twin._queue.in_flight(self._flight.uid)
        if self._attempt is not None and not isinstance(twin._ties, int):
            queued = twin._queue.in_flight(self._attempt.queued.uid)
            if isinstance(queued, QueuedGroup):
                twin._attempt = self._attempt.copy(twin._state, queued, twin._ties)
        if self._supply is not None:
            twin._supply = self._supply.fork(twin)
        if self._gate is not None:
            twin._gate = self._gate.fork()
        return twin

    def imagine(self, arrivals: Workload, lifetime_s: Lifetimes) -> None:
        """Put another future in place of what is to come: for a fork whose reader must not know the true one.

        `arrivals` (times from now on) come instead of the workload's, the last of them ends the simulation; nodes do
        not change any more. Pods that run or wait get a new lifetime, asked for with their age once they are bound: the
        same pod must get the same answer. The journal begins anew, so that metrics are those of the future alone.
        """
        now_s = self._now_s
        ages_s = {
            uid: now_s - at_s + (self._lifetime_s(self._state.placements[uid].pod, 0.0) or 0.0)
            for at_s, _, sequence, uid in self._heap
            if isinstance(uid, str) and self._departures.get(uid) == sequence
        }
        self._heap.clear()
        self._departures.clear()
        for uid, age_s in ages_s.items():
            lifetime = lifetime_s(self._state.placements[uid].pod, age_s)
            if lifetime is not None:
                self._departures[uid] = self._push(now_s - age_s + lifetime, _DEPARTURE, uid)
        self._lifetime_s = lifetime_s
        self.workload, self._next_arrival, self.until_s = arrivals, 0, max(now_s, arrivals.duration_s)
        waiting = dict.fromkeys(self.journal.waiting_since_s, now_s)
        self.journal = Journal(waiting_since_s=waiting, asked_milli=dict(self.journal.asked_milli))

    # ---- inside ------------------------------------------------------------------------------------------------------

    def _push(self, at_s: float, order: int, event: str | TimelineEvent) -> int:
        self._sequence += 1
        heapq.heappush(self._heap, (at_s, order, self._sequence, event))
        return self._sequence

    def _next_event_s(self) -> float:
        """Return when something comes next from outside the queue."""
        arrivals, heap = self.workload.pods, self._heap
        arrival_s = arrivals[self._next_arrival].created_s if self._next_arrival < len(arrivals) else inf
        event_s = heap[0][0] if heap else inf
        others_s = (other.next_s for other in (self._supply, self._gate) if other is not None)
        return min(arrival_s, event_s, *others_s)

    def _move_to(self, at_s: float) -> None:
        if at_s > self._now_s:
            if self._averages and at_s > 0.0:  # what came before time 0 is not judged
                self.journal.hold(self._state, at_s - max(self._now_s, 0.0))
            self._now_s = at_s

    def _happened(self) -> None:
        """Something has changed: deferred pods are tried again, and a simulation at its end goes on."""
        self._ended = False
        for pod in () if self._gate is None else self._gate.turn(self._now_s):
            self._enqueue(pod)
        if self._deferred:
            self._queue.activate(self._deferred)
            self._deferred.clear()
        if self._invariants:
            audit.check(self._state)

    def _current(self, pod: Pod) -> GroupAttempt | None:
        """Return the try of the pod's group, None for a pod of its own. Raises RuntimeError for any other pod."""
        handed_out = self._attempt.pod if self._attempt is not None else self._flight.pod if self._flight else None
        if handed_out is None or handed_out.uid != pod.uid:
            raise RuntimeError(f"{pod.key} is not the pod that was handed out")
        return self._attempt

    def _give_up(self, pod: Pod) -> QueuedPod:
        queued, self._flight = self._flight, None
        if queued is None:
            raise AssertionError(f"{pod.key} is a pod of its own")
        return queued

    def _hand_out(self, queued: QueuedPod) -> Pod | None:
        """Return the first pod to decide on of an entry of the queue.

        None where a group is not even tried, or would fail as it did before.
        """
        if not isinstance(queued, QueuedGroup):
            self._flight = queued
            return queued.pod
        if queued.uid in self._hopeless:
            self.journal.counts["rejected"] += 1
            self._queue.attempted(queued, "unschedulable")
            return None
        if isinstance(self._ties, int):
            self._ties = np.random.default_rng(self._ties)
        self._attempt = GroupAttempt(self._state, queued, self._ties)
        return self._next_of_group()

    def _next_of_group(self) -> Pod | None:
        """Return the next pod of the group that is being tried, None where there is none, or no more of it."""
        if self._attempt is not None:
            self._attempt.turn(self._now_s)
            self._go_on()
        return None if self._attempt is None else self._attempt.pod

    def _go_on(self) -> None:
        """Take in what has come of the try of a group; where it has ended, its pods are bound or go back."""
        attempt = self._attempt
        if attempt is None:
            return
        self._results += [BindResult(pod, name, status, attempt.message) for pod, name, status in attempt.ended()]
        if not attempt.outcome:
            return
        queued, self._attempt = attempt.queued, None
        self._queue.attempted(queued, attempt.outcome, [each.pod.uid for each in attempt.placed])
        for each in attempt.placed:
            self._queue.done(each.pod.uid)
            self._bound(each.pod)
        if attempt.outcome != "scheduled":
            self._quiet.add(queued.uid)
            if self._declined:
                self._deferred.append(queued.uid)
            elif attempt.outcome == "unschedulable" and _are_alike([each.pod for each in queued.waiting()]):
                self._hopeless.add(queued.uid)
        self._declined = False

    def _changed(self) -> None:
        """Something has changed that may help a group that failed."""
        self._quiet.clear()
        self._hopeless.clear()

    def _placed_of(self, key: str) -> int:
        return count_placed(self._state, key)

    def _delay_s(self, pod: Pod) -> float:
        return 0.0 if self._queue_sort is None else self._queue_sort.delay_s(self._state, pod)

    def _wait(self, pod: Pod) -> None:
        self.journal.waits(pod, self._now_s)
        if self._gate is None or not self._gate.takes(pod):
            self._enqueue(pod)

    def _enqueue(self, pod: Pod) -> None:
        self._changed()
        self._queue.add(pod)

    def _bound(self, pod: Pod) -> None:
        self.journal.bound(pod.uid, self._now_s)
        self._changed()
        lifetime_s = self._lifetime_s(pod, 0.0)
        if lifetime_s is not None:
            self._departures[pod.uid] = self._push(self._now_s + lifetime_s, _DEPARTURE, pod.uid)
        self._results.append(BindResult(pod, self._state.placements[pod.uid].node_name, "bound"))

    def _leave(self, uid: str) -> None:
        """Free what a running pod holds."""
        self._departures.pop(uid, None)
        placement = self._state.remove_pod(uid)
        if placement is not None:
            self._changed()
            self._queue.on_event("pod_delete", placement.pod)

    def _tell_gate(self, uid: str) -> None:
        if self._gate is not None:
            self._gate.left(uid, self._now_s)

    def _apply(self, event: TimelineEvent) -> None:
        if self._gate is not None and not isinstance(event, DeletePod):
            raise UserError(f"timeline: {type(event).__name__} is not accepted behind a queue such as Kueue's")
        self._changed()
        match event:
            case AddNode(node=node):
                known = node.name in self._state.index
                before = self._state.nodes[self._state.index[node.name]] if known else None
                self._state.upsert_node(node)
                self._queue.on_event("node_update" if known else "node_add", node, before)
            case Cordon(name=name, on=on):
                self._cordon(name, on=on)
            case Drain(name=name):
                self._cordon(name, on=True)
                for uid in list(self._state.node_pods[self._node_index(name)]):
                    self.evict(uid)
            case RemoveNode(name=name):
                for uid in list(self._state.node_pods[self._node_index(name)]):
                    self.evict(uid)
                node = self._state.nodes[self._node_index(name)]
                self._state.remove_node(name)
                self._queue.on_event("node_delete", node)
            case DeletePod(uid=uid):
                self._delete(uid)
            case PlacePod():
                self._place(event)

    def _place(self, event: PlacePod) -> None:
        pod = event.pod
        if event.node_name not in self._state.index:
            return
        self._state.assume(pod, event.node_name, event.gpus, event.since_s)
        if pod.lifetime_s is not None:
            self._departures[pod.uid] = self._push(self._now_s + pod.lifetime_s, _DEPARTURE, pod.uid)
        self._queue.on_event("pod_add", pod)

    def _node_index(self, name: str) -> int:
        if name not in self._state.index:
            raise ValueError(f"node {name} is not in the cluster at {self._now_s} s")
        return self._state.index[name]

    def _cordon(self, name: str, *, on: bool) -> None:
        before = self._state.nodes[self._node_index(name)]
        node = replace(before, unschedulable=on)
        self._state.upsert_node(node)
        self._queue.on_event("node_update", node, before)

    def _delete(self, uid: str) -> None:
        self.journal.counts["deleted"] += 1
        if self._supply is not None:
            self._supply.deleted(uid)
        self._tell_gate(uid)
        if uid in self._state.placements:
            self._leave(uid)
        elif self.journal.gone(uid):
            if self._attempt is not None and any(pod.uid == uid for pod in self._attempt.todo):
                self._attempt.abandon()
                self._go_on()
            self._queue.remove(uid)


def _own_lifetime(pod: Pod, age_s: float) -> float | None:  # noqa: ARG001
    return pod.runs_s


def _filtered(state: ClusterState, pod: Pod) -> npt.NDArray[np.bool_]:
    return feasible_rows(state, pod).mask


def _are_alike(pods: Sequence[Pod]) -> bool:
    """Whether no choice of nodes for some of the pods changes how many of the others fit."""
    first = pods[0]
    return all(
        _is_plain(pod)
        and pod.requests == first.requests
        and pod.gpu == first.gpu
        and not 0 < pod.gpu.milli < DEVICE_MILLI
        for pod in pods
    )


def _is_plain(pod: Pod) -> bool:
    """Whether only `_REJECTED_BY` can have rejected a pod, so that nobody need find out which."""
    return (
        pod.affinity is NO_AFFINITY
        and pod.volumes is NO_VOLUMES
        and not (pod.spread or pod.host_ports or pod.node_selector or pod.node_name or pod.gates)
    )
