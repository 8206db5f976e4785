"""Instance types and prices as a file of Karpenter's KWOK provider (`kwok/examples` in its module), read and written.

A file is a JSON list. Of each type it says `name`, `architecture`, `operatingSystems`, `resources` (Kubernetes
quantities) and `offerings`: each with a `Price` in dollars an hour and `Requirements` on the capacity type and zone.
Ours may also say `watts`: `{"idle": 60, "per_core": 4}`, what a node draws without pods and more for each core that
pods request; and `gpu_model` beside the resource `nvidia.com/gpu`. Karpenter does not read these.
"""

import json
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache, lru_cache
from importlib.resources import files
from itertools import product
from pathlib import Path
from typing import Annotated, Any, get_args

import msgspec
from msgspec import Meta

from aaml.cluster.gpu import MOST_DEVICES
from aaml.cluster.objects import CAPACITY_TYPE_LABEL, ZONE_LABEL
from aaml.cluster.quantity import CPU, LARGEST, PODS, amount
from aaml.errors import UserError, bad_value
from aaml.nodes.catalogue import KUBELET, CapacityType, Catalogue, InstanceType, Offering
from aaml.nodes.requirements import Labels, Values, plain_labels, usual_key
from aaml.schema import convert, of_json, read_bytes

_GPU = "nvidia.com/gpu"
_PODS = 110  # where a type does not say how many pods a node takes
_ARCHITECTURES = {"x86_64": "amd64"}  # a NodePool asks for amd64
_FIELD = "instance types"
_SHOWN = 5  # names in a warning
_log = logging.getLogger(__name__)


class _Strict(msgspec.Struct, forbid_unknown_fields=True):
    pass


class _Requirement(_Strict):
    key: str
    operator: str = "In"
    values: list[str] = []


class _Offering(_Strict):
    Price: Annotated[float, Meta(ge=0)]
    Requirements: list[_Requirement] = []
    Available: bool = True
    ReservationCapacity: int = 0

    def values(self, key: str, usual: str, where: str) -> tuple[str, ...]:
        """Return what a label may be: what all requirements on it allow."""
        found: list[str] | None = None
        for each in self.Requirements:
            if usual_key(each.key) != key:
                continue
            if each.operator != "In" or not each.values:
                value = f"{each.operator} {', '.join(each.values)}".rstrip()
                raise bad_value(f"{where}: requirement on {key}", value, "the operator In with values")
            found = [value for value in each.values if found is None or value in found]
        if found == []:
            raise bad_value(f"{where}: requirements on {key}", "none in common", "a value that all of them allow")
        return (usual,) if found is None else tuple(dict.fromkeys(found))


class _Watts(_Strict):
    idle: Annotated[float, Meta(ge=0)] = 0.0
    per_core: Annotated[float, Meta(ge=0)] = 0.0


class _Type(_Strict):
    name: Annotated[str, Meta(min_length=1)]
    offerings: list[_Offering]
    resources: dict[str, str | int | float]
    architecture: str = "amd64"
    operatingSystems: Annotated[tuple[str, ...], Meta(min_length=1)] = ("linux",)  # noqa: N815  (the file's name for it)
    watts: _Watts = msgspec.field(default_factory=_Watts)
    gpu_model: str = ""


def shipped_catalogue(labels: Labels | None = None) -> Catalogue:
    """Return what labels allow of the made-up catalogue that ships, `PLAIN` for None: four families of shapes."""
    return _shipped_catalogue("instance_types.json", _as_key(labels))


def openb_catalogue(labels: Labels | None = None) -> Catalogue:
    """Return the same of the made-up catalogue with GPUs: sizes of nodes as in the openb trace, and smaller ones."""
    return _shipped_catalogue("instance_types_openb.json", _as_key(labels))


def _as_key(labels: Labels | None) -> tuple[tuple[str, Values], ...]:
    return tuple((plain_labels() if labels is None else labels).items())


@lru_cache(maxsize=16)
def _shipped_catalogue(name: str, labels: tuple[tuple[str, Values], ...]) -> Catalogue:
    return _catalogue(_shipped(name), name, dict(labels))


@cache
def _shipped(name: str) -> tuple[InstanceType, ...]:
    return parse_types(files("aaml.workload.data").joinpath(name).read_bytes(), name)


def read_catalogue(path: Path, labels: Labels | None = None) -> Catalogue:
    """Read what labels allow, `PLAIN` for None.

    Raises `UserError` for a file that is missing or says something else, and where no type is left.
    """
    return parse_catalogue(read_bytes(path, _FIELD), str(path), labels)


def read_types(path: Path | None, *, every: bool = False) -> tuple[InstanceType, ...]:
    """Return all that a file offers, or without one what the catalogue that ships does. Raises `UserError`.

    With `every` these are the offerings that are not available, too.
    """
    if path is None:
        return _shipped("instance_types.json")
    return parse_types(read_bytes(path, _FIELD), str(path), every=every)


def parse_catalogue(text: bytes, source: str, labels: Labels | None = None) -> Catalogue:
    """Read a catalogue as `read_catalogue` does, from the text of a file."""
    return _catalogue(parse_types(text, source), source, dict(_as_key(labels)))


