"""Policies that choose by no score of the nodes' use (random, round robin, first fit), and those that score GPUs."""

from dataclasses import replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from aaml.errors import bad_value
from aaml.policies.formulas.expression import FIRST_GPU, Expression
from aaml.policies.formulas.policy import terms_are, terms_of
from aaml.policies.formulas.program import Program, assemble, registers_of
from aaml.policies.fragment_meter import StateTables
from aaml.policies.fragmentation import FragmentTables, typical_pods
from aaml.policies.gpu.arrays import NodeArrays, devices_by_model, pod_shape, state_arrays
from aaml.policies.gpu.learned import Scorer, all_features
from aaml.policies.gpu.policies import score_all
from aaml.policies.gpu.prices import scarcity
from aaml.policies.gpu.scorer_file import ScorerModel
from aaml.policies.heuristics import scores
from aaml.policies.heuristics.scored import PolicyOptions, Score, ScorePolicy
from aaml.policies.kube_scores import PACKING, KubeScheduler, KubeSchedulerConfig
from aaml.policies.kube_scores.profile import Profile
from aaml.scheduling.observation import Context
from aaml.scheduling.ports import Decision, Places, shown


class RandomPolicy:
    """Takes a feasible node at random, each with the same probability."""

    __repr__ = shown

    def __init__(self, options: PolicyOptions) -> None:
        self.name = "random"
        self._rng = np.random.default_rng(options.seed)

    def act(self, context: Context) -> Decision:
        """Draw a node."""
        node_indices = np.flatnonzero(context.mask)
        return Decision(int(node_indices[self._rng.integers(len(node_indices))]))


class RoundRobin:
    """Takes the next feasible node after the one that was chosen last.

    It remembers that node's name, so it goes on from the same place after other nodes have come or gone.
    """

    __repr__ = shown

    def __init__(self) -> None:
        self.name = "round-robin"
        self._last = ""

    def act(self, context: Context) -> Decision:
        """Take the next node in turn."""
        start = context.state.index.get(self._last, -1) + 1
        behind = np.argmax(context.mask[start:]) if start < len(context.mask) else 0
        node_index = start + int(behind)
        if node_index >= len(context.mask) or not context.mask[node_index]:
            node_index = int(np.argmax(context.mask))
        self._last = context.state.names[node_index]
        return Decision(node_index)


class FirstFit:
    """Takes the first feasible node."""

    __repr__ = shown

    def __init__(self) -> None:
        self.name = "first-fit"

    def act(self, context: Context) -> Decision:
        """Take the first node."""
        return Decision(int(np.argmax(context.mask)))

    def scores(self, context: Context) -> npt.NDArray[np.float64]:
        """Return [N] scores that fall from the first node to the last."""
        return -np.arange(len(context.mask), dtype=np.float64)


class GpuPolicy(ScorePolicy):
    """Takes the node with the highest score of the GPU-sharing benchmark (Weng et al., USENIX ATC 2023).

    `kernel` names the compiled score, and `model` has the weights of a learned one. In a cluster without GPUs
    `otherwise` scores the nodes, where a policy has a meaning for CPU and memory alone.
    """

    def __init__(
        self,
        name: str,
        kernel: str,
        options: PolicyOptions,
        otherwise: Score | None = None,
        model: ScorerModel | None = None,
    ) -> None:
        super().__init__(name, self._scores, replace(options, expected=()))  # its scores read no features
        self.kernel = kernel
        self.model = model
        self._scorer: Scorer | None = None
        self._scorer_of: tuple[FragmentTables, list[int]] | None = None
        self._otherwise = otherwise
        self.typical = typical_pods(options.expected)
        self._tables = StateTables(self.typical)
        self._weighs = kernel == "fgd" or model is not None
        self._sees_gpus = any(kind.gpu_milli for kind in self.typical.kinds)
        self._truncate = options.truncate
        self._devices: npt.NDArray[np.int64] = np.empty(0, dtype=np.int64)

    @property
    def weighs_nothing(self) -> bool:
        """Whether it scores by fragments for expected pods, and none that asks for a GPU is expected.

        It then scores nearly every node alike where there are GPUs.
        """
        return self._weighs and not self._sees_gpus

    def act(self, context: Context) -> Decision:
        """Choose a node and, where the score chose one, the device."""
        return self.take(self.scores(context), context)

    def take(self, scores: npt.NDArray[np.float64], context: Context) -> Decision:
        """Choose by these scores [N], which may say more than its own, the latest that were asked for."""
        decision = Decision(self.pick(scores, context))
        device = (
            int(self._devices[decision.node_index]) if decision.node_index is not None and self._devices.size else -1
        )
        return Decision(decision.node_index, (device,)) if device >= 0 else decision

    def _scores(self, context: Context) -> npt.NDArray[np.float64]:
        if self._otherwise is not None and not context.state.gpu_count.any():
            self._devices = np.empty(0, dtype=np.int64)
            return self._otherwise(context)
        nodes, shape, tables = self._laid_out(context)
        result, self._devices = score_all(
            self.kernel, nodes, shape, tables, truncate=self._truncate, scorer=self._scorer
        )
        # What the kernels find unfit but the cluster's filters feasible (resources apart) still has to be chosen.
        return np.where(context.mask & np.isneginf(result), -1.0, result)

    def _laid_out(self, context: Context) -> tuple[NodeArrays, npt.NDArray[np.int64], FragmentTables]:
        """Return what the kernels take, and see to it that a learned scorer is the one for these nodes."""
        state = context.state
        nodes, shape, tables = state_arrays(state), pod_shape(context.pod, state.gpu_models), self._tables(state)
        if self.model is not None:
            devices = devices_by_model(nodes, len(state.gpu_models))
            if self._scorer_of is None or self._scorer_of[0] is not tables or self._scorer_of[1] != devices.tolist():
                self._scorer, self._scorer_of = self.model.scorer(tables, devices), (tables, devices.tolist())
        return nodes, shape, tables


