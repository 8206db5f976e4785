"""A trace that was read: its events in order, and from them the life of every pod and the changes of the nodes.

Times are seconds from the trace's beginning. A recorder that comes back tells all there is anew; here that is brought
down to what changed, so that nobody else need know how often it was restarted.
"""

import dataclasses
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Self

from aaml.cluster.objects import Node, Pod
from aaml.cluster.state import ClusterState
from aaml.errors import UserError
from aaml.workload.trace.events import (
    AnyEvent,
    Began,
    End,
    Listed,
    Lost,
    NodeGone,
    NodeSeen,
    PodBound,
    PodEnded,
    PodSeen,
)
from aaml.workload.trace.store import read_events


@dataclass(slots=True)
class Life:
    """One pod from its creation to its end.

    `bound_s` and `ended_s` are None for what did not happen before the trace's end. `found`: it had its node when it
    was first seen. A pod that ended while nobody looked ends when it was last known to be there.
    """

    pod: Pod
    created_s: float
    bound_s: float | None = None
    node_name: str = ""
    gpus: tuple[int, ...] | None = None
    found: bool = False
    ended_s: float | None = None
    how: End | None = None

    @property
    def ran_s(self) -> float | None:
        """Seconds that the pod ran, None where unknown, as for a pod that ended in a gap of the recording."""
        if self.bound_s is None or self.ended_s is None or self.how == "unseen":
            return None
        return max(0.0, self.ended_s - self.bound_s)


@dataclass(frozen=True)
class Trace:
    """What happened on a cluster. `gaps` are the times (from, to) that were not recorded."""

    name: str
    events: tuple[AnyEvent, ...]
    lives: dict[str, Life]
    gaps: tuple[tuple[float, float], ...]
    source: str
    hashed: bool
    began_s: float
    """Seconds since 1970 (or since the beginning that a converted file counts from) of the trace's time 0."""
    end_s: float
    """Until when somebody looked."""

    @classmethod
    def read(cls, folder: Path | str) -> Self:
        """Read a folder. Raises `UserError` for what is no trace, and for one without a node."""
        folder = Path(folder)
        trace = cls.of(read_events(folder), folder.resolve().name)
        if not any(isinstance(event, NodeSeen) for event in trace.events):
            raise UserError(f"trace {folder}: has no node")
        return trace

    @classmethod
    def of(cls, events: Iterable[AnyEvent], name: str = "trace") -> Self:
        """Make a trace of events as they were written."""
        reader = _Reader()
        for event in events:
            reader.take(event)
        return cls(
            name, tuple(reader.events), reader.lives, tuple(reader.gaps), reader.source, reader.hashed,
            reader.began_s, reader.end_s,
        )  # fmt: skip

    @cached_property
    def schedulers(self) -> Counter[str]:
        """The number of pods that each scheduler placed outside the gaps."""
        return Counter(life.pod.scheduler_name for life in self.lives.values() if life.bound_s is not None)

    @cached_property
    def lifetimes_s(self) -> list[float]:
        """How long pods ran, of those of which that is known."""
        ran = (life.ran_s if life.ran_s is not None else life.pod.lifetime_s for life in self.lives.values())
        return [each for each in ran if each is not None]


