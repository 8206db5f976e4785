"""The real Kueue on a cluster of `aaml cluster up --queue kueue`: it admits, restarts, and leaves nothing behind."""

import json
import os
import subprocess

import psutil
import pytest

from aaml.kube.provision import KwokCluster
from aaml.kube.transport import ApiError
from aaml.kueue import process
from support.kueue_cases import World, workload_manifest
from support.kwok import pods, until
from support.processes import AAML
from support.real_kueue import check_built, needs_kueue

pytestmark = needs_kueue
NAME = f"kueue-{os.getpid()}"
DRAWN_JOBS = 30
KUEUE = "/apis/kueue.x-k8s.io/v1beta2"
JOBS = "/apis/batch/v1/namespaces/default/jobs"
WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
VERSION = {"apiVersion": "kueue.x-k8s.io/v1beta2"}
LEVELS = [{"nodeLabel": "rack"}, {"nodeLabel": "kubernetes.io/hostname"}]
QUOTA = {"name": "all", "resources": [{"name": "cpu", "nominalQuota": "1000"}]}
QUEUE = [
    ("topologies", {"kind": "Topology", "metadata": {"name": "racks"}, "spec": {"levels": LEVELS}}),
    ("resourceflavors", {"kind": "ResourceFlavor", "metadata": {"name": "all"}, "spec":
        {"nodeLabels": {"kubernetes.io/os": "linux"}, "topologyName": "racks"}}),
    ("clusterqueues", {"kind": "ClusterQueue", "metadata": {"name": "team"}, "spec": {"namespaceSelector": {},
        "resourceGroups": [{"coveredResources": ["cpu"], "flavors": [QUOTA]}]}}),
    ("namespaces/default/localqueues", {"kind": "LocalQueue", "metadata": {"name": "team"}, "spec":
        {"clusterQueue": "team"}}),
]  # fmt: skip


def job(name, pods=1, cpu="1", queue="", rack=""):
    container = {"name": "main", "image": "none", "resources": {"requests": {"cpu": cpu}}}
    annotations = {"kueue.x-k8s.io/podset-required-topology": rack} if rack else {}
    template = {"metadata": {"annotations": annotations}, "spec": {"containers": [container], "restartPolicy": "Never"}}
    labels = {"kueue.x-k8s.io/queue-name": queue} if queue else {}
    spec = {"parallelism": pods, "completions": pods, "suspend": bool(queue), "template": template}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name, "labels": labels}, "spec": spec}


@pytest.fixture(scope="module")
def cluster():
    check_built()
    command = [AAML, "cluster", "up", "--name", NAME, "--queue", "kueue", "--nodes", "4", "--owner", str(os.getpid())]
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
    made = KwokCluster(NAME)
    api = made.api()
    for number in range(4):
        label = {"metadata": {"labels": {"rack": f"r{number % 2}"}}}
        path = f"/api/v1/nodes/kwok-std-node-{number}"
        api.request("PATCH", path, label, content_type="application/merge-patch+json")
    for plural, body in QUEUE:
        api.request("POST", f"{KUEUE}/{plural}", VERSION | body)
    try:
        yield made
    finally:
        made.down()


def nodes_of(api, name):
    return [pod["spec"]["nodeName"] for pod in pods(api, "default") if name in pod["metadata"]["name"]
            and pod["spec"].get("nodeName")]  # fmt: skip


def test_a_job_is_admitted_into_one_rack_and_its_pods_are_bound_there(cluster):
    api = cluster.api()
    api.request("POST", JOBS, job("gang", pods=2, cpu="40", queue="team", rack="rack"))
    until(lambda: len(nodes_of(api, "gang")) == 2, "the gang is bound", wait_s=60)
    assert len({int(name[-1]) % 2 for name in nodes_of(api, "gang")}) == 1
    assert len(set(nodes_of(api, "gang"))) == 2, "a node has 64 cores"
    api.request("POST", JOBS, job("toomuch", pods=3, cpu="40", queue="team", rack="rack"))

    def refused():
        found = json.loads(api.request("GET", f"{KUEUE}/namespaces/default/workloads"))["items"]
        said = [each.get("status", {}).get("conditions", []) for each in found if "toomuch" in each["metadata"]["name"]]
        return any("allows to fit only 2 out of 3 pod(s)" in each["message"] for some in said for each in some)

    until(refused, "Kueue says why it waits", wait_s=60)


