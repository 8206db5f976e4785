"""`aaml autoscale --apply`, twice, on the real Karpenter while all goes wrong: it keeps its limits, and gets over it.

`AAML_AUTOSCALE_RUNS` is how many runs there are (2), `AAML_AUTOSCALE_SEED` the first one's seed. In each one pods
come or go, one to three faults strike, all is made well again, and pods have to run, or all nodes to be terminated.
"""

import os
import random
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from aaml.cluster.objects import TYPE_LABEL
from aaml.kube.provision import ClusterOptions, KwokCluster, Owner, binaries
from support.autoscale_chaos import CLAIMS, MOST_NODES, MOST_PODS, PODS, SETS, TYPES, Site, karpenter, strike, web
from support.kwok import until

RUNS = int(os.environ.get("AAML_AUTOSCALE_RUNS", "2"))
SEED = int(os.environ.get("AAML_AUTOSCALE_SEED", "1"))
WELL_S = 150.0  # a launch that failed is not tried again for 36 s, several pause the next, and moves take their time
MANIFESTS = Path(__file__).parents[2] / "deploy" / "kubernetes" / "autoscale"


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    if not binaries.built():
        pytest.fail("the programs of the KWOK cluster are not built: run `aaml cluster build` (about 11 minutes, once)")
    cluster = KwokCluster(f"test-autoscale-chaos-{os.getpid()}")
    cluster.up(ClusterOptions(nodes=0, owner=Owner.this_process()), progress=False)
    try:
        with karpenter(cluster):
            for arguments in (
                ["apply", "-k", str(MANIFESTS)],
                ["delete", "deployment", "aaml-autoscale", "--namespace=aaml"],  # its pods would wait for nodes
            ):
                command = [str(cluster.kubectl), "--kubeconfig", str(cluster.kubeconfig), *arguments]
                subprocess.run(command, check=True, capture_output=True, timeout=120)
            with Site(cluster, tmp_path).run() as site:
                yield site
    finally:
        cluster.down()


def settled(site: Site, pods: int, what: str) -> None:
    """Wait until all is well: no node without pods, else so many pods run, or one on each node that is allowed."""
    deadline_s = time.monotonic() + WELL_S
    while True:
        there, on_nodes, nodes = len(site.items(PODS)), site.placed(), len(site.ours())
        if there == pods and (on_nodes == pods > 0 or (on_nodes >= nodes == MOST_NODES) or nodes == pods == 0):
            return
        assert not site.judge.wrong, f"{what}: {site.judge.wrong}\n{site.output()}"
        assert time.monotonic() < deadline_s, f"{what}: {on_nodes} of {pods} pods run, {nodes} nodes\n{site.output()}"
        time.sleep(0.25)


@pytest.mark.flaky(reruns=0)
@pytest.mark.timeout(300 + 170 * RUNS)
def test_limits_hold_whatever_goes_wrong_and_pods_run_when_all_is_well(site: Site) -> None:
    theirs = {"metadata": {"name": "theirs"}, "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "spec": {
        "nodeClassRef": {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "default"},
        "requirements": [{"key": TYPE_LABEL, "operator": "In", "values": [TYPES[0].name]}],
        "taints": [{"key": "theirs", "effect": "NoSchedule"}]}}  # fmt: skip
    site.api.request("POST", CLAIMS, theirs)
    site.api.request("POST", SETS, web())
    for run in range(RUNS):
        rng = random.Random(SEED + run)
        pods = 0 if run % 2 else rng.randint(3, MOST_PODS)  # while faults strike it provisions, or terminates all
        site.scale(pods)
        time.sleep(rng.uniform(0.0, 3.0))
        what = f"run {run} (seed {SEED + run}): {strike(site, rng)}"
        site.heal()
        site.scale(pods)
        print(time.strftime("%H:%M:%S"), what, flush=True)
        settled(site, pods, what)
    site.scale(0)
    settled(site, 0, "in the end")
    # Those that Karpenter itself provisioned go with its NodePool, drained as slowly as it drains.
    until(
        lambda: [each["metadata"]["name"] for each in site.items(CLAIMS)] == ["theirs"], "other claims are gone", 120.0
    )
    assert site.judge.wrong == []
    assert site.judge.orders > RUNS, "it has decided"
    assert "Traceback" not in site.output()
