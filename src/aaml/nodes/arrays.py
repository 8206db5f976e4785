"""An `Observed` as arrays: what compiled rules are asked about in the simulator and on real clusters."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, nan
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from aaml.cluster.gpu import DEVICE_MILLI
from aaml.cluster.objects import Pod
from aaml.nodes.catalogue import Catalogue, per_value, selected
from aaml.nodes.fluid import Fluid
from aaml.nodes.ports import Observed, OwnedNode
from aaml.nodes.rows import NODE, NODE_TIME, OFFER, POD, POD_TIME, SHAPE_REQUEST, TRAIT
from aaml.policies.gpu.arrays import SHAPE_COUNT, SHAPE_MILLI

GONE = 2
"""Numbers after those of the nodes, of nodes that are there no more: they are on their way out, and nothing else."""
Array = npt.NDArray[Any]


class Seen(NamedTuple):
    """A cluster as `aaml.nodes.rows` has it, at one moment."""

    at: np.void
    terms: np.void
    moment: np.void
    nodes: Array
    node_times: Array
    pods: Array
    pod_times: Array
    traits: Array
    kept_s: Array
    shapes: Array
    shape_of: Array
    allocatable: Array
    requested: Array
    room: Array
    offers: Array
    corners: Array
    names: Array
    devices: Array
    gpu_left: Array
    paid: Array
    may: Array
    on_sale: Array
    blocked: Array
    stays: Array


class Work(NamedTuple):
    """Working memory of the rules."""

    free: Array
    left: Array
    gpu_free: Array
    gpu_left: Array
    numbers: Array
    inverse: Array
    base: Array
    packed: Array
    held: Array
    worth: Array
    rows: Array
    bought: Array
    chosen: Array
    candidates: Array
    weights: Array


@dataclass(frozen=True)
class Sold:
    """What can be bought, as arrays of `aaml.nodes.rows`. It never changes."""

    catalogue: Catalogue
    offers: Array
    corners: Array
    devices: Array

    @classmethod
    def of(cls, catalogue: Catalogue, size_power: float) -> "Sold":
        """Take over a catalogue; a type's value is divided by its cores to the power of `size_power`."""
        offers, counts = np.zeros((len(OFFER), len(catalogue))), catalogue.gpu_count
        offers[OFFER.price], offers[OFFER.powered] = catalogue.prices, per_value(catalogue, size_power)
        devices = np.where(np.arange(counts.max(initial=0)) < counts[:, np.newaxis], DEVICE_MILLI, 0)
        return cls(catalogue, offers, Fluid(catalogue).corners, devices.astype(np.int64))

    def __deepcopy__(self, _memo: object) -> "Sold":
        """Return itself."""
        return self

    def seen(self, seen: Observed, at: np.void, terms: np.void, moment: np.void) -> Seen:
        """Return a cluster at a moment. Nodes stand in the order of `seen.nodes`, the pods that wait come first."""
        there = list(seen.nodes.values())
        listed = [each.pod for each in seen.waiting.values()]
        first, on = [-1] * len(there), [0] * len(there)
        homes, after = [-1] * len(listed), [-1] * len(listed)
        for number, node in enumerate(there):
            if here := seen.pods_on(node.name):
                first[number], on[number] = len(listed), len(here)
                after += [*range(len(listed) + 1, len(listed) + len(here)), -1]
                homes += [number] * len(here)
                listed += here.values()
        running = np.array(homes, dtype=np.int64)[len(seen.waiting) :]
        pods, pod_times, traits, kept_s = _pods(seen, listed, after)
        shapes = self._shapes(listed)
        nodes, node_times, names = self._nodes(there)
        nodes[NODE.first, : len(there)], nodes[NODE.pods, : len(there)] = first, on
        kept = kept_s[len(seen.waiting) :]
        for column, which in ((NODE.kept, kept > 0.0), (NODE.awhile, (kept > 0.0) & (kept < inf))):
            nodes[column] = np.bincount(running[which], minlength=nodes.shape[1])
        room = self.catalogue.room[nodes[NODE.kind]]
        requested = np.zeros_like(room)
        np.add.at(requested, running, shapes[len(seen.waiting) :, SHAPE_REQUEST:])
        at["alive"] = len(there)
        return Seen(
            at, terms, moment, nodes, node_times, pods, pod_times, traits, kept_s, shapes,
            np.arange(len(listed), dtype=np.int32), room, requested, self.catalogue.room, self.offers, self.corners,
            names, self.devices, self._gpus(there, seen.gpu_free),
            np.array([*(node.price for node in there), *[0.0] * GONE]), self._may(there, listed),
            np.array([kind.name not in seen.sold_out for kind in self.catalogue.types], np.bool_),
            np.array([pod.uid in seen.blocked for pod in listed], np.bool_),
            np.array([*(node.name in seen.kept for node in there), *[True] * GONE], np.bool_),
        )  # fmt: skip

    def _nodes(self, there: Sequence[OwnedNode]) -> tuple[Array, Array, Array]:
        """Return the facts and times of nodes, and by what their names are ordered."""
        count, every = len(there), slice(len(there))
        nodes = np.zeros((len(NODE), count + GONE), np.int32)
        nodes[[NODE.first, NODE.last]], nodes[NODE.deleting] = -1, 1
        nodes[NODE.kind, every] = [self.catalogue.numbers[node.type.name] for node in there]
        nodes[NODE.deleting, every] = [node.deleting for node in there]
        nodes[NODE.row, every] = nodes[NODE.alive, every] = np.arange(count)
        nodes[NODE.by_name, every] = by_name = sorted(range(count), key=lambda number: there[number].name)
        names = np.zeros(count + GONE, np.int64)
        names[by_name] = np.arange(count)
        times = np.full((len(NODE_TIME), count + GONE), nan)
        times[NODE_TIME.launched_s, every] = [node.launched_s for node in there]
        for column, known in (
            (NODE_TIME.initialized_s, [node.initialized_s for node in there]),
            (NODE_TIME.last_event_s, [node.last_pod_event_s for node in there]),
        ):
            times[column, every] = [nan if at_s is None else at_s for at_s in known]
        return nodes, times, names

    def _shapes(self, listed: Sequence[Pod]) -> Array:
        shapes = np.zeros((len(listed), SHAPE_REQUEST + len(self.catalogue.resources)), np.int64)
        if listed:
            shapes[:, SHAPE_REQUEST:] = [self.catalogue.request(pod) for pod in listed]
            shapes[:, SHAPE_COUNT] = [pod.gpu.count for pod in listed]
            shapes[:, SHAPE_MILLI] = [pod.gpu.milli for pod in listed]
        return shapes

    def _gpus(self, there: Sequence[OwnedNode], free: Mapping[str, Array]) -> Array:
        """Return int64 [L, G], what is left of each device; all of it where nobody says."""
        left = np.zeros((len(there) + GONE, self.devices.shape[1]), np.int64)
        for number, node in enumerate(there if left.size else ()):
            if node.type.gpu_count:
                known = free.get(node.name)
                left[number, : node.type.gpu_count] = DEVICE_MILLI if known is None else known
        return left

    def _may(self, there: Sequence[OwnedNode], listed: Sequence[Pod]) -> Array:
        """Return bool [T, K + L], which types and nodes a pod's node selector and GPU models allow."""
        types = self.catalogue.types
        may = np.ones((len(listed), len(types) + len(there) + GONE), np.bool_)
        for k, pod in enumerate(listed):
            if pod.node_selector:
                may[k, : len(types) + len(there)] = [
                    *(all(selected(pod, each.labels(way)) for way in each.launched) for each in types),
                    *(selected(pod, node.type.labels(node.offering)) for node in there),
                ]
            if pod.gpu.models:
                models = [*(each.gpu_model for each in types), *(node.type.gpu_model for node in there)]
                may[k, : len(models)] &= [model in pod.gpu.models for model in models]
        return may


