"""The scripts at work on the in-process cluster, as a person starts them."""

import csv
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from aaml.errors import UserError
from aaml.learning.agents import make_agent
from aaml.learning.config import LIVE
from aaml.learning.policy import NetworkPolicy
from aaml.live.agents import SCHEDULERS
from aaml.live.in_process import in_process_cluster
from aaml.live.settings import Folders
from aaml.live.table import KubeInfo
from aaml.live.workload import WorkloadDeploymentSimulator, run_together
from support.processes import Process, free_port, probe

ROOT = Path(__file__).parents[2]
COMMON = {"1. CSR", "3. Cluster Variance", "4. Actions"}
CURVES = {
    "dqn": COMMON | {"2. Loss/Train"},
    "gnn": COMMON | {"2. Loss/Train"},
    "acdqn": COMMON | {"2. Advantage", "5. Actor Loss", "6. Critic Loss"},
    "acgnn": COMMON | {"2. Advantage", "5. Actor Loss", "6. Critic Loss"},
}
MODELS = {
    "dqn": ["DQN_Model_t.pth"],
    "gnn": ["GNN_Model_t.pth"],
    "acdqn": ["Actor_acdqn_t.pth", "Critic_acdqn_t.pth"],
    "acgnn": ["Actor_acgnn_t.pth", "Critic_acgnn_t.pth"],
}


def folders(root):
    return Folders(root / "tlogs", root / "models", root / "logs", root / "data", root / "deployment_data")


def curves(directory):
    events = EventAccumulator(str(directory), size_guidance={"tensors": 0})
    events.Reload()
    return events


def together(root, kind, **settings):
    """Run an agent and a workload of at least 200 pods in one process; returns scheduler, simulator and cluster."""
    cluster, where = in_process_cluster(10), folders(root)
    scheduler = SCHEDULERS[kind](cluster=cluster, tensorboard_name="t", folders=where, **settings)
    simulator = WorkloadDeploymentSimulator(cluster=cluster, seed=1, folders=where)
    run_together(scheduler, simulator, cluster)
    return scheduler, simulator, cluster


@pytest.mark.parametrize("kind", list(SCHEDULERS))
def test_each_agent_places_the_workload_learns_and_leaves_curves_and_a_model(tmp_path, kind):
    _, simulator, cluster = together(tmp_path, kind)
    (only,) = simulator.rounds
    assert only.pods >= 200
    assert only.pending == {}
    assert cluster.call(lambda state: len(state.placements)) == only.pods
    control_plane = cluster.call(lambda state: state.index["kwok-ctl-node-0"])
    assert cluster.call(lambda state: len(state.node_pods[control_plane])) == 0
    events = curves(tmp_path / "tlogs" / f"{kind}_t")
    assert set(events.Tags()["tensors"]) >= CURVES[kind]
    assert [point.step for point in events.Tensors("1. CSR")] == list(range(1, only.pods + 1))
    assert sorted(path.name for path in (tmp_path / "models").iterdir()) == MODELS[kind]
    lines = [json.loads(line) for path in (tmp_path / "logs").glob("*.jsonl") for line in path.open()]
    assert sum(line["kind"] == "decision" for line in lines) == only.pods
    assert sum(line["kind"] == "bind" and line["status"] == "bound" for line in lines) == only.pods


def test_a_saved_model_goes_on_where_it_was(tmp_path):
    first, _, _ = together(tmp_path / "1", "dqn")
    cluster = in_process_cluster(10)
    again = SCHEDULERS["dqn"](cluster=cluster, folders=folders(tmp_path / "2"))
    again.load_model(first.saved[0])
    assert again.agent.decisions == first.agent.decisions > 200
    assert again.agent.epsilon == pytest.approx(first.agent.epsilon)


def test_the_same_seed_takes_the_same_decisions(tmp_path):
    logs = []
    for name in ("1", "2"):
        together(tmp_path / name, "acdqn", seed=5)
        lines = (json.loads(line) for path in (tmp_path / name / "logs").glob("*.jsonl") for line in path.open())
        logs.append([(line["pod"], line["node"]) for line in lines if line["kind"] == "decision"])
    assert logs[0] == logs[1]


