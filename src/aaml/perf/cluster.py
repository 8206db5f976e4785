"""The cluster that scenarios are played on: etcd and kube-apiserver with the feature gates that a scenario names.

Nothing else changes objects, as in the benchmark's own setting: no kubelet runs the pods, no controller makes any.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Self

from aaml.kube.provision import ClusterOptions, KwokCluster, Owner
from aaml.kube.transport import CONFLICT, NOT_FOUND, Transport, allowing
from aaml.perf.templates import Manifest
from aaml.threads import ThreadPool

AT_ONCE = 16
_LONG_S = 120.0
# Off in the benchmark, or here because of its finalizers, which nobody would take off. Priorities are numbers in it.
_ADMISSION = "ServiceAccount,TaintNodesByCondition,Priority,StorageObjectInUseProtection"
_MANAGER = "kube-controller-manager"
_OTHERS = ("kwok-controller", _MANAGER)
_DEVICES = "DynamicResourceAllocation"
_DEVICE_VERSIONS = ("v1", "v1beta2", "v1beta1", "v1alpha3")
_KEPT = frozenset({"default", "kube-node-lease", "kube-public", "kube-system"})
_NAMESPACED = (
    "/api/v1/namespaces/{}/pods", "/api/v1/namespaces/{}/persistentvolumeclaims", "/api/v1/namespaces/{}/services",
    "/apis/resource.k8s.io/v1/namespaces/{}/resourceclaimtemplates",
    "/apis/resource.k8s.io/v1/namespaces/{}/resourceclaims",
)  # fmt: skip
_OF_CLUSTER = (
    "/api/v1/nodes", "/apis/storage.k8s.io/v1/csinodes", "/api/v1/persistentvolumes",
    "/apis/resource.k8s.io/v1/resourceslices", "/apis/resource.k8s.io/v1/deviceclasses",
    "/apis/resource.k8s.io/v1beta2/devicetaintrules",
)  # fmt: skip


def server_gates(gates: Mapping[str, bool]) -> dict[str, bool]:
    """Return the feature gates that the API server has to share with a scheduler."""
    return {name: on for name, on in gates.items() if not name.startswith(("Scheduler", "Opportunistic"))}


def gates_text(gates: Mapping[str, bool]) -> str:
    """Return feature gates as a flag says them."""
    return ",".join(f"{name}={str(on).lower()}" for name, on in sorted(gates.items()))


class PerfCluster:
    """The cluster, with `gates` on its API server. Use as a context manager."""

    def __init__(self, name: str, gates: Mapping[str, bool]) -> None:
        self.cluster, self.gates = KwokCluster(name), dict(gates)
        self._kinds: dict[str, dict[str, tuple[str, bool]]] = {}

    def __enter__(self) -> Self:
        flags = {"disable-admission-plugins": _ADMISSION}
        manager = {}
        if self.gates:
            flags["feature-gates"] = manager["feature-gates"] = gates_text(self.gates)
        if self.gates.get(_DEVICES):
            flags["runtime-config"] = ",".join(f"resource.k8s.io/{version}=true" for version in _DEVICE_VERSIONS)
        arguments = {"kube-apiserver": flags, _MANAGER: manager}
        self.cluster.up(
            ClusterOptions(nodes=1, scheduler=False, owner=Owner.this_process(), arguments=arguments), progress=False
        )
        try:
            for component in _OTHERS:
                self.cluster.stop_component(component, kill=True)
            if self.gates.get(_DEVICES):  # one controller, which makes claims from templates, as in the benchmark
                part = self.cluster.component(_MANAGER)
                replace(part, command=(*part.command, "--controllers=resourceclaim-controller")).start()
            self.api = Transport(self.cluster.kubeconfig, connections=2 * AT_ONCE, timeout_s=_LONG_S)
            self._pool = ThreadPool(AT_ONCE, "perf")
        except BaseException:
            self.cluster.down()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)
        self.api.close()
        self.cluster.down()

    def together(self, act: Callable[[int], object], count: int) -> None:
        """Call `act` with 0 to `count` - 1, several at once, and wait for all."""
        for _ in self._pool.map(act, range(count)):
            pass

    def get(self, path: str) -> list[Manifest]:
        """Return the objects of a list."""
        return list(json.loads(self.api.request("GET", path))["items"])

    def path(self, manifest: Manifest, namespace: str = "") -> str:
        """Return where objects of a manifest's kind are, in that namespace where the kind has namespaces."""
        version = str(manifest["apiVersion"])
        root = f"/api/{version}" if "/" not in version else f"/apis/{version}"
        if root not in self._kinds:
            listed = json.loads(self.api.request("GET", root))["resources"]
            self._kinds[root] = {
                each["kind"]: (each["name"], each["namespaced"]) for each in listed if "/" not in each["name"]
            }
        name, namespaced = self._kinds[root][str(manifest["kind"])]
        return f"{root}/namespaces/{namespace}/{name}" if namespaced else f"{root}/{name}"

    def create(self, path: str, manifest: Manifest) -> Manifest:
        """Create an object and return it as it is then."""
        created: Manifest = json.loads(self.api.request("POST", path, manifest))
        return created

    def ensure_namespace(self, name: str, template: Manifest | None = None) -> None:
        """Create a namespace if it is not there."""
        manifest: dict[str, Any] = {**(template or {})}
        manifest["metadata"] = {**manifest.get("metadata", {}), "name": name}
        with allowing(CONFLICT):
            self.create("/api/v1/namespaces", manifest)

    def delete(self, path: str, **query: str) -> None:
        """Delete an object or all of a list; one that is gone already is fine."""
        with allowing(NOT_FOUND):
            self.api.request("DELETE", path, query=query or None)

    def clear(self) -> None:
        """Remove all that a scenario has made. Nodes go first, so that a scheduler at work places nothing meanwhile."""
        for path in _OF_CLUSTER:
            self.delete(path)
        namespaces = [each["metadata"]["name"] for each in self.get("/api/v1/namespaces")]
        made = [name for name in namespaces if name not in _KEPT]
        for name in (*made, "default"):
            for path in _NAMESPACED:
                self.delete(path.format(name), gracePeriodSeconds="0")
        self._free("/api/v1", "pods")
        self._free("/apis/resource.k8s.io/v1", "resourceclaims")
        for name in made:
            self.delete(f"/api/v1/namespaces/{name}")
            # What the namespace controller does once a namespace is empty.
            self.api.request("PUT", f"/api/v1/namespaces/{name}/finalize", {"metadata": {"name": name}, "spec": {}})

    def _free(self, root: str, kind: str) -> None:
        """Remove the finalizers of deleted objects, which would keep them for ever."""
        for each in self.get(f"{root}/{kind}"):
            meta = each["metadata"]
            path = f"{root}/namespaces/{meta['namespace']}/{kind}/{meta['name']}"
            patch = {"metadata": {"finalizers": None}}
            with allowing(NOT_FOUND):
                self.api.request("PATCH", path, patch, content_type="application/merge-patch+json")
