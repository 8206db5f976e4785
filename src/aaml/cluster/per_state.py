"""PerState: something made from the nodes of a cluster state, kept for as long as that state and its nodes last."""

from collections.abc import Callable
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary

from aaml.cluster.state import ClusterState

T = TypeVar("T")


class PerState(Generic[T]):
    """Calls `build` once for each state, and again after a node has come, gone or changed.

    It is the state itself that is remembered, not its `topology_generation`: two states, and a state and its fork, may
    have the same generation and different nodes. The reference to the state is weak.
    """

    def __init__(self, build: Callable[[ClusterState], T]) -> None:
        self._build = build
        self._kept: WeakKeyDictionary[ClusterState, tuple[int, T]] = WeakKeyDictionary()

    def __call__(self, state: ClusterState) -> T:
        """Return what `build` made, the same object as long as the state's nodes are the same."""
        kept = self._kept.get(state)
        if kept is None or kept[0] != state.topology_generation:
            kept = self._kept[state] = (state.topology_generation, self._build(state))
        return kept[1]
