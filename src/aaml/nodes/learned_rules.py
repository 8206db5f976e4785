"""The rules of the autoscaler `learned`, compiled: `aaml.nodes.learned` says what they are for.

`own` is a `Seen` and `work` a `RuleWork` (`aaml.nodes.rows`).
"""

import math

import numpy as np

from aaml.cluster.kernels import inlined, outlined, referent, without_refcount
from aaml.cluster.state import CPU_COLUMN, MEMORY_COLUMN
from aaml.nodes.commitments import settle
from aaml.nodes.fit import allows, allows_node, pod_fits, reserve
from aaml.nodes.rows import (
    BUYS,
    DELETES,
    DELETES_EACH,
    NODE,
    NODE_TIME,
    NOTHING,
    OFFER,
    POD,
    POD_TIME,
    SHAPE_REQUEST,
    TRAIT,
    Array,
    Number,
    Record,
    RuleReference,
    RuleWork,
    Seen,
    begin_to_place,
    blocked_pods,
    copy_devices,
    is_kept,
    keep_places,
    kept_pods,
    measure_free,
)
from aaml.policies.gpu.arrays import SHAPE_COUNT, SHAPE_MILLI
from aaml.scheduling.costs import is_released

LATE = 0.005  # share of the pods that is let wait for longer than promised: half of what may
LAUNCH_S, LEAD_S = 22.0, 5.0  # how long a node takes to come, and is provisioned earlier than that, at the beginning
_LATE_STEP_S, _MEAN_STEP = 1.0, 0.05  # by how much a late pod changes the latter, and a second of waiting the patience
_MOST_PATIENCE = 10.0  # times the promised mean: pods that are placed at once add to it without end
_NEW_LAUNCH = 0.2  # what the latest launch counts in the average
_LONGEST_LAUNCH = 3.0  # as how many times the average a launch counts at most
_EVICTIONS_H = 1 / 30  # hours: with what is allowed in these to spare an eviction has the policy's price
AGAIN_S = 10.0  # after which a pod that still waits is looked at again
SETTLING_S = 3.0  # after a drain, in which its pods are about to wait again or to be bound
FORGOTTEN_S = 60.0  # after which a replacement that is still not ready is not waited for
FAST_S, SLOW_S = 30.0, 180.0  # over which the load is averaged
_SWING_S = 60.0  # over which its changes are added up
_OF_USE = 2.0  # as how many times its worth room counts that pods like those that are there could use
REPLACED = 5  # nodes that are tried alone and two by two
HOUR_S = 3600.0
_LEAST_SHARE = 0.001  # of its price, for a node that commitments pay for
_CPU, _MEMORY = SHAPE_REQUEST + CPU_COLUMN, SHAPE_REQUEST + MEMORY_COLUMN


@without_refcount
def served(at: Record, terms: Record, waited_s: float, before_s: float) -> None:
    """A pod has got a node after so many seconds in all; `before_s` of them before it was evicted, -1 if it was not.

    Nodes are provisioned earlier after a pod that waited for too long, and a little later after each other one: by
    steps that balance where a share `LATE` of the pods is late (adaptive conformal inference, Gibbs & Candès 2021).
    A pod that would have been late with a node at once moves nothing: a limit, the API or a sold-out type held it.
    So for the mean.
    """
    first = before_s < 0.0
    if terms.wait_p99_s > 0.0:
        late = before_s <= terms.wait_p99_s < waited_s
        saved_s = max(terms.wait_p99_s - at.launch_s - at.lead_s, 0.0)  # of its wait, with a node at once
        if not late or waited_s - saved_s <= terms.wait_p99_s:
            lead_s = at.lead_s + _LATE_STEP_S * (late - LATE * first)
            most_s = max(terms.wait_p99_s - at.launch_s, 0.0)  # that is at once
            at.lead_s = min(max(lead_s, -terms.wait_p99_s), most_s)
    if terms.wait_mean_s > 0.0:
        owed_s = terms.wait_mean_s * first - (waited_s - max(before_s, 0.0))
        most_s = _MOST_PATIENCE * terms.wait_mean_s
        at.patience_s = min(max(at.patience_s + _MEAN_STEP * owed_s, 0.0), most_s)


@without_refcount
def came(at: Record, seconds: float) -> None:
    """A node is ready so many seconds after its launch; one that took very long counts as less."""
    at.launch_s += _NEW_LAUNCH * (min(seconds, _LONGEST_LAUNCH * at.launch_s) - at.launch_s)


@inlined
def _on_nodes(own: Seen) -> tuple[int, int]:
    """Return how many pods are on nodes, and how many of them on nodes on their way out."""
    pods, leaving = 0, 0
    for i in range(own.at.alive):
        number = own.nodes[NODE.alive, i]
        pods += own.nodes[NODE.pods, number]
        leaving += own.nodes[NODE.pods, number] if own.nodes[NODE.deleting, number] else 0
    return pods, leaving


@inlined
def _allowed_evictions(own: Seen) -> float:
    """Return how many more pods may be evicted by what was promised, after those of nodes on their way out."""
    return evictions_left(own.at, own.terms, _on_nodes(own)[1])


