"""`aaml doctor`: what a person reads about a machine, and how a script hears of it."""

import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from aaml.cli import run
from aaml.doctor import checks
from aaml.doctor.finding import Finding, broken

MD5_OF_HELLO = "5d41402abc4b2a76b9719d911017c592"  # RFC 1321's algorithm on "hello", as md5sum prints it


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand in an empty folder, with nothing on PATH, nothing built and no cluster."""
    monkeypatch.chdir(tmp_path)
    for name in ("AAML_CACHE", "AAML_STATE"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "none"))
    monkeypatch.delenv("AAML_TRACES", raising=False)
    return tmp_path


def test_a_bare_machine_is_told_what_is_missing_and_what_mends_it(
    bare: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("doctor", ["--json"]) == 0  # nothing that every command needs
    said = json.loads(capsys.readouterr().out)
    assert said["ok"]
    missing = {each["name"]: each["mend"] for each in said["findings"] if each["state"] == "missing"}
    assert missing.pop("KWOK programs").startswith("aaml cluster build")
    assert missing.pop("Karpenter").startswith("aaml cluster build --autoscaler")
    assert missing.pop("docker").startswith("apt-get install docker")
    assert missing == {
        "clusters": "aaml cluster up", "kubeconfig": "aaml cluster up", "GPU": "",
        "openb": "aaml trace fetch openb", "browser": "make browser",
    }  # fmt: skip
    assert {"python", "aaml", "torch", "numba", "extra live", "models", "cache"} <= {
        each["name"] for each in said["findings"] if each["state"] == "ok"
    }
    assert list(bare.iterdir()) == []  # it looks, and leaves nothing behind


def test_what_every_command_needs_is_broken_where_a_folder_is_a_file(
    bare: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (bare / "runs").write_text("a file", encoding="utf-8")
    assert run("doctor", []) == 1
    said = capsys.readouterr().out
    assert "\x1b" not in said  # plain text in a pipe
    row = next(line for line in said.splitlines() if "broken" in line)
    assert row.split()[:2] == ["runs", "broken"]
    assert "is broken" in said.splitlines()[-1]


def test_packages_are_held_to_their_requirements() -> None:
    found = {
        each.name: each
        for each in checks.packages(["numpy>=1", "numba>=999", "not-there-at-all", 'torchrl>=999; extra == "dev"'])
    }
    assert found["numpy"].state == "ok"
    assert (found["numba"].state, found["not-there-at-all"].state) == ("broken", "broken")
    assert "numba>=999" in found["numba"].mend
    assert "torchrl" not in found  # an extra's
    assert broken(list(found.values()))


def test_a_pytorch_that_does_not_load_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    (finding,) = checks.gpu()
    assert (finding.state, finding.mend) == ("broken", "make setup")


def test_files_of_a_trace_are_held_to_their_checksums(tmp_path: Path) -> None:
    listed = {"a.csv": MD5_OF_HELLO, "b.csv": MD5_OF_HELLO, "c.csv": MD5_OF_HELLO}
    (tmp_path / "a.csv").write_text("hello", encoding="utf-8")
    (tmp_path / "b.csv").write_text("hullo", encoding="utf-8")
    finding = checks.whole("openb", tmp_path, listed, "fetch it")
    assert finding.state == "missing"
    assert finding.found.startswith("1 of 3 files are missing")
    assert "1 of 3 files are damaged" in finding.found
    for name in listed:
        (tmp_path / name).write_text("hello", encoding="utf-8")
    assert checks.whole("openb", tmp_path, listed, "fetch it").state == "ok"


@pytest.fixture
def api_server() -> Iterator[int]:
    """Serve what an API server says of its version; return the port."""

    class Version(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Version)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_port
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_kubeconfig_is_asked_whether_its_server_answers(tmp_path: Path, api_server: int) -> None:
    def look(port: int) -> Finding:
        cluster = {"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}
        context = {"name": "c", "context": {"cluster": "c", "user": "c"}}
        file = tmp_path / f"config-{port}"
        file.write_text(
            json.dumps({
                "clusters": [cluster], "contexts": [context], "users": [{"name": "c", "user": {}}],
                "current-context": "c",
            }),
            encoding="utf-8",
        )  # fmt: skip
        return checks.kubeconfig(["mine"], file)

    assert look(api_server).state == "ok"
    silent = look(1)  # the port that nobody may take
    assert silent.state == "missing"
    assert "no Kubernetes API answers at http://127.0.0.1:1" in silent.found
    assert silent.mend == "export KUBECONFIG=$(aaml cluster kubeconfig --path --name mine)"
    absent = checks.kubeconfig([], tmp_path / "none")
    assert (absent.state, absent.mend) == ("missing", "aaml cluster up")
