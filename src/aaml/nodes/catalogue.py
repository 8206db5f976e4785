"""Instance types, their offerings, and a catalogue of them."""

import re
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, Self

import numpy as np
import numpy.typing as npt

from aaml.cluster.objects import (
    ARCH_LABEL,
    CAPACITY_TYPE_LABEL,
    HOSTNAME_LABEL,
    OS_LABEL,
    PRICE_LABEL,
    TYPE_LABEL,
    ZONE_LABEL,
    Node,
    Pod,
)
from aaml.cluster.quantity import CPU, MEMORY, PODS, format_bytes, format_cpu
from aaml.errors import UserError, bad_value
from aaml.nodes.requirements import (
    ANY,
    CPU_LABEL,
    DESCRIBING,
    FAMILY_LABEL,
    MEMORY_LABEL,
    SIZE_LABEL,
    WELL_KNOWN,
    Labels,
    compatible,
    meet,
    only,
    usual_key,
    with_former_names,
)

CapacityType = Literal["on-demand", "spot", "reserved"]
Selection = frozenset[tuple[str, str]]
"""Zones and capacity types that a pod selects: labels with their values."""
FREE = "a price above 0; for capacity that is paid for already say a small one, as Karpenter does for reservations"
CAPACITY_TYPES: tuple[CapacityType, ...] = ("reserved", "spot", "on-demand")
"""Which are launched first."""
KUBELET: Mapping[str, int] = {CPU: 100, MEMORY: 10 << 20}
"""What Karpenter's KWOK provider keeps from pods on every node."""
_AWS_SIZE = re.compile(r"\w+\.(nano|micro|small|medium|large|\d*xlarge|metal)")
_SHOWN = 12  # values that a message lists
IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Offering:
    """A zone and capacity type in which an instance type is offered, in dollars an hour."""

    price: float
    capacity_type: CapacityType = "on-demand"
    zone: str = ""

    @property
    def labels(self) -> Labels:
        """What labels a node of this offering has."""
        zone = {ZONE_LABEL: only(self.zone)} if self.zone else {}
        return {CAPACITY_TYPE_LABEL: only(self.capacity_type), **zone}