@without_refcount
def evictions_left(at: Record, terms: Record, leaving: int) -> float:
    """Return how many more pods may be evicted by what was promised, after so many on nodes on their way out."""
    promised = terms.evictions_per_pod_hour
    return promised * at.pod_hours - at.evicted - leaving if promised >= 0.0 else np.inf


@without_refcount
def eviction_dollars(at: Record, terms: Record, pods: int, leaving: int) -> float:
    """Return what moving a pod counts, where so many are on nodes, and so many on nodes on their way out.

    It is the more, the less of what was promised is left to spare.
    """
    allowed = evictions_left(at, terms, leaving)
    if allowed == np.inf:
        return terms.eviction_dollars
    usual = terms.evictions_per_pod_hour * pods * _EVICTIONS_H
    return terms.eviction_dollars * usual / allowed if allowed > 0.0 else np.inf


@inlined
def _is_promised(terms: Record) -> bool:
    """Whether a promise says when nodes are provisioned."""
    return terms.wait_p99_s > 0.0 or terms.wait_mean_s > 0.0


@inlined
def _last_s(at: Record, terms: Record, noted_s: float) -> float:
    """Return the last moment that may keep the promise to a pod: when a node is bought for it."""
    patience_s = at.patience_s if terms.wait_mean_s > 0.0 else np.inf
    if terms.wait_p99_s > 0.0:
        patience_s = min(patience_s, terms.wait_p99_s - at.launch_s - at.lead_s)
    return noted_s + patience_s


@inlined
def buy_s(at: Record, terms: Record) -> float:
    """Return when nodes are bought for those that ask: under a promise at the last moment of the first of them."""
    if at.opened_s == np.inf:
        return np.inf
    if _is_promised(terms):
        return max(_last_s(at, terms, at.opened_s), at.latest_s)
    return min(at.latest_s + terms.idle_s * at.slower, max(at.opened_s + terms.patience_s * at.slower, at.latest_s))


@without_refcount
def next_s(at: Record, terms: Record) -> float:
    """Return when it wants to be asked again: the next purchase or look, or when a pod asks again."""
    return min(buy_s(at, terms), at.due_s, at.again_s)


@without_refcount
def collect(at: Record, terms: Record, ready: int, pods: Array, pod_times: Array) -> bool:
    """Take note of the pods that ask for nodes: all when first seen, and again every 10 s.

    Once one more of the nodes is `ready` all that still wait ask again: who was to fit there may not.
    Returns whether it is time to buy or to look.
    """
    now_s = at.now_s
    at.slower = math.exp(-terms.patience_growth * _growth(at))
    if ready > at.ready:
        for i in range(at.noted):
            pod_times[POD_TIME.again_s, pods[POD.waiting, i]] = -np.inf
        if at.replaced >= 0:
            at.due_s = now_s
    at.ready = ready
    if at.noted == 0:
        at.opened_s, at.latest_s = np.inf, -np.inf
    at.again_s = np.inf
    for i in range(at.noted):
        pod = pods[POD.waiting, i]
        if pod_times[POD_TIME.again_s, pod] <= now_s:
            pod_times[POD_TIME.again_s, pod] = now_s + AGAIN_S
            at.opened_s, at.latest_s = min(at.opened_s, pod_times[POD_TIME.noted_s, pod]), now_s
        at.again_s = min(at.again_s, pod_times[POD_TIME.again_s, pod])
    return buy_s(at, terms) <= now_s or at.due_s <= now_s


@without_refcount
def decide(ref: RuleReference) -> tuple[int, int]:
    """Buy or let nodes go, whichever it is time for; returns orders, and how many types of `work.bought` there are."""
    own, _ = referent(ref)
    at, now_s = own.at, own.at.now_s
    if buy_s(at, own.terms) <= now_s:
        at.opened_s, at.latest_s = np.inf, -np.inf
        bought = _buy(ref)
        if bought:
            return BUYS, bought
    if at.due_s > now_s:
        return NOTHING, 0
    at.due_s = now_s + own.terms.look_s
    return _drain(ref)


# ---- the load --------------------------------------------------------------------------------------------------------


@inlined
def _growth(at: Record) -> float:
    """Return how much more there is now than there was, from -1 to 1."""
    return min(1.0, at.fast_load / at.slow_load - 1.0) if at.slow_load > 0.0 else 0.0


@inlined
def _add_load(at: Record, now_s: float) -> None:
    """Take what pods are worth now into its averages."""
    seconds = now_s - at.loaded_s
    change = at.load - at.last_load if at.loaded_s > -np.inf else 0.0
    at.variation = at.variation * math.exp(-seconds / SLOW_S) + change * change / SLOW_S
    at.last_load = at.load
    at.fast_load += (at.load - at.fast_load) * (1.0 - math.exp(-seconds / FAST_S))
    at.slow_load += (at.load - at.slow_load) * (1.0 - math.exp(-seconds / SLOW_S))
    at.loaded_s = now_s


# ---- buying ----------------------------------------------------------------------------------------------------------


