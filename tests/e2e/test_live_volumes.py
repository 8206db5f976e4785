"""Claims that wait for their first consumer on a real API server, whose controller of volumes binds them."""

import json
import secrets
from collections.abc import Iterator
from typing import Any

import pytest

from aaml.cluster import audit
from aaml.kube.cluster import LiveOptions
from aaml.kube.objects.volumes import SELECTED_NODE
from aaml.kube.provision import KwokCluster
from support.kwok import pod, until
from support.live_scheduler import LiveScheduler
from support.volumes import Manifest, Provisioner, claim, storage_class, uses, volume

SCHEDULER = "aaml-volumes"
NODES = [f"kwok-std-node-{number}" for number in range(10)]


class Stage:
    """Two classes of this test alone: `local`, whose volumes are there, and `cloud`, whose volumes are made."""

    def __init__(self, kwok: KwokCluster, namespace: str) -> None:
        self.kubeconfig, self.api, self.namespace = kwok.kubeconfig, kwok.api(), namespace
        self.local, self.cloud = f"local-{namespace}", f"cloud-{namespace}"
        self.driver = f"csi.{namespace}"
        self.root = f"/api/v1/namespaces/{namespace}"
        for kind in (storage_class(self.local), storage_class(self.cloud, self.driver)):
            self.api.request("POST", "/apis/storage.k8s.io/v1/storageclasses", kind)

    def create(self, *manifests: Manifest) -> None:
        for each in manifests:
            path = "/api/v1/persistentvolumes" if "capacity" in each["spec"] else f"{self.root}/persistentvolumeclaims"
            self.api.request("POST", path, each)

    def pod(self, name: str, *claims: str, **more: Any) -> None:
        self.api.request("POST", f"{self.root}/pods", pod(name, schedulerName=SCHEDULER, **uses(*claims), **more))

    def get(self, path: str) -> Any:
        return json.loads(self.api.request("GET", path))

    def node_of(self, name: str) -> str:
        return str(self.get(f"{self.root}/pods/{name}")["spec"].get("nodeName", ""))

    def bound(self, *names: str) -> None:
        until(lambda: all(self.node_of(name) for name in names), f"{', '.join(names)} bound")

    def volume_of(self, name: str) -> str:
        found = self.get(f"{self.root}/persistentvolumeclaims/{name}")
        assert found["status"]["phase"] == "Bound"
        return str(found["spec"]["volumeName"])

    def annotation(self, name: str) -> str:
        """Return the node that a claim was told."""
        found = self.get(f"{self.root}/persistentvolumeclaims/{name}")["metadata"]
        return str((found.get("annotations") or {}).get(SELECTED_NODE, ""))

    def messages(self, name: str) -> list[str]:
        found = self.get(f"{self.root}/events")["items"]
        return [e["message"] for e in found if (e["involvedObject"]["name"], e["reason"]) == (name, "FailedScheduling")]

    def close(self) -> None:
        self.api.request("DELETE", f"{self.root}/pods?gracePeriodSeconds=0")
        self.api.request("DELETE", f"{self.root}/persistentvolumeclaims")
        for each in self.get("/api/v1/persistentvolumes")["items"]:
            if each["spec"]["storageClassName"] in {self.local, self.cloud}:
                self.api.request("DELETE", f"/api/v1/persistentvolumes/{each['metadata']['name']}")
        for kind in (self.local, self.cloud):
            self.api.request("DELETE", f"/apis/storage.k8s.io/v1/storageclasses/{kind}")


@pytest.fixture
def stage(kwok: KwokCluster, namespace: str) -> Iterator[Stage]:
    made = Stage(kwok, namespace)
    yield made
    made.close()


def phases(stage: Stage, *names: str) -> None:
    until(
        lambda: all(stage.get(f"/api/v1/persistentvolumes/{name}")["status"]["phase"] == "Available" for name in names),
        "the volumes available",
    )


def test_a_pod_goes_to_the_node_of_the_smallest_volume_that_is_large_enough(stage: Stage) -> None:
    names = [f"{size}-{secrets.token_hex(4)}" for size in ("small", "middle", "large")]
    for name, size, node in zip(names, ("1Gi", "3Gi", "9Gi"), (3, 4, 4), strict=True):
        stage.create(volume(name, stage.local, size, NODES[node]))
    phases(stage, *names)
    stage.create(claim("data", stage.local, "2Gi"), claim("more", stage.local, "2Gi"))
    with LiveScheduler(SCHEDULER, stage.kubeconfig) as live:
        stage.pod("first", "data")
        stage.bound("first")
        stage.pod("second", "more")
        stage.bound("second")
        stage.create(claim("none", stage.local, "2Gi"))
        stage.pod("third", "none")
        until(lambda: stage.messages("third"), "the event of the third pod")
        assert (stage.node_of("first"), stage.volume_of("data")) == (NODES[4], names[1])
        assert (stage.node_of("second"), stage.volume_of("more")) == (NODES[4], names[2])
        assert "10 node(s) didn't find available persistent volumes to bind" in stage.messages("third")[0]
        # A volume that comes wakes the pod that waits for it.
        last = f"last-{secrets.token_hex(4)}"
        stage.create(volume(last, stage.local, "5Gi", NODES[7]))
        stage.bound("third")
        assert (stage.node_of("third"), stage.volume_of("none")) == (NODES[7], last)
    audit.check(live.cluster.state)


