"""Which flavor each resource of a workload gets, and which nodes: one attempt of Kueue 0.17's flavor assigner.

pkg/scheduler/flavorassigner. Nobody is preempted, so "preempt" only says that a workload would fit if others were gone:
it waits, and what it would take counts as taken until the end of the cycle.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from aaml.cluster.objects import Node, Pod
from aaml.cluster.selectors import has_untolerated_taint, matches_required_nodes
from aaml.scheduling.kueue.objects import (
    ClusterQueue,
    Flavor,
    FlavorResource,
    PodSet,
    ResourceGroup,
    TopologyRequest,
    Workload,
)
from aaml.scheduling.kueue.quota import Quotas
from aaml.scheduling.kueue.topology import Assignment, Domain, NoRoom

NO_FIT, PREEMPT, FIT = 0, 1, 2
"""How a workload stands: it never fits, it would if others were gone, it fits now."""
_ANYWHERE = TopologyRequest("unconstrained")


class Room(Protocol):
    """The nodes of a flavor, and what is free on them."""

    def place(
        self, pods: PodSet, request: TopologyRequest, taken: Mapping[Domain, Mapping[str, int]], *, empty: bool
    ) -> Assignment | NoRoom:
        """Return where a pod set goes, with so much `taken` besides; `empty`: as if nothing that was admitted ran."""
        ...

    @property
    def levels(self) -> Sequence[str]:
        """The labels of the topology's levels."""
        ...


@dataclass
class PodSetAssignment:
    """What a pod set gets: a flavor for each resource, and its domains, None where topology plays no part."""

    pod_set: PodSet
    flavors: dict[str, str] = field(default_factory=dict)
    mode: int = FIT
    domains: Assignment | None = None
    domain_flavor: str = ""
    reason: str = ""


@dataclass
class Attempt:
    """What has come of an attempt: `mode`, what each pod set gets, how far is borrowed, and where to go on.

    `tried`: by pod set and resource the last flavor that was tried, -1 where all were.
    """

    mode: int
    pod_sets: list[PodSetAssignment]
    borrowing: int = 0
    tried: list[dict[str, int]] = field(default_factory=list)
    usage: dict[FlavorResource, int] = field(default_factory=dict)

    @property
    def pending_flavors(self) -> bool:
        """Whether flavors are left to be tried."""
        return any(index != -1 for tried in self.tried for index in tried.values())

    @property
    def message(self) -> str:
        """Why it does not fit, "" where it does."""
        return "; ".join(each.reason for each in self.pod_sets if each.reason)


def assign(
    workload: Workload, queue: ClusterQueue, flavors: Mapping[str, Flavor], quotas: Quotas, rooms: Mapping[str, Room],
    last: Sequence[Mapping[str, int]] = (),
) -> Attempt:  # fmt: skip
    """Return what a workload would get now; `last` is what was `tried` before, so that it goes on behind that."""
    search = _Search(queue, flavors, quotas, rooms)
    attempt = Attempt(FIT, [])
    for number, pods in enumerate(workload.pod_sets):
        given = PodSetAssignment(pods)
        attempt.pod_sets.append(given)
        tried = search.give(given, attempt, last[number] if number < len(last) else {})
        if given.mode == NO_FIT:
            attempt.mode = NO_FIT
            return attempt
        attempt.tried.append(tried)
    attempt.mode = min(given.mode for given in attempt.pod_sets)
    _place(attempt, search.only_topologies, rooms)
    return attempt


