"""`aaml.sim.supply` in compiled episodes, to the bit: the life of nodes, under the same names and by the same rules."""

import numpy as np

from aaml.cluster.kernels import Reference, call_at, inlined, outlined, reference, referent, without_refcount
from aaml.cluster.state import CPU_COLUMN, MEMORY_COLUMN
from aaml.episodes.heap import add, drop_first, first
from aaml.episodes.queueing import activate, enqueue, help_waiting
from aaml.episodes.rows import COMES_AGAIN, LOST, WAITS, BatchSettings, Env, FeatureArray, FloatArray, SmallArray, Work
from aaml.episodes.supply_rows import Owned, run_meter
from aaml.nodes import cluster_autoscaler_rules as cluster_autoscaler
from aaml.nodes import descheduler_rules as descheduler
from aaml.nodes import karpenter_rules as karpenter
from aaml.nodes import learned_rules as learned
from aaml.nodes import life_rules as life
from aaml.nodes import meter
from aaml.nodes.budgets import NOBODY, SEVERAL, evictable
from aaml.nodes.commitments import settle
from aaml.nodes.life_rules import DRAIN, READY, RECREATE, STEP, STOP
from aaml.nodes.rows import (
    BUYS,
    DELETES,
    DELETES_EACH,
    NODE,
    NODE_TIME,
    NOTHING,
    OFFER,
    PLAN_SPOT,
    POD,
    POD_TIME,
    REPLACES,
    SHAPE_REQUEST,
    TRAIT,
    Number,
    RuleWork,
    Seen,
    is_kept,
    kept_pods,
)
from aaml.policies.gpu.arrays import SHAPE_COUNT, SHAPE_MILLI
from aaml.scheduling.costs import PAID, is_released, released_s, show_costs
from aaml.scheduling.observation import mean_size
from aaml.scheduling.queue_sort import delayed_s

EpisodeReference = Reference[tuple[Env, Owned, BatchSettings, Work]]
"""An environment in which nodes are provisioned, as what happens to nodes hands it on."""


@inlined
def begin_supply(env: Env, own: Owned) -> None:
    """Begin without a node."""
    at = own.seen.at
    at.alive, at.bought, at.sequence, at.events, at.ends = 0, 0, 0, 0, 0
    at.method, at.planned, at.replaces, at.used, at.batch, at.firsts, at.noted = 0, 0, 0, 0, 1, 0, 0
    at.cpu_milli, at.memory_bytes, at.gpu_milli, at.metered_s, at.price, at.watts = 0, 0, 0, 0.0, 0.0, 0.0
    at.ready, at.released, at.replaced, at.replaced_too, at.replaced_s = 0, 0, -1, -1, -np.inf
    at.slower, at.loaded_s, at.load, at.fast_load, at.slow_load = 1.0, -np.inf, 0.0, 0.0, 0.0
    at.variation, at.last_load = 0.0, 0.0
    at.cpu_worth, at.memory_worth, at.gpu_worth, at.drained_s, at.nothing_s = 0.0, 0.0, 0.0, -np.inf, np.nan
    at.dollars, at.fluid_dollars, at.core_hours, at.node_hours, at.kwh, at.co2_g = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    at.running, at.pod_hours, at.evicted = 0, 0.0, 0.0
    at.off = 0.0 - own.seen.terms.committed
    at.launch_s, at.lead_s, at.patience_s = learned.LAUNCH_S, learned.LEAD_S, own.seen.terms.patience_s
    at.opened_s, at.latest_s, at.again_s, at.due_s = np.inf, np.inf, np.inf, own.seen.terms.first_look_s
    at.added_s, at.round_s = -np.inf, own.seen.terms.first_round_s
    at.state_s, at.changed_s, at.multi_s, at.single_s = -np.inf, -np.inf, np.nan, np.nan
    for pod in range(env.episode.pods):
        own.seen.pod_times[POD_TIME.created_s, pod], own.seen.pod_times[POD_TIME.again_s, pod] = (
            env.pods.arrival_s[pod],
            -np.inf,
        )
        for column in (POD.noted, POD.first, POD.end):
            own.seen.pods[column, pod] = -1
        for column in (POD.asked, POD.stopping):
            own.seen.pods[column, pod] = 0


