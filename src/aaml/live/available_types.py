"""The instance types that can be provisioned now, with the resources that nodes leave to pods."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from aaml.cluster.objects import Node, Pod
from aaml.cluster.quantity import PODS
from aaml.live.node_claims import Offer
from aaml.live.unavailable import UnavailableOfferings, without
from aaml.nodes.catalogue import Catalogue, InstanceType


class Ready(NamedTuple):
    """A node that is ready: its type's name, the node, and its daemons."""

    type: str
    node: Node
    daemons: list[Pod]


class AvailableTypes:
    """The types that are offered, and those of them that are available.

    `catalogue` is what an autoscaler plans with: each type has the resources that are left to pods, and the offerings
    that did not fail a short while ago.
    """

    def __init__(self, catalogue: Catalogue) -> None:
        self.catalogue, self.unavailable = catalogue, UnavailableOfferings()
        self._offered = {kind.name: kind for kind in catalogue.types}
        self._measured = dict(self._offered)  # less what nodes keep for themselves
        self._allocatable: dict[str, dict[str, int]] = {}  # by type, the least of a node at the last look at one
        self._daemons: dict[str, int] = {}  # what these take of a node at most

    def offered(self, name: str) -> InstanceType | None:
        """Return a type as the file of types has it, None for one that is not in it."""
        return self._offered.get(name)

    def measure(self, nodes: Iterable[Ready]) -> bool:
        """Compare nodes with their types; returns whether the allocatable resources of a type have changed.

        A type that has nodes gets the least that one of them leaves to pods. The others lose what a node of them was
        once seen to reserve, and the most that daemons take of any node.
        """
        left, allocatable = dict[str, dict[str, int]](), dict[str, dict[str, int]]()
        daemons: dict[str, int] = {}
        for name, node, on_it in nodes:
            if name not in self._offered:
                continue
            own, least, offers = _sums(on_it), left.setdefault(name, {}), allocatable.setdefault(name, {})
            for resource in self.catalogue.resources:
                takes, offer = own.get(resource, 0), node.allocatable.get(resource, 0)
                daemons[resource] = max(daemons.get(resource, 0), takes)
                least[resource] = min(least.get(resource, offer), offer - takes)
                offers[resource] = min(offers.get(resource, offer), offer)
        if left:
            self._allocatable, self._daemons = self._allocatable | allocatable, daemons
        measured = {name: self._less(kind, left.get(name)) for name, kind in self._offered.items()}
        if measured == self._measured:
            return False
        self._measured = measured
        self._put(frozenset())
        return True

    def look(self, now_s: float) -> frozenset[str]:
        """Update `catalogue` and return the types that are unavailable now."""
        return self._put(self.unavailable.look(now_s))

    def _put(self, gone: frozenset[Offer]) -> frozenset[str]:
        left = {name: without(kind, gone) for name, kind in self._measured.items()}
        types = tuple(left[name] or kind for name, kind in self._measured.items())
        if {kind.name: kind for kind in self.catalogue.types} != {kind.name: kind for kind in types}:
            self.catalogue = Catalogue(types)
        return frozenset(name for name, kind in left.items() if kind is None)

    def _less(self, kind: InstanceType, left: Mapping[str, int] | None) -> InstanceType:
        if left is None:
            offers = self._allocatable.get(kind.name, dict(kind.allocatable))
            left = {resource: amount - self._daemons.get(resource, 0) for resource, amount in offers.items()}
        allocatable = tuple((name, max(0, min(amount, left.get(name, 0)))) for name, amount in kind.allocatable)
        return kind if allocatable == kind.allocatable else replace(kind, allocatable=allocatable)


def _sums(pods: Iterable[Pod]) -> dict[str, int]:
    """Return what pods request in all, of places for pods too."""
    found: dict[str, int] = {}
    for pod in pods:
        for resource, amount in ((PODS, 1), *pod.requests.items()):
            found[resource] = found.get(resource, 0) + amount
    return found