def _place(attempt: Attempt, only: bool, rooms: Mapping[str, Room]) -> None:
    """Find the domains of the pod sets that want some; where there is no room now, find whether there ever is."""
    wanting = [given for given in attempt.pod_sets if given.pod_set.topology is not None or only]
    for given in wanting:
        topologies = {flavor for flavor in given.flavors.values() if flavor in rooms}
        given.domain_flavor = topologies.pop() if len(topologies) == 1 else ""
    # Where its resources have several flavors with topologies, or none, Kueue 0.17.0 admits it without domains.
    wanting = [given for given in wanting if given.domain_flavor]
    if attempt.mode == FIT and (failed := _domains(wanting, rooms, empty=False)) is not None:
        failed[0].mode = attempt.mode = PREEMPT
        failed[0].reason = failed[1].reason
    if attempt.mode == PREEMPT and wanting:
        if (failed := _domains(wanting, rooms, empty=True)) is not None:
            failed[0].mode = attempt.mode = NO_FIT
            failed[0].reason = failed[0].reason or failed[1].reason
        else:
            for given in wanting:
                given.mode = PREEMPT


def _domains(
    wanting: Iterable[PodSetAssignment], rooms: Mapping[str, Room], *, empty: bool
) -> tuple[PodSetAssignment, NoRoom] | None:
    """Give all pod sets their domains, or return the first one that has no room, and why."""
    found: list[tuple[PodSetAssignment, Assignment]] = []
    taken: dict[str, dict[Domain, dict[str, int]]] = {}
    for given in wanting:
        pods, of_flavor = given.pod_set, taken.setdefault(given.domain_flavor, {})
        placed = rooms[given.domain_flavor].place(pods, pods.topology or _ANYWHERE, of_flavor, empty=empty)
        if isinstance(placed, NoRoom):
            return given, placed
        found.append((given, placed))
        for domain, count in placed:
            amounts = of_flavor.setdefault(domain, {})
            for resource, amount in pods.requests.items():
                amounts[resource] = amounts.get(resource, 0) + amount * count
    for given, placed in found:
        given.domains = placed
    return None


@dataclass(frozen=True)
class _Choice:
    """The flavor that a resource group gives, "" for none, with the index from which to go on the next time.

    `worst`: how the resource stands that stands worst, and how far it borrows, negative.
    """

    flavor: str = ""
    worst: tuple[int, int] = (NO_FIT, 0)
    borrowing: int = 0
    tried: int = -1
    reason: str = ""

    @property
    def mode(self) -> int:
        return self.worst[0]