@inlined
def rejected(own: Owned, pod: int, now_s: float) -> None:
    """Take note of a pod that fits nowhere."""
    if own.seen.pods[POD.noted, pod] < 0:
        own.seen.pods[POD.noted, pod], own.seen.pods[POD.waiting, own.seen.at.noted] = own.seen.at.noted, pod
        own.seen.pod_times[POD_TIME.noted_s, pod] = now_s
        own.seen.at.noted += 1


@inlined
def next_s(own: Owned) -> float:
    """Return when something happens next, or the autoscaler wants to be asked: `NodeSupply.next_s`."""
    event_s = own.events.at_s[0] if own.seen.at.events else np.inf
    at, terms = own.seen.at, own.seen.terms
    return min(event_s, at.round_s, learned.next_s(at, terms) if terms.learned else karpenter.next_s(at, terms))


@inlined
def next_end_s(own: Owned) -> float:
    """Return when the next pod ends, or would have if it had not been evicted."""
    return own.ends.at_s[0] if own.seen.at.ends else np.inf


@inlined
def is_due(env: Env, own: Owned) -> bool:
    """Whether `turn` would do anything: something happens now, or there may be orders."""
    at = own.seen.at
    at.now_s = env.at.now_s
    return (at.events > 0 and own.events.at_s[0] <= at.now_s) or descheduler.is_due(at) or _may_order(own.seen)


@outlined
def turn(ref: EpisodeReference) -> bool:
    """Let what is due happen, else carry the descheduler's and autoscaler's orders out: `NodeSupply.turn`.

    Returns whether pods may fit elsewhere now.
    """
    env, own, _, work = referent(ref)
    at, now_s, happened = own.seen.at, env.at.now_s, False
    while at.events and own.events.at_s[0] <= now_s:
        _, kind, subject = first(own.events)
        drop_first(own.events, at.events)
        at.events -= 1
        happened |= _happen(ref, kind, subject)
    if happened:
        return True
    at.now_s = now_s
    descheduling = descheduler.is_due(at)
    while True:
        if len(own.protected):
            _look_at_budgets(env, own)
        if not (descheduling and call_at(own.seen.terms.descheduler, ref)):
            break
        happened = True
    while _may_order(own.seen):
        orders, count = call_at(own.seen.terms.rule, reference((own.seen, work.supply.rule)))
        if orders == NOTHING:
            break
        number: Number = np.int64(-1)
        for k in range(count):
            wanted = np.int64(work.supply.rule.bought[k])
            number = _buy(ref, wanted, orders == REPLACES and own.seen.plan_types[wanted] == PLAN_SPOT)
        if orders != BUYS:
            _let_go(ref, orders, number)
            happened = True
    return happened


@inlined
def _may_order(seen: Seen) -> bool:
    """Take note of the pods and nodes that ask for nodes; returns whether there may be orders."""
    at, terms = seen.at, seen.terms
    if terms.scans:
        return cluster_autoscaler.is_due(at)
    if terms.learned:
        ready = 0
        for i in range(at.alive):
            ready += not np.isnan(seen.node_times[NODE_TIME.initialized_s, seen.nodes[NODE.alive, i]])
        return learned.collect(at, terms, ready, seen.pods, seen.pod_times)
    at.again_s = np.inf
    for i in range(at.noted):
        karpenter.ask(at, seen.pod_times[POD_TIME.again_s], seen.pods[POD.asked], seen.pods[POD.waiting, i])
    for i in range(at.alive):
        number = seen.nodes[NODE.alive, i]
        if seen.nodes[NODE.deleting, number]:
            karpenter.ask(at, seen.node_times[NODE_TIME.again_s], seen.nodes[NODE.asked], number)
    return karpenter.is_due(at, terms)


