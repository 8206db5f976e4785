"""The built-in rewards of `aaml.scheduling.rewards` in compiled episodes, to the bit."""

import numpy as np

from aaml.cluster.kernels import inlined, with_refcount, without_refcount
from aaml.cluster.metrics import measure_usage
from aaml.cluster.state import CPU_COLUMN, MEMORY_COLUMN
from aaml.episodes.rows import WAITS, BoolArray, Env, FloatArray, Nodes, Work, waiting
from aaml.episodes.supply_rows import Owned, run_meter
from aaml.nodes import meter
from aaml.nodes.rows import POD, POD_TIME, SHAPE_REQUEST
from aaml.policies.fragmentation import FragmentTables, fragment_amount
from aaml.scheduling.rewards import DOLLAR_SCALE, LARGEST_VARIANCE, WAITING_SCALE_S, balance_reward, compress_reward

REWARDS = {
    "balance": 0, "balance-level": 1, "compress": 2, "fragmentation": 3, "waiting-time": 4, "seed-a": 5,
    "seed-a-corrected": 6, "bill": 7,
}  # fmt: skip
_BALANCE, _BALANCE_LEVEL, _COMPRESS, _FRAGMENTATION, _WAITING, _SEED_A, _SEED_A_CORRECTED, _BILL = range(8)
_BLOCK = 128  # as in numpy's sums


@without_refcount
def _block_sum(values: FloatArray, start: int, count: int) -> float:
    if count < 8:
        total = 0.0
        for i in range(start, start + count):
            total += values[i]
        return total
    a, b, c, d = values[start], values[start + 1], values[start + 2], values[start + 3]
    e, f, g, h = values[start + 4], values[start + 5], values[start + 6], values[start + 7]
    i = 8
    while i < count - count % 8:
        at = start + i
        a, b, c, d = a + values[at], b + values[at + 1], c + values[at + 2], d + values[at + 3]
        e, f, g, h = e + values[at + 4], f + values[at + 5], g + values[at + 6], h + values[at + 7]
        i += 8
    total = ((a + b) + (c + d)) + ((e + f) + (g + h))
    while i < count:
        total += values[start + i]
        i += 1
    return total


@with_refcount
def pairwise_sum(values: FloatArray, count: int) -> float:
    """Return the sum of the first `count` values, added up in the order in which `numpy.sum` does it.

    That halves what is longer than a block, again and again. No recursion: numba does not cache it safely.
    """
    if count <= _BLOCK:
        return _block_sum(values, 0, count)
    starts, counts = np.empty(64, dtype=np.int64), np.empty(64, dtype=np.int64)
    totals, done = np.empty(64), np.zeros(64, dtype=np.int64)  # the left halves' sums, halves that are summed up
    starts[0], counts[0], depth, total = 0, count, 0, 0.0
    while depth >= 0:
        start, size = starts[depth], counts[depth]
        half = size // 2
        half -= half % 8
        if size <= _BLOCK:
            total = _block_sum(values, start, size)
            depth -= 1
        elif done[depth] == 0:
            done[depth] = 1
            depth += 1
            starts[depth], counts[depth], done[depth] = start, half, 0
        elif done[depth] == 1:
            totals[depth], done[depth] = total, 2
            depth += 1
            starts[depth], counts[depth], done[depth] = start + half, size - half, 0
        else:
            total = totals[depth] + total
            depth -= 1
    return total


@inlined
def _fragments(nodes: Nodes, tables: FragmentTables, bins: FloatArray) -> float:
    """Return the cluster's fragments, measuring only the nodes that have changed."""
    n = len(nodes.allocatable)
    for i in range(n):
        if nodes.stale[i] > 0.0:
            nodes.stale[i] = 0.0
            devices = nodes.gpu_count[i]
            if devices > 0:
                cpu = nodes.allocatable[i, CPU_COLUMN] - nodes.requested[i, CPU_COLUMN]
                nodes.fragments[i] = fragment_amount(cpu, nodes.gpu_free[i, :devices], nodes.gpu_model[i], tables, bins)
    return pairwise_sum(nodes.fragments, n)


@inlined
def _usage(nodes: Nodes) -> tuple[int, float, float]:
    """Return how many nodes count, and the variances of their use of CPU and memory."""
    count, _, _, _, cpu_variance, memory_variance, _, _, _, _ = measure_usage(
        nodes.allocatable, nodes.requested, nodes.capacity, nodes.gpu_free, nodes.gpu_count
    )
    return count, cpu_variance, memory_variance


