"""What an optimum allows on the GPU-sharing benchmark: a linear program that knows every pod beforehand.

Pods are counted by shape and nodes by kind, in fractions: a node's CPU, memory and pods may be spread over all nodes
of its kind. Devices are cut in patterns, as in the cutting-stock problem (Gilmore and Gomory, 1961): pods that share
one have to fit together on it. No schedule, not even a clairvoyant one, allocates more than the program says.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from aaml.cluster.gpu import DEVICE_MILLI
from aaml.errors import bad_value
from aaml.extras import lazily
from aaml.policies.gpu.arrays import (
    KIND_SHARE,
    SHAPE_COUNT,
    SHAPE_CPU,
    SHAPE_KIND,
    SHAPE_MEMORY,
    SHAPE_MILLI,
    SHAPE_MODELS,
)
from aaml.progress import progress_bar
from aaml.sim.openb import DEFAULT_TUNE, Prepared, prepare, run_openb

if TYPE_CHECKING:
    from ortools.linear_solver import pywraplp
else:  # an extra
    pywraplp = lazily("ortools.linear_solver.pywraplp")

IntArray = npt.NDArray[np.int64]
_PARTS = 8  # of a column, whose mean is bounded part by part
_GIB = 1 << 30


def column_bounds(trace: str, seed: int, columns: Sequence[int], tune: float = DEFAULT_TUNE) -> list[float]:
    """Return the most GPU allocation, in percent, that columns of a run can have (see `OpenbResult.allocation`).

    The allocation after an arrival is at most that of the best placement of all pods so far. It cannot fall with more
    pods, so a column's mean is bounded part by part, each at its last arrival. Raises `UserError` without ortools and
    for a column without arrivals.
    """
    prepared = prepare(trace, seed, tune)
    program = LinearProgram(prepared)
    bounds = []
    for column in columns:
        first, end = np.searchsorted(prepared.column, [column, column + 1]).tolist()
        if first == end:  # its two neighbours then, as in the published tables
            first, end = np.searchsorted(prepared.column, [column - 1, column + 2]).tolist()
        if first == end:
            raise bad_value("columns", column, f"a percentage of GPU demand at which pods of {trace} arrive")
        edges = np.linspace(first, end, min(_PARTS, end - first) + 1).round().astype(int).tolist()
        parts = [(until - start) * program.bound(until) for start, until in pairwise(edges)]
        bounds.append(float(sum(parts)) / (end - first))
    return bounds


def bound_traces(
    traces: Sequence[str],
    seeds: Sequence[int],
    columns: Sequence[int],
    *,
    stopped: Callable[[], bool] = lambda: False,
) -> Iterator[dict[str, Any]]:
    """Yield a row a trace, seed and column with the bound and what FGD has there, each told in a line."""
    runs = [(trace, seed) for trace in traces for seed in seeds]
    with progress_bar("solve openb", len(runs), "run") as bar:
        for trace, seed in runs:
            if stopped():
                return
            fgd = run_openb(trace, seed, "fgd").allocation
            for column, bound in zip(columns, column_bounds(trace, seed, columns), strict=True):
                yield {"trace": trace, "seed": seed, "column": column, "bound": round(bound, 3), "fgd": fgd[column]}
                bar.write(
                    f"{trace}, seed {seed}, {column}% arrived: at most {bound:.2f}% allocated (FGD {fgd[column]:.2f})"
                )
            bar.update()


class LinearProgram:
    """The linear program of a trace on its nodes; one that was solved is solved again quickly with more pods."""

    def __init__(self, prepared: Prepared) -> None:
        self._prepared = prepared
        self._solver = pywraplp.Solver.CreateSolver("GLOP")
        self._objective = self._solver.Objective()
        self._objective.SetMaximization()
        self._counts = [self._at_most(0.0) for _ in prepared.shapes]  # how many pods of each shape there are
        sizes = sorted({int(shape[SHAPE_MILLI]) for shape in prepared.shapes if _shared(shape)}, reverse=True)
        cuts = list(patterns(sizes))
        for kind in _node_kinds(prepared):
            self._add_kind(kind, sizes, cuts)

    def bound(self, arrivals: int) -> float:
        """Return the percent of the GPU capacity that the first so many arrivals can take."""
        there = np.bincount(self._prepared.arrivals[:arrivals], minlength=len(self._counts))
        for limit, count in zip(self._counts, there.tolist(), strict=True):
            limit.SetUb(float(count))
        if self._solver.Solve() != self._solver.OPTIMAL:
            raise RuntimeError("the linear program was not solved")
        return 100.0 * DEVICE_MILLI * float(self._objective.Value()) / self._prepared.capacity_milli

    def _at_most(self, amount: float) -> Any:
        return self._solver.Constraint(-self._solver.infinity(), amount)

    def _variable(self) -> Any:
        return self._solver.NumVar(0.0, self._solver.infinity(), "")

    def _add_kind(self, kind: "_NodeKind", sizes: Sequence[int], cuts: Sequence[Sequence[int]]) -> None:
        amounts = (kind.cpu / 1000, kind.memory / _GIB, kind.pods)
        limits = [self._at_most(float(kind.nodes * amount)) for amount in amounts]
        devices = self._at_most(float(kind.nodes * kind.gpus))
        covered = {size: self._at_most(0.0) for size in sizes}  # shares of a size less the places cut for them
        for cut in cuts:
            variable = self._variable()
            devices.SetCoefficient(variable, 1.0)
            for size, times in zip(sizes, cut, strict=True):
                covered[size].SetCoefficient(variable, -float(times))
        for shape, count in zip(self._prepared.shapes, self._counts, strict=True):
            if not kind.takes(shape):
                continue
            variable = self._variable()
            self._objective.SetCoefficient(variable, float(shape[SHAPE_COUNT] * shape[SHAPE_MILLI]) / DEVICE_MILLI)
            count.SetCoefficient(variable, 1.0)
            asked = (shape[SHAPE_CPU] / 1000, shape[SHAPE_MEMORY] / _GIB, 1)
            for limit, amount in zip(limits, asked, strict=True):
                limit.SetCoefficient(variable, float(amount))
            if _shared(shape):
                covered[int(shape[SHAPE_MILLI])].SetCoefficient(variable, 1.0)
            else:
                devices.SetCoefficient(variable, float(shape[SHAPE_COUNT]))


class _NodeKind(NamedTuple):
    """Equal nodes."""

    cpu: int
    memory: int
    pods: int
    gpus: int
    model: int
    nodes: int

    def takes(self, shape: IntArray) -> bool:
        """Whether a pod of this shape takes GPUs of an empty node of this kind."""
        return bool(
            0 < shape[SHAPE_COUNT] <= self.gpus
            and shape[SHAPE_MILLI] > 0
            and shape[SHAPE_CPU] <= self.cpu
            and shape[SHAPE_MEMORY] <= self.memory
            and shape[SHAPE_MODELS] >> self.model & 1
        )


def _node_kinds(prepared: Prepared) -> list[_NodeKind]:
    arrays = prepared.arrays
    columns = np.stack([arrays.cpu, arrays.memory, arrays.pods, arrays.gpu_count, arrays.gpu_model], axis=1)
    kinds, counts = np.unique(columns, axis=0, return_counts=True)
    return [_NodeKind(*row) for row in np.column_stack([kinds, counts]).tolist()]


def _shared(shape: IntArray) -> bool:
    return bool(shape[SHAPE_KIND] == KIND_SHARE and shape[SHAPE_MILLI] > 0)


def patterns(sizes: Sequence[int], room: int = DEVICE_MILLI) -> Iterator[tuple[int, ...]]:
    """Yield how often each size (in falling order) is on a device, for every way that leaves no room for one more."""

    def fill(index: int, left: int) -> Iterator[tuple[int, ...]]:
        if index == len(sizes) - 1:  # as many of the smallest as there is room for
            yield (left // sizes[index],)
            return
        for times in range(left // sizes[index], -1, -1):
            for rest in fill(index + 1, left - times * sizes[index]):
                yield (times, *rest)

    return fill(0, room) if sizes else iter(())
