"""Savings plans (dollars an hour) and reservations (so many of a type), and what nodes cost with them.

What is committed is paid whether it is used or not. The rule is AWS's: reservations are used first, those of a zone
before those of any; then savings plans, those of some types before those of all, each where its discount is highest,
at equal discounts where its rate is lowest; what is left is paid on demand
(https://docs.aws.amazon.com/savingsplans/latest/userguide/sp-applying.html). A plan covers a part of a node where it
does not reach for all of it.

The file has `apiVersion: aaml.dev/v1`, `kind: Commitments` and both lists under `spec`.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta

from aaml.cluster.kernels import interpreted, without_refcount
from aaml.errors import UserError, bad_value, did_you_mean
from aaml.nodes.catalogue import CapacityType
from aaml.schema import convert, of_kind, of_yaml, read_bytes

FloatArray = npt.NDArray[np.float64]
API_VERSION, KIND = "aaml.dev/v1", "Commitments"
_Dollars = Annotated[float, Meta(ge=0)]
_Discount = Annotated[float, Meta(ge=0, lt=1)]
_Name = Annotated[str, Meta(min_length=1)]
_ALL, _SHOWN = "all types", 8


class SavingsPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel", kw_only=True):
    """So many dollars an hour, at the plan's rates, for nodes of some types: of all where none are named.

    `discount` is the share of the on-demand price that a plan takes off, `discounts` those of families or types that
    have another.
    """

    dollars_per_hour: _Dollars
    discount: _Discount
    discounts: dict[_Name, _Discount] = {}
    families: tuple[_Name, ...] = ()
    instance_types: tuple[_Name, ...] = ()
    name: str = ""

    @property
    def of_all(self) -> bool:
        """Whether it is for all types."""
        return not (self.families or self.instance_types)

    def discount_of(self, kind: str) -> float | None:
        """Return the share of a type's price that it takes off, None where it is not for that type."""
        if not (self.of_all or kind in self.instance_types or family(kind) in self.families):
            return None
        return self.discounts.get(kind, self.discounts.get(family(kind), self.discount))


