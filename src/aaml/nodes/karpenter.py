"""Karpenter's rules for one NodePool, asked about an `Observed`.

The rules are compiled (`aaml.nodes.karpenter_rules`); compiled episodes ask them about their own arrays.
"""

import ctypes
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cached_property
from math import inf, nan

import numpy as np

from aaml.cluster.kernels import called
from aaml.nodes import karpenter_rules as rules
from aaml.nodes.arrays import GONE, Array, Sold, memory, offers_of, pods_of
from aaml.nodes.catalogue import Catalogue, InstanceType
from aaml.nodes.constraints import Wishes, is_constrained
from aaml.nodes.packing import Claim, FreeCapacity, pack, types_of
from aaml.nodes.packing_rules import FAILED
from aaml.nodes.ports import Command, Delete, Observed, Provision, Replace
from aaml.nodes.rows import (
    BUYS,
    NODE,
    NODE_TIME,
    NOTHING,
    OFFER,
    PLAN_NO,
    PLAN_SPOT,
    REPLACES,
    STATE,
    TERMS,
    WAY,
    RuleWork,
    Seen,
)
from aaml.nodes.settings import KarpenterSettings
from aaml.nodes.topology import Placed

_GONE = ""  # the name of a node that is there no more
_PACKER = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 4)


@dataclass
class Karpenter:
    """One NodePool of a catalogue. `first_look_s`: when it first looks for nodes that may go."""

    settings: KarpenterSettings
    catalogue: Catalogue
    first_look_s: float = 0.0
    nominated_s: dict[str, float] = field(default_factory=dict)
    """By node: until when it is kept for pods."""
    # by pod or node: when it asks for a batch again
    _again_s: dict[tuple[str, float], float] = field(default_factory=dict)
    _asked: frozenset[str] = frozenset()  # which of them did in the batch that is open
    _planned: tuple[str, ...] = ()
    _used: tuple[str, ...] = ()  # nodes that the pods of the plan were moved to when it was made
    _types: tuple[InstanceType, ...] = ()  # of the node that takes their place
    _plan_types: Array = field(init=False, repr=False)
    _at: np.void = field(init=False, repr=False)
    _terms: np.void = field(init=False, repr=False)
    _sold: Sold = field(init=False, repr=False)
    _budgets: Array = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._at, self._terms, self._sold = np.zeros(1, STATE)[0], np.zeros(1, TERMS)[0], Sold.of(self.catalogue)
        self._budgets = budgets_of(self.settings)
        self._plan_types = np.zeros(len(self.catalogue), np.int8)
        for name, value in {
            "opened_s": inf, "latest_s": inf, "due_s": self.first_look_s, "again_s": inf, "batch": 1,
            "state_s": -inf, "multi_s": nan, "single_s": nan,
        }.items():  # fmt: skip
            self._at[name] = value
        for name, value in terms_of(self.settings).items():
            self._terms[name] = value
        self._terms["kinds"], self._terms["by_node"] = len(self.catalogue), 1

    @property
    def next_s(self) -> float:
        """The next end of a batch, repeated trigger, look or validation."""
        return float(rules.next_s(self._at, self._terms))

    def copy(self) -> "Karpenter":
        """Return an independent copy."""
        return deepcopy(self)

    def act(self, seen: Observed) -> Sequence[Command]:
        """Provision for the pods of a batch that ends now, else take the next step towards fewer or cheaper nodes."""
        self._at["now_s"], self._at["changed_s"] = seen.now_s, seen.changed_s
        self._collect(seen)
        return self._decide(seen) if rules.is_due(self._at, self._terms) else []

    def _decide(self, seen: Observed) -> list[Command]:
        names, pending = [*seen.nodes], (self._planned, bool(self._at["replaces"]))
        gone = max(GONE, len(self._planned), len(self._used))
        own = self._sold.seen(seen, self._at, self._terms, self._budgets, self._plan_types, gone)
        self._remember(own, names)
        packer = _Packer(self.catalogue, seen, work := memory(own))
        pointer = _PACKER(packer)
        self._at["packer"] = (ctypes.cast(pointer, ctypes.c_void_p).value or 0) if packer.is_needed else 0
        orders, count = called(rules.decide, own, work)
        if packer.raised is not None:
            raise packer.raised
        self._take_over(own, names)
        if self._at["replaces"] and (self._planned, True) != pending:
            self._types = self._offered(packer.claims.get(frozenset(self._planned), ()))
        if orders == BUYS:
            claims = packer.provisioned if packer.is_needed else work.order[:count].tolist()
            return [Provision(self._types_of(claim, work)) for claim in claims]
        if orders == NOTHING:
            return []
        planned, self._planned, self._at["planned"] = self._planned, (), 0
        return [Replace(planned, self._types) if orders == REPLACES else Delete(planned)]

    def _collect(self, seen: Observed) -> None:
        """Open or extend the batch for each unschedulable pod and tainted node."""
        at, tainted = self._at, [name for name, node in seen.nodes.items() if node.deleting]
        asking = [*seen.waiting, *tainted]
        each_pod = [(uid, each.pod.created_s) for uid, each in seen.waiting.items()]  # an evicted pod's next is another
        known = [*each_pod, *((name, 0.0) for name in tainted)]
        times_s = np.array([self._again_s.get(who, -inf) for who in known])
        batches = np.array([at["batch"] * (who in self._asked) for who in asking], np.int32)
        at["noted"], at["again_s"] = len(seen.waiting), inf
        rules.collect(at, times_s, batches)
        self._again_s = dict(zip(known, times_s.tolist(), strict=True))
        self._asked |= {who for who, batch in zip(asking, batches.tolist(), strict=True) if batch == at["batch"]}

    def _remember(self, own: Seen, names: list[str]) -> None:
        """Write what is remembered of nodes by their names; one that is there no more is on its way out."""
        numbers = {name: number for number, name in enumerate(names)}
        own.node_times[NODE_TIME.nominated_s] = -inf
        own.node_times[NODE_TIME.nominated_s, : len(names)] = [self.nominated_s.get(name, -inf) for name in names]
        for column, listed in ((NODE.plan, self._planned), (NODE.used, self._used)):
            own.nodes[column, : len(listed)] = [numbers.get(name, len(names)) for name in listed]

    def _take_over(self, own: Seen, names: list[str]) -> None:
        """Remember by their names what the rules have written of nodes."""
        until_s = own.node_times[NODE_TIME.nominated_s].tolist()
        self.nominated_s = {name: at_s for name, at_s in zip(names, until_s, strict=False) if at_s > -inf}
        planned, used = own.nodes[NODE.plan, : self._at["planned"]], own.nodes[NODE.used, : self._at["used"]]
        self._planned, self._used = (
            tuple(names[number] if number < len(names) else _GONE for number in each.tolist())
            for each in (planned, used)
        )
        if self._at["opened_s"] == inf:  # the batch has closed
            self._asked = frozenset()

    def _types_of(self, claim: Claim | int, work: RuleWork) -> tuple[InstanceType, ...]:
        """Return the types of a claim, the cheapest first."""
        if isinstance(claim, Claim):
            return types_of(self.catalogue, claim, most=rules.MOST_TYPES)
        return tuple(self.catalogue.types[kind] for kind in np.flatnonzero(work.fits[claim])[: rules.MOST_TYPES])

    def _offered(self, claims: Sequence[Claim]) -> tuple[InstanceType, ...]:
        """Return the types of the plan, the cheapest first, in its offerings; `claims`: of pods with constraints."""
        types = types_of(self.catalogue, claims[0]) if claims else self.catalogue.types
        ways = [(kind, self._plan_types[self.catalogue.numbers[kind.name]]) for kind in types]
        return tuple(kind.of(("spot",)) if way == PLAN_SPOT else kind for kind, way in ways if way != PLAN_NO)


