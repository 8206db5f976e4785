"""The container's entry point and supervisord, run natively: real Jupyter Lab, real TensorBoard, a clean end."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import psutil
import pytest

from support.scripted_api import ScriptedApi, listing, node

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
ENTRYPOINT = str(ROOT / "docker" / "entrypoint.sh")
TOKEN = "a-token-of-the-test"
SCHEDULERS = {
    "dqn": "scheduler_dqn.py",
    "gnn": "scheduler_gnn.py",
    "acdqn": "actorcritic_dqn.py",
    "acgnn": "actorcritic_gnn.py",
    "simulator": "workload_deployment_simulator.py",
}


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def environment(folder, **settings):
    """The container's settings for a folder of this machine, on free ports of 127.0.0.1."""
    kept = {name: os.environ[name] for name in ("HOME", "LANG") if name in os.environ}
    return kept | {
        "PATH": f"{BIN}:/usr/local/bin:/usr/bin:/bin",
        "SHELL": "/bin/bash",
        "AAML_WORK_DIR": str(folder),
        "AAML_RUN_DIR": str(folder / "run"),
        "JUPYTER_PORT": str(free_port()),
        "TENSORBOARD_PORT": str(free_port()),
        "JUPYTER_TOKEN": TOKEN,
        "NODE_COUNT": "0",
        "JUPYTER_CONFIG_DIR": str(folder / "jupyter"),
        "JUPYTER_DATA_DIR": str(folder / "jupyter"),
        "IPYTHONDIR": str(folder / "ipython"),
        "OMP_NUM_THREADS": "1",
        **settings,
    }


class Container:
    """The entry point's process with everything below it."""

    def __init__(self, folder, **settings):
        self.environ = environment(folder, **settings)
        self.output = folder / "output.log"
        with self.output.open("ab") as stream:
            self.process = subprocess.Popen(
                [ENTRYPOINT], env=self.environ, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream
            )
        self.descendants = set()

    def remember_descendants(self):
        self.descendants |= set(psutil.Process(self.process.pid).children(recursive=True))
        return self.descendants

    def command_lines(self):
        """One line for each descendant that still runs."""
        lines = []
        for process in self.remember_descendants():
            with contextlib.suppress(psutil.NoSuchProcess):  # a zombie's too: it has ended, nobody has asked yet
                lines.append(" ".join(process.cmdline()))
        return lines

    def supervisorctl(self, *arguments):
        command = [BIN / "supervisorctl", "-c", ROOT / "docker" / "supervisord.conf", *arguments]
        return subprocess.run(command, env=self.environ, capture_output=True, text=True, check=False, timeout=60).stdout

    def url(self, program, path):
        return f"http://127.0.0.1:{self.environ[f'{program}_PORT']}{path}"

    def log(self):
        return self.output.read_text(errors="replace")

    def until(self, condition, what, wait_s=90.0):
        """Return the condition's first true value; fail with the log when the process ends or the time is up."""
        deadline = time.monotonic() + wait_s
        while time.monotonic() < deadline:
            value = condition()
            if value:
                return value
            if self.process.poll() is not None:
                break
            time.sleep(0.1)
        pytest.fail(f"{what} did not come (exit status {self.process.poll()}):\n{self.log()[-3000:]}")

    def stop(self, wait_s=60.0):
        """SIGTERM, as `docker stop` does; return the exit status and the descendants that are still there."""
        if self.process.poll() is None:
            self.remember_descendants()
            self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(timeout=wait_s)
        _, alive = psutil.wait_procs(self.descendants, timeout=5)
        return status, alive

    def clean_up(self):
        with contextlib.suppress(psutil.NoSuchProcess):
            self.remember_descendants()
        for process in [*self.descendants, self.process]:
            with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
                process.kill()
        self.process.wait(timeout=10)


def request(url, *, token=None, host=None, method="GET", body=None):
    """Return the status and the decoded JSON of an answer; (0, None) while nobody listens."""
    headers = {"Content-Type": "application/json"}
    if token is not None:
        headers["Authorization"] = f"token {token}"
    if host is not None:
        headers["Host"] = host
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data, headers, method=method), timeout=20) as answer:
            text = answer.read()
            return answer.status, json.loads(text) if "json" in answer.headers["Content-Type"] else text
    except urllib.error.HTTPError as error:
        error.close()
        return error.code, None
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return 0, None


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    """One container for the tests that only look, with a curve written before it starts."""
    folder = tmp_path_factory.mktemp("container")
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(folder / "tlogs" / "dqn_test")) as writer:
        for step, value in enumerate((0.5, -1.25, 3.0)):
            writer.add_scalar("1. CSR", value, step)
    container = Container(folder)
    try:
        yield container
    finally:
        container.clean_up()


