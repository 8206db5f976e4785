"""The best placement of pods by a solver (CP-SAT) that knows all of them beforehand, and a bound that none passes.

The solver counts equal pods together: how many of a kind are on each node, and on each device for kinds that share
one. The placement and the bound meet unless the time is up first.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from aaml.cluster.gpu import DEVICE_MILLI
from aaml.cluster.objects import GpuRequest, Node, Pod
from aaml.cluster.quantity import CPU, MEMORY, PODS
from aaml.errors import UserError, bad_value
from aaml.extras import lazily
from aaml.optimum.solving import solved

if TYPE_CHECKING:
    from ortools.sat.python import cp_model
else:  # an extra
    cp_model = lazily("ortools.sat.python.cp_model")

Place = tuple[int, tuple[int, ...] | None]
"""A node's index, and the device of a share (None: the first free ones, or none)."""


@dataclass(frozen=True, slots=True)
class Optimum:
    """A placement by pod uid, its value, and the bound: no placement's value is better; equal when `proven`."""

    places: Mapping[str, Place]
    value: float
    bound: float
    proven: bool
    seconds: float


def best_placement(
    nodes: Sequence[Node],
    pods: Sequence[Pod],
    metric: str,
    *,
    limit_s: float = 20.0,
    stopped: Callable[[], bool] = lambda: False,
) -> Optimum:
    """Place pods on empty nodes so that a metric of `SimCluster.metrics` is best at the end.

    Resources, the limit of pods, GPU models and shares are respected; other constraints of pods are not looked at.
    `final_gpu_allocation` may leave pods out, `final_variance` and `final_empty_fraction` place all. Raises
    `UserError` without ortools, for another metric, nodes that the metric does not allow, and where no placement was
    found in `limit_s` seconds.
    """
    if metric not in GOALS:
        raise bad_value("metric", metric, f"one of {', '.join(GOALS)}")
    model = _Model(nodes, pods, every=metric != "final_gpu_allocation")
    value = GOALS[metric](model)
    solver, status = solved(model.sat_model, limit_s, stopped)
    if status not in ("OPTIMAL", "FEASIBLE"):
        why = "does not exist" if status == "INFEASIBLE" else f"was not found in {limit_s:g} s: give more time"
        raise UserError(f"a placement of all {len(pods)} pods on {len(nodes)} nodes {why}")
    return Optimum(
        model.places(solver), value(solver.objective_value), value(solver.best_objective_bound), status == "OPTIMAL",
        solver.wall_time,
    )  # fmt: skip


