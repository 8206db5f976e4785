"""VolumeBinder: gets volumes for the unbound claims of a pod that has a node, before the pod itself is bound.

It does what kube-scheduler's VolumeBinding does between Reserve and PreBind. It writes the decision to the API: an
existing volume gets its claim (`claimRef`), and a claim that needs a new volume gets the annotation `selected-node`,
which its provisioner reads. The volume controller and the provisioner do the rest. The watches show when they are done,
so a waiting pod blocks neither a thread nor another pod.

Where this fails or takes too long, the reservations are undone and the pod is tried again. As with kube-scheduler, what
was written stays: the next try goes on from there, and a provisioner that fails removes its annotation.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from aaml.cluster.filters.volume_binding import VolumePlan, plan_volumes
from aaml.cluster.objects import Node, UnboundClaim
from aaml.cluster.selectors import matches_any_node_term
from aaml.cluster.state import ClusterState
from aaml.kube.binder import BindJob
from aaml.kube.jobs import JobThreads
from aaml.kube.objects import wire
from aaml.kube.objects.volumes import BOUND_BY_CONTROLLER, SELECTED_NODE, is_bound, node_terms, selected_node
from aaml.kube.reflector import Backoff, Changes
from aaml.kube.sources import CLAIMS, VOLUMES
from aaml.kube.storage_lister import StorageLister
from aaml.kube.transport import STRATEGIC_MERGE, ApiError, Transport, Unreachable
from aaml.scheduling.ports import BindStatus

log = logging.getLogger(__name__)

_THREADS = 2
_TRIES = 6
_FORBIDDEN = frozenset({401, 403})
_BUSY = 429
_SERVER_ERROR = 500


@dataclass(frozen=True, slots=True)
class _Write:
    """A patch of a claim ("namespace/name") or of a volume (its name)."""

    key: str
    body: dict[str, Any]

    @property
    def kind(self) -> str:
        return "persistentvolumeclaims" if "/" in self.key else "persistentvolumes"

    @property
    def path(self) -> str:
        namespace, _, name = self.key.rpartition("/")
        return f"/api/v1/{namespace and f'namespaces/{namespace}/'}{self.kind}/{name}"


@dataclass(frozen=True, slots=True)
class VolumesWritten:
    """The outcome of the writes for a pod's claims: the resource version of each object written, by key, or the error.

    `forbidden` is the kind of object that the account may not write; empty where it may.
    """

    job: BindJob
    versions: dict[str, int] = field(default_factory=dict)
    error: str = ""
    forbidden: str = ""


@dataclass(slots=True)
class _Waiting:
    job: BindJob
    plan: VolumePlan
    deadline_s: float
    written: VolumesWritten | None = None


class VolumeBinder:
    """Gets volumes for pods. Only the writes run in threads of their own; all else runs in the scheduling thread.

    `step` calls `done(job, status, message)` for each pod that is finished: with "bound" once its claims have their
    volumes and the pod itself can be bound, otherwise with the reason. A pod waits at most `wait_s` seconds.
    `revoked()` returns why nothing may be written any more, and "" while writing is allowed.
    """

    def __init__(
        self,
        transport: Transport,
        state: ClusterState,
        objects: StorageLister,
        sink: Callable[[VolumesWritten], None],
        done: Callable[[BindJob, BindStatus, str], None],
        *,
        wait_s: float = 600.0,
        revoked: Callable[[], str] = lambda: "",
    ) -> None:
        self._transport, self._state, self._objects = transport, state, objects
        self._sink, self._done, self._wait_s, self._revoked = sink, done, wait_s, revoked
        self._waiting: dict[str, _Waiting] = {}  # by pod uid, who waits longest first
        self._uids_of: dict[str, set[str]] = {}  # claim or volume -> pods that wait for it
        self._changed: dict[str, None] = {}  # uids that the next step looks at
        self._threads = JobThreads("volumes", _THREADS, self._write, self._fail)

    def __len__(self) -> int:
        """How many pods wait for their volumes."""
        return len(self._waiting)

    @property
    def due_s(self) -> float:
        """The monotonic time in seconds at which the next pod has waited too long; infinite where no pod waits."""
        return next((each.deadline_s for each in self._waiting.values()), float("inf"))

    def begin(self, job: BindJob) -> None:
        """Reserve the volumes of a pod's claims on the chosen node, and write them."""
        plan = plan_volumes(self._state, job.pod, self._state.index[job.node_name])
        plan.reserve(self._state, job.node_name)
        uid = job.pod.uid
        self._waiting[uid] = _Waiting(job, plan, time.monotonic() + self._wait_s)
        for key in _keys(plan):
            self._uids_of.setdefault(key, set()).add(uid)
        self._threads.submit((job, self._writes(plan, job.node_name)))

    def on_changes(self, changes: Changes[Any]) -> None:
        """Note which waiting pods are affected by changes of claims or volumes."""
        if self._waiting and changes.source in {CLAIMS.name, VOLUMES.name}:
            source = CLAIMS if changes.source == CLAIMS.name else VOLUMES
            for delta in changes.deltas:
                key = source.key(delta.obj)
                self._changed.update(dict.fromkeys(self._uids_of.get(key, ())))
                if source is VOLUMES and delta.obj.spec.claim_ref is not None:
                    claim = f"{delta.obj.spec.claim_ref.namespace}/{delta.obj.spec.claim_ref.name}"
                    self._changed.update(dict.fromkeys(self._uids_of.get(claim, ())))

    def settle(self, written: VolumesWritten) -> None:
        """Note the outcome of the writes for a pod."""
        waiting = self._waiting.get(written.job.pod.uid)
        if waiting is not None and waiting.job is written.job:
            waiting.written = written
            self._changed[written.job.pod.uid] = None

    def cancel(self, uid: str) -> None:
        """Look at the pod again in the next step, because its job was cancelled."""
        if uid in self._waiting:
            self._changed[uid] = None

    def step(self) -> None:
        """Call `done` for the pods that wait no longer."""
        now_s = time.monotonic()
        for uid, waiting in self._waiting.items():
            if waiting.deadline_s > now_s:
                break
            self._changed[uid] = None
        while self._changed:
            uid = next(iter(self._changed))
            del self._changed[uid]
            waiting_now = self._waiting.get(uid)
            if waiting_now is None:
                continue
            verdict = self._verdict(waiting_now)
            if verdict is None and waiting_now.deadline_s <= now_s:
                verdict = "failed", f"binding volumes: not bound in {self._wait_s:g} s"
            if verdict is not None:
                self._end(uid, *verdict)

    def close(self, timeout_s: float) -> None:
        """Stop writing, and end the threads within `timeout_s` seconds."""
        self._threads.close(timeout_s)

    # ---- the deciding thread -----------------------------------------------------------------------------------------

    def _end(self, uid: str, status: BindStatus, message: str) -> None:
        waiting = self._waiting.pop(uid)
        if status != "bound":
            waiting.job.cancelled = waiting.job.cancelled or message  # what is not written yet is not written any more
        for key in _keys(waiting.plan):
            if (uids := self._uids_of.get(key)) is not None:
                uids.discard(uid)
                if not uids:
                    del self._uids_of[key]
        waiting.plan.release(self._state)
        self._done(waiting.job, status, message)

    def _writes(self, plan: VolumePlan, node_name: str) -> list[_Write]:
        """Return the patches that write a plan to the cluster; objects that agree with it already need none."""
        writes = []
        for claim, name in plan.volumes:
            volume, ref = self._state.storage.volumes[name], self._objects.volume(name)
            if ref is None or volume.claim_uid == claim.uid:
                continue
            namespace, _, own = claim.key.partition("/")
            meta: dict[str, Any] = {"resourceVersion": ref.metadata.resource_version}
            if not volume.claim:
                meta["annotations"] = {BOUND_BY_CONTROLLER: "yes"}
            reference = {
                "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": namespace, "name": own,
                "uid": claim.uid,
            }  # fmt: skip
            writes.append(_Write(name, {"metadata": meta, "spec": {"claimRef": reference}}))
        for claim in plan.provision:
            found = self._claim(claim)
            if found is not None and selected_node(found) != node_name:
                meta = {
                    "uid": claim.uid, "resourceVersion": found.metadata.resource_version,
                    "annotations": {SELECTED_NODE: node_name},
                }  # fmt: skip
                writes.append(_Write(claim.key, {"metadata": meta}))
        return writes

    def _verdict(self, waiting: _Waiting) -> tuple[BindStatus, str] | None:  # noqa: PLR0911
        """Return how a wait ended, None while it goes on. The checks are those of kube-scheduler's `checkBindings`."""
        if waiting.job.cancelled:
            return "gone", waiting.job.cancelled
        if waiting.written is None:
            return None
        if waiting.written.error:
            return "failed", f"binding volumes: {waiting.written.error}"
        node_index = self._state.index.get(waiting.job.node_name)
        if node_index is None:
            return "gone", f"node {waiting.job.node_name} is gone"
        node, versions = self._state.nodes[node_index], waiting.written.versions
        ended = True
        for claim, name in waiting.plan.volumes:
            found = self._check(claim, name, node, versions)
            if found:
                return "failed", f"binding volumes: {found}"
            ended &= found is not None
        for claim in waiting.plan.provision:
            found = self._check_new(claim, node, versions)
            if found:
                return "failed", f"binding volumes: {found}"
            ended &= found is not None
        return ("bound", "") if ended else None

    def _check(self, claim: UnboundClaim, name: str, node: Node, versions: dict[str, int]) -> str | None:
        """Return the error of binding an existing volume to a claim: "" once it is bound, None while it is not yet."""
        volume, found = self._objects.volume(name), self._claim(claim)
        if volume is None:
            return f'persistentvolume "{name}" not found'
        if found is None:
            return f'persistentvolumeclaim "{claim.key}" not found'
        if _older(volume.metadata, versions.get(name, 0)):
            return None
        if wrong := _elsewhere(volume, node):
            return wrong
        ref = volume.spec.claim_ref
        if ref is None or not ref.uid:
            return f'ClaimRef got reset for pv "{name}"'
        return "" if is_bound(found) else None

    def _check_new(self, claim: UnboundClaim, node: Node, versions: dict[str, int]) -> str | None:
        """Return the error of making a volume for a claim: "" once it is there, None while it is being made."""
        found = self._claim(claim)
        if found is None:
            return f'persistentvolumeclaim "{claim.key}" not found'
        if _older(found.metadata, versions.get(claim.key, 0)):
            return None
        if selected_node(found) != node.name:
            return f'provisioning failed for PVC "{found.metadata.name}"'
        if found.spec.volume_name:
            volume = self._objects.volume(found.spec.volume_name)
            if volume is None:
                return None
            if wrong := _elsewhere(volume, node):
                return wrong
        return "" if is_bound(found) else None

    def _claim(self, claim: UnboundClaim) -> wire.ClaimObject | None:
        """Return the claim from the API; None where there is none, or one of the same name with another uid."""
        found = self._objects.claim(*claim.key.split("/", 1))
        return found if found is not None and found.metadata.uid == claim.uid else None

    # ---- in the threads ----------------------------------------------------------------------------------------------

    def _write(self, job: tuple[BindJob, list[_Write]]) -> None:
        bind, writes = job
        versions: dict[str, int] = {}
        for each in writes:
            why = bind.cancelled or self._revoked()
            if why:
                self._sink(VolumesWritten(bind, error=why))
                return
            try:
                versions[each.key] = self._patch(each)
            except (ApiError, Unreachable) as error:
                webhook = isinstance(error, ApiError) and error.message.startswith("admission webhook")
                refused = isinstance(error, ApiError) and error.status in _FORBIDDEN and not webhook
                self._sink(VolumesWritten(bind, error=str(error), forbidden=each.kind if refused else ""))
                return
        self._sink(VolumesWritten(bind, versions))

    def _patch(self, write: _Write) -> int:
        """Write, and retry while the server is unreachable or busy. Return the resource version written."""
        backoff = Backoff(0.1, 3.0)
        for turn in range(1, _TRIES + 1):
            try:
                answer = self._transport.request("PATCH", write.path, write.body, content_type=STRATEGIC_MERGE)
            except Unreachable:
                if turn == _TRIES or self._threads.closing.wait(backoff.next_s()):
                    raise
            except ApiError as error:
                busy = error.status == _BUSY or error.status >= _SERVER_ERROR
                if not busy or turn == _TRIES or self._threads.closing.wait(max(error.retry_after_s, backoff.next_s())):
                    raise
            else:
                return int(msgspec.json.decode(answer, type=_Written).metadata.resource_version)
        raise AssertionError("the last turn returns or raises")

    def _fail(self, job: tuple[BindJob, list[_Write]], error: Exception) -> None:
        bind, _ = job
        log.error("volumes of %s: an error of ours", bind.pod.key, exc_info=error)
        self._sink(VolumesWritten(bind, error=f"{type(error).__name__}: {error}"))


class _Written(msgspec.Struct):
    metadata: wire.Metadata


def _keys(plan: VolumePlan) -> list[str]:
    return [*(claim.key for claim, _ in plan.volumes), *(name for _, name in plan.volumes),
            *(claim.key for claim in plan.provision)]  # fmt: skip


def _older(meta: wire.Metadata, version: int) -> bool:
    """Return whether the watch has not shown the written version yet."""
    return int(meta.resource_version or 0) < version


def _elsewhere(volume: wire.VolumeObject, node: Node) -> str:
    terms = node_terms(volume)
    if terms is None or matches_any_node_term(terms, node):
        return ""
    return f'pv "{volume.metadata.name}" node affinity doesn\'t match node "{node.name}"'
