"""kube-scheduler's scores: every plugin of the default profile, the sampling of nodes, ties, and all of it as a policy.

total_scores(state, pod, feasible_mask)   int64 [N]
KubeScheduler(rng).act(context)           a Decision
"""

from aaml.policies.kube_scores.config import DEFAULT_WEIGHTS, MAX_SCORE, PACKING, KubeSchedulerConfig
from aaml.policies.kube_scores.policy import KubeScheduler
from aaml.policies.kube_scores.total import plugin_scores, total_scores

__all__ = [
    "DEFAULT_WEIGHTS",
    "MAX_SCORE",
    "PACKING",
    "KubeScheduler",
    "KubeSchedulerConfig",
    "plugin_scores",
    "total_scores",
]
