"""Policies that look at how long pods will run: the rules NILAS and LAVA, with learned lifetimes or with true ones.

Both are written after the published description (Ling et al., LAVA: Lifetime-Aware VM Allocation with Learned
Distributions and Adaptation to Mispredictions, MLSys 2025). They grade nodes by time first, and those of one grade by a
usual score, best fit. What is expected of running pods is worked
out anew at every decision, from their ages, so that a wrong expectation corrects itself.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from aaml.policies.heuristics import scores
from aaml.policies.heuristics.policies import GpuPolicy
from aaml.policies.heuristics.scored import PolicyOptions, ScorePolicy
from aaml.scheduling.lifetimes import KnownLifetimes, LifetimeModel
from aaml.scheduling.observation import Context, ObservationSpec
from aaml.scheduling.ports import Decision, shown
from aaml.scheduling.queue_sort import QueueSort
from aaml.scheduling.remaining import RunningPods

FloatArray = npt.NDArray[np.float64]
Grade = Callable[[FloatArray, float], FloatArray]
"""(in how long each node is expected to be empty [N], the pod's expected rest), seconds -> [N], lower is better."""
SHORTEST_FIRST = QueueSort(rest=1.0)
LEAST_WORK_FIRST = QueueSort(work=10.0)
_STEP_S = 60.0
_ABOVE_ANY_SCORE = 1000.0


def added_time(empty_s: FloatArray, remaining_s: float) -> FloatArray:
    """Grade by how much longer the pod keeps a node from being empty, in steps that double from a minute on (NILAS)."""
    return np.ceil(np.log2(1.0 + np.maximum(remaining_s - empty_s, 0.0) / _STEP_S))


def lifetime_class(empty_s: FloatArray, remaining_s: float) -> FloatArray:
    """Grade by classes of lifetimes, each ten times as long as the one before (LAVA).

    A pod fills the gaps of nodes of a longer class, the nearest class first; else it goes to a node of its own class,
    else to one of a shorter class, and to an empty node last.
    """
    longer = _class(empty_s) - _class(np.array(remaining_s))
    grade = np.where(longer > 0, longer, np.where(longer == 0, 20.0, 20.0 - longer))
    return np.where(empty_s > 0.0, grade, 100.0)


def _class(seconds: FloatArray) -> FloatArray:
    return np.floor(np.log10(np.maximum(seconds, _STEP_S) / _STEP_S))


class LifetimeRule:
    """Takes the node of the lowest grade of time and, of several, the one with the best usual score.

    `observation_spec` holds what it expects of pods; `queue_sort` is the order in which it wants waiting ones.
    """

    __repr__ = shown

    def __init__(
        self, name: str, grade: Grade, model: LifetimeModel, options: PolicyOptions, queue_sort: QueueSort | None = None
    ) -> None:
        self.name = name
        self.queue_sort = None if queue_sort is None else queue_sort.knowing(model)
        self.observation_spec = ObservationSpec(lifetime_model=model)
        self.grade, self._model = grade, model
        self._usual = GpuPolicy("best-fit", "best-fit", options, scores.best_fit)

    def act(self, context: Context) -> Decision:
        """Choose a node and, where the usual score chose one, the device."""
        return self._usual.take(self.scores(context), context)

    def scores(self, context: Context) -> FloatArray:
        """Return [N] scores, higher is better."""
        empty_s = RunningPods.of(context.state, self._model).empty_s(context.now_s)
        grade = self.grade(empty_s, self._model.remaining_s(context.pod))
        return self._usual.scores(context) - _ABOVE_ANY_SCORE * grade


def nilas(options: PolicyOptions) -> LifetimeRule:
    """Return NILAS with lifetimes learned from the expected pods."""
    return LifetimeRule("nilas", added_time, LifetimeModel.of_history(options.expected), options)


def lava(options: PolicyOptions) -> LifetimeRule:
    """Return LAVA's placement with lifetimes learned from the expected pods."""
    return LifetimeRule("lava", lifetime_class, LifetimeModel.of_history(options.expected), options)


def shortest_first(options: PolicyOptions) -> LifetimeRule:
    """Return NILAS with an order of waiting pods: a second later for each second that a pod is expected to run."""
    return LifetimeRule(
        "shortest-first", added_time, LifetimeModel.of_history(options.expected), options, SHORTEST_FIRST
    )


def least_work_first(options: PolicyOptions) -> ScorePolicy:
    """Return least-variance with an order of waiting pods: those first that keep the least room for the least time."""
    return _in_order_of_work("least-work-first", LifetimeModel.of_history(options.expected), options)


def clairvoyant_least_work_first(options: PolicyOptions) -> ScorePolicy:
    """Return the same with the true lifetimes, which nobody knows: how much better an order might be."""
    return _in_order_of_work("clairvoyant-least-work-first", KnownLifetimes(), options)


def _in_order_of_work(name: str, model: LifetimeModel, options: PolicyOptions) -> ScorePolicy:
    plain = replace(options, expected=())
    return ScorePolicy(name, scores.least_variance, plain, LEAST_WORK_FIRST.knowing(model))


def clairvoyant(options: PolicyOptions) -> LifetimeRule:
    """Return NILAS with the true lifetimes, which nobody knows: how much better others might be."""
    return LifetimeRule("clairvoyant", added_time, KnownLifetimes(), options)


def clairvoyant_shortest_first(options: PolicyOptions) -> LifetimeRule:
    """Return the same with the true lifetimes in the order of waiting pods, too."""
    return LifetimeRule("clairvoyant-shortest-first", added_time, KnownLifetimes(), options, SHORTEST_FIRST)
