"""The score of VolumeBinding: how much of the storage that a node offers the pod's claims would leave.

https://kubernetes.io/docs/concepts/storage/storage-capacity/ and `pkg/scheduler/framework/plugins/volumebinding` of
kube-scheduler 1.37, which has it on by default (feature gate StorageCapacityScoring); those before it have not.
"""

import numpy as np

from aaml.cluster.filters.index import FilterIndex, IntArray
from aaml.cluster.filters.volume_binding import storage_use
from aaml.cluster.objects import Pod
from aaml.policies.kube_scores.config import MAX_SCORE, KubeSchedulerConfig
from aaml.policies.kube_scores.resources import by_shape


def free_storage(index: FilterIndex, pod: Pod, config: KubeSchedulerConfig) -> IntArray | None:
    """Return [N] the mean over the classes of storage that the pod's claims ask for; None without such claims."""
    if not pod.volumes.unbound or not config.weights.get("VolumeBinding"):
        return None
    score, size = by_shape(config.storage_shape), len(index.state)
    total, classes = np.zeros(size, dtype=np.int64), np.zeros(size, dtype=np.int64)
    full = score(np.full(1, MAX_SCORE), np.full(1, MAX_SCORE))[0]
    for there, asked, held in storage_use(index, pod.volumes.unbound):
        total += np.where(there, np.where(held > 0, score(asked, held), full), 0)
        classes += there
    return np.floor(total / np.maximum(classes, 1) + 0.5).astype(np.int64)
