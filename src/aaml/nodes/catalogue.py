"""Instance types and their prices, in the file format of Karpenter's KWOK provider (`kwok/examples` in its module).

A file is a JSON list. Of each type it says `name`, `architecture`, `operatingSystems`, `resources` (Kubernetes
quantities) and `offerings`: each with a `Price` in dollars an hour and `Requirements` on the capacity type and zone.
Ours may also say `watts`: `{"idle": 60, "per_core": 4}`, what a node draws without pods and more for each core that
pods request; and `gpu_model` beside the resource `nvidia.com/gpu`. Karpenter does not read these.
"""

import json
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta

from aaml.cluster.gpu import MOST_DEVICES
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
from aaml.cluster.quantity import CPU, MEMORY, PODS, amount
from aaml.errors import bad_value
from aaml.nodes.requirements import WELL_KNOWN, Labels, compatible, meet, only

CapacityType = Literal["on-demand", "spot", "reserved"]
_LAUNCHED_FIRST: tuple[CapacityType, ...] = ("reserved", "spot", "on-demand")
_KUBELET = {CPU: 100, MEMORY: 10 << 20}  # what Karpenter's KWOK provider keeps from pods on every node
_GPU = "nvidia.com/gpu"
_PODS = 110  # where a type does not say how many pods a node takes
_ARCHITECTURES = {"x86_64": "amd64"}  # a NodePool asks for amd64
IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Offering:
    """One way to buy an instance type, in dollars an hour."""

    price: float
    capacity_type: CapacityType = "on-demand"
    zone: str = ""

    @property
    def labels(self) -> Labels:
        """What labels a node has that is bought so."""
        zone = {ZONE_LABEL: only(self.zone)} if self.zone else {}
        return {CAPACITY_TYPE_LABEL: only(self.capacity_type), **zone}


@dataclass(frozen=True, slots=True)
class InstanceType:
    """A kind of node that can be bought.

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

    def worst_price(self, capacity_type: CapacityType | None = None) -> float:
        """Return the dearest price of what would be launched: reserved before spot before on-demand, or that type."""
        for kind in _LAUNCHED_FIRST if capacity_type is None else (capacity_type,):
            prices = [offering.price for offering in self.offerings if offering.capacity_type == kind]
            if prices:
                return max(prices)
        return float("inf")

    def of(self, capacity_types: Sequence[CapacityType]) -> Self:
        """Return this type with the offerings of these capacity types alone."""
        return replace(self, offerings=tuple(each for each in self.offerings if each.capacity_type in capacity_types))

    def within(self, labels: Labels) -> Self:
        """Return this type with the offerings alone that labels allow."""
        left = tuple(each for each in self.offerings if compatible(labels, each.labels, WELL_KNOWN))
        return self if len(left) == len(self.offerings) else replace(self, offerings=left)

    @property
    def ranges(self) -> Labels:
        """What labels a node of this type may have, bought in one way or another."""
        return {
            TYPE_LABEL: only(self.name),
            ARCH_LABEL: only(self.arch),
            OS_LABEL: only(self.os),
            ZONE_LABEL: only(*(each.zone for each in self.offerings if each.zone)),
            CAPACITY_TYPE_LABEL: only(*(each.capacity_type for each in self.offerings)),
        }

    def labels(self, offering: Offering) -> dict[str, str]:
        """Return the labels of a node of this type that was bought so."""
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
        labels = {**self.labels(offering), HOSTNAME_LABEL: name}
        return Node(name, dict(self.allocatable), labels, gpu_count=self.gpu_count, gpu_model=self.gpu_model)


@dataclass(frozen=True)
class Catalogue:
    """What can be bought, cheapest first, and the same as arrays.

    Types of one price stand by name, as the KWOK provider of Karpenter chooses among them. Columns of `room` int64
    [T, R] and of what `request` returns are `resources`; `prices` float64 [T] are those that a launch pays.
    """

    types: tuple[InstanceType, ...]
    numbers: Mapping[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.types:
            raise bad_value("instance types", [], "at least one type with an offering")
        ordered = tuple(sorted(self.types, key=lambda each: (each.cheapest.price, each.name)))
        object.__setattr__(self, "types", ordered)
        object.__setattr__(self, "numbers", {each.name: number for number, each in enumerate(ordered)})

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

    def fits(self, pod: Pod) -> npt.NDArray[np.bool_]:
        """Return [T], which types have room for a pod and carry the labels that it selects, bought at their best."""
        room = self.has_room(pod)
        if pod.node_selector:
            room &= np.array([selected(pod, each.labels(each.cheapest)) for each in self.types])
        return room

    def has_room(self, pod: Pod) -> npt.NDArray[np.bool_]:
        """Return [T], which types have room for a pod, and its GPUs."""
        room = all_columns(self.room >= self.request(pod))
        if pod.gpu.total_milli:
            room &= self.gpu_count >= pod.gpu.count
            if pod.gpu.models:
                room &= np.array([each.gpu_model in pod.gpu.models for each in self.types])
        return room

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
        """Return [T], which types can be bought with such labels, whatever room they have; not to be changed."""
        asked = {key: labels[key] for key in self.domains if key in labels}
        key = tuple(asked.items())
        if key not in self._allowed:
            self._allowed[key] = np.array([
                meet(each.ranges, asked) and any(compatible(asked, one.labels, WELL_KNOWN) for one in each.offerings)
                for each in self.types
            ])  # fmt: skip
        return self._allowed[key]

    def named(self, names: Sequence[str]) -> "Catalogue":
        """Return the types with these names, all of them for no name. Raises `UserError` where none has."""
        if not names:
            return self
        left = tuple(each for each in self.types if each.name in names)
        if not left:
            raise bad_value("instance types", ", ".join(names), f"some of {', '.join(self.numbers)}")
        return Catalogue(left)

    def of(self, capacity_types: Sequence[CapacityType]) -> "Catalogue":
        """Return the types that can be bought so. Raises `UserError` where there is none."""
        left = [each.of(capacity_types) for each in self.types]
        return Catalogue(tuple(each for each in left if each.offerings))


def all_columns(fits: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Return [N], which rows of [N, R] are true throughout (a third of the time of `all(axis=1)`)."""
    rows: npt.NDArray[np.bool_] = np.logical_and.reduce(fits, axis=1)
    return rows


