"""Policies that are no score: random, round robin, first fit; and those that score GPUs with the compiled kernels."""

from dataclasses import replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from aaml.cluster.state import ClusterState
from aaml.errors import bad_value
from aaml.scheduling.fragmentation import FragmentTables, TypicalPods, fragment_tables, typical_pods
from aaml.scheduling.heuristics import scores
from aaml.scheduling.heuristics.scored import PolicyOptions, Score, ScorePolicy
from aaml.scheduling.kernels.arrays import pod_shape, state_arrays
from aaml.scheduling.kernels.policies import score_all
from aaml.scheduling.kube_scores import PACKING, KubeScheduler, KubeSchedulerConfig
from aaml.scheduling.observation import Context
from aaml.scheduling.ports import Decision


class RandomPolicy:
    """A uniformly random feasible row."""

    def __init__(self, options: PolicyOptions) -> None:
        self.name = "random"
        self._rng = np.random.default_rng(options.seed)

    def act(self, context: Context) -> Decision:
        """Draw a row."""
        rows = np.flatnonzero(context.mask)
        return Decision(int(rows[self._rng.integers(len(rows))]))


class RoundRobin:
    """The next feasible row after the last one chosen, by node so that it stays right when nodes come and go."""

    def __init__(self) -> None:
        self.name = "round-robin"
        self._last = ""

    def act(self, context: Context) -> Decision:
        """Take the next row in turn."""
        start = context.state.index.get(self._last, -1) + 1
        behind = np.argmax(context.mask[start:]) if start < len(context.mask) else 0
        row = start + int(behind)
        if row >= len(context.mask) or not context.mask[row]:
            row = int(np.argmax(context.mask))
        self._last = context.state.names[row]
        return Decision(row)


class FirstFit:
    """The feasible row that comes first."""

    def __init__(self) -> None:
        self.name = "first-fit"

    def act(self, context: Context) -> Decision:
        """Take the first row."""
        return Decision(int(np.argmax(context.mask)))


class GpuPolicy(ScorePolicy):
    """Scores of the GPU-sharing benchmark (Weng et al., USENIX ATC 2023) over all rows.

    Without GPUs in the cluster `otherwise` scores, for those policies that mean something over CPU and memory.
    """

    def __init__(self, name: str, kernel: str, options: PolicyOptions, otherwise: Score | None = None) -> None:
        super().__init__(name, self._scores, options)
        self._kernel = kernel
        self._otherwise = otherwise
        self._typical = typical_pods(options.expected)
        self._tables: tuple[int, FragmentTables] | None = None
        self._truncate = options.truncate
        self._devices: npt.NDArray[np.int64] = np.empty(0, dtype=np.int64)

    def act(self, context: Context) -> Decision:
        """Choose a row and, where the score chose one, the device."""
        decision = super().act(context)
        device = int(self._devices[decision.row]) if decision.row is not None and self._devices.size else -1
        return Decision(decision.row, (device,)) if device >= 0 else decision

    def _scores(self, context: Context) -> npt.NDArray[np.float64]:
        state = context.state
        if self._otherwise is not None and not state.gpu_count.any():
            self._devices = np.empty(0, dtype=np.int64)
            return self._otherwise(context)
        if self._tables is None or self._tables[0] != state.topology_generation:
            self._tables = (state.topology_generation, state_tables(state, self._typical))
        shape = pod_shape(context.pod, state.gpu_models)
        result, self._devices = score_all(
            self._kernel, state_arrays(state), shape, self._tables[1], truncate=self._truncate
        )
        # A row that the kernels find unfit but the cluster's filters feasible (resources apart) still has to be chosen.
        return np.where(context.mask & np.isneginf(result), -1.0, result)


def state_tables(state: ClusterState, typical: TypicalPods) -> FragmentTables:
    """Return the fragment tables of typical pods for the nodes of a state."""
    return fragment_tables(typical, tuple(state.gpu_models), state.gpu_free.shape[1])


def kube_scheduler(options: PolicyOptions) -> KubeScheduler:
    """kube-scheduler's default profile with its sampling of nodes; ties at random as there, unless told otherwise."""
    return _kube_scheduler(options, KubeSchedulerConfig(), "kube-scheduler")


def kube_scheduler_packing(options: PolicyOptions) -> KubeScheduler:
    """kube-scheduler set up for bin packing (`kube_scores.PACKING`)."""
    return _kube_scheduler(options, PACKING, "kube-scheduler-packing")


def _kube_scheduler(options: PolicyOptions, config: KubeSchedulerConfig, name: str) -> KubeScheduler:
    if options.tie_break == "name":
        raise bad_value("tie_break", options.tie_break, f"first or random with {name}")
    ties: Literal["first", "random"] = "first" if options.tie_break == "first" else "random"
    return KubeScheduler(np.random.default_rng(options.seed), replace(config, ties=ties), name)


def best_fit(options: PolicyOptions) -> ScorePolicy:
    """Best fit over CPU and GPU, or over CPU and memory in a cluster without GPUs."""
    return GpuPolicy("best-fit", "best_fit", options, scores.best_fit)


def dot_product(options: PolicyOptions) -> ScorePolicy:
    """Dot product over CPU and GPU, or over CPU and memory in a cluster without GPUs."""
    return GpuPolicy("dot-product", "dot_product", options, scores.dot_product)


def gpu_packing(options: PolicyOptions) -> ScorePolicy:
    """GPU packing: devices in use first, then free devices of used nodes."""
    return GpuPolicy("gpu-packing", "gpu_packing", options)


def gpu_clustering(options: PolicyOptions) -> ScorePolicy:
    """GPU clustering: pods of the same kind together."""
    return GpuPolicy("gpu-clustering", "gpu_clustering", options)


def fgd(options: PolicyOptions) -> ScorePolicy:
    """Fragmentation gradient descent: where fragments, weighed by the expected pods, grow least."""
    return GpuPolicy("fgd", "fgd", options)
