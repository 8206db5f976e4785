"""`aaml explain` of a live pod: the same numbers as from the raw objects, and the same word as the scheduler's own."""

import json

import pytest

from aaml.cli import run as command
from aaml.cluster.filters import feasible
from aaml.kube.cluster import KubeCluster
from support.scripted_api import HANG, ScriptedApi, listing, node, pod

NODES, PODS, NAMESPACES = "/api/v1/nodes", "/api/v1/pods", "/api/v1/namespaces"
CLAIMS, CLASSES = "/api/v1/persistentvolumeclaims", "/apis/storage.k8s.io/v1/storageclasses"
VOLUMES, CSI = "/api/v1/persistentvolumes", "/apis/storage.k8s.io/v1/csinodes"
OF_VOLUMES = [f"/apis/storage.k8s.io/v1/{name}" for name in ("volumeattachments", "csidrivers", "csistoragecapacities")]


def asks(body, cpu, memory):
    body["spec"]["containers"] = [{"name": "c", "resources": {"requests": {"cpu": cpu, "memory": memory}}}]
    return body


def using(body, claim):
    body["spec"]["volumes"] = [{"name": "v", "persistentVolumeClaim": {"claimName": claim}}]
    return body


RAW_NODES = [node("a"), node("b", cpu="8"), node("c"), {**node("d"), "spec": {"unschedulable": True}}]
RAW_PODS = [
    asks(pod("old", 1, node="a"), "2", "2Gi"), asks(pod("big", 1, node="c"), "3500m", "1Gi"),
    asks(pod("web", 1), "1", "1Gi"), using(asks(pod("db", 1), "1", "1Gi"), "data"),
    asks(pod("running", 1, node="b"), "1", "2Gi"),
]  # fmt: skip


@pytest.fixture
def api():
    with ScriptedApi() as server:
        for path, items in (
            (NODES, RAW_NODES), (PODS, RAW_PODS), (VOLUMES, []), (CSI, []),
            (NAMESPACES, [{"metadata": {"name": "kube-system", "uid": "here"}}]),
            (CLAIMS, [{"metadata": {"name": "data", "namespace": "default"}, "spec": {"storageClassName": "later"}}]),
            (CLASSES, [{"metadata": {"name": "later"}, "volumeBindingMode": "WaitForFirstConsumer"}]),
            *((path, []) for path in OF_VOLUMES),
        ):  # fmt: skip
            server.on_list(path, listing(*items))
            server.on_watch(path, [HANG])
        server.on_list("/api/v1/namespaces/default/pods", listing(*RAW_PODS))  # whose field selector it does not read
        yield server


@pytest.fixture
def explained(api, tmp_path, capsys):
    file = tmp_path / "kubeconfig"
    file.write_text(
        f"current-context: c\nclusters: [{{name: c, cluster: {{server: '{api.server}'}}}}]\n"
        "users: [{name: u, user: {}}]\ncontexts: [{name: c, context: {cluster: c, user: u}}]\n"
    )

    def run(name, *flags):
        assert command("explain", [name, f"--kubeconfig={file}", "--json", *flags]) == 0
        return json.loads(capsys.readouterr().out)

    return run


def milli(text):
    return int(text[:-1]) if text.endswith("m") else 1000 * int(text)


def gib(text):
    return int(text.removesuffix("Gi"))


def test_each_number_is_that_of_the_raw_objects(explained):
    """LeastAllocated of kube-scheduler by its documentation: the mean over CPU and memory of what is free, of 100."""
    said = explained("web")
    free = {}
    for raw in RAW_NODES:
        name, room = raw["metadata"]["name"], raw["status"]["allocatable"]
        if raw.get("spec", {}).get("unschedulable"):
            continue
        here = [each["spec"]["containers"][0]["resources"]["requests"] for each in RAW_PODS
                if each["spec"].get("nodeName") == name]  # fmt: skip
        used = (1000 + sum(milli(each["cpu"]) for each in here), 1 + sum(gib(each["memory"]) for each in here))
        size = (milli(room["cpu"]), gib(room["memory"]))
        if all(amount <= most for amount, most in zip(used, size, strict=True)):
            free[name] = sum((most - amount) * 100 // most for amount, most in zip(used, size, strict=True)) // 2
    assert (said["feasible"], said["of"]) == (len(free), len(RAW_NODES)) == (2, 4)
    assert sum(count for *_, count in said["refused"]) == 2
    shown = zip(said["nodes"], said["mask"], said["parts"]["NodeResourcesFit"], strict=True)
    assert {name: value for name, passed, value in shown if passed} == free
    assert said["node"] == max(free, key=free.get) == "b"
    totals = [sum(values) for values in zip(*([said["parts"][name][row] for row in range(2)] for name in said["parts"]),
                                            strict=True)]  # fmt: skip
    assert said["scores"][:2] == totals
    assert said["margin"] == totals[0] - totals[1]


def test_a_pod_that_runs_is_explained_by_the_cluster_without_it(explained):
    said = explained("running")
    shown = dict(zip(said["nodes"], said["parts"]["NodeResourcesFit"], strict=True))
    assert (said["node"], shown["b"]) == ("b", ((8 - 1) * 100 // 8 + (8 - 2) * 100 // 8) // 2)


def test_a_pod_that_our_scheduler_refuses_is_explained_as_refused_with_the_reason_of_its_event(api, explained):
    said = explained("db")
    assert (said["node"], said["feasible"], said["of"]) == ("", 0, 4)
    assert sorted(said["refused"]) == [
        ["NodeResourcesFit", "Insufficient cpu", 1],
        ["NodeUnschedulable", "node(s) were unschedulable", 1],
        ["VolumeBinding", "node(s) didn't find available persistent volumes to bind", 2],
    ]
    reasons = ", ".join(sorted(f"{count} {reason}" for _, reason, count in said["refused"]))
    cluster = KubeCluster.connect("mine", server=api.server)
    try:
        assert cluster.settle(30.0)
        assert feasible(cluster.state, cluster.waits("u-db")).message() == f"0/4 nodes are available: {reasons}."
    finally:
        cluster.close()


def test_a_pod_that_is_not_there_is_told_with_some_that_are(api, tmp_path, capsys):
    file = tmp_path / "kubeconfig"
    file.write_text(
        f"current-context: c\nclusters: [{{name: c, cluster: {{server: '{api.server}'}}}}]\n"
        "users: [{name: u, user: {}}]\ncontexts: [{name: c, context: {cluster: c, user: u}}]\n"
    )
    assert command("explain", ["nobody", f"--kubeconfig={file}"]) == 2
    assert "such as default/old, default/big, default/web" in capsys.readouterr().err
