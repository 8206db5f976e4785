"""The real cluster: what it listens on, who may do what, its processes, two side by side, and pods that run on it."""

import json
import os
import re
import signal
import stat
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from aaml.cluster.fleet import NodeShape, node, registered
from aaml.errors import UserError
from aaml.kube.provision import ClusterOptions, KwokCluster, Owner, count_nodes, create_nodes, records
from aaml.kube.transport import ApiError, Transport, Unreachable
from support.kwok import answers, pod, pods, until

AAML = str(Path(sys.executable).with_name("aaml"))
OWNER = str(os.getpid())
PROCESSES = {"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kwok-controller"}


def aaml(*arguments, check=True):
    command = [AAML, "cluster", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=check, timeout=300)


def listening(pids):
    """Addresses that processes listen on."""
    connections = [each for pid in pids for each in psutil.Process(pid).net_connections("tcp")]
    return [each.laddr.ip for each in connections if each.status == psutil.CONN_LISTEN]


def test_every_process_runs_and_listens_on_loopback_only(kwok):
    pids = {name: kwok.pid(name) for name in kwok.components()}
    assert set(pids) == PROCESSES
    assert all(pids.values())
    addresses = listening(pids.values())
    assert len(addresses) >= len(PROCESSES)
    assert set(addresses) == {"127.0.0.1"}


def test_server_reports_the_pinned_version(kwok):
    version = json.loads(kwok.api().request("GET", "/version"))
    assert (version["gitVersion"], version["major"], version["minor"]) == ("v1.37.2", "1", "37")


def test_nodes_are_the_platforms_nodes(kwok):
    nodes = {item["metadata"]["name"]: item for item in json.loads(kwok.api().request("GET", "/api/v1/nodes"))["items"]}
    assert set(nodes) == {"kwok-ctl-node-0"} | {f"kwok-std-node-{index}" for index in range(10)}
    worker = nodes["kwok-std-node-7"]
    assert {key: worker["status"]["allocatable"][key] for key in ("cpu", "memory", "pods")} == {
        "cpu": "64", "memory": "256Gi", "pods": "110",
    }  # fmt: skip
    assert "taints" not in worker["spec"]
    taints = nodes["kwok-ctl-node-0"]["spec"]["taints"]
    assert [(taint["key"], taint["effect"]) for taint in taints] == [
        ("node-role.kubernetes.io/control-plane", "NoSchedule")
    ]


def test_kubeconfig_is_private_and_outside_the_checkout(kwok):
    assert stat.S_IMODE(kwok.kubeconfig.stat().st_mode) == 0o600
    assert stat.S_IMODE(kwok.directory.stat().st_mode) == 0o700
    assert not kwok.kubeconfig.is_relative_to(Path(__file__).parents[2])


