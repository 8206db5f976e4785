"""`aaml.nodes.karpenter` in compiled episodes, to the bit: the same rules under the same names."""

import numpy as np

from aaml.cluster.kernels import named, part, section
from aaml.nodes.karpenter import (
    AGAIN_S,
    BALANCED_K,
    MOST_AT_ONCE,
    SEEN_ANEW_S,
)
from aaml.nodes.packing_rules import FAILED, first_type, is_busy, measure, pack, put_in_order
from aaml.nodes.rows import NODE, NODE_TIME, OFFER, POD, POD_TIME, TRAIT, kept_pods

NOTHING, BUYS, CARRIES_OUT = range(3)
WHEN_EMPTY, BALANCED = 1, 2
POLICIES = {"WhenEmptyOrUnderutilized": 0, "WhenEmpty": WHEN_EMPTY, "Balanced": BALANCED}
_EMPTY, _MULTI, _METHODS = 0, 1, 3


@part
def closes_s(own):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """Return when the batch of pods closes: `_Batch.closes_s`."""
    at, terms = own.at, own.terms
    return min(at.latest_s + terms.batch_idle_duration_s, at.opened_s + terms.batch_max_duration_s)


@part
def next_s(own):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """Return the next end of a batch, repeated trigger, look or validation: `Karpenter.next_s`."""
    return min(closes_s(own), own.at.due_s, own.at.again_s)


@named
def act(own, work):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """Take a moment in: `Karpenter.act`.

    Returns NOTHING; BUYS, with how many claims of `work.order` are to be bought; or CARRIES_OUT, for the plan.
    """
    at, now_s = own.at, own.moment.now_s
    _collect(own)
    if closes_s(own) <= now_s:
        at.opened_s, at.latest_s = np.inf, np.inf
        at.batch += 1
        claims = _provision(own, work)
        if claims:
            return BUYS, claims
    return (CARRIES_OUT if _disrupt(own, work) else NOTHING), 0


# ---- provisioning ----------------------------------------------------------------------------------------------------


@named
def _collect(own):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """Open or extend the batch for each unschedulable pod and tainted node, when first seen and every 10 s."""
    at, now_s = own.at, own.moment.now_s
    again_s = np.inf
    for i in range(at.noted):
        pod = own.pods[POD.waiting, i]
        again_s = min(again_s, _asked(at, own.pod_times[POD_TIME.again_s], own.pods[POD.asked], pod, now_s))
    for i in range(at.alive):
        number = own.nodes[NODE.alive, i]
        if own.nodes[NODE.deleting, number]:
            again_s = min(again_s, _asked(at, own.node_times[NODE_TIME.again_s], own.nodes[NODE.asked], number, now_s))
    at.again_s = again_s


@part
def _asked(at, times_s, batches, subject, now_s):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """Let a pod or node ask for room if its time has come; returns when it asks again."""
    if times_s[subject] <= now_s:
        times_s[subject] = now_s + AGAIN_S
        if batches[subject] != at.batch:
            batches[subject] = at.batch
            at.opened_s, at.latest_s = min(at.opened_s, now_s), now_s
    return times_s[subject]


@named
def _provision(own, work):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """Pack what waits, and what will once its node is gone; returns how many claims are to be bought."""
    pods = _unplaced(own, work.packed)
    if pods == 0:
        return 0
    room, ready = measure(own, work)
    for row in range(room):
        for r in range(work.free.shape[1]):
            work.left[row, r] = work.free[row, r]
    claims = pack(own, work, room, ready, pods, np.nan)
    for row in range(room):
        if work.used[row]:
            _nominate(own, work.numbers[row])
    return claims


@part
def _nominate(own, number):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """Keep a node for pods: `Karpenter._nominate`."""
    until_s = own.moment.now_s + max(2.0 * own.terms.batch_max_duration_s, 10.0)
    own.node_times[NODE_TIME.nominated_s, number] = until_s


@section
def _unplaced(own, packed):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """Write the pods that wait, and those of nodes on their way out that leave before they end; returns how many."""
    at, count = own.at, 0
    for i in range(at.noted):
        put_in_order(own, packed, count, own.pods[POD.waiting, i])
        count += 1
    for i in range(at.alive):
        number = own.nodes[NODE.alive, i]
        if own.nodes[NODE.deleting, number]:
            pod = own.nodes[NODE.first, number]
            while pod >= 0:
                if own.traits[TRAIT.next_late, pod] or not own.pods[POD.stopping, pod]:
                    put_in_order(own, packed, count, pod)
                    count += 1
                pod = own.pods[POD.after, pod]
    return count