@pytest.mark.parametrize("kind", LIVE)
def test_what_only_acts_is_a_policy_alone_and_chooses_as_the_agent_would(kind, tmp_path):
    learned = make_agent(LIVE[kind], seed=1)
    file = learned.save(str(tmp_path), "x")[0]
    for acting, agent in (
        (SCHEDULERS[kind](learn=False, model=file, folders=folders(tmp_path)), learned),
        (SCHEDULERS[kind](learn=False, seed=3, folders=folders(tmp_path)), make_agent(LIVE[kind], seed=3)),
    ):
        assert type(acting.policy) is NetworkPolicy
        own, others = (each.network.parameters() for each in (acting.policy, agent))
        assert all(torch.equal(a, b) for a, b in zip(own, others, strict=True))
        with pytest.raises(UserError, match="no_learn"):
            acting.populate_replay("data/none.csv")
    other = next(each for each in LIVE if each != kind)
    for wrong, words in (({"which": other}, other), ({"which": kind, "hidden_layers": 7}, "width 7")):
        which = wrong.pop("which")
        with pytest.raises(UserError, match=words):
            _ = SCHEDULERS[which](learn=False, model=file, **wrong).policy


def test_a_run_that_only_acts_leaves_no_model(tmp_path):
    together(tmp_path, "dqn", learn=False)
    assert not (tmp_path / "models").exists()


def test_the_table_of_an_in_process_cluster(tmp_path):
    _, simulator, cluster = together(tmp_path, "dqn")
    text = KubeInfo(cluster=cluster).table(width=100, height=40)
    assert f"{simulator.rounds[0].pods} pods" in text
    assert "kwok-std-node-9" in text


def start(script, folder, *flags):
    command = [sys.executable, str(ROOT / "scripts" / script), *flags]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@pytest.mark.parametrize(("sent", "status"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_ends_a_run_in_good_order(tmp_path, sent, status):
    process = start(
        "scheduler_dqn.py", tmp_path, "--cluster", "sim", "--sim_rounds", "100000", "--tensorboard_name", "t"
    )
    try:
        deadline = time.monotonic() + 300
        while not list(tmp_path.glob("logs/*.jsonl")) or not next(tmp_path.glob("logs/*.jsonl")).stat().st_size:
            assert process.poll() is None, process.communicate()[0]
            assert time.monotonic() < deadline
            time.sleep(0.2)
        process.send_signal(sent)
        output, _ = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == status, output
    assert "Traceback" not in output
    assert (tmp_path / "models" / "DQN_Model_t.pth").is_file()


@pytest.mark.parametrize("script", ["scheduler_dqn.py", "actorcritic_gnn.py"])
def test_a_scheduler_that_learns_becomes_ready_and_tells_its_metrics(tmp_path, script):
    port = free_port()
    flags = ["--cluster", "sim", "--sim_rounds", "100000", "--health_port", str(port)]
    with Process([sys.executable, str(ROOT / "scripts" / script), *flags], tmp_path / "log") as scheduler:
        scheduler.wait_for("places the pods of custom-scheduler on 10 nodes")
        deadline = time.monotonic() + 60
        while 'result="scheduled"} ' not in probe(port, "/metrics")[1]:
            assert time.monotonic() < deadline, probe(port, "/metrics")
            time.sleep(0.2)
        assert probe(port, "/readyz") == probe(port, "/healthz") == (200, "ok")
        assert scheduler.stop() == 0


def test_the_simulator_alone_places_its_workload_and_plays_it_back(tmp_path):
    script = str(ROOT / "scripts" / "workload_deployment_simulator.py")
    flags = ["--cluster", "sim", "--cluster_resets", "0"]
    first = subprocess.run(
        [sys.executable, script, *flags, "--seed", "2"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert first.returncode == 0, first.stderr
    assert "no pod pending" in first.stderr
    (written,) = (tmp_path / "deployment_data").glob("data_*.csv")
    with written.open() as file:
        pods = sum(int(row["pod_count"]) for row in csv.DictReader(file))
    assert f"{pods} pods" in first.stdout
    again = subprocess.run(
        [sys.executable, script, *flags, "--playback", str(written)],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert again.returncode == 0, again.stderr
    assert f"{pods} pods" in again.stdout


def test_pods_that_fit_nowhere_are_told_and_end_with_status_1(tmp_path):
    (tmp_path / "big.csv").write_text("name,replicas,cpu_request,mem_request\nbig,3,40,1Gi\n")
    flags = ["--sim_nodes", "2", "--shapes", "big.csv", "--cluster_resets", "0", "--cpu_load", "1"]
    script = str(ROOT / "scripts" / "workload_deployment_simulator.py")
    result = subprocess.run(
        [sys.executable, script, "--cluster", "sim", *flags], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert result.returncode == 1, result.stderr
    assert "1 pods pending (big-" in result.stderr