@outlined
def _buy(ref: RuleReference) -> int:
    """Write types for the pods that fit nowhere into `work.bought`; returns how many.

    Under a promise they are for pods whose last moment it is. Others go where these leave room, or wait for their own.
    """
    own, work = referent(ref)
    rows, _, pods, missing = _measured(ref)
    if missing == 0:
        return 0
    left = _without_row(work, work.packed, work.packed, pods)
    if _is_committed(own.terms):
        _count_nodes(ref)
    promised = _is_promised(own.terms)
    spare = own.terms.spare_value * (_OF_USE if promised else 1.0) + own.terms.spare_growth * _growth(own.at)
    spare = min(max(spare, 0.0), 1.0)
    due = _due_first(own, work, left) if promised else left
    bought = _types_for(ref, rows, work.packed, left, due, spare, OFFER.powered, own.terms.largest_share)
    for k in range(left):
        pod = work.packed[k]
        if work.marked[k] and own.pods[POD.noted, pod] >= 0:
            own.at.opened_s = min(own.at.opened_s, own.pod_times[POD_TIME.noted_s, pod])
    return bought


@inlined
def _due_first(own: Seen, work: RuleWork, count: int) -> int:
    """Put those of the first pods of `work.packed` first whose last moment it is; returns how many these are.

    One that still runs on a node on its way out has not begun to wait.
    """
    due, later = 0, 0
    for k in range(count):
        pod = work.packed[k]
        waits = own.pods[POD.noted, pod] >= 0
        if waits and _last_s(own.at, own.terms, own.pod_times[POD_TIME.noted_s, pod]) <= own.at.now_s:
            work.packed[due] = pod
            due += 1
        else:
            work.base[later] = pod
            later += 1
    for k in range(later):
        work.packed[due + k] = work.base[k]
    return due


@outlined
def _measured(ref: RuleReference) -> tuple[int, int, int, int]:
    """Measure the nodes that stay, and place the pods that need a node on them, ready or not.

    Returns how many nodes there are, how many of them are ready, how many pods, and how many of these fit nowhere.
    """
    own, work = referent(ref)
    pods = _unplaced(own, work.base)
    rows, ready = _fitting(ref, pods)
    _in_order(own, work, work.base, pods, work.packed)
    begin_to_place(work, rows)
    missing = _place(ref, rows, work.packed, pods)
    keep_places(work, rows)
    return rows, ready, pods, missing


@inlined
def _fitting(ref: RuleReference, pods: int) -> tuple[int, int]:
    """Measure the nodes that stay, and what their pods and the first `pods` of `work.base` are worth.

    Prices of CPU, memory and GPUs are the dual prices of the fluid bound for all that is asked for. Returns how many
    nodes there are, and how many of them are ready.
    """
    own, work = referent(ref)
    at, cpu, memory, gpus = own.at, 0.0, 0.0, 0.0
    rows, ready = measure_free(ref)
    for row in range(rows):
        kind = own.nodes[NODE.kind, work.numbers[row]]
        cpu += own.type_allocatable[kind, CPU_COLUMN] - work.free[row, CPU_COLUMN]
        memory += own.type_allocatable[kind, MEMORY_COLUMN] - work.free[row, MEMORY_COLUMN]
        gpus += _devices_in_all(own.devices, kind) - _devices_in_all(work.gpu_free, row)
        _offer(own, work, row, kind)
    for k in range(pods):
        shape = own.shapes[own.shape_of[work.base[k]]]
        cpu += shape[_CPU]
        memory += shape[_MEMORY]
        gpus += shape[SHAPE_COUNT] * shape[SHAPE_MILLI]
    at.load, at.wanted_cpu, at.wanted_memory = -np.inf, cpu, memory
    for i in range(own.terms.corners):
        load = own.corners[i, 0] * cpu + own.corners[i, 1] * memory
        if own.corners.shape[1] > 2:
            load += own.corners[i, 2] * gpus
        if load > at.load:
            at.load, at.cpu_worth, at.memory_worth = load, own.corners[i, 0], own.corners[i, 1]
            at.gpu_worth = own.corners[i, 2] if own.corners.shape[1] > 2 else 0.0
    _add_load(at, own.at.now_s)
    return rows, ready


@inlined
def _devices_in_all(devices: Array, row: int) -> int:
    """Return the thousandths of GPUs in a row."""
    milli = 0
    for device in range(devices.shape[1]):
        milli += devices[row, device]
    return milli


@inlined
def _offer(own: Seen, work: RuleWork, row: int, kind: int) -> None:
    """Write 1 over what a node of a type offers."""
    work.inverse[row, 0] = 1.0 / max(float(own.type_allocatable[kind, CPU_COLUMN]), 1.0)
    work.inverse[row, 1] = 1.0 / max(float(own.type_allocatable[kind, MEMORY_COLUMN]), 1.0)


@inlined
def _worth(own: Seen, shape: Array) -> float:
    """Return what a pod is worth, dollars an hour."""
    at = own.at
    gpus = shape[SHAPE_COUNT] * shape[SHAPE_MILLI]
    return shape[_CPU] * at.cpu_worth + shape[_MEMORY] * at.memory_worth + gpus * at.gpu_worth


@inlined
def _unplaced(own: Seen, pods: Array) -> int:
    """Write the pods that wait, and those of nodes on their way out that leave before they end; returns how many."""
    at, count = own.at, 0
    for i in range(at.noted):
        pods[count] = own.pods[POD.waiting, i]
        count += 1
    for i in range(at.alive):
        number = own.nodes[NODE.alive, i]
        if own.nodes[NODE.deleting, number]:
            pod = own.nodes[NODE.first, number]
            while pod >= 0:
                if not is_kept(own, pod) and not own.pods[POD.stopping, pod]:
                    pods[count] = pod
                    count += 1
                pod = own.pods[POD.after, pod]
    return count


