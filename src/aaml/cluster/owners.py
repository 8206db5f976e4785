"""OwnerIndex: how many pods of a deployment each node has, without looking at all pods."""

from collections import Counter, OrderedDict
from typing import cast

import numpy as np
import numpy.typing as npt

from aaml.cluster.objects import Pod
from aaml.cluster.state import ClusterState

_KEPT = 64  # arrays of [N] for the owners asked for last


class OwnerIndex:
    """Counts of placed pods by owner over one cluster state, kept current while pods come and go."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self._by_node: dict[str, Counter[str]] = {}  # owner -> node name -> pods; names outlive changes of nodes
        self._arrays: OrderedDict[str, npt.NDArray[np.float64]] = OrderedDict()
        self._generation = state.topology_generation
        for placement in state.placements.values():
            self._observe(placement.pod, placement.node_name, placed=True)
        state.observe(lambda pod, node_name, placed: self._observe(pod, node_name, placed=placed))

    @classmethod
    def of(cls, state: ClusterState) -> "OwnerIndex":
        """Return the state's own index, made at the first call."""
        index = state.indexes.get(cls)
        if index is None:
            index = state.indexes[cls] = cls(state)
        return cast("OwnerIndex", index)

    def counts(self, owner: str) -> npt.NDArray[np.float64]:
        """Return [N] how many placed pods of an owner each node has. The array is shared: do not write."""
        if self._generation != self._state.topology_generation:
            self._generation = self._state.topology_generation
            self._arrays.clear()
        array = self._arrays.get(owner)
        if array is None:
            array = np.zeros(len(self._state))
            for name, count in self._by_node.get(owner, {}).items():
                array[self._state.index[name]] = count
            self._arrays[owner] = array
            if len(self._arrays) > _KEPT:
                self._arrays.popitem(last=False)
        else:
            self._arrays.move_to_end(owner)
        return array

    def faults(self) -> list[str]:
        """Return what differs from an index made anew, in words; empty when nothing does."""
        fresh = OwnerIndex(self._state.fork())
        if self._by_node != fresh._by_node:
            return [f"pods by owner are counted as {self._by_node}, and are {fresh._by_node}"]
        if self._generation != self._state.topology_generation:
            return []
        wrong = [owner for owner, array in self._arrays.items() if not np.array_equal(array, fresh.counts(owner))]
        return [f"pods of {owner} by node are counted wrongly" for owner in wrong]

    def _observe(self, pod: Pod, node_name: str, *, placed: bool) -> None:
        if not pod.owner:
            return
        nodes = self._by_node.setdefault(pod.owner, Counter())
        nodes[node_name] += 1 if placed else -1
        if not nodes[node_name]:
            del nodes[node_name]
            if not nodes:
                del self._by_node[pod.owner]
        array = self._arrays.get(pod.owner)
        if array is not None and self._generation == self._state.topology_generation:
            array[self._state.index[node_name]] += 1.0 if placed else -1.0