@dataclass(frozen=True, slots=True)
class InstanceType:
    """A kind of node that can be provisioned.

    `allocatable` are pairs of a resource and what pods can have of it. It has `gpu_count` devices, which pods may share
    by thousandths. `watts_idle` is what a node draws without pods,
    `watts_per_core` what each requested core adds.
    """

    name: str
    allocatable: tuple[tuple[str, int], ...]
    offerings: tuple[Offering, ...]
    arch: str = "amd64"
    os: str = "linux"
    watts_idle: float = 0.0
    watts_per_core: float = 0.0
    gpu_count: int = 0
    gpu_model: str = ""

    @property
    def cheapest(self) -> Offering:
        """The offering that is launched; of several at one price the first."""
        return min(self.offerings, key=lambda offering: offering.price)

    @property
    def launched(self) -> tuple[Offering, ...]:
        """The offerings of which any may be launched: those of the least price."""
        return tuple(each for each in self.offerings if each.price == self.cheapest.price)

    def worst_price(self, capacity_type: CapacityType | None = None) -> float:
        """Return the dearest price of what would be launched: reserved before spot before on-demand, or that type."""
        for kind in CAPACITY_TYPES if capacity_type is None else (capacity_type,):
            prices = [offering.price for offering in self.offerings if offering.capacity_type == kind]
            if prices:
                return max(prices)
        return float("inf")

    @property
    def has_room(self) -> bool:
        """Whether CPU and memory are left for pods."""
        return all(value > 0 for name, value in self.allocatable if name in KUBELET)

    def of(self, capacity_types: Sequence[CapacityType]) -> Self:
        """Return this type with the offerings of these capacity types alone."""
        return replace(self, offerings=tuple(each for each in self.offerings if each.capacity_type in capacity_types))

    def within(self, labels: Labels) -> Self:
        """Return this type with the offerings alone that labels allow."""
        left = tuple(each for each in self.offerings if compatible(labels, each.labels, WELL_KNOWN))
        return self if len(left) == len(self.offerings) else replace(self, offerings=left)

    def meeting(self, labels: Labels) -> Self:
        """Return this type with the offerings that labels allow; with none where they do not allow the type."""
        mine = self.ranges if labels.keys().isdisjoint(DESCRIBING) else self.described
        return self.within(labels) if meet(mine, labels) else replace(self, offerings=())

    @property
    def described(self) -> Labels:
        """What a NodePool may ask for: `ranges`, and the labels of Karpenter's KWOK provider (`kwok/cloudprovider`)."""
        there = {name: value + KUBELET.get(name, 0) for name, value in self.allocatable}
        cores, size = format_cpu(there.get(CPU, 0)), _AWS_SIZE.fullmatch(self.name)
        family, *rest = re.split("[.-]", self.name, maxsplit=1)
        return {
            **self.ranges,
            SIZE_LABEL: only(size[1] if size else cores),
            FAMILY_LABEL: only(family if rest else self.name[:1]),
            CPU_LABEL: only(cores),
            MEMORY_LABEL: only(format_bytes(there.get(MEMORY, 0))),
        }

    @property
    def ranges(self) -> Labels:
        """What labels a node of this type may have, of one offering or another."""
        return {
            TYPE_LABEL: only(self.name),
            ARCH_LABEL: only(self.arch),
            OS_LABEL: only(self.os),
            ZONE_LABEL: only(*(each.zone for each in self.offerings if each.zone)),
            CAPACITY_TYPE_LABEL: only(*(each.capacity_type for each in self.offerings)),
        }

    def labels(self, offering: Offering) -> dict[str, str]:
        """Return the labels of a node of this type and offering."""
        zone = {ZONE_LABEL: offering.zone} if offering.zone else {}
        return {
            TYPE_LABEL: self.name,
            CAPACITY_TYPE_LABEL: offering.capacity_type,
            PRICE_LABEL: f"{offering.price:f}",
            ARCH_LABEL: self.arch,
            OS_LABEL: self.os,
            **zone,
        }

    def node(self, name: str, offering: Offering) -> Node:
        """Return a node of this type."""
        labels = with_former_names({**self.labels(offering), HOSTNAME_LABEL: name})
        return Node(name, dict(self.allocatable), labels, gpu_count=self.gpu_count, gpu_model=self.gpu_model)


