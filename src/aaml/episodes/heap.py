"""A binary heap of what happens later, by time and then by the order in which it was said, in compiled code."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from aaml.cluster.kernels import inlined, outlined

_SEQUENCE, _KIND, _SUBJECT = range(3)


class Heap(NamedTuple):
    """Entries [E]: when, and int32 [3, E]: the how-manieth that was said, of which kind, and about what."""

    at_s: npt.NDArray[np.float64]
    facts: npt.NDArray[np.int32]


@inlined
def first(heap: Heap) -> tuple[int, int, int]:
    """Return the facts of the first entry."""
    return heap.facts[_SEQUENCE, 0], heap.facts[_KIND, 0], heap.facts[_SUBJECT, 0]


@inlined
def _is_before(heap: Heap, place: int, at_s: float, sequence: int) -> bool:
    return heap.at_s[place] < at_s or (heap.at_s[place] == at_s and heap.facts[_SEQUENCE, place] < sequence)


@inlined
def _put(heap: Heap, place: int, at_s: float, sequence: int, kind: int, subject: int) -> None:
    heap.at_s[place] = at_s
    heap.facts[_SEQUENCE, place], heap.facts[_KIND, place], heap.facts[_SUBJECT, place] = sequence, kind, subject


@inlined
def _move(heap: Heap, source: int, target: int) -> None:
    _put(
        heap, target, heap.at_s[source], heap.facts[_SEQUENCE, source], heap.facts[_KIND, source],
        heap.facts[_SUBJECT, source],
    )  # fmt: skip


@outlined
def add(heap: Heap, count: int, at_s: float, sequence: int, kind: int, subject: int) -> None:
    """Add to a heap of `count` entries."""
    place = count
    while place > 0 and not _is_before(heap, (place - 1) // 2, at_s, sequence):
        _move(heap, (place - 1) // 2, place)
        place = (place - 1) // 2
    _put(heap, place, at_s, sequence, kind, subject)


@outlined
def drop_first(heap: Heap, count: int) -> None:
    """Take the first of a heap of `count` entries away."""
    last, place = count - 1, 0
    at_s, sequence = heap.at_s[last], heap.facts[_SEQUENCE, last]
    kind, subject = heap.facts[_KIND, last], heap.facts[_SUBJECT, last]
    while 2 * place + 1 < last:
        child = 2 * place + 1
        if child + 1 < last and _is_before(heap, child + 1, heap.at_s[child], heap.facts[_SEQUENCE, child]):
            child += 1
        if not _is_before(heap, child, at_s, sequence):
            break
        _move(heap, child, place)
        place = child
    _put(heap, place, at_s, sequence, kind, subject)
