"""Purchases, and whether they helped: a node that stays empty while the pods that it was for still wait did not.

What keeps these pods out is something that the autoscaler does not look at, or kube-scheduler is away. For a while
nothing is provisioned for them: three minutes the first time, and twice as long each time, up to half an hour.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from aaml.cluster.objects import Pod
from aaml.nodes.ports import Observed, OwnedNode, Waiting

SETTLED_S = 60.0
"""For so long a new node may stay empty: kube-scheduler makes pods back off."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 180.0, 1800.0


@dataclass(frozen=True, slots=True)
class InVain:
    """A node that did not help, the pods that it was for, and for how long there is none for them."""

    node: OwnedNode
    pods: tuple[Waiting, ...]
    pause_s: float


class _Pause(NamedTuple):
    failures: int
    until_s: float


class Purchases:
    """The nodes that were provisioned for pods that wait, and the pods for which that was in vain."""

    def __init__(self) -> None:
        self._for: dict[str, frozenset[str]] = {}  # by claim: the uids of pods that waited when it was ordered
        self._pauses: dict[str, _Pause] = {}  # by the uid of a pod

    def ordered(self, name: str, seen: Observed) -> None:
        """Note a purchase by the name of its claim."""
        self._for[name] = frozenset(seen.waiting)

    def look(
        self, seen: Observed, is_empty: Callable[[str], bool | None], fits: Callable[[Pod, OwnedNode], bool]
    ) -> Iterator[InVain]:
        """Yield the purchases that are found to be in vain, each once.

        `is_empty` says whether a claim's node has no pods but those that come with it, None where the claim is gone;
        `fits` whether an empty node would take a pod.
        """
        self._pauses = {uid: pause for uid, pause in self._pauses.items() if uid in seen.waiting}
        for name, uids in list(self._for.items()):
            node = seen.nodes.get(name)
            if not is_empty(name):
                del self._for[name]
            elif node and node.initialized_s is not None and seen.now_s - node.initialized_s >= SETTLED_S:
                del self._for[name]
                asking = self.left(seen).waiting.items()
                if pods := tuple(each for uid, each in asking if uid in uids and fits(each.pod, node)):
                    yield InVain(node, pods, max(self._pause(each.pod.uid, seen.now_s) for each in pods))

    def left(self, seen: Observed) -> Observed:
        """Return a moment without the pods for which nothing is provisioned now."""
        paused = {uid for uid, pause in self._pauses.items() if seen.now_s < pause.until_s}
        waiting = {uid: each for uid, each in seen.waiting.items() if uid not in paused}
        return replace(seen, waiting=waiting) if paused else seen

    def _pause(self, uid: str, now_s: float) -> float:
        """Begin a pod's pause; returns how long it is."""
        failures = self._pauses[uid].failures + 1 if uid in self._pauses else 1
        pause_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(failures - 1, 10))
        self._pauses[uid] = _Pause(failures, now_s + pause_s)
        return pause_s
