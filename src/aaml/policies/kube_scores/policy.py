"""KubeScheduler: the scoring of a kube-scheduler profile as a policy, by default that of the default profile."""

import numpy as np
import numpy.typing as npt

from aaml.cluster.filters.index import IntArray
from aaml.cluster.per_state import PerState
from aaml.policies.kube_scores.config import KubeSchedulerConfig
from aaml.policies.kube_scores.sampling import heap_top, nodes_to_find, search, zone_order
from aaml.policies.kube_scores.total import DEFAULT, plugin_scores, total_scores
from aaml.scheduling.observation import Context
from aaml.scheduling.ports import Decision, shown


class KubeScheduler:
    """Takes a node of the highest total score among the nodes sampled, as kube-scheduler 1.37 does."""

    __repr__ = shown

    def __init__(
        self, rng: np.random.Generator, config: KubeSchedulerConfig = DEFAULT, name: str = "kube-scheduler"
    ) -> None:
        self.name = name
        self._rng, self.config = rng, config
        self._start = 0
        self._order = PerState(lambda state: zone_order(state.nodes))

    @property
    def backoff_s(self) -> tuple[int, int] | None:
        """How long pods back off that found no node: at first, and at most; None: as the cluster has it."""
        return self.config.backoff_s

    def act(self, context: Context) -> Decision:
        """Choose a node of the highest score, or the node that the pod is nominated to where that is feasible."""
        nodes = self._sample(context)
        if nodes.size == 1:
            return Decision(int(nodes[0]))
        mask = np.zeros(len(context.state), dtype=np.bool_)
        mask[nodes] = True
        scores = total_scores(context.state, context.pod, mask, self.config)[nodes]
        best = scores.max()
        match self.config.ties:
            case "random":
                position = int(self._rng.choice(np.flatnonzero(scores == best)))
            case "fixed":
                position = int(scores.argmax())
            case "heap":
                position = heap_top(scores.tolist())
        return Decision(int(nodes[position]), info={"score": float(best)})

    def scores(self, context: Context) -> npt.NDArray[np.float64]:
        """Return [N] the weighted sums of the plugins' scores, -1 for nodes outside the mask.

        Every node of the mask is scored and nothing is drawn, so that the same context always has the same scores.
        """
        return total_scores(context.state, context.pod, context.mask, self.config).astype(np.float64)

    @property
    def terms_are(self) -> str:
        """What the terms are."""
        return "the plugins' scores (0 to 100) times their weights"

    def terms(self, context: Context) -> dict[str, npt.NDArray[np.float64]]:
        """Return the weighted score of each plugin by its name, [N]; nodes outside the mask may hold anything."""
        scores = plugin_scores(context.state, context.pod, context.mask, self.config)
        return {name: (score * self.config.weights[name]).astype(np.float64) for name, score in scores.items()}

    def _sample(self, context: Context) -> IntArray:
        state = context.state
        nominated = state.index.get(context.pod.nominated_node, -1)
        if nominated >= 0 and context.mask[nominated]:
            return np.array([nominated])  # room was made for it there
        wanted = nodes_to_find(len(state), self.config.percentage_of_nodes_to_score)
        nodes, self._start = search(context.mask, self._order(state), self._start, wanted)
        return nodes
