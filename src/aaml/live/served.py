"""Served: how long pods waited for nodes of ours, and how many were evicted: what a promise is measured by."""

from collections.abc import Collection, Mapping
from collections.abc import Set as AbstractSet
from math import exp

from aaml.cluster.objects import Pod
from aaml.nodes.ports import Observed

_HOUR_S = 3600.0
_DAY_S = 24 * _HOUR_S  # over which evictions, and the hours that pods run, are forgotten


class Served:
    """Counts over what is observed, one look after the other.

    A pod counts when it is first seen on a node of ours; one that was there at the first look is unknown. It has waited
    from its creation, or since it was last seen with a scheduling gate, until its kubelet has begun to start it, or
    until it was seen. `speed`: as for `OwnedNodes`. `waited_s`: by uid, how long the pods had waited that the last look
    found first. `evictions`: how many pods it found to be evicted. What is written as `evicted` and `pod_hours` forgets
    what was days ago.
    """

    def __init__(self, speed: float = 1.0) -> None:
        self.evictions = 0
        self.waited_s: Mapping[str, float] = {}
        self._evicted = self._pod_hours = 0.0
        self._speed, self._running = speed, 0
        self._known, self._leaving = set[str](), set[str]()
        self._looked_s: float | None = None

    def drained(self, pods: Collection[str]) -> None:
        """Take note that the node of these pods, by uid, is drained from now on."""
        self._leaving |= set(pods)

    def look(
        self, seen: Observed, there: Mapping[str, Pod], leaving: Collection[str], gated_s: Mapping[str, float],
        exist: AbstractSet[str],
    ) -> None:  # fmt: skip
        """Write into `seen` what has happened since the last look.

        `there`: by uid the pods of all nodes of ours. `leaving`: uids of those whose node is drained: once they are
        gone they count as evicted, and at once where `seen` has not their node. `gated_s`: by uid, when pods were last
        seen with a scheduling gate. `exist`: uids of all pods: one whose node goes and comes back is known.
        """
        if self._looked_s is not None:
            seconds = max(seen.now_s - self._looked_s, 0.0)
            fades = exp(-seconds / _DAY_S)
            self.evictions = len(self._leaving - there.keys())
            self._evicted = self._evicted * fades + self.evictions
            self._pod_hours = self._pod_hours * fades + self._running * seconds / _HOUR_S
            self.waited_s = {
                uid: self._waited_s(there[uid], gated_s.get(uid), seen.now_s) for uid in there.keys() - self._known
            }
        self._looked_s, self._running, self._leaving = seen.now_s, len(there), set(leaving)
        self._known = (self._known | there.keys()) & exist
        unseen = self._leaving.difference(*seen.pods.values())
        seen.evicted, seen.pod_hours = self._evicted + len(unseen), self._pod_hours

    def _waited_s(self, pod: Pod, gated_s: float | None, now_s: float) -> float:
        since_s = pod.created_s * self._speed if gated_s is None else gated_s
        until_s = pod.started_s * self._speed if pod.started_s else now_s
        return max(until_s - since_s, 0.0)
