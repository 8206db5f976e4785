"""What the learned autoscaler computes with: where pods fit on nodes that are there, and which types they fill best.

Columns R are a catalogue's resources. The first two, CPU and memory, say how full a node is. G are the devices of a
node: thousandths that are left of each. `gpus` int64 [P, 2] are how many devices a pod takes, and what of each.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from aaml.cluster.gpu import DEVICE_MILLI
from aaml.cluster.kernels import compiled
from aaml.cluster.objects import Pod
from aaml.nodes.catalogue import Catalogue, InstanceType, all_columns, selected
from aaml.nodes.fluid import Fluid
from aaml.nodes.packing import Room
from aaml.nodes.ports import Observed, OwnedNode
from aaml.nodes.room import fullest, has_room, take_room

_MILLI = 1000.0
FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


@compiled
def place(free: Any, devices: Any, inverse: Any, requests: Any, gpus: Any, may: Any) -> Any:
    """Give pods a node each, in their order: the one that is then fullest, as MostAllocated does.

    `free` int64 [N, R] and `devices` int64 [N, G] are changed; `inverse` float64 [N, 2] are 1 over what a node offers;
    `requests` int64 [P, R]; `may` bool [P, N]. Returns int64 [P]: rows, -1 for a pod without one.
    """
    rows = np.full(requests.shape[0], -1, dtype=np.int64)
    for pod in range(requests.shape[0]):
        row = fullest(free, free.shape[0], inverse, requests[pod], devices, gpus[pod], may[pod])
        rows[pod] = row
        if row >= 0:
            take_room(free, row, requests[pod], devices, gpus[pod])
    return rows


@compiled
def fill(room: Any, devices: Any, requests: Any, gpus: Any, may: Any, worth: Any) -> Any:
    """Fill a node of each type with pods in their order, each that still fits.

    `room` int64 [T, R], `devices` int64 [T, G], `requests` int64 [P, R], `may` bool [P, T], `worth` float64 [P].
    Returns bool [T, P], which pods it takes, and float64 [T], what these are worth.
    """
    types, pods = room.shape[0], requests.shape[0]
    taken, used = np.zeros((types, pods), dtype=np.bool_), np.zeros(types)
    left, whole = room.copy(), devices.copy()
    for kind in range(types):
        for pod in range(pods):
            if may[pod, kind] and has_room(left, kind, requests[pod], whole, gpus[pod]):
                taken[kind, pod] = True
                used[kind] += worth[pod]
                take_room(left, kind, requests[pod], whole, gpus[pod])
    return taken, used


@dataclass
class Fitting:
    """What fits where at one moment, and what it is worth.

    `worth` float64 [2] are dollars an hour for a unit of CPU and of memory, `gpu_worth` for a thousandth of a GPU: the
    dual prices of `Fluid` for all that is asked for. `load` is what that comes to. Pods are placed the most valuable
    first.
    """

    catalogue: Catalogue
    room: Room
    worth: FloatArray
    gpu_worth: float
    load: float
    inverse: FloatArray = field(init=False, repr=False)
    devices: IntArray = field(init=False, repr=False)  # [T, G] of the types

    def __post_init__(self) -> None:
        counts = self.catalogue.gpu_count
        self.devices = np.where(np.arange(counts.max(initial=0)) < counts[:, np.newaxis], DEVICE_MILLI, 0)
        offered = [self.catalogue.room[self.catalogue.numbers[node.type.name]][:2] for node in self.room.nodes]
        self.inverse = _inverse(np.array(offered, dtype=np.int64).reshape(-1, 2))

    @classmethod
    def of(cls, seen: Observed, catalogue: Catalogue, fluid: Fluid, waiting: Iterable[Pod]) -> "Fitting":
        """Measure the nodes that stay. `waiting` are the pods that need room elsewhere."""
        room = Room.of(seen, catalogue, ())
        asked = np.zeros(fluid.corners.shape[1])
        for node, free, left in zip(room.nodes, room.free, room.gpu_free, strict=True):
            asked[:2] += (catalogue.room[catalogue.numbers[node.type.name]] - free)[:2]
            asked[2:] += DEVICE_MILLI * node.type.gpu_count - left.sum()
        for pod in waiting:
            asked[:2] += catalogue.request(pod)[:2]
            asked[2:] += pod.gpu.total_milli
        loads = sum(fluid.corners[:, column] * asked[column] for column in range(len(asked)))
        best = int(np.argmax(loads))
        worth, gpu_worth = fluid.corners[best, :2], float(fluid.corners[best, 2:].sum())
        return cls(catalogue, room, worth, gpu_worth, float(loads[best]))

    def without_room(self, pods: Iterable[Pod]) -> list[Pod]:
        """Place pods on the nodes that stay, ready or not, for good; return those that fit on none."""
        ordered = self._ordered(pods)
        rows = self._place(self.room.free, self.room.gpu_free, ordered)
        return [pod for pod, row in zip(ordered, rows.tolist(), strict=True) if row < 0]

    def move(self, nodes: Sequence[OwnedNode], pods: Iterable[Pod]) -> bool:
        """Place the pods of nodes that go on others that are ready, for good; False, with nothing changed, if not."""
        free, devices = self._free_without(nodes), self.room.gpu_free.copy()
        if (self._place(free, devices, self._ordered(pods)) < 0).any():
            return False
        self.room.free = np.where(self.room.ready[:, np.newaxis], free, self.room.free)
        self.room.gpu_free = devices
        return True

    def replacement(self, nodes: Sequence[OwnedNode], pods: Iterable[Pod]) -> list[InstanceType]:
        """Return types for the pods of nodes that go, as far as others have no room for them: one, or cheaper several.

        Empty where pods fit no type, or would not fit once a scheduler puts each on the node that is then fullest.
        """
        ordered = self._ordered(pods)
        rows = self._place(self._free_without(nodes), self.room.gpu_free.copy(), ordered)
        left = [pod for pod, row in zip(ordered, rows.tolist(), strict=True) if row < 0]
        requests = self._requests(left)
        fits = all_columns(self.catalogue.room >= requests.sum(axis=0)) & self._on_sale
        for pod in left:
            if pod.node_selector or pod.gpu.total_milli:
                fits &= self.catalogue.fits(pod)
        if any(pod.gpu.total_milli for pod in left):
            everywhere = np.ones((len(left), len(self.catalogue)), dtype=np.bool_)
            gpus = _gpus(left)
            taken, _ = fill(self.catalogue.room, self.devices, requests, gpus, everywhere, self._values(requests, gpus))
            fits &= all_columns(taken)
        one = [self.catalogue.types[int(fits.argmax())]] if fits.any() else []  # types stand by price
        several = self.types_for(left, 0.0, 0.0, 1.0)
        cheapest_first = sorted(filter(None, (one, several)), key=price_of)
        return next((kinds for kinds in cheapest_first if self._take(nodes, kinds, ordered)), [])

    def _take(self, nodes: Sequence[OwnedNode], kinds: Sequence[InstanceType], pods: Sequence[Pod]) -> bool:
        """Whether all pods of nodes that go find a place on the others and on new nodes of these types."""
        numbers = [self.catalogue.numbers[kind.name] for kind in kinds]
        room, new = self.catalogue.room[numbers], self.devices[numbers]
        held = np.pad(self.room.gpu_free, ((0, 0), (0, new.shape[1] - self.room.gpu_free.shape[1])))
        may = np.concatenate([self._may(pods), [self.catalogue.fits(pod)[numbers] for pod in pods]], axis=1)
        rows = place(
            np.concatenate([self._free_without(nodes), room]), np.concatenate([held, new]),
            np.concatenate([self.inverse, _inverse(room)]), self._requests(pods), _gpus(pods), may,
        )  # fmt: skip
        return not (rows < 0).any()

    def types_for(
        self, pods: Iterable[Pod], spare: float, size_power: float, largest_share: float
    ) -> list[InstanceType]:
        """Return types for pods, each the one with the most value for its price; pods that fit none are left out.

        Value is what the pods that fit are worth, and a share `spare` of what the room left over is, divided by the
        type's cores to the power of `size_power`. Types that are worth more than `largest_share` of the load are bought
        where no other fits.
        """
        ordered = self._ordered(pods)
        room, requests = self.catalogue.room, self._requests(ordered)
        may = np.array([self.catalogue.fits(pod) for pod in ordered], dtype=np.bool_).reshape(-1, len(self.catalogue))
        may &= self._on_sale
        per_price = per_value(self.catalogue, size_power)
        gpus = _gpus(ordered)
        offered, asked = self._worth(room, self.devices.sum(axis=1)), self._values(requests, gpus)
        left: BoolArray = np.logical_or.reduce(may, axis=1)
        bought: list[InstanceType] = []
        while left.any():
            taken, used = fill(room, self.devices, requests, gpus, may & left[:, np.newaxis], asked)
            worth = used + spare * (offered - used)  # a pod may be worth nothing, and needs a node all the same
            value: FloatArray = np.where(np.logical_or.reduce(taken, axis=1), worth, -np.inf) / per_price
            small: FloatArray = np.where(offered <= largest_share * self.load, value, -np.inf)
            best = int((small if small.max() > -np.inf else value).argmax())
            left &= ~taken[best]
            bought.append(self.catalogue.types[best])
        return bought

    @property
    def _on_sale(self) -> BoolArray:
        """[T], which types can be had now."""
        return np.array([kind.name not in self.room.seen.sold_out for kind in self.catalogue.types], dtype=np.bool_)

    def _place(self, free: IntArray, devices: IntArray, pods: Sequence[Pod]) -> IntArray:
        """Place pods where so much is left, for good; returns int64 [P], -1 without a node."""
        requests = self._requests(pods)
        return np.asarray(place(free, devices, self.inverse, requests, _gpus(pods), self._may(pods)))

    def _values(self, requests: IntArray, gpus: IntArray) -> FloatArray:
        """Return float64 [P], dollars an hour."""
        return self._worth(requests, gpus.prod(axis=1))

    def _worth(self, amounts: IntArray, gpu_milli: IntArray) -> FloatArray:
        """Return dollars an hour for each row of resources int64 [n, R], and thousandths of GPUs int64 [n]."""
        cpu, memory = amounts[:, 0] * self.worth[0], amounts[:, 1] * self.worth[1]
        worth: FloatArray = cpu + memory + gpu_milli * self.gpu_worth
        return worth

    def _free_without(self, nodes: Sequence[OwnedNode]) -> IntArray:
        free = self.room.free.copy()
        free[[self.room.rows[node.name] for node in nodes]] = -1
        free[~self.room.ready] = -1
        return free

    def _ordered(self, pods: Iterable[Pod]) -> list[Pod]:
        listed = list(pods)
        worth = self._values(self._requests(listed), _gpus(listed)).tolist()
        return [listed[at] for at in sorted(range(len(listed)), key=lambda at: (-worth[at], listed[at].uid))]

    def _requests(self, pods: Sequence[Pod]) -> IntArray:
        rows = [self.catalogue.request(pod) for pod in pods]
        return np.array(rows, dtype=np.int64).reshape(-1, len(self.catalogue.resources))

    def _may(self, pods: Sequence[Pod]) -> BoolArray:
        may = np.ones((len(pods), len(self.room.nodes)), dtype=np.bool_)
        for row, pod in enumerate(pods):
            if pod.node_selector:
                may[row] = [selected(pod, node.type.labels(node.offering)) for node in self.room.nodes]
            if pod.gpu.models:
                may[row] &= [node.type.gpu_model in pod.gpu.models for node in self.room.nodes]
        return may


def per_value(catalogue: Catalogue, size_power: float) -> FloatArray:
    """Return float64 [T], what a type's value is divided by: its price, times its cores to a power."""
    return catalogue.prices * (catalogue.room[:, 0] / _MILLI) ** size_power


def price_of(kinds: Iterable[InstanceType]) -> float:
    """Return what a node of each type costs together, dollars an hour."""
    return sum(kind.cheapest.price for kind in kinds)


def _inverse(room: IntArray) -> FloatArray:
    """Return float64 [N, 2], 1 over the CPU and memory that nodes offer."""
    return 1.0 / np.maximum(room[:, :2].astype(np.float64), 1.0)


def _gpus(pods: Sequence[Pod]) -> IntArray:
    """Return int64 [P, 2]: how many devices pods take, and what of each."""
    return np.array([(pod.gpu.count, pod.gpu.milli) for pod in pods], dtype=np.int64).reshape(-1, 2)
