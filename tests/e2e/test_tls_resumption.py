"""Connections to a real API server: handshakes are resumed, and certificates renewed on disk are taken."""

import base64
import os
import shutil
from pathlib import Path

import pytest
import yaml

from aaml.kube.provision import KwokCluster
from aaml.kube.transport import Transport, Unreachable

FILES = (("cluster", "certificate-authority"), ("user", "client-certificate"), ("user", "client-key"))


@pytest.fixture
def copied(kwok: KwokCluster, tmp_path: Path) -> Path:
    """Return a kubeconfig whose certificates are files of the test's own."""
    config = yaml.safe_load(Path(kwok.kubeconfig).read_text(encoding="utf-8"))
    for part, name in FILES:
        held = config[f"{part}s"][0][part]
        (tmp_path / name).write_bytes(base64.b64decode(held.pop(f"{name}-data")))
        held[name] = str(tmp_path / name)
    file = tmp_path / "kubeconfig.yaml"
    file.write_text(yaml.safe_dump(config), encoding="utf-8")
    return file


def asks_anew(transport: Transport) -> bool:
    """Ask something by a new connection; returns whether its handshake was resumed."""
    connections = transport._connections
    assert connections is not None
    connections.close()
    assert b"gitVersion" in transport.request("GET", "/version")
    return bool(connections._idle[-1].session_reused)


def test_every_connection_after_the_first_answer_is_resumed(kwok: KwokCluster) -> None:
    transport = Transport(kwok.kubeconfig)
    assert [asks_anew(transport) for _ in range(3)] == [False, True, True]
    transport.close()


def test_a_lane_resumes_too(kwok: KwokCluster, namespace: str) -> None:
    transport = Transport(kwok.kubeconfig)
    queue, ended = transport.write_queue(1), []
    for name in ("one", "two"):
        body = {"metadata": {"name": name}}
        queue.post(f"/api/v1/namespaces/{namespace}/configmaps", lambda body=body: body, ended.append)
    assert queue.wait_empty(30)
    assert ended == [None, None]
    assert asks_anew(transport)
    transport.close()


def test_renewed_certificates_are_read(copied: Path) -> None:
    transport = Transport(copied)
    assert [asks_anew(transport) for _ in range(2)] == [False, True]
    certificate = copied.parent / "client-certificate"
    os.utime(certificate, ns=(0, certificate.stat().st_mtime_ns + 1_000_000_000))
    assert [asks_anew(transport) for _ in range(2)] == [False, True]
    certificate.write_text("being written", encoding="utf-8")
    assert asks_anew(transport)  # the one that was read before
    transport.close()


def test_a_server_of_another_authority_is_refused(copied: Path) -> None:
    shutil.copy(copied.parent / "client-certificate", copied.parent / "certificate-authority")
    with pytest.raises(Unreachable, match="TLS fails"):
        Transport(copied).request("GET", "/version")
