"""A KWOK cluster whose nodes the real Karpenter buys, and what tests put on it."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from aaml.karpenter.pool import Pool
from aaml.karpenter.process import start
from aaml.kube.provision import ClusterOptions, KwokCluster, Owner, binaries
from aaml.kube.transport import ApiError
from aaml.nodes.settings import KarpenterSettings
from support.kwok import until

CLAIMS = "/apis/karpenter.sh/v1/nodeclaims"
_PODS, _SETS = "/api/v1/namespaces/default/pods", "/apis/apps/v1/namespaces/default/replicasets"


@contextmanager
def karpenter_cluster(name: str) -> Iterator[KwokCluster]:
    """Yield a cluster without workers, whose Karpenter goes five times faster than usual."""
    if not binaries.built():
        pytest.fail("the programs of the KWOK cluster are not built: run `aaml cluster build` (about 11 minutes, once)")
    cluster = KwokCluster(f"test-{name}-{os.getpid()}")
    cluster.up(ClusterOptions(nodes=0, owner=Owner.this_process()), progress=False)
    try:
        start(cluster, Pool(KarpenterSettings(consolidate_after_s=5.0), registration_delay_s=5.0, speed=5))
        yield cluster
    finally:
        cluster.down()


def items(cluster: KwokCluster, path: str) -> list[dict[str, Any]]:
    """Return the objects of a list."""
    return json.loads(cluster.api().request("GET", path))["items"]


def clear(cluster: KwokCluster) -> None:
    """Remove what a try that failed has left."""
    api = cluster.api()
    for path in (_SETS, _PODS, CLAIMS):
        for each in items(cluster, path):
            with suppress(ApiError):  # gone by now
                api.request("DELETE", f"{path}/{each['metadata']['name']}")
    until(lambda: not items(cluster, CLAIMS) and not items(cluster, _PODS), "an empty cluster", 90.0)


def replica_set(name: str, replicas: int, cpu: str, memory: str, **spec: Any) -> dict[str, Any]:
    """Return a ReplicaSet of pods that ask for so much; `spec` is the pods'."""
    labels = {"app": name}
    needs = {"requests": {"cpu": cpu, "memory": memory}}
    container = {"name": "main", "image": "registry.example/pause", "resources": needs}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container], **spec}}
    wanted = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
    return {"metadata": {"name": name}, "spec": wanted}
