"""Whole episodes under a linear scorer in one compiled call, for searches over weights: the scorer inside lockstep.

Metrics are those of `SimCluster` under a `LinearPolicy` of these weights and this order of waiting pods.
"""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from aaml.episodes.batch import FIRST, BatchedEnv
from aaml.episodes.plan import Plan
from aaml.episodes.ports import Beginning
from aaml.episodes.whole import LinearScorer, WideScorer
from aaml.policies.gpu.arrays import SHAPE_COUNT
from aaml.policies.heuristics.linear import FEATURES
from aaml.scheduling.observation import PLAIN, ObservationSpec
from aaml.scheduling.queue_sort import QueueSort

FloatArray = npt.NDArray[np.float64]
BY_ARRIVAL = QueueSort()


class Flow:
    """An episode which `play` runs as often as asked. `observation_spec`: what scorers see."""

    def __init__(self, plan: Plan, observation_spec: ObservationSpec = PLAIN) -> None:
        self._plan = plan
        self._wide = plan.gpu[:, SHAPE_COUNT].any() or (observation_spec.costs and plan.supply is not None)
        self.arrival_s = plan.arrival_s
        """When each pod comes, float64 [T]."""
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
    def of(cls, cluster: Beginning, observation_spec: ObservationSpec = PLAIN) -> "Flow":
        """Take over a cluster at its beginning. Raises `UserError` for what compiled episodes do not know."""
        return cls(Plan.of_cluster(cluster, observation_spec.lifetime_model), observation_spec)

    def play(self, weights: FloatArray, sort: QueueSort = BY_ARRIVAL) -> Mapping[str, float]:
        """Run the episode under the linear scorer `weights` [terms, F]; returns its metrics."""
        scorer = LinearScorer(weights, np.empty(len(FEATURES)), np.empty(2))
        self._batch.put_order(self._plan, sort)
        (ended,) = self._batch.play(FIRST, lambda _size: WideScorer(scorer) if self._wide else scorer)
        return ended.metrics
