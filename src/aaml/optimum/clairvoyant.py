"""What somebody would pay who knew every pod beforehand and got nodes at once: a packing of intervals, and the bound.

Each pod runs from its arrival for its lifetime, and never moves. A node is paid from the arrival of its first pod until
the last has left. Finding the cheapest packing is hard (it holds bin packing); this one is greedy, tried with several
weights, each node then provisioned as the cheapest type with room for what it held at most. So it is a bill that could
be reached without delays, not a bound; `relaxation` has one.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from aaml.cluster.gpu import DEVICE_MILLI, choose_devices, devices_fit
from aaml.cluster.objects import NO_GPU, GpuRequest, Pod
from aaml.nodes.catalogue import Catalogue, all_columns
from aaml.optimum.relaxation import end_s

_HOUR_S = 3600.0
_WEIGHTS = (0.0, 0.25, 0.5, 0.75, 1.0)
FloatArray = npt.NDArray[np.float64]


@dataclass(slots=True, eq=False)
class RunningPod:
    """A pod: what it asks for [R], and from when until when it runs. `gpus` are the devices that it has got."""

    request: npt.NDArray[np.int64]
    from_s: float
    until_s: float
    gpu: GpuRequest = NO_GPU
    gpus: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Packing:
    """Which pods share a node, by their places in the order of arrival, and what it costs in dollars."""

    groups: tuple[tuple[int, ...], ...]
    dollars: float


def intervals_of(pods: Iterable[Pod], catalogue: Catalogue, until_s: float) -> list[RunningPod]:
    """Return when pods run, in the order of their arrival, up to `until_s`.

    Pods that fit no type, and those that come after the end, are left out.
    """
    return [
        RunningPod(catalogue.request(pod), max(pod.created_s, 0.0), end_s(pod, until_s), pod.gpu)
        for pod in sorted(pods, key=lambda pod: pod.created_s)
        if max(pod.created_s, 0.0) < end_s(pod, until_s) and catalogue.fits(pod).any()
    ]


def offline_packing(intervals: Sequence[RunningPod], catalogue: Catalogue) -> Packing:
    """Return the best packing that the heuristic finds."""
    return min((_packed(intervals, catalogue, weight) for weight in _WEIGHTS), key=lambda found: found.dollars)


def offline_bill(pods: Iterable[Pod], catalogue: Catalogue, until_s: float) -> float:
    """Return the dollars that the best packing found costs up to `until_s`. Pods that fit no type are left out."""
    return offline_packing(intervals_of(pods, catalogue, until_s), catalogue).dollars


def _packed(intervals: Sequence[RunningPod], catalogue: Catalogue, weight: float) -> Packing:
    """Put each pod where it adds the least to the bill, and return the dollars.

    On a node that is there it adds the time by which it outlasts the others. A new node counts with the share of it
    that the pod takes, to the power of `weight`: the higher, the larger are the nodes that are opened.
    """
    rows, columns = len(intervals), len(catalogue.resources)
    free, peak, used = (np.zeros((rows, columns), dtype=np.int64) for _ in range(3))
    price, begin_s, end_s = np.zeros(rows), np.zeros(rows), np.full(rows, -np.inf)
    running: list[list[RunningPod]] = []
    gpus, opened = np.zeros(rows, dtype=np.int64), np.zeros(rows, dtype=np.int64)  # devices, and those ever used
    gpu_free = np.zeros((rows, int(catalogue.gpu_count.max())), dtype=np.int64)
    groups: list[list[int]] = []
    for place, pod in enumerate(intervals):
        count = len(running)
        for row in np.flatnonzero(end_s[:count] > pod.from_s):
            for gone in [each for each in running[row] if each.until_s <= pod.from_s]:
                running[row].remove(gone)
                free[row] += gone.request
                used[row] -= gone.request
                gpu_free[row, list(gone.gpus)] += gone.gpu.milli
        there = (end_s[:count] > pod.from_s) & all_columns(free[:count] >= pod.request)
        fits = all_columns(catalogue.room >= pod.request)
        share = (pod.request / np.maximum(catalogue.room, 1)).max(axis=1)
        if pod.gpu.total_milli:
            there &= devices_fit(gpu_free[:count], gpus[:count], pod.gpu)
            fits &= catalogue.gpu_count >= pod.gpu.count
            share = np.maximum(share, pod.gpu.total_milli / (DEVICE_MILLI * np.maximum(catalogue.gpu_count, 1)))
        added = np.where(there, price[:count] * np.maximum(pod.until_s - end_s[:count], 0.0), np.inf)
        new = np.where(fits, catalogue.prices * (pod.until_s - pod.from_s) * share**weight, np.inf)
        best = int(added.argmin()) if count else -1
        if best < 0 or added[best] > new.min():
            best, kind = count, int(new.argmin())
            running.append([])
            groups.append([])
            free[best], price[best], begin_s[best] = catalogue.room[kind], catalogue.prices[kind], pod.from_s
            gpus[best] = catalogue.gpu_count[kind]
            gpu_free[best, : gpus[best]] = DEVICE_MILLI
        if pod.gpu.total_milli:
            pod.gpus = choose_devices(gpu_free[best], pod.gpu)
            gpu_free[best, list(pod.gpus)] -= pod.gpu.milli
            opened[best] = max(opened[best], max(pod.gpus) + 1)
        running[best].append(pod)
        groups[best].append(place)
        free[best] -= pod.request
        used[best] += pod.request
        peak[best] = np.maximum(peak[best], used[best])
        end_s[best] = max(end_s[best], pod.until_s)
    count = len(running)
    cheapest = [
        catalogue.prices[all_columns(catalogue.room >= most) & (catalogue.gpu_count >= devices)].min()
        for most, devices in zip(peak[:count], opened[:count], strict=True)
    ]
    dollars = float((np.array(cheapest) * (end_s[:count] - begin_s[:count])).sum()) / _HOUR_S
    return Packing(tuple(map(tuple, groups)), dollars)
