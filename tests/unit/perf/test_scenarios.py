"""What is read of Kubernetes' benchmark: a hand-made copy of its form, and templates as Go's text/template renders."""

import pytest

from aaml.errors import UserError
from aaml.perf import scenarios
from aaml.perf.cluster import gates_text, server_gates
from aaml.perf.operations import CreateNodes, CreatePods
from aaml.perf.player import PlayResult, PodCounts
from aaml.perf.report import compare, header, rows, summary
from aaml.perf.schedulers import command
from aaml.perf.session import PlayJob, jobs
from aaml.perf.templates import read_object, render

CONFIG = """
- name: Basic
  featureGates: {SchedulerQueueingHints: true, Shared: true}
  defaultPodTemplatePath: ../pod.yaml
  workloadTemplate:
  - {opcode: createNodes, countParam: $nodes}
  - opcode: createPodSets
    count: 2
    namespacePrefix: set
    createPodsOp: {opcode: createPods, countParam: $pods, collectMetrics: true}
  workloads:
  - {name: 5Nodes, labels: [integration-test], params: {nodes: 5, pods: 3}}
  - {name: 500Nodes, featureGates: {SchedulerQueueingHints: false}, params: {nodes: 500, pods: 1000}}
- name: Devices
  workloadTemplate:
  - {opcode: createNodes, count: 1}
  - {opcode: createAny, templatePath: ../class.yaml}
  - {opcode: createPods, count: 1}
  workloads:
  - {name: fast, labels: [integration-test, short]}
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "misc").mkdir()
    (tmp_path / "misc" / "performance-config.yaml").write_text(CONFIG)
    (tmp_path / "pod.yaml").write_text("{metadata: {generateName: pod-}, spec: {containers: []}}")
    (tmp_path / "class.yaml").write_text("{apiVersion: resource.k8s.io/v1, kind: DeviceClass, metadata: {name: a}}")
    return tmp_path


def test_a_workload_puts_its_numbers_into_the_operations_and_its_gates_over_the_scenario_s(folder):
    small, large, devices = scenarios.read(folder)
    assert (small.name, large.name, devices.name) == ("Basic/5Nodes", "Basic/500Nodes", "Devices/fast")
    assert [type(step) for step in small.steps] == [CreateNodes, CreatePods, CreatePods]
    assert [step.namespace for step in small.steps[1:]] == ["set-0", "set-1"]
    assert [step.count for step in large.steps] == [500, 1000, 1000]
    assert large.steps[1].pod_template_path == "../pod.yaml"
    assert large.gates == {"SchedulerQueueingHints": False, "Shared": True}
    assert (small.nodes, large.nodes, small.refused, devices.refused) == (5, 500, "", "dynamic resources (DRA)")


def test_the_small_workloads_are_meant_unless_patterns_say_otherwise(folder):
    plays = scenarios.read(folder)
    assert [play.name for play in scenarios.select(plays, (), ())] == ["Basic/5Nodes", "Devices/fast"]
    assert [play.name for play in scenarios.select(plays, ("B*",), ("5*",))] == ["Basic/5Nodes", "Basic/500Nodes"]
    with pytest.raises(UserError, match=r"scenario: 'Bisac' is not accepted; did you mean Basic\? Expected one of"):
        scenarios.select(plays, ("Bisac",), ())
    with pytest.raises(UserError, match=r"workload: '7Nodes' is not accepted; did you mean 5Nodes\? Expected one"):
        scenarios.select(plays, ("Basic",), ("7Nodes",))


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (
            "createNodes, countParam: $nodes",
            "createNodes, countParam: $notes",
            r"\$notes: the workload does not say it",
        ),
        ("opcode: createAny", "opcode: createRain", "createRain"),
        ("collectMetrics: true", "collectMetric: true", "collectMetric"),
        ("- name: Basic", "- [", "performance-config.yaml: while parsing"),
    ],
)
def test_what_is_not_understood_is_told_in_one_line(folder, before, after, message):
    (folder / "misc" / "performance-config.yaml").write_text(CONFIG.replace(before, after))
    with pytest.raises(UserError, match=message) as told:
        scenarios.read(folder)
    assert "\n" not in str(told.value)


def test_a_missing_module_is_told_with_the_command_that_brings_it(monkeypatch, tmp_path):
    monkeypatch.setenv("GOMODCACHE", str(tmp_path))
    with pytest.raises(UserError, match=r"not in Go's module cache.*go(\S*) -C \S+ mod download k8s.io/kubernetes"):
        scenarios.benchmark_dir()


def test_templates_render_as_text_template_does():
    """Values worked out by hand: Go's integer division and remainder of 27."""
    text = "a-{{ .Index }} {{.Count}} 8{{ Mod .Index 12 }} {{DivideInt .Index 10}} {{ DivideInt 30000 .Count }}"
    assert render(text, 27, 40) == "a-27 40 83 2 750"
    with pytest.raises(UserError, match=r"\{\{\.Name\}\} is not known; expected \.Index"):
        render("{{ .Name }}", 0, 1)


