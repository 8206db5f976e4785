"""How Karpenter packs pods: first fit, the largest first, on the nodes that are there and then on claims for new ones.

A claim is not a node of a type yet: it is the set of all types that its pods fit on. It grows until there is none.
Pods that ask for more than resources (labels, other pods, ports, volumes) are packed by `aaml.nodes.packing`.
(Karpenter 1.15, pkg/controllers/provisioning/scheduling: `scheduler.go`, `queue.go`, `nodeclaim.go`.)
"""

import numpy as np

from aaml.cluster.gpu import DEVICE_MILLI
from aaml.cluster.kernels import call_packer, inlined, outlined, referent
from aaml.cluster.state import CPU_COLUMN, MEMORY_COLUMN
from aaml.nodes.fit import allows, allows_node, pod_fits, reserve
from aaml.nodes.rows import (
    NODE_TIME,
    OFFER,
    POD_TIME,
    SHAPE_REQUEST,
    TRAIT,
    Array,
    Number,
    RuleReference,
    RuleWork,
    Seen,
    measure_free,
)
from aaml.policies.gpu.arrays import SHAPE_COUNT, SHAPE_MILLI
from aaml.policies.gpu.fit import has_devices, take_devices

FAILED = -1


@inlined
def is_larger(own: Seen, pod: int, other: int) -> bool:
    """Whether a pod is packed before another: by CPU, then memory, then age, then uid."""
    mine, its = own.shapes[own.shape_of[pod]], own.shapes[own.shape_of[other]]
    cpu, other_cpu = mine[SHAPE_REQUEST + CPU_COLUMN], its[SHAPE_REQUEST + CPU_COLUMN]
    if cpu != other_cpu:
        return cpu > other_cpu
    memory, other_memory = mine[SHAPE_REQUEST + MEMORY_COLUMN], its[SHAPE_REQUEST + MEMORY_COLUMN]
    if memory != other_memory:
        return memory > other_memory
    if own.pod_times[POD_TIME.created_s, pod] != own.pod_times[POD_TIME.created_s, other]:
        return own.pod_times[POD_TIME.created_s, pod] < own.pod_times[POD_TIME.created_s, other]
    return own.traits[TRAIT.rank, pod] < own.traits[TRAIT.rank, other]


@inlined
def put_in_order(own: Seen, pods: Array, count: int, pod: int) -> int:
    """Add a pod to the `count` that are in the order of packing; returns its place."""
    place = count
    while place > 0 and is_larger(own, pod, pods[place - 1]):
        pods[place] = pods[place - 1]
        place -= 1
    pods[place] = pod
    return place


@outlined
def measure(ref: RuleReference) -> tuple[int, int]:
    """Measure the nodes that are not on their way out (`measure_free`), and which of them are consolidatable.

    Those are that are not busy. Returns how many there are, and how many of them are ready.
    """
    own, work = referent(ref)
    rows, ready = measure_free(ref)
    for row in range(rows):
        work.consolidatable[row] = row >= ready or not is_busy(own, work.numbers[row])
    return rows, ready


@inlined
def is_busy(own: Seen, number: int) -> bool:
    """Whether a pod was bound to a node that is ready, or left it, within `consolidateAfter` (utils/disruption).

    The API server keeps both times in whole seconds.
    """
    after_s = own.terms.consolidate_after_s
    since_s = own.node_times[NODE_TIME.last_event_s, number]
    if np.isnan(since_s):  # no event yet
        since_s = own.node_times[NODE_TIME.initialized_s, number]
    return own.at.now_s - np.floor(since_s) < after_s  # False where no node ever goes


@outlined
def pack(ref: RuleReference, rows: int, ready: int, pods: int, moving: int, below: float) -> int:  # noqa: C901
    """Pack the first `pods` of `work.packed` on the first `rows`; `work.left` and `work.gpu_left` are overwritten.

    Returns how many claims there are, in `work.order`. A pod that fits no type is left out. Where pods are `moving`,
    those that are `work.marked` may only go to consolidatable nodes, and it returns FAILED as soon as one of them has
    no place on a node that is ready or a claim, there is more than one claim, or the claim has no type that costs less
    than `below`. `work.used` says which nodes were given pods.
    """
    own, work = referent(ref)
    if own.at.packer:
        return call_packer(own.at.packer, rows, ready, pods, moving)
    claims = 0
    for row in range(rows):
        work.used[row] = False
    for k in range(pods):
        pod = work.packed[k]
        shape, moved = own.shapes[own.shape_of[pod]], moving and work.marked[k]
        place = -1
        for row in range(rows):
            may = (work.consolidatable[row] or not moved) and allows_node(own, pod, work.numbers[row])
            if may and pod_fits(work.left, row, shape, work.gpu_left):
                place = row
                break
        if place >= 0:
            if moved and place >= ready:
                return FAILED
            reserve(work.left, place, shape, work.gpu_left)
            work.used[place] = True
            continue
        found = _claim(own, work, claims, pod, shape)
        if found < 0 and moved:
            return FAILED
        if found >= claims:
            claims += 1
            if moving and claims > 1:
                return FAILED
        if moving and found >= 0 and first_type(own, work, found, below) < 0:
            return FAILED
    return claims


