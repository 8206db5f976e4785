"""Policies inside the real kube-scheduler: they decide as in Python, weights change while it runs, and it does without.

`AAML_PLUGIN_DECISIONS` sets how many decisions each agent makes (50 by default); `make differential` makes many.
"""

import hashlib
import json
import os
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest
import yaml

from aaml.cluster.filters import feasible
from aaml.cluster.fleet import node
from aaml.evaluation.policies import load_policy
from aaml.kube.objects.manifest import node_to_json
from aaml.kube.provision import KwokCluster, binaries, end_orphans
from aaml.kube.transport import Transport
from aaml.plugin.build import build
from aaml.plugin.export import export
from aaml.plugin.module import PluginModule
from aaml.plugin.run import fetch
from aaml.policies.kube_scores.policy import KubeScheduler
from aaml.progress import progress_bar
from aaml.scheduling.cycle import spec_of
from aaml.scheduling.observation import Context
from aaml.scheduling.ports import Policy
from plugin_process import PluginProcess
from support.differential import Bench, Tally
from support.kwok import pod, pods, until
from support.plugin import NEAR, Mounted, PluginCases, bare_module, compare_choice
from support.plugin_states import expected_pods
from support.processes import AAML
from support.real_scheduler import RealScheduler

AGENTS = ("varied-acdqn", "varied-dqn", "varied-gnn", "varied-acgnn")
DECISIONS = int(os.environ.get("AAML_PLUGIN_DECISIONS", "50"))
FIRST_SEED = int(os.environ.get("AAML_PLUGIN_SEED", "1"))
PODS_PER_CLUSTER = 25
SHOWN, SHOWN_FROM = 10, 1000
TUNED = Path(__file__).parents[2] / "docs/results/tuned-kube-scheduler/balance-10.yaml"


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> PluginModule:
    """A plugin without weights of its own, compiled."""
    if not binaries.built():
        pytest.fail("the programs of the KWOK cluster are not built: run `aaml cluster build` (about 11 minutes, once)")
    module = bare_module(tmp_path_factory.mktemp("plugin") / "bare")
    build(module, progress=False)
    return module


@pytest.fixture(scope="module")
def weights(bare: PluginModule, tmp_path_factory: pytest.TempPathFactory) -> Mounted:
    return Mounted(bare, tmp_path_factory.mktemp("configmap") / "mounted")