def test_authentication_and_rbac_are_on(kwok, namespace):
    """Without a certificate nothing is listed, and a service account may do only what its role says."""
    server = records.load(kwok.name).server
    with pytest.raises(Unreachable, match=r"(?i)certificate"):
        Transport(server=server).request("GET", "/api/v1/nodes")
    api = kwok.api()
    api.request("POST", f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": "reader"}})
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]
    path = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}"
    api.request("POST", f"{path}/roles", {"metadata": {"name": "reader"}, "rules": rules})
    binding = {
        "metadata": {"name": "reader"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader"},
        "subjects": [{"kind": "ServiceAccount", "name": "reader", "namespace": namespace}],
    }
    api.request("POST", f"{path}/rolebindings", binding)
    file = kwok.service_account_kubeconfig(namespace, "reader")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    reader = Transport(file)
    path = f"/api/v1/namespaces/{namespace}/pods"
    until(lambda: answers(reader, path), "the new role")  # RBAC's caches follow the new role within moments
    assert pods(reader, namespace) == []
    for method, refused in (("POST", path), ("GET", "/api/v1/namespaces/default/pods"), ("GET", "/api/v1/nodes")):
        with pytest.raises(ApiError, match=rf"403 Forbidden: .*system:serviceaccount:{namespace}:reader"):
            reader.request(method, refused, pod("made-by-reader") if method == "POST" else None)


def test_default_scheduler_runs_twenty_pods_off_the_control_plane(kwok, namespace):
    api = kwok.api()
    path = f"/api/v1/namespaces/{namespace}/pods"
    for index in range(20):
        api.request("POST", path, pod(f"web-{index}"))

    until(lambda: all(item["status"]["phase"] == "Running" for item in pods(api, namespace)), "20 running pods")
    nodes = [item["spec"]["nodeName"] for item in pods(api, namespace)]
    assert len(nodes) == 20
    assert all(name.startswith("kwok-std-node-") for name in nodes)


def test_kubectl_of_the_cluster_sees_the_nodes(kwok):
    shown = aaml("kubectl", "--name", kwok.name, "--", "get", "nodes", "--output=name").stdout.split()
    assert len(shown) == 11
    assert "node/kwok-std-node-0" in shown


def test_nodes_with_gpus_and_labels_are_added_once(kwok):
    shape = NodeShape(cpu="96", memory="512Gi", labels=("zone=b",), gpus=4, gpu_model="V100M16")
    added = registered(node("gpu-node-0", shape))
    api = kwok.api()
    try:
        assert create_nodes(api, [added], progress=False) == 1
        assert create_nodes(api, [added], progress=False) == 0
        seen = json.loads(api.request("GET", "/api/v1/nodes/gpu-node-0"))
        offered = seen["status"]["allocatable"]
        assert (offered["nvidia.com/gpu"], offered["alibabacloud.com/gpu-count"]) == ("4", "4")
        assert offered["alibabacloud.com/gpu-milli"] == "1k"  # the API server's canonical form of 1000
        labels = seen["metadata"]["labels"]
        assert (labels["zone"], labels["alibabacloud.com/gpu-card-model"]) == ("b", "V100M16")
    finally:
        api.request("DELETE", "/api/v1/nodes/gpu-node-0")


def test_refused_node_is_one_line_with_the_servers_reason(kwok):
    with pytest.raises(UserError, match=r"node Bad_Name: .*lowercase RFC 1123"):
        create_nodes(kwok.api(), [node("Bad_Name")], progress=False)


@pytest.mark.parametrize("kill", [False, True], ids=["asked", "killed"])
def test_api_server_stops_and_starts_again_with_its_objects(kwok, namespace, kill):
    before = kwok.pid("kube-apiserver")
    api = kwok.api()
    api.request("POST", f"/api/v1/namespaces/{namespace}/configmaps", {"metadata": {"name": "kept"}})
    kwok.stop_component("kube-apiserver", kill=kill)
    assert kwok.pid("kube-apiserver") is None
    assert not kwok.running()
    with pytest.raises(UserError, match=r"no Kubernetes API answers at https://127.0.0.1"):
        count_nodes(api)
    assert aaml("status", "--name", kwok.name, check=False).returncode == 1
    others = {name: kwok.pid(name) for name in PROCESSES - {"kube-apiserver"}}
    kwok.start_component("kube-apiserver")
    assert kwok.pid("kube-apiserver") not in {None, before}
    assert {name: kwok.pid(name) for name in others} == others  # none gave up while the server was away
    assert all(others.values())
    assert answers(api, f"/api/v1/namespaces/{namespace}/configmaps/kept")


@pytest.mark.parametrize(
    "dead", [["kube-apiserver"], ["etcd"], ["kube-scheduler", "kwok-controller"], sorted(PROCESSES)],
    ids=["api-server", "etcd", "scheduler-and-kubelets", "all-as-after-a-reboot"],
)  # fmt: skip
def test_up_starts_the_parts_that_died_and_every_object_is_kept(kwok, namespace, dead):
    api = kwok.api()
    api.request("POST", f"/api/v1/namespaces/{namespace}/configmaps", {"metadata": {"name": "kept"}})
    alive = {name: kwok.pid(name) for name in PROCESSES - set(dead)}
    for name in dead:
        os.kill(kwok.pid(name), signal.SIGKILL)
    until(lambda: not any(kwok.pid(name) for name in dead), "the end of what was killed")
    line = next(line for line in aaml("list").stdout.splitlines() if line.startswith(kwok.name))
    assert "down: " in line
    assert all(name in line for name in dead)
    assert not any(name in line for name in alive)

    said = aaml("up", "--name", kwok.name).stdout

    assert "started again: " in said
    assert all(name in said for name in dead)
    assert f"export KUBECONFIG={kwok.kubeconfig}" in said
    assert kwok.running()
    assert {name: kwok.pid(name) for name in alive} == alive
    assert answers(api, f"/api/v1/namespaces/{namespace}/configmaps/kept")
    assert count_nodes(api).workers == 10
    api.request("POST", f"/api/v1/namespaces/{namespace}/pods", pod("afterwards"))
    until(lambda: pods(api, namespace)[0]["status"]["phase"] == "Running", "a pod that is bound and runs", 120.0)


def test_unknown_component_is_named_with_the_known_ones(kwok):
    with pytest.raises(UserError, match=r"component: 'kubelet' .* one of etcd, kube-apiserver"):
        kwok.stop_component("kubelet")


def test_a_second_cluster_lives_beside_the_first_without_scheduler(kwok):
    """Commands start, list and stop it; its pods wait for another scheduler, and its end leaves no process behind."""
    name = f"beside-{os.getpid()}"
    try:
        started = aaml("up", "--name", name, "--nodes", "2", "--cpu", "4", "--disable-scheduler", "--owner", OWNER)
        second = KwokCluster(name)
        assert f"export KUBECONFIG={second.kubeconfig}" in started.stdout
        assert records.load(name).owner == Owner.this_process()
        assert set(second.components()) == PROCESSES - {"kube-scheduler"}
        assert records.load(name).server != records.load(kwok.name).server
        api = second.api()
        assert count_nodes(api).schedulable == 2
        assert count_nodes(kwok.api()).schedulable == 10
        api.request("POST", "/api/v1/namespaces/default/pods", pod("waits"))
        state = json.loads(aaml("status", "--name", name, "--json").stdout)
        assert state["up"]
        assert state["nodes"] == {"workers": 2, "schedulable": 2}
        listed = aaml("list").stdout
        assert name in listed
        assert kwok.name in listed
        waiting = json.loads(api.request("GET", "/api/v1/namespaces/default/pods/waits"))
        assert "nodeName" not in waiting["spec"]
        again = aaml("up", "--name", name, check=False)
        assert (again.returncode, again.stderr.count("\n")) == (2, 1)
        assert "is up already" in again.stderr
        pids = [second.pid(component) for component in second.components()]
        aaml("down", "--name", name)
        assert not any(running(pid) for pid in pids)
        assert not second.directory.exists()
        assert kwok.running()
    finally:
        KwokCluster(name).down()


def running(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_interrupted_start_leaves_nothing(kwok):
    """Ctrl-C while the processes come up: status 130, no process, no folder."""
    name = f"broken-off-{os.getpid()}"
    command = [AAML, "cluster", "up", "--name", name, "--nodes", "2000"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    second = KwokCluster(name)
    try:
        until(lambda: any(part.pid() for part in second.components().values()), "the first process")
        pids = [part.pid() for part in second.components().values() if part.pid()]
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=120)
        assert process.returncode == 130, said
        assert not any(running(pid) for pid in pids)
        assert not second.directory.exists()
    finally:
        process.kill()
        second.down()


def test_cluster_of_a_test_run_that_sigterm_ended_is_ended_by_the_next_list(kwok):
    """What pytest does with its cluster, in a process that gets no chance to take it down."""
    name = f"orphan-{os.getpid()}"
    code = f"""if True:
        import time
        from aaml.kube.provision import ClusterOptions, KwokCluster, Owner
        KwokCluster({name!r}).up(ClusterOptions(nodes=1, owner=Owner.this_process()), progress=False)
        print("up", flush=True)
        time.sleep(600)"""
    run = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    orphan = KwokCluster(name)
    try:
        assert run.stdout.readline() == "up\n"
        assert name in aaml("list").stdout
        run.terminate()
        run.communicate(timeout=60)
        pids = [orphan.pid(component) for component in orphan.components()]
        assert all(pids)  # this is how they stayed behind

        listed = aaml("list")

        assert name not in listed.stdout
        assert kwok.name in listed.stdout
        assert f"cluster {name} is ended: process {run.pid} that it belonged to is gone" in listed.stderr
        assert not any(running(pid) for pid in pids)
        assert not orphan.directory.exists()
        assert kwok.running()
    finally:
        run.kill()
        orphan.down()


def test_a_part_that_gave_up_before_the_api_server_was_ready_is_started_again(monkeypatch):
    """On a busy machine the controller manager ends itself, twenty seconds after its start."""
    cluster = KwokCluster(f"slow-{os.getpid()}")
    create = cluster._create

    def slow(*arguments):
        made = create(*arguments)
        cluster.stop_component("kube-controller-manager", kill=True)
        return made

    monkeypatch.setattr(cluster, "_create", slow)
    try:
        cluster.up(ClusterOptions(nodes=1, scheduler=False, owner=Owner.this_process()), progress=False)
        assert cluster.running()
    finally:
        cluster.down()


def test_taken_port_is_one_line(kwok):
    port = records.load(kwok.name).server.rpartition(":")[2]
    answer = aaml("up", "--name", "portless", "--port", port, check=False)
    assert answer.returncode == 2
    assert re.fullmatch(rf"aaml cluster up: error: port: {port} is not accepted; .*in use.*\n", answer.stderr)
    assert not KwokCluster("portless").directory.exists()


def test_api_error_carries_the_servers_status(kwok):
    with pytest.raises(ApiError, match=r"404.*not found"):
        kwok.api().request("GET", "/api/v1/namespaces/default/pods/nobody")


def test_part_that_ends_at_once_is_reported_with_its_own_words(kwok, tmp_path):
    """The real kube-scheduler refuses its configuration: one line with its reason, and nothing stays behind."""
    file = tmp_path / "scheduler.yaml"
    kind = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
    file.write_text(f"{kind}parallelism: -3\n")
    name = f"refused-{os.getpid()}"
    answer = aaml("up", "--name", name, "--nodes", "1", "--scheduler-config", str(file), check=False)
    assert answer.returncode == 2
    assert "kube-scheduler has ended" in answer.stderr
    assert "parallelism: Invalid value: -3" in answer.stderr
    assert not KwokCluster(name).directory.exists()