@inlined
def _in_order(own: Seen, work: RuleWork, pods: Array, count: int, ordered: Array) -> None:
    """Write pods into `ordered`, the most valuable first, then by uid."""
    for k in range(count):
        pod, place = pods[k], k
        worth = _worth(own, own.shapes[own.shape_of[pod]])
        while place > 0 and (
            work.worth[place - 1] < worth
            or (
                work.worth[place - 1] == worth
                and own.traits[TRAIT.rank, ordered[place - 1]] > own.traits[TRAIT.rank, pod]
            )
        ):
            ordered[place], work.worth[place] = ordered[place - 1], work.worth[place - 1]
            place -= 1
        ordered[place], work.worth[place] = pod, worth


@inlined
def _fullest(own: Seen, work: RuleWork, rows: int, pod: int, shape: Array) -> int:
    """Return the row that is fullest with a pod on it, of those that it fits in, -1 for none."""
    best, least = -1, np.inf
    for row in range(rows):
        if allows_node(own, pod, work.numbers[row]) and pod_fits(work.left, row, shape, work.gpu_left):
            left = (work.left[row, CPU_COLUMN] - shape[_CPU]) * work.inverse[row, 0]
            left += (work.left[row, MEMORY_COLUMN] - shape[_MEMORY]) * work.inverse[row, 1]
            if left < least:
                best, least = row, left
    return best


@outlined
def _place(ref: RuleReference, rows: int, pods: Array, count: int) -> int:
    """Give pods one of the first `rows` each, in their order: the one that is then fullest, as MostAllocated does.

    Of equal rows it is the first. Writes `work.rows`, -1 for a pod without one; returns how many have none.
    """
    own, work = referent(ref)
    missing = 0
    for k in range(count):
        shape = own.shapes[own.shape_of[pods[k]]]
        best = _fullest(own, work, rows, pods[k], shape)
        work.rows[k] = best
        if best < 0:
            missing += 1
        else:
            reserve(work.left, best, shape, work.gpu_left)
    return missing


@inlined
def _without_row(work: RuleWork, pods: Array, left: Array, count: int) -> int:
    """Write those of the pods that were placed last that have no row into `left`; returns how many."""
    kept = 0
    for k in range(count):
        if work.rows[k] < 0:
            left[kept] = pods[k]
            kept += 1
    return kept


@outlined
def _types_for(
    ref: RuleReference, first: int, pods: Array, count: int, due: int, spare: float, column: int, largest_share: float,
) -> int:  # fmt: skip
    """Write types into `work.bought` until the first `due` pods have a place; returns how many.

    Each is the one with the most value for its price: what those of all `count` pods that fit are worth, and a share
    `spare` of what is left over is, divided by `column` of `OFFER`. Types that are worth more than `largest_share` of
    the load are bought where no other fits. Pods that fit none are left out. Working memory is `work.left` from row
    `first` on, and `work.marked`, which are in the end those without a place.
    """
    own, work = referent(ref)
    at, bought, waiting, committed = own.at, 0, 0, _is_committed(own.terms)
    promised = _is_promised(own.terms)
    for k in range(count):
        work.marked[k] = _fits_a_type(own, pods[k])
        waiting += work.marked[k] and k < due
    while waiting:
        best, small, most, most_small = -1, -1, -np.inf, -np.inf
        for kind in range(own.terms.kinds):
            taken, used = _fill(own, work, first, pods, count, due, kind, False)
            offered = (
                own.type_allocatable[kind, CPU_COLUMN] * at.cpu_worth
                + own.type_allocatable[kind, MEMORY_COLUMN] * at.memory_worth
            )
            offered += _devices_in_all(own.devices, kind) * at.gpu_worth
            value = -np.inf
            if taken:
                price = own.offers[column, kind] * (work.adds[kind] if committed else 1.0)
                room = _of_use(own, work, first) if promised else offered - used
                value = (used + spare * _spare(own, room)) / price
            if best < 0 or value > most:
                best, most = kind, value
            if offered <= largest_share * at.load and value > most_small:
                small, most_small = kind, value
        kind = small if small >= 0 else best
        taken, _ = _fill(own, work, first, pods, count, due, kind, True)
        waiting -= taken
        work.bought[bought] = kind
        bought += 1
        if committed:
            _count(ref, kind, 1.0)
    if committed and bought:
        for k in range(bought):
            work.there[work.bought[k]] -= 1.0
        _count(ref, 0, 0.0)
    return bought


@inlined
def _of_use(own: Seen, work: RuleWork, row: int) -> float:
    """Return what room is worth that pods could use which ask for CPU and memory as all that are there do together."""
    at = own.at
    cpu = work.left[row, CPU_COLUMN] / max(at.wanted_cpu, 1.0)
    memory = work.left[row, MEMORY_COLUMN] / max(at.wanted_memory, 1.0)
    together = at.wanted_cpu * at.cpu_worth + at.wanted_memory * at.memory_worth
    return together * min(cpu, memory) + _devices_in_all(work.gpu_left, row) * at.gpu_worth


