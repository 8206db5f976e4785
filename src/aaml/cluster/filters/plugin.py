"""What a filter plugin is, and how it tells why nodes were rejected."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from aaml.cluster.filters.index import BoolArray, FilterIndex
from aaml.cluster.objects import Pod


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why a plugin rejected nodes: each reason with the nodes [N] it holds for (a node may have several).

    `unresolvable` [N]: nodes where no preemption would help.
    """

    reasons: tuple[tuple[str, BoolArray], ...]
    unresolvable: BoolArray


Passes = Callable[[FilterIndex, Pod], BoolArray | None]
Explain = Callable[[FilterIndex, Pod, BoolArray], Rejection]


@dataclass(frozen=True, slots=True)
class Filter:
    """A filter plugin under kube-scheduler's name.

    `passes` returns [N] which nodes pass, None when the pod asks nothing of it. `explain` gets the nodes that this
    plugin is the first to reject. `rejects_all` returns why the pod can be on no node whatever the nodes are ("" when
    that is not so), which kube-scheduler finds before it looks at nodes.
    """

    name: str
    passes: Passes
    explain: Explain
    rejects_all: Callable[[FilterIndex, Pod], str] | None = None


def one_reason(reason: str, *, unresolvable: bool) -> Explain:
    """Return the `explain` of a plugin that has only one thing to say."""

    def explain(_index: FilterIndex, _pod: Pod, candidates: BoolArray) -> Rejection:
        return Rejection(((reason, candidates),), candidates if unresolvable else np.zeros_like(candidates))

    return explain
