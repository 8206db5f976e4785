"""VolumeRestrictions, NodeVolumeLimits and VolumeZone: what a pod's volumes ask of a node.

The API adapter resolves claims and volumes into `VolumeNeeds`.
"""

from collections import Counter
from collections.abc import Mapping
from typing import cast

import numpy as np

from aaml.cluster.filters.index import BoolArray, FilterIndex
from aaml.cluster.filters.plugin import Filter, one_reason
from aaml.cluster.objects import Pod

ZONE_LABELS = {
    "failure-domain.beta.kubernetes.io/zone": "topology.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region": "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone": "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region": "topology.kubernetes.io/region",
}
"""The labels that say where a volume or a node is, with the name that each has today."""


def restrictions_pass(index: FilterIndex, pod: Pod) -> BoolArray | None:
    """Return [N] False when a ReadWriteOncePod claim of the pod is used by another pod, wherever it runs."""
    if not any(claim in index.claims for claim in pod.volumes.exclusive):
        return None
    return np.zeros(len(index.state), dtype=np.bool_)


def limits_pass(index: FilterIndex, pod: Pod) -> BoolArray | None:
    """Return [N] nodes that can attach the pod's volumes besides those attached already (each counted once).

    Attached is what the pods of a node use, and what is still, or already, attached there without a pod.
    """
    wanted = pod.volumes.attachments
    if not wanted:
        return None
    mask = np.ones(len(index.state), dtype=np.bool_)
    for node_index, node in enumerate(index.state.nodes):
        if not node.volume_limits:
            continue
        attached = index.attached.get(node.name, Counter[tuple[str, str]]())
        used = Counter(driver for driver, _ in attached)
        used.update(driver for driver, _ in index.state.storage.attachments(node.name) - attached.keys())
        new = Counter(driver for driver, volume in wanted if (driver, volume) not in attached)
        mask[node_index] = all(
            used[driver] + count <= node.volume_limits[driver]
            for driver, count in new.items()
            if driver in node.volume_limits
        )
    return mask


def zone_passes(index: FilterIndex, pod: Pod) -> BoolArray | None:
    """Return [N] nodes in the zone and region of every bound volume; nodes without any such label pass."""
    zones = pod.volumes.zones
    if not zones:
        return None

    def build() -> BoolArray:
        return np.array([_in_zones(node.labels, zones) for node in index.state.nodes], dtype=np.bool_)

    return cast("BoolArray", index.cached(("volume_zones", zones), build))


def _in_zones(labels: Mapping[str, str], zones: tuple[tuple[str, frozenset[str]], ...]) -> bool:
    if not any(key in labels for key in ZONE_LABELS):
        return True
    return all(labels.get(key, labels.get(ZONE_LABELS[key], "")) in values for key, values in zones)


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
ZONE = Filter("VolumeZone", zone_passes, one_reason("node(s) had no available volume zone", unresolvable=True))
