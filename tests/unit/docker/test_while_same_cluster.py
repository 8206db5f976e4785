"""The program that ends Karpenter when a new cluster has taken the old one's place, run as the container runs it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.kwok import until
from support.scripted_api import ScriptedApi, listing, write_kubeconfig

SCRIPT = Path(__file__).parents[3] / "docker/while_same_cluster.py"
QUICK = (
    "import runpy, sys; main = runpy.run_path(sys.argv[1])['main']; main.__globals__['_LOOK_S'] = 0.1; "
    "sys.exit(main(sys.argv[2:]))"
)


def cluster(uid: str) -> dict:
    """Return the list that tells clusters apart."""
    return listing({"metadata": {"name": "kube-system", "uid": uid, "resourceVersion": "1"}})


@pytest.fixture
def api():
    with ScriptedApi() as server:
        server.on_list("/api/v1/namespaces", cluster("first"))
        yield server


def run(api: ScriptedApi, folder: Path, code: str) -> subprocess.Popen:
    kubeconfig = write_kubeconfig(folder, api.server)
    command = [sys.executable, "-c", QUICK, str(SCRIPT), sys.executable, "-c", code]
    return subprocess.Popen(
        command, env=os.environ | {"KUBECONFIG": str(kubeconfig)}, stdout=subprocess.PIPE, text=True
    )


FOREVER = "import time, sys; print('begun', flush=True); time.sleep(600)"


def test_a_new_cluster_ends_the_command_with_a_status_that_restarts_it(api, tmp_path):
    with run(api, tmp_path, FOREVER) as process:
        assert process.stdout.readline() == "begun\n"
        until(lambda: len(api.asked("GET", "/api/v1/namespaces")) > 2, "it looks again and again")
        assert process.poll() is None
        api.down()
        api.up()
        assert process.poll() is None, "the same cluster, after a restart"
        api.on_list("/api/v1/namespaces", cluster("second"))
        assert process.wait(30) == 1
        assert "another cluster answers" in process.stdout.read()


def test_sigterm_reaches_the_command_and_its_status_is_handed_on(api, tmp_path):
    code = f"import signal, sys; signal.signal(15, lambda *_: sys.exit(7)); {FOREVER}"
    with run(api, tmp_path, code) as process:
        assert process.stdout.readline() == "begun\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 7


def test_a_command_that_ends_by_itself_ends_it(api, tmp_path):
    with run(api, tmp_path, "import sys; sys.exit(3)") as process:
        assert process.wait(30) == 3
