"""Unavailable offerings: those of which Karpenter launched no node, and how long nothing is provisioned after that.

Karpenter deletes a NodeClaim that finds no capacity. Like its providers for clouds, this remembers the offering for
three minutes. After failures in a row it waits longer and longer before it provisions anything.
"""

from collections.abc import Iterable
from dataclasses import replace
from math import inf

from aaml.live.node_claims import Offer
from aaml.nodes.catalogue import InstanceType

FORGOTTEN_S = 180.0  # after which an offering is tried again
LONGEST_PAUSE_S = 60.0


class UnavailableOfferings:
    """The offerings that failed, and the pause since the last failure; all times are those of `now_s`."""

    def __init__(self) -> None:
        self._until_s: dict[Offer, float] = {}
        self._failures = 0
        self._resumes_s = -inf

    def failed(self, offers: Iterable[Offer], now_s: float) -> None:
        """Note a failure; `offers` are the offerings without capacity, none where the failure has another cause."""
        self._until_s.update(dict.fromkeys(offers, now_s + FORGOTTEN_S))
        self._failures += 1
        self._resumes_s = now_s + min(LONGEST_PAUSE_S, 2.0 ** min(self._failures - 1, 10))

    def launched(self) -> None:
        """Note that a node was launched, which ends the pause."""
        self._failures, self._resumes_s = 0, -inf

    def pauses(self, now_s: float) -> bool:
        """Whether provisioning pauses."""
        return now_s < self._resumes_s

    def look(self, now_s: float) -> frozenset[Offer]:
        """Return the offerings that are unavailable now."""
        self._until_s = {offer: until_s for offer, until_s in self._until_s.items() if now_s < until_s}
        return frozenset(self._until_s)


def without(kind: InstanceType, unavailable: frozenset[Offer]) -> InstanceType | None:
    """Return a type with its available offerings, None where none is."""
    left = tuple(
        each
        for each in kind.offerings
        if not {Offer.of(kind, each), Offer(kind.name, each.capacity_type, "")} & unavailable
    )
    if len(left) == len(kind.offerings):
        return kind
    return replace(kind, offerings=left) if left else None