@inlined
def is_short(env: Env, own: Owned) -> bool:
    """Whether a turn, or the binds after it, might need more rows, numbers or events than the arrays have.

    A turn buys at most a node for each pod that waits or is on a node on its way out, and for each on two others, and
    one more. Of a pod at most four events are added, of a node that comes or goes three.
    """
    at, waits = own.seen.at, env.at.arrived + env.at.recreated - env.at.bound
    leaving, fullest = 0, 0
    for i in range(at.alive):
        number = own.seen.nodes[NODE.alive, i]
        if own.seen.nodes[NODE.deleting, number]:
            leaving += own.seen.nodes[NODE.pods, number]
        else:
            fullest = max(fullest, own.seen.nodes[NODE.pods, number])
    pods, come = waits + env.at.running + 1, waits + leaving + 2 * fullest + 1
    return (
        at.alive > len(env.nodes.allocatable)
        or at.bought + come > own.seen.nodes.shape[1]
        or at.events + 4 * (pods + come + at.alive) > len(own.events.at_s)
        or at.ends + pods > len(own.ends.at_s)
    )


@inlined
def show_owned(env: Env, own: Owned, paid: FloatArray, shown: FeatureArray) -> None:
    """Write what the nodes cost into `shown` [N, C]: `NodeCosts.features`; `paid` is overwritten."""
    own.seen.at.now_s = env.at.now_s
    for row in range(env.at.nodes):
        number = own.seen.nodes[NODE.in_row, row]
        last_s = own.seen.node_times[NODE_TIME.last_event_s, number]
        paid[PAID.price, row] = own.seen.paid[number]
        paid[PAID.launched_s, row] = own.seen.node_times[NODE_TIME.launched_s, number]
        paid[PAID.last_event_s, row] = (
            own.seen.node_times[NODE_TIME.initialized_s, number] if np.isnan(last_s) else last_s
        )
        paid[PAID.kept_pods, row] = kept_pods(own.seen, number)
        paid[PAID.leaving, row] = own.seen.nodes[NODE.deleting, number]
    show_costs(paid, env.nodes.allocatable, env.nodes.requested, env.at.now_s, own.seen.terms.consolidatable_s, shown)


# ---- orders ----------------------------------------------------------------------------------------------------------


@outlined
def _buy(ref: EpisodeReference, kind: Number, as_spot: bool) -> int:
    """Buy a node of a type, in the cheapest way or as spot; returns its number."""
    env, own, _, work = referent(ref)
    at, now_s, terms = own.seen.at, env.at.now_s, own.seen.terms
    number = at.bought
    for column in (NODE.row, NODE.first, NODE.last, NODE.replaced, NODE.next_replaced):
        own.seen.nodes[column, number] = -1
    for column in (NODE.deleting, NODE.asked, NODE.pods, NODE.kept, NODE.awhile):
        own.seen.nodes[column, number] = 0
    own.seen.nodes[NODE.kind, number], own.seen.node_times[NODE_TIME.launched_s, number] = kind, now_s
    spot, price = own.seen.offers[OFFER.spot, kind], own.seen.offers[OFFER.price, kind]
    alike = life.way_taken(own.choices[number], own.alike[kind, 0])
    own.seen.nodes[NODE.spot, number] = as_spot or (own.alike[kind, 1] >> alike) & 1
    own.seen.paid[number] = spot if as_spot else price
    for column in (NODE_TIME.initialized_s, NODE_TIME.last_event_s, NODE_TIME.draining_s, NODE_TIME.unneeded_s):
        own.seen.node_times[column, number] = np.nan
    for column in (NODE_TIME.nominated_s, NODE_TIME.again_s):
        own.seen.node_times[column, number] = -np.inf
    run_meter(own, now_s)
    own.seen.nodes[NODE.alive, at.alive] = number
    place = at.alive
    while place > 0 and own.seen.names[own.seen.nodes[NODE.by_name, place - 1]] > own.seen.names[number]:
        own.seen.nodes[NODE.by_name, place] = own.seen.nodes[NODE.by_name, place - 1]
        place -= 1
    own.seen.nodes[NODE.by_name, place] = number
    at.alive += 1
    at.bought += 1
    meter.launched(own.seen.at, own.seen.paid[number], own.seen.offers[OFFER.watts_idle, kind])
    if terms.commitments > 0:
        _settle(own.seen, work.supply.rule)
    at.changed_s = now_s
    ready_s = life.ready_s(terms, now_s, own.spreads[number])
    for left in range(life.STEPS if terms.join_step_s > 0.0 else 0, 0, -1):
        _push(own, life.step_s(terms, now_s, ready_s, left), STEP, number)
    _push(own, ready_s, READY, number)
    return number