# ---- disruption ------------------------------------------------------------------------------------------------------


@named
def _disrupt(own, work):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """Go through the methods in order: the first whose plan holds ends the pass. Returns whether one does."""
    at, now_s = own.at, own.moment.now_s
    while at.due_s <= now_s:
        if at.planned > 0:
            if _still(own, work):
                at.method = 0
                return True
            at.planned = 0
            at.method += 1
        elif at.method == _METHODS:
            at.method, at.due_s = 0, now_s + own.terms.poll_s
        elif _found(own, work):
            at.due_s = now_s + own.terms.validation_s
        else:
            at.method += 1
    return False


@named
def _found(own, work):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """Write the plan of the method whose turn it is; returns whether it has one."""
    at, now_s = own.at, own.moment.now_s
    at.planned, at.replaces = 0, 0
    if at.method == _EMPTY:
        found = _candidates(own, work)
        allowed = _allowed(own)
        for i in range(found):
            if own.nodes[NODE.pods, work.candidates[i]] == 0 and at.planned < allowed:
                own.nodes[NODE.plan, at.planned] = work.candidates[i]
                at.planned += 1
        return at.planned > 0
    if own.terms.policy == WHEN_EMPTY:
        return False
    found = 0
    for i in range(_candidates(own, work)):
        if own.nodes[NODE.pods, work.candidates[i]] > 0:
            work.candidates[found] = work.candidates[i]
            found += 1
    allowed = _allowed(own)
    if found == 0:
        return False
    at.state_s = max(at.state_s, at.changed_s)
    if now_s - at.state_s >= SEEN_ANEW_S:
        at.state_s = now_s
    if at.method == _MULTI:
        return at.multi_s != at.state_s and _multi(own, work, found, allowed)
    return at.single_s != at.state_s and allowed > 0 and _single(own, work, found)


@named
def _multi(own, work, found, allowed):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """Write the largest prefix of the candidates that can go at once; returns whether there is one."""
    at, low, best = own.at, 1, 0
    high = min(found, allowed, MOST_AT_ONCE) - 1
    if low <= high:
        room, ready = measure(own, work)
        base = _unplaced(own, work.base)
        while low <= high:
            middle = (low + high) // 2
            if _computed(own, work, room, ready, base, 0, middle + 1):
                best, low = middle + 1, middle + 1
            else:
                high = middle - 1
        at.planned = best
    if best == 0 and allowed >= found:
        at.multi_s = at.state_s
    return best > 0


@named
def _single(own, work, found):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """Write the first candidate that can go; returns whether there is one."""
    room, ready = measure(own, work)
    base = _unplaced(own, work.base)
    for i in range(found):
        if _computed(own, work, room, ready, base, i, 1):
            return True
    own.at.single_s = own.at.state_s
    return False


@named
def _still(own, work):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202, C901
    """Keep what is left of the plan when it is looked at again; returns whether anything is."""
    at = own.at
    allowed, found = _allowed(own), _candidates(own, work)
    if at.method == _EMPTY:
        left = 0
        for i in range(at.planned):
            number = own.nodes[NODE.plan, i]
            if left < allowed and number in work.candidates[:found] and own.nodes[NODE.pods, number] == 0:
                own.nodes[NODE.plan, left] = number
                left += 1
        at.planned = left
        return left > 0
    if allowed < at.planned:
        return False
    for i in range(at.planned):
        number = own.nodes[NODE.plan, i]
        if number not in work.candidates[:found] or own.nodes[NODE.pods, number] == 0:
            return False
    room, ready = measure(own, work)
    base = _unplaced(own, work.base)
    claims = _simulated(own, work, room, ready, base, own.nodes[NODE.plan], 0, at.planned, np.inf)
    if claims == FAILED or claims != at.replaces:
        return False
    if at.replaces:
        for kind in range(own.terms.kinds):
            if own.plan_types[kind] and not work.fits[work.order[0], kind]:
                return False
    for i in range(at.used):
        _nominate(own, own.nodes[NODE.used, i])
    return True


