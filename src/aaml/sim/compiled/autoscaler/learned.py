"""`aaml.nodes.learned` and its `fitting` in compiled episodes, to the bit: the same rules and names."""

import math

import numpy as np

from aaml.cluster.kernels import named, part, section
from aaml.cluster.state import CPU_COLUMN, MEMORY_COLUMN
from aaml.nodes.learned import AGAIN_S, FAST_S, FORGOTTEN_S, HOUR_S, LAUNCH_S, REPLACED, SETTLING_S, SLOW_S
from aaml.nodes.room import fullest, has_room, take_room
from aaml.sim.compiled.autoscaler.karpenter import kept_pods
from aaml.sim.compiled.autoscaler.packing import measure_room
from aaml.sim.compiled.autoscaler.rows import NODE, NODE_TIME, OFFER, POD, POD_TIME, TRAIT
from aaml.sim.compiled.rows import SHAPE_REQUEST

NOTHING, BUYS, DELETES, DELETES_EACH = range(4)


@part
def _buy_s(own):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """Return when nodes are bought for those that ask: `LearnedNodes._buy_s`."""
    at, terms = own.at, own.terms
    if at.opened_s == np.inf:
        return np.inf
    return min(at.latest_s + terms.idle_s * at.slower, max(at.opened_s + terms.patience_s * at.slower, at.latest_s))


@part
def next_s(own):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """Return the next purchase or look, or when a pod asks again: `LearnedNodes.next_s`."""
    return min(_buy_s(own), own.at.due_s, own.at.again_s)


@named
def act(own, work):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """Take a moment in: `LearnedNodes.act`.

    Returns NOTHING; BUYS, and how many types of `work.bought`; DELETES, for the nodes of the plan; or DELETES_EACH.
    """
    at, now_s = own.at, own.moment.now_s
    _collect(own)
    if _buy_s(own) <= now_s:
        at.opened_s, at.latest_s = np.inf, -np.inf
        bought = _buy(own, work)
        if bought:
            return BUYS, bought
    if at.due_s > now_s:
        return NOTHING, 0
    at.due_s = now_s + own.terms.look_s
    return _drain(own, work)


# ---- the load --------------------------------------------------------------------------------------------------------


@part
def _growth(at):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """Return how much more there is now than there was: `_Load.growth`."""
    return min(1.0, at.fast_load / at.slow_load - 1.0) if at.slow_load > 0.0 else 0.0


@part
def _add_load(at, now_s):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """Take what pods are worth now into the averages: `_Load.add`."""
    seconds = now_s - at.loaded_s
    at.fast_load += (at.load - at.fast_load) * (1.0 - math.exp(-seconds / FAST_S))
    at.slow_load += (at.load - at.slow_load) * (1.0 - math.exp(-seconds / SLOW_S))
    at.loaded_s = now_s


# ---- buying ----------------------------------------------------------------------------------------------------------


@section
def _collect(own):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """Take note of the pods that ask for nodes."""
    at, now_s, ready = own.at, own.moment.now_s, 0
    at.slower = math.exp(-own.terms.patience_growth * _growth(at))
    for i in range(at.alive):
        ready += not np.isnan(own.node_times[NODE_TIME.initialized_s, own.nodes[NODE.alive, i]])
    if ready > at.ready:
        for i in range(at.noted):
            own.pod_times[POD_TIME.again_s, own.pods[POD.waiting, i]] = -np.inf
        if at.replaced >= 0:
            at.due_s = now_s
    at.ready = ready
    if at.noted == 0:
        at.opened_s, at.latest_s = np.inf, -np.inf
    at.again_s = np.inf
    for i in range(at.noted):
        pod = own.pods[POD.waiting, i]
        if own.pod_times[POD_TIME.again_s, pod] <= now_s:
            own.pod_times[POD_TIME.again_s, pod] = now_s + AGAIN_S
            at.opened_s, at.latest_s = min(at.opened_s, own.pod_times[POD_TIME.noted_s, pod]), now_s
        at.again_s = min(at.again_s, own.pod_times[POD_TIME.again_s, pod])


