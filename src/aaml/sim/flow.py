"""Whole episodes of plain pods in compiled code: hundreds of times as fast as `SimCluster`, for searches over weights.

Pods ask for resources and a lifetime, nothing else; they are placed by a linear scorer. A pod that fits nowhere waits,
and after every departure the waiting ones are tried again in the scorer's own order (`aaml.scheduling.queue_sort`), or
by arrival. Metrics are those of `SimCluster`, but for a scorer without an order of its own where pods wait: there
kube-scheduler's queue tries them in another.
"""

from typing import NamedTuple

import numba
import numpy as np
import numpy.typing as npt

from aaml.cluster.objects import NO_AFFINITY, NO_VOLUMES
from aaml.errors import UserError
from aaml.scheduling.heuristics.linear import plain_score, weigh
from aaml.scheduling.observation import mean_size
from aaml.scheduling.queue_sort import QueueSort
from aaml.sim.cluster import SimCluster

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BY_ARRIVAL = QueueSort()
_USE = ("variance", "cpu_variance", "memory_variance", "empty_fraction")
METRICS = (*(f"mean_{name}" for name in _USE), *(f"final_{name}" for name in _USE))


class Flow(NamedTuple):
    """An episode of plain pods: N nodes, T pods in order of arrival, R resources. `play` runs it as often as asked."""

    allocatable: IntArray  # [N, R]
    capacity: npt.NDArray[np.bool_]  # [N] rows that metrics count
    allowed: npt.NDArray[np.bool_]  # [N] rows that take pods
    arrival_s: FloatArray  # [T]
    lifetime_s: FloatArray  # [T], inf: stays
    request: IntArray  # [T, R]
    until_s: float  # inf: until nothing happens any more

    @classmethod
    def of(cls, cluster: SimCluster) -> "Flow":
        """Take over a cluster at its beginning. Raises `UserError` for pods that are not plain."""
        state, pods = cluster.state, cluster.workload.pods
        for pod in pods:
            plain = pod.affinity == NO_AFFINITY and pod.volumes == NO_VOLUMES and not pod.node_selector
            if not plain or pod.gpu.count or pod.gang or pod.spread or pod.host_ports or pod.priority or pod.gates:
                raise UserError(f"{pod.key}: compiled episodes take pods with requests and lifetimes only")
        return cls(
            state.allocatable.copy(), state.capacity.copy(),
            np.array([not node.unschedulable and not node.taints for node in state.nodes]),
            np.array([pod.created_s for pod in pods]),
            np.array([np.inf if pod.lifetime_s is None else pod.lifetime_s for pod in pods]),
            np.array([state.request_vector(pod) for pod in pods]), float(cluster.until_s),
        )  # fmt: skip

    def play(self, weights: FloatArray, sort: QueueSort = BY_ARRIVAL) -> dict[str, float]:
        """Run the episode under the linear scorer `weights` [terms, F]; returns `METRICS` and those of waiting."""
        mean_cpu, mean_memory = mean_size(self.allocatable, self.capacity)
        since_s = self.arrival_s + sort.delays_s(self.request[:, 0] / mean_cpu, self.request[:, 1] / mean_memory)
        means, final, waits, pending = _play(*self, weights, since_s)
        return {
            **dict(zip(METRICS, [*means.tolist(), *final.tolist()], strict=True)),
            "waiting_mean_s": float(waits.mean()),
            "waiting_p99_s": float(np.percentile(waits, 99)),
            "pending": float(pending),
        }