class _Reader:
    """Reads events as they were written, drops repetitions, and adds ends that were not recorded."""

    def __init__(self) -> None:
        self.events: list[AnyEvent] = []
        self.lives: dict[str, Life] = {}
        self.gaps: list[tuple[float, float]] = []
        self.source, self.hashed = "", False
        self.began_s = 0.0
        self._nodes: dict[str, Node] = {}
        self._again: tuple[set[str], set[str]] | None = None  # nodes and pods told since a recorder came back
        self.end_s = 0.0
        self._begun = False

    def take(self, event: AnyEvent) -> None:  # noqa: C901, PLR0912
        if not self._begun:
            self._begun, self.began_s = True, event.at
        before_s = self.end_s
        at_s = event.at - self.began_s
        self.end_s = max(before_s, at_s)
        match event:
            case Began(source=source, hashed=hashed):
                if self.events:
                    if hashed != self.hashed:
                        raise UserError("trace: was recorded partly with names and partly without")
                    self.gaps.append((before_s, at_s))
                self.source, self.hashed, self._again = source, hashed, (set(), set())
            case Lost(since=since):
                self.gaps.append((since - self.began_s, at_s))
            case Listed():
                self._listed()
            case NodeSeen(node=node):
                if self._again is not None:
                    self._again[0].add(node.name)
                if self._nodes.get(node.name) != node:
                    self._nodes[node.name] = node
                    self.events.append(NodeSeen(at=at_s, node=node))
            case NodeGone(name=name):
                if self._nodes.pop(name, None) is not None:
                    self.events.append(NodeGone(at=at_s, name=name))
            case PodSeen(pod=pod):
                self._seen(at_s, pod)
            case PodBound():
                life = self.lives.get(event.uid)
                if life is not None and life.bound_s is None and life.ended_s is None:
                    life.bound_s, life.node_name = max(at_s, life.created_s), event.node_name
                    life.gpus, life.found = event.gpus, event.found
                    self.events.append(
                        PodBound(at=at_s, uid=event.uid, node_name=event.node_name, gpus=event.gpus, found=event.found)
                    )
            case PodEnded(uid=uid, how=how):
                self._ended(uid, at_s, how)

    def _seen(self, at_s: float, pod: Pod) -> None:
        if self._again is not None:
            self._again[1].add(pod.uid)
        life = self.lives.get(pod.uid)
        if life is not None and life.ended_s is not None and self._again is not None:
            life.ended_s = life.how = None  # an end that was wrongly taken for one
        if life is None:
            self.lives[pod.uid] = Life(pod, at_s)  # not by the pod's own time: that is in whole seconds
        elif life.pod == pod:
            return
        else:
            life.pod = pod
        self.events.append(PodSeen(at=at_s, pod=pod))

    def _ended(self, uid: str, at_s: float, how: End) -> None:
        life = self.lives.get(uid)
        if life is not None and life.ended_s is None:
            life.ended_s, life.how = max(at_s, life.created_s, life.bound_s or life.created_s), how
            self.events.append(PodEnded(at=at_s, uid=uid, how=how))

    def _listed(self) -> None:
        """End what was there before the recorder was away and is not any more.

        Pods end when it was last there, since nobody saw them run any longer; nodes go when it came back.
        """
        if self._again is None:
            return
        nodes, pods = self._again
        self._again = None
        left_s, back_s = self.gaps[-1] if self.gaps else (0.0, 0.0)
        for uid in [uid for uid, life in self.lives.items() if life.ended_s is None and uid not in pods]:
            self._ended(uid, left_s, "unseen")
        for name in [name for name in self._nodes if name not in nodes]:
            del self._nodes[name]
            self.events.append(NodeGone(at=back_s, name=name))


class Follower:
    """The state of a cluster, updated event by event."""

    def __init__(self) -> None:
        self.state = ClusterState()
        self.pods: dict[str, Pod] = {}
        """Every pod that has not ended, by uid, as one without a node."""

    def decided(self, event: AnyEvent) -> Pod | None:
        """Return the pod that an event says a scheduler just decided on, from the state as it is now; else None."""
        if not isinstance(event, PodBound) or event.found or event.node_name not in self.state.index:
            return None
        return self.pods.get(event.uid)

    def apply(self, event: AnyEvent) -> None:
        """Let an event happen."""
        match event:
            case NodeSeen(node=node):
                self.state.upsert_node(node)
            case NodeGone(name=name) if name in self.state.index:
                self.state.remove_node(name)
            case PodSeen(pod=pod):
                self.pods[pod.uid] = pod
                placed = self.state.placements.get(pod.uid)
                if placed is not None:
                    self.state.upsert_pod(dataclasses.replace(pod, node_name=placed.node_name), placed.gpus)
            case PodBound(uid=uid, node_name=node_name, gpus=gpus) if uid in self.pods:
                self.state.upsert_pod(dataclasses.replace(self.pods[uid], node_name=node_name), gpus)
            case PodEnded(uid=uid):
                self.pods.pop(uid, None)
                self.state.remove_pod(uid)
