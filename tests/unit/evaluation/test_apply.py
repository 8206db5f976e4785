"""YAML in, placements out: worked by hand for a small GPU cluster."""

import shlex
from pathlib import Path

import pytest
import yaml

from aaml.cli import run
from aaml.errors import UserError
from aaml.evaluation.apply import apply, order, weighted_policy
from aaml.kube.objects.manifests import Manifests, load

NODE = """---
apiVersion: v1
kind: Node
metadata: {{name: {name}, labels: {{alibabacloud.com/gpu-card-model: V100}}}}
status: {{allocatable: {{cpu: 8, memory: 16Gi, pods: '10', alibabacloud.com/gpu-count: '{gpus}'}}}}
"""
POD = """---
apiVersion: v1
kind: Pod
metadata:
  name: {name}
  annotations: {{alibabacloud.com/gpu-count: '1', alibabacloud.com/gpu-milli: '{milli}'}}
spec: {{containers: [{{name: c, resources: {{requests: {{cpu: {cpu}, memory: 1Gi}}}}}}]}}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    nodes = NODE.format(name="a", gpus=1) + NODE.format(name="b", gpus=2)
    pods = "".join(POD.format(name=f"p{i}", milli=600, cpu=1) for i in range(4))
    (tmp_path / "cluster").mkdir()
    (tmp_path / "cluster" / "all.yaml").write_text(nodes + pods)
    return tmp_path


def test_each_device_takes_one_share_and_the_fourth_pod_waits_in_kube_schedulers_words(folder: Path) -> None:
    read = load([folder / "cluster"])
    applied = apply(read, order(read), weighted_policy({"best-fit": 1.0}, read.pods))
    assert applied.summary()["placed"] == 3
    assert applied.summary()["gpu %"] == pytest.approx(60.0)
    ((pod, reason),) = applied.pending
    assert pod.name == "p3"
    assert reason.startswith("0/2 nodes are available: 2 ")


def test_the_command_line_of_the_go_simulator(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config, scheduler = folder / "config.yaml", folder / "scheduler.yaml"
    config.write_text("apiVersion: simon/v1alpha1\nkind: Config\nspec: {cluster: {customConfig: cluster}}\n")
    scheduler.write_text(
        "apiVersion: kubescheduler.config.k8s.io/v1beta1\nkind: KubeSchedulerConfiguration\n"
        "profiles: [{plugins: {score: {enabled: [{name: FGDScore, weight: 1000}]}}}]\n"
    )
    line = f"--extended-resources gpu -f {config} -s {scheduler} --out {folder / 'out'}"
    assert run("apply", shlex.split(line)) == 0
    shown = capsys.readouterr().out
    assert "fgd: placed 3, pending 1" in shown
    placed = list(yaml.safe_load_all((folder / "out" / "placements.yaml").read_text()))
    where = [(d["spec"]["nodeName"], d["metadata"]["annotations"]["alibabacloud.com/gpu-index"]) for d in placed]
    assert sorted(where) == [("a", "0"), ("b", "0"), ("b", "1")]


def test_bound_pods_stay_and_unknown_nodes_are_refused(folder: Path) -> None:
    bound = folder / "bound.yaml"
    bound.write_text(POD.format(name="fixed", milli=500, cpu=7).replace("spec: {", "spec: {nodeName: b, "))
    read = load([folder / "cluster", bound])
    applied = apply(read, order(read), weighted_policy({"best-fit": 1.0, "dot-product": 2.0}, read.pods))
    assert applied.state.placements["default/fixed"].node_name == "b"
    bound.write_text(bound.read_text().replace("nodeName: b", "nodeName: z"))
    read = load([folder / "cluster", bound])
    with pytest.raises(UserError, match=r"spec\.nodeName: 'z' is none of the nodes"):
        apply(read, order(read), weighted_policy({"best-fit": 1.0}, read.pods))
    with pytest.raises(UserError, match="no Node"):
        apply(Manifests(), [], weighted_policy({"best-fit": 1.0}, []))


def test_tuning_and_shuffling_are_seeded(folder: Path) -> None:
    read = load([folder / "cluster"])
    tuned = order(read, tune_ratio=1.0, seed=3)
    assert sum(pod.gpu.total_milli for pod in tuned) <= 3000
    assert [pod.uid for pod in tuned] == [pod.uid for pod in order(read, tune_ratio=1.0, seed=3)]
    assert sorted(pod.name for pod in order(read, shuffle=True, seed=1)) == ["p0", "p1", "p2", "p3"]


RACKS = "\n---\n".join(
    f"apiVersion: v1\nkind: Node\nmetadata: {{name: n{i}, labels: {{rack: {rack}}}}}\n"
    "status: {allocatable: {cpu: 8, memory: 16Gi, pods: '10'}}"
    for i, rack in enumerate(("r0", "r0", "r1"))
)
GANG = """
apiVersion: scheduling.k8s.io/v1beta1
kind: PodGroup
metadata: {name: train}
spec: {schedulingPolicy: {gang: {minCount: %d}}, schedulingConstraints: {topology: [{key: rack}]}}
---
apiVersion: batch/v1
kind: Job
metadata: {name: train}
spec:
  parallelism: %d
  template:
    spec: {schedulingGroup: {podGroupName: train}, containers: [{name: c, resources: {requests: {cpu: 5}}}]}
