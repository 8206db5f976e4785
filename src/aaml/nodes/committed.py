"""Commitments over the nodes of a simulated cluster: what its meter and learned nodes ask."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Self

import numpy as np

from aaml.cluster.kernels import interpreted
from aaml.nodes.catalogue import InstanceType, Offering
from aaml.nodes.catalogue_file import read_types
from aaml.nodes.commitments import (
    NOTHING_COMMITTED,
    Book,
    Commitments,
    FloatArray,
    Pool,
    read_commitments,
    settle,
)


def find_commitments(path: Path | None, instance_types: Path | None) -> Commitments:
    """Return the commitments of a file, none without one; of a file of instance types each name has to be one.

    Raises `UserError`.
    """
    if path is None:
        return NOTHING_COMMITTED
    known = () if instance_types is None else read_types(instance_types, every=True)
    return read_commitments(path, (each.name for each in known))


def pool_of(kind: InstanceType, offering: Offering, commitments: Commitments) -> Pool:
    """Return the pool of a node; its zone is told where a reservation of the type has one."""
    zones = {each.zone for each in commitments.reservations if each.instance_type == kind.name}
    return Pool(kind.name, offering.zone if offering.zone in zones else "", offering.price, offering.capacity_type)


def book_of(commitments: Commitments, types: Iterable[InstanceType]) -> Book:
    """Return commitments over a pool for each type, of nodes that are launched where that is cheapest."""
    return commitments.over([pool_of(kind, kind.cheapest, commitments) for kind in types])


def zoned(commitments: Commitments, types: Iterable[InstanceType]) -> str:
    """Return the name of a type of which commitments tell nodes apart that cost the same, "" for none."""
    return next(
        (kind.name for kind in types if len({pool_of(kind, each, commitments) for each in kind.launched}) > 1), ""
    )


@dataclass(eq=False)
class CommittedNodes:
    """Nodes that are there, and what commitments take off their prices."""

    commitments: Commitments
    types: tuple[InstanceType, ...]
    book: Book = field(init=False)
    off: float = field(init=False)
    """What the nodes cost less than their prices, dollars an hour: below 0 where commitments are not used."""
    nodes: FloatArray = field(init=False)

    def __post_init__(self) -> None:
        ways = chain.from_iterable(((kind, each) for each in kind.offerings) for kind in self.types)
        self.book = self.commitments.over(
            list(dict.fromkeys(pool_of(kind, each, self.commitments) for kind, each in ways))
        )
        self._numbers = {pool: number for number, pool in enumerate(self.book.pools)}
        self.nodes, self.off = np.zeros(len(self._numbers)), 0.0 - self.book.fixed

    def add(self, kind: InstanceType, offering: Offering, count: int) -> None:
        """So many more nodes are there, or less."""
        self.nodes[self._numbers[pool_of(kind, offering, self.commitments)]] += count
        book, left, free = self.book, np.zeros(len(self.nodes)), np.zeros(len(self.book.amounts))
        covered = interpreted(settle)(book.amounts, book.steps, book.prices, self.nodes, 1.0, left, free, free[:0])
        self.off = covered - book.fixed

    def copy(self) -> Self:
        """Return an independent copy."""
        twin = type(self)(self.commitments, self.types)
        twin.nodes, twin.off = self.nodes.copy(), self.off
        return twin
