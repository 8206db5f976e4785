"""Karpenter's rules (1.15.0): when it buys which nodes, and which it gives back or replaces, with its own delays.

Names of files are those below pkg/controllers of its source. What it does that is not here: several NodePools, static
ones, weights, limits, drift, expiry, repair, schedules of budgets, reserved capacity.
"""

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from aaml.cluster.objects import Pod
from aaml.nodes.catalogue import Catalogue, InstanceType
from aaml.nodes.packing import Packed, Room, pack, types_of
from aaml.nodes.ports import Buy, Command, Delete, Observed, OwnedNode, Replace
from aaml.nodes.settings import KarpenterSettings
from aaml.nodes.successors import is_next_late

AGAIN_S = 10.0  # after which a pod that still waits, or a node that still goes, asks for a batch again (controller.go)
_MOST_TYPES = 600  # of a claim (scheduling/scheduler.go, MaxInstanceTypes)
MOST_AT_ONCE = (
    101  # candidates of multi-node consolidation, which tries 0 to 100 (disruption/multinodeconsolidation.go)
)
_LEAST_SPOT_TYPES = 15  # cheaper ones, for a spot node to be replaced by a spot node (disruption/consolidation.go)
SEEN_ANEW_S = 300.0  # an unchanged cluster is looked at again after so long (state/cluster.go, ConsolidationState)
_PRIORITY_UNIT = 2.0**25  # of priority, for which evicting a pod counts as much as one pod more (utils/disruption)
BALANCED_K = 2  # a move's share of the savings is at least 1/k of its share of the disruption (disruption/balanced.go)


@dataclass(frozen=True, slots=True)
class _Plan:
    """Nodes that may go, with the types of the node that takes their place, none where nothing need."""

    names: tuple[str, ...]
    types: tuple[InstanceType, ...] = ()
    used: tuple[str, ...] = ()  # nodes that their pods were moved to when it was made: these are kept for them

    def command(self) -> Command:
        return Replace(self.names, self.types) if self.types else Delete(self.names)


class _Look(NamedTuple):
    """What plans of one moment are computed from: the room on nodes that stay, and pods that need some anyway."""

    room: Room
    pods: list[Pod]


@dataclass
class _Batch:
    """The window in which pods are collected before nodes are bought for them (provisioning/batcher.go)."""

    opened_s: float = inf
    latest_s: float = inf
    triggered_by: frozenset[str] = frozenset()

    def trigger(self, who: str, now_s: float) -> "_Batch":
        if who in self.triggered_by:
            return self
        return _Batch(min(self.opened_s, now_s), now_s, self.triggered_by | {who})

    def closes_s(self, settings: KarpenterSettings) -> float:
        return min(self.latest_s + settings.batch_idle_duration_s, self.opened_s + settings.batch_max_duration_s)


