"""Karpenter as one more process of a KWOK cluster: started with it again, taken down with it."""

import hashlib
import os
from functools import partial
from pathlib import Path
from typing import NoReturn

import yaml

from aaml.errors import UserError
from aaml.files import write_text
from aaml.folders import private_dir, state_dir
from aaml.karpenter.build import PROGRAM, build, crd_files
from aaml.karpenter.pool import Pool
from aaml.kube.provision import KwokCluster
from aaml.kube.provision.components import Component
from aaml.kube.provision.install import CRDS, create_or_replace, served
from aaml.kube.provision.ports import free_port
from aaml.kube.provision.waits import says_ready, until
from aaml.kube.transport import Transport
from aaml.nodes.catalogue import Catalogue
from aaml.nodes.catalogue_file import shipped_catalogue, written_catalogue

TYPES = "instance-types.json"
"""What it may provision, in the cluster's folder."""
_PLURALS = {"KWOKNodeClass": "kwoknodeclasses", "NodePool": "nodepools"}


def start(
    cluster: KwokCluster, pool: Pool | None = None, types: Catalogue | None = None, *, wait_s: float = 60.0
) -> None:
    """Start Karpenter on a cluster that runs, with this NodePool and what it may provision (the catalogue that ships).

    Compiles the program where the cache has none. Returns once it is ready. Its log is `logs/karpenter.log` in the
    cluster's folder, and its ports are on 127.0.0.1. Raises `UserError` with its last words where it does not start.
    """
    pool, types = pool or Pool(), types or shipped_catalogue()
    if PROGRAM in cluster.components():
        raise UserError(f"autoscaler: Karpenter is on cluster {cluster.name!r} already")
    program = build(pool.speed)
    write_text(cluster.directory / TYPES, written_catalogue(types.types))
    _install(cluster.api(), pool, wait_s)
    health_port = free_port()
    environment = _environment(pool, cluster.directory / TYPES, health_port, cluster.kubeconfig)
    component = Component(PROGRAM, (str(program),), environment, cluster.directory)
    cluster.add_component(component)

    def ready() -> bool:
        if component.pid() is None:
            raise UserError(f"autoscaler: Karpenter has ended: {component.last_words()}")
        return says_ready(health_port)

    until(ready, wait_s, "Karpenter was not ready")


def become(
    api: Transport, pool: Pool, types: Catalogue, *, kubeconfig: Path | None = None, health_port: int = 0,
    wait_s: float = 60.0,
) -> NoReturn:  # fmt: skip
    """Let this process become Karpenter on a cluster of KWOK nodes, with this NodePool and what it may provision.

    Without a `kubeconfig` Karpenter looks for one as kubectl does. It answers /readyz on `health_port` of 127.0.0.1 (0:
    a free one). Raises `UserError` where the cluster does not take its objects.
    """
    program, text = build(pool.speed), written_catalogue(types.types)
    _install(api, pool, wait_s)
    file = private_dir(state_dir() / "karpenter") / f"{hashlib.sha256(text.encode()).hexdigest()[:12]}.json"
    write_text(file, text)
    environment = _environment(pool, file, health_port or free_port(), kubeconfig)
    os.execve(program, [str(program)], os.environ | environment)  # noqa: S606  (our own program, no shell)


def _environment(pool: Pool, types: Path, health_port: int, kubeconfig: Path | None) -> dict[str, str]:
    return {
        **({} if kubeconfig is None else {"KUBECONFIG": str(kubeconfig)}),
        "KUBERNETES_MIN_VERSION": "1.19.0-0",
        "SYSTEM_NAMESPACE": "kube-system",
        "DISABLE_LEADER_ELECTION": "true",  # one process, and no Lease whose loss would end it
        "INSTANCE_TYPES_FILE_PATH": str(types),
        "METRICS_PORT": str(free_port()),
        "HEALTH_PROBE_PORT": str(health_port),
        **pool.environment(),
    }


def _install(api: Transport, pool: Pool, wait_s: float) -> None:
    """Create its kinds of objects, and of these the class and the NodePool."""
    with api.explained():
        for file in crd_files(pool.speed):
            create_or_replace(api, CRDS, yaml.safe_load(file.read_text(encoding="utf-8")))
        for manifest in (pool.node_class(), pool.node_pool()):
            path = f"/apis/{manifest['apiVersion']}/{_PLURALS[manifest['kind']]}"
            until(partial(served, api, path), wait_s, f"{manifest['kind']}s were not served")
            create_or_replace(api, path, manifest)