class _Model:
    """The variables and limits that all goals share; a goal adds its objective to `sat_model`."""

    def __init__(self, nodes: Sequence[Node], pods: Sequence[Pod], *, every: bool) -> None:
        self.sat_model, self.nodes = cp_model.CpModel(), nodes
        self.kinds: dict[_PodKind, list[Pod]] = {}
        for pod in pods:
            if every or pod.gpu.total_milli:
                self.kinds.setdefault(_PodKind(tuple(sorted(pod.requests.items())), pod.gpu), []).append(pod)
        self.count: list[dict[_PodKind, Any]] = []  # per node: how many of each kind, an expression
        self.shares: list[dict[_PodKind, list[Any]]] = []  # per node: how many of a sharing kind on each device
        for node in nodes:
            self._add_node(node)
        for kind, group in self.kinds.items():
            placed = sum(count.get(kind, 0) for count in self.count)
            self.sat_model.add(placed == len(group) if every else placed <= len(group))

    def used(self, node_index: int, resource: str) -> Any:
        """Return what the pods on a node ask of a resource, an expression."""
        return sum(kind.amount(resource) * count for kind, count in self.count[node_index].items())

    def places(self, solver: Any) -> dict[str, Place]:
        """Read the placement."""
        waiting = {kind: iter(group) for kind, group in self.kinds.items()}
        places: dict[str, Place] = {}
        for node_index, node in enumerate(self.nodes):
            for kind, count in self.count[node_index].items():
                devices = self.shares[node_index].get(kind, [count])
                for device, variable in enumerate(devices):
                    # Shares from the last device down, because pods of whole devices take the first free ones.
                    gpus = (node.gpu_count - 1 - device,) if kind in self.shares[node_index] else None
                    for _ in range(solver.value(variable)):
                        places[next(waiting[kind]).uid] = node_index, gpus
        return places

    def _add_node(self, node: Node) -> None:
        model, count, shares = self.sat_model, dict[_PodKind, Any](), dict[_PodKind, list[Any]]()
        opened = [model.new_bool_var("") for _ in range(node.gpu_count)]  # devices that are shared
        for kind, group in self.kinds.items():
            most = min(kind.most_on(node), len(group))
            if most and kind.shared:
                on_device = min(most, DEVICE_MILLI // kind.gpu.milli)
                shares[kind] = [model.new_int_var(0, on_device, "") for _ in opened]
                count[kind] = sum(shares[kind])
            elif most:
                count[kind] = model.new_int_var(0, most, "")
        self.count.append(count)
        self.shares.append(shares)
        node_index = len(self.count) - 1
        for resource in {name for kind in count for name, _ in kind.requests}:
            model.add(self.used(node_index, resource) <= node.allocatable.get(resource, 0))
        model.add(sum(count.values()) <= node.allocatable.get(PODS, 0))
        load = [sum(kind.gpu.milli * each[device] for kind, each in shares.items()) for device in range(len(opened))]
        for use, is_open in zip(load, opened, strict=True):
            model.add(use <= DEVICE_MILLI * is_open)
        for fuller, emptier in pairwise(load):  # devices are alike: in one order only
            model.add(fuller >= emptier)
        whole = [kind.gpu.count * each for kind, each in count.items() if kind.gpu.milli and not kind.shared]
        model.add(sum(whole) + sum(opened) <= node.gpu_count)


@dataclass(frozen=True, slots=True)
class _PodKind:
    """Pods that no constraint tells apart."""

    requests: tuple[tuple[str, int], ...]
    gpu: GpuRequest

    @property
    def shared(self) -> bool:
        """Whether it takes a part of a device."""
        return self.gpu.count == 1 and 0 < self.gpu.milli < DEVICE_MILLI

    def amount(self, resource: str) -> int:
        """Return the request of a resource."""
        return dict(self.requests).get(resource, 0)

    def most_on(self, node: Node) -> int:
        """Return how many fit on an empty node."""
        if self.gpu.models and node.gpu_model not in self.gpu.models:
            return 0
        rooms = [node.allocatable.get(PODS, 0)]
        rooms += [node.allocatable.get(name, 0) // amount for name, amount in self.requests if amount]
        if self.shared:
            rooms.append(node.gpu_count * (DEVICE_MILLI // self.gpu.milli))
        elif self.gpu.total_milli:
            rooms.append(node.gpu_count // self.gpu.count)
        return min(rooms)


# ---- goals: each adds its objective and returns what turns the solver's number into the metric -----------------------


def _gpu_allocation(model: _Model) -> Callable[[float], float]:
    placed = [kind.gpu.total_milli * each for count in model.count for kind, each in count.items()]
    model.sat_model.maximize(sum(placed))
    capacity = DEVICE_MILLI * sum(node.gpu_count for node in model.nodes)
    return lambda milli: milli / max(capacity, 1)


def _empty_fraction(model: _Model) -> Callable[[float], float]:
    pods = sum(map(len, model.kinds.values()))
    in_use = [model.sat_model.new_bool_var("") for _ in model.nodes]
    for count, used in zip(model.count, in_use, strict=True):
        model.sat_model.add(sum(count.values()) <= pods * used)
    model.sat_model.minimize(sum(in_use))
    return lambda nodes_in_use: 1.0 - nodes_in_use / len(model.nodes)


def _variance(model: _Model) -> Callable[[float], float]:
    """Minimise the sum of squared use, in units of CPU and memory; the mean use is the same for all placements."""
    sizes = {tuple(node.allocatable.get(name, 0) for name in (CPU, MEMORY)) for node in model.nodes}
    if len(sizes) != 1 or 0 in min(sizes):
        raise UserError("nodes: the least variance is only known for nodes of equal CPU and memory")
    units = {}  # per resource: its unit, a node's size in units, the pods' sum in units
    for name, size in zip((CPU, MEMORY), min(sizes), strict=True):
        unit = math.gcd(size, *(kind.amount(name) for kind in model.kinds))
        total = sum(kind.amount(name) * len(group) for kind, group in model.kinds.items())
        units[name] = unit, size // unit, total // unit
    common = math.lcm(*(size for _, size, _ in units.values()))
    objective = []
    for name, (unit, size, _) in units.items():
        for node_index in range(len(model.nodes)):
            use, square = model.sat_model.new_int_var(0, size, ""), model.sat_model.new_int_var(0, size * size, "")
            model.sat_model.add(unit * use == model.used(node_index, name))
            model.sat_model.add_multiplication_equality(square, [use, use])
            objective.append((common // size) ** 2 * square)
    model.sat_model.minimize(sum(objective))
    nodes = len(model.nodes)
    mean_squared = sum((total / (nodes * size)) ** 2 for _, size, total in units.values())
    return lambda squares: 0.5 * max(squares / (nodes * common**2) - mean_squared, 0.0)


GOALS: Mapping[str, Callable[[_Model], Callable[[float], float]]] = {
    "final_gpu_allocation": _gpu_allocation,
    "final_variance": _variance,
    "final_empty_fraction": _empty_fraction,
}
