"""Several objectives at once: who is dominated by nobody, and whom NSGA-II keeps.

Deb, Pratap, Agarwal, Meyarivan: A Fast and Elitist Multiobjective Genetic Algorithm: NSGA-II (2002). Objectives are
float64 [n, K], lower is better; [n] points are told by their numbers.
"""

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


def fronts(objectives: FloatArray) -> list[IntArray]:
    """Return the points by rank: those that no point dominates, those that only the first do, and so on."""
    mine, other = objectives[:, None], objectives[None]
    dominates = np.all(mine <= other, axis=2) & np.any(mine < other, axis=2)
    by = dominates.sum(axis=0)
    left = np.ones(len(objectives), dtype=np.bool_)
    found = []
    while left.any():
        front = np.flatnonzero(left & (by == 0))
        found.append(front)
        left[front] = False
        by = by - dominates[front].sum(axis=0)
    return found


def crowding(objectives: FloatArray) -> FloatArray:
    """Return how far the neighbours of each point of a front are apart, float64 [n]; infinite at the ends."""
    n, k = objectives.shape
    distance = np.zeros(n)
    for column in range(k):
        order = np.argsort(objectives[:, column], kind="stable")
        values = objectives[order, column]
        distance[order[[0, -1]]] = np.inf
        with np.errstate(invalid="ignore"):  # infinity less infinity
            if (span := values[-1] - values[0]) > 0:
                distance[order[1:-1]] += (values[2:] - values[:-2]) / span
    return distance


def survivors(objectives: FloatArray, count: int) -> tuple[IntArray, IntArray, FloatArray]:
    """Return whom NSGA-II keeps of all points, best first, with the rank and the crowding distance of each."""
    kept: list[IntArray] = []
    ranks: list[IntArray] = []
    distances: list[FloatArray] = []
    left = count
    for rank, front in enumerate(fronts(objectives)):
        distance = crowding(objectives[front])
        order = np.argsort(-distance, kind="stable")[:left]
        kept.append(front[order])
        ranks.append(np.full(len(order), rank))
        distances.append(distance[order])
        left -= len(order)
        if not left:
            break
    return np.concatenate(kept), np.concatenate(ranks), np.concatenate(distances)


def ranked(objectives: FloatArray, violations: FloatArray) -> IntArray:
    """Return all points, the best first: who keeps all limits, then who breaks them by less, [n] (0: kept).

    Deb: An efficient constraint handling method for genetic algorithms (2000).
    """
    order = survivors(objectives, len(objectives))[0]
    return order[np.argsort(violations[order], kind="stable")]