def test_volumes_are_made_on_the_pods_node_and_nobody_waits_with_those_that_wait(stage: Stage) -> None:
    """Of three nodes the provisioner refuses two, and nobody provisions for the claim `never`."""
    orphaned = f"orphaned-{stage.namespace}"
    stage.api.request("POST", "/apis/storage.k8s.io/v1/storageclasses", storage_class(orphaned, "csi.nobody"))
    stage.create(claim("data", stage.cloud), claim("never", orphaned))
    expression = {"key": "kubernetes.io/hostname", "operator": "In", "values": NODES[:3]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [{"matchExpressions": [expression]}]}}  # fmt: skip
    options = LiveOptions(volumes_s=8.0, binds_at_once=1)
    provisioner = Provisioner(stage.api, stage.driver, refuses=lambda _claim, node: node != NODES[1])
    with provisioner, LiveScheduler(SCHEDULER, stage.kubeconfig, options) as live:
        stage.pod("stuck", "never")
        until(lambda: stage.annotation("never"), "the node of the claim that never gets a volume")
        stage.pod("maker", "data", affinity={"nodeAffinity": required})
        plain = [f"plain-{number}" for number in range(5)]
        for name in plain:
            stage.pod(name)
        stage.bound(*plain, "maker")
        assert stage.node_of("stuck") == "", "the others are bound while it waits"
        assert stage.node_of("maker") == NODES[1]
        assert stage.volume_of("data").startswith("made-")
        until(lambda: stage.messages("stuck"), "the event of the pod whose volume does not come")
        assert "binding volumes: not bound in 8 s" in " ".join(stage.messages("stuck"))
        tried = {node for _, node in provisioner.refused}
        assert tried <= set(NODES[:3]) - {NODES[1]}
        failed = any('provisioning failed for PVC "data"' in each for each in stage.messages("maker"))
        assert failed == bool(tried)
    audit.check(live.cluster.state)
    stage.api.request("DELETE", f"/apis/storage.k8s.io/v1/storageclasses/{orphaned}")


def test_an_account_that_may_not_write_volumes_says_so_once_and_binds_all_others(
    stage: Stage, kwok: KwokCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """The rights of deploy/kubernetes/scheduler before it could patch claims and volumes."""
    rbac, name = "/apis/rbac.authorization.k8s.io/v1", f"poor-{stage.namespace}"
    read = ["list", "watch"]
    rules = [
        (["nodes", "namespaces", "persistentvolumeclaims", "persistentvolumes"], "", read),
        (["storageclasses", "csinodes", "csidrivers", "csistoragecapacities"], "storage.k8s.io", read),
        (["pods"], "", ["get", *read]), (["pods/binding"], "", ["create"]), (["pods/status"], "", ["patch"]),
        (["events"], "", ["create", "patch"]),
    ]  # fmt: skip
    role = {
        "metadata": {"name": name},
        "rules": [{"resources": what, "apiGroups": [group], "verbs": verbs} for what, group, verbs in rules],
    }
    binding = {
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": stage.namespace}],
    }
    stage.api.request("POST", f"{stage.root}/serviceaccounts", {"metadata": {"name": name}})
    stage.api.request("POST", f"{rbac}/clusterroles", role)
    stage.api.request("POST", f"{rbac}/clusterrolebindings", binding)
    stage.create(claim("one", stage.cloud), claim("two", stage.cloud))
    with LiveScheduler(SCHEDULER, kwok.service_account_kubeconfig(stage.namespace, name)):
        stage.pod("first", "one")
        until(lambda: any("may not patch" in each for each in stage.messages("first")), "what is missing in the event")
        stage.pod("second", "two")
        stage.pod("plain")
        stage.bound("plain")
        until(lambda: stage.messages("second"), "the event of the second pod")
    why = 'persistentvolumeclaim "two" waits for its first consumer, and this account may not patch'
    assert stage.messages("second")[0].startswith(f"0/11 nodes are available: {why} persistentvolumeclaims.")
    assert caplog.text.count("pods whose claims wait for their first consumer stay pending") == 1
    for kind in ("clusterrolebindings", "clusterroles"):
        stage.api.request("DELETE", f"{rbac}/{kind}/{name}")
