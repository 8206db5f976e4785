"""The rights that programs use, recorded by the API server that they talk to, against those that are granted.

`test_rights.py` compares what is granted by the manifests with `aaml.kube.rights`; here both meet what is called.
"""

import json
import threading
import time
from contextlib import closing, suppress

import pytest

from aaml.kube import rights
from aaml.kube.cluster import LiveOptions
from aaml.kube.lease import LeaderLease
from aaml.kube.objects.convert import pod_from_json
from aaml.kube.transport import Transport
from aaml.kube.view import KubeView
from aaml.kube.watcher import ClusterWatch
from aaml.nodes.catalogue_file import shipped_catalogue
from support.live_scheduler import LiveScheduler
from support.processes import AAML, Process
from support.requested import Used, WillingApi, used
from support.scripted_api import CUT, HANG, event, listing, node, pod, write_kubeconfig
from unit.kube.test_rights import granted as manifest_grants

CLAIMS = "/apis/karpenter.sh/v1/nodeclaims"
OURS = {"aaml.dev/managed-by": "autoscale"}
HOST = "kubernetes.io/hostname"
STORAGE = "/apis/storage.k8s.io/v1"


def granted(asked: rights.Rights) -> set[Used]:
    return {(each.verb, each.group, each.resource) for each in asked}


def claim(name: str, kind: str) -> dict:
    metadata = {"name": name, "namespace": "default", "uid": f"u-{name}", "resourceVersion": "1"}
    spec = {"storageClassName": kind, "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    return {"metadata": metadata, "spec": spec, "status": {"phase": "Pending"}}


def waiting_class(name: str, provisioner: str) -> dict:
    metadata = {"name": name, "resourceVersion": "1"}
    return {"metadata": metadata, "provisioner": provisioner, "volumeBindingMode": "WaitForFirstConsumer"}


def volumes(*claims: str) -> dict:
    return {"volumes": [{"name": each, "persistentVolumeClaim": {"claimName": each}} for each in claims]}


def sized(cpu: str) -> dict:
    return {"containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]}


APART = {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "podAffinityTerm": {
    "topologyKey": "kubernetes.io/hostname", "labelSelector": {}, "namespaceSelector": {}}}]}}  # fmt: skip
PENDING = [
    pod("lost", 2, **sized("100m")),  # the answer to its bind is lost
    pod("nowhere", 3, nodeSelector={"no": "such-node"}),
    pod("apart", 4, affinity=APART),  # a selector over namespaces
    pod("made", 5, **sized("100m"), **volumes("made")),  # a volume that is made where the pod goes
    pod("given", 6, **sized("100m"), **volumes("given")),  # a volume that is there
    pod("urgent", 7, **sized("3"), priority=1000, nodeSelector={HOST: "n2"}),
    pod("member", 8, **sized("100m"), schedulingGroup={"podGroupName": "gang"}),
]
GANG = {"metadata": {"name": "gang", "namespace": "default", "resourceVersion": "1"},
        "spec": {"schedulingPolicy": {"gang": {"minCount": 1}}}}  # fmt: skip
LESS_URGENT = pod("less-urgent", 1, node="n2", **sized("3"), priority=1)