@section
def _buy(own, work):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """Write types for the pods that have no room into `work.bought`; returns how many."""
    room, _, pods, missing = _measured(own, work)
    if missing == 0:
        return 0
    left = _without_row(work, work.packed, work.packed, pods)
    spare = own.terms.spare_value + own.terms.spare_growth * _growth(own.at)
    spare = min(max(spare, 0.0), 1.0)
    return _types_for(own, work, room, work.packed, left, spare, OFFER.powered, own.terms.largest_share)


@section
def _measured(own, work):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """Measure the nodes that stay, and place the pods that need room: `_fitting` and `without_room`.

    Returns how many nodes there are, how many of them are ready, how many pods, and how many of these have no room.
    """
    pods = _unplaced(own, work.base)
    room, ready = _fitting(own, work, pods)
    _in_order(own, work, work.base, pods, work.packed)
    for row in range(room):
        for r in range(work.free.shape[1]):
            work.left[row, r] = work.free[row, r]
    missing = _place(own, work, room, work.packed, pods)
    for row in range(room):
        for r in range(work.free.shape[1]):
            work.free[row, r] = work.left[row, r]
    return room, ready, pods, missing


@part
def _fitting(own, work, pods):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """Measure the nodes that stay, and what they and the first `pods` of `work.base` ask for: `Fitting.of`.

    Returns how many nodes there are, and how many of them are ready.
    """
    at, cpu, memory = own.at, 0.0, 0.0
    room, ready = measure_room(own, work, own.moment.now_s)
    for row in range(room):
        kind = own.nodes[NODE.kind, work.numbers[row]]
        cpu += own.room[kind, CPU_COLUMN] - work.free[row, CPU_COLUMN]
        memory += own.room[kind, MEMORY_COLUMN] - work.free[row, MEMORY_COLUMN]
        _offer(own, work, row, kind)
    for k in range(pods):
        request = own.shapes[own.shape_of[work.base[k]]]
        cpu += request[SHAPE_REQUEST + CPU_COLUMN]
        memory += request[SHAPE_REQUEST + MEMORY_COLUMN]
    at.load = -np.inf
    for i in range(own.terms.corners):
        load = own.corners[i, 0] * cpu + own.corners[i, 1] * memory
        if load > at.load:
            at.load, at.cpu_worth, at.memory_worth = load, own.corners[i, 0], own.corners[i, 1]
    _add_load(at, own.moment.now_s)
    return room, ready


@part
def _offer(own, work, row, kind):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """Write 1 over what a node of a type offers."""
    work.inverse[row, 0] = 1.0 / max(float(own.room[kind, CPU_COLUMN]), 1.0)
    work.inverse[row, 1] = 1.0 / max(float(own.room[kind, MEMORY_COLUMN]), 1.0)


@part
def _unplaced(own, pods):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
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
                kept = own.kept_s[pod] > 0.0 and own.pod_times[POD_TIME.released_s, pod] > own.moment.now_s
                if not kept and not own.pods[POD.stopping, pod]:
                    pods[count] = pod
                    count += 1
                pod = own.pods[POD.after, pod]
    return count


@part
def _in_order(own, work, pods, count, ordered):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """Write pods into `ordered`, the most valuable first, then by uid: `Fitting._ordered`."""
    at = own.at
    for k in range(count):
        pod, place = pods[k], k
        request = own.shapes[own.shape_of[pod]]
        worth = (
            request[SHAPE_REQUEST + CPU_COLUMN] * at.cpu_worth
            + request[SHAPE_REQUEST + MEMORY_COLUMN] * at.memory_worth
        )
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


@section
def _place(own, work, room, pods, count):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """Give pods a row of `work.left` each, in their order: the one that is then fullest: `fitting.place`.

    Writes `work.rows`, -1 for a pod without one; returns how many have none.
    """
    missing = 0
    for k in range(count):
        request = own.shapes[own.shape_of[pods[k]]][SHAPE_REQUEST:]
        row = fullest(work.left, room, work.inverse, request, None, None, None)
        work.rows[k] = row
        if row < 0:
            missing += 1
        else:
            take_room(work.left, row, request, None, None)
    return missing


