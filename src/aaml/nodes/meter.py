"""What runs up while nodes come and go: dollars, kilowatt hours, grams of CO2, and what the pods alone would cost."""

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from aaml.cluster.kernels import inlined, interpreted, outlined, without_refcount
from aaml.cluster.objects import Pod
from aaml.cluster.quantity import CPU, MEMORY
from aaml.nodes.commitments import NOTHING_COMMITTED, Commitments
from aaml.nodes.committed import CommittedNodes
from aaml.nodes.fluid import Fluid, fluid_price
from aaml.nodes.ports import OwnedNode
from aaml.nodes.rows import Record
from aaml.nodes.settings import Prices

FloatArray = npt.NDArray[np.float64]
Waits = TypeVar("Waits", float, FloatArray)

_HOUR_S = 3600.0
_MILLI = 1000.0


@dataclass
class Meter:
    """Adds up what holds from one change to the next; time before 0 is not judged.

    `carbon_g_per_kwh`: the grid's carbon intensity in each hour, which repeats; none: not counted. Commitments are
    settled by the moment: what a node leaves unused is lost, where a cloud lets others use it in the same clock hour.
    """

    fluid: Fluid
    carbon_g_per_kwh: Sequence[float] = ()
    committed: CommittedNodes | None = None
    metered_s: float = 0.0
    alive: int = 0
    price: float = 0.0  # of the nodes, dollars an hour, now
    off: float = 0.0  # what commitments take off it
    watts: float = 0.0
    cpu_milli: int = 0  # requested on nodes that were bought
    memory_bytes: int = 0
    gpu_milli: int = 0
    running: int = 0  # pods on them
    dollars: float = 0.0
    fluid_dollars: float = 0.0
    core_hours: float = 0.0
    node_hours: float = 0.0
    pod_hours: float = 0.0
    kwh: float = 0.0
    co2_g: float = 0.0
    bought: int = 0

    def __post_init__(self) -> None:
        if self.committed is not None:
            self.off = self.committed.off

    @property
    def commitments(self) -> Commitments:
        """What was committed to."""
        return NOTHING_COMMITTED if self.committed is None else self.committed.commitments

    def hold(self, now_s: float) -> None:
        """Count what is as it was until now."""
        interpreted(hold)(self, self.fluid.corners, self._carbon, now_s)

    @cached_property
    def _carbon(self) -> npt.NDArray[np.float64]:
        return np.array(self.carbon_g_per_kwh, dtype=np.float64)

    def launched(self, node: OwnedNode) -> None:
        """A node is bought."""
        self.bought += 1
        self.alive += 1
        interpreted(launched)(self, node.price, node.type.watts_idle)
        self._settle(node, 1)

    def gone(self, node: OwnedNode) -> None:
        """A node is given back."""
        self.alive -= 1
        interpreted(gone)(self, node.price, node.type.watts_idle)
        self._settle(node, -1)

    def _settle(self, node: OwnedNode, count: int) -> None:
        if self.committed is not None:
            self.committed.add(node.type, node.offering, count)
            self.off = self.committed.off

    def placed(self, pod: Pod, node: OwnedNode, sign: int = 1) -> None:
        """A pod is on a node, or with `sign` -1 not any more."""
        cpu, memory = pod.requests.get(CPU, 0), pod.requests.get(MEMORY, 0)
        interpreted(placed)(self, cpu, memory, pod.gpu.total_milli, node.type.watts_per_core, sign)

    def metrics(self, seconds: float) -> Mapping[str, float]:
        """Return the numbers of `aaml.sim.metrics.BILLED` that it knows, for so many seconds; NaN before any."""
        hours = max(seconds, 0.0) / _HOUR_S
        return {
            "bill": _of(self.dollars, hours),
            "bill_per_core_hour": _of(self.dollars, self.core_hours),
            "fluid_ratio": _of(self.dollars, self.fluid_dollars),
            "mean_nodes": _of(self.node_hours, hours),
            "nodes_bought": float(self.bought),
            "power_kw": _of(self.kwh, hours),
            "co2_kg_per_hour": _of(self.co2_g / _MILLI, hours),
        }

    def copy(self) -> "Meter":
        """Return an independent copy."""
        twin = copy(self)
        twin.committed = None if self.committed is None else self.committed.copy()
        return twin