@dataclass(frozen=True)
class _Search:
    """Looks for flavors in one ClusterQueue."""

    queue: ClusterQueue
    flavors: Mapping[str, Flavor]
    quotas: Quotas
    rooms: Mapping[str, Room]

    @property
    def only_topologies(self) -> bool:
        """Whether all flavors have topologies: then all pods are placed by them."""
        return all(self.flavors[name].levels for name in self.queue.flavors)

    def give(self, given: PodSetAssignment, attempt: Attempt, last: Mapping[str, int]) -> dict[str, int]:
        """Give a pod set a flavor for each resource, or say why not, and return which flavors were tried."""
        pods, tried = given.pod_set, dict[str, int]()
        for resource in sorted(pods.requests):
            group = self.queue.group_of(resource)
            if resource in given.flavors or (group is None and not pods.requests[resource]):
                continue
            if group is None:
                choice = _Choice(reason=f"resource {resource} unavailable in ClusterQueue")
            else:
                choice = self._of_group(pods, group, attempt.usage, last.get(resource, -1) + 1)
            if group is None or not choice.flavor:
                given.flavors, given.mode, given.reason = {}, NO_FIT, choice.reason
                return {}
            given.mode, given.reason = min(given.mode, choice.mode), given.reason or choice.reason
            attempt.borrowing = max(attempt.borrowing, choice.borrowing)
            for each in group.resources:
                if each in pods.requests:
                    given.flavors[each], tried[each] = choice.flavor, choice.tried
        for resource, flavor in given.flavors.items():
            of = (flavor, resource)
            attempt.usage[of] = attempt.usage.get(of, 0) + pods.requests[resource] * pods.count
        return tried

    def _of_group(
        self, pods: PodSet, group: ResourceGroup, assumed: Mapping[FlavorResource, int], begin: int
    ) -> _Choice:
        """Return the first flavor that fits, or the best of those that would."""
        best, reasons, index = _Choice(), list[str](), begin
        for index in range(begin, len(group.flavors)):
            flavor = self.flavors[group.flavors[index]]
            if refusal := self._without_topology(pods, flavor, group) or self._unsuitable(pods, flavor, group):
                reasons.append(refusal)
                continue
            worst, borrowing = (FIT, 0), 0
            for resource in sorted(set(group.resources) & pods.requests.keys()):
                of = (flavor.name, resource)
                mode, levels, reason = self._stands(of, assumed.get(of, 0) + pods.requests[resource] * pods.count)
                borrowing, worst = max(borrowing, levels), min(worst, (mode, -levels))
                reasons += [reason] if reason else []
                if mode == NO_FIT:
                    break
            this = _Choice(flavor.name, worst, borrowing)
            if worst[0] == FIT and (not worst[1] or self.queue.borrow_first):
                best = this
                break
            if worst[0] != NO_FIT and (not best.flavor or worst > best.worst):
                best = this
        if not best.flavor:
            return _Choice(reason=", ".join(sorted(reasons)))
        tried = -1 if index == len(group.flavors) - 1 else index
        return replace(best, tried=tried, reason="" if best.mode == FIT else ", ".join(sorted(reasons)))

    def _stands(self, of: FlavorResource, amount: int) -> tuple[int, int, str]:
        """Return how so much of a flavor's resource stands, how far it borrows, and what is lacking."""
        (flavor, resource), queue = of, self.queue.name
        if amount > self.quotas.potential(queue, of):
            return NO_FIT, 0, f"insufficient quota for {resource} in flavor {flavor}"
        borrowing, may_reclaim = self.quotas.borrowing(queue, of, amount)
        if amount <= self.quotas.available(queue, of):
            return FIT, borrowing, ""
        waits = amount <= self.quotas.quota(queue, of).nominal or may_reclaim
        return (PREEMPT if waits else NO_FIT), borrowing, f"insufficient unused quota for {resource} in flavor {flavor}"

    def _without_topology(self, pods: PodSet, flavor: Flavor, group: ResourceGroup) -> str:
        """Return why a flavor's topology, or its having none, is not for these pods, "" where it is."""
        if pods.topology is None:
            wrong = bool(flavor.levels) and not self.only_topologies
            return f'Flavor "{flavor.name}" supports only TopologyAwareScheduling' if wrong else ""
        if not flavor.levels:
            wrong = bool(set(pods.requests) & set(group.resources))
            return f'Flavor "{flavor.name}" does not support TopologyAwareScheduling' if wrong else ""
        level = pods.topology.level
        wrong = pods.topology.how != "unconstrained" and level not in flavor.levels
        return f'Flavor "{flavor.name}" does not contain the requested level' if wrong else ""

    def _unsuitable(self, pods: PodSet, flavor: Flavor, group: ResourceGroup) -> str:
        """Return why a flavor's nodes are not for these pods, "" where they are."""
        if has_untolerated_taint((*pods.tolerations, *flavor.tolerations), flavor.taints):
            return f"untolerated taint in flavor {flavor.name}"
        keys = {key for name in group.flavors for key in self.flavors[name].node_labels}
        return "" if _selects(pods, flavor, keys) else f"flavor {flavor.name} doesn't match node affinity"


def _selects(pods: PodSet, flavor: Flavor, keys: set[str]) -> bool:
    """Say whether the pods' selector and affinity, of labels that flavors have, allow for a flavor's nodes."""
    selector = {key: value for key, value in pods.node_selector.items() if key in keys}
    terms = pods.affinity.required_nodes
    if terms is not None:
        kept = [
            replace(term, labels=tuple(each for each in term.labels if each.key in keys), fields=()) for term in terms
        ]
        terms = None if any(not term.labels for term in kept) else tuple(kept)
    pod = Pod("-", node_selector=selector, affinity=replace(pods.affinity, required_nodes=terms))
    return matches_required_nodes(pod, Node(flavor.name, labels=flavor.node_labels))