def selected(pod: Pod, labels: Mapping[str, str]) -> bool:
    """Whether a node with these labels is one that the pod's node selector asks for."""
    return all(labels.get(key) == value for key, value in pod.node_selector.items())


# ---- files -----------------------------------------------------------------------------------------------------------


class _Requirement(msgspec.Struct):
    key: str
    values: list[str] = []


class _Offering(msgspec.Struct):
    Price: Annotated[float, Meta(ge=0)]
    Requirements: list[_Requirement] = []
    Available: bool = True

    def value(self, key: str, usual: str) -> str:
        return next((each.values[0] for each in self.Requirements if each.key == key and each.values), usual)


class _Watts(msgspec.Struct):
    idle: Annotated[float, Meta(ge=0)] = 0.0
    per_core: Annotated[float, Meta(ge=0)] = 0.0


class _Type(msgspec.Struct):
    name: str
    offerings: list[_Offering]
    resources: dict[str, str]
    architecture: str = "amd64"
    operatingSystems: tuple[str, ...] = ("linux",)  # noqa: N815  (the file's name for it)
    watts: _Watts = msgspec.field(default_factory=_Watts)
    gpu_model: str = ""


def shipped_catalogue() -> Catalogue:
    """Return the made-up catalogue that ships: four families of shapes, on demand and spot, with watts."""
    return parse_catalogue(*_read(None))


def openb_catalogue() -> Catalogue:
    """Return the made-up catalogue with GPUs: sizes of nodes as in the openb trace, and smaller ones, on demand."""
    file = files("aaml.workload.data").joinpath("instance_types_openb.json")
    return parse_catalogue(file.read_bytes(), str(file))


def read_catalogue(
    path: Path, capacity_types: Sequence[CapacityType] = ("on-demand",), arch: str = "amd64", os: str = "linux"
) -> Catalogue:
    """Read the types of an architecture and operating system that can be bought so.

    Raises `UserError` for a file that is missing or says something else, and where no type is left.
    """
    return parse_catalogue(*_read(path), capacity_types, arch, os)


