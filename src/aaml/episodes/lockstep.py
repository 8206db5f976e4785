"""Environments in lockstep: what `SimCluster` and the scheduling cycle do between two decisions, for a range of rows.

The kernels hold no global lock, and a row depends on nothing but its own decisions, so rows may be split over threads.
"""

from typing import Any

import numpy as np

from aaml.cluster.gpu import DEVICE_MILLI
from aaml.cluster.kernels import by_class, call_at, inlined, reference, referent, without_refcount
from aaml.cluster.metrics import hold_usage
from aaml.cluster.state import CPU_COLUMN, MEMORY_COLUMN, PODS_COLUMN
from aaml.episodes.departures import drop, push
from aaml.episodes.own_rewards import AFTER, BEFORE, OwnReward, own_reward
from aaml.episodes.queueing import activate, enqueue, give_up, help_waiting, line_up, put_back
from aaml.episodes.rewards import after, before, forget
from aaml.episodes.rows import (
    POD_TIMES,
    WAITS,
    BatchSettings,
    BoolArray,
    Env,
    EpisodePool,
    FeatureArray,
    FloatArray,
    IntArray,
    Nodes,
    Rows,
    View,
    Work,
    env_of,
    waiting,
)
from aaml.episodes.supply import (
    begin_supply,
    delay_s,
    end_pods,
    is_due,
    is_short,
    join_node,
    next_end_s,
    next_s,
    rejected,
    show_owned,
    turn,
)
from aaml.episodes.supply_rows import Owned, Supply, owned_of
from aaml.nodes.rows import NODE, SHAPE_PICKY, SHAPE_REQUEST, SHAPE_TOLERANCE
from aaml.nodes.rows import POD as OWN_POD
from aaml.policies.fragment_meter import fragment_growth
from aaml.policies.fragmentation import FragmentTables
from aaml.policies.gpu.arrays import SHAPE_COUNT, SHAPE_MILLI, SHAPE_MODELS, NodeArrays
from aaml.policies.gpu.fit import has_devices, take_devices
from aaml.scheduling.lifetimes import LifetimeTable, certainty, log_seconds, mean_remaining
from aaml.scheduling.observation import (
    MAX_DEVICES,
    NODE_FEATURES,
    POD,
    POD_FEATURES,
    REMAINING_OF_NODES,
    REMAINING_OF_PAIRS,
    UPCOMING,
    UPCOMING_FEATURES,
    fill,
    mean_size,
)
from aaml.scheduling.remaining import add_remaining, show_remaining

INFEASIBLE_REWARD = -1.0
BEGIN, RESUME = -1, -2
_NODE, _POD, _UPCOMING = len(NODE_FEATURES), len(POD_FEATURES), len(UPCOMING_FEATURES)