"""


WORKER = """
apiVersion: v1
kind: Pod
metadata: {name: w%s}
spec: {schedulingGroup: {podGroupName: train}, %s containers: [{name: c, resources: {requests: {cpu: %s}}}]}
"""


@pytest.mark.parametrize(
    ("policy", "pods", "said"),
    [
        ("", [("", 1)], "waits for PodGroup default/train, which the files do not have"),
        ("gang: {minCount: 3}", [("", 1)], "waits for more pods of pod group train: 1 of minCount 3"),
        ("gang: {minCount: 1}", [("nodeName: n0,", 1), ("nodeName: n2,", 1), ("", 1)],
         "more than 1 domain found for pod group: r0, r1"),
        ("gang: {minCount: 2}", [("", 1), ("schedulerName: mine,", 1)],
         "all pods in a single pod group should have the same .spec.schedulerName set, got: "),
        ("basic: {}", [("nodeName: n2,", 5), ("", 5)],
         "fits on no node in rack r1, where pod group train has to be"),
    ],
)  # fmt: skip
def test_why_a_pod_of_a_group_has_no_node_is_said_by_its_cause(tmp_path, policy, pods, said):
    made = GANG.partition("---")[0].replace("gang: {minCount: %d}", policy) if policy else ""
    workers = [WORKER % (number, more, cpu) for number, (more, cpu) in enumerate(pods)]
    (tmp_path / "all.yaml").write_text("\n---\n".join([RACKS, *filter(None, [made]), *workers]))
    read = load([tmp_path / "all.yaml"])
    applied = apply(read, order(read), weighted_policy({"best-fit": 1.0}, read.pods))
    assert all(said in reason for _, reason in applied.pending), applied.pending
    assert applied.pending


@pytest.mark.parametrize(("count", "placed"), [(2, {"n0", "n1"}), (3, set())])
def test_a_gang_is_placed_in_one_rack_or_told_why_not(tmp_path, capsys, count, placed):
    (tmp_path / "nodes.yaml").write_text(RACKS)
    (tmp_path / "gang.yaml").write_text(GANG % (count, count))
    flags = ["--cluster", str(tmp_path / "nodes.yaml"), "--apps", str(tmp_path / "gang.yaml"), "--out", str(tmp_path)]
    assert run("apply", flags) == 0
    documents = yaml.safe_load_all((tmp_path / "placements.yaml").read_text())
    assert {each["spec"]["nodeName"] for each in documents if each} == placed
    said = "fits alone, but not so many of pod group train in one domain of rack (minCount 3)"
    assert (said in capsys.readouterr().out) is (not placed)
