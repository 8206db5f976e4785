"""`aaml apply -s FILE`: a KubeSchedulerConfiguration counts as kube-scheduler takes it, or as `simon` does."""

from pathlib import Path

import pytest

from aaml.cli import run
from aaml.errors import UserError
from aaml.evaluation.scheduler_config import read_scheduler_config

HEAD = "apiVersion: kubescheduler.config.k8s.io/{}\nkind: KubeSchedulerConfiguration\n"
V1, V1BETA1 = HEAD.format("v1"), HEAD.format("v1beta1")
MOST = (
    "profiles: [{plugins: {score: {enabled: [{name: NodeResourcesFit}]}}, pluginConfig: [{name: NodeResourcesFit, "
    "args: {scoringStrategy: {type: MostAllocated, resources: [{name: cpu, weight: 1}]}}}]}]\n"
)
ROOM = "status: {allocatable: {cpu: 8, memory: 8Gi, pods: 9}}"
PODS = """apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 4
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: c, image: web, resources: {requests: {cpu: "1", memory: 1Gi}}}]}
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "scheduler.yaml"


def test_score_plugins_of_simon_become_policies_with_weights(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    plugins = "profiles: [{plugins: {score: {disabled: [{name: '*'}], enabled: [{name: FGDScore, weight: 1000}]}}%s}]\n"
    for head in (V1, V1BETA1 + "healthzBindAddress: 0.0.0.0\n"):
        path.write_text(head + plugins % "")
        assert read_scheduler_config(path) == {"fgd": 1000.0}
    assert not caplog.records
    path.write_text(V1BETA1 + plugins % ", pluginConfig: [{name: Open-Gpu-Share, args: {a: b}}]")
    assert read_scheduler_config(path) == {"fgd": 1000.0}
    assert "left out: pluginConfig of Open-Gpu-Share" in caplog.text
    path.write_text(V1BETA1)
    assert read_scheduler_config(path) == {"kube-scheduler": 1.0}
    path.write_text(V1 + "profiles: [{plugins: {score: {enabled: [{name: Mine}]}}}]\n")
    with pytest.raises(UserError, match="'Mine' is not accepted; expected one of FGDScore"):
        read_scheduler_config(path)


def test_a_profile_of_kube_schedulers_own_plugins_is_played_as_kube_scheduler_plays_it(path: Path, capsys) -> None:
    path.write_text(V1 + MOST)
    cluster, apps = path.with_name("nodes.yaml"), path.with_name("web.yaml")
    cluster.write_text(
        "---\n".join(f"{{apiVersion: v1, kind: Node, metadata: {{name: {name}}}, {ROOM}}}\n" for name in "ab")
    )
    apps.write_text(PODS)
    used = []
    for which in (["-s", str(path)], ["--policy", f"kube-scheduler:{path}"]):
        out = path.with_name(which[0])
        assert run("apply", ["--cluster", str(cluster), "--apps", str(apps), *which, "--out", str(out)]) == 0
        used.append((out / "placements.yaml").read_text())
    assert used[0] == used[1]
    assert len({line for line in used[0].splitlines() if "nodeName" in line}) == 1, "on the fullest node"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (V1 + MOST.replace("pluginConfig", "pluginConfgi"), "pluginConfgi"),
        (V1BETA1 + "profiles: [{plugins: {score: {enabled: [{name: FGDScore, weihgt: 7}]}}}]\n", "weihgt"),
        (V1 + "profiles: [{plugins: {score: {enabled: [NodeResourcesFit]}}}]\n", "NodeResourcesFit"),
        (V1BETA1 + "profiles: [{plugins: {score: {enabled: [{name: FGDScore}, {name: FGDScore}]}}}]\n", "plugin once"),
        (V1 + "profiles: yes please\n", "profiles"),
        (V1 + "parallelism: 1\nparallelism: 2\n", "stands twice"),
    ],
)
def test_what_kube_scheduler_refuses_is_told_in_a_line(text: str, said: str, path: Path) -> None:
    path.write_text(text)
    with pytest.raises(UserError, match=said) as told:
        read_scheduler_config(path)
    assert "\n" not in str(told.value)