@inlined
def forget(env: Env) -> None:
    """Begin an environment's rewards anew."""
    env.nodes.fragments[:] = 0.0
    env.nodes.stale[:] = 1.0
    env.nodes.chosen[:] = 0.0
    env.at.last_s, env.at.last_queue, env.at.last_row, env.at.last_paid = np.nan, 0.0, np.nan, np.nan


@inlined
def _paid(env: Env, own: Owned, waits_s: FloatArray) -> float:
    """Return the dollars that an environment has cost so far: `NodeSupply.paid`; `waits_s` [T] is overwritten."""
    now_s, terms, count = env.at.now_s, own.seen.terms, own.seen.at.firsts
    run_meter(own, now_s)
    for i in range(count):
        waits_s[i] = env.queue.waited_s[i]
    for pod in range(env.at.arrived):
        if env.pods.node[pod] == WAITS:
            first, since_s = own.seen.pods[POD.first, pod], own.seen.pod_times[POD_TIME.created_s, pod]
            if first >= 0:
                waits_s[first] = waits_s[first] + now_s - since_s
            else:
                waits_s[count] = now_s - since_s
                count += 1
    for i in range(count):
        waits_s[i] = meter.beyond_target_s(terms, waits_s[i])
    return own.seen.at.dollars + meter.charge(terms, pairwise_sum(waits_s, count), env.at.evicted)


@inlined
def before(reward: int, env: Env, owned: Owned | None, tables: FragmentTables | None, work: Work) -> float:
    """Return what the reward has to know of an environment before the pod is placed."""
    at = env.at
    if tables is not None and reward == _FRAGMENTATION:
        return _fragments(env.nodes, tables, work.bins)
    if owned is not None and reward == _BILL:
        paid, last = _paid(env, owned, work.keys[0]), at.last_paid
        at.last_paid = paid
        return 0.0 if np.isnan(last) else max(paid - last, 0.0)
    if reward == _WAITING:
        queue, waited_s = waiting(at) - 1, 0.0
        if at.now_s >= at.last_s:  # never at the first decision, where it is NaN
            waited_s = 0.5 * (at.last_queue + queue + 1) * (at.now_s - at.last_s)
        at.last_s, at.last_queue = at.now_s, queue
        return waited_s
    if reward == _SEED_A_CORRECTED:
        return np.sqrt(_usage(env.nodes)[1])
    return 0.0


@inlined
def after(  # noqa: C901, PLR0911
    reward: int, env: Env, tables: FragmentTables | None, bins: FloatArray, mask: BoolArray, pod: int, row: int,
    remembered: float,
) -> float:  # fmt: skip
    """Return the reward of a pod that is on `row` now; the mask is that before its placement."""
    at, nodes, shape = env.at, env.nodes, env.shapes[env.pods.shape[pod]]
    cpu, memory = shape[SHAPE_REQUEST + CPU_COLUMN], shape[SHAPE_REQUEST + MEMORY_COLUMN]
    if reward == _BALANCE:
        return balance_reward(nodes.allocatable, nodes.requested, nodes.capacity, row, cpu, memory)
    if reward == _COMPRESS:
        return compress_reward(nodes.allocatable, nodes.requested, mask, row)
    if tables is not None and reward == _FRAGMENTATION:
        return (remembered - _fragments(nodes, tables, bins)) / 1000.0
    if reward == _WAITING:
        return -remembered / WAITING_SCALE_S
    if reward == _BILL:
        return -DOLLAR_SCALE * remembered
    count, cpu_variance, memory_variance = _usage(nodes)
    if reward == _BALANCE_LEVEL:
        return -10.0 * np.sqrt(2.0 * (0.5 * (cpu_variance + memory_variance)))
    if reward == _SEED_A:
        nodes.chosen[row] += 1.0
        level = 1.0 - cpu_variance / LARGEST_VARIANCE
        again = row == at.last_row
        at.last_row = row
        return (-level if again else level) / np.sqrt(nodes.chosen[row])
    if cpu == 0:
        return 0.0
    size = 0.0
    for i in range(len(nodes.capacity)):
        if nodes.capacity[i]:
            size += nodes.allocatable[i, CPU_COLUMN]
    change = (remembered - np.sqrt(cpu_variance)) * count * (size / count) / cpu
    return min(max(change, -2.0), 2.0)