@without_refcount
def play_rows(  # noqa: C901, PLR0912
    pool: EpisodePool, rows: Rows, supply: Supply | None, view: View, tables: FragmentTables | None,
    lives: LifetimeTable | None, own: OwnReward | None, settings: BatchSettings, work: Work, which: IntArray,
    actions: IntArray,
) -> None:  # fmt: skip
    """Go on to the next decision, or the end, in each of the rows `which` int64 [n] after its action in `actions` [B].

    BEGIN begins the episode in the slot, RESUME goes on after a wait for larger arrays; rows that are over rest. None
    are `supply` where nodes stay, `tables` without fragments, `lives` without lifetimes, `own` with a built-in reward.
    """
    for b in which:
        env, held = env_of(pool, rows, b), view.held[b]
        owned = owned_of(supply, env, b)
        at = env.at
        if actions[b] != RESUME:
            at.over, at.cut, at.infeasible, at.reward = 0, 0, 0, 0.0
            held[:] = 0.0
        if actions[b] == BEGIN:
            begin(pool, rows, env, owned, b)
            forget(env)
            view.nodes[b] = 0.0
            view.pairs[b] = 0.0
            view.mask[b] = False
        elif actions[b] != RESUME:
            if at.alive == 0:
                continue
            for i in range(len(held)):
                held[i] = env.totals[i]
            at.steps += 1
            if view.mask[b, actions[b]]:
                pod, mask = env.queue.ready[at.cursor], view.mask[b, : at.nodes]
                if own is None:
                    remembered = before(settings.reward, env, owned, tables, work)
                    bind(env, owned, pod, actions[b])
                    at.reward = after(settings.reward, env, tables, work.bins, mask, pod, actions[b], remembered)
                else:
                    at.reward = own_reward(own, BEFORE, env, mask, actions[b])
                    bind(env, owned, pod, actions[b])
                    at.reward += own_reward(own, AFTER, env, mask, actions[b])
            else:
                _leave(env)
        goes_on = next_decision(env, owned, settings, work, view.mask[b])
        if at.short:
            continue
        n = at.nodes
        for i in range(n, at.shown):
            view.nodes[b, i] = 0.0
            view.pairs[b, i] = 0.0
            view.mask[b, i] = False
        at.shown = n
        if at.steps:
            for i in range(len(held)):
                held[i] = env.totals[i] - held[i]
        at.over = not goes_on
        at.cut = 0 < settings.max_steps <= at.steps
        at.alive = goes_on and not at.cut
        show(
            env, owned, settings, tables, lives, work, goes_on, view.mask[b, :n], view.nodes[b, :n], view.pairs[b, :n],
            view.pod[b],
        )  # fmt: skip


@inlined
def begin(pool: EpisodePool, rows: Rows, env: Env, owned: Owned | None, b: int) -> None:
    """Begin with the nodes of the episode, without pods."""
    at, nodes, pods, arriving, w = env.at, env.nodes, env.pods, env.episode.pods, env.at.slot
    at.nodes, at.shown = env.episode.nodes, 0
    at.alive, at.steps, at.seconds = 0, 0, 0.0
    at.running, at.departed, at.bound, at.gpu_waiting = 0, 0, 0, 0
    at.arrived, at.ready, at.cursor, at.unschedulable, at.deferred = 0, 0, 0, 0, 0
    at.rejected, at.declined, at.late, at.freed, at.short = 0, 0, 0, 0, 0
    at.recreated, at.evicted, at.lost, at.backing, at.busy_s = 0, 0, 0, 0, -np.inf
    at.now_s = min(0.0, pods.arrival_s[0]) if arriving else 0.0
    env.totals[:] = 0.0
    nodes.requested[:] = 0
    nodes.owners[:] = 0
    nodes.capacity[:] = False
    for i in range(at.nodes):
        for r in range(nodes.allocatable.shape[1]):
            nodes.allocatable[i, r] = pool.allocatable[w, i, r]
        for k in range(pool.node_flags.shape[1]):
            rows.node_flags[b, k, i] = pool.node_flags[w, k, i]
        for k in range(pool.node_facts.shape[1]):
            rows.node_facts[b, k, i] = pool.node_facts[w, k, i]
        for g in range(nodes.gpu_free.shape[1]):
            nodes.gpu_free[i, g] = DEVICE_MILLI if g < nodes.gpu_count[i] else 0
    for pod in range(arriving):
        pods.node[pod], pods.failures[pod] = WAITS, 0
        pods.since_s[pod] = pool.pod_times[w, POD_TIMES.since_s, pod]
        pods.lifetime_s[pod] = pool.pod_times[w, POD_TIMES.lifetime_s, pod]
    env.queue.blocked[:] = -1
    if owned is not None:
        begin_supply(env, owned)