@dataclass
class Karpenter:
    """One NodePool of a catalogue. `first_look_s`: when it first looks for nodes that may go."""

    settings: KarpenterSettings
    catalogue: Catalogue
    first_look_s: float = 0.0
    _batch: _Batch = field(default_factory=_Batch)
    _again_s: dict[str, float] = field(default_factory=dict)  # by pod or node: when it asks for a batch again
    _nominated_s: dict[str, float] = field(default_factory=dict)  # by node: until when it is kept for pods
    _method: int = 0
    _plan: _Plan | None = None
    _due_s: float = field(init=False)
    _state_s: float = -inf  # of the cluster, as consolidation sees it
    _nothing_s: dict[int, float] = field(default_factory=dict)  # by method: the state in which it found nothing

    def __post_init__(self) -> None:
        self._due_s = self.first_look_s

    @property
    def next_s(self) -> float:
        """The next end of a batch, repeated trigger, look or validation."""
        return min(self._batch.closes_s(self.settings), self._due_s, min(self._again_s.values(), default=inf))

    def copy(self) -> "Karpenter":
        """Return an independent copy."""
        return deepcopy(self)

    def act(self, seen: Observed) -> Sequence[Command]:
        """Buy for the pods of a batch that ends now, and else take the next step towards fewer or cheaper nodes."""
        self._collect(seen)
        if self._batch.closes_s(self.settings) <= seen.now_s:
            self._batch = _Batch()
            if bought := self._provision(seen):
                return bought
        return self._disrupt(seen)

    # ---- provisioning ------------------------------------------------------------------------------------------------

    def _collect(self, seen: Observed) -> None:
        """Open or extend the batch for each unschedulable pod and tainted node, when first seen and every 10 s."""
        asking = [*seen.waiting, *(name for name, node in seen.nodes.items() if node.deleting)]
        if self._again_s.keys() - asking:
            self._again_s = {who: self._again_s[who] for who in asking if who in self._again_s}
        for who in asking:
            if self._again_s.get(who, -inf) <= seen.now_s:
                self._again_s[who] = seen.now_s + AGAIN_S
                self._batch = self._batch.trigger(who, seen.now_s)

    def _provision(self, seen: Observed) -> list[Command]:
        """Buy what the pods need that wait, and those that will once their node is gone (provisioner.go, Schedule)."""
        pods = _unplaced(seen)
        if not pods:
            return []
        packed = pack(self.catalogue, Room.of(seen, self.catalogue, ()), pods)
        self._nominate(packed.used, seen.now_s)
        return [Buy(types_of(self.catalogue, claim, most=_MOST_TYPES)) for claim in packed.claims]

    def _nominate(self, names: Iterable[str], now_s: float) -> None:
        until_s = now_s + max(2.0 * self.settings.batch_max_duration_s, 10.0)  # state/statenode.go, nominationWindow
        self._nominated_s.update(dict.fromkeys(names, until_s))

    # ---- disruption --------------------------------------------------------------------------------------------------

    def _disrupt(self, seen: Observed) -> list[Command]:
        """Go through the methods in order (disruption/controller.go): the first whose plan holds ends the pass."""
        methods: tuple[Callable[[Observed], _Plan | None], ...] = (self._empty, self._multi, self._single)
        while self._due_s <= seen.now_s:
            if self._plan is not None:
                plan, self._plan = self._still(seen, self._plan), None
                if plan is not None:
                    self._method = 0
                    self._nominate(plan.used, seen.now_s)
                    return [plan.command()]
                self._method += 1
            elif self._method == len(methods):
                self._method, self._due_s = 0, seen.now_s + self.settings.poll_s
            elif (plan := methods[self._method](seen)) is not None:
                self._plan, self._due_s = plan, seen.now_s + self.settings.validation_s
            else:
                self._method += 1
        return []

    def _empty(self, seen: Observed) -> _Plan | None:
        """Return the empty nodes, as many as the budget allows (disruption/emptiness.go)."""
        found = [node for node in self._candidates(seen) if _is_empty(seen, node)]
        names = tuple(node.name for node in found[: self._allowed(seen)])
        return _Plan(names) if names else None

    def _multi(self, seen: Observed) -> _Plan | None:
        """Return the largest prefix of the candidates that can go at once (disruption/multinodeconsolidation.go)."""
        found, allowed = self._underutilized(seen), self._allowed(seen)
        if not found or self._is_settled(seen, 1):
            return None
        chosen = found[:allowed][:MOST_AT_ONCE]
        low, high, best = 1, len(chosen) - 1, None
        look = self._look(seen)
        while low <= high:
            middle = (low + high) // 2
            plan = self._computed(seen, look, chosen[: middle + 1])
            if plan is not None:
                best, low = plan, middle + 1
            else:
                high = middle - 1
        if best is None and allowed >= len(found):
            self._nothing_s[1] = self._state_s
        return best

    def _single(self, seen: Observed) -> _Plan | None:
        """Return the first candidate that can go (disruption/singlenodeconsolidation.go)."""
        found, allowed = self._underutilized(seen), self._allowed(seen)
        if not found or self._is_settled(seen, 2) or not allowed:
            return None
        look = self._look(seen)
        for node in found:
            plan = self._computed(seen, look, [node])
            if plan is not None:
                return plan
        self._nothing_s[2] = self._state_s
        return None

    def _still(self, seen: Observed, plan: _Plan) -> _Plan | None:
        """Return what is left of a plan when it is looked at again (disruption/validation.go)."""
        allowed, candidates = self._allowed(seen), {node.name: node for node in self._candidates(seen)}
        if self._method == 0:
            names = [name for name in plan.names if name in candidates and _is_empty(seen, candidates[name])]
            return _Plan(tuple(names[:allowed])) if names[:allowed] else None
        gone = [name for name in plan.names if name not in candidates or _is_empty(seen, candidates[name])]
        if gone or allowed < len(plan.names):
            return None
        packed = self._simulated(seen, self._look(seen), plan.names)
        if packed.failed or len(packed.claims) != bool(plan.types):
            return None
        if plan.types:
            offered = {kind.name for kind in types_of(self.catalogue, packed.claims[0])}
            if not all(kind.name in offered for kind in plan.types):
                return None
        return plan

    def _computed(self, seen: Observed, look: _Look, nodes: Sequence[OwnedNode]) -> _Plan | None:
        """Return the plan to let nodes go, for nothing or for one cheaper node (disruption/consolidation.go)."""
        names = tuple(node.name for node in nodes)
        packed = self._simulated(seen, look, names)
        if packed.failed:
            return None
        price = sum(node.price for node in nodes)
        types: tuple[InstanceType, ...] = ()
        if packed.claims:
            types = types_of(self.catalogue, packed.claims[0], below=price, most=_MOST_TYPES)
            types = self._of_capacity(nodes, types)
            if len(nodes) > 1:
                types = _not_the_same(nodes, types)
            if not types:
                return None
        if self.settings.consolidation_policy == "Balanced":
            saved = price - (types[0].cheapest.price if types else 0.0)
            if not self._is_balanced(seen, nodes, saved):
                return None
        return _Plan(names, types, packed.used)

    def _of_capacity(self, nodes: Sequence[OwnedNode], types: tuple[InstanceType, ...]) -> tuple[InstanceType, ...]:
        """Return a replacement's types as spot where any is: spot for on-demand always, for spot only where asked."""
        spot = tuple(kind for kind in (each.of(("spot",)) for each in types) if kind.offerings)
        if not spot:
            return types
        if any(node.offering.capacity_type != "spot" for node in nodes):
            return spot
        if not self.settings.spot_to_spot_consolidation:
            return ()
        if len(nodes) > 1:
            return spot
        return spot[:_LEAST_SPOT_TYPES] if len(spot) >= _LEAST_SPOT_TYPES else ()

    def _is_balanced(self, seen: Observed, nodes: Iterable[OwnedNode], saved: float) -> bool:
        """Whether a move's share of all that is paid is at least 1/k of its share of all that would be disrupted."""
        paid = sum(node.price for node in seen.nodes.values())
        disrupted = sum(_disruption(seen, node) for node in seen.nodes.values())
        share = sum(_disruption(seen, node) for node in nodes) / disrupted
        return saved > 0.0 and paid > 0.0 and saved / paid >= share / BALANCED_K

    def _simulated(self, seen: Observed, look: _Look, names: Collection[str]) -> Packed:
        """Pack what waits and what is on nodes on their way out, as if these nodes were on theirs, for one new node."""
        moved = [pod for name in names for pod in seen.pods_on(name).values()]
        return pack(self.catalogue, look.room, [*look.pods, *moved], {pod.uid for pod in moved}, names, most_claims=1)

    def _look(self, seen: Observed) -> _Look:
        quiet = {name for name, node in seen.nodes.items() if not self._is_busy(node, seen.now_s)}
        return _Look(Room.of(seen, self.catalogue, quiet), _unplaced(seen))

    # ---- candidates --------------------------------------------------------------------------------------------------

    def _candidates(self, seen: Observed) -> list[OwnedNode]:
        """Return the nodes that may go, those first that cost the most for what evicting their pods means."""
        found = [
            node
            for node in seen.nodes.values()
            if node.initialized_s is not None
            and not node.deleting
            and self._nominated_s.get(node.name, -inf) <= seen.now_s
            and self.settings.consolidate_after_s is not None
            and not self._is_busy(node, seen.now_s)
            and not any(seen.is_kept(pod) or uid in seen.blocked for uid, pod in seen.pods_on(node.name).items())
        ]
        return sorted(found, key=lambda node: -node.price / _disruption(seen, node))

    def _underutilized(self, seen: Observed) -> list[OwnedNode]:
        if self.settings.consolidation_policy == "WhenEmpty":
            return []
        return [node for node in self._candidates(seen) if not _is_empty(seen, node)]

    def _is_busy(self, node: OwnedNode, now_s: float) -> bool:
        """Whether a pod was bound to a node, or left it, within `consolidateAfter` (utils/disruption).

        The API server keeps both times in whole seconds.
        """
        if node.initialized_s is None:
            return False
        since_s = node.initialized_s if node.last_pod_event_s is None else node.last_pod_event_s
        return now_s - math.floor(since_s) < (self.settings.consolidate_after_s or 0.0)

    def _allowed(self, seen: Observed) -> int:
        """Return how many nodes may begin to go now (apis/v1/nodepool.go, disruption/helpers.go)."""
        ready = [node for node in seen.nodes.values() if node.initialized_s is not None]
        most = min((_budget(text, len(ready)) for text in self.settings.budgets), default=len(ready))
        return max(0, most - sum(node.deleting for node in ready))

    def _is_settled(self, seen: Observed, method: int) -> bool:
        """Whether a method has found nothing in the cluster as it is."""
        self._state_s = max(self._state_s, seen.changed_s)
        if seen.now_s - self._state_s >= SEEN_ANEW_S:
            self._state_s = seen.now_s
        return self._nothing_s.get(method) == self._state_s