@inlined
def _spare(own: Seen, room: float) -> float:
    """Return what of the room that is left on a new node counts as room, dollars an hour.

    It is what pods would use of it whose demand is drawn from an exponential distribution: its mean is so many times
    the standard deviation of what the load changes in a minute.
    """
    if own.terms.spare_swing <= 0.0:
        return room
    scale = own.terms.spare_swing * math.sqrt(own.at.variation * _SWING_S)
    return scale * (1.0 - math.exp(-room / scale)) if scale > 0.0 else 0.0


@inlined
def _is_on_sale(on_sale: Array, kind: int) -> bool:
    """Whether a type can be had now."""
    return on_sale.shape[0] == 0 or on_sale[kind]


@inlined
def _fits_a_type(own: Seen, pod: int) -> bool:
    """Whether a pod fits a type that can be had."""
    shape, fits = own.shapes[own.shape_of[pod]], False
    for kind in range(own.terms.kinds):
        possible = _is_on_sale(own.on_sale, kind) and allows(own.may, pod, kind)
        fits |= possible and pod_fits(own.type_allocatable, kind, shape, own.devices)
    return fits


@inlined
def _fill(
    own: Seen, work: RuleWork, spot: int, pods: Array, count: int, due: int, kind: int, take: bool
) -> tuple[int, float]:
    """Fill a node of a type with those of the pods that are `work.marked`, in their order, each that still fits.

    Returns how many of the first `due` that are, and what all are worth: none where the type cannot be had. With `take`
    they are marked no more. Working memory is the row `spot`.
    """
    if not _is_on_sale(own.on_sale, kind):
        return 0, 0.0
    _empty_node(own, work, spot, kind)
    taken, used = 0, 0.0
    for k in range(count):
        if not work.marked[k] or not allows(own.may, pods[k], kind):
            continue
        shape = own.shapes[own.shape_of[pods[k]]]
        if pod_fits(work.left, spot, shape, work.gpu_left):
            taken += k < due
            used += _worth(own, shape)
            reserve(work.left, spot, shape, work.gpu_left)
            if take:
                work.marked[k] = False
    return taken, used


@inlined
def _empty_node(own: Seen, work: RuleWork, row: int, kind: int) -> None:
    """Write what a new node of a type has left into a row."""
    for r in range(own.type_allocatable.shape[1]):
        work.left[row, r] = own.type_allocatable[kind, r]
    copy_devices(work.gpu_left, row, own.devices, kind)


# ---- commitments -----------------------------------------------------------------------------------------------------


@inlined
def _is_committed(terms: Record) -> bool:
    """Whether nodes count what they add to what was committed to."""
    return terms.commitments > 0 and terms.knows > 0


@inlined
def _covered(own: Seen, work: RuleWork) -> float:
    """Return what of the nodes that are there commitments pay for, dollars an hour."""
    terms = own.terms
    return settle(
        own.amounts[: terms.commitments], own.steps[: terms.steps], own.offers[OFFER.price],
        work.there[: terms.kinds], 1.0, work.on_demand, work.unspent, work.unspent[:0],
    )  # fmt: skip


@outlined
def _count_nodes(ref: RuleReference) -> None:
    """Count the nodes of each type that stay, and write what one more and one less of it would change."""
    own, work = referent(ref)
    for kind in range(own.terms.kinds):
        work.there[kind] = 0.0
    for i in range(own.at.alive):
        number = own.nodes[NODE.alive, i]
        if not own.nodes[NODE.deleting, number] and not own.nodes[NODE.spot, number]:
            work.there[own.nodes[NODE.kind, number]] += 1.0
    _count(ref, 0, 0.0)


@outlined
def _count(ref: RuleReference, kind: Number, more: float) -> None:
    """Count so many more nodes of a type; then write the share of its price that each type adds and saves.

    A node that commitments pay for has a thousandth of its price: so the smaller is the better one of two.
    """
    own, work = referent(ref)
    work.there[kind] += more
    for other in range(own.terms.kinds):
        work.adds[other], work.saves[other] = 1.0, 1.0
    for step in range(own.terms.steps):
        work.adds[int(own.steps[step, 1])] = -1.0
    covered = _covered(own, work)
    for other in range(own.terms.kinds):
        if work.adds[other] > 0.0:
            continue
        price = own.offers[OFFER.price, other]
        work.there[other] += 1.0
        work.adds[other] = max(1.0 - (_covered(own, work) - covered) / price, _LEAST_SHARE)
        work.there[other] -= 1.0
        if work.there[other] >= 1.0:
            work.there[other] -= 1.0
            work.saves[other] = max(1.0 - (covered - _covered(own, work)) / price, _LEAST_SHARE)
            work.there[other] += 1.0


@inlined
def _leave(ref: RuleReference, number: Number) -> None:
    """Count a node no more."""
    own, _ = referent(ref)
    if number >= 0 and not own.nodes[NODE.spot, number]:
        _count(ref, own.nodes[NODE.kind, number], -1.0)


@inlined
def _come_back(ref: RuleReference, number: Number) -> None:
    """Count a node again."""
    own, _ = referent(ref)
    if number >= 0 and not own.nodes[NODE.spot, number]:
        _count(ref, own.nodes[NODE.kind, number], 1.0)


