"""The scores of all plugins of the default profile, by plugin and added up."""

import numpy as np

from aaml.cluster.filters.index import BoolArray, FilterIndex, IntArray
from aaml.cluster.objects import Pod
from aaml.cluster.state import ClusterState
from aaml.policies.kube_scores import nodes, resources, topology, volumes
from aaml.policies.kube_scores.config import KubeSchedulerConfig

DEFAULT = KubeSchedulerConfig()


def plugin_scores(
    state: ClusterState, pod: Pod, feasible_mask: BoolArray, config: KubeSchedulerConfig = DEFAULT
) -> dict[str, IntArray]:
    """Return the scores of each plugin by its name, int64 [N] from 0 to 100, before they are weighted.

    A plugin that has nothing to say about the pod, or has no weight, is left out. Scores are normalised among the nodes
    of `feasible_mask`; those of others mean nothing.
    """
    index = FilterIndex.of(state)
    found = {
        "TaintToleration": nodes.taints(index, pod, feasible_mask),
        "NodeAffinity": nodes.preferred_nodes(index, pod, feasible_mask),
        "NodeResourcesFit": resources.fit(index, pod, config),
        "VolumeBinding": volumes.free_storage(index, pod, config),
        "PodTopologySpread": topology.spread(index, pod, feasible_mask, config),
        "InterPodAffinity": topology.near_pods(index, pod, feasible_mask, config),
        "NodeResourcesBalancedAllocation": resources.balanced(index, pod, config),
        "ImageLocality": nodes.images(index, pod),
    }
    return {name: score for name, score in found.items() if score is not None and config.weights.get(name)}


def total_scores(
    state: ClusterState, pod: Pod, feasible_mask: BoolArray, config: KubeSchedulerConfig = DEFAULT
) -> IntArray:
    """Return [N] the weighted sum of all plugins' scores for the nodes of `feasible_mask`, -1 for the others."""
    total = np.zeros(len(state), dtype=np.int64)
    for name, score in plugin_scores(state, pod, feasible_mask, config).items():
        total += score * config.weights[name]
    return np.where(feasible_mask, total, -1)