@outlined
def _settle(seen: Seen, rule: RuleWork) -> None:
    """Let commitments pay for the nodes that there are now: `CommittedNodes.add`."""
    at, terms = seen.at, seen.terms
    for kind in range(terms.kinds):
        rule.there[kind] = 0.0
    for i in range(at.alive):
        number = seen.nodes[NODE.alive, i]
        if not seen.nodes[NODE.spot, number]:
            rule.there[seen.nodes[NODE.kind, number]] += 1.0
    covered = settle(
        seen.amounts[: terms.commitments], seen.steps[: terms.steps], seen.offers[OFFER.price],
        rule.there[: terms.kinds], 1.0, rule.on_demand, rule.unspent, rule.unspent[:0],
    )  # fmt: skip
    meter.settled(at, covered, terms.committed)


@without_refcount
def deschedule(ref: EpisodeReference) -> bool:
    """Evict the next pod of the descheduler's round, where there is one; returns whether there was a pod."""
    _, own, _, work = referent(ref)
    orders, pod = descheduler.decide(reference((own.seen, work.supply.rule)))
    if orders == NOTHING:
        return False
    _let_stop(ref, pod)
    return True


@inlined
def _let_go(ref: EpisodeReference, orders: int, number: Number) -> None:
    """Let the nodes of the plan go: at once, one after the other, or once the node `number` is ready."""
    env, own, _, _ = referent(ref)
    at, nodes = own.seen.at, own.seen.nodes
    for k in range(at.planned):
        _mark(env, own, nodes[NODE.plan, k])
        if orders == DELETES_EACH:
            _drain(ref, nodes[NODE.plan, k])
    if orders == REPLACES:
        for k in range(at.planned - 1, -1, -1):
            nodes[NODE.next_replaced, nodes[NODE.plan, k]] = nodes[NODE.replaced, number]
            nodes[NODE.replaced, number] = nodes[NODE.plan, k]
    elif orders == DELETES:
        for k in range(at.planned):
            _drain(ref, nodes[NODE.plan, k])
    at.planned = 0


@inlined
def _mark(env: Env, own: Owned, number: int) -> None:
    """Let a node take no pods any more."""
    own.seen.at.changed_s = env.at.now_s
    own.seen.nodes[NODE.deleting, number] = 1
    row = own.seen.nodes[NODE.row, number]
    if row >= 0:
        env.nodes.cordoned[row] = True
        for kind in range(len(own.endures)):
            env.nodes.allowed[kind, row] = own.endures[kind]
        activate(env)


@outlined
def _drain(ref: EpisodeReference, number: int) -> None:
    """Begin to evict a node's pods, which is seen to again once it may be given back or more of them may go."""
    env, own, _, _ = referent(ref)
    now_s = env.at.now_s
    if np.isnan(own.seen.node_times[NODE_TIME.draining_s, number]):
        own.seen.node_times[NODE_TIME.draining_s, number] = now_s
        _push(own, life.drained_s(own.seen.terms, now_s), DRAIN, number)
        pod = own.seen.nodes[NODE.first, number] if own.seen.nodes[NODE.awhile, number] else -1
        while pod >= 0:
            at_s = own.seen.pod_times[POD_TIME.released_s, pod]
            if 0.0 < own.seen.kept_s[pod] < np.inf and not is_released(at_s, now_s):
                _push(own, at_s, DRAIN, number)
            pod = own.seen.pods[POD.after, pod]
        _evict(ref, number)


# ---- what happens ----------------------------------------------------------------------------------------------------


@inlined
def _push(own: Owned, at_s: float, kind: int, subject: int) -> None:
    own.seen.at.sequence += 1
    add(own.events, own.seen.at.events, at_s, own.seen.at.sequence, kind, subject)
    own.seen.at.events += 1