@inlined
def _paid(own: Seen, work: RuleWork, number: Number) -> float:
    """Return what is not paid any more once a node has gone, dollars an hour."""
    if not _is_committed(own.terms) or own.nodes[NODE.spot, number]:
        return own.paid[number]
    return own.paid[number] * work.saves[own.nodes[NODE.kind, number]]


@inlined
def _added(own: Seen, work: RuleWork, count: int, price: float) -> float:
    """Return what nodes of the types in `work.bought`, of this price together, add to what is paid, dollars an hour."""
    before = _covered(own, work)
    for k in range(count):
        work.there[work.bought[k]] += 1.0
    after = _covered(own, work)
    for k in range(count):
        work.there[work.bought[k]] -= 1.0
    return price - (after - before)


@inlined
def _with_commitments(
    own: Seen, work: RuleWork, first: Number, second: Number, count: int, price: float, new: float
) -> tuple[float, float]:  # fmt: skip
    """Return what is not paid any more once one or two nodes have gone, and what those in `work.bought` add then."""
    before = _covered(own, work)
    for number in (first, second):
        if number >= 0 and not own.nodes[NODE.spot, number]:
            work.there[own.nodes[NODE.kind, number]] -= 1.0
    saved = price - (before - _covered(own, work))
    added = _added(own, work, count, new)
    for number in (first, second):
        if number >= 0 and not own.nodes[NODE.spot, number]:
            work.there[own.nodes[NODE.kind, number]] += 1.0
    return saved, added


# ---- draining --------------------------------------------------------------------------------------------------------


@outlined
def _drain(ref: RuleReference) -> tuple[int, int]:
    """Plan which nodes go now, or write what is bought for others to go; returns as `decide` does."""
    own, _ = referent(ref)
    at, now_s = own.at, own.at.now_s
    at.planned, at.replaces = 0, 0
    if at.replaced >= 0 and _is_ready(own):
        first, second = at.replaced, at.replaced_too
        at.replaced, at.replaced_too = -1, -1
        if _can_go(ref, first, second):
            at.drained_s = now_s
            own.nodes[NODE.plan, 0], own.nodes[NODE.plan, 1] = first, second
            at.planned = 1 + (second >= 0)
            return DELETES, 0
    _plan_empty(ref)
    if at.planned:
        return DELETES, 0
    released = _released(own)
    as_before = at.nothing_s == at.changed_s and at.released == released and not own.terms.evictions_per_pod_hour > 0.0
    if now_s - at.drained_s < SETTLING_S or as_before:
        return NOTHING, 0
    rows, ready, _, missing = _measured(ref)
    if missing:
        return NOTHING, 0
    orders, bought = _moves(ref, rows, ready)
    if orders == NOTHING:
        at.nothing_s, at.released = at.changed_s, released
    return orders, bought


@inlined
def _plan_empty(ref: RuleReference) -> None:
    """Plan that the nodes go which have had no pods for long enough, but those that commitments pay for anyway."""
    own, work = referent(ref)
    at, now_s, committed = own.at, own.at.now_s, _is_committed(own.terms)
    if committed:
        _count_nodes(ref)
    for i in range(at.alive):
        number = own.nodes[NODE.alive, i]
        if not _may_go(own, number) or own.nodes[NODE.pods, number] > 0 or _awaited(own, number):
            continue
        if committed and _paid(own, work, number) <= _LEAST_SHARE * own.paid[number]:
            continue
        since_s = own.node_times[NODE_TIME.last_event_s, number]
        if np.isnan(since_s):
            since_s = own.node_times[NODE_TIME.initialized_s, number]
        if now_s - since_s >= own.terms.empty_s:
            own.nodes[NODE.plan, at.planned] = number
            at.planned += 1
            if committed:
                _leave(ref, number)


@inlined
def _may_go(own: Seen, number: int) -> bool:
    """Whether a node is ready, not on its way out, and none of those that stay whatever runs there."""
    ready = not np.isnan(own.node_times[NODE_TIME.initialized_s, number])
    return ready and not own.nodes[NODE.deleting, number] and not _is_true(own.stays, number)


@inlined
def _awaited(own: Seen, number: int) -> bool:
    """Whether a node was bought for others to go."""
    return own.at.replaced >= 0 and own.node_times[NODE_TIME.launched_s, number] == own.at.replaced_s


@inlined
def _is_ready(own: Seen) -> bool:
    """Whether a replacement is ready, or is not waited for any more."""
    at = own.at
    if own.at.now_s - at.replaced_s >= FORGOTTEN_S:
        return True
    for i in range(at.alive):
        number = own.nodes[NODE.alive, i]
        if _awaited(own, number) and np.isnan(own.node_times[NODE_TIME.initialized_s, number]):
            return False
    return True


@inlined
def _released(own: Seen) -> int:
    """Return how many of the pods that were kept for a time may be disrupted now: `Observed.released`."""
    count = 0
    for i in range(own.at.alive):
        number = own.nodes[NODE.alive, i]
        if own.nodes[NODE.awhile, number] > 0:
            pod = own.nodes[NODE.first, number]
            while pod >= 0:
                released_s = own.pod_times[POD_TIME.released_s, pod]
                count += 0.0 < own.kept_s[pod] < np.inf and is_released(released_s, own.at.now_s)
                pod = own.pods[POD.after, pod]
    return count


