"""Configurations before the real kube-scheduler: it refuses what AAML refuses, runs what AAML reads, and scores alike.

A tuned file is one of them: the real kube-scheduler with it places a task's pods where the simulator places them.
"""

import os
import random
import subprocess
from dataclasses import replace

import pytest
import yaml

from aaml.kube.objects.manifest import node_to_json, pod_to_json
from aaml.kube.provision import binaries, end_orphans
from aaml.policies.kube_scores import DEFAULT_WEIGHTS, KubeSchedulerConfig
from aaml.policies.kube_scores.document import document
from aaml.policies.kube_scores.plugins import DEFAULTS
from aaml.policies.kube_scores.profile import read_profile
from aaml.sim.tasks import find_task
from support.differential import Bench, Tally, compare_decision
from support.kube_configurations import HEAD, MISTAKES
from support.real_scheduler import RealScheduler
from support.scheduling_cases import Cases

pytestmark = pytest.mark.kwok

KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: c
contexts: [{name: c, context: {cluster: c, user: u}}]
clusters: [{name: c, cluster: {server: "http://127.0.0.1:1"}}]
users: [{name: u, user: {}}]
"""
TUNED = KubeSchedulerConfig(
    weights={**DEFAULT_WEIGHTS, "NodeResourcesFit": 3, "NodeResourcesBalancedAllocation": 7},
    strategy="RequestedToCapacityRatio", resources=(("cpu", 2), ("memory", 3)), shape=((0, 10), (40, 7), (85, 1)),
)  # fmt: skip
PROFILES = f"""
profiles:
- {yaml.safe_dump(document(TUNED)["profiles"][0] | {"schedulerName": "tuned"}, default_flow_style=True).strip()}
- schedulerName: packing
  plugins:
    score: {{disabled: [{{name: "*"}}], enabled: [{{name: NodeResourcesFit, weight: 5}}, {{name: TaintToleration}}]}}
  pluginConfig:
  - name: NodeResourcesFit
    args:
      scoringStrategy:
        type: MostAllocated
        resources: [{{name: cpu, weight: 3}}, {{name: memory}}, {{name: example.com/widget, weight: 9}}]
- schedulerName: again
  plugins:
    multiPoint: {{enabled: [{{name: TaintToleration}}, {{name: ImageLocality, weight: 4}}]}}
    score: {{disabled: [{{name: NodeAffinity}}], enabled: [{{name: InterPodAffinity, weight: 9}}]}}
  pluginConfig:
  - {{name: InterPodAffinity, args: {{hardPodAffinityWeight: 60, ignorePreferredTermsOfExistingPods: true}}}}
  - name: NodeResourcesBalancedAllocation
    args: {{resources: [{{name: memory}}, {{name: cpu}}, {{name: ephemeral-storage}}]}}
"""


@pytest.fixture(scope="module", autouse=True)
def _built():
    if not binaries.built():
        pytest.fail("the programs of the KWOK cluster are not built: run `aaml cluster build` (about 11 minutes, once)")


@pytest.fixture
def real(tmp_path):
    """Return what the real kube-scheduler makes of a file: its own words of it, or None and what it says against it."""
    (tmp_path / "kubeconfig").write_text(KUBECONFIG, encoding="utf-8")

    def read(text):
        path, out = tmp_path / "config.yaml", tmp_path / "read.yaml"
        text += f"\nclientConnection: {{kubeconfig: {tmp_path / 'kubeconfig'}}}\n"
        path.write_text(text, encoding="utf-8")
        line = [binaries.programs_dir() / "kube-scheduler", f"--config={path}", f"--write-config-to={out}"]
        done = subprocess.run(
            [*map(str, line), "--secure-port=0"], capture_output=True, text=True, timeout=60, check=False
        )
        if done.returncode:
            return None, done.stderr
        return yaml.safe_load(out.read_text(encoding="utf-8")), ""

    return read


@pytest.mark.parametrize("text", MISTAKES)
def test_the_real_one_refuses_the_same_files(text, real):
    found, said = real(HEAD + text)
    assert found is None, text
    assert "clientConnection" not in said  # it is not the way to a cluster that it misses


def test_the_real_one_runs_the_same_plugins_with_the_same_weights(real, tmp_path):
    found, said = real(HEAD + PROFILES)
    assert found is not None, said
    path = tmp_path / "ours.yaml"
    path.write_text(HEAD + PROFILES, encoding="utf-8")
    for profile in found["profiles"]:
        plugins, ours = profile["plugins"], read_profile(f"kube-scheduler:{path}#{profile['schedulerName']}")
        multi = {each["name"]: each.get("weight", 0) for each in plugins["multiPoint"]["enabled"]}
        score = {each["name"]: each.get("weight", 0) for each in plugins.get("score", {}).get("enabled", ())}
        off = {each["name"] for each in plugins.get("score", {}).get("disabled", ())}
        expanded = {} if "*" in off else {name: weight for name, weight in multi.items() if name not in off}
        theirs = {name: weight or 1 for name, weight in {**expanded, **score}.items() if name in DEFAULT_WEIGHTS}
        assert ours.config.weights == theirs
        assert ours.unmodelled == ()


def test_the_default_profile_is_that_of_the_real_one(real):
    found, said = real(HEAD)
    assert found is not None, said
    (profile,) = found["profiles"]
    theirs = {each["name"]: each.get("weight", 0) for each in profile["plugins"]["multiPoint"]["enabled"]}
    assert {name: weight for name, (_, weight) in DEFAULTS.items()} == theirs


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    end_orphans()
    profiles = yaml.safe_load(PROFILES)["profiles"]
    folder = tmp_path_factory.mktemp("scheduler")
    every = [*profiles, {"schedulerName": "default-scheduler"}]
    with RealScheduler(f"configuration-{os.getpid()}", folder, every) as scheduler:
        path = folder / "profiles.yaml"
        path.write_text(HEAD + PROFILES, encoding="utf-8")
        yield (
            Bench(scheduler),
            {
                each["schedulerName"]: read_profile(f"kube-scheduler:{path}#{each['schedulerName']}").config
                for each in profiles
            },
        )


@pytest.mark.timeout(300)
def test_scores_of_each_profile_are_those_of_the_real_one(bench):
    real, configs = bench
    tally = Tally()
    for seed in range(41, 49):
        cases = Cases(seed)
        nodes = cases.nodes()
        state = real.reset(cases, nodes, cases.placed(nodes, cases.rng.randint(0, 20)))
        for number in range(18):
            name = random.Random(1000 * seed + number).choice(list(configs))
            manifest = cases.pod(demanding=0.15, schedulerName=name)
            compare_decision(real, state, manifest, tally, seed, config=configs[name])
    assert not tally.mismatches, "\n".join(tally.mismatches[:10])
    assert tally.counts["total score"] > 40


@pytest.mark.timeout(300)
def test_a_tasks_pods_go_where_the_simulator_puts_them(bench):
    """Each decision of the tuned profile, from the state that the real one left: same totals, a node of the highest."""
    real, configs = bench
    task, tally = find_task("balance"), Tally()
    cluster = task.build(1, 10, pods=100)
    nodes = [node_to_json(node) for node in cluster.state.nodes]
    state = real.reset(Cases(1), nodes, [])
    for number, pod in enumerate(cluster.workload.pods):
        manifest = pod_to_json(replace(pod, name=f"balance-{number}", uid=""))
        manifest["spec"]["schedulerName"] = "tuned"
        compare_decision(real, state, manifest, tally, 1, config=configs["tuned"])
    assert not tally.mismatches, "\n".join(tally.mismatches[:10])
    assert tally.counts["total score"] > 60
