"""Whole episodes under kube-scheduler's scores in one compiled call, for searches over its configuration.

Nodes stay, or Karpenter buys and gives them back. Metrics are those of `SimCluster` under a `KubeScheduler` of this
configuration: the same integers, the same sampling of nodes, the same queue. Only what draws among equals is another
generator.
"""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from aaml.cluster.quantity import CPU, MEMORY
from aaml.episodes.batch import FIRST, BatchedEnv
from aaml.episodes.plan import Plan
from aaml.episodes.ports import Beginning
from aaml.episodes.refusals import check_kube_scheduler, check_zones
from aaml.episodes.whole import LEAST, MOST, RATIO, KubeScorer
from aaml.errors import UserError
from aaml.policies.kube_scores.config import MAX_SCORE, KubeSchedulerConfig
from aaml.policies.kube_scores.resources import by_shape
from aaml.policies.kube_scores.sampling import nodes_to_find, zone_order

IntArray = npt.NDArray[np.int64]
_STRATEGIES = {"LeastAllocated": LEAST, "MostAllocated": MOST, "RequestedToCapacityRatio": RATIO}


class KubeFlow:
    """An episode that `play` runs as often as asked."""

    def __init__(self, plan: Plan) -> None:
        self._plan, state = plan, plan.fleet.state
        self._columns = {name: state.resource_index[name] for name in state.resources}
        self._order = zone_order(state.nodes)
        self._batch = BatchedEnv(lambda _group, _number: plan, 1, threads=1, restart=False)
        self._batch.lay_out()

    @classmethod
    def of(cls, cluster: Beginning) -> "KubeFlow":
        """Take over a cluster at its beginning.

        Raises `UserError` for pods and nodes that compiled episodes do not know, and for those that other plugins than
        NodeResourcesFit and NodeResourcesBalancedAllocation tell apart.
        """
        check_kube_scheduler(cluster.state.nodes, cluster.workload.pods)
        plan = Plan.of_cluster(cluster)
        check_zones(set() if plan.supply is None else plan.supply.zones)
        return cls(plan)

    @staticmethod
    def knows(config: KubeSchedulerConfig) -> bool:
        """Whether `play` takes a configuration: no ties in the order of a heap, CPU and memory to balance."""
        return config.ties != "heap" and set(config.balanced_resources) == {CPU, MEMORY}

    def play(self, config: KubeSchedulerConfig, seed: int = 0) -> Mapping[str, float]:
        """Run the episode and return its metrics; `seed` is that of the draws among equals.

        Raises `UserError` for a configuration that it does not know.
        """
        if not self.knows(config):
            raise UserError("compiled episodes of kube-scheduler balance CPU and memory, and take no heap for ties")
        known = [(self._columns[name], weight) for name, weight in config.resources if name in self._columns]
        resources = np.array(known, dtype=np.int64).reshape(-1, 2)
        per_cent = np.arange(MAX_SCORE + 1)
        line = by_shape(config.shape)(per_cent, np.full_like(per_cent, MAX_SCORE))
        fit, balance = (config.weights.get(name, 0) for name in ("NodeResourcesFit", "NodeResourcesBalancedAllocation"))
        drawn = np.array([[seed], [0]], dtype=np.uint64)

        def scorer(size: int) -> KubeScorer:
            order = self._order if self._plan.supply is None else np.arange(size)
            wanted = np.array([nodes_to_find(n, config.percentage_of_nodes_to_score) for n in range(size + 1)])
            start, (totals, found) = np.zeros(1, dtype=np.int64), np.empty((2, size), dtype=np.int64)
            return KubeScorer(
                _STRATEGIES[config.strategy], resources, line, fit, balance, wanted, order, config.ties == "random",
                drawn[0], drawn[1], start, totals, found,
            )  # fmt: skip

        (ended,) = self._batch.play(FIRST, scorer, config.backoff_s)
        return ended.metrics
