"""How much of a node's free GPU capacity the expected pods cannot use: the fragment amount of Weng et al.

The paper is "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent", USENIX ATC
2023. The expected pods are the *typical* pods of a workload, each with its share p_k of all pods. The fragment amount
of a node is F(n) = sum of p_k w_k, where w_k is what pod k would leave as a fragment if it came next. That is all the
free GPU capacity R where the pod does not fit or asks for no GPU, and otherwise the devices that are too small for it.

The p_k are counts over a total C, so C F(n) is a whole number: C R minus the *usable* amount. The kernels count in
these whole numbers, with a table of typical pods by device model, demand per device, devices at hand and CPU class.
Only `fragment_amount` adds up floats, in the order of the published program, because their noise around zero decides
ties there.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from aaml.cluster.gpu import DEVICE_MILLI, GPU_SPEC_LABEL
from aaml.cluster.kernels import columns, compiled
from aaml.cluster.objects import Pod
from aaml.cluster.quantity import CPU

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

COVERAGE = Fraction(95, 100)

_Q1, _Q2, _Q3, _Q4, _XL, _XR, _NA = range(7)


@dataclass(frozen=True, slots=True)
class TypicalPod:
    """A kind of pod and how many of its kind the workload has."""

    cpu_milli: int
    gpu_milli: int
    gpu_count: int
    models: frozenset[str]
    frequency: int


@dataclass(frozen=True, slots=True)
class TypicalPods:
    """The kinds of pods that stand for a workload of `population` pods, the most frequent ones first."""

    kinds: tuple[TypicalPod, ...]
    population: int


def typical_pods(pods: Sequence[Pod], coverage: Fraction = COVERAGE) -> TypicalPods:
    """Return the most frequent kinds of pods that together make up `coverage` of all pods.

    A kind is CPU, GPU and models; memory does not count. Models count as the trace spells them: two spellings of one
    set are two kinds, as in the published program.
    """
    kinds: Counter[tuple[int, int, int, str]] = Counter()
    models: dict[str, frozenset[str]] = {}
    for pod in pods:
        spec = pod.labels.get(GPU_SPEC_LABEL) or "|".join(sorted(pod.gpu.models))
        models[spec] = pod.gpu.models
        kinds[pod.request(CPU), pod.gpu.milli, pod.gpu.count, spec] += 1
    chosen: list[TypicalPod] = []
    covered = 0
    for (cpu, milli, count, spec), frequency in sorted(
        kinds.items(), key=lambda kind: (kind[1], kind[0]), reverse=True
    ):
        chosen.append(TypicalPod(cpu, milli, count, models[spec], frequency))
        covered += frequency
        if covered >= coverage * len(pods):
            break
    return TypicalPods(tuple(chosen), len(pods))


ROW_COLUMNS = ("cpu_milli", "gpu_milli", "gpu_count", "models")
"""What `FragmentTables.rows` says of a typical pod; models as bits: bit i is index i of `gpu_models`."""
ROW = columns(ROW_COLUMNS)


class FragmentTables(NamedTuple):
    """Typical pods as arrays for the kernels; K pods, P distinct CPU demands, M distinct demands per device.

    =========  ======================  ==========================================================================
    rows       int64 [K, 4]            a column each of `ROW_COLUMNS`
    weight     float64 [K]             p_k
    total      int                     C, the pods that the typical ones stand for
    cpu        int64 [P]               CPU demands, ascending; a node's CPU class is how many it can meet
    milli      int64 [M]               demands per device, ascending
    fitting    int64 [models, M, D, P + 1]  typical pods of that demand that fit with so many devices and CPU class
    demand     int64 [models, M, D, P + 1]  what these ask for together, in thousandths of a GPU
    asked      int                     what all typical pods ask for
    =========  ======================  ==========================================================================
    """

    rows: IntArray
    weight: FloatArray
    total: int
    cpu: IntArray
    milli: IntArray
    fitting: IntArray
    demand: IntArray
    asked: int


def model_mask(models: frozenset[str], gpu_models: Sequence[str]) -> int:
    """Return the models as bits by their index in `gpu_models`, and all bits (-1) where any model will do."""
    if not models:
        return -1
    return sum(1 << index for index, name in enumerate(gpu_models) if name in models)


def fragment_tables(typical: TypicalPods, gpu_models: Sequence[str], devices: int) -> FragmentTables:
    """Lay out typical pods for nodes with up to `devices` GPUs whose models are indices into `gpu_models`."""
    kinds = typical.kinds
    rows = np.array(
        [(pod.cpu_milli, pod.gpu_milli, pod.gpu_count, model_mask(pod.models, gpu_models)) for pod in kinds],
        dtype=np.int64,
    ).reshape(len(kinds), len(ROW_COLUMNS))
    frequency = np.array([pod.frequency for pod in kinds], dtype=np.int64)
    total = int(frequency.sum())
    cpu = np.unique(rows[:, ROW.cpu_milli])
    milli = np.unique(rows[rows[:, ROW.gpu_milli] > 0, ROW.gpu_milli])
    fitting = np.zeros((len(gpu_models), len(milli), devices + 1, len(cpu) + 1), dtype=np.int64)
    demand = np.zeros_like(fitting)
    for (cpu_need, milli_need, count, models), times in zip(rows.tolist(), frequency, strict=True):
        if milli_need == 0:
            continue
        column = int(np.searchsorted(milli, milli_need))
        enough = int(np.searchsorted(cpu, cpu_need)) + 1
        for model in range(len(gpu_models)):
            if models >> model & 1:
                fitting[model, column, count:, enough:] += times
                demand[model, column, count:, enough:] += times * count * milli_need
    population = max(typical.population, total, 1)
    # Two divisions, as the published program renormalises: the last bit of p_k decides ties.
    weight = (frequency / population) / (total / population) if total else frequency / population
    asked = int((frequency * rows[:, ROW.gpu_milli] * rows[:, ROW.gpu_count]).sum())
    return FragmentTables(rows, weight, max(total, 1), cpu, milli, fitting, demand, max(asked, 1))


@compiled
def cpu_class(cpu: int, tables: FragmentTables) -> int:
    """Return how many of the distinct CPU demands fit into `cpu`."""
    low, high = 0, tables.cpu.shape[0]
    while low < high:
        middle = (low + high) >> 1
        if tables.cpu[middle] <= cpu:
            low = middle + 1
        else:
            high = middle
    return low


@compiled
def measure(gpu: IntArray, tables: FragmentTables, sums: IntArray, counts: IntArray) -> None:
    """Fill `sums` and `counts` [M] from a node's devices `gpu` [G].

    They are the capacity and the number of the devices that can take each demand.
    """
    for column in range(tables.milli.shape[0]):
        need = tables.milli[column]
        amount, count = 0, 0
        for device in range(gpu.shape[0]):
            free = gpu[device]
            if free >= need:
                amount += free
                count += 1
        sums[column] = amount
        counts[column] = count


@compiled
def usable(model: int, cls: int, tables: FragmentTables, sums: IntArray, counts: IntArray) -> int:
    """Return C times the capacity that typical pods can use (C R - C F) of a node that has been measured."""
    amount = 0
    for column in range(tables.milli.shape[0]):
        amount += sums[column] * tables.fitting[model, column, counts[column], cls]
    return amount


@compiled
def usable_share(
    model: int, cls: int, tables: FragmentTables, sums: IntArray, counts: IntArray, free: int, taken: int
) -> int:
    """Return `usable` after one device goes from `free` to `free - taken`."""
    amount = 0
    left = free - taken
    for column in range(tables.milli.shape[0]):
        need = tables.milli[column]
        total, count = sums[column], counts[column]
        if free >= need:
            if left >= need:
                total -= taken
            else:
                total -= free
                count -= 1
        amount += total * tables.fitting[model, column, count, cls]
    return amount


@compiled
def usable_whole(model: int, cls: int, tables: FragmentTables, sums: IntArray, counts: IntArray, devices: int) -> int:
    """Return `usable` after so many fully free devices are taken."""
    amount = 0
    for column in range(tables.milli.shape[0]):
        total = sums[column] - DEVICE_MILLI * devices
        amount += total * tables.fitting[model, column, counts[column] - devices, cls]
    return amount


@compiled
def placeable(model: int, cls: int, tables: FragmentTables, counts: IntArray) -> int:
    """Return how much GPU, in thousandths, those typical pods ask for of which one fits on a measured node."""
    amount = 0
    for column in range(tables.milli.shape[0]):
        amount += tables.demand[model, column, counts[column], cls]
    return amount


@compiled
def placeable_share(model: int, cls: int, tables: FragmentTables, counts: IntArray, free: int, taken: int) -> int:
    """Return `placeable` after one device goes from `free` to `free - taken`."""
    amount = 0
    for column in range(tables.milli.shape[0]):
        count = counts[column]
        if free >= tables.milli[column] > free - taken:
            count -= 1
        amount += tables.demand[model, column, count, cls]
    return amount


@compiled
def placeable_whole(model: int, cls: int, tables: FragmentTables, counts: IntArray, devices: int) -> int:
    """Return `placeable` after so many fully free devices are taken."""
    amount = 0
    for column in range(tables.milli.shape[0]):
        amount += tables.demand[model, column, counts[column] - devices, cls]
    return amount


@compiled
def fragment_bins(cpu: int, gpu: IntArray, model: int, tables: FragmentTables, bins: FloatArray) -> None:
    """Fill `bins` [7] with the fragment amounts by case: Q1, Q2, Q3 (which is no fragment), Q4, XL, XR, NA.

    Floats are added in the order of the typical pods.
    """
    bins[:] = 0.0
    total = 0
    for device in range(gpu.shape[0]):
        total += gpu[device]
    for row in range(tables.rows.shape[0]):
        weight = tables.weight[row]
        need_cpu, need = tables.rows[row, ROW.cpu_milli], tables.rows[row, ROW.gpu_milli]
        count = tables.rows[row, ROW.gpu_count]
        if need == 0:
            bins[_XL if cpu >= need_cpu else _XR] += weight * total
            continue
        if (tables.rows[row, ROW.models] >> model) & 1 == 0:
            bins[_NA] += weight * total
            continue
        fitting, below = 0, 0
        for device in range(gpu.shape[0]):
            if gpu[device] >= need:
                fitting += 1
            else:
                below += gpu[device]
        if fitting < count:
            bins[_Q2 if cpu >= need_cpu else _Q1] += weight * total
        elif cpu < need_cpu:
            bins[_Q4] += weight * total
        else:
            bins[_Q2] += weight * below
            bins[_Q3] += weight * (total - below)


@compiled
def fragment_amount(cpu: int, gpu: IntArray, model: int, tables: FragmentTables, bins: FloatArray) -> float:
    """Return F(n) in thousandths of a GPU, added up in the published order; this overwrites `bins` [7]."""
    fragment_bins(cpu, gpu, model, tables, bins)
    return bins[_Q1] + bins[_Q2] + bins[_Q4] + bins[_XL] + bins[_XR] + bins[_NA]
