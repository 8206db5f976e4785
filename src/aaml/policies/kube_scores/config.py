"""What of kube-scheduler's scoring can be set: weights, the strategy of NodeResourcesFit, sampling, ties."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from aaml.cluster.objects import HOSTNAME_LABEL, ZONE_LABEL, LabelSelector, Pod
from aaml.cluster.quantity import CPU, MEMORY
from aaml.policies.kube_scores.siblings import owner_selector

Strategy = Literal["LeastAllocated", "MostAllocated", "RequestedToCapacityRatio"]
MAX_SCORE = 100  # of a plugin on a node, before its weight

DEFAULT_WEIGHTS: Mapping[str, int] = {
    "TaintToleration": 3,
    "NodeAffinity": 2,
    "NodeResourcesFit": 1,
    "VolumeBinding": 1,
    "PodTopologySpread": 2,
    "InterPodAffinity": 2,
    "NodeResourcesBalancedAllocation": 1,
    "ImageLocality": 1,
}
"""Those of the default profile (https://kubernetes.io/docs/reference/scheduling/config/)."""

GPU_MILLI = "gpu-milli"
"""Thousandths of GPUs as a resource of NodeResourcesFit, as a device plugin for shared GPUs would advertise them."""


@dataclass(frozen=True, slots=True)
class KubeSchedulerConfig:
    """Settings under the names of KubeSchedulerConfiguration; the defaults are kube-scheduler's.

    `weights` has the weight of each score plugin by its name. A plugin that is not in it does not count.
    `strategy` is that of NodeResourcesFit, with the weight of each resource in `resources` and, for
    RequestedToCapacityRatio, the points (utilisation in per cent, score from 0 to 10) of its line in `shape`.
    `storage_shape` is such a line of VolumeBinding, over the storage in use.
    `balanced_resources` are those that NodeResourcesBalancedAllocation looks at.
    `percentage_of_nodes_to_score` says after what share of the nodes the search for feasible ones stops. With 0 it
    depends on the size of the cluster, as in kube-scheduler, and with 100 all nodes are scored.
    `ties` says which of several nodes with the highest score is taken: a random one, the first one ("fixed"), or the
    one that kube-scheduler 1.37 without extenders has on top of its heap ("heap").
    `backoff_s` are podInitialBackoffSeconds and podMaxBackoffSeconds; None: as the cluster has them, 1 and 10.
    `default_spreading` are the constraints (greatest skew, topology key) that spread pods which bring none.
    `system_spreading` says that nodes without their keys count too, as with those that kube-scheduler itself brings.
    `default_selector` returns the selector of the pods that belong with a pod, None for a pod that is not spread by
    default. kube-scheduler asks its Service, ReplicaSet or StatefulSet, this one the pod's owner and labels.
    """

    weights: Mapping[str, int] = field(default_factory=lambda: DEFAULT_WEIGHTS)
    strategy: Strategy = "LeastAllocated"
    resources: tuple[tuple[str, int], ...] = ((CPU, 1), (MEMORY, 1))
    shape: tuple[tuple[int, int], ...] = ((0, 0), (100, 10))
    storage_shape: tuple[tuple[int, int], ...] = ((0, 10), (100, 0))
    balanced_resources: tuple[str, ...] = (CPU, MEMORY)
    hard_pod_affinity_weight: int = 1
    ignore_preferred_terms_of_existing_pods: bool = False
    percentage_of_nodes_to_score: int = 0
    ties: Literal["fixed", "random", "heap"] = "random"
    backoff_s: tuple[int, int] | None = None
    default_spreading: tuple[tuple[int, str], ...] = ((3, HOSTNAME_LABEL), (5, ZONE_LABEL))
    system_spreading: bool = True
    default_selector: Callable[[Pod], LabelSelector | None] = owner_selector


PACKING = KubeSchedulerConfig(
    weights={name: weight for name, weight in DEFAULT_WEIGHTS.items() if name != "NodeResourcesBalancedAllocation"},
    strategy="MostAllocated",
    resources=((CPU, 1), (MEMORY, 1), (GPU_MILLI, 3)),
)
"""For bin packing: MostAllocated, scarce devices weighed three times as in Kubernetes' own example, and no reward for
evenness within a node, which works against it (https://kubernetes.io/docs/concepts/scheduling-eviction/resource-bin-packing/).
"""
