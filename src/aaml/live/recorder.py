"""Recorder: watches a Kubernetes cluster with read-only rights and tells what happens there as a trace's events."""

import dataclasses
import logging
import queue
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

from aaml import threads
from aaml.cluster.objects import Node, Pod, PodGroup
from aaml.kube import rights
from aaml.kube.objects.convert import pod_group_from_api
from aaml.kube.recorded import EVERY_POD, RecordedPod
from aaml.kube.reflector import Changes, Delta, Trouble
from aaml.kube.sources import NODES, POD_GROUPS
from aaml.kube.transport import ApiError, Transport
from aaml.kube.watcher import Watching
from aaml.workload.trace.events import (
    AnyEvent,
    Began,
    Listed,
    Lost,
    NodeGone,
    NodeSeen,
    PodBound,
    PodEnded,
    PodSeen,
    Watched,
    waiting,
)

_CATCH_UP_S = 1.0  # what comes this soon after a lost connection is back happened, most likely, meanwhile
_GROUPS_S = 30.0  # how long groups are waited for before their pods are told without them
_HALF_A_SECOND = 0.5  # the API server tells whole seconds, and clocks in between show more
_log = logging.getLogger(__name__)
Sink = Callable[[AnyEvent], object]


class Recorder(Watching):
    """Passes every event of a cluster to `sink`, in the thread that calls `start` and `pump`.

    A lost connection is restored: what happened meanwhile is reported with the API server's own times, after an event
    that gives the gap. A pod that was deleted in the gap ends when the connection was lost, as it was last seen running
    then. PodGroups are watched from the first pod of one on; a pod has its group, and is told again where that changes.
    Where they cannot be read, its pods are recorded as pods without a group, which is said once.
    """

    def __init__(self, transport: Transport, sink: Sink, *, clock: Callable[[], float] = time.time) -> None:
        super().__init__(transport, (NODES, EVERY_POD))
        self._sink, self._clock = sink, clock
        self._troubled: dict[str, float] = {}  # by source: since when it hears nothing
        self._missed: dict[str, tuple[float, float]] = {}  # by source: since when it was lost; until when that is told
        self._nodes: dict[str, Node] = {}
        self._pods: dict[str, Pod] = {}  # as they wait, by uid; finished ones are no longer in it
        self._bound: set[str] = set()
        self._groups: dict[str, PodGroup] = {}  # by namespace/name; the last that was seen of one that is gone
        self._members: dict[str, set[str]] = {}  # uids by group
        self._groups_watched = self._groups_refused = False

    @classmethod
    def connect(cls, kubeconfig: Path | str | None, sink: Sink) -> Self:
        """Connect and tell what there is. Raises `UserError` when there is no cluster or no permission."""
        recorder = cls(Transport(kubeconfig, connections=4), sink)
        try:
            rights.check(recorder.transport, rights.RECORD, "recorder")
            recorder.start()
        except BaseException:
            recorder.close()
            raise
        return recorder

    def start(self) -> None:
        """Begin to record; returns once all existing objects are reported, which begins when all may be read."""
        begun_s = self._clock()
        first = list(self._first_changes())
        pods = (delta.obj.pod for each in first if each.source == EVERY_POD.name for delta in each.deltas)
        early = [*first, *(self._first_groups() if any(pod.group is not None for pod in pods) else ())]
        self._sink(Began(at=begun_s, source=self.transport.server))
        for item in sorted(early, key=lambda each: each.source != NODES.name):  # a pod is told after its node
            self._take(item)
        self._sink(Listed(at=self._clock()))

    def watched(self) -> None:
        """Report that everything up to now is complete, unless the connection is lost."""
        if not self._troubled:
            self._sink(Watched(at=self._clock()))

    # ---- inside ------------------------------------------------------------------------------------------------------

    def _first_groups(self) -> Iterator[Changes[Any] | Trouble]:
        """Begin to watch groups; yield what else comes until they are listed, or cannot be, or it takes too long."""
        self._watch_groups()
        deadline_s = time.monotonic() + _GROUPS_S
        while (left_s := deadline_s - time.monotonic()) > 0:
            try:
                item = self._inbox.get(left_s)
            except queue.Empty:
                return
            if isinstance(item, threads.ThreadError):
                raise item
            if item.source != POD_GROUPS.name:
                yield item
                continue
            self._take(item)
            if isinstance(item, Trouble) or item.synced:
                return

    def _watch_groups(self) -> None:
        if not self._groups_watched:
            self._groups_watched = True
            self._watch_too(POD_GROUPS)

    def _take(self, item: Changes[Any] | Trouble | threads.ThreadError) -> None:
        if isinstance(item, threads.ThreadError):
            raise item
        now_s = self._clock()
        if item.source == POD_GROUPS.name:
            self._take_groups(item, now_s)
            return
        if isinstance(item, Trouble):
            self._troubled.setdefault(item.source, now_s)
            return
        lost_s = self._troubled.pop(item.source, None)
        if lost_s is not None:
            self._sink(Lost(at=now_s, since=lost_s))
            self._missed[item.source] = (lost_s, time.monotonic() + _CATCH_UP_S)
        since_s, until_s = self._missed.get(item.source, (None, 0.0))
        since_s = since_s if time.monotonic() < until_s else None
        found = item.synced or since_s is not None
        for delta in item.deltas:
            if item.source == NODES.name:
                self._node(delta, now_s)
            else:
                self._pod(delta, now_s, since_s, found=found)

    def _take_groups(self, item: Changes[Any] | Trouble, now_s: float) -> None:
        """Take in groups, and tell their pods again where one has changed; one that is gone stays with its pods."""
        if isinstance(item, Trouble):
            if isinstance(item.error, ApiError) and not self._groups_refused:
                self._groups_refused = True
                _log.warning("podgroups cannot be read (%s): their pods are recorded as pods without one", item.error)
            return
        for delta in item.deltas:
            key, group = POD_GROUPS.key(delta.obj), pod_group_from_api(delta.obj)
            if delta.kind == "deleted":
                self._groups.pop(key, None)
                continue
            self._groups[key] = group
            for uid in sorted(self._members.get(key, ())):
                known = self._pods[uid]
                pod = waiting(dataclasses.replace(known, group=group))
                if pod != known:
                    self._pods[uid] = pod
                    self._sink(PodSeen(at=now_s, pod=pod))

    def _in_group(self, pod: Pod, known: Pod | None) -> Pod:
        """Return a pod with what is known of its group."""
        if pod.group is None:
            return pod
        self._watch_groups()
        group = self._groups.get(pod.group_key) or (known.group if known is not None else None)
        return pod if group is None else dataclasses.replace(pod, group=group)

    def _node(self, delta: Delta[Node], now_s: float) -> None:
        node = dataclasses.replace(delta.obj, resource_version="")
        if delta.kind == "deleted":
            self._nodes.pop(node.name, None)
            self._sink(NodeGone(at=now_s, name=node.name))
        elif self._nodes.get(node.name) != node:
            self._nodes[node.name] = node
            self._sink(NodeSeen(at=now_s, node=node))

    def _pod(self, delta: Delta[RecordedPod], now_s: float, since_s: float | None, *, found: bool) -> None:
        """Tell what is new of a pod; one that was `found`, in a list, changed at a time that only the server knows."""
        seen = delta.obj
        uid, over = seen.pod.uid, delta.kind == "deleted" or seen.ended is not None
        known = self._pods.get(uid)
        if known is None and over:
            passed_unseen = since_s is not None and seen.ended_s is not None and seen.pod.created_s >= since_s
            if delta.kind == "deleted" or not passed_unseen:
                return  # its end was told, or was before anybody looked
        pod = waiting(self._in_group(seen.pod, known))
        if seen.pod.group is not None:
            self._members.setdefault(seen.pod.group_key, set()).add(uid)
        if known != pod:
            self._pods[uid] = pod
            self._sink(PodSeen(at=_past(pod.created_s if known is None and found else None, now_s, now_s), pod=pod))
        if seen.pod.node_name and uid not in self._bound:
            self._bound.add(uid)
            at_s = _past(seen.bound_s if found else None, now_s, now_s)
            self._sink(
                PodBound(at=at_s, uid=uid, node_name=seen.pod.node_name, gpus=seen.gpus, found=found or known is None)
            )
        if over:
            del self._pods[uid]
            members = self._members.get(seen.pod.group_key, set())
            members.discard(uid)
            if not members:
                self._members.pop(seen.pod.group_key, None)
            self._bound.discard(uid)
            how = seen.ended or seen.if_deleted
            last_s = now_s if since_s is None else since_s
            self._sink(PodEnded(at=_past(seen.ended_s if found else None, last_s, now_s), uid=uid, how=how))


def _past(known_s: float | None, else_s: float, now_s: float) -> float:
    """Return the middle of the second that the API server tells, `else_s` where it tells none.

    Its clock may be ahead of ours, which says `now_s`.
    """
    return else_s if known_s is None else min(known_s + _HALF_A_SECOND, now_s)
