"""The event handlers of the informers: changes of API objects become changes of the cluster state and the queue."""

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any

from aaml.cluster.objects import NO_AFFINITY, Node, Pod, PodGroup
from aaml.cluster.state import ClusterState
from aaml.kube.objects import wire
from aaml.kube.objects.convert import pod_group_from_api
from aaml.kube.reflector import Changes, Delta, Source, Trouble
from aaml.kube.sources import (
    ATTACHMENTS,
    CSI_NODES,
    GROUP_CONDITION,
    NAMESPACES,
    NODES,
    POD_GROUPS,
    PODS,
    PROVISIONING,
    SeenPod,
)
from aaml.kube.storage_lister import StorageLister
from aaml.kube.transport import NOT_FOUND, ApiError
from aaml.scheduling.pod_groups import placed_of
from aaml.scheduling.queue import SchedulingQueue

log = logging.getLogger(__name__)

_FORBIDDEN = frozenset({401, 403})
_EFFECTS = {
    NAMESPACES.name: "selectors over them match nothing",
    ATTACHMENTS.name: "volumes that are attached without a pod do not count against limits",
    POD_GROUPS.name: "pods of pod groups stay pending",
}
_UNBOUND = "pods whose claims wait for their first consumer stay pending"


class InformerHandlers:
    """Applies changes of objects to the state and the queue, in the scheduling thread.

    `watch(source)` starts a reflector: namespaces and storage are only watched once a pod needs them. `cancel(uid,
    node_name, why)` is called for a pod that is gone (or, with uid "", a node), so that its binds are not sent.

    `hold_s` None queues a pod when it is added. In a dry run another scheduler places the pods: each is held until that
    scheduler has chosen its node, and queued just before the state gets the placement, so that both choices start from
    the same state. A pod that nobody places within `hold_s` seconds is queued all the same. Each is decided on once.
    A pod that already has its node when it is first seen is held too, except those of the first list: the order in
    which these were placed is unknown. Pods of groups are left out, and counted in `left_out`: they are decided on
    together, and have a nominated node long before they are bound.
    """

    def __init__(
        self,
        state: ClusterState,
        waiting: SchedulingQueue,
        *,
        scheduler_name: str,
        namespaces: Collection[str],
        hold_s: float | None = None,
        watch: Callable[[Source[Any]], None],
        cancel: Callable[[str, str, str], None],
        forget: Callable[[str], None],
    ) -> None:
        self._state, self._queue = state, waiting
        self._scheduler_name, self._namespaces = scheduler_name, frozenset(namespaces)
        self._hold_s = hold_s
        self._watch, self._cancel, self._forget = watch, cancel, forget
        self.storage = StorageLister(state, self._watch_storage)
        self._backlog: deque[tuple[Delta[SeenPod], bool]] = deque()  # with whether it came after the first list
        self._namespaces_watched = self._groups_watched = False
        self._groups: dict[str, PodGroup] = {}
        self.group_uids: dict[str, str] = {}
        self.group_conditions: dict[str, wire.TimedCondition] = {}  # of those that have been tried, as last seen
        self._held: dict[str, tuple[float, Pod]] = {}  # by uid: until when, in the order in which they came
        self._decided: set[str] = set()
        self.left_out = 0
        self.chosen: dict[str, str] = {}  # by uid: the node on which another scheduler put a pod that was held
        self.unsynced = {PODS.name, NODES.name}
        self.awaited: set[str] = set()  # sources without which decisions would be wrong

    # ---- in ----------------------------------------------------------------------------------------------------------

    def on_changes(self, changes: Changes[Any]) -> None:
        """Apply changes. In a dry run changes of pods wait for `step`."""
        match changes.source:
            case PODS.name:
                self._backlog.extend((delta, PODS.name not in self.unsynced) for delta in changes.deltas)
                while self._backlog and self._hold_s is None:
                    self._apply_pod(self._backlog.popleft()[0])
            case NODES.name:
                for node_delta in changes.deltas:
                    self._apply_node(node_delta)
            case NAMESPACES.name:
                for delta in changes.deltas:
                    labels = {} if delta.kind == "deleted" else delta.obj.metadata.labels or {}
                    self._state.label_namespace(delta.obj.metadata.name, labels)
                self._queue.on_event("namespace_change")
            case POD_GROUPS.name:
                for delta in changes.deltas:
                    self._apply_group(delta)
            case _:
                self._apply_storage(changes)
        if changes.synced:
            self.unsynced.discard(changes.source)
            self.awaited.discard(changes.source)

    def step(self) -> bool:
        """Apply one pending change of a pod, or queue a held-back pod that is due; False where there is neither.

        A pod is queued before its placement by the other scheduler is applied, which the next call does.
        """
        if self._held and self.due_s <= time.monotonic():
            self._queue.add(self._release(next(iter(self._held))))
            return True
        if not self._backlog:
            return False
        delta, later = self._backlog[0]
        uid, node_name = delta.obj.pod.uid, delta.obj.pod.node_name
        if later and self._placed_unseen(delta):
            unplaced = replace(delta.obj.pod, node_name="", nominated_node="")
            self._apply_pod(replace(delta, obj=replace(delta.obj, pod=unplaced)))
        elif uid in self._held and delta.kind != "deleted" and node_name in self._state.index:
            self.chosen[uid] = node_name
            self._queue.add(self._release(uid))
        else:
            self._apply_pod(self._backlog.popleft()[0])
        return True

    @property
    def due_s(self) -> float:
        """The monotonic time at which the next held-back pod is queued at the latest; infinite where there is none."""
        return next((until_s for until_s, _ in self._held.values()), math.inf)

    def on_trouble(self, trouble: Trouble) -> None:
        """Handle a source that cannot be read. Where permission is missing, decisions no longer wait for it."""
        refused = isinstance(trouble.error, ApiError) and trouble.error.status in _FORBIDDEN | {NOT_FOUND}
        if refused and trouble.source in self.awaited:
            for_unbound = trouble.source in {source.name for source in PROVISIONING}
            effect = _UNBOUND if for_unbound else _EFFECTS.get(trouble.source, "pods with claims stay pending")
            log.error("%s cannot be read (%s): %s", trouble.source, trouble.error, effect)
            self.awaited.discard(trouble.source)
            if for_unbound:
                self._resolve_again(self.storage.refuse(trouble.source, f"list {trouble.source}"))

    def on_patch_forbidden(self, kind: str, why: str) -> None:
        """Handle a missing permission to write claims or volumes: no unbound claim gets its volume then."""
        if concerned := self.storage.refuse(f"patch {kind}", f"patch {kind}"):
            log.error("%s cannot be written (%s): %s", kind, why, _UNBOUND)
            self._resolve_again(concerned)

    def decided(self, uid: str) -> None:
        """Note that a dry run has decided on a pod, which is not queued again."""
        self._decided.add(uid)

    def _placed_unseen(self, delta: Delta[SeenPod]) -> bool:
        """Whether a pod of the other scheduler had its node when it was first seen."""
        pod = delta.obj.pod
        known = delta.kind != "added" or pod.uid in self._held or pod.uid in self._decided or pod.uid in self.chosen
        ours = self._is_ours(replace(pod, node_name="")) and not pod.terminating
        return not known and ours and pod.node_name in self._state.index

    def _release(self, uid: str) -> Pod:
        return self._held.pop(uid)[1]

    # ---- pods --------------------------------------------------------------------------------------------------------

    def _apply_pod(self, delta: Delta[SeenPod]) -> None:
        uid = delta.obj.pod.uid
        if delta.kind == "added" and self._hold_s is not None and delta.obj.pod.group is not None:
            self._leave_out(delta.obj.pod)
        if delta.kind == "deleted":
            self._leave(uid)
            self.storage.forget(uid)
            self._cancel(uid, "", "the pod was deleted")
            nominated = uid in self._state.nominated
            placement = self._state.remove_pod(uid)
            if placement is not None or delta.obj.pod.node_name or nominated:
                self._queue.on_event("pod_delete", placement.pod if placement is not None else delta.obj.pod)
            return
        pod = self._with_group(self.storage.resolve(delta.obj, ours=self._is_ours(delta.obj.pod)))
        if pod.affinity is not NO_AFFINITY and not self._namespaces_watched and _selects_namespaces(pod):
            self._namespaces_watched = True
            self.awaited.add(NAMESPACES.name)
            self._watch(NAMESPACES)
        if pod.node_name:
            self._leave(uid)
            before = delta.before.pod if delta.before is not None else None
            self._state.upsert_pod(pod, delta.obj.gpus, runs_since_s(pod))
            if before is not None and before.node_name:
                self._queue.on_event("pod_update", pod, before)
            else:
                self._queue.on_event("pod_add", pod)
            return
        if pod.nominated_node and uid not in self._state.placements:
            self._state.nominate(pod, pod.nominated_node)
        elif uid in self._state.nominated:
            if delta.before is not None and delta.before.pod.nominated_node:
                self._state.withdraw(uid)
            else:  # news from before the nomination was written
                self._state.nominate(pod, self._state.nominated[uid][1])
        self._enqueue(pod)

    def _enqueue(self, pod: Pod) -> None:
        """Queue an unbound pod of this scheduler.

        A change can be older than our own bind of the pod, so a pod that is assumed or decided on is not queued.
        """
        if not self._is_ours(pod):
            return
        if pod.terminating:
            self._queue.remove(pod.uid)
            self._held.pop(pod.uid, None)
        elif pod.uid in self._queue:
            self._queue.add(pod)
        elif pod.uid not in self._state.placements and pod.uid not in self._decided:
            if self._hold_s is None:
                self._queue.add(pod)
            else:
                until_s = self._held[pod.uid][0] if pod.uid in self._held else time.monotonic() + self._hold_s
                self._held[pod.uid] = (until_s, pod)

    def _is_ours(self, pod: Pod) -> bool:
        """Whether a pod has no node and is to be placed by this scheduler."""
        ours = self._names_us(pod) and not pod.node_name
        return ours and (pod.group is None or self._hold_s is None)

    def _names_us(self, pod: Pod) -> bool:
        ours = pod.scheduler_name == self._scheduler_name
        return ours and (not self._namespaces or pod.namespace in self._namespaces)

    # ---- groups ------------------------------------------------------------------------------------------------------

    def _with_group(self, pod: Pod) -> Pod:
        """Return a pod with what is known of its group, which is watched from the first such pod on."""
        if pod.group is None or self._hold_s is not None:
            return pod
        if not self._groups_watched:
            self._groups_watched = True
            self.awaited.add(POD_GROUPS.name)
            self._watch(POD_GROUPS)
        group = self._groups.get(pod.group_key)
        return pod if group is None else replace(pod, group=group)

    def _leave_out(self, pod: Pod) -> None:
        """Count a pod of a group that a dry run does not decide on; the first one is told."""
        if self._names_us(pod):
            if not self.left_out:
                log.warning("pods of pod groups are left out: a group is decided on as a whole, not pod by pod")
            self.left_out += 1

    def _apply_group(self, delta: Delta[wire.PodGroupObject]) -> None:
        """Take in a group, and tell its pods of it."""
        raw = delta.obj
        key = f"{raw.metadata.namespace}/{raw.metadata.name}"
        group = pod_group_from_api(raw)
        if delta.kind == "deleted":
            group = PodGroup(group.name, seen=False)
            self._groups.pop(key, None)
            self.group_uids.pop(key, None)
            self.group_conditions.pop(key, None)
            self._forget(key)
        else:
            self._groups[key], self.group_uids[key] = group, raw.metadata.uid
            for each in raw.status.conditions or ():
                if each.type == GROUP_CONDITION:
                    self.group_conditions[key] = each
        for waiting in [each.pod for each in self._queue.pods() if each.pod.group_key == key]:
            if waiting.group != group:
                self._queue.update(replace(waiting, group=group))
        for placement in placed_of(self._state, key):
            if placement.pod.group != group and not placement.assumed:
                self._state.upsert_pod(replace(placement.pod, group=group), placement.noted)

    def _leave(self, uid: str) -> None:
        """Forget a pod that has a node or is gone."""
        self._queue.remove(uid)
        self._held.pop(uid, None)
        self._decided.discard(uid)
        self.chosen.pop(uid, None)
        self._forget(uid)

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
        limits = self.storage.volume_limits(node.name)
        return replace(node, volume_limits=limits) if limits != node.volume_limits else node

    def _watch_storage(self, sources: Sequence[Source[Any]]) -> None:
        for source in sources:
            self.awaited.add(source.name)
            self._watch(source)

    def _apply_storage(self, changes: Changes[Any]) -> None:
        concerned, helps = self.storage.apply(changes)
        self._resolve_again(concerned)
        if changes.source == CSI_NODES.name:
            for node in list(self._state.nodes):
                if (limited := self._with_limits(node)) is not node:
                    self._state.upsert_node(limited)
                    helps = True
        if helps:
            self._queue.on_event("volume_change")
        if changes.source == ATTACHMENTS.name and any(delta.kind == "deleted" for delta in changes.deltas):
            self._queue.on_event("volume_detach")

    def _resolve_again(self, pods: Iterable[SeenPod]) -> None:
        """Resolve the volumes of pods again."""
        for seen in pods:
            pod = self._with_group(self.storage.resolve(seen, ours=self._is_ours(seen.pod)))
            if pod.node_name:
                self._state.upsert_pod(pod, seen.gpus)
                continue
            if pod.uid in self._state.nominated:
                self._state.nominate(pod, self._state.nominated[pod.uid][1])
            self._enqueue(pod)


def runs_since_s(pod: Pod) -> float:
    """Return when a pod began to run on the monotonic clock of decisions; now, where no node has started it yet."""
    return time.monotonic() - (max(0.0, time.time() - pod.started_s) if pod.started_s else 0.0)


def _selects_namespaces(pod: Pod) -> bool:
    affinity = pod.affinity
    terms = (*affinity.required_pods, *affinity.required_anti_pods, *(each.term for each in affinity.preferred_pods))
    return any(term.namespace_selector is not None for term in terms)
