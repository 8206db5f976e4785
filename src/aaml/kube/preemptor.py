"""Preemption on a live cluster: planned in the scheduling thread, carried out by the evictor's threads.

Disruption budgets are watched once a pod could preempt another. An account that may not read them, or not delete pods,
schedules on without preemption.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from aaml.cluster.filters import Feasibility
from aaml.cluster.objects import DisruptionBudget, Pod
from aaml.cluster.state import ClusterState
from aaml.kube.evictor import Evicted, Evictor
from aaml.kube.reflector import Changes, Source, Trouble
from aaml.kube.sources import BUDGETS
from aaml.kube.transport import ApiError
from aaml.scheduling.group_preemption import ONGOING, Imagined
from aaml.scheduling.pod_groups import GroupAttempt
from aaml.scheduling.preemption import NEVER, WAITING, Preemption, attempt, nominee
from aaml.scheduling.queue import SchedulingQueue
from aaml.scheduling.queue_entries import QueuedGroup
from aaml.scheduling.victims import priority_of

log = logging.getLogger(__name__)

_FORBIDDEN = frozenset({401, 403})
_MOST_HELD = 10_000
_EVERYWHERE = "cluster"  # kube-scheduler's word where a group preempts


class Preemptor:
    """Plans preemptions for pods that fit nowhere; belongs to the scheduling thread."""

    def __init__(
        self, state: ClusterState, waiting: SchedulingQueue, evictor: Evictor, watch: Callable[[Source[Any]], None]
    ) -> None:
        self._state, self._queue, self._evictor, self._watch = state, waiting, evictor, watch
        self._budgets: dict[str, DisruptionBudget] = {}
        self._watched = self._known = False
        self._forbidden = False
        self._held: set[str] = set()  # uids of pods that wait for the budgets
        self._under_way: dict[str, Preemption] = {}  # by the uid of the pod, or of the group, that gets the room
        self._groups: dict[str, tuple[str, list[Pod]]] = {}  # by the uid of the pod that stands for a group

    @property
    def evictions(self) -> int:
        """How many preemptions are on their way to the API server."""
        return len(self._under_way)

    def make_room(self, pod: Pod, verdict: Feasibility) -> str:
        """Try to preempt for a pod that was just rejected; returns what FailedScheduling says of it, "" for nothing.

        The pod is nominated to the node of the victims; it is queued again when they are gone.
        """
        if self._forbidden:
            self._state.withdraw(pod.uid)
            return ""
        if pod.uid in self._under_way:
            return ""
        pod = nominee(self._state, pod)
        if pod.preemption_policy != "Never" and not self._known and self._outranks(pod):
            self._hold(pod.uid)
            return ""
        result = attempt(self._state, pod, tuple(self._budgets.values()), verdict)
        if result.preemption is not None:
            self._begin(pod, result.preemption)
        elif pod.nominated_node and result.message not in {NEVER, WAITING}:
            self._state.withdraw(pod.uid)  # nothing can be done for it there: others may have the room
            self._queue.on_event("pod_delete", pod)
        return result.message

    def imagine(self, queued: QueuedGroup, pods: Sequence[Pod]) -> tuple[str, Imagined | None]:
        """Return the cluster without those whom a group may preempt, to try it there; else why nobody is preempted."""
        if self._forbidden or queued.uid in self._under_way:
            return "", None
        pods = [nominee(self._state, pod) for pod in pods]
        imagined = Imagined(self._state, queued.group, pods)
        if imagined.refusal:
            if imagined.refusal not in {NEVER, ONGOING}:
                self._withdraw(pods)
            return imagined.refusal, None
        if not self._known:
            self._hold(queued.uid)
            return "", None
        return "", imagined

    def make_room_for_group(self, imagined: Imagined, attempt: GroupAttempt, group_uid: str) -> str:
        """Preempt for a group as it was tried in an imagined cluster; returns what its condition says of that.

        Its pods are nominated to their nodes; the group is tried again after its backoff. Events name it by its uid.
        """
        if attempt.outcome != "scheduled" or not attempt.placed:
            self._withdraw(attempt.pods)
            return attempt.message
        plan, queued = imagined.spare(attempt.placed, tuple(self._budgets.values())), attempt.queued
        first = plan.assignments[0]
        names = ", ".join(victim.key for victim in plan.victims)
        log.info("pod group %s is to have room; to leave: %s", queued.pod.group_key, names)
        for each in plan.assignments:
            self._state.nominate(each.pod, each.node_name)
        preemption = Preemption(_EVERYWHERE, plan.victims, plan.violations, by=f"podgroup {group_uid}")
        self._under_way[queued.uid] = preemption
        self._groups[first.pod.uid] = queued.uid, [each.pod for each in plan.assignments]
        self._evictor.submit(first.pod, preemption)
        return plan.message

    def _withdraw(self, pods: Iterable[Pod]) -> None:
        """End the nominations of pods, whose room others may have then."""
        for pod in pods:
            if pod.uid in self._state.nominated:
                self._state.withdraw(pod.uid)
                self._queue.on_event("pod_delete", pod)

    def on_changes(self, changes: Changes[Any]) -> None:
        """Apply changes of disruption budgets."""
        for delta in changes.deltas:
            if delta.kind == "deleted":
                self._budgets.pop(BUDGETS.key(delta.obj), None)
            else:
                self._budgets[BUDGETS.key(delta.obj)] = delta.obj.budget
        if changes.synced:
            if self._forbidden:
                log.info("disruption budgets can be read: pods may preempt again")
                self._queue.on_event("any")
            self._known, self._forbidden = True, False
            self._queue.activate(self._held)
            self._held.clear()

    def on_trouble(self, trouble: Trouble) -> None:
        """Go on without preemption where budgets may not be read."""
        if isinstance(trouble.error, ApiError) and trouble.error.status in _FORBIDDEN:
            self._refuse(f"disruption budgets cannot be read ({trouble.error})")

    def settle(self, evicted: Evicted) -> None:
        """Note the outcome of a preemption. Where victims stay, the pod loses its nomination and is tried again."""
        uid, pods = self._groups.pop(evicted.pod.uid, (evicted.pod.uid, [evicted.pod]))
        self._under_way.pop(uid, None)
        if not evicted.error:
            return
        for pod in pods:
            self._state.withdraw(pod.uid)
        if evicted.forbidden:
            self._refuse(f"pods cannot be deleted ({evicted.error})")
        else:
            log.warning("no room made for %s on %s: %s", evicted.pod.key, evicted.node_name, evicted.error)
        self._queue.on_event("any")

    def _begin(self, pod: Pod, preemption: Preemption) -> None:
        names = ", ".join(victim.key for victim in preemption.victims)
        log.info("%s is to have room on %s; to leave: %s", pod.key, preemption.node_name, names)
        for other in preemption.withdrawn:
            self._state.withdraw(other.uid)
        self._queue.activate(other.uid for other in preemption.withdrawn)
        self._state.nominate(pod, preemption.node_name)
        self._under_way[pod.uid] = preemption
        self._evictor.submit(pod, preemption)

    def _hold(self, uid: str) -> None:
        """Let a pod, or a group, wait for the disruption budgets."""
        self._held.add(uid)
        if len(self._held) > _MOST_HELD:  # many came and went while the budgets could not be read
            self._held = {each for each in self._held if each in self._queue}
        if not self._watched:
            self._watched = True
            self._watch(BUDGETS)

    def _outranks(self, pod: Pod) -> bool:
        return any(priority_of(placement.pod) < pod.priority for placement in self._state.pods())

    def _refuse(self, why: str) -> None:
        if not self._forbidden:
            self._forbidden = True
            log.warning("scheduling goes on without preemption: %s", why)
        self._queue.activate(self._held)
        self._held.clear()
