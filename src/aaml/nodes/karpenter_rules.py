"""Karpenter's rules (1.15.0), compiled: when it provisions which nodes, and which it terminates or replaces.

`own` is a `Seen` and `work` a `RuleWork` (`aaml.nodes.rows`). Names of files are those below pkg/controllers of
Karpenter's source. What it does that is not here: several NodePools, static ones, weights, limits, drift, expiry,
repair, schedules of budgets, reserved capacity.
"""

import numpy as np

from aaml.cluster.kernels import inlined, inlined_source, outlined, referent, without_refcount
from aaml.nodes.packing_rules import FAILED, first_type, is_busy, measure, pack, put_in_order
from aaml.nodes.rows import (
    BUYS,
    DELETES,
    NODE,
    NODE_TIME,
    NOTHING,
    OFFER,
    PLAN_ANY,
    PLAN_NO,
    PLAN_SPOT,
    POD,
    REPLACES,
    TRAIT,
    WAY,
    Array,
    Record,
    RuleReference,
    RuleWork,
    Seen,
    begin_to_place,
    blocked_pods,
    copy_devices,
    is_kept,
    kept_pods,
)

AGAIN_S = 10.0  # after which a pod that still waits, or a node that still goes, asks for a batch again (controller.go)
MOST_TYPES = 600  # of a claim (scheduling/scheduler.go, MaxInstanceTypes)
MOST_AT_ONCE = (
    101  # candidates of multi-node consolidation, which tries 0 to 100 (disruption/multinodeconsolidation.go)
)
LEAST_SPOT_TYPES = 15  # cheaper ones, for a spot node to be replaced by a spot node (disruption/consolidation.go)
SEEN_ANEW_S = 300.0  # an unchanged cluster is looked at again after so long (state/cluster.go, ConsolidationState)
BALANCED_K = 2  # a move's share of the savings is at least 1/k of its share of the disruption (disruption/balanced.go)
WHEN_EMPTY, BALANCED = 1, 2
POLICIES = {"WhenEmptyOrUnderutilized": 0, "WhenEmpty": WHEN_EMPTY, "Balanced": BALANCED}
_EMPTY, _MULTI, METHODS = 0, 1, 3


@inlined
def closes_s(at: Record, terms: Record) -> float:
    """Return when the batch of pods closes for which nodes are provisioned together (provisioning/batcher.go)."""
    return min(at.latest_s + terms.batch_idle_duration_s, at.opened_s + terms.batch_max_duration_s)


@without_refcount
def next_s(at: Record, terms: Record) -> float:
    """Return the next end of a batch, repeated trigger, look or validation."""
    return min(closes_s(at, terms), at.due_s, at.again_s)


@without_refcount
def is_due(at: Record, terms: Record) -> bool:
    """Whether a batch has closed, or a look or validation is due."""
    return closes_s(at, terms) <= at.now_s or at.due_s <= at.now_s


@inlined
def ask(at: Record, times_s: Array, batches: Array, subject: int) -> None:
    """Let a pod that fits nowhere, or a node on its way out, open or extend the batch when first seen and every 10 s.

    `times_s` says when each asks again, `batches` in which batch it asked last; `at.again_s` becomes the next time.
    """
    if times_s[subject] <= at.now_s:
        times_s[subject] = at.now_s + AGAIN_S
        if batches[subject] != at.batch:
            batches[subject] = at.batch
            at.opened_s, at.latest_s = min(at.opened_s, at.now_s), at.now_s
    at.again_s = min(at.again_s, times_s[subject])


@without_refcount
def collect(at: Record, times_s: Array, batches: Array) -> None:
    """Let all ask."""
    for subject in range(len(times_s)):
        ask(at, times_s, batches, subject)


