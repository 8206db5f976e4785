"""The queues in front of a cluster, and the cycles in which Kueue 0.17 admits workloads (pkg/scheduler/scheduler.go).

In a cycle each ClusterQueue's first workload is tried. Those that would borrow least go first, then those of the higher
priority, then the oldest; each is admitted if it fits beside what was admitted before it in the cycle.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from aaml.cluster.objects import Node
from aaml.errors import bad_value
from aaml.scheduling.kueue.flavors import FIT, NO_FIT, PREEMPT, Attempt, PodSetAssignment, assign
from aaml.scheduling.kueue.objects import ClusterQueue, Cohort, Flavor, FlavorResource, Workload
from aaml.scheduling.kueue.quota import Quotas
from aaml.scheduling.kueue.rooms import NodeRoom

RETRY_S = 1.0
"""How long Kueue collects what has changed before it tries workloads again that did not fit."""


@dataclass(frozen=True)
class Admitted:
    """A workload that was admitted, with what each of its pod sets got."""

    workload: Workload
    pod_sets: tuple[PodSetAssignment, ...]
    usage: Mapping[FlavorResource, int]


@dataclass
class _Waiting:
    """The workloads of a ClusterQueue: those to be tried, and those that do not fit until something changes."""

    active: dict[str, Workload] = field(default_factory=dict)
    inadmissible: dict[str, Workload] = field(default_factory=dict)
    generation: int = 0

    def head(self) -> Workload | None:
        return min(self.active.values(), key=_order, default=None)


@dataclass
class _Entry:
    workload: Workload
    attempt: Attempt
    admitted: bool = False
    skipped: bool = False


class Admission:
    """Kueue's queues and quotas over nodes: workloads come (`submit`), are admitted (`settle`) and end (`finish`).

    `balanced` is Kueue's gate TASBalancedPlacement. Raises `UserError` for a queue, a flavor or a cohort that is not as
    it has to be.
    """

    def __init__(
        self, queues: Iterable[ClusterQueue], flavors: Iterable[Flavor], nodes: Iterable[Node],
        cohorts: Iterable[Cohort] = (), *, balanced: bool = False,
    ) -> None:  # fmt: skip
        self.queues = {queue.name: queue for queue in queues}
        self._flavors = {flavor.name: flavor for flavor in flavors}
        for queue in self.queues.values():
            for name in sorted(queue.flavors - self._flavors.keys()):
                raise bad_value(f"flavors of {queue.name}", name, f"one of {', '.join(self._flavors)}")
        self._quotas = Quotas(list(self.queues.values()), cohorts)
        self.rooms = {
            flavor.name: NodeRoom(flavor, nodes, balanced=balanced)
            for flavor in self._flavors.values()
            if flavor.levels
        }
        self._waiting = {name: _Waiting() for name in self.queues}
        self._last: dict[str, tuple[Attempt, int]] = {}
        self.admitted: dict[str, Admitted] = {}

    def submit(self, workload: Workload) -> None:
        """Let a workload wait. Raises `UserError` for a queue that is not there."""
        if workload.queue not in self._waiting:
            raise bad_value("queue", workload.queue, f"one of {', '.join(self._waiting)}")
        self._waiting[workload.queue].active[workload.name] = workload

    def finish(self, name: str) -> str:
        """Take a workload away, admitted or not, and return its queue: `retry` it after `RETRY_S`."""
        self._last.pop(name, None)
        for queue, waiting in self._waiting.items():
            if waiting.active.pop(name, None) or waiting.inadmissible.pop(name, None):
                return queue
        gone = self.admitted.pop(name)
        queue = gone.workload.queue
        self._quotas.remove(queue, gone.usage)
        for given in gone.pod_sets:
            if given.domains is not None:
                self.rooms[given.domain_flavor].add(given.domains, given.pod_set.requests, -1)
        self._waiting[queue].generation += 1
        return queue

    def stirs(self, queue: str) -> bool:
        """Say whether any change of a queue has its tree of cohorts tried again, not only the end of a workload.

        Kueue 0.17.0 reads the Cohort objects above a queue anew, but for the root, whenever the queue's status changes:
        as workloads come and are admitted. It takes that for a change of quotas.
        """
        return self._quotas.stirs(queue)

    def retry(self, queue: str) -> None:
        """Try what did not fit again, of a queue and of all in its tree of cohorts."""
        for name in self._quotas.related(queue):
            waiting = self._waiting[name]
            waiting.generation += self.stirs(queue)
            waiting.active |= waiting.inadmissible
            waiting.inadmissible.clear()

    def waits(self, name: str) -> bool:
        """Say whether a workload waits."""
        return any(name in each.active or name in each.inadmissible for each in self._waiting.values())

    def settle(self) -> list[Admitted]:
        """Run cycles until one more would change nothing, and return what was admitted, in order."""
        found: list[Admitted] = []
        seen: set[tuple[object, ...]] = set()
        while heads := self._heads():
            state = tuple((each.name, self._tried(each)) for each in heads)
            if state in seen:
                return found
            seen.add(state)
            if new := self._cycle(heads):
                found += new
                seen.clear()
        return found

    def _heads(self) -> list[Workload]:
        return [head for waiting in self._waiting.values() if (head := waiting.head()) is not None]

    def _tried(self, workload: Workload) -> tuple[tuple[tuple[str, int], ...], ...]:
        """Return the flavors that its last attempt came to, by pod set; () where that says nothing any more."""
        last = self._last.get(workload.name)
        if last is None or last[1] < self._waiting[workload.queue].generation:
            return ()
        return tuple(tuple(sorted(tried.items())) for tried in last[0].tried)

    def _cycle(self, heads: Iterable[Workload]) -> list[Admitted]:
        entries = []
        for workload in heads:
            queue, tried = self.queues[workload.queue], [dict(each) for each in self._tried(workload)]
            attempt = assign(workload, queue, self._flavors, self._quotas, self.rooms, tried)
            self._last[workload.name] = (attempt, self._waiting[queue.name].generation)
            entries.append(_Entry(workload, attempt))
        entries.sort(key=lambda each: (each.attempt.borrowing, -each.workload.priority, each.workload.created_s))
        taken: list[tuple[str, Mapping[FlavorResource, int], Attempt]] = []
        for entry in entries:
            name, attempt = entry.workload.queue, entry.attempt
            if attempt.mode == NO_FIT:
                continue
            if attempt.mode == FIT:
                entry.admitted = self._fits(name, attempt) and not _refused(attempt)
                entry.skipped = not entry.admitted
            if attempt.mode == PREEMPT or entry.admitted:
                amounts = dict(attempt.usage) if entry.admitted else self._reserved(name, attempt)
                taken.append((name, amounts, attempt))
                self._take(name, amounts, attempt, 1)
        for queue_name, held, attempt in taken:
            self._take(queue_name, held, attempt, -1)
        return [self._admit(entry) for entry in entries if not self._requeued(entry)]

    def _fits(self, queue: str, attempt: Attempt) -> bool:
        if any(self._quotas.available(queue, of) < amount for of, amount in attempt.usage.items()):
            return False
        return all(
            self.rooms[given.domain_flavor].holds(given.domains, _requests(given))
            for given in attempt.pod_sets
            if given.domains is not None
        )

    def _reserved(self, queue: str, attempt: Attempt) -> dict[FlavorResource, int]:
        """Return what is kept for a workload that would fit if others were gone."""
        kept = {}
        for of, amount in attempt.usage.items():
            quota, used = self._quotas.quota(queue, of), self._quotas.used(queue, of)
            if attempt.borrowing <= 0:
                kept[of] = max(0, min(amount, quota.nominal - used))
            elif quota.borrowing_limit is None:
                kept[of] = amount
            else:
                kept[of] = min(amount, quota.nominal + quota.borrowing_limit - used)
        return kept

    def _take(self, queue: str, amounts: Mapping[FlavorResource, int], attempt: Attempt, sign: int) -> None:
        """Let a workload take its quota and its domains for the rest of a cycle.

        Kueue 0.17.0 counts its domains once for each resource of their flavor until the cycle ends: another queue's
        workload beside it then waits for the next cycle, though it would fit.
        """
        (self._quotas.add if sign > 0 else self._quotas.remove)(queue, amounts)
        for given in attempt.pod_sets:
            if given.domains is not None:
                times = sum(flavor == given.domain_flavor for flavor in given.flavors.values())
                self.rooms[given.domain_flavor].add(given.domains, _requests(given), sign * times)

    def _admit(self, entry: _Entry) -> Admitted:
        workload, attempt = entry.workload, entry.attempt
        del self._waiting[workload.queue].active[workload.name]
        self._last.pop(workload.name, None)
        self._quotas.add(workload.queue, attempt.usage)
        for given in attempt.pod_sets:
            if given.domains is not None:
                self.rooms[given.domain_flavor].add(given.domains, given.pod_set.requests)
        found = Admitted(workload, tuple(attempt.pod_sets), attempt.usage)
        self.admitted[workload.name] = found
        return found

    def _requeued(self, entry: _Entry) -> bool:
        """Send back what was not admitted: to be tried again at once, or when something changes."""
        if entry.admitted:
            return False
        workload, waiting = entry.workload, self._waiting[entry.workload.queue]
        if entry.skipped:
            self._last.pop(workload.name, None)
        at_once = self.queues[workload.queue].strategy == "StrictFIFO" or entry.skipped
        if not at_once and not entry.attempt.pending_flavors:
            waiting.inadmissible[workload.name] = waiting.active.pop(workload.name)
        return True


def _refused(attempt: Attempt) -> bool:
    """Say whether the API server refuses what Kueue 0.17.0 wants to write down: less than no pods in a domain.

    It does not count the places for pods between the pod sets of a workload, so that a node may end with less than
    none; what is spread over several domains then takes these places back. Such a workload is tried for ever.
    """
    return any(count < 0 for given in attempt.pod_sets for _, count in given.domains or ())


def _order(workload: Workload) -> tuple[int, float, str]:
    return -workload.priority, workload.created_s, workload.uid


def _requests(given: PodSetAssignment) -> dict[str, int]:
    """Return what a pod requests of the resources whose flavor has domains."""
    return {
        resource: amount
        for resource, amount in given.pod_set.requests.items()
        if given.flavors.get(resource) == given.domain_flavor
    }
