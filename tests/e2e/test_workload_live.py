"""Workloads, recordings, tables and cleaning on a real cluster."""

import csv
import threading

import pytest

from aaml.cli import run as command
from aaml.errors import UserError
from aaml.live.record import SchedulerRecord
from aaml.live.settings import Folders
from aaml.live.table import KubeInfo
from aaml.live.workload import WorkloadDeploymentSimulator, workload_sink
from aaml.telemetry.recording import nodes_path, read_recording
from aaml.workload.deployments import Deployment
from support.kwok import pods, until

GIB = 1024**3


@pytest.fixture(autouse=True)
def empty(kwok, namespace, capsys):
    """No pod on the cluster when a test begins: what others left may still be on its way out."""
    assert command("cluster clean", ["--all", "--yes", "--kubeconfig", str(kwok.kubeconfig)]) == 0
    capsys.readouterr()


@pytest.fixture
def folders(tmp_path):
    return Folders(*(tmp_path / name for name in ("tlogs", "models", "logs", "data", "deployment_data")))


@pytest.fixture
def sink(kwok, namespace):
    made = workload_sink(None, "default-scheduler", kwok.kubeconfig, namespace)
    yield made
    made.close()


def simulator(kwok, namespace, folders, **settings):
    return WorkloadDeploymentSimulator(
        0.9, 0.9, scheduler="default-scheduler", kubeconfig=kwok.kubeconfig, namespace=namespace, folders=folders,
        **settings,
    )  # fmt: skip


def recorded(folders):
    """Return how many placements have a row in the one recording so far."""
    files = [file for file in folders.data.glob("sched_*.csv") if nodes_path(file).exists()]
    return sum(len(file.read_text().splitlines()) - 1 for file in files)


def test_what_kube_scheduler_does_is_recorded_row_by_row(kwok, namespace, folders):
    record = SchedulerRecord(kubeconfig=kwok.kubeconfig, folders=folders)
    thread = threading.Thread(target=record.run)
    thread.start()
    assert record.ready.wait(60)
    (only,) = simulator(kwok, namespace, folders, seed=2, pod_load=0.1, at_once=4).run(interval=0, duration=0)
    until(lambda: recorded(folders) == only.pods - 1, "all rows but the last, which is written at the end")
    record.stop()
    thread.join(60)
    assert not thread.is_alive()
    with record.path.open() as file:
        rows = list(csv.DictReader(file))
    where = {f"{namespace}/{pod['metadata']['name']}": pod["spec"]["nodeName"] for pod in pods(kwok.api(), namespace)}
    nodes = [name.removeprefix("cpu_") for name in rows[0] if name.startswith("cpu_kwok")]
    assert only.pods == len(rows) == len(where)
    assert {row["pod_name"]: nodes[int(row["action"])] for row in rows} == where
    assert sum(int(row["done"]) for row in rows) >= only.deployments  # several at once take turns
    # The first pod found the cluster empty; the last row's use and its own pod add up to what is there now.
    assert all(float(rows[0][f"cpu_{node}"]) == 0.0 for node in nodes)
    counts = {node: int(rows[-1][f"pods_{node}"]) for node in nodes}
    counts[nodes[int(rows[-1]["action"])]] += 1
    assert counts == {node: list(where.values()).count(node) for node in nodes}
    assert read_recording(record.path).attrs["nodes"]["kwok-std-node-0"]["cpu"] == 64_000


def test_two_simulators_share_a_cluster_and_clear_only_their_own(kwok, namespace, folders):
    both = [simulator(kwok, namespace, folders, seed=3, max_deployments=3) for _ in range(2)]
    threads = [threading.Thread(target=each.run, args=(0, 0, 2)) for each in both]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(180)
        assert not thread.is_alive()
    expected = sum(each.rounds[-1].pods for each in both)
    assert [len(each.rounds) for each in both] == [2, 2]
    until(lambda: len(pods(kwok.api(), namespace)) == expected, "the pods of both last rounds, and no others")


