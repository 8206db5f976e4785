"""What the API server says becomes state and queue: the one place that reads changes of objects."""

import logging
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

from aaml.cluster.objects import NO_AFFINITY, Node, Pod
from aaml.cluster.state import ClusterState
from aaml.kube.lookups import Storage
from aaml.kube.reflector import Changes, Delta, Source, Trouble
from aaml.kube.sources import CSI_NODES, NAMESPACES, NODES, PODS, STORAGE, SeenPod
from aaml.kube.transport import ApiError
from aaml.scheduling.queue import SchedulingQueue

log = logging.getLogger(__name__)

_FORBIDDEN = frozenset({401, 403})


class Intake:
    """Applies changes to a state and a queue; belongs to the thread that decides.

    `watch` starts a reflector: namespaces and storage are only watched once a pod needs them. `cancel(uid, node_name,
    why)` is told of a pod (uid given) or node (uid "") that is gone, so that binds to it are not sent any more.
    `on_bound(pod)` is told of each pod that has just got its node, whoever chose it, while the state is still without.
    """

    def __init__(
        self,
        state: ClusterState,
        waiting: SchedulingQueue,
        *,
        scheduler_name: str,
        namespaces: Collection[str],
        decide_once: bool,
        watch: Callable[[Source[Any]], None],
        cancel: Callable[[str, str, str], None],
        forget: Callable[[str], None],
    ) -> None:
        self._state, self._queue = state, waiting
        self._scheduler_name, self._namespaces = scheduler_name, frozenset(namespaces)
        self._decide_once = decide_once
        self._watch, self._cancel, self._forget = watch, cancel, forget
        self.on_bound: Callable[[Pod], None] | None = None
        self._storage = Storage(self._watch_storage)
        self._backlog: deque[Delta[SeenPod]] = deque()
        self._namespaces_watched = False
        self._decided: set[str] = set()
        self.unsynced = {PODS.name, NODES.name}
        self.awaited: set[str] = set()  # sources without which decisions would be wrong

    # ---- in ----------------------------------------------------------------------------------------------------------

    def take(self, changes: Changes[Any]) -> None:
        """Apply changes. With `decide_once` those of pods wait for `step`."""
        match changes.source:
            case PODS.name:
                self._backlog.extend(changes.deltas)
                while self._backlog and not self._decide_once:
                    self._apply_pod(self._backlog.popleft())
            case NODES.name:
                for node_delta in changes.deltas:
                    self._apply_node(node_delta)
            case NAMESPACES.name:
                for delta in changes.deltas:
                    labels = {} if delta.kind == "deleted" else delta.obj.metadata.labels or {}
                    self._state.label_namespace(delta.obj.metadata.name, labels)
                self._queue.on_event("namespace_change")
            case _:
                self._apply_storage(changes)
        if changes.synced:
            self.unsynced.discard(changes.source)
            self.awaited.discard(changes.source)

    def step(self) -> bool:
        """Apply one change of a pod that waits; False when none does.

        A dry run looks at each pod before it takes in what comes next, which may be that somebody else bound it.
        """
        if not self._backlog:
            return False
        self._apply_pod(self._backlog.popleft())
        return True

    def take_trouble(self, trouble: Trouble) -> None:
        """A source cannot be read; when that is for want of permission, decisions no longer wait for it."""
        refused = isinstance(trouble.error, ApiError) and trouble.error.status in _FORBIDDEN
        if refused and trouble.source in self.awaited:
            log.error("%s cannot be read (%s): selectors over them match nothing", trouble.source, trouble.error)
            self.awaited.discard(trouble.source)

    def decided(self, uid: str) -> None:
        """A dry run has decided on a pod and must not see it again."""
        self._decided.add(uid)

    # ---- pods --------------------------------------------------------------------------------------------------------

    def _apply_pod(self, delta: Delta[SeenPod]) -> None:
        uid = delta.obj.pod.uid
        if delta.kind == "deleted":
            self._queue.remove(uid)
            self._storage.forget(uid)
            self._decided.discard(uid)
            self._forget(uid)
            self._cancel(uid, "", "the pod was deleted")
            nominated = uid in self._state.nominated
            placement = self._state.remove_pod(uid)
            if placement is not None or delta.obj.pod.node_name or nominated:
                self._queue.on_event("pod_delete", placement.pod if placement is not None else delta.obj.pod)
            return
        pod = self._storage.resolve(delta.obj)
        if pod.affinity is not NO_AFFINITY and not self._namespaces_watched and _selects_namespaces(pod):
            self._namespaces_watched = True
            self.awaited.add(NAMESPACES.name)
            self._watch(NAMESPACES)
        if pod.node_name:
            self._queue.remove(uid)
            self._decided.discard(uid)
            self._forget(uid)
            before = delta.before.pod if delta.before is not None else None
            if self.on_bound is not None and before is not None and not before.node_name:
                self.on_bound(pod)
            self._state.upsert_pod(pod, self._devices(delta.obj))
            if before is not None and before.node_name:
                self._queue.on_event("pod_update", pod, before)
            else:
                self._queue.on_event("pod_add", pod)
            return
        if pod.nominated_node:
            self._state.nominate(pod, pod.nominated_node)
        elif uid in self._state.nominated:
            if delta.before is not None and delta.before.pod.nominated_node:
                self._state.withdraw(uid)
            else:  # news from before the nomination was written
                self._state.nominate(pod, self._state.nominated[uid][1])
        self._enqueue(pod)

    def _enqueue(self, pod: Pod) -> None:
        """Queue an unbound pod when it is ours to place.

        News of a pod can be older than our own bind of it, so one that is assumed or decided on stays out.
        """
        if pod.scheduler_name != self._scheduler_name or (self._namespaces and pod.namespace not in self._namespaces):
            return
        if pod.terminating:
            self._queue.remove(pod.uid)
        elif pod.uid in self._queue or (pod.uid not in self._state.placements and pod.uid not in self._decided):
            self._queue.add(pod)

    def _devices(self, seen: SeenPod) -> tuple[int, ...] | None:
        """Return the GPUs that a pod's annotation names where its node has them."""
        row = self._state.index.get(seen.pod.node_name)
        if seen.gpus is None or row is None or not seen.pod.gpu.milli:
            return None
        real = all(device < self._state.gpu_count[row] for device in seen.gpus)
        return seen.gpus if real and len(set(seen.gpus)) == len(seen.gpus) else None

    # ---- nodes and storage -------------------------------------------------------------------------------------------

    def _apply_node(self, delta: Delta[Node]) -> None:
        node = delta.obj
        if delta.kind == "deleted":
            self._cancel("", node.name, f"node {node.name} was deleted")
            if node.name in self._state.index:
                self._state.remove_node(node.name)
            self._queue.on_event("node_delete", node, node)
            return
        before = delta.before
        if before is not None and replace(before, resource_version=node.resource_version) == node:
            return  # a heartbeat
        self._state.upsert_node(self._with_limits(node))
        if before is None:
            self._queue.on_event("node_add", node)
        else:
            self._queue.on_event("node_update", node, before)

    def _with_limits(self, node: Node) -> Node:
        limits = self._storage.volume_limits(node.name)
        return replace(node, volume_limits=limits) if limits != node.volume_limits else node

    def _watch_storage(self) -> None:
        for source in STORAGE:
            self._watch(source)

    def _apply_storage(self, changes: Changes[Any]) -> None:
        for seen in self._storage.apply(changes):
            pod = self._storage.resolve(seen)
            if pod.node_name:
                self._state.upsert_pod(pod)
            else:
                self._enqueue(pod)
        if changes.source == CSI_NODES.name:
            for node in list(self._state.nodes):
                if (limited := self._with_limits(node)) is not node:
                    self._state.upsert_node(limited)
        self._queue.on_event("volume_change")


def _selects_namespaces(pod: Pod) -> bool:
    affinity = pod.affinity
    terms = (*affinity.required_pods, *affinity.required_anti_pods, *(each.term for each in affinity.preferred_pods))
    return any(term.namespace_selector is not None for term in terms)