def test_jupyter_lab_answers_with_the_token(running):
    url = running.url("JUPYTER", "/api/status")
    running.until(lambda: request(url, token=TOKEN)[0] == 200, "Jupyter's answer")
    status, answer = request(url, token=TOKEN)
    assert status == 200
    assert answer["kernels"] == 0
    status, page = request(running.url("JUPYTER", f"/lab?token={TOKEN}"))
    assert status == 200
    assert b"JupyterLab" in page


def test_jupyter_refuses_without_the_token_and_under_a_foreign_name(running):
    url = running.url("JUPYTER", "/api/status")
    running.until(lambda: request(url, token=TOKEN)[0] == 200, "Jupyter's answer")
    assert request(url)[0] == 403
    assert request(url, token="AAML")[0] == 403
    assert request(url, token=TOKEN, host="attacker.example")[0] == 403


def test_the_token_is_in_no_command_line(running):
    running.until(lambda: "jupyter" in running.supervisorctl("status"), "supervisord")
    assert not any(TOKEN in line for line in running.command_lines())


def test_tensorboard_serves_a_curve_that_torch_wrote(running):
    url = running.url("TENSORBOARD", "/data/plugin/scalars/scalars?run=dqn_test&tag=1.%20CSR")
    points = running.until(lambda: request(url)[1], "the curve")
    assert [(step, value) for _, step, value in points] == [(0, 0.5), (1, -1.25), (2, 3.0)]


def test_both_listen_on_the_given_address_alone(running):
    for program in ("JUPYTER", "TENSORBOARD"):
        running.until(lambda p=program: request(running.url(p, "/"))[0], program)
    addresses = set()
    for process in running.remember_descendants():
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            addresses |= {c.laddr.ip for c in process.net_connections("inet") if c.status == psutil.CONN_LISTEN}
    assert addresses <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}


def test_the_schedulers_are_there_and_wait_to_be_asked_for(running):
    running.until(lambda: running.supervisorctl("status").count("RUNNING") == 2, "both programs")
    states = dict(line.split()[:2] for line in running.supervisorctl("status").splitlines())
    assert states == dict.fromkeys((*SCHEDULERS, "nodes"), "STOPPED") | {"jupyter": "RUNNING", "tensorboard": "RUNNING"}


def test_a_stop_ends_everything_kernels_and_terminals_too(tmp_path):
    container = Container(tmp_path)
    try:
        jupyter = container.url("JUPYTER", "/api")
        container.until(lambda: request(f"{jupyter}/status", token=TOKEN)[0] == 200, "Jupyter")
        container.until(lambda: request(container.url("TENSORBOARD", "/data/environment"))[0] == 200, "TensorBoard")
        assert request(f"{jupyter}/kernels", token=TOKEN, method="POST", body={"name": "python3"})[0] == 201
        assert request(f"{jupyter}/terminals", token=TOKEN, method="POST", body={})[0] == 200
        commands = container.command_lines()
        assert any("ipykernel" in command for command in commands)
        assert any("bash" in command for command in commands)
        assert container.stop() == (0, [])
    finally:
        container.clean_up()


STUB = """
import signal, sys, time
from pathlib import Path
me = Path(sys.argv[0]).stem
def end(*_):
    Path(f"{me}.end").touch()
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
Path(f"{me}.start.part").write_text("\\n".join(sys.argv[1:]))
Path(f"{me}.start.part").rename(f"{me}.start")
time.sleep(600)
"""


@pytest.fixture
def stubs(tmp_path):
    """A home whose scripts only note their flags and their end: what runs when, without a cluster."""
    home = tmp_path / "home"
    (home / "scripts").mkdir(parents=True)
    (home / "docker").symlink_to(ROOT / "docker")
    for script in ("create_nodes.py", *SCHEDULERS.values()):
        (home / "scripts" / script).write_text(STUB)
    return home


def test_the_environment_chooses_schedulers_and_their_flags(tmp_path, stubs):
    settings = {"AAML_AUTOSTART": "dqn, simulator", "AAML_DQN_FLAGS": "--hidden_layers 64 --progress"}
    container = Container(tmp_path, AAML_HOME=str(stubs), **settings)
    try:
        start = tmp_path / "scheduler_dqn.start"
        container.until(start.exists, "the DQN scheduler")
        container.until((tmp_path / "workload_deployment_simulator.start").exists, "the simulator")
        assert start.read_text().split() == ["--hidden_layers", "64", "--progress"]
        assert "acgnn: started" in container.supervisorctl("start", "acgnn")
        assert container.stop() == (0, [])
        assert (tmp_path / "scheduler_dqn.end").exists(), "a scheduler must hear SIGTERM to save its model"
        assert (tmp_path / "actorcritic_gnn.end").exists()
        assert not (tmp_path / "scheduler_gnn.start").exists()
    finally:
        container.clean_up()


def test_a_sigterm_while_the_nodes_are_made_ends_at_once(tmp_path, stubs):
    container = Container(tmp_path, AAML_HOME=str(stubs), NODE_COUNT="7")
    try:
        container.until((tmp_path / "create_nodes.start").exists, "create_nodes.py")
        container.remember_descendants()
        assert (tmp_path / "create_nodes.start").read_text() == "--node_count=7"
        assert container.stop(wait_s=20) == (143, [])
    finally:
        container.clean_up()


