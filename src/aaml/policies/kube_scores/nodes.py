"""Scores from what nodes are: TaintToleration, NodeAffinity, ImageLocality, and the default normalisation."""

import numpy as np

from aaml.cluster.filters.index import BoolArray, FilterIndex, IntArray
from aaml.cluster.filters.node_affinity import term_mask
from aaml.cluster.filters.taint_toleration import taint_sets
from aaml.cluster.objects import Pod
from aaml.cluster.selectors import tolerated
from aaml.policies.kube_scores.config import MAX_SCORE

_MIB = 1024 * 1024
_MIN_IMAGE_BYTES = 23 * _MIB
_MAX_CONTAINER_BYTES = 1000 * _MIB


def normalise(raw: IntArray, mask: BoolArray, *, reverse: bool) -> IntArray:
    """Return [N] `raw` scaled to 0 ... 100 by the greatest among the nodes of `mask`, or 100 minus that."""
    greatest = int(raw[mask].max(initial=0))
    scaled = raw * MAX_SCORE // greatest if greatest else np.zeros_like(raw)
    return MAX_SCORE - scaled if reverse else scaled


def taints(index: FilterIndex, pod: Pod, mask: BoolArray) -> IntArray:
    """Return [N] TaintToleration's score.

    A node is the better the fewer of its PreferNoSchedule taints the pod does not tolerate.
    """
    sets, codes = taint_sets(index)
    soft = tuple(each for each in pod.tolerations if each.effect in {"", "PreferNoSchedule"})
    counts = [sum(taint.effect == "PreferNoSchedule" and not tolerated(soft, taint) for taint in each) for each in sets]
    if not any(counts):
        return np.full(len(codes), MAX_SCORE, dtype=np.int64)
    return normalise(np.array(counts, dtype=np.int64)[codes], mask, reverse=True)


def preferred_nodes(index: FilterIndex, pod: Pod, mask: BoolArray) -> IntArray | None:
    """Return [N] NodeAffinity's score, by the weights of the preferred terms that a node satisfies.

    It is None for a pod without such terms.
    """
    if not pod.affinity.preferred_nodes:
        return None
    raw = np.zeros(len(index.state), dtype=np.int64)
    for preferred in pod.affinity.preferred_nodes:
        raw += preferred.weight * term_mask(index, preferred.term)
    return normalise(raw, mask, reverse=False)


def full_image_name(name: str) -> str:
    """Return an image's name with the tag that it stands for."""
    return name if name.rfind(":") > name.rfind("/") else f"{name}:latest"


def _spread_bytes(index: FilterIndex, image: str) -> IntArray:
    """Return [N] the image's bytes where it is present, scaled by the share of nodes that have it."""

    def build() -> IntArray:
        sizes = [node.images.get(image, -1) for node in index.state.nodes]
        share = sum(size >= 0 for size in sizes) / max(len(sizes), 1)
        return np.array([int(size * share) if size >= 0 else 0 for size in sizes], dtype=np.int64)

    found: IntArray = index.cached(("image", image), build)
    return found


def images(index: FilterIndex, pod: Pod) -> IntArray:
    """Return [N] ImageLocality's score, by the bytes of the pod's images that a node has already.

    Between 23 MiB and 1000 MiB for each container make a difference.
    """
    total = np.zeros(len(index.state), dtype=np.int64)
    for image in pod.images:
        total += _spread_bytes(index, full_image_name(image))
    greatest = _MAX_CONTAINER_BYTES * len(pod.images)
    if not pod.images or not total.any():
        return np.zeros(len(index.state), dtype=np.int64)
    clamped = np.clip(total, _MIN_IMAGE_BYTES, greatest)
    return MAX_SCORE * (clamped - _MIN_IMAGE_BYTES) // (greatest - _MIN_IMAGE_BYTES)
