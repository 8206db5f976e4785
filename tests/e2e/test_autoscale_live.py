"""`aaml autoscale` on the real Karpenter, without a NodePool and with the rights of its manifest alone."""

import json
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from aaml.cluster.objects import TYPE_LABEL
from aaml.kube.provision import KwokCluster
from aaml.kube.transport import ApiError, Transport
from aaml.live.node_claims import OURS, new_claim
from aaml.live.node_template import NodeTemplate
from aaml.nodes.catalogue_file import shipped_catalogue
from aaml.nodes.node_policy import NodePolicy, write_node_policy
from support.karpenter_cluster import CLAIMS, clear, items, karpenter_cluster, replica_set
from support.kwok import pods, until
from support.processes import AAML, Process

MANIFESTS = Path(__file__).parents[2] / "deploy" / "kubernetes" / "autoscale"
SETS = "/apis/apps/v1/namespaces/default/replicasets"


@pytest.fixture(scope="module")
def cluster() -> Iterator[KwokCluster]:
    """A cluster without a NodePool, with the account of our manifest."""
    with karpenter_cluster("autoscale") as cluster:
        cluster.api().request("DELETE", "/apis/karpenter.sh/v1/nodepools/default")
        kubectl(cluster, "apply", "-k", str(MANIFESTS))
        kubectl(cluster, "delete", "deployment", "aaml-autoscale", "--namespace=aaml")  # its pods would wait for nodes
        yield cluster


def kubectl(cluster: KwokCluster, *arguments: str) -> None:
    command = [str(cluster.kubectl), "--kubeconfig", str(cluster.kubeconfig), *arguments]
    subprocess.run(command, check=True, capture_output=True, timeout=120)


def web(name: str, replicas: int) -> dict:
    return replica_set(name, replicas, "1", "1Gi", terminationGracePeriodSeconds=1)


def scale(cluster: KwokCluster, name: str, replicas: int) -> None:
    body = {"metadata": {"name": name, "namespace": "default"}, "spec": {"replicas": replicas}}
    cluster.api().request("PUT", f"{SETS}/{name}/scale", body)


def ours(cluster: KwokCluster) -> list[dict]:
    return [each for each in items(cluster, CLAIMS) if OURS.items() <= each["metadata"]["labels"].items()]


def orders(said: str, verb: str) -> Counter[str]:
    """Return how many nodes of each type were ordered: "provision 2 large, small: ..."."""
    found: Counter[str] = Counter()
    for line in re.findall(rf"^\S+ {verb} ([^:]+):", said, re.MULTILINE):
        for each in line.split(", "):
            *count, kind = each.split(" ")
            found[kind] += int(count[0]) if count else 1
    return found


def placed(cluster: KwokCluster, count: int) -> bool:
    mine = pods(cluster.api(), "default")
    return len(mine) == count and all(each["spec"].get("nodeName") for each in mine)