@part
def _without_row(work, pods, left, count):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """Write those of the pods that were placed last that have no row into `left`; returns how many."""
    kept = 0
    for k in range(count):
        if work.rows[k] < 0:
            left[kept] = pods[k]
            kept += 1
    return kept


@section
def _types_for(own, work, first, pods, count, spare, column, largest_share):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """Write types for pods into `work.bought`, each the one with the most value for its price; returns how many.

    `Fitting.types_for`. Working memory is `work.left` from row `first` on, and `work.held`.
    """
    at, bought, waiting = own.at, 0, 0
    for k in range(count):
        work.held[k] = _fits_a_type(own, pods[k])
        waiting += work.held[k]
    while waiting:
        best, small, most, most_small = -1, -1, -np.inf, -np.inf
        for kind in range(own.terms.kinds):
            taken, used = _fill(own, work, first, pods, count, kind, False)
            offered = own.room[kind, CPU_COLUMN] * at.cpu_worth + own.room[kind, MEMORY_COLUMN] * at.memory_worth
            value = -np.inf
            if taken:
                value = (used + spare * (offered - used)) / own.offers[column, kind]
            if best < 0 or value > most:
                best, most = kind, value
            if offered <= largest_share * at.load and value > most_small:
                small, most_small = kind, value
        kind = small if small >= 0 else best
        taken, _ = _fill(own, work, first, pods, count, kind, True)
        waiting -= taken
        work.bought[bought] = kind
        bought += 1
    return bought


@part
def _fits_a_type(own, pod):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    request = own.shapes[own.shape_of[pod]][SHAPE_REQUEST:]
    fits = False
    for kind in range(own.terms.kinds):
        fits |= has_room(own.room, kind, request, None, None)
    return fits


@section
def _fill(own, work, spot, pods, count, kind, take):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """Fill a node of a type with those of the pods that are `work.held`, in their order, each that still fits.

    Returns how many that are, and what they are worth: `fitting.fill`. With `take` they are held no more.
    """
    at, taken, used = own.at, 0, 0.0
    for r in range(own.room.shape[1]):
        work.left[spot, r] = own.room[kind, r]
    for k in range(count):
        if not work.held[k]:
            continue
        request = own.shapes[own.shape_of[pods[k]]][SHAPE_REQUEST:]
        if has_room(work.left, spot, request, None, None):
            taken += 1
            used += request[CPU_COLUMN] * at.cpu_worth + request[MEMORY_COLUMN] * at.memory_worth
            take_room(work.left, spot, request, None, None)
            if take:
                work.held[k] = False
    return taken, used


# ---- draining --------------------------------------------------------------------------------------------------------


@section
def _drain(own, work):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """Plan which nodes go now, or write what is bought for others to go; returns as `act` does."""
    at, now_s = own.at, own.moment.now_s
    at.planned, at.replaces = 0, 0
    if at.replaced >= 0 and _is_due(own):
        first, second = at.replaced, at.replaced_too
        at.replaced, at.replaced_too = -1, -1
        if _can_go(own, work, first, second):
            at.drained_s = now_s
            own.nodes[NODE.plan, 0], own.nodes[NODE.plan, 1] = first, second
            at.planned = 1 + (second >= 0)
            return DELETES, 0
    for i in range(at.alive):
        number = own.nodes[NODE.alive, i]
        if _stays(own, number) and own.nodes[NODE.pods, number] == 0 and not _awaited(own, number):
            since_s = own.node_times[NODE_TIME.last_event_s, number]
            if np.isnan(since_s):
                since_s = own.node_times[NODE_TIME.initialized_s, number]
            if now_s - since_s >= own.terms.empty_s:
                own.nodes[NODE.plan, at.planned] = number
                at.planned += 1
    if at.planned:
        return DELETES, 0
    released = _released(own)
    if now_s - at.drained_s < SETTLING_S or (at.nothing_s == at.changed_s and at.released == released):
        return NOTHING, 0
    room, ready, _, missing = _measured(own, work)
    if missing:
        return NOTHING, 0
    orders, bought = _moves(own, work, room, ready)
    if orders == NOTHING:
        at.nothing_s, at.released = at.changed_s, released
    return orders, bought


