"""Episodes in lockstep: what `SimCluster` and the scheduling cycle do between two decisions, for a range of rows.

The kernels hold no global lock, and a row depends on nothing but its own decisions, so rows may be split over threads.
"""

from typing import NamedTuple

import numpy as np

from aaml.cluster.gpu import DEVICE_MILLI
from aaml.cluster.kernels import uncounted
from aaml.cluster.metrics import hold_usage
from aaml.policies.fragment_meter import fragment_growth
from aaml.policies.gpu.arrays import SHAPE_COUNT, SHAPE_MILLI, SHAPE_MODELS, NodeArrays
from aaml.policies.gpu.fit import extreme_device, is_share
from aaml.scheduling.observation import POD_FEATURES, RESTS_OF_NODES, RESTS_OF_PAIRS, UPCOMING_FEATURES, fill
from aaml.scheduling.rests import add_rest, show_rests
from aaml.sim.compiled.departures import drop, push
from aaml.sim.compiled.queueing import give_up, make_ready
from aaml.sim.compiled.rewards import after, before, forget
from aaml.sim.compiled.rows import (
    ALIVE,
    ALLOWED,
    ARRIVAL,
    ARRIVED,
    ASKED,
    BOUND,
    BOUND_S,
    CAPACITY,
    CORDONED,
    CURSOR,
    DECLINED,
    DEFERRED,
    DEPARTED,
    DEVICES,
    EXPECTED,
    FAILURES,
    GPU_COUNT,
    GPU_MODEL,
    GROWTH,
    HAS_GPUS,
    INFEASIBLE,
    KIND,
    LEAVE_S,
    LEAVING,
    LEFT,
    LIFETIME,
    LIMIT,
    LIMIT_S,
    MEAN_CPU,
    MEAN_MEMORY,
    NODE,
    NODES,
    NOW,
    OVER,
    OWNER,
    PICKY,
    PODS,
    READY,
    READY_PODS,
    REJECTED,
    REQUEST,
    REST_S,
    RUNNING,
    SECONDS,
    SHAPE,
    SIBLINGS,
    SLOT,
    STALE,
    STEPS,
    SURE,
    TOLERANCE,
    TOTALS,
    UNSCHEDULABLE,
    UNTIL,
    WAITED_S,
    WAITING,
)

INFEASIBLE_REWARD = -1.0
BEGIN = -1
_POD, _UPCOMING = len(POD_FEATURES), len(UPCOMING_FEATURES)


class Settings(NamedTuple):
    """What all rows have in common. `reward`: a number of `aaml.sim.compiled.rewards.REWARDS`; `max_steps` 0: none."""

    reward: int
    sorted: bool
    lookahead: int
    growth: bool
    max_steps: int
    initial_backoff_s: float
    max_backoff_s: float