def test_pods_get_nodes_are_moved_to_fewer_and_nothing_is_written_before_somebody_says_apply(
    cluster: KwokCluster, tmp_path: Path
) -> None:
    api, account = cluster.api(), cluster.service_account_kubeconfig("aaml", "aaml-autoscale")
    clear(cluster)
    write_node_policy(tmp_path / "quick.yaml", NodePolicy(idle_s=2.5, patience_s=10.0, look_s=5.0))
    command = [AAML, "autoscale", f"--nodes={tmp_path / 'quick.yaml'}", f"--kubeconfig={account}", "--speed=5"]
    others = {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "default"}
    kind = shipped_catalogue().types[0].name
    wanted = {"key": TYPE_LABEL, "operator": "In", "values": [kind]}
    other = {"apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "metadata": {"name": "not-ours"},
             "spec": {"nodeClassRef": others, "requirements": [wanted]}}  # fmt: skip
    api.request("POST", CLAIMS, other)

    with Process([*command, "--all-claims"], tmp_path / "dry.log") as dry:
        dry.wait_for(f"would delete not-ours ({kind}, not ours): it has no pods; saves $")
        api.request("POST", SETS, web("web", 6))
        dry.wait_for("would provision")
        dry.wait_for("6 pods wait (default/web-")
        assert dry.stop() == 0
    assert [each["metadata"]["name"] for each in items(cluster, CLAIMS)] == ["not-ours"]

    with Process([*command, "--apply"], tmp_path / "apply.log") as controller:
        until(lambda: placed(cluster, 6), "six pods on nodes that were provisioned", 90.0)
        mine = ours(cluster)
        nodes = {each["status"]["nodeName"]: each for each in mine}
        hosts = {each["spec"]["nodeName"] for each in pods(api, "default")}
        assert hosts & nodes.keys()
        told = orders(controller.output(), "provision")
        assert Counter(each["metadata"]["labels"][TYPE_LABEL] for each in mine) <= told

        api.request("POST", SETS, web("more", 6))
        until(lambda: placed(cluster, 12), "twelve pods on nodes that were provisioned", 90.0)
        for name in ("web", "more"):
            scale(cluster, name, 1)
        until(lambda: placed(cluster, 2) and len(ours(cluster)) == 1, "both pods on one node that is left", 120.0)
        assert re.search(
            r"delete aaml-\S+ \(\S+\): its (pod|\d+ pods) fits? on other nodes; saves", controller.output()
        )

        for name in ("web", "more"):
            api.request("DELETE", f"{SETS}/{name}")
        until(lambda: len(items(cluster, CLAIMS)) == 1, "our nodes are terminated", 90.0)
        assert items(cluster, CLAIMS)[0]["metadata"]["name"] == "not-ours"
        until(lambda: not nodes.keys() & {each["metadata"]["name"] for each in items(cluster, "/api/v1/nodes")}, "gone")
        assert controller.output().count("delete aaml-") == orders(controller.output(), "provision").total()
        assert controller.stop() == 0
        assert "403" not in controller.output()


TEMPLATE = """
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: shop}
spec:
  template:
    metadata: {labels: {team: shop}, annotations: {note: by hand}}
    spec:
      nodeClassRef: {group: karpenter.kwok.sh, kind: KWOKNodeClass, name: default}
      expireAfter: 48h
      terminationGracePeriod: 1h30m
      taints: [{key: shop, value: "yes", effect: NoSchedule}, {key: bare, effect: PreferNoSchedule}]
      startupTaints: [{key: cni, effect: NoExecute}]
      requirements: [{key: karpenter.sh/capacity-type, operator: In, values: [spot]}]
"""


def test_the_api_takes_what_a_template_makes_of_a_node(cluster: KwokCluster, tmp_path: Path) -> None:
    (tmp_path / "pool.yaml").write_text(TEMPLATE)
    template = NodeTemplate.read(tmp_path / "pool.yaml")
    made = cluster.api().request(
        "POST", CLAIMS, new_claim(template.catalogue(None).types[0], template), query={"dryRun": "All"}
    )
    spec = json.loads(made)["spec"]
    assert (spec["expireAfter"], spec["terminationGracePeriod"]) == ("48h", "1h30m")
    assert [each["key"] for each in spec["taints"] + spec["startupTaints"]] == ["shop", "bare", "cni"]


def test_its_account_may_not_touch_pods_nodes_or_pools(cluster: KwokCluster) -> None:
    account = cluster.service_account_kubeconfig("aaml", "aaml-autoscale")
    with closing(Transport(account)) as api:
        for method, path in (("DELETE", "/api/v1/nodes/x"), ("DELETE", "/api/v1/namespaces/default/pods/x"),
                             ("DELETE", "/apis/karpenter.sh/v1/nodepools/x"), ("GET", "/api/v1/secrets"),
                             ("DELETE", "/apis/policy/v1/namespaces/default/poddisruptionbudgets/x")):  # fmt: skip
            with pytest.raises(ApiError) as refused:
                api.request(method, path)
            assert refused.value.status == 403
