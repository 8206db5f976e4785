"""A policy's own order of waiting pods, in place of kube-scheduler's."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self, TypeVar

import numpy as np
import numpy.typing as npt

from aaml.cluster.kernels import inlined, interpreted
from aaml.cluster.objects import Pod
from aaml.cluster.quantity import CPU, MEMORY
from aaml.cluster.state import ClusterState
from aaml.errors import UserError
from aaml.scheduling.lifetimes import LifetimeModel
from aaml.scheduling.observation import mean_size

Shares = TypeVar("Shares", float, npt.NDArray[np.float64])


@inlined
def delayed_s(by: Any, cpu: Shares, memory: Shares, remaining_s: Shares) -> Shares:
    """Return `QueueSort.delays_s`; `by` is a `QueueSort`, or a record with its numbers."""
    larger = np.maximum(cpu, memory)
    delay_s: Shares = by.cpu_s * cpu + by.memory_s * memory + by.larger_s * larger
    delay_s += (by.rest + by.work * larger) * remaining_s
    return delay_s


@dataclass(frozen=True, slots=True)
class QueueSort:
    """First come, first served within a priority, except that a pod counts as the later the more room or time it takes.

    A pod counts as having come `cpu_s` seconds later for each mean node's CPU that it requests, `memory_s` seconds
    later for each mean node's memory, `larger_s` seconds later for the larger of the two shares, `rest` seconds later
    for each second that it is expected to run, by `lifetime_model`, and `work` seconds later for each mean node that
    it would keep for a second: the larger share times the expected run. With zeros the order is strictly that of
    arrival. What came long ago goes before everything that comes now, so no pod is passed over for ever.

    Of jobs that take the same room, letting those go first that end first keeps the fewest waiting (Smith 1956), by
    what they are expected to take where nobody knows (Rothkopf 1966). Of jobs of any size it is those of the least
    work that should go first, as far as room is what they wait for.

    kube-scheduler puts a pod that fits nowhere behind those that were tried before it, and lets it back off for up to
    10 s while smaller ones are placed. Under this order every waiting pod is tried again as soon as something has
    changed that may help it. Only pods whose try ended in an error, such as a refused bind, back off.
    """

    cpu_s: float = 0.0
    memory_s: float = 0.0
    larger_s: float = 0.0
    rest: float = 0.0
    work: float = 0.0
    lifetime_model: LifetimeModel | None = field(default=None, compare=False, repr=False)

    @classmethod
    def of(cls, numbers: Mapping[str, Any]) -> Self:
        """Return the order that has these `numbers`. Raises TypeError or ValueError for what are none of an order."""
        if "lifetime_model" in numbers:
            raise TypeError("lifetime_model is no number of an order")
        return cls(**{name: float(value) for name, value in numbers.items()})  # type: ignore[arg-type]

    def knowing(self, lifetime_model: LifetimeModel | None) -> Self:
        """Return this order with a model of lifetimes. Raises `UserError` for None where the order needs one."""
        if self.looks_ahead and lifetime_model is None:
            raise UserError(
                "the order of waiting pods looks at how long they run, and nothing is expected: "
                "use --remaining_lifetimes learned"
            )
        return replace(self, lifetime_model=lifetime_model)

    @property
    def looks_ahead(self) -> bool:
        """Whether it depends on how long pods are expected to run."""
        return bool(self.rest or self.work)

    def numbers(self) -> dict[str, Any]:
        """Return the numbers that make this order, by name."""
        return {each.name: getattr(self, each.name) for each in fields(self) if each.name != "lifetime_model"}

    def delay_s(self, state: ClusterState, pod: Pod) -> float:
        """Return how much later than it did the pod counts as having come, in seconds."""
        mean_cpu, mean_memory = mean_size(state.allocatable, state.capacity)
        remaining_s = (
            self.lifetime_model.remaining_s(pod) if self.looks_ahead and self.lifetime_model is not None else 0.0
        )
        return float(self.delays_s(pod.request(CPU) / mean_cpu, pod.request(MEMORY) / mean_memory, remaining_s))

    def delays_s(self, cpu: Shares, memory: Shares, remaining_s: Shares) -> Shares:
        """Return the same for requests as shares of a mean node and expected rests, numbers or arrays of them."""
        return interpreted(delayed_s)(self, cpu, memory, remaining_s)  # type: ignore[no-any-return]
