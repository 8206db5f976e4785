"""Whole episodes under a linear scorer in one compiled call, for searches over weights: the scorer inside lockstep.

Metrics are those of `SimCluster` under a `LinearPolicy` of these weights and this order of waiting pods.
"""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from aaml.episodes.batch import FIRST, BatchedEnv
from aaml.episodes.plan import Plan
from aaml.episodes.ports import Beginning
from aaml.episodes.refusals import check_linear
from aaml.episodes.whole import LinearScorer
from aaml.policies.heuristics.linear import FEATURES
from aaml.scheduling.lifetimes import LifetimeModel
from aaml.scheduling.observation import ObservationSpec
from aaml.scheduling.queue_sort import QueueSort

FloatArray = npt.NDArray[np.float64]
BY_ARRIVAL = QueueSort()


class Flow:
    """An episode of pods without GPUs, which `play` runs as often as asked."""

    def __init__(self, plan: Plan, lifetime_model: LifetimeModel | None = None) -> None:
        self._plan = plan
        self.arrival_s = plan.arrival_s
        """When each pod comes, float64 [T]."""
        observation_spec = ObservationSpec(lifetime_model=lifetime_model)
        self._batch = BatchedEnv(
            lambda _group, _number: plan,
            1,
            observation_spec=observation_spec,
            queue_sort=BY_ARRIVAL,
            threads=1,
            restart=False,
        )
        self._batch.lay_out()

    @classmethod
    def of(cls, cluster: Beginning, lifetime_model: LifetimeModel | None = None) -> "Flow":
        """Take over a cluster at its beginning; `lifetime_model` says how long pods are expected to run.

        Raises `UserError` for pods that compiled episodes do not know, and for those with GPUs.
        """
        check_linear(cluster.workload.pods)
        return cls(Plan.of_cluster(cluster, lifetime_model), lifetime_model)

    def play(self, weights: FloatArray, sort: QueueSort = BY_ARRIVAL) -> Mapping[str, float]:
        """Run the episode under the linear scorer `weights` [terms, F]; returns its metrics."""
        scorer = LinearScorer(weights, np.empty(len(FEATURES)), np.empty(2))
        self._batch.put_order(self._plan, sort)
        (ended,) = self._batch.play(FIRST, lambda _size: scorer)
        return ended.metrics
