"""Kueue as one more process of a KWOK cluster: started with it again, taken down with it."""

import base64
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from aaml.errors import UserError
from aaml.files import write_bytes, write_text
from aaml.folders import private_dir
from aaml.kube.provision import KwokCluster
from aaml.kube.provision.components import Component
from aaml.kube.provision.install import CRDS
from aaml.kube.provision.paths import PRIVATE
from aaml.kube.provision.ports import free_port
from aaml.kube.provision.waits import says_ready, until
from aaml.kube.transport import CONFLICT, NOT_FOUND, Transport, allowing
from aaml.kueue.build import PROGRAM, build, manifests
from aaml.kueue.objects import NAMESPACE, SECRET, WEBHOOKS, configuration, on_loopback
from aaml.yaml_text import yaml_text

_SETTINGS, _CERTIFICATES = "kueue.yaml", "kueue-certificates"
_REGISTRATION = "/apis/admissionregistration.k8s.io/v1"
_PATHS = {
    "Namespace": "/api/v1/namespaces",
    "CustomResourceDefinition": CRDS,
    "Secret": f"/api/v1/namespaces/{NAMESPACE}/secrets",
    "Service": f"/api/v1/namespaces/{NAMESPACE}/services",
    **{kind: f"{_REGISTRATION}/{plural}" for kind, plural in WEBHOOKS.items()},
}
_FILES = ("ca.crt", "tls.crt", "tls.key")


def start(cluster: KwokCluster, *, features: Mapping[str, bool] | None = None, wait_s: float = 60.0) -> None:
    """Start Kueue on a cluster that runs, or again after `stop`; compiles it where the cache has no program.

    `features` are feature gates of its first start. Returns once it is ready. Its log is `logs/kueue.log` in the folder
    of the cluster, and its ports are on 127.0.0.1. Raises `UserError` with its last words where it does not start.
    """
    known = cluster.components().get(PROGRAM)
    if known is not None and known.pid() is not None:
        raise UserError(f"queue: Kueue is on cluster {cluster.name!r} already")
    program, settings, certificates = build(), _settings(cluster, features), cluster.directory / _CERTIFICATES
    api = cluster.api()
    with api.explained():
        for each in on_loopback(manifests(), settings["webhook"]["port"]):
            with allowing(CONFLICT):  # there already
                api.request("POST", _PATHS[each["kind"]], each)
    command = (str(program), f"--config={cluster.directory / _SETTINGS}", "--zap-log-level=2")
    component = known or Component(PROGRAM, command, {"KUBECONFIG": str(cluster.kubeconfig)}, cluster.directory)
    if known is None:
        cluster.add_component(component)
    else:
        component.start()

    def has_certificates() -> bool:
        _check_alive(component)
        with api.explained():
            return _copy_certificates(api, certificates)

    until(has_certificates, wait_s, "Kueue made no certificates")
    wait_ready(cluster, wait_s)


def wait_ready(cluster: KwokCluster, wait_s: float) -> None:
    """Wait until Kueue answers the API server: until then no pod and no Job can be made."""
    component, port = (
        cluster.component(PROGRAM),
        _settings(cluster)["health"]["healthProbeBindAddress"].rpartition(":")[2],
    )

    def ready() -> bool:
        _check_alive(component)
        return says_ready(int(port))

    until(ready, wait_s, "Kueue was not ready")


def stop(cluster: KwokCluster, *, kill: bool = False) -> None:
    """Stop Kueue, and delete the webhooks first that call it: without it no pod and no Job could be made."""
    component = cluster.component(PROGRAM)
    api = cluster.api()
    with api.explained():
        for each in manifests():
            if each["kind"] in WEBHOOKS:
                with allowing(NOT_FOUND):
                    api.request("DELETE", f"{_PATHS[each['kind']]}/{each['metadata']['name']}")
    component.stop(kill=kill)


def _check_alive(component: Component) -> None:
    if component.pid() is None:
        raise UserError(f"queue: Kueue has ended: {component.last_words()}")


def _settings(cluster: KwokCluster, features: Mapping[str, bool] | None = None) -> dict[str, Any]:
    """Return its configuration, written down the first time: its ports stay what they are."""
    file = cluster.directory / _SETTINGS
    if not file.exists():
        certificates = private_dir(cluster.directory / _CERTIFICATES)
        made = configuration(certificates, free_port(), free_port(), free_port(), features)
        write_text(file, yaml_text(made), mode=PRIVATE)
    return dict(yaml.safe_load(file.read_text(encoding="utf-8")))


def _copy_certificates(api: Transport, folder: Path) -> bool:
    """Write what its Secret holds to files, as a kubelet would; say whether it holds them already."""
    data = json.loads(api.request("GET", f"{_PATHS['Secret']}/{SECRET}")).get("data", {})
    if not all(data.get(file) for file in _FILES):
        return False
    for file in _FILES:
        write_bytes(folder / file, base64.b64decode(data[file]), mode=PRIVATE)
    return True
