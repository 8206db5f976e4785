"""The real Karpenter on a real cluster: it buys nodes for pods that wait, gives back empty ones, and goes with it."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.request import urlopen

import numpy as np
import psutil
import pytest

from aaml.cluster.objects import PRICE_LABEL, TYPE_LABEL, Pod
from aaml.cluster.quantity import CPU, MEMORY
from aaml.errors import UserError
from aaml.karpenter.process import start
from aaml.kube.provision import ClusterOptions, KwokCluster, Owner
from aaml.kube.provision.ports import free_port
from aaml.nodes.catalogue_file import shipped_catalogue
from aaml.nodes.karpenter import Karpenter
from aaml.nodes.settings import KarpenterSettings, NodeTimes
from aaml.policies.registry import make_policy
from aaml.scheduling.play import play
from aaml.sim.cluster import SimCluster
from aaml.sim.supply import NodeSupply
from aaml.workload.model import Workload
from billed_episode import BilledEpisode
from support.karpenter_cluster import CLAIMS, clear, items, karpenter_cluster, replica_set
from support.kwok import pod, pods, until

OWNED = "karpenter.sh/nodepool"


@pytest.fixture(scope="module")
def cluster() -> Iterator[KwokCluster]:
    with karpenter_cluster("karpenter") as cluster:
        yield cluster


def bought(cluster: KwokCluster) -> list[dict]:
    return [node for node in items(cluster, "/api/v1/nodes") if OWNED in node["metadata"]["labels"]]


def test_its_ports_are_this_machines_alone(cluster: KwokCluster) -> None:
    process = psutil.Process(cluster.pid("karpenter"))
    listening = [each.laddr.ip for each in process.net_connections("tcp") if each.status == psutil.CONN_LISTEN]
    assert listening == ["127.0.0.1", "127.0.0.1"]  # health and metrics


def test_nodes_are_bought_for_pods_that_wait_and_given_back_when_they_are_empty(cluster: KwokCluster) -> None:
    api = cluster.api()
    sets = "/apis/apps/v1/namespaces/default/replicasets"
    assert bought(cluster) == []
    api.request("POST", sets, replica_set("web", 6, "1", "1Gi"))

    def placed() -> bool:
        mine = pods(api, "default")
        return len(mine) == 6 and all(each["spec"].get("nodeName") for each in mine)

    until(placed, "six pods on nodes that were bought", 90.0)
    nodes = {node["metadata"]["name"]: node for node in bought(cluster)}
    assert {each["spec"]["nodeName"] for each in pods(api, "default")} <= nodes.keys()
    for node in nodes.values():
        labels = node["metadata"]["labels"]
        kind = shipped_catalogue()[labels[TYPE_LABEL]]
        assert float(labels[PRICE_LABEL]) == kind.cheapest.price
        assert any(each["type"] == "Ready" and each["status"] == "True" for each in node["status"]["conditions"])

    api.request("DELETE", f"{sets}/web")
    until(lambda: not bought(cluster) and not items(cluster, CLAIMS), "the empty nodes are given back", 90.0)


def test_a_short_episode_costs_what_it_costs_in_the_simulator(cluster: KwokCluster) -> None:
    """Two services that stay, and six jobs that do not: their node is given back while the others' stays."""
    clear(cluster)
    gib, until_s = 1 << 30, 90.0
    played = [
        Pod(f"pod-{number}", uid=f"pod-{number}", requests={CPU: 1500 if number < 2 else 700, MEMORY: gib},
            owner=f"ReplicaSet/of-{number}", created_s=2.0 if number < 2 else 25.0,
            lifetime_s=None if number < 2 else 20.0)
        for number in range(8)
    ]  # fmt: skip
    real = BilledEpisode(cluster, played, until_s, shipped_catalogue(), speed=5).play(progress=False)

    settings, times = KarpenterSettings(consolidate_after_s=5.0), NodeTimes(registration_delay_s=5.0)
    supply = NodeSupply(
        Karpenter(settings, shipped_catalogue(), 5.0), shipped_catalogue(), np.random.default_rng(0), times=times
    )
    simulated = SimCluster((), Workload(tuple(played)), until_s=until_s, supply=supply)
    play(simulated, make_policy("kube-scheduler"))
    expected = simulated.metrics()
    assert real["nodes_bought"] == expected["nodes_bought"] == 2
    assert real["pending"] == expected["pending"] == 0
    assert real["bill"] == pytest.approx(expected["bill"], rel=0.25)  # of half a minute, a slow machine changes much
    assert real["bill"] > expected["bill"] / expected["fluid_ratio"]  # nobody pays less than that


