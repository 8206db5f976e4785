"""Fetching the trace from a folder or a server: whole files only, mistakes in one line."""

import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from aaml.errors import UserError
from aaml.workload import fetch as module
from aaml.workload.fetch import fetch, is_whole, openb_checksums

FILES = {"nodes.csv": b"sn,gpu\n", "pods.csv": b"name\np-0\n"}


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    import hashlib

    folder = tmp_path / "source"
    folder.mkdir()
    for name, content in FILES.items():
        (folder / name).write_bytes(content)
    sums = {name: hashlib.md5(content).hexdigest() for name, content in FILES.items()}
    monkeypatch.setattr(module, "openb_checksums", lambda: sums)
    return folder


@pytest.fixture
def server(source: Path) -> Iterator[str]:
    httpd = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(source)))
    thread = threading.Thread(target=httpd.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{httpd.server_address[1]}"
    httpd.shutdown()
    thread.join()
    httpd.server_close()


def test_the_shipped_list_names_two_node_lists_and_23_pod_lists() -> None:
    names = list(openb_checksums())
    assert len(names) == 25
    assert sum(name.startswith("openb_node_list_") for name in names) == 2


def test_files_come_from_a_server_once(server: str, tmp_path: Path) -> None:
    assert fetch(tmp_path / "out", [server]) == ["nodes.csv", "pods.csv"]
    assert (tmp_path / "out" / "pods.csv").read_bytes() == FILES["pods.csv"]
    assert fetch(tmp_path / "out", [server]) == []


def test_a_damaged_file_is_replaced_and_a_damaged_source_passed_over(server: str, tmp_path: Path) -> None:
    bad = tmp_path / "bad"
    bad.mkdir()
    (bad / "pods.csv").write_bytes(b"<html>not here</html>")
    out = tmp_path / "out"
    fetch(out, [server])
    (out / "pods.csv").write_bytes(b"name\n")
    assert fetch(out, [str(bad), server]) == ["pods.csv"]
    assert is_whole(out / "pods.csv", module.openb_checksums()["pods.csv"])


def test_what_cannot_be_had_is_told_with_the_reason_and_leaves_nothing(
    server: str, source: Path, tmp_path: Path
) -> None:
    (source / "pods.csv").write_bytes(b"changed")
    with pytest.raises(UserError, match=r"pods.csv cannot be had.*MD5.*--from"):
        fetch(tmp_path / "out", [server])
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["nodes.csv"]
    (source / "pods.csv").unlink()
    with pytest.raises(UserError, match=r"[Nn]ot [Ff]ound"):
        fetch(tmp_path / "out", [server])
