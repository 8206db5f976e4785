"""What the typical pods make scarce on a cluster: models of devices, and what is left of a device that is shared."""

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from aaml.cluster.gpu import DEVICE_MILLI
from aaml.cluster.kernels import columns, compiled
from aaml.policies.fragmentation import ROW, FragmentTables

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
_EXACT = 1e-9
_MOST_PATTERNS = 1000  # more than any workload needed: the prices are near enough then


MODEL = columns(("named", "served", "load"))


class Scarcity(NamedTuple):
    """What the typical pods make scarce.

    ======  ====================  ==================================================================================
    models  float64 [models, 3]   `MODEL`: shares of the typical GPU demand that name the model and that it may
                                  serve; how much demand falls on each of its devices, were pods spread evenly over
                                  all that they may take: 1 is the mean over all devices
    rests   float64 [1001]        what so many free thousandths of a device are worth to typical shares, in devices
    ======  ====================  ==================================================================================
    """

    models: FloatArray
    rests: FloatArray


def scarcity(tables: FragmentTables, devices: npt.ArrayLike) -> Scarcity:
    """Measure what is scarce on a cluster with so many `devices` [models] of each GPU model."""
    return Scarcity(model_demand(tables, devices), rest_values(tables))


def model_demand(tables: FragmentTables, devices: npt.ArrayLike) -> FloatArray:
    """Return the first table of `Scarcity`, float64 [models, 3]."""
    count, rows = np.asarray(devices, dtype=np.float64), tables.rows
    demand = tables.weight * rows[:, ROW.gpu_milli] * rows[:, ROW.gpu_count]
    serves = (rows[:, ROW.models, None] >> np.arange(len(count)) & 1).astype(np.float64)  # [K, models]
    each = demand / np.maximum(serves @ count, 1.0)
    named = demand * (rows[:, ROW.models] >= 0)
    total = max(float(demand.sum()), _EXACT)
    by_model = (named @ serves, demand @ serves, each @ serves * count.sum())  # in the order of `MODEL`
    return np.asarray(np.stack(by_model, axis=1) / total)


def rest_values(tables: FragmentTables) -> FloatArray:
    """Return float64 [1001]: what so many free thousandths of a device are worth to the typical shares, in devices.

    Shares are worth their shadow prices in the cutting-stock program: as few devices as possible for all of them, in
    their proportions. A rest is worth the dearest shares that fit into it together: a whole device 1, or 0
    where no shares are expected.
    """
    milli, count = tables.rows[:, ROW.gpu_milli], tables.rows[:, ROW.gpu_count]
    share = (count == 1) & (milli > 0) & (milli < DEVICE_MILLI)
    sizes, kind = np.unique(milli[share], return_inverse=True)
    demand = np.bincount(kind, weights=tables.weight[share], minlength=len(sizes))
    return _rest_values(tuple(sizes.tolist()), tuple(demand.tolist()))


@lru_cache(maxsize=64)
def _rest_values(sizes: tuple[int, ...], demand: tuple[float, ...]) -> FloatArray:
    return _dearest(np.array(sizes, dtype=np.int64), cutting_prices(sizes, demand))[0]


def cutting_prices(sizes: tuple[int, ...], demand: tuple[float, ...]) -> FloatArray:
    """Return the shadow prices of shares, float64 [S], in devices.

    Column generation of Gilmore and Gomory (1961): sizes in thousandths, the demand for each in any unit.
    """
    amounts = np.array(sizes, dtype=np.int64)
    patterns = np.diag((DEVICE_MILLI // amounts).astype(np.float64))  # a column says how many of each share
    used = np.asarray(demand, dtype=np.float64) / np.diag(patterns)
    prices: FloatArray = np.zeros(len(amounts))
    for _ in range(_MOST_PATTERNS):
        prices = np.asarray(np.linalg.solve(patterns.T, np.ones(len(amounts))), dtype=np.float64)
        values, first = _dearest(amounts, prices)
        if values[DEVICE_MILLI] <= 1 + _EXACT:
            break
        pattern, room = np.zeros(len(amounts)), DEVICE_MILLI
        while room > 0:
            if first[room] < 0:
                room -= 1
            else:
                pattern[first[room]] += 1
                room -= int(amounts[first[room]])
        change = np.linalg.solve(patterns, pattern)
        ratio = np.where(change > _EXACT, used / np.maximum(change, _EXACT), np.inf)
        leaves = int(ratio.argmin())
        used = used - ratio[leaves] * change
        used[leaves] = ratio[leaves]
        patterns[:, leaves] = pattern
    return prices


@compiled
def _dearest(amounts: IntArray, prices: FloatArray) -> tuple[FloatArray, IntArray]:
    """Return what the dearest shares in each room are worth, float64 [1001], and the one to put there first.

    The latter is int64 [1001], -1 where a room is worth no more than one that is smaller by a thousandth.
    """
    values, first = np.zeros(DEVICE_MILLI + 1), np.full(DEVICE_MILLI + 1, -1, dtype=np.int64)
    for room in range(1, DEVICE_MILLI + 1):
        values[room] = values[room - 1]
        for share in range(amounts.shape[0]):
            left = room - amounts[share]
            if left >= 0 and values[left] + prices[share] > values[room] + _EXACT:
                values[room], first[room] = values[left] + prices[share], share
    return values, first