@pytest.fixture(scope="module")
def bench(bare: PluginModule, weights: Mounted, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    end_orphans()
    with RealScheduler(f"plugin-{os.getpid()}", tmp_path_factory.mktemp("scheduler"), plugin=bare) as real:
        yield Bench(real)


@pytest.fixture(scope="module")
def narrowed(bare: PluginModule, weights: Mounted, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """The same without an extender."""
    with RealScheduler(
        f"narrowed-{os.getpid()}", tmp_path_factory.mktemp("narrowed"), plugin=bare, extender=False
    ) as real:
        yield Bench(real)


def metrics(bench: Bench) -> dict[str, float]:
    """Return the plugin's own counters and gauges by name and labels."""
    lines = [line for line in fetch(bench.real.port, "/metrics").splitlines() if line.startswith("aaml_plugin_")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def in_force(bench: Bench, weights: Mounted) -> None:
    """Wait until what is mounted decides."""
    digest = hashlib.sha256(weights.read().strip()).hexdigest()
    until(lambda: any(f'sha256="{digest}"' in name for name in metrics(bench)), "the mounted weights in force", 20.0)


def empty_cluster(bench: Bench, count: int) -> None:
    """Make a cluster of equal nodes."""
    cases = PluginCases(0)
    cases.prefix = f"equal-{time.time_ns():x}"
    bench.reset(cases, [node_to_json(node(f"{cases.prefix}-{i}")) for i in range(count)], [])


def place(bench: Bench, prefix: str, count: int) -> Counter[str]:
    """Place equal pods one after another and return how many each node got."""
    nodes = []
    for number in range(count):
        meta = {"name": f"{prefix}-{number}", "namespace": "default"}
        nodes.append(bench.real.decide({**pod("", cpu="4", memory="4Gi"), "metadata": meta}).node)
    return Counter(nodes)


def test_without_weights_kube_scheduler_decides_by_its_own_plugins(bench: Bench) -> None:
    empty_cluster(bench, 4)
    assert sorted(place(bench, "none", 4).values()) == [1, 1, 1, 1], "its own scores spread"
    found = metrics(bench)
    assert found["aaml_plugin_decisions_total"] == 0
    assert found['aaml_plugin_replaced_total{reason="no_weights"}'] >= 4


def test_new_weights_decide_without_a_restart_and_damaged_ones_are_refused(bench: Bench, weights: Mounted) -> None:
    empty_cluster(bench, 4)
    weights.put("most-allocated")
    in_force(bench, weights)
    packed = place(bench, "packed", 4)
    assert list(packed.values()) == [4]
    weights.put("least-allocated")
    in_force(bench, weights)
    assert not packed & place(bench, "spread", 4), "the node with four pods gets none of the next four"
    refused = metrics(bench)["aaml_plugin_weights_refused_total"]
    good = weights.read()
    weights.put_text(good.decode().replace("least", "most"))  # its checksum does not fit any more
    until(lambda: metrics(bench)["aaml_plugin_weights_refused_total"] > refused, "the refusal of damaged weights", 20.0)
    assert any(hashlib.sha256(good.strip()).hexdigest() in name for name in metrics(bench)), "the last good ones stay"
    before = metrics(bench)["aaml_plugin_decisions_total"]
    place(bench, "kept", 2)
    assert metrics(bench)["aaml_plugin_decisions_total"] == before + 2


def compare_on_a_cluster(bench: Bench, policy: Policy, tally: Tally, seed: int) -> None:
    """Let the plugin and Python choose for pods on one cluster that is drawn by the seed."""
    cases = PluginCases(seed)
    nodes = cases.nodes()
    state = bench.reset(cases, nodes, cases.placed(nodes, cases.rng.randint(0, 30)))
    for _ in range(PODS_PER_CLUSTER):
        compare_choice(bench, state, cases.pod(demanding=0.1), policy, tally, seed)


@pytest.mark.parametrize("among", ["all nodes", "the best nodes"])
@pytest.mark.timeout(120 + DECISIONS)
def test_every_agent_decides_inside_kube_scheduler_as_it_does_in_python(
    among: str, weights: Mounted, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    """kube-scheduler filters and scores all nodes, where an extender is asked too, or the policy's best ones."""
    bench: Bench = request.getfixturevalue("bench" if among == "all nodes" else "narrowed")
    tally, seed, count = Tally(), FIRST_SEED, DECISIONS // 2
    with capsys.disabled():
        bar = progress_bar("decisions", len(AGENTS) * count, "decision", enabled=count > SHOWN_FROM)
    for agent in AGENTS:
        policy = load_policy(agent)
        weights.put(agent)
        in_force(bench, weights)
        until_decisions = tally.counts.get("decisions", 0) + count
        while tally.counts.get("decisions", 0) < until_decisions:
            compare_on_a_cluster(bench, policy, tally, seed)
            seed += 1
            with capsys.disabled():
                bar.set_postfix_str(f"{agent}: {len(tally.mismatches)} mismatches", refresh=False)
                bar.update(tally.counts.get("decisions", 0) - bar.n)
    with capsys.disabled():
        print(f"\nplugin, among {among}: {len(tally.mismatches)} mismatches, {json.dumps(tally.counts)}")
    assert not tally.mismatches, "\n".join(tally.mismatches[:SHOWN])
    found = metrics(bench)
    handed, decided = found["aaml_plugin_narrowed_total"], found["aaml_plugin_decisions_total"]
    assert (0 < handed < decided) if among == "the best nodes" else handed == 0
    assert "a filter that the plugin does not know" not in bench.real.output()
    skipped = {name: count for name, count in found.items() if "replaced" in name}
    assert all("no_weights" in name for name, count in skipped.items() if count), skipped


def test_a_tuned_configuration_decides_without_a_restart_as_it_does_in_python(bench: Bench, weights: Mounted) -> None:
    spec = f"kube-scheduler:{TUNED}"
    policy, tally, seed = load_policy(spec), Tally(), FIRST_SEED
    assert isinstance(policy, KubeScheduler)
    # the API server has none of the objects that own these pods, and kube-scheduler spreads by such objects
    policy.config = replace(policy.config, default_selector=lambda _pod: None)
    weights.put(spec)
    in_force(bench, weights)
    while tally.counts.get("decisions", 0) < DECISIONS // 2:
        compare_on_a_cluster(bench, policy, tally, seed)
        seed += 1
    assert not tally.mismatches, "\n".join(tally.mismatches[:SHOWN])


SHARES = (200, 300, 500, 500, 700, 1000)


@pytest.mark.parametrize("name", ["fgd", "openb-linear"])
def test_pods_share_gpus_on_the_nodes_and_devices_that_python_chooses(
    bench: Bench, weights: Mounted, name: str
) -> None:
    expected = expected_pods(200)
    weights.put(name, expected)
    in_force(bench, weights)
    cases, policy = PluginCases(0), load_policy(name, expected=expected)
    cases.prefix = f"gpus-{time.time_ns():x}"
    nodes = [
        replace(node(f"{cases.prefix}-{i}"), gpu_count=count, gpu_model=model)
        for i, (count, model) in enumerate([(2, "T4"), (2, "V100M16"), (4, "T4"), (0, "")])
    ]
    state = bench.reset(cases, list(map(node_to_json, nodes)), [])
    for number in range(24):
        asks = {"alibabacloud.com/gpu-count": "1", "alibabacloud.com/gpu-milli": str(SHARES[number % len(SHARES)])}
        if number % 5 == 0:
            asks["alibabacloud.com/gpu-card-model"] = "V100M16|G2"
        meta = {"name": f"{name}-{number}", "namespace": "default", "annotations": asks}
        verdict = bench.real.decide({**pod("", cpu="500m", memory="512Mi"), "metadata": meta})
        waits = bench.pod(verdict.pod, node_name="", nominated_node="", gates=())
        mask = feasible(state, waits).mask
        if not mask.any():
            assert not verdict.node
            assert "4 node(s)" not in verdict.message, "some have the model, some have not"
            bench.delete_pod(waits)
            continue
        context = Context(state, waits, mask, spec_of(policy))
        scores = np.where(mask, policy.scores(context), -np.inf)
        node_index = state.index[verdict.node]
        assert scores[node_index] >= scores.max() - NEAR, (number, scores)  # equal nodes come in another order there
        chosen = policy.take(np.where(np.arange(len(mask)) == node_index, scores, -np.inf), context)
        state.upsert_pod(replace(waits, node_name=verdict.node), chosen.gpus)
        devices = state.placements[waits.uid].gpus
        assert verdict.pod["metadata"]["annotations"]["alibabacloud.com/gpu-index"] == "-".join(map(str, devices))
    assert state.gpu_free.sum() < 1000, "nearly all of the eight devices is given out"


# --- as it is deployed ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> PluginModule:
    """A shipped model's plugin, compiled."""
    module = export("varied-acdqn", tmp_path_factory.mktemp("export") / "plugin")
    build(module, progress=False)
    return module


def granted(api: Transport, role: str) -> set[tuple[str, str, str]]:
    """Return (group, resource, verb) of all that a ClusterRole of the cluster grants."""
    rules = json.loads(api.request("GET", f"/apis/rbac.authorization.k8s.io/v1/clusterroles/{role}"))["rules"]
    return {(g, r, v) for rule in rules for g in rule["apiGroups"] for r in rule["resources"] for v in rule["verbs"]}


def test_the_account_of_its_manifests_has_the_rights_that_it_needs(
    exported: PluginModule, kwok: KwokCluster, namespace: str, tmp_path: Path
) -> None:
    kubectl = [str(kwok.kubectl), "--kubeconfig", str(kwok.kubeconfig)]
    applied = [*kubectl, "apply", "--server-side", "-k", str(exported.folder)]
    subprocess.run(applied, check=True, capture_output=True, text=True, timeout=120)
    name = "aaml-kube-scheduler"
    api, account = kwok.api(), kwok.service_account_kubeconfig("aaml", name)
    kept = json.loads(api.request("GET", f"/api/v1/namespaces/aaml/configmaps/{name}-weights"))["data"]
    assert kept["weights.json"].encode() == exported.weights.read_bytes()
    path = f"/apis/apps/v1/namespaces/aaml/deployments/{name}"
    until(lambda: json.loads(api.request("GET", path))["status"].get("readyReplicas") == 2, "two replicas", 120.0)
    ours = granted(api, name)
    theirs = granted(api, "system:kube-scheduler") | granted(api, "system:volume-scheduler")
    assert ours <= theirs
    assert {(group, resource) for group, resource, _ in theirs - ours} == {
        ("", "bindings"), ("extensions", "replicasets"),
        ("coordination.k8s.io", "leases"), ("coordination.k8s.io", "leasecandidates"),
    }, "all that the cluster's own kube-scheduler may, but its Lease and what is of other versions"  # fmt: skip
    as_deployed = yaml.safe_load(exported.configuration.read_text())["leaderElection"]
    process = PluginProcess(exported, account, tmp_path, scheduler_name=name)
    changed = yaml.safe_load((tmp_path / "kube-scheduler.yaml").read_text())
    (tmp_path / "kube-scheduler.yaml").write_text(yaml.safe_dump({**changed, "leaderElection": as_deployed}))
    with process:
        for number in range(5):
            api.request("POST", f"/api/v1/namespaces/{namespace}/pods", pod(f"p{number}", schedulerName=name))
        until(lambda: all(each["spec"].get("nodeName") for each in pods(api, namespace)), "five pods bound")
        assert "aaml_plugin_decisions_total 5" in process.ask("/metrics")
    assert "forbidden" not in process.output()
    lease = json.loads(api.request("GET", f"/apis/coordination.k8s.io/v1/namespaces/aaml/leases/{name}"))
    assert lease["spec"]["leaseTransitions"] == 0
    subprocess.run([*kubectl, "delete", "-k", str(exported.folder), "--wait=false"], check=True, capture_output=True)


def test_a_cluster_is_scheduled_by_a_plugin_and_by_the_same_one_after_a_crash(exported: PluginModule) -> None:
    def aaml(*arguments: str) -> str:
        command = [AAML, "cluster", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout

    name = f"plugged-{os.getpid()}"
    cluster = KwokCluster(name)
    up = ("up", f"--name={name}", "--nodes=3", f"--scheduler={exported.folder}", f"--owner={os.getpid()}")
    aaml(*up)
    try:
        api, log = cluster.api(), cluster.component("kube-scheduler").log_file
        for number in range(2):
            api.request("POST", "/api/v1/namespaces/default/pods", pod(f"p{number}"))
            until(lambda: all(each["spec"].get("nodeName") for each in pods(api, "default")), "pods bound")
            assert log.read_text().count("AAML: weights are in force") >= number + 1
            if number == 0:
                where = urlsplit(json.loads(aaml("status", f"--name={name}", "--json"))["metrics"])
                assert "\naaml_plugin_decisions_total 1\n" in fetch(where.port or 0, where.path)
                cluster.stop_component("kube-scheduler", kill=True)
                assert "kube-scheduler" in aaml(*up)
                assert [each["metadata"]["name"] for each in pods(api, "default")] == ["p0"]
        assert f"{name} " in aaml("list")
    finally:
        aaml("down", f"--name={name}")
    assert name not in aaml("list")
