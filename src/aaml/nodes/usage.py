"""How long nodes were there, by clock hour: what commitments are settled by, as a cloud settles them.

A commitment is for each clock hour. Nodes that run after one another in an hour use it as one that runs throughout
(https://docs.aws.amazon.com/whitepapers/latest/cost-optimization-reservation-models/usage-billing.html).
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from aaml.cluster.kernels import without_refcount
from aaml.cluster.objects import ZONE_LABEL, Node
from aaml.nodes.commitments import Book, Commitments, Covered, Pool, Settled, settle
from aaml.nodes.prices import capacity_type, kind

FloatArray = npt.NDArray[np.float64]
HOUR_S = 3600.0


def pool_of(node: Node, price: float) -> Pool | None:
    """Return the pool of a node that costs so much on demand; None for a spot node, which no commitment pays for."""
    bought = capacity_type(node)
    if bought not in ("on-demand", "reserved"):
        return None
    return Pool(kind(node), node.labels.get(ZONE_LABEL, ""), price, "reserved" if bought == "reserved" else "on-demand")


class Usage:
    """Adds up for how long nodes were there, in times that were looked at."""

    def __init__(self) -> None:
        self._observed: defaultdict[int, float] = defaultdict(float)  # by clock hour: hours that were looked at
        self._nodes: defaultdict[tuple[int, Pool], float] = defaultdict(float)  # node-hours

    def observe(self, since_s: float, until_s: float) -> None:
        """Look at a time: commitments are paid in it, whether there are nodes or not. Seconds since 1970."""
        for hour, hours in _clock_hours(since_s, until_s):
            self._observed[hour] += hours

    def add(self, pool: Pool, since_s: float, until_s: float) -> None:
        """A node was there."""
        for hour, hours in _clock_hours(since_s, until_s):
            self._nodes[hour, pool] += hours

    def by_hour(self, commitments: Commitments) -> "Hours":
        """Return the hours that were looked at."""
        pools = sorted({pool for _, pool in self._nodes})
        numbers = {pool: number for number, pool in enumerate(pools)}
        places = {hour: place for place, hour in enumerate(sorted(self._observed))}
        nodes = np.zeros((len(places), len(pools)))
        for (hour, pool), hours in self._nodes.items():
            nodes[places[hour], numbers[pool]] = hours
        return Hours(
            commitments.over(pools), np.array(list(places)), np.array([self._observed[each] for each in places]), nodes
        )


@dataclass(frozen=True, eq=False)
class Hours:
    """Clock hours, H of them: `begins` [H] in hours since 1970, `hours` [H] how much of each was looked at.

    `nodes` [H, P]: node-hours of each pool of the `book`.
    """

    book: Book
    begins: npt.NDArray[np.int64]
    hours: FloatArray
    nodes: FloatArray

    def settled(self) -> list[Settled]:
        """Return what each hour came to."""
        return [self.book.settled(nodes, hours) for nodes, hours in zip(self.nodes, self.hours.tolist(), strict=True)]

    @property
    def total(self) -> Covered:
        """What all hours together came to."""
        return sum((each.total for each in self.settled()), Covered())

    def with_amounts(self, amounts: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return what each hour would have come to with other amounts [C]: dollars [H], and how much was used [H, C].

        An amount may be infinite, but what that costs is none.
        """
        dollars, used = np.zeros(len(self.hours)), np.zeros((len(self.hours), len(amounts)))
        book, pools = self.book, len(self.book.pools)
        memory = np.zeros(pools), np.zeros(len(amounts)), np.zeros(len(book.steps))
        _play(amounts, book.steps, book.prices, self.nodes, self.hours, *memory, dollars, used)
        finite = np.isfinite(amounts)
        dollars += self.nodes @ book.prices
        return dollars + float(amounts[finite] @ book.commitments.unit_dollars[finite]) * self.hours, used


def _clock_hours(since_s: float, until_s: float) -> Iterator[tuple[int, float]]:
    """Yield the clock hours of a time, and how much of each it takes, in hours."""
    while since_s < until_s:
        hour = int(since_s // HOUR_S)
        end_s = min(until_s, (hour + 1) * HOUR_S)
        yield hour, (end_s - since_s) / HOUR_S
        since_s = end_s


@without_refcount
def _play(
    amounts: FloatArray, steps: FloatArray, prices: FloatArray, nodes: FloatArray, hours: FloatArray,
    left: FloatArray, free: FloatArray, taken: FloatArray, dollars: FloatArray, used: FloatArray,
) -> None:  # fmt: skip
    """Take what commitments pay for in each hour from `dollars` [H]; add what that uses of them to `used` [H, C]."""
    for hour in range(len(hours)):
        dollars[hour] -= settle(amounts, steps, prices, nodes[hour], hours[hour], left, free, taken)
        for step in range(len(steps)):
            used[hour, int(steps[step, 0])] += taken[step] * steps[step, 2]