@inlined
def by_fewest(work: RuleWork, claims: int) -> None:
    """Put those claims first in `work.order` that have the fewest pods; of equal ones the order stays."""
    for k in range(1, claims):
        claim, place = work.order[k], k
        while place > 0 and work.counts[work.order[place - 1]] > work.counts[claim]:
            work.order[place] = work.order[place - 1]
            place -= 1
        work.order[place] = claim


@inlined
def _claim(own: Seen, work: RuleWork, claims: int, pod: int, shape: Array) -> Number:
    """Put a pod on the claim with the fewest pods that can take it, else on a new one; returns it, -1 for none."""
    by_fewest(work, claims)
    for k in range(claims):
        if _joins(own, work, work.order[k], pod, shape):
            return np.int64(work.order[k])
    some = False
    for kind in range(own.terms.kinds):
        fits = pod_fits(own.type_allocatable, kind, shape, own.devices) and allows(own.may, pod, kind)
        work.fits[claims, kind] = fits
        some |= fits
    if not some:
        return np.int64(-1)
    for r in range(own.type_allocatable.shape[1]):
        work.sizes[claims, r] = shape[SHAPE_REQUEST + r]
    work.counts[claims], work.order[claims], work.opened[claims] = 1, claims, 0
    _open_devices(work, claims, shape)
    return np.int64(claims)


@inlined
def _joins(own: Seen, work: RuleWork, claim: int, pod: int, shape: Array) -> bool:
    """Put a pod on a claim if it fits on some of its types too; returns whether one has."""
    asks, opened, some = shape[SHAPE_MILLI] > 0, work.opened[claim], False
    shares = asks and has_devices(work.shares[claim, :opened], shape[SHAPE_COUNT], shape[SHAPE_MILLI])
    devices = opened + shape[SHAPE_COUNT] if asks and not shares else opened
    for kind in range(own.terms.kinds):
        fits = work.fits[claim, kind] and allows(own.may, pod, kind)
        if devices > 0:
            fits = fits and devices <= own.devices.shape[1] and own.devices[kind, devices - 1] > 0
        for r in range(own.type_allocatable.shape[1]):
            fits &= own.type_allocatable[kind, r] >= work.sizes[claim, r] + shape[SHAPE_REQUEST + r]
        work.trial[kind] = fits
        some |= fits
    if not some:
        return False
    for kind in range(own.terms.kinds):
        work.fits[claim, kind] = work.trial[kind] > 0
    for r in range(own.type_allocatable.shape[1]):
        work.sizes[claim, r] += shape[SHAPE_REQUEST + r]
    work.counts[claim] += 1
    if shares:
        take_devices(work.shares[claim, :opened], shape[SHAPE_COUNT], shape[SHAPE_MILLI])
    else:
        _open_devices(work, claim, shape)
    return True


@inlined
def _open_devices(work: RuleWork, claim: int, shape: Array) -> None:
    """Let a claim have as many GPUs more as a pod asks for, of which the pod has its part."""
    if shape[SHAPE_MILLI] > 0:
        opened = work.opened[claim]
        for device in range(opened, opened + shape[SHAPE_COUNT]):
            work.shares[claim, device] = DEVICE_MILLI - shape[SHAPE_MILLI]
        work.opened[claim] = opened + shape[SHAPE_COUNT]


@inlined
def first_type(own: Seen, work: RuleWork, claim: Number, below: float) -> int:
    """Return the cheapest type of a claim whose dearest launch costs less than `below`, -1 for none."""
    for kind in range(own.terms.kinds):
        if work.fits[claim, kind] and own.offers[OFFER.worst, kind] < below:
            return kind
    return -1