@part
def _stays(own, number):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    return not np.isnan(own.node_times[NODE_TIME.initialized_s, number]) and not own.nodes[NODE.deleting, number]


@part
def _awaited(own, number):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """Whether a node was bought for others to go: `_Planned.waits_for`."""
    return own.at.replaced >= 0 and own.node_times[NODE_TIME.launched_s, number] == own.at.replaced_s


@part
def _is_due(own):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """Whether a replacement is ready, or is not waited for any more."""
    at = own.at
    if own.moment.now_s - at.replaced_s >= FORGOTTEN_S:
        return True
    for i in range(at.alive):
        number = own.nodes[NODE.alive, i]
        if _awaited(own, number) and np.isnan(own.node_times[NODE_TIME.initialized_s, number]):
            return False
    return True


@part
def _released(own):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """Return how many of the pods that were kept for a time may be disrupted now: `Observed.released`."""
    count = 0
    for i in range(own.at.alive):
        number = own.nodes[NODE.alive, i]
        if own.nodes[NODE.awhile, number] > 0:
            pod = own.nodes[NODE.first, number]
            while pod >= 0:
                count += 0.0 < own.kept_s[pod] < np.inf and own.pod_times[POD_TIME.released_s, pod] <= own.moment.now_s
                pod = own.pods[POD.after, pod]
    return count


@section
def _can_go(own, work, first, second):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """Whether all pods of one or two nodes fit on others as things are now."""
    for number in (first, second):
        if number >= 0 and (own.nodes[NODE.deleting, number] or kept_pods(own, number) > 0):
            return False
    room, ready, _, missing = _measured(own, work)
    return missing == 0 and _move(own, work, room, ready, first, second)


@section
def _move(own, work, room, ready, first, second):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """Place the pods of nodes that go on others that are ready, for good: `Fitting.move`. Returns whether they fit."""
    pods = _pods_of(own, work, first, second)
    _leave_out(work, room, ready, first, second)
    if _place(own, work, room, work.packed, pods):
        return False
    for row in range(ready):
        for r in range(work.free.shape[1]):
            work.free[row, r] = work.left[row, r]
    return True


@part
def _pods_of(own, work, first, second):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
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


@part
def _leave_out(work, room, ready, first, second):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """Write the room without one or two nodes, and without those that are not ready: `Fitting._free_without`."""
    for row in range(room):
        gone = row >= ready or work.numbers[row] == first or work.numbers[row] == second
        for r in range(work.free.shape[1]):
            work.left[row, r] = -1 if gone else work.free[row, r]


@section
def _moves(own, work, room, ready):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """Plan the nodes whose pods others have room for, else write what is bought in place of one or two."""
    at, hours, going, left = own.at, own.terms.horizon_s / HOUR_S, 0, 0
    for i in range(at.alive):
        going += own.nodes[NODE.deleting, own.nodes[NODE.alive, i]]
    allowed = math.ceil(own.terms.most_at_once * at.alive) - going
    for i in range(_candidates(own, work, hours)):
        if at.planned >= allowed:
            break
        number = np.int64(work.candidates[i])
        if _move(own, work, room, ready, number, np.int64(-1)):
            own.nodes[NODE.plan, at.planned] = number
            at.planned += 1
        else:
            work.candidates[left], work.weights[left] = number, work.weights[i]
            left += 1
    if at.planned:
        at.drained_s = own.moment.now_s
        return DELETES_EACH, 0
    if allowed <= 0 or at.replaced >= 0:
        return NOTHING, 0
    bought = _replacement(own, work, room, ready, min(left, REPLACED), hours)
    return (BUYS if bought else NOTHING), bought


