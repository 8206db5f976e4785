"""FragmentMeter: the fragment amounts of a cluster state, for metrics, rewards and features."""

from collections.abc import Sequence

import numba
import numpy as np
import numpy.typing as npt

from aaml.cluster.objects import Pod
from aaml.cluster.state import ClusterState
from aaml.scheduling.fragmentation import FragmentTables, fragment_amount, fragment_tables, typical_pods
from aaml.scheduling.kernels.arrays import pod_shape, state_arrays
from aaml.scheduling.kernels.policies import score_all

FloatArray = npt.NDArray[np.float64]


class FragmentMeter:
    """Fragments weighed by the typical ones of the expected pods (Weng et al., USENIX ATC 2023).

    A meter is a `Fragmentation` (see `aaml.cluster.metrics`) and its `growth` is what a `Featurizer` takes.
    """

    def __init__(self, expected: Sequence[Pod]) -> None:
        self._typical = typical_pods(expected)
        self._kept: tuple[tuple[int, int], FragmentTables] | None = None

    def __call__(self, state: ClusterState) -> FloatArray:
        """Return float64 [N], the thousandths of a GPU that are fragments."""
        amounts: FloatArray = _amounts(
            state.allocatable, state.requested, state.gpu_free, state.gpu_count, state.gpu_model, self._tables(state)
        )
        return amounts

    def growth(self, state: ClusterState, pod: Pod) -> FloatArray:
        """Return float64 [N], by how much each node's fragments would grow with the pod; 0 where it does not fit."""
        if not state.gpu_count.any():
            return np.zeros(len(state))
        shape = pod_shape(pod, state.gpu_models)
        scores, _ = score_all("fgd", state_arrays(state), shape, self._tables(state), truncate=False)
        share = np.clip(scores / 100.0, 1e-12, 1.0 - 1e-12)
        # FGD's score is 100 / (1 + exp(growth / 1000)).
        return np.where(np.isfinite(scores), 1000.0 * np.log(1.0 / share - 1.0), 0.0)

    def _tables(self, state: ClusterState) -> FragmentTables:
        key = (len(state.gpu_models), state.gpu_free.shape[1])
        if self._kept is None or self._kept[0] != key:
            self._kept = (key, fragment_tables(self._typical, tuple(state.gpu_models), state.gpu_free.shape[1]))
        return self._kept[1]


@numba.njit(cache=True)
def _amounts(allocatable, requested, gpu_free, gpu_count, gpu_model, tables):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    result = np.zeros(len(gpu_count))
    bins = np.empty(7)
    for i in range(len(gpu_count)):
        if gpu_count[i] > 0:
            cpu = allocatable[i, 0] - requested[i, 0]
            result[i] = fragment_amount(cpu, gpu_free[i, : gpu_count[i]], gpu_model[i], tables, bins)
    return result