def test_it_is_started_again_with_the_cluster_and_once(cluster: KwokCluster) -> None:
    before = cluster.pid("karpenter")
    cluster.stop_component("karpenter")
    assert cluster.stopped() == ("karpenter",)
    assert cluster.start_stopped() == ("karpenter",)
    assert cluster.pid("karpenter") not in {before, None}
    with pytest.raises(UserError, match=r"Karpenter is on cluster .* already"):
        start(cluster)


def test_it_ends_with_the_cluster(cluster: KwokCluster) -> None:
    pid = cluster.pid("karpenter")
    cluster.down()
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    assert not cluster.directory.exists()


def test_it_runs_in_the_foreground_on_the_cluster_of_a_kubeconfig() -> None:
    """As in the container stack; SIGTERM ends it."""
    cluster = KwokCluster(f"test-foreground-{os.getpid()}")
    cluster.up(ClusterOptions(nodes=0, scheduler=False, owner=Owner.this_process()), progress=False)
    port = free_port()
    command = [str(Path(sys.executable).with_name("aaml")), "cluster", "autoscaler", "--kubeconfig",
               str(cluster.kubeconfig), "--health-port", str(port)]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until(lambda: psutil.Process(process.pid).name() == "karpenter", "the command became Karpenter")
        until(lambda: items(cluster, "/apis/karpenter.sh/v1/nodepools"), "its NodePool is there")

        def ready() -> bool:
            with suppress(OSError), urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5.0) as reply:
                return reply.status == 200
            return False

        until(ready, "Karpenter is ready")
        process.terminate()
        assert process.wait(30) is not None
    finally:
        process.kill()
        process.wait()
        cluster.down()


def test_the_command_starts_it_on_instance_types_of_ones_own(tmp_path: Path) -> None:
    kind = {
        "name": "odd-3", "architecture": "x86_64", "operatingSystems": ["linux"],
        "resources": {"cpu": "3", "memory": "6Gi"},
        "offerings": [{"Price": 0.123, "Requirements": [
            {"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"]},
            {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["a"]},
        ]}],
    }  # fmt: skip
    (tmp_path / "types.json").write_text(json.dumps([kind]), encoding="utf-8")
    name = f"test-types-{os.getpid()}"

    def aaml(*arguments: str) -> str:
        command = [str(Path(sys.executable).with_name("aaml")), "cluster", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=600).stdout

    assert "Karpenter 1.15.0 is in" in aaml("build", "--autoscaler")
    try:
        said = aaml("up", "--name", name, "--owner", str(os.getpid()), "--autoscaler", "karpenter",
                    "--instance-types", str(tmp_path / "types.json"))  # fmt: skip
        assert "0 nodes ready" in said
        status = json.loads(aaml("status", "--name", name, "--json"))
        assert status["up"]
        assert status["processes"]["karpenter"]
        (pool,) = json.loads(aaml("kubectl", "--name", name, "--", "get", "nodepools", "-o", "json"))["items"]
        assert pool["spec"]["disruption"]["budgets"] == [{"nodes": "10%"}]
        mine = KwokCluster(name)
        mine.api().request("POST", "/api/v1/namespaces/default/pods", pod("waits", "2", "1Gi"))
        until(
            lambda: items(mine, CLAIMS) and items(mine, CLAIMS)[0]["status"].get("providerID"), "a node is bought", 60
        )
        (claim,) = items(mine, CLAIMS)
        assert claim["metadata"]["labels"][TYPE_LABEL] == "odd-3"
    finally:
        aaml("down", "--name", name)