def read_types(path: Path | None) -> tuple[InstanceType, ...]:
    """Return all that a file offers, or without one what the catalogue that ships does. Raises `UserError`."""
    return parse_types(*_read(path))


def _read(path: Path | None) -> tuple[bytes, str]:
    """Return the text of a file, None for the one that ships, and its name."""
    if path is None:
        shipped = files("aaml.workload.data").joinpath("instance_types.json")
        return shipped.read_bytes(), str(shipped)
    try:
        return path.read_bytes(), str(path)
    except OSError as error:
        raise bad_value("instance types", str(path), f"a file that can be read ({error.strerror})") from error


def parse_catalogue(
    text: bytes, source: str, capacity_types: Sequence[CapacityType] = ("on-demand",), arch: str = "amd64",
    os: str = "linux",
) -> Catalogue:  # fmt: skip
    """Read a catalogue as `read_catalogue` does, from the text of a file."""
    chosen = [each for each in parse_types(text, source) if each.os == os and each.arch == arch]
    if not any(offering.capacity_type in capacity_types for each in chosen for offering in each.offerings):
        wanted = f"one with a type for {arch}, {os}, {' or '.join(capacity_types)}"
        raise bad_value("instance types", source, wanted)
    return Catalogue(tuple(chosen)).of(capacity_types)


def parse_types(text: bytes, source: str) -> tuple[InstanceType, ...]:
    """Return all that a file's text offers, a type for each operating system. Raises `UserError` for another text."""
    accepted = "a JSON list of instance types as Karpenter's KWOK provider reads it"
    try:
        listed = msgspec.json.decode(text, type=list[_Type])
    except msgspec.DecodeError as error:
        raise bad_value("instance types", source, f"{accepted} ({error})") from error
    return tuple(_instance_type(each, os) for each in listed for os in each.operatingSystems)


def _instance_type(read: _Type, os: str) -> InstanceType:
    amounts = {name: amount(name, text) for name, text in {PODS: str(_PODS), **read.resources}.items()}
    allocatable = tuple((name, max(0, value - _KUBELET.get(name, 0))) for name, value in amounts.items())
    offerings = tuple(
        Offering(each.Price, _capacity_type(read, each), each.value(ZONE_LABEL, ""))
        for each in read.offerings
        if each.Available
    )
    arch = _ARCHITECTURES.get(read.architecture, read.architecture)
    return InstanceType(
        read.name, allocatable, offerings, arch, os, read.watts.idle, read.watts.per_core,
        min(amounts.get(_GPU, 0), MOST_DEVICES), read.gpu_model,
    )  # fmt: skip


def _capacity_type(read: _Type, offering: _Offering) -> CapacityType:
    said = offering.value(CAPACITY_TYPE_LABEL, "on-demand")
    for kind in _LAUNCHED_FIRST:
        if said == kind:
            return kind
    raise bad_value(f"instance type {read.name}: {CAPACITY_TYPE_LABEL}", said, f"one of {', '.join(_LAUNCHED_FIRST)}")


def written_catalogue(types: Iterable[InstanceType]) -> str:
    """Return types as the text of a file that Karpenter's KWOK provider reads, and `read_catalogue` too."""
    return json.dumps([_written(each) for each in types], indent=1) + "\n"


def _written(kind: InstanceType) -> dict[str, Any]:
    resources = {name: value + _KUBELET.get(name, 0) for name, value in kind.allocatable}
    return {
        "name": kind.name,
        "architecture": kind.arch,
        "operatingSystems": [kind.os],
        "resources": {name: f"{value}m" if name == CPU else str(value) for name, value in resources.items()},
        "offerings": [
            {
                "Price": offering.price,
                "Available": True,
                "Requirements": [
                    {"key": CAPACITY_TYPE_LABEL, "operator": "In", "values": [offering.capacity_type]},
                    *([{"key": ZONE_LABEL, "operator": "In", "values": [offering.zone]}] if offering.zone else []),
                ],
            }
            for offering in kind.offerings
        ],
        "watts": {"idle": kind.watts_idle, "per_core": kind.watts_per_core},
        **({"gpu_model": kind.gpu_model} if kind.gpu_model else {}),
    }