@outlined
def _happen(ref: EpisodeReference, kind: int, subject: int) -> bool:
    """Let an event happen; returns whether pods may fit elsewhere now."""
    env, own, _, work = referent(ref)
    if kind == READY:
        return _ready(ref, subject)
    if kind == STEP:
        return _step(ref, subject)
    if kind == STOP:
        return _stop(ref, subject)
    if kind == RECREATE:
        env.pods.node[subject] = WAITS
        env.pods.failures[subject] = 0
        env.at.recreated += 1
        env.at.gpu_waiting += _gpu_milli(env, subject)
        env.pods.since_s[subject] = env.at.now_s + delay_s(env, own, subject)
        enqueue(env, subject)
        return True
    if not np.isnan(own.seen.node_times[NODE_TIME.draining_s, subject]):
        _evict(ref, subject)
        _give_back(env, own, work.supply.rule, subject)
    return False


@inlined
def _step(ref: EpisodeReference, number: int) -> bool:
    """A node that takes no pods yet is seen to change."""
    env, own, settings, work = referent(ref)
    if own.seen.nodes[NODE.deleting, number]:
        return False
    help_waiting(env, settings, work.late[0])
    return True


@inlined
def delay_s(env: Env, own: Owned, pod: int) -> float:
    """Return how much later than it did a pod counts as having come: `QueueSort.delay_s`."""
    terms, shape = own.seen.terms, env.shapes[env.pods.shape[pod]]
    if not (terms.cpu_s or terms.memory_s or terms.larger_s or terms.rest or terms.work):
        return 0.0
    mean_cpu, mean_memory = mean_size(env.nodes.allocatable, env.nodes.capacity)
    cpu, memory = shape[SHAPE_REQUEST + CPU_COLUMN] / mean_cpu, shape[SHAPE_REQUEST + MEMORY_COLUMN] / mean_memory
    return delayed_s(terms, cpu, memory, env.pods.remaining_s[pod])


@outlined
def _ready(ref: EpisodeReference, number: int) -> bool:
    """A node joins the cluster; those that it replaces begin to go."""
    env, own, settings, work = referent(ref)
    at, cluster, now_s = own.seen.at, env.nodes, env.at.now_s
    if own.seen.nodes[NODE.deleting, number]:
        return False
    own.seen.node_times[NODE_TIME.initialized_s, number], at.changed_s = now_s, now_s
    learned.came(at, now_s - own.seen.node_times[NODE_TIME.launched_s, number])
    row = env.at.nodes
    env.at.nodes += 1
    own.seen.nodes[NODE.row, number], own.seen.nodes[NODE.in_row, row] = row, number
    for r in range(cluster.allocatable.shape[1]):
        cluster.allocatable[row, r], cluster.requested[row, r] = (
            own.seen.type_allocatable[own.seen.nodes[NODE.kind, number], r],
            0,
        )
    kind = own.seen.nodes[NODE.kind, number]
    cluster.gpu_count[row], cluster.gpu_model[row] = 0, own.models[kind]
    for g in range(own.seen.devices.shape[1]):
        cluster.gpu_free[row, g] = own.seen.devices[kind, g]
        cluster.gpu_count[row] += own.seen.devices[kind, g] > 0
    cluster.cordoned[row], cluster.capacity[row] = False, True
    cluster.allowed[:, row] = True
    cluster.owners[:, row] = 0
    help_waiting(env, settings, work.late[0])
    other = own.seen.nodes[NODE.replaced, number]
    while other >= 0:
        _drain(ref, other)
        other = own.seen.nodes[NODE.next_replaced, other]
    return True


@outlined
def _evict(ref: EpisodeReference, number: int) -> None:
    """Evict the pods of a node that may be and do not stop already: others are tried again."""
    env, own, _, _ = referent(ref)
    pod, refused = own.seen.nodes[NODE.first, number], False
    while pod >= 0:
        following = own.seen.pods[POD.after, pod]
        if own.seen.pods[POD.stopping, pod] or is_kept(own.seen, pod):
            pass
        elif len(own.protected) and not _lets_go(env, own, pod):
            refused = True
        else:
            _let_stop(ref, pod)
        pod = following
    if refused:
        _push(own, life.retried_s(own.seen.terms, env.at.now_s), DRAIN, number)


