"""kube-scheduler's scores: every plugin of the default profile, sampling of nodes, ties; and it all as a policy.

total_scores(state, pod, feasible_mask)   int64 [N]
KubeScheduler(rng).act(context)           a Decision
"""

from aaml.scheduling.kube_scores.config import DEFAULT_WEIGHTS, MAX_SCORE, PACKING, KubeSchedulerConfig
from aaml.scheduling.kube_scores.policy import KubeScheduler
from aaml.scheduling.kube_scores.total import plugin_scores, total_scores

__all__ = [
    "DEFAULT_WEIGHTS",
    "MAX_SCORE",
    "PACKING",
    "KubeScheduler",
    "KubeSchedulerConfig",
    "plugin_scores",
    "total_scores",
]
