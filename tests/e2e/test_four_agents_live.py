"""Each of the four agents binds a whole workload on a real cluster; kubectl and TensorBoard tell the same story."""

import json
import re
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from support.kwok import until

ROOT = Path(__file__).parents[2]
COMMON = {"1. CSR", "3. Cluster Variance"}
AGENTS = {
    "dqn": ("scheduler_dqn.py", COMMON | {"2. Loss/Train"}, ["DQN_Model_live"]),
    "gnn": ("scheduler_gnn.py", COMMON | {"2. Loss/Train"}, ["GNN_Model_live"]),
    "acdqn": (
        "actorcritic_dqn.py",
        COMMON | {"2. Advantage", "5. Actor Loss", "6. Critic Loss"},
        ["Actor_acdqn_live", "Critic_acdqn_live"],
    ),
    "acgnn": (
        "actorcritic_gnn.py",
        COMMON | {"2. Advantage", "5. Actor Loss", "6. Critic Loss"},
        ["Actor_acgnn_live", "Critic_acgnn_live"],
    ),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The working directory of the scripts: their tlogs/, models/, logs/ are in it."""
    path = tmp_path_factory.mktemp("work")
    (path / "tlogs").mkdir()
    return path


@pytest.fixture(scope="module")
def tensorboard(folder):
    """A real TensorBoard over the scripts' curves: a function that asks its HTTP API."""
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", "tlogs", "--host", "127.0.0.1", "--port", "0"]
    log = folder / "tensorboard.log"
    with log.open("w") as output:
        process = subprocess.Popen([*command, "--reload_interval", "1"], cwd=folder, stdout=output, stderr=output)
    address = None
    deadline = time.monotonic() + 120
    while address is None:
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        address = re.search(r"http://127\.0\.0\.1:\d+", log.read_text())
        time.sleep(0.2)

    def ask(path):
        with urllib.request.urlopen(f"{address[0]}/data/plugin/{path}", timeout=30) as answer:
            return json.load(answer)

    yield ask
    process.terminate()
    process.wait(30)


def script(name, folder, kwok, *flags):
    command = [sys.executable, str(ROOT / "scripts" / name), "--kubeconfig", str(kwok.kubeconfig), *flags]
    with (folder / f"{name}.out").open("w") as output:
        return subprocess.Popen(command, cwd=folder, stdout=output, stderr=subprocess.STDOUT)


def kubectl(kwok, *arguments):
    command = [str(kwok.kubectl), "--kubeconfig", str(kwok.kubeconfig), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


@pytest.mark.parametrize("agent", list(AGENTS))
def test_an_agent_binds_every_pod_of_a_workload(kwok, namespace, folder, tensorboard, agent):
    name, curves, models = AGENTS[agent]
    who = f"live-{agent}"
    scheduler = script(name, folder, kwok, "--scheduler_name", who, "--tensorboard_name", "live")
    simulator, said = None, folder / f"{name}.out"
    try:
        # Where it takes longer than a minute, deciding begins without it, and ends without having learned.
        until(lambda: "learner process" in said.read_text() or scheduler.poll() is not None, "the learner", 180)
        simulator = script(
            "workload_deployment_simulator.py", folder, kwok, "--scheduler_name", who, "--namespace", namespace,
            "--cluster_resets", "0", "--seed", "1", "--cpu_load", "0.6", "--mem_load", "0.6", "--at_once", "4",
            "--wait_s", "180",
        )  # fmt: skip
        until(lambda: simulator.poll() is not None or scheduler.poll() is not None, "the end of the workload", 400)
        told = (folder / "workload_deployment_simulator.py.out").read_text()
        assert scheduler.poll() is None, said.read_text()
        assert simulator.returncode == 0, told + said.read_text()
        assert "no pod pending" in told
        count = int(re.search(r"(\d+) pods: ", told)[1])
        assert count >= 100

        def listed():
            return json.loads(kubectl(kwok, "get", "pods", "-n", namespace, "-o", "json"))["items"]

        until(lambda: all(pod["status"]["phase"] == "Running" for pod in listed()), "every pod Running")
        seen = listed()
        assert len(seen) == count
        assert {pod["spec"]["schedulerName"] for pod in seen} == {who}
        assert {pod["spec"]["nodeName"] for pod in seen} <= {f"kwok-std-node-{i}" for i in range(10)}
    finally:
        if simulator is not None:
            simulator.kill()
        scheduler.send_signal(signal.SIGTERM)
        ended = scheduler.wait(60)
    output = said.read_text()
    assert ended == 0, output
    assert f"{count} bound" in output
    run = re.search(r"curves in tlogs/(\S+),", output)[1]  # a second try has a number
    tried = run.removeprefix(f"{agent}_live")
    assert all((folder / "models" / f"{model}{tried}.pth").is_file() for model in models)
    until(lambda: set(tensorboard("scalars/tags").get(run, {})) >= curves, f"the curves of {run} in TensorBoard")
    assert "4. Actions" in tensorboard("histograms/tags")[run]
    points = tensorboard(f"scalars/scalars?run={run}&tag=1.%20CSR")  # [wall time, step, value]
    assert points[-1][1] == count