@inlined
def _let_stop(ref: EpisodeReference, pod: int) -> None:
    """Evict a pod, at once or after its grace."""
    env, own, _, _ = referent(ref)
    if life.has_grace(own.seen.terms):
        own.seen.pods[POD.stopping, pod] = 1
        _push(own, life.stop_s(own.seen.terms, env.at.now_s), STOP, pod)
    else:
        _stop(ref, pod)


@inlined
def _look_at_budgets(env: Env, own: Owned) -> None:
    """Note which pods their disruption budgets protect now."""
    for number in range(SEVERAL, len(own.limits)):
        lets_go = number == NOBODY if number < 0 else _allowed_evictions(env, own, number) > 0
        for pod in range(env.at.arrived):
            if own.protected[pod] == number:
                stays = own.seen.pods[POD.end, pod] >= 0 and own.seen.pods[POD.stopping, pod] == 0
                own.seen.blocked[pod] = stays and not lets_go


@inlined
def _lets_go(env: Env, own: Owned, pod: int) -> bool:
    """Whether the budgets of a pod let it go."""
    number = own.protected[pod]
    return number == NOBODY if number < 0 else _allowed_evictions(env, own, number) > 0


@inlined
def _allowed_evictions(env: Env, own: Owned, number: Number) -> int:
    """Return how many of its pods a budget lets go: `aaml.nodes.budgets.allowed_evictions`."""
    available, missing = 0, 0
    for other in range(env.at.arrived):
        if own.selected[number, other]:
            runs, stops = own.seen.pods[POD.end, other] >= 0, own.seen.pods[POD.stopping, other] > 0
            available += runs and not stops
            missing += stops or own.seen.pods[POD.noted, other] >= 0 or env.pods.node[other] == COMES_AGAIN
    return evictable(own.limits[number], available, available + missing)


@outlined
def _stop(ref: EpisodeReference, pod: int) -> bool:
    """An evicted pod leaves its node, and its owner makes the next one; nothing happens if it has ended itself."""
    env, own, settings, work = referent(ref)
    at, now_s = env.at, env.at.now_s
    if own.seen.pods[POD.end, pod] == -1 or (life.has_grace(own.seen.terms) and not own.seen.pods[POD.stopping, pod]):
        return False
    at.evicted += 1
    own.seen.at.evicted += 1.0
    leave_node(env, own, pod)
    help_waiting(env, settings, work.late[0])
    if not own.seen.traits[TRAIT.owned, pod]:
        at.lost += 1
        env.pods.node[pod] = LOST
        return True
    env.pods.node[pod] = COMES_AGAIN
    if not own.seen.traits[TRAIT.anew, pod]:
        env.pods.lifetime_s[pod] = life.left_s(env.pods.lifetime_s[pod], env.pods.bound_s[pod], now_s)
    own.seen.pod_times[POD_TIME.created_s, pod] = life.recreated_s(own.seen.terms, now_s)
    _push(own, own.seen.pod_times[POD_TIME.created_s, pod], RECREATE, pod)
    return True