@inlined
def _next_decision(  # noqa: C901, PLR0912
    env: Env, owned: Owned | None, settings: BatchSettings, work: Work, mask: BoolArray
) -> bool:
    """Let time pass until a pod fits somewhere, whose `mask` is written; returns whether there is one.

    None may fit because larger arrays are needed: then it is `at.short`, and is to be asked again.
    """
    at, pods, until_s = env.at, env.pods, env.episode.until_s
    at.short = 0
    while True:
        if owned is not None and owned.seen.terms.failed_try_s > 0.0:
            if _tried_pod_fits(env, owned, settings, work, mask):
                return True
        elif _ready_pod_fits(env, owned, mask):
            return True
        if owned is not None:
            if is_short(env, owned):
                at.short = 1
                return False
            if at.ready > 0:  # not all were tried
                put_back(env, settings, work.late[0])
            if is_due(env, owned) and turn(reference((env, owned, settings, work))):
                activate(env)
                line_up(env, settings, work.keys, work.late)
                continue
        at_s = _next_event_s(env, owned)
        ends = at_s > until_s or at_s == np.inf
        if ends:
            at_s = until_s if until_s < np.inf else at.now_s
        _hold_until(env, at_s)
        if ends:
            mask[:] = False
            return False
        if at.late:
            put_back(env, settings, work.late[0])
        helped = _depart(env) if owned is None else end_pods(env, owned)
        if helped:
            help_waiting(env, settings, work.late[0])
        while at.arrived < env.episode.pods and pods.arrival_s[at.arrived] <= at.now_s:
            pod = at.arrived
            at.arrived += 1
            shape = env.shapes[pods.shape[pod]]
            at.gpu_waiting += shape[SHAPE_COUNT] * shape[SHAPE_MILLI]
            if owned is not None:
                pods.since_s[pod] = pods.arrival_s[pod] + delay_s(env, owned, pod)
            enqueue(env, pod)
        activate(env)
        line_up(env, settings, work.keys, work.late)


def _next_owned(env: Env, owned: Owned | None, settings: BatchSettings, work: Work, mask: BoolArray) -> bool:
    return bool(call_at(settings.next_owned, reference((env, owned, settings, work, mask))))


@without_refcount
def next_owned(ref: Any) -> bool:
    """`next_decision` where nodes are provisioned: too large to be compiled into each of its callers."""
    env, owned, settings, work, mask = referent(ref)
    return _next_decision(env, owned, settings, work, mask)


def _next_alone(env: Env, owned: Owned | None, settings: BatchSettings, work: Work, mask: BoolArray) -> bool:
    return _next_decision(env, owned, settings, work, mask)


next_decision = by_class(1, {Owned: _next_owned, None: _next_alone})


@inlined
def _next_event_s(env: Env, owned: Owned | None) -> float:
    """Return when the next pod comes or goes, or the autoscaler is at work."""
    at = env.at
    if owned is not None:
        at_s = min(next_end_s(owned), next_s(owned))
    else:
        at_s = env.queue.leave_s[0] if at.running else np.inf
    if at.arrived < env.episode.pods:
        at_s = min(at_s, env.pods.arrival_s[at.arrived])
    return at_s


@inlined
def _ready_pod_fits(env: Env, owned: Owned | None, mask: BoolArray) -> bool:
    """Go on to the first ready pod that fits somewhere, and write its mask; returns whether there is one."""
    at = env.at
    while at.cursor < at.ready:
        if _first_pod_fits(env, owned, mask):
            return True
    at.cursor, at.ready = 0, 0
    return False


@inlined
def _tried_pod_fits(env: Env, owned: Owned, settings: BatchSettings, work: Work, mask: BoolArray) -> bool:
    """Do so where a try that finds no node takes time, until something else happens: `SimCluster.next_pod`."""
    at = env.at
    while True:
        if at.now_s < at.busy_s:
            if at.busy_s >= min(_next_event_s(env, owned), env.episode.until_s):
                return False
            _hold_until(env, at.busy_s)
            put_back(env, settings, work.late[0])
            line_up(env, settings, work.keys, work.late)
        if at.cursor >= at.ready:
            at.cursor, at.ready, at.backing = 0, 0, 0
            return False
        if _first_pod_fits(env, owned, mask):
            return True
        at.busy_s = at.now_s + owned.seen.terms.failed_try_s