def as_job(workload, queue):
    """Return the Job of a workload with one pod set, the way people write it: topology in annotations."""
    pods = workload_manifest(workload)["spec"]["podSets"][0]
    request = workload.pod_sets[0].topology
    asked = {}
    if request is not None:
        asked[f"kueue.x-k8s.io/podset-{request.how}-topology"] = request.level or "true"
    made = job(workload.name, pods["count"], queue=queue)
    made["spec"]["template"] = {"metadata": {"annotations": asked}, "spec": pods["template"]["spec"]}
    return made


def test_a_drawn_job_becomes_the_workload_that_is_compared_with_our_rules(cluster):
    """`test_differential_kueue.py` makes the workloads itself, many times as fast as by way of Jobs."""
    api, world = cluster.api(), World(7, "jobs")
    api.request("POST", f"{KUEUE}/namespaces/default/localqueues", VERSION | {"kind": "LocalQueue", "metadata":
                {"name": "drawn"}, "spec": {"clusterQueue": "nobodys"}})  # fmt: skip
    for _ in range(DRAWN_JOBS):
        workload = world.workload()
        if len(workload.pod_sets) > 1:
            continue
        uid = json.loads(api.request("POST", JOBS, as_job(workload, "drawn")))["metadata"]["uid"]
        query = {"labelSelector": f"kueue.x-k8s.io/job-uid={uid}"}
        path = f"{KUEUE}/namespaces/default/workloads"
        until(lambda: json.loads(api.request("GET", path, query=query))["items"], "its workload is made", wait_s=30)  # noqa: B023
        made = json.loads(api.request("GET", path, query=query))["items"][0]["spec"]["podSets"]
        assert [shape(each) for each in made] == [
            shape(each) for each in workload_manifest(workload)["spec"]["podSets"]
        ]


def shape(pods):
    """Return what of a pod set Kueue's admission looks at."""
    spec = pods["template"]["spec"]
    request = {key: value for key, value in pods.get("topologyRequest", {}).items() if key != "podIndexLabel"}
    requests = [each["resources"]["requests"] for each in spec["containers"]]
    return pods["count"], requests, spec.get("nodeSelector") or {}, spec.get("tolerations") or [], request


def test_it_listens_on_loopback_alone(cluster):
    listening = [
        each.laddr.ip
        for each in psutil.Process(cluster.pid("kueue")).net_connections("tcp")
        if each.status == psutil.CONN_LISTEN
    ]
    assert set(listening) == {"127.0.0.1"}


def test_stopped_it_leaves_no_webhook_and_it_can_be_started_again(cluster):
    api = cluster.api()
    process.stop(cluster)
    assert json.loads(api.request("GET", WEBHOOKS))["items"] == []
    api.request("POST", JOBS, job("without"))  # its webhooks would refuse it
    process.start(cluster)
    assert [each["metadata"]["name"] for each in json.loads(api.request("GET", WEBHOOKS))["items"]] == [
        "kueue-validating-webhook-configuration"
    ]
    api.request("POST", JOBS, job("again", queue="team"))
    until(lambda: nodes_of(api, "again"), "it admits again", wait_s=60)


def test_after_a_crash_the_command_starts_it_again(cluster):
    cluster.stop_component("kueue", kill=True)
    with pytest.raises(ApiError):
        cluster.api().request("POST", JOBS, job("nobody"))
    said = subprocess.run(
        [AAML, "cluster", "up", "--name", NAME], check=True, capture_output=True, text=True, timeout=300
    ).stdout
    assert "started again: kueue" in said
    cluster.api().request("POST", JOBS, job("after", queue="team"))
    until(lambda: nodes_of(cluster.api(), "after"), "it admits again", wait_s=60)


def test_down_leaves_nothing(cluster):
    pid = cluster.pid("kueue")
    subprocess.run([AAML, "cluster", "down", "--name", NAME], check=True, capture_output=True, timeout=120)
    assert not psutil.pid_exists(pid)
    assert not cluster.directory.exists()