def _catalogue(types: Sequence[InstanceType], source: str, labels: Labels) -> Catalogue:
    """Return the types that labels allow. A name stands for one: of its variants Linux and amd64 go first.

    Types without an available offering are left out, and other variants that labels allow, with a warning that names
    them.
    """
    none = sorted({each.name for each in types if each.has_room and not each.offerings})
    if none:
        _log.warning("%s: no available offering, left out: %s", source, ", ".join(none))
    chosen: dict[str, InstanceType] = {}
    allowed = [each for each in types if each.meeting(labels).offerings]
    for each in sorted(allowed, key=lambda each: (each.os != "linux", each.arch != "amd64")):
        chosen.setdefault(each.name, each)
    others = (each for each in allowed if chosen[each.name] is not each)
    if variants := sorted(f"{each.name} ({each.os}, {each.arch})" for each in others):
        more = f" and {len(variants) - _SHOWN} more" if len(variants) > _SHOWN else ""
        _log.warning("%s: one type a name, left out: %s%s", source, ", ".join(variants[:_SHOWN]), more)
    try:
        found = chosen or {each.name: each for each in types if each.offerings}
        return Catalogue(tuple(found.values())).meeting(labels)
    except UserError as error:
        raise UserError(f"{source}: {error}") from error


def parse_types(text: bytes, source: str, *, every: bool = False) -> tuple[InstanceType, ...]:
    """Return all that a file's text offers, a type for each operating system. Raises `UserError` for another text.

    With `every` these are the offerings that are not available, too. Else a type without room for pods has none, with a
    warning: AWS's smallest have a memory of 0 in Karpenter's own file.
    """
    try:
        listed = convert(of_json(text, source), list[_Type], source)
    except UserError as error:
        raise UserError(f"{_FIELD}: {error}; expected a JSON list as Karpenter's KWOK provider reads it") from error
    if beyond := sorted(_beyond(listed)):
        _log.warning("%s: not modelled here: %s", source, ", ".join(beyond))
    found: dict[tuple[str, str, str], int] = {}
    types, full = list[InstanceType](), set[str]()
    for number, each in enumerate(listed):
        where = f"{source}: [{number}] {each.name}"
        for os in dict.fromkeys(each.operatingSystems):
            read = _instance_type(each, os, where, every=every)
            first = found.setdefault((read.name, read.os, read.arch), number)
            if first != number:
                raise bad_value(f"{source}: name of [{first}] and [{number}]", read.name, f"one type for {os} a name")
            if not every and not read.has_room:
                full.add(read.name)
                read = replace(read, offerings=())
            types.append(read)
    if full:
        _log.warning("%s: no room for pods beside the kubelet, left out: %s", source, ", ".join(sorted(full)))
    return tuple(types)


def _beyond(listed: Iterable[_Type]) -> set[str]:
    """Return what offerings say that nobody reads."""
    offerings = [offering for each in listed for offering in each.offerings]
    keys = {usual_key(each.key) for offering in offerings for each in offering.Requirements}
    labels = {f"offerings' label {key}" for key in keys - {CAPACITY_TYPE_LABEL, ZONE_LABEL}}
    return labels | ({"ReservationCapacity"} if any(each.ReservationCapacity for each in offerings) else set())


def _instance_type(read: _Type, os: str, where: str, *, every: bool) -> InstanceType:
    amounts = {PODS: _PODS, **{name: _amount(name, value, where) for name, value in read.resources.items()}}
    for name in KUBELET:
        if name not in amounts:
            raise bad_value(f"{where}: resources: {name}", "none", "how much of it a node has")
    allocatable = tuple((name, max(0, value - KUBELET.get(name, 0))) for name, value in amounts.items())
    offerings = tuple(
        offering
        for number, each in enumerate(read.offerings)
        if every or each.Available
        for offering in _offerings(each, f"{where}: offerings[{number}]")
    )
    arch = _ARCHITECTURES.get(read.architecture, read.architecture)
    return InstanceType(
        read.name, allocatable, offerings, arch, os, read.watts.idle, read.watts.per_core,
        min(amounts.get(_GPU, 0), MOST_DEVICES), read.gpu_model,
    )  # fmt: skip


def _amount(name: str, value: str | float, where: str) -> int:
    found = amount(name, value, f"{where}: resources: {name}")
    if found > LARGEST:
        raise bad_value(f"{where}: resources: {name}", value, "at most 1Pi, or a million million cores")
    return found


def _offerings(read: _Offering, where: str) -> Iterator[Offering]:
    """Return an offering for each capacity type and zone that one names."""
    zones = read.values(ZONE_LABEL, "", where)
    for value, zone in product(read.values(CAPACITY_TYPE_LABEL, "on-demand", where), zones):
        yield Offering(read.Price, _capacity_type(value, where), zone)


def _capacity_type(value: str, where: str) -> CapacityType:
    known: tuple[CapacityType, ...] = get_args(CapacityType)
    for kind in known:
        if value == kind:
            return kind
    raise bad_value(f"{where}: {CAPACITY_TYPE_LABEL}", value, f"one of {', '.join(known)}")


def written_catalogue(types: Iterable[InstanceType]) -> str:
    """Return types as the text of a file that Karpenter's KWOK provider reads, and `read_catalogue` too."""
    return json.dumps([_written(each) for each in types], indent=1) + "\n"


def _written(kind: InstanceType) -> dict[str, Any]:
    resources = {name: value + KUBELET.get(name, 0) for name, value in kind.allocatable}
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
