"""The cluster behind an address is replaced by an older backup, then by a new one: scheduling goes on there."""

import json
import secrets
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from aaml.cluster.fleet import standard_nodes
from aaml.kube.provision import ClusterOptions, KwokCluster, Owner, binaries, create_nodes
from aaml.kube.transport import Transport
from support.kwok import answers, pod, pods, until
from support.live_scheduler import LiveScheduler

NODES = 2
SCHEDULER = "aaml-history"


@pytest.fixture
def own() -> Iterator[KwokCluster]:
    """A cluster of the test's own, for it is ruined on purpose."""
    if not binaries.built():
        pytest.fail("the programs of the KWOK cluster are not built: run `aaml cluster build` (about 11 minutes, once)")
    cluster = KwokCluster(f"history-{secrets.token_hex(3)}")
    cluster.up(ClusterOptions(nodes=NODES, owner=Owner.this_process(), scheduler=False), progress=False)
    try:
        yield cluster
    finally:
        cluster.down()


def data(cluster: KwokCluster) -> Path:
    """Return the folder that holds everything that etcd knows."""
    command = cluster.component("etcd").command
    return Path(next(each.partition("=")[2] for each in command if each.startswith("--data-dir=")))


def restart(cluster: KwokCluster, change: Callable[[Path], None]) -> None:
    """Stop every part, change what etcd knows, and start again: on the same port, with the same certificates."""
    for name in reversed(cluster.components()):
        cluster.stop_component(name)
    change(data(cluster))
    cluster.start_stopped()
    until(lambda: answers(cluster.api(), "/api/v1/namespaces/default/serviceaccounts/default"), "the account", 120.0)


def submit(api: Transport, *names: str) -> None:
    for name in names:
        api.request("POST", "/api/v1/namespaces/default/pods", pod(name, schedulerName=SCHEDULER))


def bound(api: Transport) -> set[str]:
    return {each["metadata"]["name"] for each in pods(api, "default") if each["spec"].get("nodeName")}


def test_a_restored_backup_and_a_new_cluster_are_noticed(own, tmp_path, caplog):
    api, backup = own.api(), tmp_path / "backup"
    submit(api, "waits")
    restart(own, lambda folder: shutil.copytree(folder, backup))
    with LiveScheduler(SCHEDULER, own.kubeconfig) as scheduler:
        submit(api, "later")
        until(lambda: bound(api) == {"waits", "later"}, "both pods bound")

        def restore(folder: Path) -> None:
            shutil.rmtree(folder)
            shutil.copytree(backup, folder)

        restart(own, restore)
        until(lambda: bound(api) == {"waits"}, "the pod that waits again bound again")
        assert caplog.text.count("its history goes back from version") == 1
        until(lambda: len(scheduler.cluster.state.placements) == 1, "the pod of the lost history forgotten")

        restart(own, shutil.rmtree)
        assert json.loads(api.request("GET", "/api/v1/nodes"))["items"] == []
        create_nodes(api, standard_nodes(NODES), progress=False)
        submit(api, "waits", "new")
        until(lambda: bound(api) == {"waits", "new"}, "the pods of the new cluster bound")
        assert caplog.text.count("another cluster answers there now") == 1
        assert {each.pod.name for each in scheduler.cluster.state.placements.values()} == {"waits", "new"}