@without_refcount
def decide(ref: RuleReference) -> tuple[int, int]:
    """Provision for the pods of a batch that has closed, else take the next step towards fewer or cheaper nodes.

    Returns orders, and how many types of `work.bought` there are.
    """
    own, work = referent(ref)
    at = own.at
    if closes_s(at, own.terms) <= at.now_s:
        at.opened_s, at.latest_s = np.inf, np.inf
        at.batch += 1
        claims = _provision(ref)
        if claims:
            return BUYS, claims
    if not _disrupt(ref):
        return NOTHING, 0
    if not at.replaces:
        return DELETES, 0
    work.bought[0] = _cheapest(own)
    return REPLACES, 1


@inlined
def _cheapest(own: Seen) -> int:
    """Return the cheapest type of the plan."""
    cheapest, least = 0, np.inf
    for kind in range(own.terms.kinds):
        if own.plan_types[kind] != PLAN_NO:
            price = own.offers[OFFER.spot if own.plan_types[kind] == PLAN_SPOT else OFFER.price, kind]
            if price < least:
                cheapest, least = kind, price
    return cheapest


# ---- provisioning ----------------------------------------------------------------------------------------------------


@inlined_source
def _provision(ref: RuleReference) -> int:
    """Pack what waits, and what will once its node is gone (provisioner.go, Schedule).

    Writes the cheapest type of each claim into `work.bought`; returns how many there are.
    """
    own, work = referent(ref)
    pods = _unplaced(ref, work.packed)
    if pods == 0:
        return 0
    rows, ready = measure(ref)
    work.gone[:rows] = False
    begin_to_place(work, rows)
    claims = pack(ref, rows, ready, pods, 0, np.inf)
    for row in range(rows):
        if work.used[row]:
            _nominate(own, work.numbers[row])
    for k in range(claims):
        work.bought[k] = first_type(own, work, work.order[k], np.inf)
    return claims


@inlined
def _nominate(own: Seen, number: int) -> None:
    """Keep a node for pods (state/statenode.go, nominationWindow)."""
    until_s = own.at.now_s + max(2.0 * own.terms.batch_max_duration_s, 10.0)
    own.node_times[NODE_TIME.nominated_s, number] = until_s


@outlined
def _unplaced(ref: RuleReference, packed: Array) -> int:
    """Write the pods that wait, and those of nodes on their way out that leave before they end; returns how many."""
    own, _ = referent(ref)
    at, count = own.at, 0
    for i in range(at.noted):
        put_in_order(own, packed, count, own.pods[POD.waiting, i])
        count += 1
    for i in range(at.alive):
        number = own.nodes[NODE.alive, i]
        if own.nodes[NODE.deleting, number]:
            pod = own.nodes[NODE.first, number]
            while pod >= 0:
                if _leaves(own, pod):
                    put_in_order(own, packed, count, pod)
                    count += 1
                pod = own.pods[POD.after, pod]
    return count


@inlined
def _leaves(own: Seen, pod: int) -> bool:
    """Whether a pod of a node on its way out needs a place elsewhere (utils/pdb, IsCurrentlyReschedulable).

    One that stops does not, as its owner's next pod waits already; a StatefulSet's comes only once it has gone.
    """
    if own.pods[POD.stopping, pod]:
        return own.traits[TRAIT.next_late, pod] > 0
    return not is_kept(own, pod) and not (own.stuck.shape[0] > 0 and own.stuck[pod])


# ---- disruption ------------------------------------------------------------------------------------------------------


@inlined_source
def _disrupt(ref: RuleReference) -> bool:
    """Go through the methods in order (disruption/controller.go): the first whose plan holds ends the pass.

    Returns whether one does.
    """
    own, _ = referent(ref)
    at, now_s = own.at, own.at.now_s
    while at.due_s <= now_s:
        if at.planned > 0:
            if _still(ref):
                at.method = 0
                return True
            at.planned = 0
            at.method += 1
        elif at.method == METHODS:
            at.method, at.due_s = 0, now_s + own.terms.poll_s
        elif _found(ref):
            at.due_s = now_s + own.terms.validation_s
        else:
            at.method += 1
    return False


