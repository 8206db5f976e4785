"""An `Observed` as arrays: what compiled rules are asked about in the simulator and on real clusters."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, nan
from typing import Any

import numpy as np
import numpy.typing as npt

from aaml.cluster.gpu import DEVICE_MILLI
from aaml.cluster.objects import Pod
from aaml.nodes.catalogue import Catalogue, InstanceType, per_value, selected
from aaml.nodes.commitments import NOTHING_COMMITTED, Book
from aaml.nodes.fluid import Fluid
from aaml.nodes.kept_out import keep_out
from aaml.nodes.ports import Observed, OwnedNode
from aaml.nodes.rows import (
    NODE,
    NODE_TIME,
    OFFER,
    POD,
    POD_TIME,
    SHAPE_REQUEST,
    TRAIT,
    WORK_LAYOUT,
    RuleWork,
    Seen,
)
from aaml.nodes.successors import is_made_again, is_next_late
from aaml.policies.gpu.arrays import SHAPE_COUNT, SHAPE_MILLI

GONE = 2
"""Numbers after those of the nodes, of nodes that are there no more: they are on their way out, and nothing else."""
Array = npt.NDArray[Any]
NO_BUDGETS = np.zeros((2, 0), np.int64)
NO_COMMITMENTS = NOTHING_COMMITTED.over(())
_PRIORITY_UNIT = 2.0**25  # of priority, for which evicting a pod counts as much as one pod more


@dataclass(frozen=True)
class Sold:
    """What can be provisioned, as arrays of `aaml.nodes.rows`. It never changes."""

    catalogue: Catalogue
    offers: Array
    corners: Array
    devices: Array

    @classmethod
    def of(cls, catalogue: Catalogue, size_power: float = 0.0) -> "Sold":
        """Take over a catalogue; a type's value is divided by its cores to the power of `size_power`."""
        counts = catalogue.gpu_count
        devices = np.where(np.arange(counts.max(initial=0)) < counts[:, np.newaxis], DEVICE_MILLI, 0)
        offers = offers_of(catalogue.types)
        offers[OFFER.powered] = per_value(catalogue, size_power)
        return cls(catalogue, offers, Fluid(catalogue).corners, devices.astype(np.int64))

    def __deepcopy__(self, _memo: object) -> "Sold":
        """Return itself."""
        return self

    def seen(
        self, seen: Observed, at: np.void, terms: np.void, budgets: Array = NO_BUDGETS,
        plan_types: Array | None = None, gone: int = GONE, book: Book = NO_COMMITMENTS,
    ) -> Seen:  # fmt: skip
        """Return a cluster at a moment. Nodes stand in the order of `seen.nodes`, pods in that of `pods_of`.

        After the numbers of the nodes come those of so many that are there no more.
        """
        there, listed = list(seen.nodes.values()), [each.pod for each in seen.waiting.values()]
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
        nodes, node_times, names = self._nodes(there, gone)
        nodes[NODE.first, : len(there)], nodes[NODE.pods, : len(there)] = first, on
        kept = kept_s[len(seen.waiting) :]
        for column, which in ((NODE.kept, kept > 0.0), (NODE.awhile, (kept > 0.0) & (kept < inf))):
            nodes[column] = np.bincount(running[which], minlength=nodes.shape[1])
        room = self.catalogue.room[nodes[NODE.kind]]
        requested = np.zeros_like(room)
        np.add.at(requested, running, shapes[len(seen.waiting) :, SHAPE_REQUEST:])
        at["alive"] = len(there)
        return Seen(
            at, terms, nodes, node_times, pods, pod_times, traits, kept_s,
            np.array([eviction(pod.priority) for pod in listed]), shapes, np.arange(len(listed)), room, requested,
            self.catalogue.room, self.offers, self.corners, budgets, names, self.devices,
            self._gpus(there, seen.gpu_free, gone), np.array([*(node.price for node in there), *[0.0] * gone]),
            np.zeros(len(self.catalogue), np.int8) if plan_types is None else plan_types,
            self._may(seen, there, listed, gone),
            np.array([kind.name not in seen.sold_out for kind in self.catalogue.types], np.bool_),
            np.array([pod.uid in seen.blocked for pod in listed], np.bool_),
            np.array([pod.uid in seen.stuck for pod in listed], np.bool_),
            np.array([*(node.name in seen.kept for node in there), *[True] * gone], np.bool_), book.amounts, book.steps,
        )  # fmt: skip

    def _nodes(self, there: Sequence[OwnedNode], gone: int) -> tuple[Array, Array, Array]:
        """Return the facts and times of nodes, and by what their names are ordered."""
        count, every = len(there), slice(len(there))
        nodes = np.zeros((len(NODE), count + gone), np.int32)
        nodes[[NODE.first, NODE.last]], nodes[NODE.deleting] = -1, 1
        nodes[NODE.kind, every] = [self.catalogue.numbers[node.type.name] for node in there]
        nodes[NODE.deleting, every] = [node.deleting for node in there]
        nodes[NODE.spot, every] = [node.offering.capacity_type == "spot" for node in there]
        nodes[NODE.row, every] = nodes[NODE.alive, every] = np.arange(count)
        nodes[NODE.by_name, every] = by_name = sorted(range(count), key=lambda number: there[number].name)
        names = np.zeros(count + gone, np.int64)
        names[by_name] = np.arange(count)
        times = np.full((len(NODE_TIME), count + gone), nan)
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

    def _gpus(self, there: Sequence[OwnedNode], free: Mapping[str, Array], gone: int) -> Array:
        """Return int64 [L, G], what is left of each device; all of it where nobody says."""
        left = np.zeros((len(there) + gone, self.devices.shape[1]), np.int64)
        for number, node in enumerate(there if left.size else ()):
            if node.type.gpu_count:
                known = free.get(node.name)
                left[number, : node.type.gpu_count] = DEVICE_MILLI if known is None else known
        return left

    def _may(self, seen: Observed, there: Sequence[OwnedNode], listed: Sequence[Pod], gone: int) -> Array:
        """Return bool [T, K + L], which types and nodes a pod may go to whatever room they have; [0, 0] if all.

        Its node selector and GPU models say so, and what it is kept out of.
        """
        types = self.catalogue.types
        if not (seen.kept_out or any(pod.node_selector or pod.gpu.models for pod in listed)):
            return np.ones((0, 0), np.bool_)
        may = np.ones((len(listed), len(types) + len(there) + gone), np.bool_)
        for k, pod in enumerate(listed):
            if pod.node_selector:
                may[k, : len(types) + len(there)] = [
                    *(all(selected(pod, each.labels(way)) for way in each.launched) for each in types),
                    *(selected(pod, node.type.labels(node.offering)) for node in there),
                ]
            if pod.gpu.models:
                models = [*(each.gpu_model for each in types), *(node.type.gpu_model for node in there)]
                may[k, : len(models)] &= [model in pod.gpu.models for model in models]
        keep_out(may, seen, listed, types, there)
        return may


