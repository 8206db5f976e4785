"""Counts of pods by state, from a watch of the API server."""

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Self

from aaml.errors import UserError
from aaml.kube.objects import wire
from aaml.kube.reflector import Changes, Reflector, Source, Trouble
from aaml.kube.sources import uid_of
from aaml.kube.transport import Transport
from aaml.threads import ThreadError

_LOOK_EVERY_S = 0.5
_FIRST_LIST_S = 60.0


@dataclass(frozen=True, slots=True)
class _News:
    uid: str
    version: str
    name: str
    namespace: str
    labels: Mapping[str, str]
    node: str
    attempted: bool
    preempted: bool
    terminating: bool


def _read(raw: wire.PodObject) -> _News:
    meta, conditions = raw.metadata, raw.status.conditions or ()
    return _News(
        meta.uid, meta.resource_version, meta.name, meta.namespace, meta.labels or {}, raw.spec.node_name,
        attempted=any(each.type == "PodScheduled" for each in conditions),
        preempted=any(
            each.type == "DisruptionTarget" and each.reason == "PreemptionByScheduler" for each in conditions
        ),
        terminating=meta.deletion_timestamp is not None,
    )  # fmt: skip


_PODS: Source[_News] = Source(
    "pods",
    "/api/v1/pods",
    wire.PodObject,
    _read,
    key=lambda news: news.uid,
    version=lambda news: news.version,
    wire_key=uid_of,
)


@dataclass(slots=True)
class TrackedPod:
    """One pod. `bound_s` is when the watch first showed its node, on a clock that only goes on; 0 while it has none.

    `awaited`: an operation waited until it was bound.
    """

    name: str
    namespace: str
    labels: Mapping[str, str]
    node: str = ""
    bound_s: float = 0.0
    attempted: bool = False
    preempted: bool = False
    terminating: bool = False
    gone: bool = False
    awaited: bool = False

    @property
    def pending(self) -> bool:
        """Whether it is there without a node, and is to stay."""
        return not (self.node or self.gone or self.terminating)


@dataclass
class PodTally:
    """All pods since the block began, by uid. Use as a context manager."""

    api: Transport
    pods: dict[str, TrackedPod] = field(default_factory=dict)

    def __enter__(self) -> Self:
        self._changed, self._synced = threading.Condition(), False
        self._broken: ThreadError | None = None
        self._reflector = Reflector(self.api, _PODS, self._take)
        self._reflector.start()
        if not self.wait(lambda: self._synced, _FIRST_LIST_S):
            raise UserError(f"no list of pods in {_FIRST_LIST_S:g} s")
        return self

    def __exit__(self, *_: object) -> None:
        self._reflector.stop()
        self._reflector.join(_FIRST_LIST_S)

    def select(self, namespaces: Collection[str], labels: Mapping[str, str]) -> Iterator[TrackedPod]:
        """Yield the pods that are there, of these namespaces (none: of all) and with these labels."""
        for pod in list(self.pods.values()):
            there = not pod.gone and (not namespaces or pod.namespace in namespaces)
            if there and labels.items() <= pod.labels.items():
                yield pod

    def wait(self, met: Callable[[], bool], wait_s: float, alive: Callable[[], None] = lambda: None) -> bool:
        """Wait until `met` and return True, False when it is not in `wait_s`; `alive` may raise meanwhile."""
        deadline = time.monotonic() + wait_s
        with self._changed:
            while not met():
                if (left := deadline - time.monotonic()) <= 0:
                    return False
                if not self._changed.wait(min(left, _LOOK_EVERY_S)):
                    alive()
                if self._broken is not None:
                    raise self._broken
        return True

    def _take(self, changes: Changes[_News] | Trouble | ThreadError) -> None:
        """Note what changed; called from the reflector's thread, which tries again after any trouble by itself."""
        if isinstance(changes, ThreadError):
            self._broken = changes
        if not isinstance(changes, Changes):
            return
        now_s = time.monotonic()
        with self._changed:
            for delta in changes.deltas:
                news = delta.obj
                pod = self.pods.setdefault(news.uid, TrackedPod(news.name, news.namespace, news.labels))
                pod.labels, pod.gone = news.labels, delta.kind == "deleted"
                pod.attempted, pod.terminating = news.attempted, news.terminating
                pod.preempted = pod.preempted or news.preempted
                if news.node and not pod.node:
                    pod.node, pod.bound_s = news.node, now_s
            self._synced = self._synced or changes.synced
            self._changed.notify_all()