@uncounted
def play_rows(pool, rows, view, tables, lives, settings, work, which, actions):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """Go on to the next decision, or the end, in each of the rows `which` int64 [n] after its action in `actions` [B].

    BEGIN begins the episode in the row's slot. A row that is over is left alone. `tables` is None where nothing
    asks for fragments, and `lives` where nothing is expected of running pods: numba then leaves out what they are for.
    """
    keys, late, sums, bins = work.keys, work.late, work.sums, work.bins
    for b in which:
        count, clock, pods, times, blocked = rows.state[b], rows.clock[b], rows.pods[b], rows.times[b], rows.blocked[b]
        w = count[SLOT]
        n, arriving, until_s = pool.numbers[w, NODES], pool.numbers[w, PODS], pool.spans[w, UNTIL]
        allocatable, node_facts, node_flags = pool.allocatable[w, :n], pool.node_facts[w], pool.node_flags[w]
        pod_times, pod_facts, shapes = pool.pod_times[w], pool.pod_facts[w], pool.shapes[w]
        requested, gpu_free, owners, worth = rows.requested[b, :n], rows.gpu_free[b, :n], rows.owners[b], rows.worth[b]
        capacity, mask, held, flags = node_flags[CAPACITY, :n], view.mask[b, :n], view.held[b], view.flags[b]
        flags[:] = False
        view.reward[b] = 0.0
        held[:] = 0.0
        if actions[b] == BEGIN:
            _begin(count, clock, requested, gpu_free, owners, pods, blocked, node_facts, arriving)
            forget(clock, worth)
            clock[NOW] = min(0.0, pod_times[ARRIVAL, 0]) if arriving else 0.0
            view.nodes[b] = 0.0
            view.pairs[b] = 0.0
            view.mask[b] = False
        elif count[ALIVE] == 0:
            continue
        else:
            row = actions[b]
            for i in range(len(held)):
                held[i] = clock[TOTALS + i]
            count[STEPS] += 1
            if view.mask[b, row]:
                pod = pods[READY_PODS, count[CURSOR]]
                remembered = before(
                    settings.reward, count, clock, allocatable, requested, gpu_free, node_facts, capacity, worth,
                    tables, bins,
                )  # fmt: skip
                shape = shapes[pod_facts[SHAPE, pod]]
                _bind(count, clock, requested, gpu_free, owners, pods, times, worth, pod_times, pod_facts, shape, row)
                view.reward[b] = after(
                    settings.reward, clock, allocatable, requested, gpu_free, node_facts, capacity, worth, tables,
                    bins, mask, row, shape[REQUEST], shape[REQUEST + 1], remembered,
                )  # fmt: skip
            else:
                count[DECLINED] += 1
                give_up(count, clock, pods, times, LEFT, DEFERRED)
                flags[INFEASIBLE] = True
                view.reward[b] = INFEASIBLE_REWARD
        goes_on = False
        while True:
            while count[CURSOR] < count[READY]:
                number = pod_facts[SHAPE, pods[READY_PODS, count[CURSOR]]]
                if blocked[number] != count[DEPARTED]:
                    shape = shapes[number]
                    allowed = node_flags[ALLOWED + shape[TOLERANCE]]
                    if _feasible(allocatable, requested, gpu_free, node_facts, allowed, shape, mask):
                        goes_on = True
                        break
                    blocked[number] = count[DEPARTED]
                count[REJECTED] += 1
                give_up(count, clock, pods, times, WAITING, UNSCHEDULABLE)
            if goes_on:
                break
            at_s = _next_event(count, times, pod_times, arriving)
            ends = at_s > until_s or at_s == np.inf
            if ends:
                at_s = until_s if until_s < np.inf else clock[NOW]
            if at_s > clock[NOW]:
                if at_s > 0.0:
                    pending, seconds = float(count[ARRIVED] - count[BOUND]), at_s - max(clock[NOW], 0.0)
                    hold_usage(
                        allocatable, requested, capacity, gpu_free, node_facts[GPU_COUNT], pending, count[ASKED],
                        seconds, clock[TOTALS:],
                    )  # fmt: skip
                    clock[SECONDS] += seconds
                clock[NOW] = at_s
            if ends:
                mask[:] = False
                break
            helped = _depart(count, clock, requested, gpu_free, owners, pods, times, worth, pod_facts, shapes)
            arrived = count[ARRIVED]
            make_ready(count, clock, pods, times, pod_times, arriving, settings, keys, late, helped)
            for pod in range(arrived, count[ARRIVED]):
                shape = shapes[pod_facts[SHAPE, pod]]
                count[ASKED] += shape[SHAPE_COUNT] * shape[SHAPE_MILLI]
        if count[STEPS]:
            for i in range(len(held)):
                held[i] = clock[TOTALS + i] - held[i]
        flags[OVER] = not goes_on
        flags[LIMIT] = 0 < settings.max_steps <= count[STEPS]
        count[ALIVE] = goes_on and not flags[LIMIT]
        # What is seen: of the first ready pod, or of no pod at the end, as `ObservationSpec.observe` has it.
        nodes, pairs, vector = view.nodes[b, :n], view.pairs[b, :n], view.pod[b]
        nodes[:] = 0.0
        pairs[:] = 0.0
        vector[:] = 0.0
        growth, siblings, request = work.floats[GROWTH, :n], work.floats[SIBLINGS, :n], work.nothing
        growth[:] = 0.0
        siblings[:] = 0.0
        devices, milli = 0, 0
        if goes_on:
            pod = pods[READY_PODS, count[CURSOR]]
            shape, owner = shapes[pod_facts[SHAPE, pod]], pod_facts[OWNER, pod]
            request, devices, milli = shape[REQUEST:], shape[SHAPE_COUNT], shape[SHAPE_MILLI]
            if owner >= 0:
                for i in range(n):
                    siblings[i] = owners[owner, i]
            if tables is not None and settings.growth and pool.numbers[w, HAS_GPUS]:
                _measure_growth(
                    allocatable, requested, gpu_free, node_facts, shape, tables, work.free, sums, bins, growth
                )
        fill(
            allocatable, requested, gpu_free, node_facts[GPU_COUNT], node_flags[CORDONED], capacity, mask, request,
            devices, milli, growth, siblings, work.floats, nodes, pairs, vector,
        )  # fmt: skip
        rest_s = 0.0
        if goes_on:
            rest_s = pod_times[REST_S, pods[READY_PODS, count[CURSOR]]]
            _describe(count, pods, pod_times, pod_facts, shapes, pool.spans[w], settings, work.queued, vector)
        if lives is not None:
            load, empty_s = work.load[:n], work.empty_s[:n]
            _remain(count, clock, pods, times, pod_times, pod_facts, shapes, lives, load, empty_s)
            show_rests(
                load, empty_s, rest_s, allocatable, node_facts[GPU_COUNT], nodes[:, RESTS_OF_NODES],
                pairs[:, RESTS_OF_PAIRS],
            )  # fmt: skip