@outlined
def _can_go(ref: RuleReference, first: Number, second: Number) -> bool:
    """Whether all pods of one or two nodes fit on others as things are now."""
    own, _ = referent(ref)
    evicted = 0
    for number in (first, second):
        if number < 0:
            continue
        if own.nodes[NODE.deleting, number] or _is_true(own.stays, number):
            return False
        if kept_pods(own, number) > 0 or blocked_pods(own, number) > 0:
            return False
        evicted += own.nodes[NODE.pods, number]
    if evicted > _allowed_evictions(own):
        return False
    rows, ready, _, missing = _measured(ref)
    return missing == 0 and _move(ref, rows, ready, first, second)


@inlined
def _is_true(facts: Array, at: Number) -> bool:
    """Return what an array says, False where it has no elements."""
    return facts.shape[0] > 0 and facts[at]


@outlined
def _move(ref: RuleReference, rows: int, ready: int, first: Number, second: Number) -> bool:
    """Place the pods of nodes that go on others that are ready, for good. Returns whether they fit; else not one is."""
    own, work = referent(ref)
    pods = _pods_of(own, work, first, second)
    _leave_out(work, rows, ready, first, second)
    if _place(ref, rows, work.packed, pods):
        return False
    keep_places(work, ready)
    return True


@inlined
def _pods_of(own: Seen, work: RuleWork, first: Number, second: Number) -> int:
    """Write the pods of one or two nodes into `work.packed`, the most valuable first; returns how many."""
    count = 0
    for number in (first, second):
        pod = own.nodes[NODE.first, number] if number >= 0 else np.int32(-1)
        while pod >= 0:
            work.base[count] = pod
            count += 1
            pod = own.pods[POD.after, pod]
    _in_order(own, work, work.base, count, work.packed)
    return count


@inlined
def _leave_out(work: RuleWork, rows: int, ready: int, first: Number, second: Number) -> None:
    """Begin to place pods on the nodes that are ready, without one or two of them."""
    begin_to_place(work, rows)
    for row in range(rows):
        if row >= ready or work.numbers[row] == first or work.numbers[row] == second:
            for r in range(work.free.shape[1]):
                work.left[row, r] = -1


@outlined
def _moves(ref: RuleReference, rows: int, ready: int) -> tuple[int, int]:
    """Plan the nodes whose pods fit on others, else write what is bought in place of one or two."""
    own, work = referent(ref)
    at, hours, going, left = own.at, own.terms.horizon_s / HOUR_S, 0, 0
    committed = _is_committed(own.terms)
    if committed:
        _count_nodes(ref)
    for i in range(at.alive):
        going += own.nodes[NODE.deleting, own.nodes[NODE.alive, i]]
    allowed = math.ceil(own.terms.most_at_once * at.alive) - going
    evictions = _allowed_evictions(own) - _about_to_go(own)
    for i in range(_candidates(ref, hours)):
        if at.planned >= allowed:
            break
        number = np.int64(work.candidates[i])
        pods = own.nodes[NODE.pods, number]
        pays = not committed or _paid(own, work, number) * hours > work.weights[i]
        if pays and pods <= evictions and _move(ref, rows, ready, number, np.int64(-1)):
            own.nodes[NODE.plan, at.planned] = number
            at.planned += 1
            evictions -= pods
            if committed:
                _leave(ref, number)
        else:
            work.candidates[left], work.weights[left] = number, work.weights[i]
            left += 1
    if at.planned:
        at.drained_s = own.at.now_s
        return DELETES_EACH, 0
    if allowed <= 0 or at.replaced >= 0:
        return NOTHING, 0
    bought = _replacement(ref, rows, ready, min(left, REPLACED), hours, evictions)
    return (BUYS if bought else NOTHING), bought


@inlined
def _about_to_go(own: Seen) -> int:
    """Return how many pods are on the nodes that go once others in their place are ready."""
    pods = 0
    for i in range(own.at.alive):
        number = own.nodes[NODE.alive, i]
        if number in (own.at.replaced, own.at.replaced_too) and not own.nodes[NODE.deleting, number]:
            pods += own.nodes[NODE.pods, number]
    return pods


@outlined
def _candidates(ref: RuleReference, hours: float) -> int:
    """Write the nodes whose price for some hours is more than what moving their pods counts, the best first.

    `work.weights` are what moving their pods counts. Returns how many there are.
    """
    own, work = referent(ref)
    at, count = own.at, 0
    pods, leaving = _on_nodes(own)
    eviction, allowed = eviction_dollars(at, own.terms, pods, leaving), evictions_left(at, own.terms, leaving)
    for i in range(at.alive):
        number = own.nodes[NODE.alive, i]
        if own.nodes[NODE.pods, number] > allowed:
            continue
        if not _may_go(own, number) or own.nodes[NODE.pods, number] == 0 or kept_pods(own, number) > 0:
            continue
        if number in (at.replaced, at.replaced_too):
            continue
        cost, stops, pod = 0.0, False, own.nodes[NODE.first, number]
        while pod >= 0:
            stops |= own.pods[POD.stopping, pod] > 0 or _is_true(own.blocked, pod)
            cost += eviction * (own.terms.job_times if own.traits[TRAIT.anew, pod] else 1.0)
            pod = own.pods[POD.after, pod]
        price = _paid(own, work, number)
        if stops or not price * hours > cost:
            continue
        place, ratio = count, cost / price
        while place > 0:
            other = work.candidates[place - 1]
            its = work.weights[place - 1] / _paid(own, work, other)
            if its < ratio or (its == ratio and own.names[other] < own.names[number]):
                break
            work.candidates[place], work.weights[place] = other, work.weights[place - 1]
            place -= 1
        work.candidates[place], work.weights[place] = number, cost
        count += 1
    return count


