"""VolumeRestrictions, NodeVolumeLimits and VolumeBinding: what a pod's bound volumes ask of a node.

The API adapter resolves claims and volumes into `VolumeNeeds`. Claims that are yet to be bound to a volume on the
chosen node (WaitForFirstConsumer) ask nothing here: the volume's provisioner follows the pod.
"""

from collections import Counter

import numpy as np

from aaml.cluster.filters.index import BoolArray, FilterIndex
from aaml.cluster.filters.node_affinity import term_mask
from aaml.cluster.filters.plugin import Filter, one_reason
from aaml.cluster.objects import Pod


def restrictions_pass(index: FilterIndex, pod: Pod) -> BoolArray | None:
    """Return [N] False when a ReadWriteOncePod claim of the pod is used by another pod, wherever it runs."""
    if not any(claim in index.claims for claim in pod.volumes.exclusive):
        return None
    return np.zeros(len(index.state), dtype=np.bool_)


def limits_pass(index: FilterIndex, pod: Pod) -> BoolArray | None:
    """Return [N] nodes that can attach the pod's volumes besides those attached already (each counted once)."""
    wanted = pod.volumes.attachments
    if not wanted:
        return None
    mask = np.ones(len(index.state), dtype=np.bool_)
    for row, node in enumerate(index.state.nodes):
        if not node.volume_limits:
            continue
        attached = index.attached.get(node.name, Counter[tuple[str, str]]())
        used = Counter(driver for driver, _ in attached)
        new = Counter(driver for driver, volume in wanted if (driver, volume) not in attached)
        mask[row] = all(
            used[driver] + count <= node.volume_limits[driver]
            for driver, count in new.items()
            if driver in node.volume_limits
        )
    return mask


def binding_passes(index: FilterIndex, pod: Pod) -> BoolArray | None:
    """Return [N] nodes that the node affinity of every bound volume admits."""
    if not pod.volumes.node_terms:
        return None
    mask = np.ones(len(index.state), dtype=np.bool_)
    for terms in pod.volumes.node_terms:
        mask &= np.logical_or.reduce([term_mask(index, term) for term in terms], axis=0)
    return mask


def binding_rejects_all(_index: FilterIndex, pod: Pod) -> str:
    """Say why the pod's volumes cannot be resolved."""
    return pod.volumes.missing


RESTRICTIONS = Filter(
    "VolumeRestrictions",
    restrictions_pass,
    one_reason(
        "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another"
        " pod",
        unresolvable=False,
    ),
)
LIMITS = Filter("NodeVolumeLimits", limits_pass, one_reason("node(s) exceed max volume count", unresolvable=False))
BINDING = Filter(
    "VolumeBinding",
    binding_passes,
    one_reason("node(s) didn't match PersistentVolume's node affinity", unresolvable=True),
    binding_rejects_all,
)