def test_a_deployment_that_fits_nowhere_is_told_and_one_with_a_name_twice_refused(sink):
    sink.create([Deployment("huge", 2, 65_000, GIB)])
    assert sink.wait_placed(["huge"], 3.0) == {"huge": 2}
    with pytest.raises(UserError, match="'huge' is on the cluster already"):
        sink.create([Deployment("huge", 1, 1, 1)])
    sink.delete(["huge"])
    sink.create([Deployment("huge", 2, 1_000, GIB)])
    assert sink.wait_placed(["huge"], 30.0) == {}


def test_a_deployment_that_kubernetes_refuses_is_told_with_its_reason(sink):
    with pytest.raises(UserError, match=r"'Bad_Name' is refused by the API server: .*RFC 1123"):
        sink.create([Deployment("Bad_Name", 1, 1, 1)])


def test_the_load_is_that_of_the_requests(sink):
    sink.create([Deployment("half", 10, 32_000, GIB)])
    assert sink.wait_placed(["half"], 30.0) == {}
    assert sink.load().cpu == 0.5  # ten pods of 32 cores on ten nodes of 64, the control plane left out


def test_a_deployment_with_a_lifetime_is_gone_after_it(kwok, namespace, folders):
    (tmp := folders.data).mkdir(parents=True)
    shapes = tmp / "shapes.csv"
    shapes.write_text("name,replicas,cpu_request,mem_request,lifetime_s\nshort,3,100m,64Mi,1\nlong,3,100m,64Mi,\n")
    made = simulator(kwok, namespace, folders, seed=1, shapes=shapes, max_deployments=8)
    made.run(interval=1.0, duration=0)
    with made.csv_path.open() as file:
        rows = list(csv.DictReader(file))
    names = {"short": {row["name"] for row in rows if row["name"].startswith("short")}}
    deleted = {row["name"] for row in rows if row["action"] == "delete"}
    assert deleted
    assert deleted <= names["short"]
    left = {pod["metadata"]["labels"]["app"] for pod in pods(kwok.api(), namespace)}
    assert not left & deleted


def test_the_table_shows_the_cluster(kwok, namespace, sink):
    sink.create([Deployment("shown", 4, 1_000, GIB)])
    sink.wait_placed(["shown"], 30.0)
    text = KubeInfo(kubeconfig=kwok.kubeconfig).table(width=110, height=40)
    assert "10 nodes" in text
    assert "4 pods" in text
    assert "4.0 of 640 cores" in text
    assert "kwok-ctl-node-0" not in text


def test_cleaning_takes_what_the_simulator_made_and_with_all_the_rest_too(kwok, namespace, sink, capsys):
    sink.create([Deployment("left", 5, 100, GIB)])
    sink.wait_placed(["left"], 30.0)
    kwok.api().request(
        "POST", f"/api/v1/namespaces/{namespace}/pods",
        {"metadata": {"name": "alone"}, "spec": {"containers": [{"name": "main", "image": "x"}]}},
    )  # fmt: skip
    where = ["--namespaces", namespace, "--yes", "--kubeconfig", str(kwok.kubeconfig)]
    assert command("cluster clean", where) == 0
    said = capsys.readouterr().out
    assert "11 nodes, none of them real" in said
    assert f"  {namespace}: 1 deployment, 1 replicaset, 5 pods" in said
    assert "5 pods deleted, none left" in said
    assert [each["metadata"]["name"] for each in pods(kwok.api(), namespace)] == ["alone"], "somebody else's stays"
    assert command("cluster clean", [*where, "--all"]) == 0
    assert "1 pods deleted, none left" in capsys.readouterr().out
    assert pods(kwok.api(), namespace) == []
    assert command("cluster clean", ["--namespaces", "no-such", "--yes", "--kubeconfig", str(kwok.kubeconfig)]) == 2
    assert "'no-such' is not on the cluster" in capsys.readouterr().err


def test_nodes_that_are_there_stay_as_they_are(kwok, capsys):
    assert command("cluster nodes", ["--node-count", "10", "--kubeconfig", str(kwok.kubeconfig)]) == 0
    assert "0 nodes created; the cluster has 10 workers now" in capsys.readouterr().out
