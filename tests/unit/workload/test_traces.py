"""Reading openb's CSV files, tuning a workload, and the synthetic one."""

from pathlib import Path

import numpy as np
import pytest

from aaml.cluster.objects import GpuRequest, Node, Pod
from aaml.errors import UserError
from aaml.workload.synthetic_gpu import pods_for_load, synthetic_nodes, synthetic_pods
from aaml.workload.traces import load_nodes, load_pods, read_pods, traces_folder
from aaml.workload.tuning import tune

HEADER = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time"


def test_a_pod_line_becomes_a_pod(tmp_path: Path) -> None:
    path = tmp_path / "pods.csv"
    path.write_text(f"{HEADER}\np-0,12000,24576,1,460,V100M16|V100M32,LS,Running,427061,12902960,427061\n")
    (pod,) = read_pods(path)
    assert pod.requests == {"cpu": 12000, "memory": 24576 * 2**20}
    assert pod.gpu == GpuRequest(1, 460, frozenset({"V100M16", "V100M32"}))
    assert (pod.created_s, pod.lifetime_s) == (427061.0, 12475899.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name,cpu_milli\n", "column 'memory_mib' is missing"),
        (f"{HEADER}\np-0,many,1,0,0,,LS,Running,0,1,0\n", "line 2, column cpu_milli: 'many' is not accepted"),
    ],
)
def test_a_bad_file_is_one_clear_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "pods.csv"
    path.write_text(text)
    with pytest.raises(UserError, match=message):
        read_pods(path)


def test_a_missing_trace_names_the_command_that_gets_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AAML_TRACES", str(tmp_path))
    with pytest.raises(UserError, match="aaml trace fetch openb"):
        traces_folder()


def test_the_cluster_is_the_paper_s() -> None:
    nodes = load_nodes()
    assert len(nodes) == 1213
    assert sum(node.gpu_count for node in nodes) == 6212
    assert sum(node.allocatable["cpu"] for node in nodes) == 107_018_000
    assert len(load_pods("default")) == 8152
    with pytest.raises(UserError, match=r"defualt.*gpuspec33"):
        load_pods("defualt")


def test_tuning_stops_below_the_target_and_keeps_every_pod_once() -> None:
    pods = [Pod(f"p-{i:03d}", gpu=GpuRequest(1, 500)) for i in range(100)]
    nodes = [Node(f"n-{i}", gpu_count=8) for i in range(10)]
    workload = tune(pods, nodes, 42)  # 80 GPUs: 104,000 thousandths arrive at most, 50,000 are there
    assert len(workload.pods) == 208
    assert sorted(workload.pods[:100].tolist()) == list(range(100))
    assert sorted(workload.node_rank.tolist()) == list(range(10))
    fewer = tune(pods, nodes, 42, target=0.25)
    assert len(fewer.pods) == 40
    assert len(set(fewer.pods.tolist())) == 40


def test_the_synthetic_cluster_has_the_trace_s_proportions() -> None:
    nodes = synthetic_nodes(1213)
    assert sum(node.gpu_count for node in nodes) == 6212
    assert sum(node.gpu_model == "G2" for node in nodes) == 549
    count = pods_for_load(nodes, 1.3)
    pods = synthetic_pods(count, np.random.default_rng(0), named_models=0.5)
    assert 1.2 < sum(pod.gpu.total_milli for pod in pods) / 6_212_000 < 1.4
    assert 0.4 < np.mean([bool(pod.gpu.models) for pod in pods if pod.gpu.count]) < 0.6
    assert pods == synthetic_pods(count, np.random.default_rng(0), named_models=0.5)
    with pytest.raises(UserError, match="named_models"):
        synthetic_pods(1, np.random.default_rng(0), named_models=2.0)
