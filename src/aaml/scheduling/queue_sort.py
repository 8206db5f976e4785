"""A policy's own order of waiting pods, in place of kube-scheduler's."""

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from aaml.cluster.objects import Pod
from aaml.cluster.quantity import CPU, MEMORY
from aaml.cluster.state import ClusterState
from aaml.scheduling.observation import mean_size

Shares = TypeVar("Shares", float, npt.NDArray[np.float64])


@dataclass(frozen=True, slots=True)
class QueueSort:
    """First come, first served within a priority, except that a pod counts as the later the more it asks for.

    A pod counts as having come `cpu_s` seconds later for each mean node's CPU that it requests, `memory_s` seconds
    later for each mean node's memory, and `larger_s` seconds later for the larger of the two shares. With zeros the
    order is strictly that of arrival. What came long ago goes before everything that comes now, so no pod is passed
    over for ever.

    kube-scheduler puts a pod that fits nowhere behind those that were tried before it, and lets it back off for up to
    10 s while smaller ones are placed. Under this order every waiting pod is tried again as soon as something has
    changed that may help it. Only pods whose try ended in an error, such as a refused bind, back off.
    """

    cpu_s: float = 0.0
    memory_s: float = 0.0
    larger_s: float = 0.0

    def delay_s(self, state: ClusterState, pod: Pod) -> float:
        """Return how much later than it did the pod counts as having come, in seconds."""
        mean_cpu, mean_memory = mean_size(state.allocatable, state.capacity)
        return float(self.delays_s(pod.request(CPU) / mean_cpu, pod.request(MEMORY) / mean_memory))

    def delays_s(self, cpu: Shares, memory: Shares) -> Shares:
        """Return the same for requests as shares of a mean node, which are numbers or arrays of them."""
        return self.cpu_s * cpu + self.memory_s * memory + self.larger_s * np.maximum(cpu, memory)  # type: ignore[no-any-return]