def entrypoint(folder, *arguments, **settings):
    environ = environment(folder, **settings)
    command = [ENTRYPOINT, *arguments]
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=60, cwd=folder)


def test_an_unknown_scheduler_is_one_clear_line(tmp_path):
    answer = entrypoint(tmp_path, AAML_AUTOSTART="dqn,ppo")
    assert answer.returncode == 2
    assert answer.stderr.splitlines() == [
        "entrypoint: error: AAML_AUTOSTART: 'ppo' is not accepted; expected some of: dqn, gnn, acdqn, acgnn, simulator"
    ]


@pytest.mark.parametrize("count", ["ten", "-3", "1.5", "1 2"])
def test_a_nonsense_number_of_nodes_is_one_clear_line(tmp_path, count):
    answer = entrypoint(tmp_path, NODE_COUNT=count)
    assert answer.returncode == 2
    assert answer.stderr.splitlines() == [
        f"entrypoint: error: NODE_COUNT: {count!r} is not accepted; expected a whole number, 0 or more"
    ]


def test_a_scheduler_with_wrong_flags_ends_as_fatal_and_is_not_started_again(tmp_path):
    container = Container(tmp_path, AAML_AUTOSTART="gnn", AAML_GNN_FLAGS="--hiden 3")
    try:
        container.until(lambda: "FATAL" in container.supervisorctl("status", "gnn"), "the end of the agent")
        assert "--hiden" in container.log()
        assert container.log().count("spawned: 'gnn'") == 1
        container.until(lambda: health(container) == (1, "gnn: FATAL; the log says why"), "an unhealthy container")
    finally:
        container.clean_up()


def kubeconfig_of(api, folder):
    file = folder / "kubeconfig"
    file.write_text((ROOT / "docker" / "kubeconfig").read_text().replace("http://kwok-cluster:8080", api.server))
    return str(file)


def health(container, **settings):
    """The exit status of the health check and what it says, with the environment that the container has."""
    environ = container.environ | settings
    command = [sys.executable, ROOT / "docker" / "healthcheck.py"]
    answer = subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=60)
    return answer.returncode, answer.stdout.strip()


def test_a_new_cluster_gets_its_nodes_again_and_without_them_the_container_is_unhealthy(tmp_path, stubs):
    for name in ("keep_nodes.py", "supervisord.conf"):
        assert (stubs / "docker" / name).is_file()
    (stubs / "scripts" / "create_nodes.py").write_text("import sys; open('made', 'a').write(sys.argv[1] + '\\n')")
    with ScriptedApi() as api:
        api.on_list("/api/v1/nodes", listing(node("kwok-std-node-0")))
        kubeconfig = kubeconfig_of(api, tmp_path)
        container = Container(tmp_path, AAML_HOME=str(stubs), NODE_COUNT="7", KUBECONFIG=kubeconfig)
        made = tmp_path / "made"
        try:
            container.until(lambda: health(container) == (0, ""), "health")
            assert made.read_text().split() == ["--node_count=7"], "the entry point makes them once"
            api.on_list("/api/v1/nodes", listing())
            assert health(container) == (1, "the cluster has no nodes")
            assert health(container, NODE_COUNT="0") == (0, "")
            container.until(lambda: made.read_text().count("--node_count=7") >= 2, "the nodes again")
            api.down()
            assert health(container)[0] == 1
            assert container.stop() == (0, [])
        finally:
            container.clean_up()


def test_a_folder_that_cannot_be_written_is_one_clear_line(tmp_path):
    (tmp_path / "models").touch()
    answer = entrypoint(tmp_path)
    assert answer.returncode == 2
    assert len(answer.stderr.splitlines()) == 1
    assert f"{tmp_path}/models" in answer.stderr
    assert "APP_UID" in answer.stderr


def test_nodes_that_cannot_be_made_end_the_container_with_that_status(tmp_path, stubs):
    (stubs / "scripts" / "create_nodes.py").write_text("import sys; sys.exit('no cluster')")
    answer = entrypoint(tmp_path, AAML_HOME=str(stubs), NODE_COUNT="3")
    assert (answer.returncode, answer.stderr) == (1, "no cluster\n")


def test_arguments_are_run_instead(tmp_path):
    answer = entrypoint(tmp_path, "bash", "-c", "echo $0 $1", "one two", "three")
    assert (answer.returncode, answer.stdout) == (0, "one two three\n")


def test_every_program_is_a_script_of_the_project():
    text = (ROOT / "docker" / "supervisord.conf").read_text()
    for name, script in SCHEDULERS.items():
        block = text.split(f"[program:{name}]")[1].split("[program:")[0]
        assert f"/scripts/{script} " in block
        assert (ROOT / "scripts" / script).is_file(), f"scripts/{script} is missing"