@outlined
def _replacement(ref: RuleReference, rows: int, ready: int, nodes: int, hours: float, evictions: float) -> int:
    """Write the nodes to buy in place of one or two that save the most, if any save enough; returns how many.

    At most so many `evictions` are allowed.
    """
    own, work = referent(ref)
    at, most, best = own.at, 0.0, 0
    for both in range(2):
        for i in range(nodes):
            for j in range(i + 1 if both else nodes - 1, nodes):
                first, second = np.int64(work.candidates[i]), np.int64(work.candidates[j] if both else -1)
                price, cost, pods = own.paid[first], work.weights[i], own.nodes[NODE.pods, first]
                if both:
                    pods += own.nodes[NODE.pods, second]
                    price += own.paid[second]
                    cost += work.weights[j]
                if pods > evictions:
                    continue
                count = _in_place_of(ref, rows, ready, first, second)
                new = _price(own, work, count)
                together = new
                if _is_committed(own.terms):
                    price, new = _with_commitments(own, work, first, second, count, price, new)
                gain = (price - new) * hours - together * LAUNCH_S / HOUR_S - cost
                if count and price - new > own.terms.margin * price and gain > most:
                    most, best = gain, count
                    for k in range(count):
                        work.chosen[k] = work.bought[k]
                    at.replaced, at.replaced_too, at.replaced_s = first, second, own.at.now_s
    for k in range(best):
        work.bought[k] = work.chosen[k]
    return best


@inlined
def _price(own: Seen, work: RuleWork, count: int) -> float:
    """Return what nodes of the types in `work.bought` cost together."""
    price = 0.0
    for k in range(count):
        price += own.offers[OFFER.price, work.bought[k]]
    return price


@outlined
def _in_place_of(ref: RuleReference, rows: int, ready: int, first: Number, second: Number) -> int:
    """Write types for the pods of nodes that go, as far as they do not fit on others: one, or cheaper several.

    Returns how many; 0 where pods fit no type, or would not fit once a scheduler puts each on the node that is then
    fullest.
    """
    own, work = referent(ref)
    pods = _pods_of(own, work, first, second)
    _leave_out(work, rows, ready, first, second)
    _place(ref, rows, work.packed, pods)
    left = _without_row(work, work.packed, work.base, pods)
    committed = _is_committed(own.terms)
    if committed:
        _leave(ref, first)
        _leave(ref, second)
    one = _one_for_all(own, work, rows, left)
    several = _types_for(ref, rows, work.base, left, left, 0.0, OFFER.price, 1.0)
    alone, together = own.offers[OFFER.price, max(one, 0)], _price(own, work, several)
    if committed:
        alone, together = alone * work.adds[max(one, 0)], _added(own, work, several, together)
        _come_back(ref, first)
        _come_back(ref, second)
    if one >= 0 and (several == 0 or alone <= together):
        if _take(ref, rows, ready, first, second, pods, one, 0):
            work.bought[0] = one
            return 1
        one = -1
    if several and _take(ref, rows, ready, first, second, pods, -1, several):
        return several
    if one >= 0 and _take(ref, rows, ready, first, second, pods, one, 0):
        work.bought[0] = one
        return 1
    return 0


@inlined
def _one_for_all(own: Seen, work: RuleWork, spot: int, count: int) -> int:
    """Return the cheapest type that all the first `count` pods of `work.base` fit on together, -1 for none."""
    for k in range(count):
        work.marked[k] = True
    best = -1
    for kind in range(own.terms.kinds):
        if _is_on_sale(own.on_sale, kind) and _fill(own, work, spot, work.base, count, count, kind, False)[0] == count:
            if not _is_committed(own.terms):
                return kind
            adds = own.offers[OFFER.price, kind] * work.adds[kind]
            if best < 0 or adds < own.offers[OFFER.price, best] * work.adds[best]:
                best = kind
    return best


@outlined
def _take(ref: RuleReference, rows: int, ready: int, first: Number, second: Number, pods: int, one: int, several: int,
) -> bool:  # fmt: skip
    """Whether all pods of nodes that go find a place on the others and on new nodes.

    New are a node of the type `one`, or those of the first `several` of `work.bought`.
    """
    own, work = referent(ref)
    _leave_out(work, rows, ready, first, second)
    new = several if one < 0 else 1
    for k in range(new):
        kind = work.bought[k] if one < 0 else one
        work.numbers[rows + k] = kind - own.terms.kinds
        _offer(own, work, rows + k, kind)
        _empty_node(own, work, rows + k, kind)
    return _place(ref, rows + new, work.packed, pods) == 0