def _pods(seen: Observed, listed: Sequence[Pod], after: Sequence[int]) -> tuple[Array, Array, Array, Array]:
    """Return the lists, times, traits of pods, and for how long they may not be evicted."""
    count, waits = len(listed), len(seen.waiting)
    pods, times = np.zeros((len(POD), count), np.int32), np.full((len(POD_TIME), count), inf)
    pods[POD.after], pods[POD.waiting, :waits] = after, np.arange(waits)
    pods[POD.stopping] = [pod.uid in seen.stopping for pod in listed]
    traits, kept_s = np.zeros((len(TRAIT), count), np.int32), np.zeros(count)
    traits[TRAIT.rank, sorted(range(count), key=lambda k: listed[k].uid)] = np.arange(count)
    traits[TRAIT.anew] = [pod.owner.startswith("Job/") for pod in listed]
    for k in [k for k, pod in enumerate(listed) if pod.do_not_disrupt]:
        times[POD_TIME.released_s, k] = seen.released_s.get(listed[k].uid, inf)
        kept_s[k] = 1.0 if listed[k].uid in seen.released_s else inf  # for a time, or for good
    return pods, times, traits, kept_s


def memory(seen: Seen) -> Work:
    """Return memory to work in: each pod may be given a new node."""
    nodes, pods = seen.nodes.shape[1], seen.pods.shape[1]
    rows, each = nodes + pods + 1, pods + 1
    whole = np.zeros((2, rows, seen.room.shape[1]), np.int64)
    gpus = np.zeros((2, rows, seen.devices.shape[1]), np.int64)
    lists = np.zeros((5, each), np.int32)
    return Work(
        whole[0], whole[1], gpus[0], gpus[1], np.zeros(rows, np.int32), np.zeros((rows, 2)), lists[0], lists[1],
        np.zeros(each, np.bool_), np.zeros(each), lists[2], lists[3], lists[4], np.zeros(nodes, np.int32),
        np.zeros(nodes),
    )  # fmt: skip
