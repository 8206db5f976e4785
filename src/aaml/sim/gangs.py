"""Gangs: pods that are placed all or none, kept together until enough of them wait."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from aaml.cluster.objects import Pod


@dataclass(slots=True)
class _Gang:
    waiting: dict[str, Pod] = field(default_factory=dict)
    running: set[str] = field(default_factory=set)
    leader: str = ""  # uid of the pod that stands in the queue for all, "" while the gang is not complete


class Gangs:
    """Which pods of each gang wait and run. One pod, the leader, stands in the queue for all that wait.

    A gang is complete when waiting and running pods together are `gang_size`; so a single evicted pod is placed alone.
    """

    def __init__(self) -> None:
        self._gangs: dict[str, _Gang] = {}
        self._gang_of: dict[str, str] = {}  # waiting pods' uid -> gang

    def arrived(self, pod: Pod) -> Pod | None:
        """Take in a pod that waits; returns the leader to queue when that makes the gang complete."""
        gang = self._gangs.setdefault(pod.gang, _Gang())
        gang.waiting[pod.uid] = pod
        self._gang_of[pod.uid] = pod.gang
        return self._complete(gang)

    def members(self, leader: Pod) -> list[Pod]:
        """Return the pods that wait behind a leader, itself first."""
        waiting = self._gangs[leader.gang].waiting
        return [leader, *(pod for uid, pod in waiting.items() if uid != leader.uid)]

    def bound(self, pods: Sequence[Pod]) -> Pod | None:
        """All of these run now; returns the leader to queue when another pod of the gang has come meanwhile."""
        gang = self._gangs[pods[0].gang]
        for pod in pods:
            del gang.waiting[pod.uid]
            del self._gang_of[pod.uid]
            gang.running.add(pod.uid)
        gang.leader = ""
        return self._complete(gang)

    def left(self, pod: Pod) -> None:
        """A running pod is gone."""
        self._gangs[pod.gang].running.discard(pod.uid)

    def deleted(self, uid: str) -> tuple[str, Pod | None]:
        """Forget a waiting pod; returns the leader's uid to take out of the queue ("") and the leader to put there."""
        name = self._gang_of.pop(uid, "")
        if not name:
            return "", None
        gang = self._gangs[name]
        del gang.waiting[uid]
        leader, gang.leader = gang.leader, ""
        return leader, self._complete(gang)

    def copy(self) -> "Gangs":
        """Return an independent copy."""
        twin = Gangs()
        twin._gang_of = dict(self._gang_of)
        twin._gangs = {name: _Gang(dict(g.waiting), set(g.running), g.leader) for name, g in self._gangs.items()}
        return twin

    @staticmethod
    def _complete(gang: _Gang) -> Pod | None:
        if gang.leader or not gang.waiting:
            return None
        first = next(iter(gang.waiting.values()))
        if len(gang.waiting) + len(gang.running) < first.gang_size:
            return None
        gang.leader = first.uid
        return first