@numba.njit(cache=True, nogil=True)
def _push(times, pods, count, at_s, pod):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """Add to a binary heap of `count` departures."""
    place = count
    while place > 0 and times[(place - 1) // 2] > at_s:
        parent = (place - 1) // 2
        times[place], pods[place] = times[parent], pods[parent]
        place = parent
    times[place], pods[place] = at_s, pod


@numba.njit(cache=True, nogil=True)
def _drop(times, pods, count):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """Take the first of a binary heap of `count` departures away."""
    last_s, last, place = times[count - 1], pods[count - 1], 0
    while 2 * place + 1 < count - 1:
        child = 2 * place + 1
        if child + 1 < count - 1 and times[child + 1] < times[child]:
            child += 1
        if times[child] >= last_s:
            break
        times[place], pods[place] = times[child], pods[child]
        place = child
    times[place], pods[place] = last_s, last


@numba.njit(cache=True, nogil=True)
def _measure(allocatable, requested, capacity, weight, totals):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """Add `weight` times the variance of use (mean, CPU's, memory's) and the share of empty nodes."""
    n, empty = 0, 0.0
    mean, square = np.zeros(2), np.zeros(2)
    for i in range(len(capacity)):
        if capacity[i]:
            n += 1
            empty += requested[i, 3] == 0
            for r in range(2):
                mean[r] += requested[i, r] / max(allocatable[i, r], 1)
    n = max(n, 1)
    mean /= n
    for i in range(len(capacity)):
        if capacity[i]:
            for r in range(2):
                square[r] += (requested[i, r] / max(allocatable[i, r], 1) - mean[r]) ** 2
    totals[0] += weight * (square[0] + square[1]) / (2 * n)
    totals[1] += weight * square[0] / n
    totals[2] += weight * square[1] / n
    totals[3] += weight * empty / n


@numba.njit(cache=True, nogil=True)
def _choose(allocatable, requested, allowed, request, total):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """Return the feasible row with the largest score, the first of equals; -1 when there is none."""
    best, row = -np.inf, -1
    for i in range(len(allowed)):
        fits = allowed[i]
        for r in range(len(request)):
            fits &= requested[i, r] + request[r] <= allocatable[i, r]
        if fits:
            cpu = (requested[i, 0] + request[0]) / max(allocatable[i, 0], 1)
            memory = (requested[i, 1] + request[1]) / max(allocatable[i, 1], 1)
            score = plain_score(total, cpu, memory, requested[i, 3])
            if row < 0 or score > best:
                best, row = score, i
    return row


@numba.njit(cache=True, nogil=True)
def _play(  # type: ignore[no-untyped-def]  # noqa: ANN202
    allocatable, capacity, allowed, arrival_s, lifetime_s, request, until_s, weights, since_s,  # noqa: ANN001
):  # fmt: skip
    """Run an episode; `since_s` [T] is when each pod counts as having come, by which waiting ones are tried."""
    count = len(arrival_s)
    requested = np.zeros_like(allocatable)
    mean_cpu, mean_memory = mean_size(allocatable, capacity)
    place, waits = np.full(count, -1), np.zeros(count)
    times, leaving, running = np.empty(count), np.empty(count, dtype=np.int64), 0
    queue, waiting, arrived = np.empty(count, dtype=np.int64), 0, 0  # in the order in which they are tried
    totals, final, now = np.zeros(4), np.zeros(4), min(0.0, arrival_s[0])
    while True:
        next_s = times[0] if running else np.inf
        if arrived < count:
            next_s = min(next_s, arrival_s[arrived])
        if next_s > until_s or next_s == np.inf:
            break
        _measure(allocatable, requested, capacity, next_s - now, totals)
        now, room, new = next_s, False, arrived
        while running and times[0] <= now:
            gone = leaving[0]
            _drop(times, leaving, running)
            running -= 1
            requested[place[gone]] -= request[gone]
            room = True  # every waiting pod is tried, else only those that come now
        while arrived < count and arrival_s[arrived] <= now:
            position = waiting
            while position > 0 and since_s[queue[position - 1]] > since_s[arrived]:
                queue[position] = queue[position - 1]
                position -= 1
            queue[position] = arrived
            waiting += 1
            arrived += 1
        kept = 0
        for position in range(waiting):
            pod, row = queue[position], -1
            if room or pod >= new:
                total = weigh(weights, request[pod, 0] / mean_cpu, request[pod, 1] / mean_memory)
                row = _choose(allocatable, requested, allowed, request[pod], total)
            if row < 0:
                queue[kept] = pod
                kept += 1
                continue
            requested[row] += request[pod]
            place[pod], waits[pod] = row, now - arrival_s[pod]
            if lifetime_s[pod] < np.inf:
                _push(times, leaving, running, now + lifetime_s[pod], pod)
                running += 1
        waiting = kept
    end = until_s if until_s < np.inf else now
    _measure(allocatable, requested, capacity, end - now, totals)
    _measure(allocatable, requested, capacity, 1.0, final)
    totals /= max(end - min(0.0, arrival_s[0]), 1e-9)
    for position in range(waiting):
        waits[queue[position]] = end - arrival_s[queue[position]]
    return totals, final, waits, waiting
