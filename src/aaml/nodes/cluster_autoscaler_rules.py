"""The Cluster Autoscaler's rule in short: groups of one type of node that grow for pods that wait and shrink when idle.

Every type is a group. Preferences of pods count for nothing. (kubernetes/autoscaler, cluster-autoscaler/FAQ.md;
expanders `least-waste` and `price`.) What it does that is not here: least and most nodes of a group, failed launches,
balancing of similar groups.
"""

import numpy as np

from aaml.cluster.kernels import inlined, outlined, referent, without_refcount
from aaml.cluster.state import CPU_COLUMN, MEMORY_COLUMN
from aaml.nodes.fit import allows, allows_node, pod_fits, reserve
from aaml.nodes.fluid import fluid_price
from aaml.nodes.karpenter_rules import simulated
from aaml.nodes.packing_rules import by_fewest, put_in_order
from aaml.nodes.rows import (
    BUYS,
    DELETES,
    NODE,
    NODE_TIME,
    NOTHING,
    OFFER,
    POD,
    POD_TIME,
    SHAPE_REQUEST,
    TRAIT,
    Number,
    Record,
    RuleReference,
    RuleWork,
    Seen,
    begin_to_place,
    blocked_pods,
    copy_devices,
    kept_pods,
    measure_free,
)


@without_refcount
def is_due(at: Record) -> bool:
    """Whether it is time to look."""
    return bool(at.due_s <= at.now_s)


@without_refcount
def decide(ref: RuleReference) -> tuple[int, int]:
    """Let one group grow for what waits, else nodes go that are not needed.

    Returns orders, and how many types of `work.bought` there are.
    """
    own, _ = referent(ref)
    at = own.at
    at.due_s = at.now_s + own.terms.scan_interval_s
    rows, ready = measure_free(ref)
    grown = _grow(ref, rows)
    if grown > 0:
        at.added_s = at.now_s
        return BUYS, grown
    at.planned = _shrink(ref, rows, ready)
    return DELETES if at.planned else NOTHING, 0


# ---- growing ---------------------------------------------------------------------------------------------------------


@outlined
def _grow(ref: RuleReference, rows: int) -> int:
    """Let the group grow that the expander prefers, for the pods without room on nodes there or in the making.

    Writes its type into `work.bought`; returns how many nodes it grows by.
    """
    own, work = referent(ref)
    left, best, chosen, grown = _homeless(own, work, rows), np.inf, -1, 0
    for kind in range(own.terms.kinds if left else 0):
        nodes, loss = _grown(own, work, kind, left)
        if nodes > 0 and (chosen < 0 or loss < best):
            best, chosen, grown = loss, kind, nodes
    grown = max(0, min(grown, int(own.terms.max_nodes_total - own.at.alive)))
    for k in range(grown):
        work.bought[k] = chosen
    return grown


@inlined
def _homeless(own: Seen, work: RuleWork, rows: int) -> int:
    """Write the waiting pods that find no room, the oldest first, in the order of packing; returns how many."""
    at, homeless = own.at, 0
    begin_to_place(work, rows)
    for i in range(at.noted):
        pod, place = own.pods[POD.waiting, i], i
        while place > 0 and _is_older(own, pod, work.base[place - 1]):
            work.base[place] = work.base[place - 1]
            place -= 1
        work.base[place] = pod
    for i in range(at.noted):
        pod, found = work.base[i], False
        shape = own.shapes[own.shape_of[pod]]
        for row in range(rows):
            if allows_node(own, pod, work.numbers[row]) and pod_fits(work.left, row, shape, work.gpu_left):
                reserve(work.left, row, shape, work.gpu_left)
                found = True
                break
        if not found:
            put_in_order(own, work.packed, homeless, pod)
            homeless += 1
    return homeless


@inlined
def _is_older(own: Seen, pod: int, other: int) -> bool:
    mine_s, its_s = own.pod_times[POD_TIME.created_s, pod], own.pod_times[POD_TIME.created_s, other]
    younger: bool = own.traits[TRAIT.rank, other] > own.traits[TRAIT.rank, pod]
    return bool(mine_s < its_s) or (bool(mine_s == its_s) and younger)


