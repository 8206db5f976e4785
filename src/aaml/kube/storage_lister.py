"""A lister of the cluster's storage objects, and the volume needs of pods resolved from them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from aaml.cluster.objects import Pod, VolumeNeeds
from aaml.cluster.state import ClusterState
from aaml.kube.objects import wire
from aaml.kube.objects.volumes import capacity_from_api, claim_names, class_from_api, resolve_volumes, volume_from_api
from aaml.kube.reflector import Changes, Delta, Source
from aaml.kube.sources import (
    ATTACHMENTS,
    CAPACITIES,
    CLAIMS,
    CLASSES,
    CSI_DRIVERS,
    CSI_NODES,
    PROVISIONING,
    STORAGE,
    VOLUMES,
    SeenPod,
)

_NOT_KNOWN_YET = VolumeNeeds(missing="the cluster's volumes are not known")
_SOURCES = {source.name: source for source in (*STORAGE, ATTACHMENTS, *PROVISIONING)}


class StorageLister:
    """Claims, volumes, storage classes and CSI objects; volumes that claims may get are also in the state's `storage`.

    `watch(sources)` is called once a pod uses a claim; for drivers and capacities once a pod has an unbound claim.
    """

    def __init__(self, state: ClusterState, watch: Callable[[Sequence[Source[Any]]], None]) -> None:
        self._storage, self._watch = state.storage, watch
        self._watched: set[str] = set()
        self._unsynced = set(_SOURCES)
        self._objects: dict[str, dict[str, Any]] = {name: {} for name in _SOURCES}
        self._users: dict[str, SeenPod] = {}  # pods with claims, by uid
        self._users_of: dict[str, dict[str, None]] = {}  # claim -> uids
        self._claims_of: dict[str, dict[str, None]] = {}  # volume -> claims that name it
        self._refused: dict[str, str] = {}  # what the account may not do, by the kind of object
        self._put: dict[str, Callable[[Delta[Any], str], bool]] = {
            CLAIMS.name: self._put_claim, VOLUMES.name: self._put_volume, CLASSES.name: self._put_class,
            ATTACHMENTS.name: self._put_attachment, CSI_DRIVERS.name: self._put_driver,
            CAPACITIES.name: self._put_capacity,
        }  # fmt: skip

    def resolve(self, seen: SeenPod, *, ours: bool = False) -> Pod:
        """Return the pod with its volume needs; `ours`: it waits for this scheduler."""
        if seen.claims is None:
            return seen.pod
        self._need(STORAGE)
        if ours:
            self._need((ATTACHMENTS,))
        uid, namespace = seen.pod.uid, seen.pod.namespace
        if uid not in self._users:
            for name in claim_names(seen.claims):
                self._users_of.setdefault(f"{namespace}/{name}", {})[uid] = None
        self._users[uid] = seen
        if not self._known(STORAGE):
            return replace(seen.pod, volumes=_NOT_KNOWN_YET)
        needs = resolve_volumes(seen.claims, self)
        if needs.unbound and ours:
            self._need(PROVISIONING)
            if self._refused:
                name = needs.unbound[0].key.partition("/")[2]
                may_not = " and ".join(sorted(self._refused.values()))
                why = f'persistentvolumeclaim "{name}" waits for its first consumer, and this account may not {may_not}'
                needs = replace(needs, unbound=(), missing=needs.missing or why)
            elif not self._known(PROVISIONING):
                needs = _NOT_KNOWN_YET
        return replace(seen.pod, volumes=needs)

    def forget(self, uid: str) -> None:
        """Forget a pod."""
        seen = self._users.pop(uid, None)
        if seen is not None and seen.claims is not None:
            for name in claim_names(seen.claims):
                key = f"{seen.pod.namespace}/{name}"
                if (users := self._users_of.get(key)) is not None:
                    users.pop(uid, None)
                    if not users:
                        del self._users_of[key]

    def apply(self, changes: Changes[Any]) -> tuple[Sequence[SeenPod], bool]:
        """Apply changes.

        Return the pods whose needs may have changed, and whether the new storage may help pods that wait.
        """
        source = _SOURCES[changes.source]
        objects, helps, claims = self._objects[source.name], False, dict[str, None]()
        for delta in changes.deltas:
            key = source.key(delta.obj)
            if source is CLAIMS:
                claims[key] = None
            elif source is VOLUMES:
                claims.update(self._claims_of.get(key, ()))
            if delta.kind == "deleted":
                objects.pop(key, None)
            else:
                objects[key] = delta.obj
            if source is not CSI_NODES:
                helps |= self._put[source.name](delta, key)
        anew = source is CLASSES and bool(changes.deltas)
        if changes.synced:
            anew |= self._refused.pop(source.name, None) is not None or source.name in self._unsynced
            self._unsynced.discard(source.name)
        if not self._known(STORAGE):
            return (), helps
        if anew:
            return tuple(self._users.values()), helps
        uids = dict.fromkeys(uid for claim in claims for uid in self._users_of.get(claim, ()))
        return [self._users[uid] for uid in uids], helps

    def refuse(self, kind: str, what: str) -> Sequence[SeenPod]:
        """Note a missing permission (`what`, such as "list csidrivers"), without which no claim gets its volume.

        Return the pods that this concerns; none where it was noted before.
        """
        if kind in self._refused:
            return ()
        self._refused[kind] = what
        return tuple(self._users.values())

    def volume_limits(self, node_name: str) -> Mapping[str, int]:
        """Return the volume limit of each CSI driver on a node, for drivers that have one."""
        node: wire.CsiNode | None = self._objects[CSI_NODES.name].get(node_name)
        drivers = (node.spec.drivers or ()) if node is not None else ()
        return {
            driver.name: driver.allocatable.count
            for driver in drivers
            if driver.allocatable is not None and driver.allocatable.count is not None
        }

    # ---- aaml.kube.objects.volumes.VolumeLister -------------------------------------------------------------------

    def claim(self, namespace: str, name: str) -> wire.ClaimObject | None:
        """Return a persistent volume claim."""
        found: wire.ClaimObject | None = self._objects[CLAIMS.name].get(f"{namespace}/{name}")
        return found

    def volume(self, name: str) -> wire.VolumeObject | None:
        """Return a persistent volume."""
        found: wire.VolumeObject | None = self._objects[VOLUMES.name].get(name)
        return found

    def storage_class(self, name: str) -> wire.StorageClass | None:
        """Return a storage class."""
        found: wire.StorageClass | None = self._objects[CLASSES.name].get(name)
        return found

    # ---- inside ------------------------------------------------------------------------------------------------------

    def _known(self, sources: Iterable[Source[Any]]) -> bool:
        return self._unsynced.isdisjoint(source.name for source in sources)

    def _need(self, sources: Sequence[Source[Any]]) -> None:
        if sources[0].name not in self._watched:
            self._watched.update(source.name for source in sources)
            self._watch(sources)

    def _put_claim(self, delta: Delta[wire.ClaimObject], key: str) -> bool:
        """Keep which claims name a volume. A claim by itself helps no other pod."""
        for claim, named in ((delta.before, False), (delta.obj, delta.kind != "deleted")):
            volume = claim.spec.volume_name if claim is not None else ""
            if volume and named:
                self._claims_of.setdefault(volume, {})[key] = None
            elif volume and (claims := self._claims_of.get(volume)) is not None:
                claims.pop(key, None)
                if not claims:
                    del self._claims_of[volume]
        return False

    def _put_volume(self, delta: Delta[wire.VolumeObject], key: str) -> bool:
        """Keep a volume. It may help waiting pods where it is new, free again, or bound to another claim."""
        if delta.kind == "deleted":
            self._storage.drop_volume(key)
            return False
        before, now = self._storage.volumes.get(key), volume_from_api(delta.obj)
        self._storage.put_volume(now)
        if before == now or self._storage.reserved(key):
            return False
        return not now.claim or before is None or before.claim != now.claim or before.labels != now.labels

    def _put_class(self, delta: Delta[wire.StorageClass], key: str) -> bool:
        if delta.kind == "deleted":
            self._storage.classes.pop(key, None)
            return False
        before, now = self._storage.classes.get(key), class_from_api(delta.obj)
        self._storage.classes[key] = now
        return before != now

    def _put_attachment(self, delta: Delta[wire.AttachmentObject], key: str) -> bool:
        """Keep an attachment. `InformerHandlers` queues pods after a detach."""
        spec = delta.obj.spec
        there = self._storage.attached.setdefault(spec.node_name, {})
        if delta.kind == "deleted":
            there.pop(key, None)
        elif spec.source.persistent_volume_name:
            there[key] = spec.attacher, spec.source.persistent_volume_name
        if not there:
            del self._storage.attached[spec.node_name]
        return False

    def _put_driver(self, delta: Delta[wire.CsiDriverObject], key: str) -> bool:
        """Keep a driver. One that no longer tracks capacity may help pods that wait."""
        tracked = delta.kind != "deleted" and bool(delta.obj.spec.storage_capacity)
        if tracked:
            self._storage.tracked.add(key)
            return False
        helps = key in self._storage.tracked
        self._storage.tracked.discard(key)
        return helps

    def _put_capacity(self, delta: Delta[wire.CapacityObject], key: str) -> bool:
        if delta.kind == "deleted":
            self._storage.capacities.pop(key, None)
            return False
        before, now = self._storage.capacities.get(key), capacity_from_api(delta.obj)
        self._storage.capacities[key] = now
        largest = -1 if before is None or before.largest_bytes is None else before.largest_bytes
        return now.largest_bytes is not None and now.largest_bytes > largest
