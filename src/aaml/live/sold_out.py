"""What cannot be had now: offerings of which Karpenter launched no node, and how long nothing is bought after that.

Karpenter deletes a NodeClaim that finds no capacity. Like its providers for clouds, this remembers the offering for
three minutes. After failures in a row it waits longer and longer before it buys anything.
"""

from collections.abc import Iterable
from dataclasses import replace
from math import inf

from aaml.live.node_claims import Offer
from aaml.nodes.catalogue import InstanceType

FORGOTTEN_S = 180.0  # after which an offering is tried again
LONGEST_PAUSE_S = 60.0


class SoldOut:
    """The offerings that failed, and the pause since the last failure; all times are those of `now_s`."""

    def __init__(self) -> None:
        self._until_s: dict[Offer, float] = {}
        self._failures = 0
        self._resumes_s = -inf

    def failed(self, offers: Iterable[Offer], now_s: float) -> None:
        """Take note of one more failure; `offers` are what could not be had, none where it is not about offerings."""
        self._until_s.update(dict.fromkeys(offers, now_s + FORGOTTEN_S))
        self._failures += 1
        self._resumes_s = now_s + min(LONGEST_PAUSE_S, 2.0 ** min(self._failures - 1, 10))

    def launched(self) -> None:
        """Take note that a node was launched: what is tried next is tried at once."""
        self._failures, self._resumes_s = 0, -inf

    def pauses(self, now_s: float) -> bool:
        """Whether nothing is to be bought yet."""
        return now_s < self._resumes_s

    def look(self, now_s: float) -> frozenset[Offer]:
        """Return what cannot be had now."""
        self._until_s = {offer: until_s for offer, until_s in self._until_s.items() if now_s < until_s}
        return frozenset(self._until_s)


def without(kind: InstanceType, sold_out: frozenset[Offer]) -> InstanceType | None:
    """Return a type with what can be had of it, None where nothing can."""
    left = tuple(
        each
        for each in kind.offerings
        if not {Offer.of(kind, each), Offer(kind.name, each.capacity_type, "")} & sold_out
    )
    if len(left) == len(kind.offerings):
        return kind
    return replace(kind, offerings=left) if left else None