@uncounted
def _begin(count, clock, requested, gpu_free, owners, pods, blocked, node_facts, arriving):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """Empty a row's cluster and its queue."""
    slot = count[SLOT]
    count[:] = 0
    count[SLOT] = slot
    clock[:] = 0.0
    requested[:] = 0
    owners[:] = 0
    blocked[:] = -1
    for i in range(gpu_free.shape[0]):
        for g in range(gpu_free.shape[1]):
            gpu_free[i, g] = DEVICE_MILLI if g < node_facts[GPU_COUNT, i] else 0
    pods[NODE, :arriving] = -1
    pods[FAILURES, :arriving] = 0


@uncounted
def _feasible(allocatable, requested, gpu_free, node_facts, allowed, shape, mask):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """Write the mask of the nodes where a pod of a shape fits; returns whether it fits anywhere."""
    asks_gpu, somewhere = shape[SHAPE_COUNT] > 0 or shape[PICKY] > 0, False
    for i in range(len(mask)):
        fits = allowed[i]
        for r in range(allocatable.shape[1]):
            amount = shape[REQUEST + r]
            fits &= amount == 0 or allocatable[i, r] - requested[i, r] >= amount
        if fits and asks_gpu:
            fits = _devices_fit(gpu_free[i], node_facts[GPU_MODEL, i], shape)
        mask[i] = fits
        somewhere |= fits
    return somewhere


@uncounted
def _devices_fit(free, model, shape):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """Whether a node's devices [G] of a model can take a shape: `aaml.cluster.gpu.devices_fit`."""
    if (shape[SHAPE_MODELS] >> model) & 1 == 0:
        return False
    if shape[SHAPE_MILLI] <= 0:
        return True
    need = shape[SHAPE_MILLI] if shape[SHAPE_COUNT] == 1 else DEVICE_MILLI
    enough = 0
    for g in range(free.shape[0]):
        enough += free[g] >= need
    return enough >= shape[SHAPE_COUNT]


@uncounted
def _bind(  # type: ignore[no-untyped-def]  # noqa: ANN202
    count, clock, requested, gpu_free, owners, pods, times, worth, pod_times, pod_facts, shape, row,  # noqa: ANN001
):  # fmt: skip
    """Place the first ready pod, as `ClusterState.assume` and `SimCluster.bind` do."""
    pod = pods[READY_PODS, count[CURSOR]]
    for r in range(requested.shape[1]):
        requested[row, r] += shape[REQUEST + r]
    if shape[SHAPE_MILLI] > 0:
        pods[DEVICES, pod] = _take_devices(gpu_free[row], shape)
    if pod_facts[OWNER, pod] >= 0:
        owners[pod_facts[OWNER, pod], row] += 1
    worth[STALE, row] = 1.0
    pods[NODE, pod] = row
    times[WAITED_S, count[BOUND]] = clock[NOW] - pod_times[ARRIVAL, pod]
    count[BOUND] += 1
    count[ASKED] -= shape[SHAPE_COUNT] * shape[SHAPE_MILLI]
    count[CURSOR] += 1
    times[BOUND_S, pod] = clock[NOW]
    push(times[LEAVE_S], pods[LEAVING], count[RUNNING], clock[NOW] + pod_times[LIFETIME, pod], pod)
    count[RUNNING] += 1


