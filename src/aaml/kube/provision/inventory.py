"""The clusters of this machine: each found by its record, and those whose owner is gone ended."""

from aaml.errors import UserError
from aaml.kube.provision import records
from aaml.kube.provision.cluster import KwokCluster
from aaml.kube.provision.docker import DockerCluster
from aaml.kube.provision.records import Record, Runtime

AnyCluster = KwokCluster | DockerCluster


def cluster_of(name: str, runtime: Runtime) -> AnyCluster:
    """Return the cluster called `name`, there or not, as `runtime` runs it."""
    return DockerCluster(name) if runtime == "docker" else KwokCluster(name)


def end_orphans() -> list[Record]:
    """End every cluster that belongs to a process that is gone, and return what was known of them.

    A cluster whose start was killed belongs to its maker and is ended too.
    """
    ended = []
    for name in filter(_orphan, records.names()):
        with records.locked(name):
            if record := _orphan(name):  # else another process was faster
                cluster_of(name, record.runtime).down()
                ended.append(record)
    return ended


def _orphan(name: str) -> Record | None:
    try:
        record = records.find(name)
    except UserError:
        return None  # damaged: the person who asks for that cluster is told how to remove it
    return record if record is not None and record.orphaned else None