@dataclass(frozen=True)
class Catalogue:
    """What can be provisioned, cheapest first, and the same as arrays. All prices are above 0.

    A name stands for one type, which is there several times where its offerings stand apart (`apart`); by name
    it is the cheapest of them. Types of one price stand by name, as the KWOK provider of Karpenter chooses among them.
    Columns of `room` int64 [T, R] and of what `request` returns are `resources`; `prices` float64 [T] are those that a
    launch pays.
    """

    types: tuple[InstanceType, ...]
    numbers: Mapping[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.types:
            raise bad_value("instance types", [], "at least one type with an offering")
        names = [each.name for each in self.types]
        for each in self.types:
            if not each.offerings:
                raise bad_value(f"instance type {each.name}: offerings", [], "at least one that is available")
            if min(offering.price for offering in each.offerings) <= 0.0:
                raise bad_value(f"instance type {each.name}: Price", 0.0, FREE)
        several = (name for name, count in Counter(names).items() if count > 1)
        if twice := next((name for name in several if not self._stand_apart(name)), ""):
            raise bad_value("instance types", twice, "each name once")
        ordered = tuple(sorted(self.types, key=lambda each: (each.cheapest.price, each.name)))
        object.__setattr__(self, "types", ordered)
        numbers = dict(reversed([(each.name, number) for number, each in enumerate(ordered)]))  # the first of a name
        object.__setattr__(self, "numbers", numbers)

    def _stand_apart(self, name: str) -> bool:
        """Whether all that a name stands for is one type, each time with other offerings."""
        alike = [each for each in self.types if each.name == name]
        ways = [offering for each in alike for offering in each.offerings]
        return len({replace(each, offerings=()) for each in alike}) == 1 and len(set(ways)) == len(ways)

    def __deepcopy__(self, _memo: object) -> "Catalogue":
        """Return itself: it never changes."""
        return self

    def __len__(self) -> int:
        """Return T, the number of types."""
        return len(self.types)

    def __getitem__(self, name: str) -> InstanceType:
        """Return a type by name. Raises KeyError for none."""
        return self.types[self.numbers[name]]

    @cached_property
    def resources(self) -> tuple[str, ...]:
        """The resources that some type offers: CPU, memory, places for pods, others."""
        named = {resource for each in self.types for resource, _ in each.allocatable}
        return CPU, MEMORY, PODS, *sorted(named - {CPU, MEMORY, PODS})

    @cached_property
    def _vectors(self) -> dict[int, tuple[Mapping[str, int], IntArray]]:
        """What `request` returned, by the identity of a pod's requests, which pods of a kind share."""
        return {}

    @cached_property
    def room(self) -> IntArray:
        """[T, R] what a node of each type offers."""
        offered = [dict(each.allocatable) for each in self.types]
        return np.array([[each.get(resource, 0) for resource in self.resources] for each in offered], dtype=np.int64)

    @cached_property
    def prices(self) -> npt.NDArray[np.float64]:
        """[T] dollars an hour."""
        return np.array([each.cheapest.price for each in self.types])

    @cached_property
    def gpu_count(self) -> IntArray:
        """[T] devices of each type."""
        return np.array([each.gpu_count for each in self.types], dtype=np.int64)

    def request(self, pod: Pod) -> IntArray:
        """Return [R], what a pod takes of a node, its GPUs aside; not to be changed."""
        requests = pod.requests
        known = self._vectors.get(id(requests))
        if known is None:
            row = [1 if name == PODS else requests.get(name, 0) for name in self.resources]
            known = self._vectors[id(requests)] = requests, np.array(row, dtype=np.int64)
        return known[1]

    def lacking(self, pod: Pod) -> str:
        """Return the first resource that a pod requests and no type names, "" where there is none."""
        return next((name for name, amount in pod.requests.items() if amount and name not in self.resources), "")

    def fits(self, pod: Pod, *, launched: bool = False) -> npt.NDArray[np.bool_]:
        """Return [T], which types have room for a pod and carry the labels that it selects, in some offering.

        With `launched` they do in whichever way they are launched where nobody says how.
        """
        fits = self.has_room(pod)
        if pod.node_selector:
            fits &= np.array([
                all(selected(pod, each.labels(way)) for way in each.launched) if launched
                else any(selected(pod, each.labels(way)) for way in each.offerings)
                for each in self.types
            ])  # fmt: skip
        return fits

    def apart(self, selections: Iterable[Selection]) -> "Catalogue":
        """Return these types with their offerings apart, as far as pods select between them.

        For each selection of zones and capacity types that not every launch of a type meets there is the type once
        more, with its cheapest offering that does. This catalogue is returned where there is none.
        """
        wanted = sorted(map(sorted, selections))
        types = [part for each in self.types for part in _parts(each, [dict(labels) for labels in wanted])]
        return self if len(types) == len(self.types) else Catalogue(tuple(types))

    def has_room(self, pod: Pod) -> npt.NDArray[np.bool_]:
        """Return [T], which types have room for a pod, and its GPUs: none that does not name all that it requests."""
        if self.lacking(pod):
            return np.zeros(len(self), dtype=np.bool_)
        fits = all_columns(self.room >= self.request(pod))
        if pod.gpu.total_milli:
            fits &= self.gpu_count >= pod.gpu.count
            if pod.gpu.models:
                fits &= np.array([each.gpu_model in pod.gpu.models for each in self.types])
        return fits

    @cached_property
    def domains(self) -> Mapping[str, frozenset[str]]:
        """The values that types have of each label."""
        found: dict[str, set[str]] = {}
        for each in self.types:
            for key, values in each.ranges.items():
                found.setdefault(key, set()).update(values.listed)
        return {key: frozenset(values) for key, values in found.items()}

    @cached_property
    def _allowed(self) -> dict[Hashable, npt.NDArray[np.bool_]]:
        """What `allowed` returned, by what it was asked."""
        return {}

    def allowed(self, labels: Labels) -> npt.NDArray[np.bool_]:
        """Return [T], which types can be provisioned with such labels, whatever room they have; not to be changed."""
        theirs = {key: labels[key] for key in self.domains if key in labels}
        key = tuple(theirs.items())
        if key not in self._allowed:
            self._allowed[key] = np.array([
                meet(each.ranges, theirs) and any(compatible(theirs, one.labels, WELL_KNOWN) for one in each.offerings)
                for each in self.types
            ])  # fmt: skip
        return self._allowed[key]

    def meeting(self, labels: Labels) -> "Catalogue":
        """Return what may be provisioned under these labels (Karpenter's `filterInstanceTypesByRequirements`).

        Raises `UserError` that names the label that leaves nothing.
        """
        left = [each.meeting(labels) for each in self.types]
        if all(mine is theirs for mine, theirs in zip(self.types, left, strict=True)):
            return self
        if not any(each.offerings for each in left):
            raise _nothing_left(self.types, labels)
        return Catalogue(tuple(each for each in left if each.offerings))


def selection(pod: Pod) -> Selection:
    """Return what a pod selects of zones and capacity types, by today's names of labels."""
    labels = ((usual_key(key), value) for key, value in pod.node_selector.items())
    return frozenset(each for each in labels if each[0] in (ZONE_LABEL, CAPACITY_TYPE_LABEL))


def _parts(kind: InstanceType, wanted: Iterable[Mapping[str, str]]) -> list[InstanceType]:
    """Return a type, and once more for each selection that not every launch of it meets."""

    def meets(way: Offering, labels: Mapping[str, str]) -> bool:
        there = kind.labels(way)
        return all(there.get(key) == value for key, value in labels.items())

    ways: list[Offering] = []
    for labels in wanted:
        if not all(meets(way, labels) for way in kind.launched):
            best = min((way for way in kind.offerings if meets(way, labels)), key=lambda way: way.price, default=None)
            if best is not None and best not in ways:
                ways.append(best)
    if not ways:
        return [kind]
    left = tuple(way for way in kind.offerings if way not in ways)
    usual = [replace(kind, offerings=left)] if set(kind.launched).intersection(left) else []
    return [*usual, *(replace(kind, offerings=(way,)) for way in ways)]


def _nothing_left(types: Sequence[InstanceType], labels: Labels) -> UserError:
    for key, values in labels.items():
        left = [found for each in types if (found := each.meeting({key: values})).offerings]
        if not left:
            there = sorted({value for each in types for value in each.described.get(key, ANY).listed})
            more = f" and {len(there) - _SHOWN} more" if len(there) > _SHOWN else ""
            return bad_value(f"requirement on {key}", str(values), f"some of {', '.join(there[:_SHOWN])}{more}")
        types = left
    return bad_value("instance types", [], "at least one type with an offering")


def all_columns(fits: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Return [N], which rows of [N, R] are true throughout (a third of the time of `all(axis=1)`)."""
    rows: npt.NDArray[np.bool_] = np.logical_and.reduce(fits, axis=1)
    return rows


def selected(pod: Pod, labels: Mapping[str, str]) -> bool:
    """Whether a node with these labels is one that the pod's node selector asks for, by former names of labels too."""
    return all(labels.get(usual_key(key)) == value for key, value in pod.node_selector.items())


def per_value(catalogue: Catalogue, size_power: float) -> npt.NDArray[np.float64]:
    """Return float64 [T], what a type's value is divided by: its price, times its cores to a power."""
    cores: npt.NDArray[np.float64] = catalogue.room[:, 0] / 1000.0
    return catalogue.prices * cores**size_power


def price_of(kinds: Iterable[InstanceType]) -> float:
    """Return what a node of each type costs together, dollars an hour."""
    return sum(kind.cheapest.price for kind in kinds)
