"""Whole episodes of plain pods in compiled code: hundreds of times as fast as `SimCluster`, for searches over weights.

Pods ask for resources and a lifetime, nothing else; they are placed by a linear scorer. A pod that fits nowhere waits,
and after every departure the waiting ones are tried again in the scorer's own order (`aaml.scheduling.queue_sort`), or
by arrival. Metrics are those of `SimCluster`, but for a scorer without an order of its own where pods wait: there
kube-scheduler's queue tries them in another.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from aaml.cluster.kernels import compiled
from aaml.cluster.objects import NO_AFFINITY, NO_VOLUMES
from aaml.errors import UserError
from aaml.policies.heuristics.linear import life_score, plain_score, weigh
from aaml.scheduling.lifetimes import KnownLifetimes, LifetimeModel, LifetimeTable, mean_rest
from aaml.scheduling.observation import mean_size
from aaml.scheduling.queue_sort import QueueSort
from aaml.sim.cluster import SimCluster
from aaml.sim.compiled.departures import drop, push

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
    table: LifetimeTable  # what is expected of pods
    kind: IntArray  # [T], rows of the table; [0]: nothing is expected
    limit_s: FloatArray  # [T], ages beyond which they are known not to run
    rest_s: FloatArray  # [T], how long they are expected to run

    @classmethod
    def of(cls, cluster: SimCluster, expects: LifetimeModel | None = None) -> "Flow":
        """Take over a cluster at its beginning; `expects` says how long pods are expected to run.

        Raises `UserError` for pods that are not plain.
        """
        state, pods = cluster.state, cluster.workload.pods
        for pod in pods:
            plain = pod.affinity == NO_AFFINITY and pod.volumes == NO_VOLUMES and not pod.node_selector
            if not plain or pod.gpu.count or pod.gang or pod.spread or pod.host_ports or pod.priority or pod.gates:
                raise UserError(f"{pod.key}: compiled episodes take pods with requests and lifetimes only")
        return cls(
            state.allocatable.copy(), state.capacity.copy(),
            np.array([not node.unschedulable and not node.taints for node in state.nodes]),
            np.array([pod.created_s for pod in pods]),
            np.array([np.inf if pod.runs_s is None else pod.runs_s for pod in pods]),
            np.array([state.request_vector(pod) for pod in pods]), float(cluster.until_s),
            (expects or KnownLifetimes()).table,
            np.array([] if expects is None else [expects.row(pod) for pod in pods], dtype=np.int64),
            np.array([] if expects is None else [expects.limit_s(pod) for pod in pods]),
            np.array([0.0 if expects is None else expects.rest_s(pod) for pod in pods]),
        )  # fmt: skip

    def play(self, weights: FloatArray, sort: QueueSort = BY_ARRIVAL) -> dict[str, float]:
        """Run the episode under the linear scorer `weights` [terms, F]; returns `METRICS` and those of waiting."""
        mean_cpu, mean_memory = mean_size(self.allocatable, self.capacity)
        cpu, memory = self.request[:, 0] / mean_cpu, self.request[:, 1] / mean_memory
        since_s = self.arrival_s + sort.delays_s(cpu, memory, self.rest_s)
        means, final, waits, pending = _play(*self, weights, since_s)
        return {
            **dict(zip(METRICS, [*means.tolist(), *final.tolist()], strict=True)),
            "waiting_mean_s": float(waits.mean()),
            "waiting_p99_s": float(np.percentile(waits, 99)),
            "pending": float(pending),
        }


@compiled
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


@compiled
def _choose(allocatable, requested, allowed, request, total, rest_s, empty_s):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
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
            if len(empty_s):
                score += life_score(total, rest_s, empty_s[i], requested[i, 3])
            if row < 0 or score > best:
                best, row = score, i
    return row


@compiled
def _play(  # type: ignore[no-untyped-def]  # noqa: ANN202
    allocatable, capacity, allowed, arrival_s, lifetime_s, request, until_s, table, kind, limit_s, rest_s,  # noqa: ANN001
    weights, since_s,  # noqa: ANN001
):  # fmt: skip
    """Run an episode; `since_s` [T] is when each pod counts as having come, by which waiting ones are tried."""
    count = len(arrival_s)
    requested = np.zeros_like(allocatable)
    mean_cpu, mean_memory = mean_size(allocatable, capacity)
    place, waits, bound_s = np.full(count, -1), np.zeros(count), np.zeros(count)
    empty_s = np.zeros(len(allowed) if len(kind) else 0)  # in how long each node is expected to be empty
    times, leaving, running = np.empty(count), np.empty(count, dtype=np.int64), 0
    queue, waiting, arrived = np.empty(count, dtype=np.int64), 0, 0  # in the order in which they are tried
    totals, final, now = np.zeros(4), np.zeros(4), min(0.0, arrival_s[0])
    while True:
        next_s = times[0] if running else np.inf
        if arrived < count:
            next_s = min(next_s, arrival_s[arrived])
        if next_s > until_s or next_s == np.inf:
            break
        _measure(allocatable, requested, capacity, max(next_s, 0.0) - max(now, 0.0), totals)
        now, room, new = next_s, False, arrived
        while running and times[0] <= now:
            gone = leaving[0]
            drop(times, leaving, running)
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
        if len(kind) and waiting:
            empty_s[:] = 0.0
            for i in range(running):
                pod = leaving[i]
                rest = mean_rest(table, kind[pod], max(now - bound_s[pod], 0.0), limit_s[pod])
                empty_s[place[pod]] = max(empty_s[place[pod]], rest)
        kept = 0
        for position in range(waiting):
            pod, row = queue[position], -1
            if room or pod >= new:
                total = weigh(weights, request[pod, 0] / mean_cpu, request[pod, 1] / mean_memory, rest_s[pod])
                row = _choose(allocatable, requested, allowed, request[pod], total, rest_s[pod], empty_s)
            if row < 0:
                queue[kept] = pod
                kept += 1
                continue
            requested[row] += request[pod]
            place[pod], waits[pod], bound_s[pod] = row, now - arrival_s[pod], now
            push(times, leaving, running, now + lifetime_s[pod], pod)
            running += 1
            if len(kind):
                empty_s[row] = max(empty_s[row], rest_s[pod])
        waiting = kept
    end = until_s if until_s < np.inf else now
    _measure(allocatable, requested, capacity, max(end, 0.0) - max(now, 0.0), totals)
    _measure(allocatable, requested, capacity, 1.0, final)
    totals /= max(end, 1e-9)
    for position in range(waiting):
        waits[queue[position]] = end - arrival_s[queue[position]]
    return totals, final, waits, waiting
