"""KubeScheduler: a profile of kube-scheduler as a policy, the default one unless told otherwise."""

import numpy as np

from aaml.cluster.filters.index import IntArray
from aaml.cluster.state import ClusterState
from aaml.scheduling.kube_scores.config import KubeSchedulerConfig
from aaml.scheduling.kube_scores.sampling import heap_top, nodes_to_find, search, zone_order
from aaml.scheduling.kube_scores.total import DEFAULT, total_scores
from aaml.scheduling.observation import Context
from aaml.scheduling.ports import Decision


class KubeScheduler:
    """Takes a node of the highest total score among the nodes sampled, as kube-scheduler 1.36 does."""

    def __init__(
        self, rng: np.random.Generator, config: KubeSchedulerConfig = DEFAULT, name: str = "kube-scheduler"
    ) -> None:
        self.name = name
        self._rng, self._config = rng, config
        self._start = 0
        self._order: IntArray = np.zeros(0, dtype=np.int64)
        self._ordered = -1  # the topology generation that `_order` belongs to

    def act(self, context: Context) -> Decision:
        """Choose among the feasible rows."""
        rows = self._sample(context)
        if rows.size == 1:
            return Decision(int(rows[0]))
        mask = np.zeros(len(context.state), dtype=np.bool_)
        mask[rows] = True
        scores = total_scores(context.state, context.pod, mask, self._config)[rows]
        best = scores.max()
        match self._config.ties:
            case "random":
                position = int(self._rng.choice(np.flatnonzero(scores == best)))
            case "first":
                position = int(scores.argmax())
            case "heap":
                position = heap_top(scores.tolist())
        return Decision(int(rows[position]), info={"score": float(best)})

    def _sample(self, context: Context) -> IntArray:
        state = context.state
        self._follow(state)
        nominated = state.index.get(context.pod.nominated_node, -1)
        if nominated >= 0 and context.mask[nominated]:
            return np.array([nominated])  # room was made for it there
        wanted = nodes_to_find(len(state), self._config.percentage_of_nodes_to_score)
        rows, self._start = search(context.mask, self._order, self._start, wanted)
        return rows

    def _follow(self, state: ClusterState) -> None:
        if self._ordered != state.topology_generation:
            self._order, self._ordered = zone_order(state.nodes), state.topology_generation
            self._start %= max(len(state), 1)
