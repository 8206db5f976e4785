"""Small catalogues and moments, for tests of autoscalers: types without a kubelet's share, prices that add up."""

from collections.abc import Iterator, Sequence
from typing import TypeVar

import numpy as np

from aaml.cluster.gpu import DEVICE_MILLI
from aaml.cluster.objects import Pod
from aaml.cluster.quantity import CPU, MEMORY, PODS
from aaml.nodes.catalogue import Catalogue, InstanceType, Offering
from aaml.nodes.packing import FreeCapacity
from aaml.nodes.ports import Observed, OwnedNode, Waiting

GIB = 1 << 30
Item = TypeVar("Item")


def kind(name, cores, price, gib=None, **other):
    """Return a type with 4 GiB for a core unless said otherwise."""
    room = ((CPU, 1000 * cores), (MEMORY, (4 * cores if gib is None else gib) * GIB), (PODS, 110))
    offerings = other.pop("offerings", (Offering(price),))
    return InstanceType(name, room, offerings, **other)


SMALL, MEDIUM, LARGE = kind("small", 2, 1.0), kind("medium", 4, 1.9), kind("large", 8, 3.6)
CATALOGUE = Catalogue((SMALL, MEDIUM, LARGE))


def pod(name, cores=1.0, gib=1.0, **other):
    """Return a pod of a ReplicaSet unless said otherwise."""
    requests = {CPU: int(1000 * cores), MEMORY: int(gib * GIB)}
    return Pod(name, uid=name, requests=requests, **{"owner": f"ReplicaSet/{name}", **other})


class Moment:
    """An `Observed` that a test writes down: nodes with their pods, and pods that wait."""

    def __init__(self, now_s=1000.0):
        self.seen = Observed(now_s, pods={})

    def node(self, name, of=SMALL, pods=(), *, ready=True, **other):
        """Add a node that is ready since long ago, and had its last pod event then, unless said otherwise."""
        facts = {"launched_s": 0.0, "initialized_s": 20.0 if ready else None, "last_pod_event_s": 30.0, **other}
        self.seen.nodes[name] = OwnedNode(name, of, of.cheapest, **facts)
        self.seen.pods[name] = {each.uid: each for each in pods}
        return self

    def waits(self, *pods):
        """Add pods that the scheduler has found no node for."""
        self.seen.waiting |= {each.uid: Waiting(each, self.seen.now_s) for each in pods}
        return self

    def at(self, now_s):
        """Return the same cluster at another time."""
        self.seen.now_s = now_s
        return self.seen


def measured(seen: Observed, catalogue: Catalogue) -> FreeCapacity:
    """Return what the nodes that stay have left; no pod may be moved to them."""
    nodes = sorted(
        (node for node in seen.nodes.values() if not node.deleting),
        key=lambda node: (node.initialized_s is None, node.name),
    )
    free = np.zeros((len(nodes), len(catalogue.resources)), dtype=np.int64)
    for node_index, node in enumerate(nodes):
        free[node_index] = catalogue.room[catalogue.numbers[node.type.name]]
        for each in seen.pods_on(node.name).values():
            free[node_index] -= catalogue.request(each)
    gpu_free = np.zeros((len(nodes), max((node.type.gpu_count for node in nodes), default=0)), dtype=np.int64)
    for node_index, node in enumerate(nodes if gpu_free.size else ()):
        left = seen.gpu_free.get(node.name)
        gpu_free[node_index, : node.type.gpu_count] = DEVICE_MILLI if left is None else left
    ready = np.array([node.initialized_s is not None for node in nodes], dtype=np.bool_)
    index = {node.name: node_index for node_index, node in enumerate(nodes)}
    return FreeCapacity(nodes, free, np.zeros(len(nodes), dtype=np.bool_), ready, index, gpu_free, seen)


def partitions(left: Sequence[Item]) -> Iterator[list[list[Item]]]:
    """Yield every way to part items into groups."""
    if not left:
        yield []
        return
    first, *rest = left
    for part in partitions(rest):
        yield [[first], *part]
        for place, group in enumerate(part):
            yield [*part[:place], [first, *group], *part[place + 1 :]]