def _pods(seen: Observed, listed: Sequence[Pod], after: Sequence[int]) -> tuple[Array, Array, Array, Array]:
    """Return the lists, times, traits of pods, and for how long they may not be evicted."""
    count, waits = len(listed), len(seen.waiting)
    pods, times = np.zeros((len(POD), count), np.int32), np.full((len(POD_TIME), count), inf)
    pods[POD.after], pods[POD.noted] = after, -1
    pods[[POD.waiting, POD.noted], :waits] = np.arange(waits)
    pods[POD.stopping] = [pod.uid in seen.stopping for pod in listed]
    times[POD_TIME.created_s] = [pod.created_s for pod in listed]
    times[POD_TIME.noted_s, :waits] = [each.since_s for each in seen.waiting.values()]
    traits, kept_s = np.zeros((len(TRAIT), count), np.int32), np.zeros(count)
    traits[TRAIT.rank, sorted(range(count), key=lambda k: listed[k].uid)] = np.arange(count)
    traits[TRAIT.owned] = [is_made_again(pod) for pod in listed]
    traits[TRAIT.anew] = [pod.owner.startswith("Job/") for pod in listed]
    traits[TRAIT.next_late] = [is_next_late(pod) for pod in listed]
    for k in [k for k, pod in enumerate(listed) if pod.do_not_disrupt]:
        times[POD_TIME.released_s, k] = seen.released_s.get(listed[k].uid, inf)
        kept_s[k] = 1.0 if listed[k].uid in seen.released_s else inf  # for a time, or for good
    return pods, times, traits, kept_s


def memory(seen: Seen) -> RuleWork:
    """Return memory to work in: each pod may be given a new node."""
    nodes, pods = seen.nodes.shape[1], seen.pods.shape[1]
    sizes = {
        "L": nodes + pods + 1, "T": pods + 1, "K": seen.type_allocatable.shape[0], "R": seen.type_allocatable.shape[1],
        "J": seen.devices.shape[1], "A": len(seen.amounts),
    }  # fmt: skip
    return RuleWork(**{
        name: np.zeros([int(each) if each.isdigit() else sizes[each] for each in letters], kind)
        for name, (kind, letters) in WORK_LAYOUT.items()
    })  # fmt: skip


def pods_of(seen: Observed) -> list[Pod]:
    """Return the pods of a cluster by their numbers: those that wait, then those of each node."""
    waiting = (each.pod for each in seen.waiting.values())
    return [*waiting, *(pod for name in seen.nodes for pod in seen.pods_on(name).values())]


def offers_of(types: Sequence[InstanceType]) -> Array:
    """Return float64 [OFFER, K] of types, without what their value is divided by."""
    offers, spot = np.full((len(OFFER), len(types)), inf), [each.of(("spot",)) for each in types]
    offers[OFFER.price] = [each.cheapest.price for each in types]
    offers[OFFER.worst] = [each.worst_price() for each in types]
    offers[OFFER.watts_idle] = [each.watts_idle for each in types]
    offers[OFFER.watts_per_core] = [each.watts_per_core for each in types]
    offers[OFFER.spot] = [each.cheapest.price if each.offerings else inf for each in spot]
    offers[OFFER.spot_worst] = [each.worst_price() for each in spot]
    return offers


def eviction(priority: int) -> float:
    """Return what evicting a pod counts: 1, more or less by its priority (Karpenter's utils/disruption)."""
    return max(0.0, min(10.0, 1.0 + priority / _PRIORITY_UNIT))
