"""How Karpenter packs pods with scheduling constraints: labels, other pods, host ports, volumes, preferences.

First fit, the largest first, on the nodes that are there and then on claims for new ones, as in
`aaml.nodes.packing_rules`, which packs all others. (Karpenter 1.15, pkg/controllers/provisioning/scheduling:
`scheduler.go`, `queue.go`, `nodeclaim.go`.)
"""

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from math import inf

import numpy as np
import numpy.typing as npt

from aaml.cluster.gpu import DEVICE_MILLI, choose_devices, devices_fit
from aaml.cluster.objects import GpuRequest, Pod
from aaml.cluster.quantity import CPU, MEMORY
from aaml.nodes.catalogue import Catalogue, InstanceType, all_columns
from aaml.nodes.constraints import Constraints, Target, Wish, Wishes
from aaml.nodes.ports import Observed, OwnedNode
from aaml.nodes.topology import Placed

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


@dataclass(slots=True)
class Claim:
    """A node to provision: what its pods ask for in all [R], how many they are, and which types are left [T].

    `target`: what its labels may be, and its host ports. `devices`: thousandths left of each GPU that its pods have
    taken something of.
    """

    request: IntArray
    pods: int
    fits: BoolArray
    target: Target
    devices: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Packed:
    """Where pods would go: the claims for new nodes, and the nodes that are there and were given pods.

    `failed`: a pod that runs now would have no place, or one that is moved only one on a node that is not ready.
    """

    claims: tuple[Claim, ...]
    used: tuple[str, ...]
    failed: bool = False


@dataclass(slots=True)
class FreeCapacity:
    """What the nodes that stay have left, those that are ready first and then by name.

    `free` int64 [N, R]; `consolidatable` bool [N]: nodes that running pods may be moved to; `ready` bool [N]; `index`
    by name. `gpu_free` int64 [N, G]: thousandths of each device, 0 beyond a node's last. `seen` is what was measured.
    """

    nodes: list[OwnedNode]
    free: IntArray
    consolidatable: BoolArray
    ready: BoolArray
    index: Mapping[str, int]
    gpu_free: IntArray
    seen: Observed
    _placed: Placed | None = None

    @property
    def placed(self) -> Placed:
        """The pods that have a node, for those that are to be near or apart."""
        if self._placed is None:
            self._placed = Placed(self.seen, Wishes.known(self.seen).rules)
        return self._placed

    def devices_fit(self, gpu_free: IntArray, gpu: GpuRequest) -> BoolArray:
        """Return [N], which nodes have devices for a request, of one of its models, where so much is left."""
        fits = devices_fit(gpu_free, np.array([node.type.gpu_count for node in self.nodes], dtype=np.int64), gpu)
        if gpu.models:
            fits &= np.array([node.type.gpu_model in gpu.models for node in self.nodes], dtype=np.bool_)
        return fits


def pack(
    catalogue: Catalogue, capacity: FreeCapacity, pods: Iterable[Pod], moving: Collection[str] = (),
    without: Collection[str] = (), most_claims: float = inf,
) -> Packed:  # fmt: skip
    """Pack pods, the largest first: by CPU, then memory, then age. GPUs are shared as the simulator shares them.

    `moving` are the uids of pods that run on a node that might go: they may only be moved to `consolidatable` nodes and
    must all find a place on ready ones or claims. `without` names nodes that might go, which take nothing. A pod that
    fits no type, or that Karpenter does not provision for, is left out. Where more than `most_claims` are needed it has
    failed, and the other pods are not tried.
    """
    listed, waiting = list(pods), capacity.seen.waiting
    wishes = Wishes.known(capacity.seen)
    listed = [pod for pod in listed if pod.uid not in waiting or not wishes.of(pod).refused]
    listed.sort(key=lambda pod: 0 if pod.uid in waiting else 1 if pod.uid in moving else 2)
    constraints = Constraints(catalogue, capacity.nodes, capacity.placed, listed, without)
    packing = _Packing(catalogue, capacity, moving, without, constraints)
    left, tried = deque(sorted(listed, key=_largest_first)), dict[str, int]()
    while left and tried.get(left[0].uid) != len(left):  # else all that are left have been tried in vain (queue.go)
        pod = left.popleft()
        if not any(packing.add(pod, wish) for wish in constraints.wishes(pod)):
            left.append(pod)
            tried[pod.uid] = len(left)
        if len(packing.claims) > most_claims:
            packing.failed = True
            break
    packing.failed |= any(pod.uid in moving or pod.uid in capacity.placed.homes for pod in left)
    return packing.packed()


