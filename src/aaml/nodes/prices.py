"""What nodes that are there cost, by their labels: instance type, capacity type, zone."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Self

from aaml.cluster.objects import (
    ARCH_LABEL,
    CAPACITY_TYPE_LABEL,
    OS_LABEL,
    PRICE_LABEL,
    SPOT_LABELS,
    TYPE_LABEL,
    ZONE_LABEL,
    Node,
)
from aaml.nodes.catalogue import InstanceType, Offering
from aaml.nodes.catalogue_file import read_types

NO_TYPE = "no instance type"
_SHOWN, _NOTHING = 0.00095, 1e-9  # dollars: as four decimals show them, and as sums of floats miss by


def capacity_type(node: Node) -> str:
    """Return the capacity type of a node, by Karpenter's label or its cloud's; "on-demand" where none says."""
    spot = any(node.labels.get(key) == value for key, value in SPOT_LABELS.items())
    return node.labels.get(CAPACITY_TYPE_LABEL, "spot" if spot else "on-demand")


def kind(node: Node) -> str:
    """Return a node's instance type, `NO_TYPE` where it has no such label."""
    return node.labels.get(TYPE_LABEL, "") or NO_TYPE


def usd(amount: float) -> str:
    """Return an amount of dollars with four decimals; with two digits that are not 0 where four would show none."""
    if abs(amount) >= _SHOWN or abs(amount) < _NOTHING:
        return f"{amount + 0.0:.4f}"
    return f"{amount:.{1 - math.floor(math.log10(abs(amount)))}f}"


class PriceList:
    """Prices of nodes from the offerings of instance types.

    A node costs what the offering of its type, operating system, capacity type and zone does, also where that is not
    available any more: of its architecture, where there are several. In a zone that the type does not name it costs the
    dearest of that capacity type. For a type that is not listed its own label counts, which Karpenter's KWOK provider
    and the simulator write; with `labels_first` for any type.
    """

    def __init__(self, types: Iterable[InstanceType], *, labels_first: bool = False) -> None:
        self._labels_first = labels_first
        self._offered: Mapping[tuple[str, str, str], list[tuple[str, Offering]]] = defaultdict(list)
        for each in types:
            for offering in each.offerings:
                self._offered[each.name, each.os, offering.capacity_type].append((each.arch, offering))

    @classmethod
    def read(cls, path: Path | None) -> Self:
        """Return the prices of a file, without one those on labels and of the types that ship. Raises `UserError`."""
        return cls(read_types(path, every=True), labels_first=path is None)

    def price(self, node: Node) -> float | None:
        """Return what a node costs in dollars an hour, None where that is not known."""
        labels = node.labels
        own = _number(labels.get(PRICE_LABEL, ""))
        if self._labels_first and own is not None:
            return own
        offered = self._offered.get((kind(node), labels.get(OS_LABEL, "linux"), capacity_type(node)))
        if offered:
            alike = [each for arch, each in offered if arch == labels.get(ARCH_LABEL)] or [each for _, each in offered]
            here = [each.price for each in alike if each.zone == labels.get(ZONE_LABEL)]
            return max(here or [each.price for each in alike])
        return own


def _number(text: str) -> float | None:
    try:
        found = float(text)
    except ValueError:
        return None
    return found if 0.0 <= found < float("inf") else None
