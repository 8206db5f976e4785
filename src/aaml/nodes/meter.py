"""What runs up while nodes come and go: dollars, kilowatt hours, grams of CO2, and what the pods alone would cost."""

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from aaml.cluster.kernels import uncounted
from aaml.cluster.objects import Pod
from aaml.cluster.quantity import CPU, MEMORY
from aaml.nodes.fluid import Fluid, fluid_price
from aaml.nodes.ports import OwnedNode

_HOUR_S = 3600.0
_MILLI = 1000.0


@dataclass
class Meter:
    """Adds up what holds from one change to the next; time before 0 is not judged.

    `carbon_g_per_kwh`: the grid's carbon intensity in each hour, which repeats; none: not counted.
    """

    fluid: Fluid
    carbon_g_per_kwh: Sequence[float] = ()
    now_s: float = 0.0
    nodes: int = 0
    price: float = 0.0  # dollars an hour, now
    watts: float = 0.0
    cpu_milli: int = 0  # requested on nodes that were bought
    memory_bytes: int = 0
    gpu_milli: int = 0
    dollars: float = 0.0
    fluid_dollars: float = 0.0
    core_hours: float = 0.0
    node_hours: float = 0.0
    kwh: float = 0.0
    co2_g: float = 0.0
    bought: int = 0

    def hold(self, now_s: float) -> None:
        """Count what is as it was until now."""
        since_s, self.now_s = max(self.now_s, 0.0), now_s
        if now_s <= since_s:
            return
        dollars, node_hours, core_hours, fluid_dollars, kwh, self.co2_g = run_up(
            self.fluid.corners, self._carbon, since_s, now_s, self.price, self.nodes, self.cpu_milli, self.memory_bytes,
            self.gpu_milli, self.watts, self.co2_g,
        )  # fmt: skip
        self.dollars += dollars
        self.node_hours += node_hours
        self.core_hours += core_hours
        self.fluid_dollars += fluid_dollars
        self.kwh += kwh

    @cached_property
    def _carbon(self) -> npt.NDArray[np.float64]:
        return np.array(self.carbon_g_per_kwh, dtype=np.float64)

    def launched(self, node: OwnedNode) -> None:
        """A node is bought."""
        self.bought += 1
        self._count(node, 1)

    def gone(self, node: OwnedNode) -> None:
        """A node is given back."""
        self._count(node, -1)

    def placed(self, pod: Pod, node: OwnedNode, sign: int = 1) -> None:
        """A pod is on a node, or with `sign` -1 not any more."""
        cpu = sign * pod.requests.get(CPU, 0)
        self.cpu_milli += cpu
        self.memory_bytes += sign * pod.requests.get(MEMORY, 0)
        self.gpu_milli += sign * pod.gpu.total_milli
        self.watts += node.type.watts_per_core * cpu / _MILLI

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
        return copy(self)

    def _count(self, node: OwnedNode, sign: int) -> None:
        self.nodes += sign
        self.price = self.price + sign * node.price if self.nodes else 0.0
        self.watts = self.watts + sign * node.type.watts_idle


@uncounted
def run_up(corners, carbon, since_s, now_s, price, nodes, cpu_milli, memory_bytes, gpu_milli, watts, co2_g):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
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
