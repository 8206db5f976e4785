"""The autoscaler `learned`: it buys, drains and replaces nodes by prices, with the numbers of a `NodePolicy`.

All that it orders can be ordered from Karpenter through NodeClaims: one of a named instance type is created, or one is
deleted, which drains its node with grace and disruption budgets.

*Buying.* Pods that wait are placed on nodes that are there or in the making. For the others the type with the most
value for its price is bought, again and again (`Fitting.types_for`).

*Draining.* Now and then it goes through the nodes, the one first whose price is worth the most against what moving its
pods counts. A node goes where all its pods fit elsewhere. One or two go for cheaper ones where that saves enough: these
are bought first, and the others go once they are ready, if all pods still fit then.
"""

import math
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import combinations
from math import inf
from typing import NamedTuple

import numpy as np

from aaml.cluster.objects import Pod
from aaml.nodes.catalogue import Catalogue
from aaml.nodes.fitting import Fitting, price_of
from aaml.nodes.fluid import Fluid
from aaml.nodes.node_policy import NodePolicy
from aaml.nodes.ports import Buy, Command, Delete, Observed, OwnedNode

AGAIN_S = 10.0  # after which a pod that still waits is looked at again
SETTLING_S = 3.0  # after a drain, in which its pods are about to wait again or to be bound
LAUNCH_S = 22.0  # that a replacement and what it replaces are both paid
FORGOTTEN_S = 60.0  # after which a replacement that is still not ready is not waited for
FAST_S, SLOW_S = 30.0, 180.0  # over which the load is averaged
REPLACED = 5  # nodes that are tried alone and two by two
HOUR_S = 3600.0


@dataclass(slots=True)
class _Load:
    """Dollars an hour that pods are worth, averaged over a short and a long time."""

    at_s: float = -inf
    fast: float = 0.0
    slow: float = 0.0

    def add(self, worth: float, now_s: float) -> None:
        seconds = now_s - self.at_s
        self.fast += (worth - self.fast) * (1.0 - math.exp(-seconds / FAST_S))
        self.slow += (worth - self.slow) * (1.0 - math.exp(-seconds / SLOW_S))
        self.at_s = now_s

    @property
    def growth(self) -> float:
        """How much more there is now than there was, from -1 to 1."""
        return min(1.0, self.fast / self.slow - 1.0) if self.slow > 0.0 else 0.0


class _Candidate(NamedTuple):
    """A node that may go, its pods, and what moving these counts."""

    node: OwnedNode
    pods: list[Pod]
    cost: float


class _Planned(NamedTuple):
    """Nodes that others are to replace, and when these were bought."""

    names: tuple[str, ...]
    since_s: float

    def waits_for(self, node: OwnedNode) -> bool:
        """Whether a node is one of those that were bought."""
        return node.launched_s == self.since_s


