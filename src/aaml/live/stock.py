"""What can be provisioned now: instance types, less what nodes keep for themselves, and less what is sold out."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from aaml.cluster.objects import Node, Pod
from aaml.cluster.quantity import PODS
from aaml.live.node_claims import Offer
from aaml.live.unavailable import UnavailableOfferings, without
from aaml.nodes.catalogue import Catalogue, InstanceType


class Ready(NamedTuple):
    """A node that is ready: its type's name, the node, and the pods that come and go with it."""

    type: str
    node: Node
    daemons: list[Pod]


class Stock:
    """The types that are offered, and what of them can be had.

    `catalogue` is what an autoscaler plans with: each type has the room that is left to pods, and the offerings that
    did not fail a short while ago.
    """

    def __init__(self, catalogue: Catalogue) -> None:
        self.catalogue, self.unavailable = catalogue, UnavailableOfferings()
        self._offered = {kind.name: kind for kind in catalogue.types}
        self._room = dict(self._offered)  # less what nodes keep for themselves
        self._allocatable: dict[str, dict[str, int]] = {}  # by type, the least of a node at the last look at one
        self._daemons: dict[str, int] = {}  # what these take of a node at most

    def offered(self, name: str) -> InstanceType | None:
        """Return a type as the file of types has it, None for one that is not among them."""
        return self._offered.get(name)

    def measure(self, nodes: Iterable[Ready]) -> bool:
        """Compare nodes with their types; returns whether types have another room than was believed.

        A type whose nodes are there has the least that is left to pods on one of them. Others lose what a node of them
        was seen to keep, and what daemons take of any node at most.
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
        if measured == self._room:
            return False
        self._room = measured
        self._put(frozenset())
        return True

    def look(self, now_s: float) -> frozenset[str]:
        """Bring `catalogue` up to date; returns the types of which nothing can be had now."""
        return self._put(self.unavailable.look(now_s))

    def _put(self, gone: frozenset[Offer]) -> frozenset[str]:
        left = {name: without(kind, gone) for name, kind in self._room.items()}
        types = tuple(left[name] or kind for name, kind in self._room.items())
        if {kind.name: kind for kind in self.catalogue.types} != {kind.name: kind for kind in types}:
            self.catalogue = Catalogue(types)
        return frozenset(name for name, kind in left.items() if kind is None)

    def _less(self, kind: InstanceType, left: Mapping[str, int] | None) -> InstanceType:
        if left is None:
            offers = self._allocatable.get(kind.name, dict(kind.allocatable))
            left = {resource: amount - self._daemons.get(resource, 0) for resource, amount in offers.items()}
        room = tuple((name, max(0, min(amount, left.get(name, 0)))) for name, amount in kind.allocatable)
        return kind if room == kind.allocatable else replace(kind, allocatable=room)


def _sums(pods: Iterable[Pod]) -> dict[str, int]:
    """Return what pods request in all, of places for pods too."""
    found: dict[str, int] = {}
    for pod in pods:
        for resource, amount in ((PODS, 1), *pod.requests.items()):
            found[resource] = found.get(resource, 0) + amount
    return found
