"""The fluid bound: what requests would cost if they were bought by the second at the best price, in fractions of nodes.

CPU and memory that are requested at one moment are covered by amounts of types at the least price. The dual of that
linear programme has two variables, the prices of CPU and of memory. It is largest at a corner of the polygon in which
no type is worth more than it costs; these are the edges of the convex hull of what a dollar buys. Where types have GPUs
there are three variables, and every three of the constraints are tried for a corner.
"""

from collections.abc import Iterable
from itertools import combinations, pairwise

import numpy as np
import numpy.typing as npt

from aaml.cluster.gpu import DEVICE_MILLI
from aaml.cluster.kernels import compiled
from aaml.nodes.catalogue import Catalogue

_SINGULAR, _TOLERANCE = 1e-9, 1e-9
FloatArray = npt.NDArray[np.float64]


class Fluid:
    """Prices requests of CPU, memory and GPUs with the types of a catalogue.

    `corners` float64 [C, 2], or [C, 3] where types have GPUs: dollars an hour.
    """

    def __init__(self, catalogue: Catalogue) -> None:
        if catalogue.gpu_count.any():
            self.corners = _corners_with_gpus(catalogue)
            return
        bought = catalogue.room[:, :2] / np.maximum(catalogue.prices, 1e-12)[:, np.newaxis]
        self.corners = np.array(_corners([(float(cpu), float(memory)) for cpu, memory in bought]))

    def price(self, cpu_milli: float, memory_bytes: float, gpu_milli: float = 0.0) -> float:
        """Return the least dollars an hour for so much; without types that have GPUs these cost nothing."""
        return float(fluid_price(self.corners, cpu_milli, memory_bytes, gpu_milli))


@compiled
def fluid_price(corners: FloatArray, cpu_milli: float, memory_bytes: float, gpu_milli: float) -> float:
    """Return `Fluid.price` of corners float64 [C, 2], or [C, 3] with GPUs."""
    most = -np.inf
    for i in range(len(corners)):
        price = corners[i, 0] * cpu_milli + corners[i, 1] * memory_bytes
        if corners.shape[1] > 2:
            price += corners[i, 2] * gpu_milli
        most = max(most, price)
    return most


def _corners_with_gpus(catalogue: Catalogue) -> FloatArray:
    """Return [C, 3], the corners of {y >= 0: no type offers more than its price}, in units that are about alike."""
    units = np.array([1000.0, float(1 << 30), float(DEVICE_MILLI)])
    offered = np.column_stack([catalogue.room[:, :2], DEVICE_MILLI * catalogue.gpu_count]) / units
    bought = np.unique(offered / np.maximum(catalogue.prices, 1e-12)[:, np.newaxis], axis=0)
    best = [each for each in bought if not ((bought >= each).all(axis=1) & (bought > each).any(axis=1)).any()]
    sides = np.concatenate([np.array(best), np.eye(3)])
    limits = np.concatenate([np.ones(len(best)), np.zeros(3)])
    chosen = np.array(list(combinations(range(len(sides)), 3)))
    regular = np.abs(np.linalg.det(sides[chosen])) > _SINGULAR
    found = np.linalg.solve(sides[chosen[regular]], limits[chosen[regular]][:, :, np.newaxis])[:, :, 0]
    inside = (found >= -_TOLERANCE).all(axis=1) & (found @ np.array(best).T <= 1.0 + _TOLERANCE).all(axis=1)
    return np.asarray(np.maximum(found[inside], 0.0) / units)


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