@dataclass
class LearnedNodes:
    """Buys and drains nodes of a catalogue by a policy. `first_look_s`: when it first looks for nodes that may go."""

    policy: NodePolicy
    catalogue: Catalogue
    first_look_s: float = 0.0
    _look_s: float = field(init=False)
    _fluid: Fluid = field(init=False, repr=False)
    _load: _Load = field(default_factory=_Load)
    _again_s: dict[str, float] = field(default_factory=dict)  # by pod that waits: when it asks for a node again
    _first_s: float = inf  # since when the pod waits that has waited longest of those that ask
    _latest_s: float = -inf  # when one has asked last
    _slower: float = 1.0  # times as long as usual that nodes are not bought for them
    _ready: int = 0  # nodes
    _drained_s: float = -inf
    _nothing: tuple[float, int] | None = None  # the state of the cluster in which no node could go
    _planned: _Planned | None = None

    def __post_init__(self) -> None:
        self._look_s, self._fluid = self.first_look_s, Fluid(self.catalogue)

    @property
    def next_s(self) -> float:
        """The next purchase or look, or a pod that asks again."""
        return min(self._buy_s, self._look_s, min(self._again_s.values(), default=inf))

    @property
    def replaced(self) -> tuple[str, ...]:
        """The nodes that go once what was bought in their place is ready."""
        return self._planned.names if self._planned else ()

    @property
    def _buy_s(self) -> float:
        if self._first_s == inf:
            return inf
        idle_s, patience_s = self.policy.idle_s * self._slower, self.policy.patience_s * self._slower
        return min(self._latest_s + idle_s, max(self._first_s + patience_s, self._latest_s))

    def sell(self, catalogue: Catalogue) -> None:
        """Go on with other types, offerings or prices. The types of nodes that are there stay in a catalogue."""
        self.catalogue, self._fluid, self._nothing = catalogue, Fluid(catalogue), None

    def copy(self) -> "LearnedNodes":
        """Return an independent copy."""
        return deepcopy(self)

    def act(self, seen: Observed) -> Sequence[Command]:
        """Buy for pods that have waited for long enough, else let nodes go when it is time to look."""
        self._collect(seen)
        if self._buy_s <= seen.now_s:
            self._first_s, self._latest_s = inf, -inf
            if bought := self._buy(seen):
                return bought
        if self._look_s > seen.now_s:
            return ()
        self._look_s = seen.now_s + self.policy.look_s
        return self._drain(seen)

    # ---- buying ------------------------------------------------------------------------------------------------------

    def _collect(self, seen: Observed) -> None:
        """Take note of the pods that ask for nodes: all when first seen, and again every 10 s.

        Once a node is ready all that still wait ask again: who was to have room there may have none.
        """
        self._slower = math.exp(-self.policy.patience_growth * self._load.growth)
        ready = sum(node.initialized_s is not None for node in seen.nodes.values())
        if ready > self._ready:
            self._again_s = dict.fromkeys(self._again_s, -inf)
            if self._planned is not None:
                self._look_s = seen.now_s
        self._ready = ready
        if self._again_s.keys() - seen.waiting.keys():
            self._again_s = {uid: at_s for uid, at_s in self._again_s.items() if uid in seen.waiting}
            if not seen.waiting:
                self._first_s, self._latest_s = inf, -inf
        for uid, each in seen.waiting.items():
            if self._again_s.get(uid, -inf) <= seen.now_s:
                self._again_s[uid] = seen.now_s + AGAIN_S
                self._first_s = min(self._first_s, each.since_s)
                self._latest_s = seen.now_s

    def _buy(self, seen: Observed) -> list[Command]:
        """Buy for the pods that have no room on nodes that are there or in the making."""
        unplaced = _unplaced(seen)
        fitting = self._fitting(seen, unplaced)
        spare = self.policy.spare_value + self.policy.spare_growth * self._load.growth
        left = fitting.without_room(unplaced)
        spare = float(np.clip(spare, 0.0, 1.0))
        types = fitting.types_for(left, spare, self.policy.size_power, self.policy.largest_share)
        return [Buy((kind,)) for kind in types]

    def _fitting(self, seen: Observed, unplaced: Sequence[Pod]) -> Fitting:
        fitting = Fitting.of(seen, self.catalogue, self._fluid, unplaced)
        self._load.add(fitting.load, seen.now_s)
        return fitting

    # ---- draining ----------------------------------------------------------------------------------------------------

    def _drain(self, seen: Observed) -> list[Command]:
        """Return the nodes that go now, or the one that is bought for others to go."""
        planned = self._planned
        if planned is not None and _is_due(seen, planned):
            self._planned = None
            if self._can_go(seen, planned.names):
                self._drained_s = seen.now_s
                return [Delete(planned.names)]
        staying = [
            node
            for node in seen.nodes.values()
            if node.initialized_s is not None and not node.deleting and node.name not in seen.kept
        ]
        empty = tuple(
            node.name
            for node in staying
            if not (seen.pods_on(node.name) or (self._planned and self._planned.waits_for(node)))
            and seen.now_s - _quiet_since_s(node) >= self.policy.empty_s
        )
        if empty:
            return [Delete(empty)]
        state = seen.changed_s, seen.released
        if seen.now_s - self._drained_s < SETTLING_S or self._nothing == state:
            return []
        unplaced = _unplaced(seen)
        fitting = self._fitting(seen, unplaced)
        if fitting.without_room(unplaced):
            return []  # nodes are about to be bought
        found = self._moves(seen, fitting, staying)
        if not found:
            self._nothing = state
        return found

    def _can_go(self, seen: Observed, names: Sequence[str]) -> bool:
        """Whether all pods of nodes fit on others as things are now."""
        nodes = [seen.nodes[name] for name in names if name in seen.nodes and not seen.nodes[name].deleting]
        pods = [pod for node in nodes for pod in seen.pods_on(node.name).values()]
        if len(nodes) < len(names) or seen.kept.intersection(names):
            return False
        if any(seen.is_kept(pod) or pod.uid in seen.blocked for pod in pods):
            return False
        unplaced = _unplaced(seen)
        fitting = self._fitting(seen, unplaced)
        return not fitting.without_room(unplaced) and fitting.move(nodes, pods)

    def _moves(self, seen: Observed, fitting: Fitting, staying: Sequence[OwnedNode]) -> list[Command]:
        """Return the nodes whose pods others have room for, else what is bought in place of one or two."""
        hours = self.policy.horizon_s / HOUR_S
        on_their_way = sum(node.deleting for node in seen.nodes.values())
        allowed = math.ceil(self.policy.most_at_once * len(seen.nodes)) - on_their_way
        gone, left = list[str](), list[_Candidate]()
        for each in self._candidates(seen, staying, hours):
            if len(gone) >= allowed:
                break
            if fitting.move((each.node,), each.pods):
                gone.append(each.node.name)
            else:
                left.append(each)
        if gone:
            self._drained_s = seen.now_s
            return [Delete((name,)) for name in gone]
        if allowed <= 0 or self._planned is not None:
            return []
        return self._replacement(seen, fitting, left[:REPLACED], hours)

    def _candidates(self, seen: Observed, staying: Sequence[OwnedNode], hours: float) -> list[_Candidate]:
        """Return the nodes whose price for some hours is more than what moving their pods counts, the best first."""
        found = []
        for node in staying:
            pods = seen.pods_on(node.name)
            if not pods or pods.keys() & (seen.blocked | seen.stopping) or any(map(seen.is_kept, pods.values())):
                continue
            if self._planned and node.name in self._planned.names:
                continue
            cost = sum(map(self._cost, pods.values()))
            if node.price * hours > cost:
                found.append(_Candidate(node, list(pods.values()), cost))
        return sorted(found, key=lambda each: (each.cost / each.node.price, each.node.name))

    def _replacement(
        self, seen: Observed, fitting: Fitting, nodes: Sequence[_Candidate], hours: float
    ) -> list[Command]:
        """Buy the nodes in place of one or two that save the most, if any save enough."""
        most, found = 0.0, list[Command]()
        for group in [*combinations(nodes, 1), *combinations(nodes, 2)]:
            gone = [each.node for each in group]
            price, cost = sum(node.price for node in gone), sum(each.cost for each in group)
            pods = [pod for each in group for pod in each.pods]
            kinds = fitting.replacement(gone, pods)
            new = price_of(kinds)
            gain = (price - new) * hours - new * LAUNCH_S / HOUR_S - cost
            if kinds and price - new > self.policy.margin * price and gain > most:
                most, found = gain, [Buy((kind,)) for kind in kinds]
                self._planned = _Planned(tuple(node.name for node in gone), seen.now_s)
        return found

    def _cost(self, pod: Pod) -> float:
        """Return what moving a pod counts, in dollars: a job's begins anew."""
        return self.policy.eviction_dollars * (self.policy.job_times if pod.owner.startswith("Job/") else 1.0)


def _is_due(seen: Observed, planned: _Planned) -> bool:
    """Whether a replacement is ready, or is not waited for any more."""
    bought = [node for node in seen.nodes.values() if planned.waits_for(node)]
    return seen.now_s - planned.since_s >= FORGOTTEN_S or all(node.initialized_s is not None for node in bought)


def _quiet_since_s(node: OwnedNode) -> float:
    return node.last_pod_event_s if node.last_pod_event_s is not None else (node.initialized_s or 0.0)


def _unplaced(seen: Observed) -> list[Pod]:
    """Return the pods that wait, and those of nodes on their way out that leave before they end."""
    leaving = (
        pod
        for name, node in seen.nodes.items()
        if node.deleting
        for uid, pod in seen.pods_on(name).items()
        if not seen.is_kept(pod) and uid not in seen.stopping
    )
    return [*(each.pod for each in seen.waiting.values()), *leaving]
