"""The cheapest packing of few pods that are all known beforehand, by a solver (CP-SAT), and a bound that none passes.

Pods that share a node are named by the one of them that comes first, so that no two solutions differ by names of nodes
alone (Campêlo, Campos, Corrêa, "On the asymmetric representatives formulation for the vertex coloring problem",
Discrete Applied Mathematics 156, 2008). A node is paid from that pod's arrival until the last has left; its load is
largest when one arrives.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aaml.extras import lazily
from aaml.nodes.catalogue import Catalogue
from aaml.optimum.clairvoyant import Packing, RunningPod
from aaml.optimum.solving import solved

if TYPE_CHECKING:
    from ortools.sat.python import cp_model
else:  # an extra
    cp_model = lazily("ortools.sat.python.cp_model")

MOST_PODS = 60
"""The model has as many constraints as the square of the pods, times the types."""
_HOUR_S = 3600.0
_PER_DOLLAR, _PER_SECOND = 100_000, 10  # whole numbers of the model; rounded such that the bound stays one


@dataclass(frozen=True, slots=True)
class BillOptimum:
    """The dollars of the best packing that is known, and a bound that none is below; both alike where `proven`."""

    dollars: float
    bound: float
    proven: bool


def best_packing(
    intervals: Sequence[RunningPod],
    catalogue: Catalogue,
    known: Packing,
    least: float,
    *,
    limit_s: float = 20.0,
    stopped: Callable[[], bool] = lambda: False,
) -> BillOptimum:
    """Improve on a `known` packing of pods without GPUs, by their arrival, knowing that none costs less than `least`.

    Raises KeyboardInterrupt where it was `stopped` before anything was found, ModuleNotFoundError without ortools.
    """
    model = _Model(intervals, catalogue)
    model.begin_with(known)
    model.sat_model.add(sum(model.cost) >= int(least * _HOUR_S * _PER_DOLLAR * _PER_SECOND))
    model.sat_model.minimize(sum(model.cost))
    solver, status = solved(model.sat_model, limit_s, stopped)
    unit = _HOUR_S * _PER_DOLLAR * _PER_SECOND
    bound = max(solver.best_objective_bound / unit, least)
    if status not in ("OPTIMAL", "FEASIBLE"):
        return BillOptimum(known.dollars, min(bound, known.dollars), proven=False)
    dollars = min(model.dollars(solver), known.dollars)
    return BillOptimum(dollars, min(bound, dollars), status == "OPTIMAL")


class _Model:
    """`with_[i][j]`: pod i is on the node of pod j, which came first; `type_[j][t]`: that node is of this type."""

    def __init__(self, intervals: Sequence[RunningPod], catalogue: Catalogue) -> None:
        self.sat_model, self._pods, self._catalogue = cp_model.CpModel(), intervals, catalogue
        self._prices = [int(price * _PER_DOLLAR) for price in catalogue.prices.tolist()]
        count, types = len(intervals), range(len(catalogue))
        self.with_ = [[self.sat_model.new_bool_var("") for _ in range(i + 1)] for i in range(count)]
        self.type_ = [[self.sat_model.new_bool_var("") for _ in types] for _ in range(count)]
        # A little more than the dearest node costs, as these numbers are rounded down and `least` is not.
        most = [(max(self._prices) + 1) * (self._length(first, last) + 1) for first, last in self._longest()]
        self.cost = [self.sat_model.new_int_var(0, each, "") for each in most]
        for i in range(count):
            self.sat_model.add_exactly_one(self.with_[i])
            for j in range(i):
                self.sat_model.add_implication(self.with_[i][j], self.with_[j][j])
        for j in range(count):
            self._add_node(j)

    def _longest(self) -> list[tuple[RunningPod, RunningPod]]:
        last = max(self._pods, key=lambda each: each.until_s)
        return [(each, last) for each in self._pods]

    @staticmethod
    def _length(first: RunningPod, last: RunningPod) -> int:
        return max(int((last.until_s - first.from_s) * _PER_SECOND), 0)

    def _add_node(self, j: int) -> None:
        """Add what holds for the node of pod j: one type, room at each arrival, and what it costs."""
        model, pods, there = self.sat_model, self._pods, self.with_[j][j]
        model.add(sum(self.type_[j]) == there)
        for i in range(j, len(pods)):
            now_s = pods[i].from_s
            alive = [k for k in range(j, i + 1) if pods[k].until_s > now_s]
            for column in range(len(self._catalogue.resources)):
                requested, offered = (
                    [int(pods[k].request[column]) for k in alive],
                    self._catalogue.room[:, column].tolist(),
                )
                if any(requested):
                    unit = math.gcd(*requested, *offered)  # exact, so that the bound stays one
                    requested, offered = [each // unit for each in requested], [each // unit for each in offered]
                    load = sum(each * self.with_[k][j] for each, k in zip(requested, alive, strict=True))
                    model.add(load <= sum(each * kind for each, kind in zip(offered, self.type_[j], strict=True)))
            length = self._length(pods[j], pods[i])
            for t, price in enumerate(self._prices):  # types are in the order of their prices
                dearer = sum(self.type_[j][t:])
                model.add(self.cost[j] >= price * length * (self.with_[i][j] + dearer - 1))

    def begin_with(self, known: Packing) -> None:
        """Tell the solver a packing to begin with."""
        leader = {member: min(group) for group in known.groups for member in group}
        for i, row in enumerate(self.with_):
            for j, variable in enumerate(row):
                self.sat_model.add_hint(variable, leader[i] == j)

    def dollars(self, solver: Any) -> float:
        """Return what the solver's packing costs, by the exact prices and times."""
        groups: dict[int, list[int]] = {}
        for i, row in enumerate(self.with_):
            groups.setdefault(next(j for j, variable in enumerate(row) if solver.value(variable)), []).append(i)
        total = 0.0
        for j, members in groups.items():
            price = next(
                price for price, kind in zip(self._catalogue.prices, self.type_[j], strict=True) if solver.value(kind)
            )
            total += price * (max(self._pods[i].until_s for i in members) - self._pods[j].from_s)
        return float(total) / _HOUR_S