@inlined
def _give_back(env: Env, own: Owned, rule: RuleWork, number: int) -> None:
    """Give a node back, if its pods are gone and it has been kept for long enough."""
    at, cluster, now_s = own.seen.at, env.nodes, env.at.now_s
    if (
        now_s < life.drained_s(own.seen.terms, own.seen.node_times[NODE_TIME.draining_s, number])
        or own.seen.nodes[NODE.pods, number]
    ):
        return
    run_meter(own, now_s)
    at.alive -= 1
    kind = own.seen.nodes[NODE.kind, number]
    meter.gone(own.seen.at, own.seen.paid[number], own.seen.offers[OFFER.watts_idle, kind])
    _take_out(own.seen.nodes[NODE.alive], at.alive, number)
    _take_out(own.seen.nodes[NODE.by_name], at.alive, number)
    if own.seen.terms.commitments > 0:
        _settle(own.seen, rule)
    own.seen.node_times[NODE_TIME.draining_s, number] = np.nan
    at.changed_s = now_s
    gap, n = own.seen.nodes[NODE.row, number], env.at.nodes - 1
    own.seen.nodes[NODE.row, number] = -1
    for row in range(gap, n):
        own.seen.nodes[NODE.in_row, row] = own.seen.nodes[NODE.in_row, row + 1]
        own.seen.nodes[NODE.row, own.seen.nodes[NODE.in_row, row]] = row
        cluster.cordoned[row] = cluster.cordoned[row + 1]
        for r in range(cluster.allocatable.shape[1]):
            cluster.allocatable[row, r] = cluster.allocatable[row + 1, r]
            cluster.requested[row, r] = cluster.requested[row + 1, r]
        cluster.gpu_count[row], cluster.gpu_model[row] = cluster.gpu_count[row + 1], cluster.gpu_model[row + 1]
        for g in range(cluster.gpu_free.shape[1]):
            cluster.gpu_free[row, g] = cluster.gpu_free[row + 1, g]
        for kind in range(len(cluster.allowed)):
            cluster.allowed[kind, row] = cluster.allowed[kind, row + 1]
        for owner in range(len(cluster.owners)):
            cluster.owners[owner, row] = cluster.owners[owner, row + 1]
    cluster.capacity[n], cluster.gpu_count[n] = False, 0
    for g in range(cluster.gpu_free.shape[1]):
        cluster.gpu_free[n, g] = 0
    env.at.nodes = n
    activate(env)


@inlined
def _take_out(numbers: SmallArray, count: int, number: int) -> None:
    """Take a number out of a list, of which `count` are left."""
    found = False
    for i in range(count):
        found |= numbers[i] == number
        if found:
            numbers[i] = numbers[i + 1]


# ---- pods ------------------------------------------------------------------------------------------------------------


@inlined
def join_node(env: Env, own: Owned, pod: int, row: int) -> None:
    """A pod that waited is bound to the node of a row, and ends after its lifetime."""
    at, now_s = own.seen.at, env.at.now_s
    number = own.seen.nodes[NODE.in_row, row]
    env.pods.node[pod] = number
    own.seen.pods[POD.stopping, pod] = 0
    if own.seen.pods[POD.noted, pod] >= 0:
        at.noted -= 1
        last = own.seen.pods[POD.waiting, at.noted]
        own.seen.pods[POD.waiting, own.seen.pods[POD.noted, pod]], own.seen.pods[POD.noted, last] = (
            last,
            own.seen.pods[POD.noted, pod],
        )
        own.seen.pods[POD.noted, pod], own.seen.pod_times[POD_TIME.again_s, pod] = -1, -np.inf
    before_s = -1.0
    if own.seen.pods[POD.first, pod] < 0:
        own.seen.pods[POD.first, pod] = at.firsts
        at.firsts += 1
    else:
        before_s = env.queue.waited_s[own.seen.pods[POD.first, pod]]
    place = own.seen.pods[POD.first, pod]
    env.queue.waited_s[place] = life.waited_s(before_s, own.seen.pod_times[POD_TIME.created_s, pod], now_s)
    learned.served(at, own.seen.terms, env.queue.waited_s[place], before_s)
    own.seen.pods[POD.before, pod], own.seen.pods[POD.after, pod] = own.seen.nodes[NODE.last, number], -1
    if own.seen.nodes[NODE.last, number] >= 0:
        own.seen.pods[POD.after, own.seen.nodes[NODE.last, number]] = pod
    else:
        own.seen.nodes[NODE.first, number] = pod
    own.seen.nodes[NODE.last, number] = pod
    own.seen.nodes[NODE.pods, number] += 1
    own.seen.nodes[NODE.kept, number] += own.seen.kept_s[pod] > 0.0
    own.seen.nodes[NODE.awhile, number] += 0.0 < own.seen.kept_s[pod] < np.inf
    own.seen.pod_times[POD_TIME.released_s, pod] = released_s(now_s, own.seen.kept_s[pod])
    _observe(env, own, pod, number, 1)
    at.sequence += 1
    own.seen.pods[POD.end, pod] = at.sequence
    if env.pods.lifetime_s[pod] < np.inf:
        add(own.ends, at.ends, now_s + env.pods.lifetime_s[pod], at.sequence, 0, pod)
        at.ends += 1


