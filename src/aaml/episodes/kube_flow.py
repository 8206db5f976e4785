"""Whole episodes under kube-scheduler's scores in one compiled call, for searches over its configuration.

Nodes stay, or Karpenter buys and gives them back. Metrics are those of `SimCluster` under a `KubeScheduler` of this
configuration: the same integers, the same sampling of nodes, the same queue. Only what draws among equals is another
generator.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from aaml.cluster.objects import HOSTNAME_LABEL, ZONE_LABEL
from aaml.cluster.quantity import CPU, MEMORY
from aaml.episodes.batch import FIRST, BatchedEnv
from aaml.episodes.plan import Plan
from aaml.episodes.ports import Beginning
from aaml.episodes.refusals import check_kube_scheduler, check_zones
from aaml.episodes.spreading import PLUGIN, Siblings, domains_of, spreading_of
from aaml.episodes.whole import GPU_COLUMN, LEAST, MOST, RATIO, KubeScorer, SpreadingKubeScorer
from aaml.errors import UserError
from aaml.policies.kube_scores.config import GPU_MILLI, MAX_SCORE, KubeSchedulerConfig
from aaml.policies.kube_scores.resources import NATIVE, by_shape
from aaml.policies.kube_scores.sampling import nodes_to_find, zone_order
from aaml.policies.kube_scores.siblings import owner_selector

IntArray = npt.NDArray[np.int64]
_OF_NEW_NODES = (HOSTNAME_LABEL, ZONE_LABEL)  # labels of which it is known how nodes that are provisioned differ
_STRATEGIES = {"LeastAllocated": LEAST, "MostAllocated": MOST, "RequestedToCapacityRatio": RATIO}


class KubeFlow:
    """An episode that `play` runs as often as asked."""

    def __init__(self, plan: Plan, siblings: Siblings | None = None) -> None:
        if siblings is not None:  # they are counted by node in place of owners, whom nothing here looks at
            plan = replace(plan, owner=siblings.of_pod)
        self._plan, self._siblings, state = plan, siblings, plan.fleet.state
        self._columns = {name: state.resource_index[name] for name in state.resources}
        self._order = zone_order(state.nodes)
        self._batch = BatchedEnv(lambda _group, _number: plan, 1, threads=1, restart=False)
        self._batch.lay_out()

    @classmethod
    def of(cls, cluster: Beginning) -> "KubeFlow":
        """Take over a cluster at its beginning.

        Raises `UserError` for pods and nodes that compiled episodes do not know, and for those that other plugins than
        NodeResourcesFit, NodeResourcesBalancedAllocation and the default constraints of PodTopologySpread tell apart.
        """
        check_kube_scheduler(cluster.state.nodes, cluster.workload.pods)
        plan = Plan.of_cluster(cluster)
        check_zones(set() if plan.supply is None else plan.supply.zones)
        return cls(plan, Siblings.of(cluster.workload.pods))

    def knows(self, config: KubeSchedulerConfig) -> bool:
        """Whether `play` takes a configuration: no ties in the order of a heap, CPU and memory to balance.

        Pods that have siblings are spread by owners and labels, and over hosts and zones where nodes are provisioned.
        """
        over = {key for _, key in config.default_spreading}
        return (
            config.ties != "heap"
            and set(config.balanced_resources) == {CPU, MEMORY}
            and config.default_selector is owner_selector
            and (not self._spreads(config) or self._plan.supply is None or over <= {*_OF_NEW_NODES})
        )

    def _spreads(self, config: KubeSchedulerConfig) -> bool:
        return self._siblings is not None and config.weights.get(PLUGIN, 0) > 0 and bool(config.default_spreading)

    def play(self, config: KubeSchedulerConfig, seed: int = 0) -> Mapping[str, float]:
        """Run the episode and return its metrics; `seed` is that of the draws among equals.

        Raises `UserError` for a configuration that it does not know.
        """
        if not self.knows(config):
            raise UserError(
                "compiled episodes of kube-scheduler balance CPU and memory, take no heap for ties, and where nodes "
                "are bought spread over hosts and zones"
            )
        columns = {**self._columns, GPU_MILLI: GPU_COLUMN}
        known = [(columns[name], weight, name in NATIVE) for name, weight in config.resources if name in columns]
        resources = np.array(known, dtype=np.int64).reshape(-1, 3)
        per_cent = np.arange(MAX_SCORE + 1)
        line = by_shape(config.shape)(per_cent, np.full_like(per_cent, MAX_SCORE))
        fit, balance = (config.weights.get(name, 0) for name in ("NodeResourcesFit", "NodeResourcesBalancedAllocation"))
        drawn = np.array([[seed], [0]], dtype=np.uint64)

        def scorer(size: int) -> KubeScorer | SpreadingKubeScorer:
            order = self._order if self._plan.supply is None else np.arange(size)
            wanted = np.array([nodes_to_find(n, config.percentage_of_nodes_to_score) for n in range(size + 1)])
            start, (totals, found) = np.zeros(1, dtype=np.int64), np.empty((2, size), dtype=np.int64)
            plain = KubeScorer(
                _STRATEGIES[config.strategy], resources, line, fit, balance, wanted, order, config.ties == "random",
                drawn[0], drawn[1], start, totals, found,
            )  # fmt: skip
            if self._siblings is None or not self._spreads(config):
                return plain
            return SpreadingKubeScorer(plain, spreading_of(self._siblings, config, self._domains(config, size)))

        (ended,) = self._batch.play(FIRST, scorer, config.backoff_s)
        return ended.metrics

    def _domains(self, config: KubeSchedulerConfig, size: int) -> IntArray:
        """Return int64 [C, size], the numbers of the values of each constraint's key that up to `size` nodes have."""
        supply = self._plan.supply
        if supply is None:
            return domains_of(self._plan.fleet.state, config, size)
        keys = {HOSTNAME_LABEL} if supply.zones == {""} else {*_OF_NEW_NODES}  # all are in one zone, or in none
        there = [[0 if key in keys else -1] for _, key in config.default_spreading]
        return np.repeat(np.array(there, np.int64), size, axis=1)
