"""The built-in rewards of `aaml.scheduling.rewards` in compiled episodes, to the bit."""

import numpy as np

from aaml.cluster.kernels import counted, uncounted
from aaml.cluster.metrics import measure_usage
from aaml.policies.fragmentation import fragment_amount
from aaml.scheduling.rewards import LARGEST_VARIANCE, WAITING_SCALE_S, balance_reward, compress_reward
from aaml.sim.compiled.rows import (
    ARRIVED,
    BOUND,
    CHOSEN,
    FRAGMENTS,
    GPU_COUNT,
    GPU_MODEL,
    MEMORY,
    NOW,
    STALE,
)

REWARDS = {
    "balance": 0, "balance-level": 1, "compress": 2, "fragmentation": 3, "waiting-time": 4, "seed-a": 5,
    "seed-a-corrected": 6,
}  # fmt: skip
_BALANCE, _BALANCE_LEVEL, _COMPRESS, _FRAGMENTATION, _WAITING, _SEED_A, _SEED_A_CORRECTED = range(7)
_BLOCK = 128  # as in numpy's sums
_LAST_S, _LAST_QUEUE, _LAST_ROW = MEMORY, MEMORY + 1, MEMORY  # what waiting-time and seed-a remember


@uncounted
def _block_sum(values, start, count):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
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


@counted
def pairwise_sum(values, count):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
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


@uncounted
def _fragments(allocatable, requested, gpu_free, node_facts, worth, tables, bins):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """Return the cluster's fragments, measuring only the nodes that have changed."""
    n = len(allocatable)
    for i in range(n):
        if worth[STALE, i] > 0.0:
            worth[STALE, i] = 0.0
            devices = node_facts[GPU_COUNT, i]
            if devices > 0:
                cpu = allocatable[i, 0] - requested[i, 0]
                worth[FRAGMENTS, i] = fragment_amount(
                    cpu, gpu_free[i, :devices], node_facts[GPU_MODEL, i], tables, bins
                )
    return pairwise_sum(worth[FRAGMENTS], n)


@uncounted
def forget(clock, worth):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """Begin a row's rewards anew."""
    worth[:] = 0.0
    worth[STALE] = 1.0
    clock[MEMORY], clock[MEMORY + 1] = np.nan, 0.0


@uncounted
def before(  # type: ignore[no-untyped-def]  # noqa: ANN201
    reward, count, clock, allocatable, requested, gpu_free, node_facts, capacity, worth, tables, bins,  # noqa: ANN001
):  # fmt: skip
    """Return what the reward has to know of a row's state before the pod is placed."""
    if tables is not None and reward == _FRAGMENTATION:
        return _fragments(allocatable, requested, gpu_free, node_facts, worth, tables, bins)
    if reward == _WAITING:
        queue, waited_s = count[ARRIVED] - count[BOUND] - 1, 0.0
        if clock[NOW] >= clock[_LAST_S]:  # never at the first decision, where it is NaN
            waited_s = 0.5 * (clock[_LAST_QUEUE] + queue + 1) * (clock[NOW] - clock[_LAST_S])
        clock[_LAST_S], clock[_LAST_QUEUE] = clock[NOW], queue
        return waited_s
    if reward == _SEED_A_CORRECTED:
        return np.sqrt(measure_usage(allocatable, requested, capacity, gpu_free, node_facts[GPU_COUNT])[4])
    return 0.0


@uncounted
def after(  # type: ignore[no-untyped-def]  # noqa: ANN201
    reward, clock, allocatable, requested, gpu_free, node_facts, capacity, worth, tables, bins, mask, row,  # noqa: ANN001
    cpu, memory, remembered,  # noqa: ANN001
):  # fmt: skip
    """Return the reward of the pod that asks for `cpu` and `memory` and is on `row` now; the mask is that of before."""
    if reward == _BALANCE:
        return balance_reward(allocatable, requested, capacity, row, cpu, memory)
    if reward == _COMPRESS:
        return compress_reward(allocatable, requested, mask, row)
    if tables is not None and reward == _FRAGMENTATION:
        return (remembered - _fragments(allocatable, requested, gpu_free, node_facts, worth, tables, bins)) / 1000.0
    if reward == _WAITING:
        return -remembered / WAITING_SCALE_S
    usage = measure_usage(allocatable, requested, capacity, gpu_free, node_facts[GPU_COUNT])
    if reward == _BALANCE_LEVEL:
        return -10.0 * np.sqrt(2.0 * (0.5 * (usage[4] + usage[5])))
    if reward == _SEED_A:
        worth[CHOSEN, row] += 1.0
        level = 1.0 - usage[4] / LARGEST_VARIANCE
        again = row == clock[_LAST_ROW]
        clock[_LAST_ROW] = row
        return (-level if again else level) / np.sqrt(worth[CHOSEN, row])
    if cpu == 0:
        return 0.0
    size = 0.0
    for i in range(len(capacity)):
        if capacity[i]:
            size += allocatable[i, 0]
    change = (remembered - np.sqrt(usage[4])) * usage[0] * (size / usage[0]) / cpu
    return min(max(change, -2.0), 2.0)
