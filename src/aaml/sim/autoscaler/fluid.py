"""The fluid bound: what requests would cost if they were bought by the second at the best price, in fractions of nodes.

CPU and memory that are requested at one moment are covered by amounts of types at the least price. The dual of that
linear programme has two variables, the prices of CPU and of memory. It is largest at a corner of the polygon in which
no type is worth more than it costs; these are the edges of the convex hull of what a dollar buys.
"""

from collections.abc import Iterable
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from aaml.sim.autoscaler.catalogue import Catalogue

FloatArray = npt.NDArray[np.float64]


class Fluid:
    """Prices requests of CPU and memory with the types of a catalogue. `corners` float64 [C, 2]: dollars an hour."""

    def __init__(self, catalogue: Catalogue) -> None:
        bought = catalogue.room[:, :2] / np.maximum(catalogue.prices, 1e-12)[:, np.newaxis]
        self.corners = np.array(_corners([(float(cpu), float(memory)) for cpu, memory in bought]))

    def price(self, cpu_milli: float, memory_bytes: float) -> float:
        """Return the least dollars an hour for so much."""
        return float((self.corners @ np.array([cpu_milli, memory_bytes])).max())


def _corners(bought: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the corners of the polygon, of which each prices CPU and memory."""
    points = sorted(bought)
    most_cpu, most_memory = max(cpu for cpu, _ in points), max(memory for _, memory in points)
    hull: list[tuple[float, float]] = []  # the upper right part, from the most memory to the most CPU
    for cpu, memory in points:
        while hull and hull[-1][1] <= memory:
            hull.pop()
        while len(hull) > 1 and _is_inside(hull[-2], hull[-1], (cpu, memory)):
            hull.pop()
        hull.append((cpu, memory))
    corners = [(1.0 / most_cpu, 0.0), (0.0, 1.0 / most_memory)]
    for (cpu, memory), (more_cpu, less_memory) in pairwise(hull):
        area = cpu * less_memory - more_cpu * memory
        corners.append(((less_memory - memory) / area, (cpu - more_cpu) / area))
    return corners


def _is_inside(a: tuple[float, float], b: tuple[float, float], c: tuple[float, float]) -> bool:
    """Whether b lies on or below the line from a to c."""
    return (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0]) >= 0.0