@inlined
def leave_node(env: Env, own: Owned, pod: int) -> None:
    """A pod leaves its node, whatever the reason."""
    number = env.pods.node[pod]
    row, shape = own.seen.nodes[NODE.row, number], env.shapes[env.pods.shape[pod]]
    for r in range(env.nodes.requested.shape[1]):
        env.nodes.requested[row, r] -= shape[SHAPE_REQUEST + r]
    if shape[SHAPE_MILLI] > 0:
        for g in range(env.nodes.gpu_free.shape[1]):
            if (env.pods.devices[pod] >> g) & 1:
                env.nodes.gpu_free[row, g] += shape[SHAPE_MILLI]
    if env.pods.owner[pod] >= 0:
        env.nodes.owners[env.pods.owner[pod], row] -= 1
    if own.seen.pods[POD.before, pod] >= 0:
        own.seen.pods[POD.after, own.seen.pods[POD.before, pod]] = own.seen.pods[POD.after, pod]
    else:
        own.seen.nodes[NODE.first, number] = own.seen.pods[POD.after, pod]
    if own.seen.pods[POD.after, pod] >= 0:
        own.seen.pods[POD.before, own.seen.pods[POD.after, pod]] = own.seen.pods[POD.before, pod]
    else:
        own.seen.nodes[NODE.last, number] = own.seen.pods[POD.before, pod]
    own.seen.nodes[NODE.pods, number] -= 1
    own.seen.nodes[NODE.kept, number] -= own.seen.kept_s[pod] > 0.0
    own.seen.nodes[NODE.awhile, number] -= 0.0 < own.seen.kept_s[pod] < np.inf
    own.seen.pods[POD.end, pod], own.seen.pods[POD.stopping, pod] = -1, 0
    env.at.running -= 1
    _observe(env, own, pod, number, -1)
    if not np.isnan(own.seen.node_times[NODE_TIME.draining_s, number]):
        _push(own, env.at.now_s, DRAIN, number)


@inlined
def _gpu_milli(env: Env, pod: int) -> int:
    """Return the thousandths of GPUs that a pod asks for."""
    shape = env.shapes[env.pods.shape[pod]]
    return shape[SHAPE_COUNT] * shape[SHAPE_MILLI]


@inlined
def _observe(env: Env, own: Owned, pod: int, number: int, sign: int) -> None:
    """A pod is bound to a node, or has left it."""
    now_s, shape = env.at.now_s, env.shapes[env.pods.shape[pod]]
    run_meter(own, now_s)
    cpu, memory = shape[SHAPE_REQUEST + CPU_COLUMN], shape[SHAPE_REQUEST + MEMORY_COLUMN]
    watts = own.seen.offers[OFFER.watts_per_core, own.seen.nodes[NODE.kind, number]]
    meter.placed(own.seen.at, cpu, memory, _gpu_milli(env, pod), watts, sign)
    own.seen.at.changed_s = now_s
    if life.is_pod_event(own.seen.terms, own.seen.node_times[NODE_TIME.last_event_s, number], now_s):
        own.seen.node_times[NODE_TIME.last_event_s, number] = now_s


@inlined
def end_pods(env: Env, own: Owned) -> bool:
    """Let go the pods whose time has come; returns whether there were any."""
    at, ended = own.seen.at, False
    while at.ends and own.ends.at_s[0] <= env.at.now_s:
        sequence, _, pod = first(own.ends)
        drop_first(own.ends, at.ends)
        at.ends -= 1
        if own.seen.pods[POD.end, pod] == sequence:
            env.at.departed += 1
            leave_node(env, own, pod)
            ended = True
    return ended