@section
def _candidates(own, work, hours):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """Write the nodes whose price for some hours is more than what moving their pods counts, the best first.

    `work.weights` are what moving their pods counts. Returns how many there are.
    """
    at, count = own.at, 0
    for i in range(at.alive):
        number = own.nodes[NODE.alive, i]
        if not _stays(own, number) or own.nodes[NODE.pods, number] == 0 or kept_pods(own, number) > 0:
            continue
        if number in (at.replaced, at.replaced_too):
            continue
        cost, stops, pod = 0.0, False, own.nodes[NODE.first, number]
        while pod >= 0:
            stops |= own.pods[POD.stopping, pod] > 0
            cost += own.terms.eviction_dollars * (own.terms.job_times if own.traits[TRAIT.anew, pod] else 1.0)
            pod = own.pods[POD.after, pod]
        price = own.offers[OFFER.price, own.nodes[NODE.kind, number]]
        if stops or not price * hours > cost:
            continue
        place, ratio = count, cost / price
        while place > 0:
            other = work.candidates[place - 1]
            its = work.weights[place - 1] / own.offers[OFFER.price, own.nodes[NODE.kind, other]]
            if its < ratio or (its == ratio and own.names[other] < own.names[number]):
                break
            work.candidates[place], work.weights[place] = other, work.weights[place - 1]
            place -= 1
        work.candidates[place], work.weights[place] = number, cost
        count += 1
    return count


@section
def _replacement(own, work, room, ready, nodes, hours):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """Write the nodes to buy in place of one or two that save the most, if any save enough; returns how many."""
    at, most, best = own.at, 0.0, 0
    for both in range(2):
        for i in range(nodes):
            for j in range(i + 1 if both else nodes - 1, nodes):
                first, second = np.int64(work.candidates[i]), np.int64(work.candidates[j] if both else -1)
                price, cost = own.offers[OFFER.price, own.nodes[NODE.kind, first]], work.weights[i]
                if both:
                    price += own.offers[OFFER.price, own.nodes[NODE.kind, second]]
                    cost += work.weights[j]
                count = _in_place_of(own, work, room, ready, first, second)
                new = _price(own, work, count)
                gain = (price - new) * hours - new * LAUNCH_S / HOUR_S - cost
                if count and price - new > own.terms.margin * price and gain > most:
                    most, best = gain, count
                    for k in range(count):
                        work.chosen[k] = work.bought[k]
                    at.replaced, at.replaced_too, at.replaced_s = first, second, own.moment.now_s
    for k in range(best):
        work.bought[k] = work.chosen[k]
    return best


@part
def _price(own, work, count):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """Return what nodes of the types in `work.bought` cost together."""
    price = 0.0
    for k in range(count):
        price += own.offers[OFFER.price, work.bought[k]]
    return price


@section
def _in_place_of(own, work, room, ready, first, second):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """Write types for the pods of nodes that go, as far as others have no room: `Fitting.replacement`.

    Returns how many: one, or cheaper several; 0 where there are none.
    """
    resources, pods = work.free.shape[1], _pods_of(own, work, first, second)
    _leave_out(work, room, ready, first, second)
    _place(own, work, room, work.packed, pods)
    left = _without_row(work, work.packed, work.base, pods)
    one = -1
    for kind in range(own.terms.kinds):
        fits = True
        for r in range(resources):
            asked = 0
            for k in range(left):
                asked += own.shapes[own.shape_of[work.base[k]]][SHAPE_REQUEST + r]
            fits &= own.room[kind, r] >= asked
        if fits:
            one = kind
            break
    several = _types_for(own, work, room, work.base, left, 0.0, OFFER.price, 1.0)
    if one >= 0 and (several == 0 or own.offers[OFFER.price, one] <= _price(own, work, several)):
        if _take(own, work, room, ready, first, second, pods, one, 0):
            work.bought[0] = one
            return 1
        one = -1
    if several and _take(own, work, room, ready, first, second, pods, -1, several):
        return several
    if one >= 0 and _take(own, work, room, ready, first, second, pods, one, 0):
        work.bought[0] = one
        return 1
    return 0


@section
def _take(own, work, room, ready, first, second, pods, one, several):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """Whether all pods of nodes that go find a place on the others and on new nodes: `Fitting._take`.

    New are a node of the type `one`, or those of the first `several` of `work.bought`.
    """
    _leave_out(work, room, ready, first, second)
    new = several if one < 0 else 1
    for k in range(new):
        kind = work.bought[k] if one < 0 else one
        _offer(own, work, room + k, kind)
        for r in range(work.left.shape[1]):
            work.left[room + k, r] = own.room[kind, r]
    return _place(own, work, room + new, work.packed, pods) == 0