@inlined
def _grown(own: Seen, work: RuleWork, kind: int, pods: int) -> tuple[int, float]:
    """Pack the first `pods` of `work.packed` that fit on nodes of a type; returns how many these are, and the loss.

    That is the shares of CPU and memory which stay unused, or what is paid for a dollar's worth of requests.
    """
    nodes, cpu, memory = 0, np.int64(0), np.int64(0)
    for k in range(pods):
        pod = work.packed[k]
        shape = own.shapes[own.shape_of[pod]]
        if not (pod_fits(own.type_allocatable, kind, shape, own.devices) and allows(own.may, pod, kind)):
            continue
        cpu += shape[SHAPE_REQUEST + CPU_COLUMN]
        memory += shape[SHAPE_REQUEST + MEMORY_COLUMN]
        by_fewest(work, nodes)
        node = -1
        for i in range(nodes):
            if pod_fits(work.sizes, work.order[i], shape, work.shares):
                node = work.order[i]
                break
        if node < 0:
            node = nodes
            nodes += 1
            work.counts[node], work.order[node] = 0, node
            for r in range(work.sizes.shape[1]):
                work.sizes[node, r] = own.type_allocatable[kind, r]
            copy_devices(work.shares, node, own.devices, kind)
        reserve(work.sizes, node, shape, work.shares)
        work.counts[node] += 1
    if nodes == 0:
        return 0, np.inf
    if own.terms.least_waste:
        room_cpu = nodes * own.type_allocatable[kind, CPU_COLUMN]
        room_memory = nodes * own.type_allocatable[kind, MEMORY_COLUMN]
        return nodes, (1.0 - cpu / room_cpu) + (1.0 - memory / room_memory)
    worth = fluid_price(own.corners[: own.terms.corners], float(cpu), float(memory), 0.0)
    return nodes, nodes * own.offers[OFFER.price, kind] / max(worth, 1e-12)


# ---- shrinking -------------------------------------------------------------------------------------------------------


@outlined
def _shrink(ref: RuleReference, rows: int, ready: int) -> int:
    """Plan to let the empty nodes go that were not needed for long enough, else one whose pods have room elsewhere.

    Returns how many these are.
    """
    own, work = referent(ref)
    at, planned, ripe = own.at, 0, np.int64(-1)
    for row in range(rows):
        work.consolidatable[row] = True
    for i in range(at.alive):
        number = own.nodes[NODE.alive, i]
        work.candidates[0] = number
        if not _is_idle(own, number) or simulated(ref, rows, ready, 0, work.candidates, 0, 1, np.inf) != 0:
            own.node_times[NODE_TIME.unneeded_s, number] = np.nan
        elif np.isnan(own.node_times[NODE_TIME.unneeded_s, number]):
            own.node_times[NODE_TIME.unneeded_s, number] = at.now_s
    if at.now_s - at.added_s < own.terms.scale_down_delay_after_add_s:
        return 0
    for i in range(at.alive):
        number = own.nodes[NODE.alive, i]
        # False for one that is needed, whose time is NaN
        if at.now_s - own.node_times[NODE_TIME.unneeded_s, number] >= own.terms.scale_down_unneeded_time_s:
            if own.nodes[NODE.pods, number] == 0 and planned < own.terms.max_empty_bulk_delete:
                own.nodes[NODE.plan, planned] = number
                planned += 1
            ripe = np.int64(number) if ripe < 0 else ripe
    if planned == 0 and ripe >= 0:
        own.nodes[NODE.plan, 0] = ripe
        planned = 1
    return planned


@inlined
def _is_idle(own: Seen, number: Number) -> bool:
    """Whether a node is ready, used below the threshold, and has no pod that must stay."""
    if np.isnan(own.node_times[NODE_TIME.initialized_s, number]) or own.nodes[NODE.deleting, number]:
        return False
    if kept_pods(own, number) > 0 or blocked_pods(own, number) > 0:
        return False
    pod, row = own.nodes[NODE.first, number], own.nodes[NODE.row, number]
    while pod >= 0:
        if not own.traits[TRAIT.owned, pod]:
            return False
        pod = own.pods[POD.after, pod]
    used = 0.0
    for r in (CPU_COLUMN, MEMORY_COLUMN):
        used = max(used, own.requested[row, r] / max(own.allocatable[row, r], 1))
    return bool(used < own.terms.scale_down_utilization_threshold)