@inlined_source
def _found(ref: RuleReference) -> bool:
    """Write the plan of the method whose turn it is; returns whether it has one."""
    own, work = referent(ref)
    at, now_s = own.at, own.at.now_s
    at.planned, at.replaces = 0, 0
    if at.method == _EMPTY:
        found = _candidates(ref)
        allowed = _allowed(own)
        for i in range(found):
            if _is_empty(own, work.candidates[i]) and at.planned < allowed:
                own.nodes[NODE.plan, at.planned] = work.candidates[i]
                at.planned += 1
        return at.planned > 0
    if own.terms.policy == WHEN_EMPTY:
        return False
    found = 0
    for i in range(_candidates(ref)):
        if not _is_empty(own, work.candidates[i]):
            work.candidates[found] = work.candidates[i]
            found += 1
    allowed = _allowed(own)
    if found == 0:
        return False
    at.state_s = max(at.state_s, at.changed_s)
    if now_s - at.state_s >= SEEN_ANEW_S:
        at.state_s = now_s
    if at.method == _MULTI:
        return at.multi_s != at.state_s and _multi(ref, found, allowed)
    return at.single_s != at.state_s and allowed > 0 and _single(ref, found)


@inlined_source
def _multi(ref: RuleReference, found: int, allowed: int) -> bool:
    """Write the largest prefix of the candidates that can go at once (disruption/multinodeconsolidation.go).

    Returns whether there is one.
    """
    own, work = referent(ref)
    at, low, best = own.at, 1, 0
    high = min(found, allowed, MOST_AT_ONCE) - 1
    if low <= high:
        rows, ready = measure(ref)
        base = _unplaced(ref, work.base)
        while low <= high:
            middle = (low + high) // 2
            if _computed(ref, rows, ready, base, 0, middle + 1):
                best, low = middle + 1, middle + 1
            else:
                high = middle - 1
        at.planned = best
    if best == 0 and allowed >= found:
        at.multi_s = at.state_s
    return best > 0


@inlined_source
def _single(ref: RuleReference, found: int) -> bool:
    """Write the first candidate that can go (disruption/singlenodeconsolidation.go); returns whether there is one."""
    own, work = referent(ref)
    rows, ready = measure(ref)
    base = _unplaced(ref, work.base)
    for i in range(found):
        if _computed(ref, rows, ready, base, i, 1):
            return True
    own.at.single_s = own.at.state_s
    return False


@inlined_source
def _still(ref: RuleReference) -> bool:  # noqa: C901
    """Keep what is left of the plan when it is looked at again (disruption/validation.go); returns whether any is."""
    own, work = referent(ref)
    at = own.at
    allowed, found = _allowed(own), _candidates(ref)
    if at.method == _EMPTY:
        left = 0
        for i in range(at.planned):
            number = own.nodes[NODE.plan, i]
            if left < allowed and number in work.candidates[:found] and _is_empty(own, number):
                own.nodes[NODE.plan, left] = number
                left += 1
        at.planned = left
        return left > 0
    if allowed < at.planned:
        return False
    for i in range(at.planned):
        number = own.nodes[NODE.plan, i]
        if number not in work.candidates[:found] or _is_empty(own, number):
            return False
    rows, ready = measure(ref)
    base = _unplaced(ref, work.base)
    claims = simulated(ref, rows, ready, base, own.nodes[NODE.plan], 0, at.planned, np.inf)
    if claims == FAILED or claims != at.replaces:
        return False
    if at.replaces:
        for kind in range(own.terms.kinds):
            if own.plan_types[kind] and not work.fits[work.order[0], kind]:
                return False
    for i in range(at.used):
        _nominate(own, own.nodes[NODE.used, i])
    return True