class _Packer:
    """Packs pods with scheduling constraints where compiled rules pack: `packing.pack` on their arrays.

    `claims`: those for pods that are moved, by the nodes that would go, as first found; `provisioned`: those
    for pods that wait.
    """

    def __init__(self, catalogue: Catalogue, seen: Observed, work: RuleWork) -> None:
        self.claims: dict[frozenset[str], tuple[Claim, ...]] = {}
        self.provisioned: tuple[Claim, ...] = ()
        self.raised: BaseException | None = None
        self._catalogue, self._seen, self._work = catalogue, seen, work
        self._pods, self._nodes = pods_of(seen), list(seen.nodes.values())
        self.is_needed = any(map(is_constrained, self._pods))

    @cached_property
    def _placed(self) -> Placed:
        return Placed(self._seen, Wishes.known(self._seen).rules)

    def __call__(self, room: int, ready: int, pods: int, moving: int) -> int:
        """Pack as `packing_rules.pack` does. What is raised is kept: compiled code would go on."""
        try:
            return self._pack(room, ready, pods, bool(moving))
        except BaseException as error:  # noqa: BLE001  (it is raised once compiled code has returned)
            self.raised = error
            return FAILED

    def _pack(self, room: int, ready: int, pods: int, moving: bool) -> int:
        work, nodes = self._work, [self._nodes[number] for number in self._work.numbers[:room].tolist()]
        there = FreeCapacity(
            nodes, work.free[:room], work.consolidatable[:room], np.arange(room) < ready,
            {node.name: number for number, node in enumerate(nodes)}, work.gpu_free[:room], self._seen, self._placed,
        )  # fmt: skip
        numbers = work.packed[:pods]
        moved = {self._pods[number].uid for number in numbers[work.marked[:pods]].tolist()} if moving else set[str]()
        gone = frozenset(nodes[number].name for number in np.flatnonzero(work.gone[:room]).tolist())
        listed = [self._pods[number] for number in sorted(numbers.tolist())]
        packed = pack(self._catalogue, there, listed, moved, gone, most_claims=1 if moving else inf)
        work.used[:room] = [node.name in packed.used for node in nodes]
        if packed.failed and moving:
            return FAILED
        for number, claim in enumerate(packed.claims):
            work.fits[number], work.order[number] = claim.fits, number
        if not moving:
            self.provisioned = packed.claims
        elif packed.claims:
            self.claims.setdefault(gone, packed.claims)
            self._offer(packed.claims[0])
        return len(packed.claims)

    def _offer(self, claim: Claim) -> None:
        """Write what the types of a claim cost, in the offerings that its pods allow."""
        types, ways = types_of(self._catalogue, claim), self._work.ways
        kinds = [self._catalogue.numbers[kind.name] for kind in types]
        ways[WAY.kind] = [*kinds, *(kind for kind in range(len(self._catalogue)) if kind not in kinds)]
        offers = offers_of(types)
        for column, offer in (
            (WAY.price, OFFER.price), (WAY.worst, OFFER.worst), (WAY.spot, OFFER.spot),
            (WAY.spot_worst, OFFER.spot_worst),
        ):  # fmt: skip
            ways[column], ways[column, : len(kinds)] = inf, offers[offer]


def terms_of(settings: KarpenterSettings) -> Mapping[str, float]:
    """Return the numbers of Karpenter's settings in `aaml.nodes.rows.TERMS`."""
    after_s = settings.consolidate_after_s
    return {
        "budgets": len(settings.budgets), "policy": rules.POLICIES[settings.consolidation_policy],
        "consolidate_after_s": nan if after_s is None else after_s,
        "batch_idle_duration_s": settings.batch_idle_duration_s,
        "batch_max_duration_s": settings.batch_max_duration_s, "poll_s": settings.poll_s,
        "validation_s": settings.validation_s, "spot_to_spot": settings.spot_to_spot_consolidation,
    }  # fmt: skip


def budgets_of(settings: KarpenterSettings) -> Array:
    """Return int64 [2, U], how many nodes may go at once by each budget, and whether that is a percentage."""
    budgets = [(int(text.rstrip("%")), text.endswith("%")) for text in settings.budgets]
    return np.ascontiguousarray(np.array(budgets, np.int64).reshape(-1, 2).T)
