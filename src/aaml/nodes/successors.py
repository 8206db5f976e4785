"""What follows when a pod is evicted or a node is provisioned: the owner's next pod, and the node's generated name."""

from collections.abc import Iterable
from zlib import crc32

import numpy as np

from aaml.cluster.objects import Pod

LETTERS = "bcdfghjklmnpqrstvwxz2456789"
"""Of Kubernetes' generated names."""
_ANEW = frozenset({"Job"})  # owners whose next pod begins from the start


def is_made_again(pod: Pod) -> bool:
    """Whether a pod has an owner that makes another in its place."""
    return bool(pod.owner.partition("/")[0])


def begins_anew(pod: Pod) -> bool:
    """Whether the pod that its owner makes in its place begins from the start."""
    return pod.owner.partition("/")[0] in _ANEW


def node_name(letters: Iterable[int]) -> str:
    """Return the name that is generated for a node, by the numbers of its eight `LETTERS`."""
    return "default-" + "".join(LETTERS[number] for number in letters)


def chooser(name: str) -> int:
    """Return by what a node of this name takes one of several offerings at one price: any, but always the same."""
    return crc32(name.encode())


def drawn(rng: np.random.Generator, spread_s: float) -> tuple[list[int], float]:
    """Draw the letters of a node's name, and how much later than others it is ready, by at most `spread_s`."""
    letters: list[int] = rng.integers(len(LETTERS), size=8).tolist()
    return letters, spread_s * float(rng.random())


def is_next_late(pod: Pod) -> bool:
    """Whether its owner makes the next pod only once this one has gone."""
    return pod.owner.startswith("StatefulSet/")