class Reservation(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel", kw_only=True):
    """So many instances of a type, in a zone or in any, and what each of them costs an hour."""

    instance_type: _Name
    count: Annotated[int, Meta(ge=0)]
    dollars_per_hour: _Dollars
    zone: str = ""
    name: str = ""


class Pool(NamedTuple):
    """Nodes that are alike to commitments: of one type, zone, capacity type and price, dollars an hour.

    Commitments pay for no spot nodes.
    """

    type: str
    zone: str
    price: float
    capacity_type: CapacityType = "on-demand"


class Commitments(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel", kw_only=True):
    """All that was committed to."""

    savings_plans: tuple[SavingsPlan, ...] = ()
    reservations: tuple[Reservation, ...] = ()

    def over(self, pools: Sequence[Pool]) -> "Book":
        """Return what they make of nodes in these pools."""
        return Book(self, tuple(pools))

    @property
    def names(self) -> tuple[str, ...]:
        """What each is called, reservations first."""
        return (
            *(each.name or _called(each) for each in self.reservations),
            *(each.name or f"savings plan {number}: {_for(each)}" for number, each in enumerate(self.savings_plans, 1)),
        )

    @property
    def amounts(self) -> FloatArray:
        """float64 [C], instances of each reservation, then dollars an hour of each plan."""
        counts = [each.count for each in self.reservations]
        return np.array([*counts, *(each.dollars_per_hour for each in self.savings_plans)], dtype=np.float64)

    @property
    def unit_dollars(self) -> FloatArray:
        """float64 [C], what one of each amount costs an hour."""
        return np.array([*(each.dollars_per_hour for each in self.reservations), *(1.0 for _ in self.savings_plans)])

    def check(self, types: Iterable[str], where: str) -> None:
        """Raise `UserError` for a type or family that none of these types is: a misspelt plan would pay for nothing."""
        known = set(types)
        families = {family(each) for each in known}
        for number, each in enumerate(self.reservations):
            _check(f"{where}: spec.reservations[{number}].instanceType", each.instance_type, known)
        for number, plan in enumerate(self.savings_plans):
            at = f"{where}: spec.savingsPlans[{number}]"
            for name in plan.families:
                _check(f"{at}.families", name, families)
            for name in plan.instance_types:
                _check(f"{at}.instanceTypes", name, known)
            for name in plan.discounts:
                _check(f"{at}.discounts", name, known | families)


NOTHING_COMMITTED = Commitments()


def _check(field: str, name: str, known: set[str]) -> None:
    if name not in known:
        names = sorted(known)
        shown = ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
        raise UserError(f"{field}: {name!r} is not accepted{did_you_mean(name, names)}; expected one of {shown}")


def _called(each: Reservation) -> str:
    return f"{each.count} reserved {each.instance_type}{f' in {each.zone}' if each.zone else ''}"


def _for(plan: SavingsPlan) -> str:
    return _ALL if plan.of_all else ", ".join((*plan.families, *plan.instance_types))


def family(kind: str) -> str:
    """Return the family of an instance type: its name up to the first "." or "-"."""
    return re.split("[.-]", kind, maxsplit=1)[0]


# ---- the file --------------------------------------------------------------------------------------------------------


class _File(msgspec.Struct, forbid_unknown_fields=True):
    apiVersion: str  # noqa: N815  (the file's name for it)
    kind: str
    spec: Commitments
    metadata: dict[str, Any] = {}


def read_commitments(path: Path, types: Iterable[str] = ()) -> Commitments:
    """Read the commitments of a YAML file. Raises `UserError` for what is none, and for types that are not in `types`.

    Without `types` any name is taken.
    """
    accepted = f"a YAML file with a {KIND} of {API_VERSION}"
    found = of_kind(of_yaml(read_bytes(path, "commitments", accepted), str(path)), {KIND: API_VERSION}, str(path))
    if found is None:
        raise bad_value("commitments", str(path), accepted)
    read = convert(found, _File, str(path)).spec
    if not (read.savings_plans or read.reservations):
        raise bad_value(f"{path}: spec", "nothing", "savingsPlans or reservations")
    for number, plan in enumerate(read.savings_plans):
        for name in plan.discounts:
            covered = plan.of_all or name in (*plan.families, *plan.instance_types) or family(name) in plan.families
            if not covered:
                field = f"{path}: spec.savingsPlans[{number}].discounts"
                raise bad_value(field, name, f"a type or family that the plan is for: {_for(plan)}")
    if known := tuple(types):
        read.check(known, str(path))
    return read


# ---- what nodes cost -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Settled:
    """What nodes have cost in some time, in dollars, and for how much of it there were commitments.

    `committed` [C]: paid for each commitment. `used` [C]: how much of that nodes have used, at the commitments' rates.
    `covered` [P]: the part of each pool's price that commitments pay for, on demand. `on_demand` [P]: what is left of
    it, and paid. `costs` [P]: what each pool costs with its part of the commitments, `unused` left aside.
    """

    committed: FloatArray
    used: FloatArray
    covered: FloatArray
    on_demand: FloatArray
    costs: FloatArray

    @property
    def total(self) -> "Covered":
        """The same for all commitments and pools together."""
        committed = float(self.committed.sum())
        return Covered(
            committed,
            max(committed - float(self.used.sum()), 0.0),
            float(self.covered.sum()),
            float(self.on_demand.sum()),
        )


@dataclass(frozen=True, slots=True)
class Covered:
    """What is paid, dollars: for commitments, how much of that is `unused`, and on demand for nodes beside them.

    `covered`: what the nodes that commitments pay for would cost on demand. Spot nodes are in none of these.
    """

    committed: float = 0.0
    unused: float = 0.0
    covered: float = 0.0
    on_demand: float = 0.0

    def __add__(self, other: "Covered") -> "Covered":
        return Covered(
            self.committed + other.committed, self.unused + other.unused, self.covered + other.covered,
            self.on_demand + other.on_demand,
        )  # fmt: skip

    @property
    def paid(self) -> float:
        """Dollars in all."""
        return self.committed + self.on_demand


@dataclass(frozen=True, eq=False)
class Book:
    """Commitments over pools of nodes: C commitments, P pools, S steps.

    =======  =============  ========================================================================================
    amounts  float64 [C]    instances, or dollars an hour
    prices   float64 [P]    on demand, dollars an hour
    steps    float64 [S, 3] in the order in which commitments are used: the commitment, the pool, and what of the
                            commitment's amount a node takes
    =======  =============  ========================================================================================
    """

    commitments: Commitments
    pools: tuple[Pool, ...]

    @cached_property
    def amounts(self) -> FloatArray:
        """Instances, or dollars an hour, of each commitment."""
        return self.commitments.amounts

    @cached_property
    def prices(self) -> FloatArray:
        """Dollars an hour of each pool."""
        return np.array([each.price for each in self.pools], dtype=np.float64)

    @cached_property
    def steps(self) -> FloatArray:
        """Which commitment is used for which pool, in order, and how much of it by a node."""
        found: list[tuple[tuple[float, ...], int, Pool, int, float]] = []
        reservations = self.commitments.reservations
        for c, reservation in enumerate(reservations):
            for p, pool in enumerate(self.pools):
                is_for = pool.type == reservation.instance_type and reservation.zone in ("", pool.zone)
                if is_for and pool.capacity_type != "spot":
                    order = (not reservation.zone, pool.capacity_type != "reserved", -pool.price)
                    found.append((order, c, pool, p, 1.0))
        for c, plan in enumerate(self.commitments.savings_plans, len(reservations)):
            for p, pool in enumerate(self.pools):
                discount = plan.discount_of(pool.type)
                if discount is not None and pool.price > 0.0 and pool.capacity_type == "on-demand":
                    rate = pool.price * (1.0 - discount)
                    found.append(((2.0 + plan.of_all, -discount, rate), c, pool, p, rate))
        return np.array([(c, p, rate) for _, c, _, p, rate in sorted(found)], dtype=np.float64).reshape(-1, 3)

    @cached_property
    def fixed(self) -> float:
        """What is paid whether it is used or not, dollars an hour."""
        return float(self.amounts @ self.commitments.unit_dollars)

    def settled(self, nodes: Sequence[float] | FloatArray, hours: float = 1.0) -> Settled:
        """Return what so many node-hours of each pool cost in so many hours."""
        there = np.asarray(nodes, dtype=np.float64)
        left, free, taken = np.zeros(len(self.pools)), np.zeros(len(self.amounts)), np.zeros(len(self.steps))
        interpreted(settle)(self.amounts, self.steps, self.prices, there, hours, left, free, taken)
        which, pools = self.steps[:, 0].astype(np.int64), self.steps[:, 1].astype(np.int64)
        units = self.commitments.unit_dollars
        dollars = taken * self.steps[:, 2] * units[which]
        on_demand, costs, used = left * self.prices, left * self.prices, np.zeros(len(units))
        np.add.at(costs, pools, dollars)
        np.add.at(used, which, dollars)
        return Settled(self.amounts * units * hours, used, (there - left) * self.prices, on_demand, costs)


@without_refcount
def settle(
    amounts: FloatArray, steps: FloatArray, prices: FloatArray, nodes: FloatArray, hours: float, left: FloatArray,
    free: FloatArray, taken: FloatArray,
) -> float:  # fmt: skip
    """Let commitments pay for nodes: so many node-hours of each pool [P] in so many hours.

    `amounts`, `steps` and `prices` are those of a `Book`. Returns what the nodes would cost on demand that commitments
    pay for, dollars. Writes what is paid on demand into `left` [P], in node-hours, what is
    left of the commitments into `free` [C], and how many node-hours each step pays for into `taken`, where that has
    elements.
    """
    for pool in range(len(nodes)):
        left[pool] = nodes[pool]
    for which in range(len(amounts)):
        free[which] = amounts[which] * hours
    dollars = 0.0
    for step in range(len(steps)):
        which, pool, rate = int(steps[step, 0]), int(steps[step, 1]), steps[step, 2]
        most = free[which] / rate
        covered = min(left[pool], most)
        if left[pool] <= most:
            left[pool], free[which] = 0.0, max(free[which] - covered * rate, 0.0)
        else:
            left[pool], free[which] = left[pool] - covered, 0.0
        dollars += covered * prices[pool]
        if len(taken):
            taken[step] = covered
    return dollars
