"""ClusterWatch: a read-only view of a live cluster, for whatever submits workloads or shows tables."""

import queue
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from aaml import threads
from aaml.cluster.objects import NO_VOLUMES, Node, Pod
from aaml.cluster.state import ClusterState
from aaml.errors import UserError
from aaml.kube import rights
from aaml.kube.history import History
from aaml.kube.inbox import Inbox
from aaml.kube.reflector import Changes, Delta, Reflector, Source, Trouble
from aaml.kube.sources import NODES, PODS, SeenPod
from aaml.kube.transport import NOT_FOUND, ApiError, Transport

_SYNC_S = 30.0
_JOIN_S = 2.0


class Watching:
    """Sources that are watched together; one thread takes in what happens, by `pump`."""

    def __init__(self, transport: Transport, sources: Sequence[Source[Any]]) -> None:
        self.transport = transport
        self._inbox = Inbox()
        self._brought_by = {source.name: source.brought_by for source in sources}
        self._history = History(transport)
        self._reflectors = [self._reflector_of(source) for source in sources]

    def _reflector_of(self, source: Source[Any]) -> Reflector[Any]:
        return Reflector(self.transport, source, self._inbox.put_changes, history=self._history)

    def _watch_too(self, source: Source[Any]) -> None:
        """Watch another source from now on; what it brings is taken in as of the others."""
        self._reflectors.append(self._reflector_of(source))
        self._reflectors[-1].start()

    def _first_changes(self) -> Iterator[Changes[Any]]:
        """Begin to watch, and yield what comes until each source was listed. Raises `UserError` where one cannot be."""
        for reflector in self._reflectors:
            reflector.start()
        deadline_s, unsynced = time.monotonic() + _SYNC_S, set(self._brought_by)
        while unsynced:
            try:
                item = self._inbox.get(deadline_s - time.monotonic())
            except queue.Empty:
                missing = ", ".join(sorted(unsynced))
                raise UserError(f"{self.transport.server}: no list of {missing} in {_SYNC_S:g} s") from None
            if isinstance(item, threads.ThreadError):
                raise item
            if isinstance(item, Trouble):
                if isinstance(item.error, ApiError) and item.error.status == NOT_FOUND:
                    program = self._brought_by[item.source] or "what brings them"
                    raise UserError(
                        f"{self.transport.server}: {program} is not installed on this cluster: it has no {item.source}"
                    )
                raise self.transport.explain(item.error)
            if isinstance(item, Changes):
                unsynced -= {item.source} if item.synced else set()
                yield item

    def pump(self, timeout_s: float) -> bool:
        """Take in what happened; waits up to `timeout_s` for the first change. Returns whether there were any.

        Raises `ThreadError` once a thread that watches has ended.
        """
        try:
            self._take(self._inbox.get(timeout_s))
        except queue.Empty:
            return False
        for _ in range(len(self._inbox)):  # what comes meanwhile is for the next time
            self._take(self._inbox.get(0.0))
        return True

    def close(self) -> None:
        """Stop watching and close the connections."""
        self._inbox.close()
        for reflector in self._reflectors:
            reflector.stop()
        for reflector in self._reflectors:
            reflector.join(_JOIN_S)
        self.transport.close()

    def _take(self, item: Any) -> None:
        """Take in changes, or trouble, of a source; raise the error of a thread."""
        raise NotImplementedError


class ClusterWatch(Watching):
    """Nodes and pods of a cluster, kept current by `pump`; all but `wake` belongs to one thread.

    `pods` holds every pod that has not finished, by uid; those without a node are counted in `pending`, and `why` holds
    what the API says of why they have none. `claiming` holds the uids of those with volume claims. `more` are further
    objects by the name of their source and by their key there, and `on_deleted` is called with the source's name and
    the object when one of them goes. `troubled` names the sources that are not heard now.
    """

    def __init__(self, transport: Transport, more: Sequence[Source[Any]] = ()) -> None:
        super().__init__(transport, (NODES, PODS, *more))
        self.state = ClusterState()
        self.pods: dict[str, Pod] = {}
        self.why: dict[str, str] = {}
        self.pending = 0
        self.claiming: set[str] = set()
        self.more: dict[str, dict[str, Any]] = {source.name: {} for source in more}
        self.on_deleted: Callable[[str, Any], object] = lambda _source, _object: None
        self.troubled: set[str] = set()
        self._keys = {source.name: source.key for source in more}

    @classmethod
    def connect(
        cls,
        kubeconfig: Path | str | None = None,
        *,
        connections: int = 16,
        more: Sequence[Source[Any]] = (),
        needs: rights.Rights = rights.LOOK,
        granted_by: str = "recorder",
    ) -> "ClusterWatch":
        """Connect and wait for the first lists; raises `UserError` when there is no cluster or no permission.

        `more` is watched besides nodes and pods, and `needs` is what the account has to be allowed: the folder
        `granted_by` of deploy/kubernetes grants it.
        """
        watch = cls(Transport(kubeconfig, connections=connections), more)
        try:
            rights.check(watch.transport, needs, granted_by)
            watch.start()
        except BaseException:
            watch.close()
            raise
        return watch

    def start(self) -> None:
        """Begin to watch; returns when the first lists are in."""
        for changes in self._first_changes():
            self._take(changes)

    def pump_until(self, done: Callable[[], bool], timeout_s: float) -> bool:
        """Take in what happens until `done()`; returns False when `timeout_s` is over before that."""
        deadline_s = time.monotonic() + timeout_s
        self.pump(0.0)
        while not done():
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                return False
            self.pump(min(left_s, 1.0))
        return True

    def wake(self) -> None:
        """End the wait of a `pump` in another thread."""
        self._inbox.put(None)

    # ---- inside ------------------------------------------------------------------------------------------------------

    def _take(self, item: Any) -> None:
        if isinstance(item, threads.ThreadError):
            raise item
        if isinstance(item, Trouble):  # the reflector logs it and goes on
            self.troubled.add(item.source)
        if not isinstance(item, Changes):
            return
        self.troubled.discard(item.source)
        for delta in item.deltas:
            if item.source == NODES.name:
                self._node(delta)
            elif item.source == PODS.name:
                self._pod(delta)
            else:
                self._other(item.source, delta)

    def _node(self, delta: Delta[Node]) -> None:
        if delta.kind != "deleted":
            self.state.upsert_node(delta.obj)
        elif delta.obj.name in self.state.index:
            self.state.remove_node(delta.obj.name)

    def _other(self, source: str, delta: Delta[Any]) -> None:
        there, key = self.more[source], self._keys[source](delta.obj)
        if delta.kind == "deleted":
            there.pop(key, None)
            self.on_deleted(source, delta.obj)
        else:
            there[key] = delta.obj

    def _pod(self, delta: Delta[SeenPod]) -> None:
        pod = replace(delta.obj.pod, volumes=NO_VOLUMES)
        before = self.pods.pop(pod.uid, None)
        self.why.pop(pod.uid, None)
        self.claiming.discard(pod.uid)
        self.pending -= before is not None and not before.node_name
        if delta.kind == "deleted":
            self.state.remove_pod(pod.uid)
            return
        self.pods[pod.uid] = pod
        if delta.obj.claims is not None:
            self.claiming.add(pod.uid)
        if not pod.node_name:
            self.why[pod.uid] = delta.obj.why
        self.pending += not pod.node_name
        self.state.upsert_pod(pod, delta.obj.gpus)
