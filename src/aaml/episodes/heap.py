"""A binary heap of what happens later, by time and then by the order in which it was said, in compiled code."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from aaml.cluster.kernels import part, section

_SEQUENCE, _KIND, _SUBJECT = range(3)


class Heap(NamedTuple):
    """Entries [E]: when, and int32 [3, E]: the how-manieth that was said, of which kind, and about what."""

    at_s: npt.NDArray[np.float64]
    facts: npt.NDArray[np.int32]


@part
def first(heap):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """Return the facts of the first entry."""
    return heap.facts[_SEQUENCE, 0], heap.facts[_KIND, 0], heap.facts[_SUBJECT, 0]


@part
def _is_before(heap, place, at_s, sequence):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    return heap.at_s[place] < at_s or (heap.at_s[place] == at_s and heap.facts[_SEQUENCE, place] < sequence)


@part
def _put(heap, place, at_s, sequence, kind, subject):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    heap.at_s[place] = at_s
    heap.facts[_SEQUENCE, place], heap.facts[_KIND, place], heap.facts[_SUBJECT, place] = sequence, kind, subject


@part
def _move(heap, source, target):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    _put(
        heap, target, heap.at_s[source], heap.facts[_SEQUENCE, source], heap.facts[_KIND, source],
        heap.facts[_SUBJECT, source],
    )  # fmt: skip


@section
def add(heap, count, at_s, sequence, kind, subject):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """Add to a heap of `count` entries."""
    place = count
    while place > 0 and not _is_before(heap, (place - 1) // 2, at_s, sequence):
        _move(heap, (place - 1) // 2, place)
        place = (place - 1) // 2
    _put(heap, place, at_s, sequence, kind, subject)


@section
def drop_first(heap, count):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
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