def charged(prices: Prices, waits_s: npt.NDArray[np.float64], evicted: int) -> float:
    """Return what counts beside the bill, in dollars: the waits of pods [P] beyond the target, and evictions."""
    beyond_s = float(interpreted(beyond_target_s)(prices, waits_s).sum())
    return interpreted(charge)(prices, beyond_s, evicted)  # type: ignore[no-any-return]


def billed(meter: Meter, extra: float, evicted: int, now_s: float) -> Mapping[str, float]:
    """Return the numbers of `aaml.sim.metrics.BILLED` at a moment.

    `extra`: dollars that count beside the bill. `evicted`: pods that were so far.
    """
    meter.hold(now_s)
    own = meter.metrics(now_s)
    cost = own["bill"] + extra / (now_s / 3600.0 if now_s > 0.0 else np.nan)
    return {"cost": cost, **own, "evictions_per_pod_hour": _of(evicted, meter.pod_hours)}


@inlined
def beyond_target_s(prices: Prices, waited_s: Waits) -> Waits:
    """Return by how much pods have waited for longer than the target, one of them or each of several [P]."""
    beyond_s: Waits = np.maximum(waited_s - prices.wait_target_s, 0.0)
    return beyond_s


@inlined
def charge(prices: Prices, beyond_s: float, evicted: float) -> float:
    """Return what waits beyond the target, so many seconds in all, and evictions count, in dollars."""
    return prices.wait_per_hour * beyond_s / _HOUR_S + prices.eviction * evicted


# ---- the rules: `at` is a `Meter`, or the record of a compiled episode, which has the same fields -------------------


@outlined
def hold(at: Record, corners: FloatArray, carbon: FloatArray, now_s: float) -> None:
    """Count what is as it was until now."""
    since_s, at.metered_s = max(at.metered_s, 0.0), now_s
    if now_s <= since_s:
        return
    dollars, node_hours, core_hours, fluid_dollars, kwh, at.co2_g = run_up(
        corners, carbon, since_s, now_s, at.price - at.off, at.alive, at.cpu_milli, at.memory_bytes, at.gpu_milli,
        at.watts, at.co2_g,
    )  # fmt: skip
    at.dollars += dollars
    at.node_hours += node_hours
    at.pod_hours += at.running * ((now_s - since_s) / _HOUR_S)
    at.core_hours += core_hours
    at.fluid_dollars += fluid_dollars
    at.kwh += kwh


@inlined
def launched(at: Record, price: float, watts_idle: float) -> None:
    """A node is bought, which counts as alive already."""
    at.price = at.price + price
    at.watts = at.watts + watts_idle


@inlined
def gone(at: Record, price: float, watts_idle: float) -> None:
    """A node is given back, which counts as alive no more."""
    at.price = at.price - price if at.alive else 0.0
    at.watts = at.watts - watts_idle


@inlined
def settled(at: Record, covered: float, fixed: float) -> None:
    """Commitments that cost so much pay for nodes that would cost `covered` on demand, dollars an hour."""
    at.off = covered - fixed


@inlined
def placed(at: Record, cpu: int, memory: int, gpu_milli: int, watts_per_core: float, sign: int) -> None:
    """A pod that asks for so much is on a node, or with `sign` -1 not any more."""
    at.cpu_milli += sign * cpu
    at.memory_bytes += sign * memory
    at.gpu_milli += sign * gpu_milli
    at.running += sign
    at.watts += watts_per_core * (sign * cpu) / _MILLI


@without_refcount
def run_up(
    corners: FloatArray, carbon: FloatArray, since_s: float, now_s: float, price: float, nodes: int, cpu_milli: int,
    memory_bytes: int, gpu_milli: int, watts: float, co2_g: float,
) -> tuple[float, float, float, float, float, float]:  # fmt: skip
    """Return what runs up while all is as it is, and `co2_g` with what is added to it; `carbon` as for `Meter`.

    The others are dollars, node hours, core hours, dollars of the fluid bound, and kWh.
    """
    hours = (now_s - since_s) / _HOUR_S
    fluid = fluid_price(corners, cpu_milli, memory_bytes, gpu_milli)
    while len(carbon) > 0 and since_s < now_s:
        hour = int(since_s // _HOUR_S)
        until_s = min(now_s, (hour + 1) * _HOUR_S)
        co2_g += carbon[hour % len(carbon)] * watts / _MILLI * (until_s - since_s) / _HOUR_S
        since_s = until_s
    return price * hours, nodes * hours, cpu_milli / _MILLI * hours, fluid * hours, watts / _MILLI * hours, co2_g


def _of(amount: float, whole: float) -> float:
    return amount / whole if whole else float("nan")