@inlined
def _first_pod_fits(env: Env, owned: Owned | None, mask: BoolArray) -> bool:
    """Write where the first ready pod fits; returns whether it does anywhere, else it waits."""
    at, queue = env.at, env.queue
    number = env.pods.shape[queue.ready[at.cursor]]
    if queue.blocked[number] != at.freed:
        if _feasible(env.nodes, env.shapes[number], mask, at.nodes):
            return True
        queue.blocked[number] = at.freed
    at.rejected += 1
    if owned is not None:
        rejected(owned, queue.ready[at.cursor], at.now_s)
    queue.waiting[at.unschedulable] = give_up(env)
    at.unschedulable += 1
    return False


@inlined
def _feasible(nodes: Nodes, shape: IntArray, mask: BoolArray, count: int) -> bool:
    """Write the mask of the `count` nodes where a pod of a shape fits; returns whether it fits anywhere."""
    asks_gpu, somewhere = shape[SHAPE_COUNT] > 0 or shape[SHAPE_PICKY] > 0, False
    allowed = nodes.allowed[shape[SHAPE_TOLERANCE]]
    for i in range(count):
        fits = allowed[i]
        for r in range(nodes.allocatable.shape[1]):
            amount = shape[SHAPE_REQUEST + r]
            fits &= amount == 0 or nodes.allocatable[i, r] - nodes.requested[i, r] >= amount
        if fits and asks_gpu:
            fits = (shape[SHAPE_MODELS] >> nodes.gpu_model[i]) & 1 == 1
            fits = fits and has_devices(nodes.gpu_free[i], shape[SHAPE_COUNT], shape[SHAPE_MILLI])
        mask[i] = fits
        somewhere |= fits
    return somewhere


@inlined
def bind(env: Env, owned: Owned | None, pod: int, row: int) -> None:
    """Place the first ready pod, as `ClusterState.assume` and `SimCluster.bind` do."""
    at, nodes, pods, queue = env.at, env.nodes, env.pods, env.queue
    shape = env.shapes[pods.shape[pod]]
    for r in range(nodes.requested.shape[1]):
        nodes.requested[row, r] += shape[SHAPE_REQUEST + r]
    if shape[SHAPE_MILLI] > 0:
        pods.devices[pod] = take_devices(nodes.gpu_free[row], shape[SHAPE_COUNT], shape[SHAPE_MILLI])
    if pods.owner[pod] >= 0:
        nodes.owners[pods.owner[pod], row] += 1
    nodes.stale[row] = 1.0
    at.gpu_waiting -= shape[SHAPE_COUNT] * shape[SHAPE_MILLI]
    at.cursor += 1
    pods.bound_s[pod] = at.now_s
    if owned is None:
        pods.node[pod] = row
        queue.waited_s[at.bound] = at.now_s - pods.arrival_s[pod]
        push(queue.leave_s, queue.leaving, at.running, at.now_s + pods.lifetime_s[pod], pod)
    else:
        join_node(env, owned, pod, row)
    at.bound += 1
    at.running += 1


@inlined
def _leave(env: Env) -> None:
    """Leave the first ready pod, for which a node was chosen where it does not fit."""
    at = env.at
    at.declined += 1
    env.queue.left[at.deferred] = give_up(env)
    at.deferred += 1
    at.infeasible, at.reward = 1, INFEASIBLE_REWARD


@inlined
def _hold_until(env: Env, at_s: float) -> None:
    """Let time pass, and count how well the cluster was used meanwhile."""
    at, nodes = env.at, env.nodes
    if at_s <= at.now_s:
        return
    if at_s > 0.0:
        pending, seconds = float(waiting(at)), at_s - max(at.now_s, 0.0)
        hold_usage(
            nodes.allocatable, nodes.requested, nodes.capacity, nodes.gpu_free, nodes.gpu_count, pending,
            at.gpu_waiting, seconds, env.totals,
        )  # fmt: skip
        at.seconds += seconds
    at.now_s = at_s


