"""What running pods are expected to leave: each node's load in a while, and when it is empty; as features, too."""

from typing import Any, Self

import numpy as np
import numpy.typing as npt

from aaml.cluster.kernels import columns, with_refcount, without_refcount
from aaml.cluster.objects import Pod
from aaml.cluster.state import CPU_COLUMN, MEMORY_COLUMN, ClusterState
from aaml.scheduling.lifetimes import LifetimeModel, LifetimeTable, mean_remaining, survival

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
FeatureArray = npt.NDArray[np.float32]

HORIZONS_S: FloatArray = np.array([60.0, 600.0, 3600.0])
LOADS = 3
LOAD = columns(("cpu", "memory", "gpu"))
NODE_REMAINING = (
    "cpu_in_1m", "memory_in_1m", "gpu_in_1m", "cpu_in_10m", "memory_in_10m", "gpu_in_10m", "cpu_in_1h", "memory_in_1h",
    "gpu_in_1h", "empty_in",
)  # fmt: skip
PAIR_REMAINING = ("extends", "outlived")
_NODE, _PAIR = columns(NODE_REMAINING), columns(PAIR_REMAINING)
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

    def remaining(self, now_s: float) -> tuple[IntArray, FloatArray]:
        """Return what is expected of each node's pods.

        The first is int64 [N, H, 3]: CPU (milli-cores), memory (bytes) and GPU (thousandths of a device) that they
        are expected still to hold after each of `HORIZONS_S`. The second is float64 [N]: the longest rest that is
        expected of any, in seconds, 0 for an empty node.
        """
        return self._remain(now_s, len(HORIZONS_S))

    def empty_s(self, now_s: float) -> FloatArray:
        """Return only the second of what `remaining` returns."""
        return self._remain(now_s, 0)[1]

    def features(self, remaining_s: float, now_s: float) -> npt.NDArray[np.float32]:
        """Return float32 [N, 12], `NODE_REMAINING` and `PAIR_REMAINING` of a pod that is to run for `remaining_s`."""
        load, empty_s = self.remaining(now_s)
        state = self._state
        shown = np.zeros((len(state), len(NODE_REMAINING) + len(PAIR_REMAINING)), dtype=np.float32)
        nodes, pairs = shown[:, : len(NODE_REMAINING)], shown[:, len(NODE_REMAINING) :]
        show_remaining(load, empty_s, remaining_s, state.allocatable, state.gpu_count, nodes, pairs)
        return shown

    def faults(self) -> list[str]:
        """Return what differs from a view made anew, in words; empty when nothing does."""
        self._refresh()
        fresh = RunningPods(self._state.fork(), self.model)
        wrong = self._slots.keys() ^ fresh._slots.keys()
        for uid in self._slots.keys() & fresh._slots.keys():
            mine, other = self._slots[uid], fresh._slots[uid]
            same = np.array_equal(self._facts[:, mine], fresh._facts[:, other])
            if not same or not np.array_equal(self._times[:, mine], fresh._times[:, other]):
                wrong.add(uid)
        return [f"running pods are counted wrongly: {', '.join(sorted(wrong))}"] if wrong else []

    def _remain(self, now_s: float, horizons: int) -> tuple[IntArray, FloatArray]:
        self._refresh()
        load = np.zeros((len(self._state), horizons, LOADS), dtype=np.int64)
        empty_s = np.zeros(len(self._state))
        _remain(self.model.table, now_s, len(self._pods), self._facts, self._times, load, empty_s)
        return load, empty_s

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


@without_refcount
def _remain(
    table: LifetimeTable, now_s: float, count: int, facts: IntArray, times: FloatArray, load: IntArray,
    empty_s: FloatArray,
) -> None:  # fmt: skip
    """Add up what `RunningPods.remaining` returns."""
    for slot in range(count):
        age_s = max(now_s - times[_SINCE, slot], 0.0)
        add_remaining(
            load, empty_s, facts[_ROW, slot], table, facts[_CLASS, slot], age_s, times[_LIMIT, slot],
            times[_AMOUNTS, slot], times[_AMOUNTS + 1, slot], times[_AMOUNTS + 2, slot],
        )  # fmt: skip


@without_refcount
def add_remaining(
    load: IntArray, empty_s: FloatArray, row: int, table: LifetimeTable, kind: int, age_s: float, limit_s: float,
    cpu: float, memory: float, gpu: float,
) -> None:  # fmt: skip
    """Add what is expected of one running pod to `load` int64 [N, H, 3] and `empty_s` float64 [N].

    Loads are whole numbers, so that it does not matter in which order pods are added.
    """
    empty_s[row] = max(empty_s[row], mean_remaining(table, kind, age_s, limit_s))
    for h in range(load.shape[1]):
        share = survival(table, kind, age_s, HORIZONS_S[h], limit_s)
        load[row, h, LOAD.cpu] += int(np.rint(share * cpu))
        load[row, h, LOAD.memory] += int(np.rint(share * memory))
        load[row, h, LOAD.gpu] += int(np.rint(share * gpu))


@with_refcount
def log_minutes(seconds: Any) -> Any:
    """Return log(1 + minutes) / 5, of about unit size for what lasts from a minute to a day."""
    return 0.2 * np.log1p(seconds / 60.0)


@without_refcount
def show_remaining(
    load: IntArray, empty_s: FloatArray, remaining_s: float, allocatable: IntArray, gpu_count: IntArray,
    nodes: FeatureArray, pairs: FeatureArray,
) -> None:  # fmt: skip
    """Write `NODE_REMAINING` [N, 10] into `nodes`, and `PAIR_REMAINING` [N, 2] of a pod to run `remaining_s`."""
    for i in range(len(empty_s)):
        for h in range(load.shape[1]):
            first = LOADS * h  # of this horizon's columns
            nodes[i, first + LOAD.cpu] = load[i, h, LOAD.cpu] / max(allocatable[i, CPU_COLUMN], 1)
            nodes[i, first + LOAD.memory] = load[i, h, LOAD.memory] / max(allocatable[i, MEMORY_COLUMN], 1)
            nodes[i, first + LOAD.gpu] = load[i, h, LOAD.gpu] / (1000.0 * max(gpu_count[i], 1))
        nodes[i, _NODE.empty_in] = log_minutes(empty_s[i])
        pairs[i, _PAIR.extends] = log_minutes(max(remaining_s - empty_s[i], 0.0))
        pairs[i, _PAIR.outlived] = log_minutes(max(empty_s[i] - remaining_s, 0.0))