def _unplaced(seen: Observed) -> list[Pod]:
    """Return the pods that wait, and those of nodes on their way out that leave before they end."""
    leaving = (
        pod
        for name, node in seen.nodes.items()
        if node.deleting
        for pod in seen.pods_on(name).values()
        if _leaves(seen, pod)
    )
    return [*(each.pod for each in seen.waiting.values()), *leaving]


def _leaves(seen: Observed, pod: Pod) -> bool:
    """Whether a pod of a node on its way out needs a place elsewhere (utils/pdb, IsCurrentlyReschedulable).

    One that stops does not, as its owner's next pod waits already; a StatefulSet's comes only once it has gone.
    """
    if pod.uid in seen.stopping:
        return is_next_late(pod)
    return not seen.is_kept(pod) and pod.uid not in seen.stuck


def _eviction(pod: Pod) -> float:
    return max(0.0, min(10.0, 1.0 + pod.priority / _PRIORITY_UNIT))


def _disruption(seen: Observed, node: OwnedNode) -> float:
    """Return 1, and 1 more for each pod that would be evicted, more or less by its priority (utils/disruption)."""
    return 1.0 + sum(map(_eviction, seen.pods_on(node.name).values()))


def _is_empty(seen: Observed, node: OwnedNode) -> bool:
    return _disruption(seen, node) <= 1.0


def _budget(text: str, nodes: int) -> int:
    return math.ceil(int(text[:-1]) * nodes / 100) if text.endswith("%") else int(text)


def _not_the_same(nodes: Sequence[OwnedNode], types: tuple[InstanceType, ...]) -> tuple[InstanceType, ...]:
    """Return the types that are cheaper than each type among both: else that node had better stay and the others go.

    (disruption/multinodeconsolidation.go, filterOutSameInstanceType.)
    """
    prices: dict[str, float] = {}
    for node in nodes:
        prices[node.type.name] = min(node.price, prices.get(node.type.name, inf))
    limit = min((prices[kind.name] for kind in types if kind.name in prices), default=inf)
    return tuple(kind for kind in types if kind.worst_price() < limit)
