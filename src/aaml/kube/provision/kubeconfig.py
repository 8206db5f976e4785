"""Kubeconfig files that hold everything they need: certificates inside, readable by their owner alone."""

import base64
from pathlib import Path
from typing import Any

from aaml.files import write_text
from aaml.kube.provision.paths import PRIVATE
from aaml.yaml_text import yaml_text


def mutual_tls(name: str, port: int, pki: Path) -> dict[str, Any]:
    """Return a kubeconfig of an administrator with the certificates of kwokctl's folder `pki`."""

    def data(file: str) -> str:
        return base64.b64encode((pki / file).read_bytes()).decode("ascii")

    cluster = {"server": f"https://127.0.0.1:{port}", "certificate-authority-data": data("ca.crt")}
    user = {"client-certificate-data": data("admin.crt"), "client-key-data": data("admin.key")}
    return _document(name, cluster, user)


def plain(name: str, server: str) -> dict[str, Any]:
    """Return a kubeconfig of a server that asks for no credentials, as the all-in-one image does on loopback."""
    return _document(name, {"server": server}, {})


def with_token(document: dict[str, Any], token: str) -> dict[str, Any]:
    """Return the same kubeconfig for another identity: a bearer token instead of the administrator's certificate."""
    users = [{"name": user["name"], "user": {"token": token}} for user in document["users"]]
    return {**document, "users": users}


def _document(name: str, cluster: dict[str, str], user: dict[str, str]) -> dict[str, Any]:
    context = f"aaml-{name}"
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": context, "cluster": cluster}],
        "users": [{"name": context, "user": user}],
        "contexts": [{"name": context, "context": {"cluster": context, "user": context, "namespace": "default"}}],
        "current-context": context,
    }


def write(path: Path, document: dict[str, Any]) -> None:
    """Write a kubeconfig with mode 0600."""
    write_text(path, yaml_text(document), field="kubeconfig", mode=PRIVATE)
