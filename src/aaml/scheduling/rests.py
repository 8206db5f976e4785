"""RunningPods: what of each node's load is expected to remain, and when each node is expected to be empty."""

from typing import Any, Self

import numpy as np
import numpy.typing as npt

from aaml.cluster.kernels import uncounted
from aaml.cluster.objects import Pod
from aaml.cluster.state import ClusterState
from aaml.scheduling.lifetimes import LifetimeModel, mean_rest, survival

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

HORIZONS_S: FloatArray = np.array([60.0, 600.0, 3600.0])
LOADS = 3  # CPU, memory, GPU
_CLASS, _ROW = range(2)
_SINCE, _LIMIT, _AMOUNTS = range(3)  # amounts: CPU milli, memory bytes, GPU milli, from _AMOUNTS on


class RunningPods:
    """The placed pods of one state as arrays, as a lifetime model sees them; kept current as they come and go."""

    def __init__(self, state: ClusterState, model: LifetimeModel) -> None:
        self._state, self.model = state, model
        self._slots: dict[str, int] = {}  # by pod uid
        self._pods: list[Pod] = []
        self._names: list[str] = []  # of the nodes, by slot
        self._facts: IntArray = np.zeros((2, 64), dtype=np.int64)
        self._times: FloatArray = np.zeros((_AMOUNTS + LOADS, 64))
        self._seen = state.topology_generation, len(model)
        for placement in state.placements.values():
            self._observe(placement.pod, placement.node_name, placed=True)
        state.observe(lambda pod, node_name, placed: self._observe(pod, node_name, placed=placed))

    @classmethod
    def of(cls, state: ClusterState, model: LifetimeModel) -> Self:
        """Return the state's own view through a model, made at the first call."""
        views: dict[int, Any] = state.indexes.setdefault(cls, {})
        view = views.get(id(model))
        if view is None:
            view = views[id(model)] = cls(state, model)
        return view

    def remaining(self, now_s: float) -> tuple[FloatArray, FloatArray]:
        """Return what is expected of each node's pods.

        The first is float64 [N, H, 3]: CPU (milli-cores), memory (bytes) and GPU (thousandths of a device) that they
        are expected still to hold after each of `HORIZONS_S`. The second is float64 [N]: the longest rest that is
        expected of any, in seconds, 0 for an empty node.
        """
        self._refresh()
        load = np.zeros((len(self._state), len(HORIZONS_S), LOADS))
        empty_s = np.zeros(len(self._state))
        _remain(self.model.table, now_s, len(self._pods), self._facts, self._times, HORIZONS_S, load, empty_s)
        return load, empty_s

    def empty_s(self, now_s: float) -> FloatArray:
        """Return only the second of what `remaining` returns."""
        self._refresh()
        empty_s = np.zeros(len(self._state))
        nothing = np.zeros((len(self._state), 0, LOADS))
        _remain(self.model.table, now_s, len(self._pods), self._facts, self._times, HORIZONS_S[:0], nothing, empty_s)
        return empty_s

    def _refresh(self) -> None:
        """Look rows up again after a change of the nodes, and classes after the model has learned of new ones."""
        seen = self._state.topology_generation, len(self.model)
        if seen != self._seen:
            self._seen = seen
            for slot, pod in enumerate(self._pods):
                self._facts[_CLASS, slot] = self.model.row(pod)
                self._facts[_ROW, slot] = self._state.index[self._names[slot]]

    def _observe(self, pod: Pod, node_name: str, *, placed: bool) -> None:
        if not placed:
            slot, last = self._slots.pop(pod.uid), len(self._pods) - 1
            moved, name = self._pods.pop(), self._names.pop()
            if slot != last:
                self._pods[slot], self._names[slot], self._slots[moved.uid] = moved, name, slot
                self._facts[:, slot], self._times[:, slot] = self._facts[:, last], self._times[:, last]
            return
        slot = self._slots[pod.uid] = len(self._pods)
        if slot == self._facts.shape[1]:
            self._facts = np.concatenate([self._facts, np.zeros_like(self._facts)], axis=1)
            self._times = np.concatenate([self._times, np.zeros_like(self._times)], axis=1)
        self._pods.append(pod)
        self._names.append(node_name)
        self._facts[:, slot] = self.model.row(pod), self._state.index[node_name]
        since_s = self._state.placements[pod.uid].since_s
        amounts = pod.requests.get("cpu", 0), pod.requests.get("memory", 0), pod.gpu.total_milli
        self._times[:, slot] = since_s, self.model.limit_s(pod), *amounts


@uncounted
def _remain(table, now_s, count, facts, times, horizons_s, load, empty_s):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """Add up what `RunningPods.remaining` returns."""
    for slot in range(count):
        kind, row = facts[_CLASS, slot], facts[_ROW, slot]
        age_s, limit_s = max(now_s - times[_SINCE, slot], 0.0), times[_LIMIT, slot]
        empty_s[row] = max(empty_s[row], mean_rest(table, kind, age_s, limit_s))
        for h in range(len(horizons_s)):
            share = survival(table, kind, age_s, horizons_s[h], limit_s)
            for r in range(LOADS):
                load[row, h, r] += share * times[_AMOUNTS + r, slot]