@inlined
def _depart(env: Env) -> bool:
    """Let go the pods whose time has come; returns whether there were any."""
    at, nodes, pods, queue = env.at, env.nodes, env.pods, env.queue
    before_that = at.departed
    while at.running and queue.leave_s[0] <= at.now_s:
        pod = queue.leaving[0]
        drop(queue.leave_s, queue.leaving, at.running)
        at.running -= 1
        at.departed += 1
        row, shape = pods.node[pod], env.shapes[pods.shape[pod]]
        for r in range(nodes.requested.shape[1]):
            nodes.requested[row, r] -= shape[SHAPE_REQUEST + r]
        if shape[SHAPE_MILLI] > 0:
            for g in range(nodes.gpu_free.shape[1]):
                if (pods.devices[pod] >> g) & 1:
                    nodes.gpu_free[row, g] += shape[SHAPE_MILLI]
        if pods.owner[pod] >= 0:
            nodes.owners[pods.owner[pod], row] -= 1
        nodes.stale[row] = 1.0
    return at.departed > before_that


@inlined
def show(
    env: Env, owned: Owned | None, settings: BatchSettings, tables: FragmentTables | None, lives: LifetimeTable | None,
    work: Work, goes_on: bool, mask: BoolArray, nodes: FeatureArray, pairs: FeatureArray, vector: FeatureArray,
) -> None:  # fmt: skip
    """Write what is seen of the first ready pod, or of no pod at the end, as `ObservationSpec.observe` has it."""
    nodes[:] = 0.0
    pairs[:] = 0.0
    vector[:] = 0.0
    own, n = env.nodes, len(mask)
    growth, siblings, request = work.growth[:n], work.siblings[:n], work.nothing
    growth[:] = 0.0
    siblings[:] = 0.0
    devices, milli, remaining_s = 0, 0, 0.0
    if goes_on:
        pod = env.queue.ready[env.at.cursor]
        shape, owner = env.shapes[env.pods.shape[pod]], env.pods.owner[pod]
        request, devices, milli = shape[SHAPE_REQUEST:], shape[SHAPE_COUNT], shape[SHAPE_MILLI]
        remaining_s = expected_s(env, owned, lives, pod)
        if owner >= 0:
            for i in range(n):
                siblings[i] = own.owners[owner, i]
        if tables is not None and settings.growth and env.episode.has_gpus:
            _measure_growth(own, shape, tables, work, growth)
    fill(
        own.allocatable, own.requested, own.gpu_free, own.gpu_count, own.cordoned, own.capacity, mask, request, devices,
        milli, growth, siblings, work.scratch, nodes, pairs, vector,
    )  # fmt: skip
    if owned is not None and settings.costs:
        show_owned(env, owned, work.supply.paid, nodes[:, _NODE:])
    if goes_on:
        _describe(env, settings.lookahead, work.queued, vector)
        if owned is not None:
            _tell_what_is_left(env, lives, settings, pod, remaining_s, vector)
    if lives is not None:
        load, empty_s = work.load[:n], work.empty_s[:n]
        remain(env, owned, lives, load, empty_s)
        show_remaining(
            load,
            empty_s,
            remaining_s,
            own.allocatable,
            own.gpu_count,
            nodes[:, REMAINING_OF_NODES],
            pairs[:, REMAINING_OF_PAIRS],
        )


@inlined
def _describe(env: Env, lookahead: int, queued: FloatArray, vector: FeatureArray) -> None:
    """Write the features of the pod that are not in `fill`, and the pods that follow."""
    at, pods, ready = env.at, env.pods, env.queue.ready
    pod = ready[at.cursor]
    if lookahead > 0:
        mean_cpu, mean_memory = mean_size(env.nodes.allocatable, env.nodes.capacity)
    vector[POD.wants_model] = env.shapes[pods.shape[pod], SHAPE_PICKY]
    vector[POD.lifetime], vector[POD.lifetime_known] = pods.expected[pod], pods.sure[pod]
    vector[POD.queue] = queued[waiting(at) - 1]
    for k in range(min(lookahead, at.ready - at.cursor - 1)):
        shape = env.shapes[pods.shape[ready[at.cursor + 1 + k]]]
        start = _POD + k * _UPCOMING
        vector[start + UPCOMING.cpu] = shape[SHAPE_REQUEST + CPU_COLUMN] / mean_cpu
        vector[start + UPCOMING.memory] = shape[SHAPE_REQUEST + MEMORY_COLUMN] / mean_memory
        vector[start + UPCOMING.gpu] = shape[SHAPE_COUNT] * shape[SHAPE_MILLI] / 1000.0 / MAX_DEVICES