@outlined
def _computed(ref: RuleReference, rows: int, ready: int, base: int, first: int, count: int) -> bool:
    """Write the plan to let `count` candidates go, for nothing or one cheaper node (disruption/consolidation.go).

    Returns whether there is one.
    """
    own, work = referent(ref)
    at, price = own.at, 0.0
    for i in range(first, first + count):
        price += own.paid[work.candidates[i]]
    claims = simulated(ref, rows, ready, base, work.candidates, first, count, price)
    if claims == FAILED:
        return False
    saved = price
    if claims:
        new = _offered(ref, first, count, price)
        if new == np.inf:
            return False
        saved = price - new
    if own.terms.policy == BALANCED and not _is_balanced(own, work, first, count, saved):
        return False
    for kind in range(own.terms.kinds if claims else 0):
        own.plan_types[kind] = work.trial[kind]
    at.planned, at.replaces, at.used = count, claims, 0
    for row in range(rows):
        if work.used[row]:
            own.nodes[NODE.used, at.used] = work.numbers[row]
            at.used += 1
    for i in range(count):
        own.nodes[NODE.plan, i] = work.candidates[first + i]
    return True


@outlined
def _offered(ref: RuleReference, first: int, count: int, price: float) -> float:  # noqa: C901
    """Write into `work.trial` which types, bought how, may take the place of candidates that cost `price` together.

    Spot for on-demand always where any type is, spot for spot only where asked. In place of several it is cheaper than
    each node whose type is among both: else that node had better stay and the others go (filterOutSameInstanceType).
    Returns the price of the first, inf where there is none.
    """
    own, work = referent(ref)
    claim, listed, has_spot, on_demand = work.order[0], 0, False, False
    for i in range(first, first + count):
        on_demand |= own.nodes[NODE.spot, work.candidates[i]] == 0
    for k in range(own.terms.kinds):
        kind = int(work.ways[WAY.kind, k])
        fits = work.fits[claim, kind] and work.ways[WAY.worst, k] < price and listed < MOST_TYPES
        work.trial[kind] = PLAN_ANY if fits else PLAN_NO
        listed += fits
        has_spot |= fits and work.ways[WAY.spot, k] < np.inf
    if has_spot:
        most, listed = own.terms.kinds, 0
        if not on_demand:
            most = most if count > 1 else LEAST_SPOT_TYPES
            most = most if own.terms.spot_to_spot else 0
        for k in range(own.terms.kinds):
            kind = int(work.ways[WAY.kind, k])
            fits = work.trial[kind] != PLAN_NO and work.ways[WAY.spot, k] < np.inf
            work.trial[kind] = PLAN_SPOT if fits and listed < most else PLAN_NO
            listed += fits
        if not on_demand and count == 1 and listed < LEAST_SPOT_TYPES:
            return np.inf
    limit, new = np.inf, np.inf
    if count > 1:
        for i in range(first, first + count):
            if work.trial[own.nodes[NODE.kind, work.candidates[i]]] != PLAN_NO:
                limit = min(limit, own.paid[work.candidates[i]])
    for k in range(own.terms.kinds):
        kind = int(work.ways[WAY.kind, k])
        spot = work.trial[kind] == PLAN_SPOT
        if not work.ways[WAY.spot_worst if spot else WAY.worst, k] < limit:
            work.trial[kind] = PLAN_NO
        if new == np.inf and work.trial[kind] != PLAN_NO:
            new = work.ways[WAY.spot if spot else WAY.price, k]
            work.bought[0] = kind
    return new