@uncounted
def _take_devices(free, shape):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """Take the best-fitting device for a share, the first free ones for whole devices; returns them as bits."""
    milli = shape[SHAPE_MILLI]
    if is_share(shape):
        device = extreme_device(free, milli, False)
        free[device] -= milli
        return 1 << device
    taken, left = 0, shape[SHAPE_COUNT]
    for g in range(free.shape[0]):
        if left > 0 and free[g] >= DEVICE_MILLI:
            free[g] -= milli
            taken |= 1 << g
            left -= 1
    return taken


@uncounted
def _next_event(count, times, pod_times, arriving):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """Return when the next pod leaves or comes, inf when none does."""
    at_s = times[LEAVE_S, 0] if count[RUNNING] else np.inf
    return min(at_s, pod_times[ARRIVAL, count[ARRIVED]]) if count[ARRIVED] < arriving else at_s


@uncounted
def _depart(count, clock, requested, gpu_free, owners, pods, times, worth, pod_facts, shapes):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """Let go the pods whose time has come; returns whether there were any."""
    before_that = count[DEPARTED]
    while count[RUNNING] and times[LEAVE_S, 0] <= clock[NOW]:
        pod = pods[LEAVING, 0]
        drop(times[LEAVE_S], pods[LEAVING], count[RUNNING])
        count[RUNNING] -= 1
        count[DEPARTED] += 1
        row, shape = pods[NODE, pod], shapes[pod_facts[SHAPE, pod]]
        for r in range(requested.shape[1]):
            requested[row, r] -= shape[REQUEST + r]
        if shape[SHAPE_MILLI] > 0:
            for g in range(gpu_free.shape[1]):
                if (pods[DEVICES, pod] >> g) & 1:
                    gpu_free[row, g] += shape[SHAPE_MILLI]
        if pod_facts[OWNER, pod] >= 0:
            owners[pod_facts[OWNER, pod], row] -= 1
        worth[STALE, row] = 1.0
    return count[DEPARTED] > before_that


@uncounted
def _describe(count, pods, pod_times, pod_facts, shapes, span, settings, queued, vector):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """Write the features of the pod that are not in `fill`, and the pods that follow."""
    pod = pods[READY_PODS, count[CURSOR]]
    vector[5] = shapes[pod_facts[SHAPE, pod], PICKY]
    vector[6], vector[7] = pod_times[EXPECTED, pod], pod_times[SURE, pod]
    vector[13] = queued[count[ARRIVED] - count[BOUND] - 1]
    for k in range(min(settings.lookahead, count[READY] - count[CURSOR] - 1)):
        shape = shapes[pod_facts[SHAPE, pods[READY_PODS, count[CURSOR] + 1 + k]]]
        start = _POD + k * _UPCOMING
        vector[start] = shape[REQUEST] / span[MEAN_CPU]
        vector[start + 1] = shape[REQUEST + 1] / span[MEAN_MEMORY]
        vector[start + 2] = shape[SHAPE_COUNT] * shape[SHAPE_MILLI] / 1000.0 / 8.0


@uncounted
def _remain(count, clock, pods, times, pod_times, pod_facts, shapes, lives, load, empty_s):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """Write what is expected of the running pods: `RunningPods.remaining`."""
    load[:] = 0
    empty_s[:] = 0.0
    for i in range(count[RUNNING]):
        pod = pods[LEAVING, i]
        shape = shapes[pod_facts[SHAPE, pod]]
        add_rest(
            load, empty_s, pods[NODE, pod], lives, pod_facts[KIND, pod], max(clock[NOW] - times[BOUND_S, pod], 0.0),
            pod_times[LIMIT_S, pod], shape[REQUEST], shape[REQUEST + 1], shape[SHAPE_COUNT] * shape[SHAPE_MILLI],
        )  # fmt: skip


@uncounted
def _measure_growth(allocatable, requested, gpu_free, node_facts, shape, tables, free, sums, bins, growth):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """Write by how much each node's fragments would grow with a pod of this shape."""
    n = len(growth)
    for i in range(n):
        free[0, i] = allocatable[i, 0] - requested[i, 0]
        free[1, i] = allocatable[i, 1] - requested[i, 1]
        free[2, i] = allocatable[i, 3] - requested[i, 3]
    nodes = NodeArrays(
        free[0, :n], free[0, :n], free[1, :n], free[2, :n], gpu_free, node_facts[GPU_COUNT, :n],
        node_facts[GPU_MODEL, :n], free[3, :n],
    )  # fmt: skip
    fragment_growth(nodes, shape, tables, sums[0], sums[1], bins, growth)
