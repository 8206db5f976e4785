"""ObservationLog: what was seen at one decision after the other, each kept as its difference from the one before.

An observation of 1,000 nodes has 150 KB, and from one decision to the next a node or two of the cluster change: these
are kept, and features are computed from them again when a learner asks for them.
"""

from collections.abc import Sequence
from dataclasses import fields
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from aaml.scheduling.observation import Observation, RawObservation

if TYPE_CHECKING:
    from aaml.cluster.topology import Graph

WHOLE_EVERY = 16  # the longest way back to arrays that are kept whole
_ARRAYS = tuple(field.name for field in fields(RawObservation) if field.name not in {"gpu", "graph"})
Array = npt.NDArray[Any]


class Change(NamedTuple):
    """New `values` of an array at the `places` of its flattened form."""

    places: npt.NDArray[np.int32]
    values: Array


class Entry(NamedTuple):
    """One raw observation: of each array the whole, what changed, or None where nothing did; the graph's number."""

    number: int
    whole: bool
    arrays: tuple[Array | Change | None, ...]
    gpu: tuple[int, int]
    graph: int


class ObservationLog:
    """Numbers observations from 0 on as they are written, and gives them back for as long as they are not forgotten.

    A twin in another process takes the `entries` and the `graphs` of this one, and gives back the same.
    """

    def __init__(self) -> None:
        self.graphs: dict[int, Graph] = {}
        self._entries: list[Entry] = []  # the first one is whole
        self._written = 0
        self._latest: list[Array] = []
        self._whole: tuple[Any, ...] = ()  # the arrays of the latest whole entry

    def __len__(self) -> int:
        """How many observations are kept."""
        return len(self._entries)

    @property
    def begin(self) -> int:
        """The number of the first one that is kept, of the next one where none is."""
        return self._entries[0].number if self._entries else self._written

    @property
    def end(self) -> int:
        """The number that the next one gets."""
        return self._entries[-1].number + 1 if self._entries else self._written

    def write(self, raw: RawObservation) -> int:
        """Keep a raw observation, and return its number."""
        arrays = [getattr(raw, name) for name in _ARRAYS]
        number = self._written
        latest = self._latest
        whole = number % WHOLE_EVERY == 0 or [a.shape for a in arrays] != [a.shape for a in latest]
        if whole:
            self._latest = [array.copy() for array in arrays]
            kept: tuple[Array | Change | None, ...] = self._kept_whole(tuple(array.copy() for array in arrays))
        else:
            kept = tuple(_change(new, old) for new, old in zip(arrays, latest, strict=True))
        graph = max(self.graphs, default=-1)
        if graph < 0 or self.graphs[graph] is not raw.graph:
            graph += 1
            self.graphs[graph] = raw.graph
        self._entries.append(Entry(number, whole, kept, raw.gpu, graph))
        self._written = number + 1
        return number

    def entries(self, start: int) -> list[Entry]:
        """Return what is kept from number `start` on."""
        return self._entries[max(start - self.begin, 0) :]

    def take(self, entries: Sequence[Entry]) -> None:
        """Append entries of another log, so that this one holds the same observations as that one."""
        self._entries += (
            entry._replace(arrays=self._kept_whole(entry.arrays)) if entry.whole else entry for entry in entries
        )

    def read(self, number: int) -> RawObservation:
        """Return a raw observation. Raises IndexError for one that was forgotten or never written."""
        place = number - self.begin
        if not 0 <= place < len(self._entries):
            raise IndexError(f"observation {number} is not kept")
        begin = self._whole_before(place)
        arrays: list[Array] = [np.array(array) for array in self._entries[begin].arrays]
        for entry in islice(self._entries, begin + 1, place + 1):
            for i, change in enumerate(entry.arrays):
                if isinstance(change, Change):
                    arrays[i].reshape(-1)[change.places] = change.values
                elif change is not None:
                    arrays[i] = change.copy()
        entry = self._entries[place]
        return RawObservation(**dict(zip(_ARRAYS, arrays, strict=True)), gpu=entry.gpu, graph=self.graphs[entry.graph])

    def forget(self, before: int) -> None:
        """Drop what no observation from `before` on needs."""
        place = min(before - self.begin, len(self._entries) - 1)
        if place <= 0:
            return
        begin = self._whole_before(place)
        if begin:
            del self._entries[:begin]
            oldest = self._entries[0].graph
            for graph in [graph for graph in self.graphs if graph < oldest]:
                del self.graphs[graph]

    def _kept_whole(self, arrays: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return whole arrays, those that are as they were in the latest whole entry as the very same objects.

        Most of what there is to see of a large cluster stays as it is, and would be kept hundreds of times.
        """
        before = self._whole or arrays
        self._whole = tuple(old if np.array_equal(new, old) else new for new, old in zip(arrays, before, strict=True))
        return self._whole

    def _whole_before(self, place: int) -> int:
        return next(i for i in range(place, -1, -1) if self._entries[i].whole)


class Recalled:
    """An `Observation` that is computed from a log when it is looked at, and not kept.

    `memory` is a `Recaller`; it holds the features of the latest ones for a while.
    """

    __slots__ = ("_recaller", "number")

    def __init__(self, recaller: "Recaller", number: int) -> None:
        self._recaller, self.number = recaller, number

    def __getattr__(self, name: str) -> Any:
        """Return a field of the observation."""
        return getattr(self._recaller.observation(self.number), name)


class Recaller:
    """Gives the raw observations of a log as features, and holds those of the last `nodes` nodes or so."""

    def __init__(self, log: ObservationLog, nodes: int) -> None:
        self._log, self._nodes = log, nodes
        self._known: dict[int, Recalled] = {}
        self._computed: dict[int, Observation] = {}

    def recall(self, number: int | None) -> Recalled | None:
        """Return the features of one, the same object each time; None for None."""
        if number is None:
            return None
        return self._known.setdefault(number, Recalled(self, number))

    def observation(self, number: int) -> Observation:
        """Return the features of one."""
        found = self._computed.get(number)
        if found is None:
            found = self._log.read(number).observation()
            while self._computed and (len(self._computed) + 1) * len(found.mask) > self._nodes:
                del self._computed[next(iter(self._computed))]
            self._computed[number] = found
        return found

    def forget(self, before: int) -> None:
        """Drop the observations before one."""
        self._log.forget(before)
        for kept in (self._known, self._computed):
            for number in [number for number in kept if number < before]:
                del kept[number]


def _change(new: Array, old: Array) -> Array | Change | None:
    """Return what tells `new` from `old`, which becomes it."""
    flat, before = new.reshape(-1), old.reshape(-1)
    (places,) = (flat != before).nonzero()  # `flatnonzero` costs twice as much
    if not len(places):
        return None
    if 3 * len(places) > len(flat):
        old[...] = new
        return new.copy()
    values = before[places] = flat[places]
    return Change(places.astype(np.int32), values)
