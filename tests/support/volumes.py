"""Storage on a cluster without any: claims, volumes and classes to create, and a provisioner that makes volumes."""

import json
import threading
from collections.abc import Callable
from typing import Any, Self

from aaml.kube.objects.volumes import SELECTED_NODE
from aaml.kube.transport import STRATEGIC_MERGE, ApiError, Transport, Unreachable

MERGE = "application/merge-patch+json"  # it can take an annotation off
_LOOK_S = 0.05
_BOUND = {"pv.kubernetes.io/bind-completed": "yes", "pv.kubernetes.io/bound-by-controller": "yes"}

Manifest = dict[str, Any]


def storage_class(name: str, provisioner: str = "kubernetes.io/no-provisioner", **more: Any) -> Manifest:
    """Return a class whose volumes wait for their first consumer."""
    return {
        "metadata": {"name": name}, "provisioner": provisioner, "volumeBindingMode": "WaitForFirstConsumer", **more,
    }  # fmt: skip


def claim(name: str, kind: str, storage: str = "1Gi", **spec: Any) -> Manifest:
    """Return a claim of a class."""
    return {
        "metadata": {"name": name},
        "spec": {
            "storageClassName": kind, "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": storage}},
            **spec,
        },
    }  # fmt: skip


def volume(name: str, kind: str, storage: str = "1Gi", node: str = "", **spec: Any) -> Manifest:
    """Return a volume, which only `node` can use where one is named."""
    expression = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
    near = {"nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}}} if node else {}
    return {
        "metadata": {"name": name},
        "spec": {
            "storageClassName": kind, "accessModes": ["ReadWriteOnce"], "capacity": {"storage": storage},
            "persistentVolumeReclaimPolicy": "Retain", "csi": {"driver": "csi.test", "volumeHandle": name},
            **near, **spec,
        },
    }  # fmt: skip


def uses(*claims: str) -> dict[str, Any]:
    """Return the field of a pod that uses claims."""
    return {
        "volumes": [{"name": f"v{n}", "persistentVolumeClaim": {"claimName": each}} for n, each in enumerate(claims)]
    }


class Provisioner:
    """Makes volumes for claims of `provisioners` that name their node, as a CSI driver's provisioner does.

    `refuses(claim, node)` takes the annotation off again, which tells that no volume can be made there. With `binds` it
    also does what the controller of volumes does, for a cluster that has none: claims are bound to the volumes that
    name them. Use as a context manager.
    """

    def __init__(
        self,
        api: Transport,
        *provisioners: str,
        refuses: Callable[[str, str], bool] = lambda _claim, _node: False,
        binds: bool = False,
    ) -> None:
        self._api, self._provisioners, self._refuses, self._binds = api, provisioners, refuses, binds
        self.refused: list[tuple[str, str]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(30)

    def _run(self) -> None:
        while not self._stop.wait(_LOOK_S):
            try:
                self.look()
            except (ApiError, Unreachable):
                continue  # somebody else was quicker: look again

    def look(self) -> None:
        """Do once what is to be done now."""
        claims = self._list("/api/v1/persistentvolumeclaims")
        classes = self._list("/apis/storage.k8s.io/v1/storageclasses")
        kinds = {each["metadata"]["name"] for each in classes if each["provisioner"] in self._provisioners}
        for each in claims:
            spec, annotations = each["spec"], each["metadata"].get("annotations") or {}
            ours = spec.get("storageClassName", "") in kinds
            if ours and not spec.get("volumeName") and SELECTED_NODE in annotations:
                self._make(each, annotations[SELECTED_NODE])
        if self._binds:
            self._bind({each["metadata"]["uid"]: each for each in claims})

    def _make(self, wanted: Manifest, node: str) -> None:
        meta, spec = wanted["metadata"], wanted["spec"]
        if self._refuses(meta["name"], node):
            self.refused.append((meta["name"], node))
            body = {"metadata": {"resourceVersion": meta["resourceVersion"], "annotations": {SELECTED_NODE: None}}}
            self._api.request("PATCH", _path(meta), body, content_type=MERGE)
            return
        made = volume(
            f"made-{meta['uid']}", spec["storageClassName"], spec["resources"]["requests"]["storage"], node,
            claimRef=_reference(meta), volumeMode=spec.get("volumeMode", "Filesystem"),
            accessModes=spec["accessModes"],
        )  # fmt: skip
        try:
            self._api.request("POST", "/api/v1/persistentvolumes", made)
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise

    def _bind(self, claims: dict[str, Manifest]) -> None:
        for each in self._list("/api/v1/persistentvolumes"):
            meta = each["metadata"]
            wanted = claims.get((each["spec"].get("claimRef") or {}).get("uid", ""))
            if wanted is not None and not wanted["spec"].get("volumeName"):
                path = f"/api/v1/persistentvolumes/{meta['name']}/status"
                self._api.request("PATCH", path, {"status": {"phase": "Bound"}}, content_type=MERGE)
                body = {"metadata": {"annotations": _BOUND}, "spec": {"volumeName": meta["name"]}}
                self._api.request("PATCH", _path(wanted["metadata"]), body, content_type=STRATEGIC_MERGE)

    def _list(self, path: str) -> list[Manifest]:
        return list(json.loads(self._api.request("GET", path))["items"])


def _path(meta: Manifest) -> str:
    return f"/api/v1/namespaces/{meta['namespace']}/persistentvolumeclaims/{meta['name']}"


def _reference(meta: Manifest) -> Manifest:
    return {
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": meta["namespace"], "name": meta["name"],
        "uid": meta["uid"],
    }  # fmt: skip