@inlined
def simulated(
    ref: RuleReference, rows: int, ready: int, base: int, numbers: Array, first: int, count: int, below: float
) -> int:
    """Pack what waits and what is on nodes on their way out, as if these nodes were on theirs; see `pack`."""
    own, work = referent(ref)
    packed = base
    for row in range(rows):
        gone = False
        for i in range(first, first + count):
            gone |= work.numbers[row] == numbers[i]
        work.gone[row] = gone
        for r in range(work.free.shape[1]):
            work.left[row, r] = -1 if gone else work.free[row, r]
        copy_devices(work.gpu_left, row, work.gpu_free, row)
    for k in range(base):
        work.packed[k], work.marked[k] = work.base[k], False
    for i in range(first, first + count):
        pod = own.nodes[NODE.first, numbers[i]]
        while pod >= 0:
            place = put_in_order(own, work.packed, packed, pod)
            for k in range(packed, place, -1):
                work.marked[k] = work.marked[k - 1]
            work.marked[place] = True
            packed += 1
            pod = own.pods[POD.after, pod]
    for kind in range(own.terms.kinds):
        work.ways[WAY.kind, kind] = kind
        work.ways[WAY.price, kind] = own.offers[OFFER.price, kind]
        work.ways[WAY.worst, kind] = own.offers[OFFER.worst, kind]
        work.ways[WAY.spot, kind] = own.offers[OFFER.spot, kind]
        work.ways[WAY.spot_worst, kind] = own.offers[OFFER.spot_worst, kind]
    return pack(ref, rows, ready, packed, 1, below)


# ---- candidates ------------------------------------------------------------------------------------------------------


@outlined
def _candidates(ref: RuleReference) -> int:
    """Write the nodes that may go, those first that cost the most for what evicting their pods means."""
    own, work = referent(ref)
    at, count = own.at, 0
    if np.isnan(own.terms.consolidate_after_s):
        return 0
    for i in range(at.alive):
        number = own.nodes[NODE.alive, i]
        if (
            np.isnan(own.node_times[NODE_TIME.initialized_s, number])
            or own.nodes[NODE.deleting, number]
            or own.node_times[NODE_TIME.nominated_s, number] > at.now_s
            or kept_pods(own, number) > 0
            or blocked_pods(own, number) > 0
            or is_busy(own, number)
        ):
            continue
        weight, place = -own.paid[number] / _disruption(own, number), count
        while place > 0 and work.weights[place - 1] > weight:
            work.weights[place], work.candidates[place] = work.weights[place - 1], work.candidates[place - 1]
            place -= 1
        work.weights[place], work.candidates[place] = weight, number
        count += 1
    return count


@inlined
def _disruption(own: Seen, number: int) -> float:
    """Return 1, and about 1 more for each pod that would be evicted (utils/disruption)."""
    evicted, pod = 0.0, own.nodes[NODE.first, number]
    while pod >= 0:
        evicted += own.evicting[pod]
        pod = own.pods[POD.after, pod]
    return 1.0 + evicted


@inlined
def _is_empty(own: Seen, number: int) -> bool:
    """Whether nothing would be disrupted if a node went (disruption/emptiness.go)."""
    return _disruption(own, number) <= 1.0


@inlined
def _is_balanced(own: Seen, work: RuleWork, first: int, count: int, saved: float) -> bool:
    """Whether a move's share of all that is paid is at least 1/k of its share of all that would be disrupted."""
    at, paid, disrupted, moved = own.at, 0.0, 0.0, 0.0
    for i in range(at.alive):
        paid += own.paid[own.nodes[NODE.alive, i]]
        disrupted += _disruption(own, own.nodes[NODE.alive, i])
    for i in range(first, first + count):
        moved += _disruption(own, work.candidates[i])
    return saved > 0.0 and paid > 0.0 and saved / paid >= moved / disrupted / BALANCED_K


@inlined
def _allowed(own: Seen) -> int:
    """Return how many nodes may begin to go now (apis/v1/nodepool.go, disruption/helpers.go)."""
    at, ready, going = own.at, 0, 0
    for i in range(at.alive):
        number = own.nodes[NODE.alive, i]
        if not np.isnan(own.node_times[NODE_TIME.initialized_s, number]):
            ready += 1
            going += own.nodes[NODE.deleting, number]
    most = ready
    for k in range(own.terms.budgets):
        amount = own.budgets[0, k]
        if own.budgets[1, k]:
            amount = int(np.ceil(amount * ready / 100))
        most = amount if k == 0 else min(most, amount)
    return max(0, most - going)
