"""The cluster's storage objects as the main thread knows them, and pods' volume needs resolved from them."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from aaml.cluster.objects import Pod, VolumeNeeds
from aaml.kube.objects import wire
from aaml.kube.objects.convert import resolve_volumes
from aaml.kube.reflector import Changes
from aaml.kube.sources import CLAIMS, CLASSES, CSI_NODES, STORAGE, VOLUMES, SeenPod

_NOT_KNOWN_YET = VolumeNeeds(missing="the cluster's volumes are not known")


class Storage:
    """Claims, volumes, classes and CSI nodes. They are only watched once a pod uses a claim: `watch` starts that."""

    def __init__(self, watch: Callable[[], None]) -> None:
        self._watch = watch
        self._watched = False
        self._unsynced = {source.name for source in STORAGE}
        self._objects: dict[str, dict[str, Any]] = {source.name: {} for source in STORAGE}
        self._users: dict[str, SeenPod] = {}  # pods with claims, by uid

    def resolve(self, seen: SeenPod) -> Pod:
        """Return the pod with its volume needs."""
        if seen.claims is None:
            return seen.pod
        if not self._watched:
            self._watched = True
            self._watch()
        self._users[seen.pod.uid] = seen
        needs = _NOT_KNOWN_YET if self._unsynced else resolve_volumes(seen.claims, self)
        return replace(seen.pod, volumes=needs)

    def forget(self, uid: str) -> None:
        """Forget a pod."""
        self._users.pop(uid, None)

    def apply(self, changes: Changes[Any]) -> Iterable[SeenPod]:
        """Take changes in; return the pods whose needs may read differently now."""
        objects = self._objects[changes.source]
        key = next(source.key for source in STORAGE if source.name == changes.source)
        for delta in changes.deltas:
            if delta.kind == "deleted":
                objects.pop(key(delta.obj), None)
            else:
                objects[key(delta.obj)] = delta.obj
        if changes.synced:
            self._unsynced.discard(changes.source)
        return () if self._unsynced else tuple(self._users.values())

    def volume_limits(self, node_name: str) -> Mapping[str, int]:
        """Return how many volumes of each CSI driver fit on a node, for the drivers that say so."""
        node: wire.CsiNode | None = self._objects[CSI_NODES.name].get(node_name)
        drivers = (node.spec.drivers or ()) if node is not None else ()
        return {
            driver.name: driver.allocatable.count
            for driver in drivers
            if driver.allocatable is not None and driver.allocatable.count is not None
        }

    # ---- aaml.kube.objects.convert.VolumeLister -------------------------------------------------------------------

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