class GpuFormula(GpuPolicy):
    """A formula of GPU devices; `terms` and `places` are for `aaml explain`."""

    def __init__(self, expression: Expression, name: str, options: PolicyOptions) -> None:
        super().__init__(name, "formula", options, model=ScorerModel(formula=expression))
        self.expression = expression

    @property
    def terms_are(self) -> str:
        """What the terms are."""
        return terms_are(self.expression)

    def terms(self, context: Context) -> dict[str, npt.NDArray[np.float64]]:
        """Return what each term adds to the scores [N], by its text: on the best device of a node, NaN without one."""
        places, n = self.places(context), len(context.mask)
        worst_first = np.lexsort(
            (-np.arange(len(places.node_indices)), places.scores)
        )  # of equal ones the first comes last
        best = np.full(n, -1)
        best[places.node_indices[worst_first]] = worst_first
        return {name: np.where(best < 0, np.nan, values[best]) for name, values in places.terms.items()}

    def places(self, context: Context) -> Places:
        """Return the nodes where the pod fits and the devices that a share may take, with their scores and terms."""
        nodes, shape, tables = self._laid_out(context)
        scarce = scarcity(tables, devices_by_model(nodes, len(context.state.gpu_models)))
        seen, node_indices, devices = all_features(nodes, shape, tables, scarce)

        def run(program: Program) -> npt.NDArray[np.float64]:
            scores: npt.NDArray[np.float64] = registers_of(program, seen.T[program.features - FIRST_GPU])[-1]
            return scores

        return Places(node_indices, devices, run(assemble(self.expression)), terms_of(self.expression, run))


def kube_scheduler(options: PolicyOptions) -> KubeScheduler:
    """Return kube-scheduler's default profile, with its sampling of nodes in large clusters.

    Ties are broken at random, as there, unless the options say otherwise.
    """
    return _kube_scheduler(options, KubeSchedulerConfig(), "kube-scheduler")


def kube_scheduler_packing(options: PolicyOptions) -> KubeScheduler:
    """Return kube-scheduler set up for bin packing (`kube_scores.PACKING`)."""
    return _kube_scheduler(options, PACKING, "kube-scheduler-packing")


def kube_scheduler_profile(options: PolicyOptions, profile: Profile, name: str) -> KubeScheduler:
    """Return kube-scheduler with a profile of a person's configuration."""
    return _kube_scheduler(options, profile.config, name)


def _kube_scheduler(options: PolicyOptions, config: KubeSchedulerConfig, name: str) -> KubeScheduler:
    if options.tie_break == "name":
        raise bad_value("tie_break", options.tie_break, f"fixed or random with {name}")
    ties: Literal["fixed", "random"] = "fixed" if options.tie_break == "fixed" else "random"
    return KubeScheduler(np.random.default_rng(options.seed), replace(config, ties=ties), name)


def best_fit(options: PolicyOptions) -> ScorePolicy:
    """Return best fit over CPU and GPU, or over CPU and memory in a cluster without GPUs."""
    return GpuPolicy("best-fit", "best-fit", options, scores.best_fit)


def dot_product(options: PolicyOptions) -> ScorePolicy:
    """Return dot product over CPU and GPU, or over CPU and memory in a cluster without GPUs."""
    return GpuPolicy("dot-product", "dot-product", options, scores.dot_product)


def gpu_packing(options: PolicyOptions) -> ScorePolicy:
    """Return GPU packing, which fills devices in use first, then free devices of nodes in use."""
    return GpuPolicy("gpu-packing", "gpu-packing", options)


def gpu_clustering(options: PolicyOptions) -> ScorePolicy:
    """GPU clustering: pods of the same kind together."""
    return GpuPolicy("gpu-clustering", "gpu-clustering", options)


def fgd(options: PolicyOptions) -> ScorePolicy:
    """Return fragmentation gradient descent.

    It takes the node where fragments, as the expected pods weigh them, grow least.

    A cluster without GPUs has no fragments: there all nodes are alike to it.
    """
    return GpuPolicy("fgd", "fgd", options, lambda context: np.zeros(len(context.mask)))


def gpu_scorer(model: ScorerModel, name: str, options: PolicyOptions) -> ScorePolicy:
    """Return a learned scorer of the GPU-sharing benchmark as a policy, over fragments weighed by the expected pods."""
    if model.formula is not None:
        return GpuFormula(model.formula, name, options)
    return GpuPolicy(name, model.policy, options, model=model)