class _Packing:
    """Nodes and claims while they are filled."""

    def __init__(
        self, catalogue: Catalogue, capacity: FreeCapacity, moving: Collection[str], without: Collection[str],
        constraints: Constraints,
    ) -> None:  # fmt: skip
        self.catalogue, self.capacity, self.moving, self.constraints = catalogue, capacity, moving, constraints
        self.free, self.gpu_free = capacity.free.copy(), capacity.gpu_free.copy()
        self.used, self.claims, self.failed = set[int](), list[Claim](), False
        if without:
            self.free[[capacity.index[name] for name in without]] = -1

    def packed(self) -> Packed:
        """Return what has come of it."""
        return Packed(
            tuple(self.claims),
            tuple(self.capacity.nodes[node_index].name for node_index in sorted(self.used)),
            self.failed,
        )

    def add(self, pod: Pod, wish: Wish) -> bool:
        """Put a pod on the first node that takes it, else on a claim; False where none does and no type can."""
        request, moved = self.catalogue.request(pod), pod.uid in self.moving
        fits = all_columns(self.free >= request)
        if moved:
            fits &= self.capacity.consolidatable
        if pod.gpu.total_milli:
            fits &= self.capacity.devices_fit(self.gpu_free, pod.gpu)
        node_index = self._node(fits, pod, wish)
        if node_index is None:
            return self._claim(pod, request, wish)
        self.free[node_index] -= request
        if pod.gpu.total_milli:
            self.gpu_free[node_index, list(choose_devices(self.gpu_free[node_index], pod.gpu))] -= pod.gpu.milli
        self.used.add(node_index)
        self.failed |= moved and not self.capacity.ready[node_index]
        return True

    def _node(self, fits: BoolArray, pod: Pod, wish: Wish) -> int | None:
        """Return the first node that takes a pod, of those that have room."""
        for node_index in np.flatnonzero(fits).tolist():
            target = self.constraints.node(node_index)
            for labels in self.constraints.with_pod(target, pod, wish):
                self.constraints.put(target, pod, wish, labels)
                return int(node_index)
        return None

    def _claim(self, pod: Pod, request: IntArray, wish: Wish) -> bool:
        """Put a pod on the claim with the fewest pods that can take it, else on a new one; False where no type can."""
        possible = self.catalogue.has_room(pod)
        self.claims.sort(key=lambda claim: claim.pods)
        for claim in self.claims:
            total, devices = claim.request + request, _with(claim.devices, pod.gpu)
            left = claim.fits & possible & all_columns(self.catalogue.room >= total)
            if devices:
                left &= self.catalogue.gpu_count >= len(devices)
            if self._narrowed(claim, left, pod, wish):
                claim.request, claim.pods, claim.devices = total, claim.pods + 1, devices
                return True
        claim = Claim(request, 1, possible, self.constraints.claim(), _with((), pod.gpu))
        if not self._narrowed(claim, possible, pod, wish):
            return False
        self.claims.append(claim)
        return True

    def _narrowed(self, claim: Claim, left: BoolArray, pod: Pod, wish: Wish) -> bool:
        """Let a claim be of the types that are left with a pod on it, if there are any."""
        if not left.any():
            return False
        for labels in self.constraints.with_pod(claim.target, pod, wish):
            fits = left & self.catalogue.allowed(labels)
            if fits.any():
                claim.fits = fits
                self.constraints.put(claim.target, pod, wish, labels)
                return True
        return False


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
    """Return the types of a claim whose dearest launch costs less than `below`, the cheapest first, at most `most`.

    They have those offerings alone that its pods allow.
    """
    within = [catalogue.types[number].within(claim.target.labels) for number in np.flatnonzero(claim.fits)]
    types = sorted(within, key=lambda each: (each.cheapest.price, each.name))
    return tuple(each for each in types if each.worst_price() < below)[:most]


def _largest_first(pod: Pod) -> tuple[int, int, float, str]:
    return -pod.requests.get(CPU, 0), -pod.requests.get(MEMORY, 0), pod.created_s, pod.uid
