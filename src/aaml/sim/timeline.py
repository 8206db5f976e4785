"""What happens to a simulated cluster besides arrivals and departures: changes of nodes, pods that are deleted."""

from collections.abc import Sequence
from dataclasses import dataclass

from aaml.cluster.objects import Node, Pod


@dataclass(frozen=True, slots=True)
class AddNode:
    """A node joins, or changes when one of its name is there."""

    at_s: float
    node: Node


@dataclass(frozen=True, slots=True)
class RemoveNode:
    """A node is lost; its pods wait again, as their controllers make them anew."""

    at_s: float
    name: str


@dataclass(frozen=True, slots=True)
class Cordon:
    """A node takes no new pods (or takes them again, with `on` False)."""

    at_s: float
    name: str
    on: bool = True


@dataclass(frozen=True, slots=True)
class Drain:
    """A node is cordoned and its pods are evicted: they wait again."""

    at_s: float
    name: str


@dataclass(frozen=True, slots=True)
class DeletePod:
    """A pod is deleted, whether it waits or runs."""

    at_s: float
    uid: str


@dataclass(frozen=True, slots=True)
class PlacePod:
    """A pod gets a node without a decision here: it ran before the beginning, or somebody else placed it.

    It leaves after its lifetime like any other, and ran from `since_s` on. Nothing happens where the node is not there.
    """

    at_s: float
    pod: Pod
    node_name: str
    gpus: tuple[int, ...] | None
    since_s: float


TimelineEvent = AddNode | RemoveNode | Cordon | Drain | DeletePod | PlacePod
Timeline = Sequence[TimelineEvent]