@inlined
def expected_s(env: Env, owned: Owned | None, lives: LifetimeTable | None, pod: int) -> float:
    """Return for how long a waiting pod is expected to run: less than at first where it was evicted, and one knows."""
    if owned is not None and lives is not None:
        return mean_remaining(lives, env.pods.kind[pod], 0.0, _limit_s(env, pod))
    return env.pods.remaining_s[pod]


@inlined
def _limit_s(env: Env, pod: int) -> float:
    """Return the age beyond which a pod is known not to run, where nodes are bought: there pods have no deadlines."""
    return env.pods.lifetime_s[pod] if env.pods.limit_s[pod] < np.inf else np.inf


@inlined
def _tell_what_is_left(
    env: Env, lives: LifetimeTable | None, settings: BatchSettings, pod: int, remaining_s: float, vector: FeatureArray,
) -> None:  # fmt: skip
    """Write the features of the lifetime of a pod that may have been evicted before."""
    if settings.lifetimes and env.pods.lifetime_s[pod] < np.inf:
        vector[POD.lifetime] = log_seconds(env.pods.lifetime_s[pod])
    elif lives is not None:
        vector[POD.lifetime] = log_seconds(remaining_s)
        vector[POD.lifetime_known] = certainty(lives, env.pods.kind[pod], 0.0, _limit_s(env, pod))


@inlined
def remain(env: Env, owned: Owned | None, lives: LifetimeTable, load: IntArray, empty_s: FloatArray) -> None:
    """Write what is expected of the running pods: `RunningPods.remaining`."""
    load[:] = 0
    empty_s[:] = 0.0
    if owned is None:
        for i in range(env.at.running):
            pod = env.queue.leaving[i]
            _expect(env, lives, load, empty_s, pod, env.pods.node[pod], env.pods.limit_s[pod])
    else:
        for row in range(env.at.nodes):
            pod = owned.seen.nodes[NODE.first, owned.seen.nodes[NODE.in_row, row]]
            while pod >= 0:
                _expect(env, lives, load, empty_s, pod, row, _limit_s(env, pod))
                pod = owned.seen.pods[OWN_POD.after, pod]


@inlined
def _expect(
    env: Env, lives: LifetimeTable, load: IntArray, empty_s: FloatArray, pod: int, row: int, limit_s: float,
) -> None:  # fmt: skip
    """Add what is expected of a pod on a row."""
    pods, shape = env.pods, env.shapes[env.pods.shape[pod]]
    add_remaining(
        load, empty_s, row, lives, pods.kind[pod], max(env.at.now_s - pods.bound_s[pod], 0.0), limit_s,
        shape[SHAPE_REQUEST + CPU_COLUMN], shape[SHAPE_REQUEST + MEMORY_COLUMN],
        shape[SHAPE_COUNT] * shape[SHAPE_MILLI],
    )  # fmt: skip


@inlined
def _measure_growth(nodes: Nodes, shape: IntArray, tables: FragmentTables, work: Work, growth: FloatArray) -> None:
    """Write by how much each node's fragments would grow with a pod of this shape."""
    n = len(growth)
    for i in range(n):
        work.free_cpu[i] = nodes.allocatable[i, CPU_COLUMN] - nodes.requested[i, CPU_COLUMN]
        work.free_memory[i] = nodes.allocatable[i, MEMORY_COLUMN] - nodes.requested[i, MEMORY_COLUMN]
        work.free_pods[i] = nodes.allocatable[i, PODS_COLUMN] - nodes.requested[i, PODS_COLUMN]
    arrays = NodeArrays(
        work.free_cpu[:n], work.free_cpu[:n], work.free_memory[:n], work.free_pods[:n], nodes.gpu_free,
        nodes.gpu_count[:n], nodes.gpu_model[:n], work.kinds[:n],
    )  # fmt: skip
    fragment_growth(arrays, shape, tables, work.sums[0], work.sums[1], work.bins, growth)