def test_field_names_are_taken_in_any_case_as_go_takes_them(tmp_path):
    file = tmp_path / "pod.yaml"
    file.write_text("spec: {topologySpreadConstraints: [{maxSkew: 1, NodeTaintsPolicy: Honor}]}")
    assert read_object(file)["spec"]["topologySpreadConstraints"] == [{"maxSkew": 1, "nodeTaintsPolicy": "Honor"}]
    read_object(file)["spec"].clear()
    assert read_object(file)["spec"]  # each caller has an object of its own


def test_gates_of_the_scheduler_stay_off_the_api_server_and_hints_are_turned_off_by_emulation(tmp_path):
    gates = {"SchedulerQueueingHints": False, "DynamicResourceAllocation": True}
    assert server_gates(gates) == {"DynamicResourceAllocation": True}
    assert gates_text(gates) == "DynamicResourceAllocation=true,SchedulerQueueingHints=false"
    line = command("kube-scheduler", tmp_path / "k", gates, tmp_path)
    assert "--emulated-version=kube=1.33" in line
    assert f"--feature-gates={gates_text(gates)}" in line
    line = command("kube-scheduler", tmp_path / "k", {"SchedulerQueueingHints": True}, tmp_path)
    assert "--feature-gates=OpportunisticBatching=false,SchedulerQueueingHints=true" in line


def test_large_workloads_come_in_turns_and_small_ones_scheduler_by_scheduler(folder):
    small, large, _ = scenarios.read(folder)
    order = [(job.play.workload, job.scheduler, job.round) for job in jobs((large, small), ("kube", "ours"), 2)]
    assert order == [
        ("5Nodes", "kube", 0), ("5Nodes", "kube", 1), ("5Nodes", "ours", 0), ("5Nodes", "ours", 1),
        ("500Nodes", "kube", 0), ("500Nodes", "ours", 0), ("500Nodes", "kube", 1), ("500Nodes", "ours", 1),
    ]  # fmt: skip


def test_what_only_kube_scheduler_honours_is_played_by_it_and_by_plugins_in_it(folder):
    *_, devices = scenarios.read(folder)
    assert jobs((devices,), ("kube-scheduler", "ours"), 1) == []
    players = [job.scheduler for job in jobs((devices,), ("kube-scheduler", "ours", "plugin:mine.pth"), 1)]
    assert players == ["kube-scheduler", "plugin:mine.pth"]


def test_a_table_says_what_agrees_what_differs_and_what_is_not_honoured(folder):
    small, large, devices = scenarios.read(folder)
    same, other = PodCounts(6, 0, 0), PodCounts(5, 1, 0)
    outcomes = {
        PlayJob(small, "kube"): PlayResult(PodCounts(6, 3, 0), same, 10.0),
        PlayJob(small, "ours"): PlayResult(PodCounts(6, 4, 0), same, 20.0),
        PlayJob(large, "kube"): PlayResult(same, same, 10.0),
        PlayJob(large, "ours"): PlayResult(other, other, 20.0, "5 of 6 pods of set-0 bound in 1 s"),
    }
    found = compare((small, large, devices), outcomes)
    assert [each.agrees for each in found[:2]] == [True, False]
    assert header(["kube"]) == ["scenario", "nodes", "kube: bound/pending/preempted", "kube: pods/s", "note"]
    assert rows(found, ["kube", "ours"]) == [
        ["Basic/5Nodes", "5", "6/3/0", "10", "6/4/0", "20", "agrees"],
        ["Basic/500Nodes", "500", "6/0/0", "10", "5/1/0", "20", "ours: 5 of 6 pods of set-0 bound in 1 s"],
        ["Devices/fast", "1", "", "", "", "", "not honoured: dynamic resources (DRA)"],
    ]
    assert summary(found) == "1 of 2 workloads agree with kube-scheduler; 1 are not honoured, or not played"
    differs = compare((small,), {**outcomes, PlayJob(small, "ours", 1): PlayResult(other, other, 30.0)})
    assert rows(differs, ["ours"]) == [["Basic/5Nodes", "5", "6/4/0, 5/1/0", "25 (20 to 30)", "differs"]]
