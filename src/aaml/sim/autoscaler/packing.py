"""How Karpenter packs pods: first fit, the largest first, on the nodes that are there and then on claims for new ones.

A claim is not a node of a type yet: it is the set of all types that have room for its pods. It grows until none has.
(Karpenter 1.15, pkg/controllers/provisioning/scheduling: `scheduler.go`, `queue.go`, `nodeclaim.go`.)
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np
import numpy.typing as npt

from aaml.cluster.gpu import DEVICE_MILLI, choose_devices, devices_fit
from aaml.cluster.objects import GpuRequest, Pod
from aaml.cluster.quantity import CPU, MEMORY
from aaml.sim.autoscaler.catalogue import Catalogue, InstanceType, all_columns, selected
from aaml.sim.autoscaler.ports import Observed, OwnedNode

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


@dataclass(slots=True)
class Claim:
    """A node to buy: what its pods ask for in all [R], how many they are, and which types are left [T].

    `devices`: thousandths left of each GPU that its pods have taken something of.
    """

    request: IntArray
    pods: int
    fits: BoolArray
    devices: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Packed:
    """Where pods would go: the claims for new nodes, and the nodes that are there and were given pods.

    `failed`: a pod that runs now would have no place, or only one on a node that is not ready.
    """

    claims: tuple[Claim, ...]
    used: tuple[str, ...]
    failed: bool = False


@dataclass(slots=True)
class Room:
    """What the nodes that stay have left, those that are ready first and then by name.

    `free` int64 [N, R]; `quiet` bool [N]: nodes that running pods may be moved to; `ready` bool [N]; `rows` by name.
    `gpu_free` int64 [N, G]: thousandths of each device, 0 beyond a node's last.
    """

    nodes: list[OwnedNode]
    free: IntArray
    quiet: BoolArray
    ready: BoolArray
    rows: Mapping[str, int]
    gpu_free: IntArray

    @classmethod
    def of(cls, seen: Observed, catalogue: Catalogue, quiet: Collection[str]) -> "Room":
        """Measure the nodes that are not on their way out; `quiet` names those that running pods may be moved to."""
        nodes = sorted(
            (node for node in seen.nodes.values() if not node.deleting),
            key=lambda node: (node.initialized_s is None, node.name),
        )
        free = np.zeros((len(nodes), len(catalogue.resources)), dtype=np.int64)
        for row, node in enumerate(nodes):
            free[row] = catalogue.room[catalogue.numbers[node.type.name]]
            for pod in seen.pods_on(node.name).values():
                free[row] -= catalogue.request(pod)
        gpu_free = np.zeros((len(nodes), max((node.type.gpu_count for node in nodes), default=0)), dtype=np.int64)
        for row, node in enumerate(nodes if gpu_free.size else ()):
            left = seen.gpu_free.get(node.name)
            gpu_free[row, : node.type.gpu_count] = DEVICE_MILLI if left is None else left
        return cls(
            nodes,
            free,
            np.array([node.name in quiet for node in nodes], dtype=np.bool_),
            np.array([node.initialized_s is not None for node in nodes], dtype=np.bool_),
            {node.name: row for row, node in enumerate(nodes)},
            gpu_free,
        )

    def devices_fit(self, gpu_free: IntArray, gpu: GpuRequest) -> BoolArray:
        """Return [N], which nodes have devices for a request, of one of its models, where so much is left."""
        fits = devices_fit(gpu_free, np.array([node.type.gpu_count for node in self.nodes], dtype=np.int64), gpu)
        if gpu.models:
            fits &= np.array([node.type.gpu_model in gpu.models for node in self.nodes], dtype=np.bool_)
        return fits


def pack(
    catalogue: Catalogue, room: Room, pods: Iterable[Pod], held: Collection[str] = (), without: Collection[str] = ()
) -> Packed:
    """Pack pods, the largest first: by CPU, then memory, then age. GPUs are shared as the simulator shares them.

    `held` are the uids of pods that run on a node that might go: they may only be moved to `quiet` nodes and must all
    find a place on ready ones or claims. `without` names nodes that might go, which take nothing. A pod that fits no
    type is left out.
    """
    free, used, claims, failed = room.free.copy(), set[int](), list[Claim](), False
    gpu_free = room.gpu_free.copy()
    if without:
        free[[room.rows[name] for name in without]] = -1
    for pod in sorted(pods, key=_largest_first):
        request, moved = catalogue.request(pod), pod.uid in held
        fits = all_columns(free >= request)
        if moved:
            fits &= room.quiet
        if pod.gpu.total_milli:
            fits &= room.devices_fit(gpu_free, pod.gpu)
        if pod.node_selector:
            fits &= np.array([selected(pod, node.type.labels(node.offering)) for node in room.nodes], dtype=np.bool_)
        row = int(fits.argmax()) if len(fits) else 0
        if len(fits) and fits[row]:
            free[row] -= request
            if pod.gpu.total_milli:
                gpu_free[row, list(choose_devices(gpu_free[row], pod.gpu))] -= pod.gpu.milli
            used.add(row)
            failed |= moved and not room.ready[row]
        elif not _claim(catalogue, claims, pod, request):
            failed |= moved
    return Packed(tuple(claims), tuple(room.nodes[row].name for row in sorted(used)), failed)


def _claim(catalogue: Catalogue, claims: list[Claim], pod: Pod, request: IntArray) -> bool:
    """Put a pod on the claim with the fewest pods that can take it, else on a new one; False where no type can."""
    possible = catalogue.fits(pod)
    claims.sort(key=lambda claim: claim.pods)
    for claim in claims:
        total, devices = claim.request + request, _with(claim.devices, pod.gpu)
        left = claim.fits & possible & all_columns(catalogue.room >= total)
        if devices:
            left &= catalogue.gpu_count >= len(devices)
        if left.any():
            claim.request, claim.pods, claim.fits, claim.devices = total, claim.pods + 1, left, devices
            return True
    if not possible.any():
        return False
    claims.append(Claim(request, 1, possible, _with((), pod.gpu)))
    return True


def _with(devices: tuple[int, ...], gpu: GpuRequest) -> tuple[int, ...]:
    """Return what is left of a claim's devices with one request more, which opens others where these have no room."""
    if not gpu.total_milli:
        return devices
    if chosen := choose_devices(np.array(devices, dtype=np.int64), gpu):
        return tuple(left - gpu.milli * (device in chosen) for device, left in enumerate(devices))
    return devices + (DEVICE_MILLI - gpu.milli,) * gpu.count


def types_of(
    catalogue: Catalogue, claim: Claim, below: float = inf, most: int | None = None
) -> tuple[InstanceType, ...]:
    """Return the types of a claim whose dearest launch costs less than `below`, the cheapest first, at most `most`."""
    types: Sequence[InstanceType] = [catalogue.types[number] for number in np.flatnonzero(claim.fits)]
    return tuple(each for each in types if each.worst_price() < below)[:most]


def _largest_first(pod: Pod) -> tuple[int, int, float, str]:
    return -pod.requests.get(CPU, 0), -pod.requests.get(MEMORY, 0), pod.created_s, pod.uid