@pytest.fixture
def api():
    """A cluster on which a scheduler of "mine" has to do all that it can do."""
    with WillingApi() as server:
        nodes = [node("n1"), node("n2")]
        for each in nodes:
            each["metadata"]["labels"] = {HOST: each["metadata"]["name"]}
        server.on_list("/api/v1/nodes", listing(*nodes))
        server.on_list("/api/v1/pods", listing(LESS_URGENT, *PENDING))
        for name, content in {
            "persistentvolumeclaims": [claim("made", "cloud"), claim("given", "local")],
            "persistentvolumes": [{
                "metadata": {"name": "pv", "resourceVersion": "1"}, "status": {"phase": "Available"},
                "spec": {"storageClassName": "local", "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}},
            }],
        }.items():  # fmt: skip
            server.on_list(f"/api/v1/{name}", listing(*content))
        server.on_list("/apis/scheduling.k8s.io/v1beta1/podgroups", listing(GANG))
        classes = waiting_class("cloud", "csi.x"), waiting_class("local", "kubernetes.io/no-provisioner")
        server.on_list(f"{STORAGE}/storageclasses", listing(*classes))
        server.on("POST", "/api/v1/namespaces/default/pods/lost/binding", (0, CUT))
        server.on("GET", "/api/v1/namespaces/default/pods/lost", (200, pod("lost", 9, node="n1")))
        yield server


@pytest.fixture
def kubeconfig(api, tmp_path):
    return write_kubeconfig(tmp_path, api.server)


def waits_for(api: WillingApi, wanted: set[Used], seconds: float = 20.0) -> None:
    """Wait until all that is wanted was used, and name what is not."""
    end_s = time.monotonic() + seconds
    while not wanted <= api.used() and time.monotonic() < end_s:
        time.sleep(0.02)
    assert wanted - api.used() == set()


@pytest.mark.parametrize("preemption", [False, True])
def test_a_scheduler_uses_every_right_that_it_is_granted_and_no_other(api, kubeconfig, preemption):
    wanted, times = granted(rights.scheduling(preemption=preemption)), [threading.Event() for _ in range(4)]
    script = []
    for number, again in enumerate(times):
        meta = {"name": "n1", "resourceVersion": f"2{number}", "labels": {HOST: "n1"}}
        script += [again, event("MODIFIED", node("n1", 20, cpu=f"{5 + number}") | {"metadata": meta})]
    api.on_watch("/api/v1/nodes", [*script, HANG])
    with LiveScheduler("mine", kubeconfig, LiveOptions(preemption=preemption, close_s=1.0)):
        waits_for(api, wanted - {("patch", "", "events")})
        for again in times:  # what fits nowhere is tried again, until an event says the same and counts twice
            again.set()
            with suppress(AssertionError):
                waits_for(api, wanted, 5.0)
                break
    assert api.used() == wanted


def test_a_shadow_uses_every_right_that_it_is_granted_and_no_other(api, kubeconfig):
    wanted = granted(rights.scheduling(dry_run=True))
    with LiveScheduler("mine", kubeconfig, LiveOptions(dry_run=True, dry_run_wait_s=0.1, close_s=1.0)):
        waits_for(api, wanted)
    assert api.used() == wanted


@pytest.mark.parametrize("binds", [False, True])
def test_an_extender_uses_every_right_that_it_is_granted_and_no_other(api, binds):
    wanted = granted((*rights.FILTER, *(rights.BIND if binds else ())))
    with closing(KubeView(server=api.server, binds=binds)) as view:
        for each in PENDING:
            view.feasible(pod_from_json(json.dumps(each).encode()))
        if binds:
            assert view.bind_now("default", "lost", "u-lost", "n1") == ""
        waits_for(api, wanted, 10)
        view.refresh()
    assert api.used() == wanted


def test_who_looks_on_uses_every_right_that_it_is_granted_and_no_other(api, kubeconfig):
    wanted = granted(rights.LOOK)
    with closing(ClusterWatch.connect(kubeconfig)):
        waits_for(api, wanted, 10)
    assert api.used() == wanted


def test_a_candidate_uses_every_right_that_it_is_granted_and_no_other(api):
    path = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/aaml-scheduler"
    api.on_list(path, {"metadata": {"name": "aaml-scheduler", "resourceVersion": "1"}, "spec": {}})
    lease = LeaderLease(Transport(server=api.server), "me")
    assert lease.acquire(lambda: False, lambda: None)
    lease.release()
    assert api.used() == granted(rights.LEASE)


@pytest.fixture
def buying():
    """A cluster with a pod that waits and fits nowhere, and a node of ours that has been empty for days."""
    kind = shipped_catalogue().types[0]
    labels = dict(kind.labels(kind.cheapest))
    made = {"creationTimestamp": "2026-01-01T00:00:00Z", "resourceVersion": "1"}
    ready = [{"type": "Initialized", "status": "True", "lastTransitionTime": "2026-01-01T00:01:00Z"}]
    waits = pod("waits", 3, **sized("1"))
    waits["spec"]["schedulerName"] = "default-scheduler"
    waits["metadata"] |= {"creationTimestamp": "2026-01-02T00:00:00Z"}
    waits["status"] = {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable",
                                       "message": "0/1 nodes are available"}]}  # fmt: skip
    empty = node("n-idle", cpu=f"{dict(kind.allocatable)['cpu']}m")
    empty["metadata"] |= made | {"labels": labels}
    empty["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
    claim = {
        "metadata": {"name": "idle", "uid": "u-idle", "labels": labels | OURS, **made},
        "status": {"nodeName": "n-idle", "conditions": ready},
    }
    with WillingApi() as server:
        server.on_list("/api/v1/nodes", listing(empty))
        server.comes = threading.Event()
        server.on_watch("/api/v1/pods", [server.comes, event("ADDED", waits), HANG])
        server.on_list(CLAIMS, listing(claim))
        server.on("POST", CLAIMS, (201, {"metadata": {"name": "new", "uid": "u-new", "labels": labels | OURS, **made}}))
        yield server


@pytest.mark.slow
def test_who_buys_nodes_uses_every_right_that_its_manifests_grant_and_no_other(buying, tmp_path):
    wanted = manifest_grants("autoscale", "autoscale")
    kubeconfig = write_kubeconfig(tmp_path, buying.server)
    with Process(
        [AAML, "autoscale", "--apply", "--interval=1", f"--kubeconfig={kubeconfig}"], tmp_path / "log"
    ) as process:
        waits_for(buying, wanted - {("create", "karpenter.sh", "nodeclaims")}, 60)
        buying.comes.set()  # the pod that waits
        waits_for(buying, wanted, 60)
        process.stop()
    assert buying.used() == wanted


@pytest.mark.parametrize(
    ("method", "path", "query", "right"),
    [
        ("GET", "/api/v1/nodes", {}, ("list", "", "nodes")),
        ("GET", "/api/v1/namespaces", {"watch": "true"}, ("watch", "", "namespaces")),
        ("GET", "/api/v1/namespaces/a/pods/b", {}, ("get", "", "pods")),
        ("POST", "/api/v1/namespaces/a/pods/b/binding", {}, ("create", "", "pods/binding")),
        ("PATCH", "/api/v1/namespaces/a/pods/b/status", {}, ("patch", "", "pods/status")),
        ("DELETE", "/apis/apps/v1/namespaces/a/deployments", {}, ("deletecollection", "apps", "deployments")),
        ("PUT", "/apis/coordination.k8s.io/v1/namespaces/a/leases/b", {}, ("update", "coordination.k8s.io", "leases")),
    ],
)
def test_requests_are_read_as_the_api_server_reads_them(method, path, query, right):
    assert used(method, path, query) == right
