"""Fragment amounts of a cluster state, for metrics, rewards and features, and the tables they are counted with."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from aaml.cluster.kernels import compiled, with_refcount
from aaml.cluster.objects import Pod
from aaml.cluster.state import CPU_COLUMN, ClusterState
from aaml.policies.fragmentation import FragmentTables, TypicalPods, fragment_amount, fragment_tables, typical_pods
from aaml.policies.gpu.arrays import NodeArrays, pod_shape, state_arrays
from aaml.policies.gpu.features import make_scratch
from aaml.policies.gpu.fit import fits
from aaml.policies.gpu.scores import MAX_SCORE, fragmentation_gradient

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


_KEPT_TABLES = 8


class StateTables:
    """The fragment tables of typical pods for any cluster state.

    Tables depend on the state's list of GPU models and on the largest number of devices of a node, and on nothing else
    of it. They are remembered by those, so that forks and states with equal devices share them.
    """

    def __init__(self, typical: TypicalPods) -> None:
        self._typical = typical
        self._kept: dict[tuple[tuple[str, ...], int], FragmentTables] = {}

    def __call__(self, state: ClusterState) -> FragmentTables:
        """Return the tables that fit the state's arrays."""
        key = (tuple(state.gpu_models), state.gpu_free.shape[1])
        tables = self._kept.get(key)
        if tables is None:
            if len(self._kept) >= _KEPT_TABLES:
                self._kept.clear()
            tables = self._kept[key] = fragment_tables(self._typical, *key)
        return tables


@dataclass(frozen=True)
class FragmentMeter:
    """Measures the fragments of a state, as the typical ones of the expected pods weigh them.

    They are those of Weng et al., USENIX ATC 2023. A meter is a `Fragmentation` (see `aaml.cluster.metrics`) and a
    `FragmentGrowth`, and meters of the same typical pods are equal.
    """

    typical: TypicalPods

    @classmethod
    def of(cls, expected: Sequence[Pod]) -> "FragmentMeter | None":
        """Return the meter of the pods that are expected, None when none of them asks for a GPU."""
        return cls(typical_pods(expected)) if any(pod.gpu.count for pod in expected) else None

    @cached_property
    def _tables(self) -> StateTables:
        return StateTables(self.typical)

    def __call__(self, state: ClusterState) -> FloatArray:
        """Return float64 [N], the thousandths of a GPU that are fragments."""
        amounts: FloatArray = _amounts(
            state.allocatable, state.requested, state.gpu_free, state.gpu_count, state.gpu_model, self._tables(state)
        )
        return amounts

    def growth(self, state: ClusterState, pod: Pod) -> FloatArray:
        """Return float64 [N], by how much each node's fragments would grow with the pod.

        It is 0 where the pod does not fit.
        """
        if not state.gpu_count.any():
            return np.zeros(len(state))
        shape = pod_shape(pod, state.gpu_models)
        growth = np.zeros(len(state))
        tables = self._tables(state)
        scratch = make_scratch(tables, 0, 0)
        fragment_growth(state_arrays(state), shape, tables, scratch.sums, scratch.counts, scratch.bins, growth)
        return growth


@with_refcount
def fragment_growth(
    nodes: NodeArrays, shape: IntArray, tables: FragmentTables, sums: IntArray, counts: IntArray, bins: FloatArray,
    growth: FloatArray,
) -> None:  # fmt: skip
    """Write float64 [N], the growth of each node's fragments with a pod of `shape`; 0 where it does not fit.

    `sums`, `counts` [M] and `bins` [7] are overwritten.
    """
    for row in range(len(growth)):
        growth[row] = 0.0
        if fits(nodes, row, shape):
            score, _ = fragmentation_gradient(nodes, row, shape, tables, False, sums, counts, bins)
            share = min(max(score / MAX_SCORE, 1e-12), 1.0 - 1e-12)
            growth[row] = 1000.0 * np.log(1.0 / share - 1.0)  # FGD's score is 100 / (1 + exp(growth / 1000))


@compiled
def _amounts(
    allocatable: IntArray, requested: IntArray, gpu_free: IntArray, gpu_count: IntArray, gpu_model: IntArray,
    tables: FragmentTables,
) -> FloatArray:  # fmt: skip
    result = np.zeros(len(gpu_count))
    bins = np.empty(7)
    for i in range(len(gpu_count)):
        if gpu_count[i] > 0:
            cpu = allocatable[i, CPU_COLUMN] - requested[i, CPU_COLUMN]
            result[i] = fragment_amount(cpu, gpu_free[i, : gpu_count[i]], gpu_model[i], tables, bins)
    return result