@section
def _computed(own, work, room, ready, base, first, count):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202, C901
    """Write the plan to let `count` candidates go, for nothing or one cheaper node; returns whether there is one."""
    at, price = own.at, 0.0
    for i in range(first, first + count):
        price += own.offers[OFFER.price, own.nodes[NODE.kind, work.candidates[i]]]
    claims = _simulated(own, work, room, ready, base, work.candidates, first, count, price)
    if claims == FAILED:
        return False
    saved, below = price, price
    if claims:
        if count > 1:
            below = min(price, _limit(own, work, first, count, price))
        kind = first_type(own, work, work.order[0], below)
        if kind < 0:
            return False
        saved = price - own.offers[OFFER.price, kind]
    if own.terms.policy == BALANCED and not _is_balanced(own, work, first, count, saved):
        return False
    if claims:
        for kind in range(own.terms.kinds):
            own.plan_types[kind] = work.fits[work.order[0], kind] and own.offers[OFFER.worst, kind] < below
    at.planned, at.replaces, at.used = count, claims, 0
    for row in range(room):
        if work.used[row]:
            own.nodes[NODE.used, at.used] = work.numbers[row]
            at.used += 1
    for i in range(count):
        own.nodes[NODE.plan, i] = work.candidates[first + i]
    return True


@part
def _limit(own, work, first, count, price):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """Return the least price of the candidates of which a replacement may be the type: `_not_the_same`."""
    limit = np.inf
    for i in range(first, first + count):
        kind = own.nodes[NODE.kind, work.candidates[i]]
        if work.fits[work.order[0], kind] and own.offers[OFFER.worst, kind] < price:
            limit = min(limit, own.offers[OFFER.price, kind])
    return limit


@part
def _simulated(own, work, room, ready, base, numbers, first, count, below):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """Pack what waits and what is on nodes on their way out, as if these nodes were on theirs; see `pack`."""
    packed = base
    for row in range(room):
        gone = False
        for i in range(first, first + count):
            gone |= work.numbers[row] == numbers[i]
        for r in range(work.free.shape[1]):
            work.left[row, r] = -1 if gone else work.free[row, r]
    for k in range(base):
        work.packed[k], work.held[k] = work.base[k], False
    for i in range(first, first + count):
        pod = own.nodes[NODE.first, numbers[i]]
        while pod >= 0:
            place = put_in_order(own, work.packed, packed, pod)
            for k in range(packed, place, -1):
                work.held[k] = work.held[k - 1]
            work.held[place] = True
            packed += 1
            pod = own.pods[POD.after, pod]
    return pack(own, work, room, ready, packed, below)


# ---- candidates ------------------------------------------------------------------------------------------------------


@part
def _candidates(own, work):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """Write the nodes that may go, those first that cost the most for what evicting their pods means."""
    at, now_s, count = own.at, own.moment.now_s, 0
    if np.isnan(own.terms.consolidate_after_s):
        return 0
    for i in range(at.alive):
        number = own.nodes[NODE.alive, i]
        if (
            own.nodes[NODE.row, number] < 0
            or own.nodes[NODE.deleting, number]
            or own.node_times[NODE_TIME.nominated_s, number] > now_s
            or kept_pods(own, number) > 0
            or is_busy(own, number, now_s)
        ):
            continue
        weight, place = -own.offers[OFFER.price, own.nodes[NODE.kind, number]] / disruption(own, number), count
        while place > 0 and work.weights[place - 1] > weight:
            work.weights[place], work.candidates[place] = work.weights[place - 1], work.candidates[place - 1]
            place -= 1
        work.weights[place], work.candidates[place] = weight, number
        count += 1
    return count


@part
def disruption(own, number):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """Return 1, and 1 more for each pod that would be evicted: pods of compiled episodes have no priority."""
    return 1.0 + own.nodes[NODE.pods, number]


@part
def _is_balanced(own, work, first, count, saved):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """Whether a move's share of all that is paid is at least 1/k of its share of all that would be disrupted."""
    at, paid, disrupted, moved = own.at, 0.0, 0.0, 0.0
    for i in range(at.alive):
        paid += own.offers[OFFER.price, own.nodes[NODE.kind, own.nodes[NODE.alive, i]]]
        disrupted += disruption(own, own.nodes[NODE.alive, i])
    for i in range(first, first + count):
        moved += disruption(own, work.candidates[i])
    return saved > 0.0 and paid > 0.0 and saved / paid >= moved / disrupted / BALANCED_K


@part
def _allowed(own):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """Return how many nodes may begin to go now: `Karpenter._allowed`."""
    at, ready, going = own.at, 0, 0
    for i in range(at.alive):
        number = own.nodes[NODE.alive, i]
        if own.nodes[NODE.row, number] >= 0:
            ready += 1
            going += own.nodes[NODE.deleting, number]
    most = ready
    for k in range(own.terms.budgets):
        amount = own.budgets[0, k]
        if own.budgets[1, k]:
            amount = int(np.ceil(amount * ready / 100))
        most = amount if k == 0 else min(most, amount)
    return max(0, most - going)
