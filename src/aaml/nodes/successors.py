"""What follows when a pod is evicted or a node is provisioned: the owner's next pod, and the node's generated name."""

from aaml.cluster.objects import Pod

LETTERS = "bcdfghjklmnpqrstvwxz2456789"
"""Of Kubernetes' generated names."""
_ANEW = frozenset({"Job"})  # owners whose next pod begins from the start


def begins_anew(pod: Pod) -> bool:
    """Whether the pod that its owner makes in its place begins from the start."""
    return pod.owner.partition("/")[0] in _ANEW


def is_next_late(pod: Pod) -> bool:
    """Whether its owner makes the next pod only once this one has gone."""
    return pod.owner.startswith("StatefulSet/")
