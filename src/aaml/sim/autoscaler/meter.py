"""What runs up while nodes come and go: dollars, kilowatt hours, grams of CO2, and what the pods alone would cost."""

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass

from aaml.cluster.objects import Pod
from aaml.cluster.quantity import CPU, MEMORY
from aaml.sim.autoscaler.fluid import Fluid
from aaml.sim.autoscaler.ports import OwnedNode

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
        hours = (now_s - since_s) / _HOUR_S
        self.dollars += self.price * hours
        self.node_hours += self.nodes * hours
        self.core_hours += self.cpu_milli / _MILLI * hours
        self.fluid_dollars += self.fluid.price(self.cpu_milli, self.memory_bytes, self.gpu_milli) * hours
        self.kwh += self.watts / _MILLI * hours
        while self.carbon_g_per_kwh and since_s < now_s:
            hour = int(since_s // _HOUR_S)
            until_s = min(now_s, (hour + 1) * _HOUR_S)
            grams = self.carbon_g_per_kwh[hour % len(self.carbon_g_per_kwh)]
            self.co2_g += grams * self.watts / _MILLI * (until_s - since_s) / _HOUR_S
            since_s = until_s

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


def _of(amount: float, whole: float) -> float:
    return amount / whole if whole else float("nan")
