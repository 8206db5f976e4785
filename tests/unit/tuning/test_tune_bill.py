"""Tuning the scheduler and the NodePool together: limits come first, the pair of files is what evaluate plays."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from aaml.cli import run
from aaml.cluster.objects import Requirement
from aaml.errors import UserError
from aaml.evaluation.evaluate import evaluate
from aaml.nodes import nodepool
from aaml.nodes.catalogue_file import shipped_catalogue
from aaml.nodes.settings import KarpenterSettings
from aaml.policies.kube_scores import KubeSchedulerConfig
from aaml.sim.tasks import find_task
from aaml.study.problem import Limit, Problem
from aaml.tuning.bill import BillTuning, tune
from aaml.tuning.bill_space import SetupSpace, evaluate_setups
from aaml.tuning.space import Space

TUNED = KarpenterSettings(
    consolidation_policy="Balanced", consolidate_after_s=90.0, budgets=("30%",), batch_idle_duration_s=5.0,
    batch_max_duration_s=15.0, instance_types=("general-8", "lean-10"),
)  # fmt: skip


@pytest.fixture
def asked(tmp_path):
    task = replace(find_task("bill-when-empty"), sizes=(4,), pods=60)
    return BillTuning(task, tmp_path / "tuned", generations=1, population=4, episodes=4, seeds=tuple(range(1000, 1006)))


def test_who_keeps_the_limits_comes_before_who_is_cheaper_without():
    limits = (Limit("waiting_p99_s", slack=10.0), Limit("evicted"))
    problem = Problem(find_task("bill"), (1,), (4,), evaluate_setups, ("bill",), relative=True, limits=limits)
    start = np.array([[1.0, 40.0, 20.0]])  # dollars, seconds, evictions of an episode
    values = np.array([[[0.5, 90.0, 20.0]], [[0.9, 50.0, 20.0]], [[0.8, 50.0, 22.0]], [[1.0, 40.0, 20.0]]])
    assert problem.order(values, start, np.arange(1)).tolist() == [1, 3, 2, 0]
    assert problem.excess(values, start).tolist() == pytest.approx([40 / 50, 0, 2 / 20, 0])


@pytest.mark.slow
def test_a_pair_is_written_that_evaluate_plays_to_the_same_bill(asked):
    outcome = tune(asked)
    scheduler, pool = outcome.files
    pair = f"kube-scheduler:{scheduler}+{pool}"
    judged = evaluate({"stock": "kube-scheduler", "tuned": pair}, asked.task, asked.seeds, progress=False).frame()
    mine, stock = (judged[judged["policy"] == name].set_index("seed") for name in ("tuned", "stock"))
    found = outcome.results.frame()
    assert mine["bill"].tolist() == found[found["policy"] == "tuned"].sort_values("seed")["bill"].tolist()
    assert mine["bill"].mean() < stock["bill"].mean()
    for path in outcome.files:
        lines = (*outcome.held_out.first, *outcome.held_out.lines)
        assert all(line in path.read_text(encoding="utf-8") for line in lines), "the prediction is on top"
    assert outcome.held_out.lines[-1].startswith("the held-out episodes were looked at once, at 1 candidate")
    whole = [path.read_bytes() for path in outcome.files]
    again = replace(asked, out=asked.out.with_name("again"), generations=2)
    tune(replace(again, generations=1))
    assert tune(again, resume=True).generations == 2
    assert [path.read_bytes() for path in tune(replace(asked, out=asked.out.with_name("same"))).files] == whole


def test_a_nodepool_is_what_karpenters_definition_takes_and_reads_as_it_was_written(tmp_path):
    path = tmp_path / "nodepool.yaml"
    nodepool.write_nodepool(path, nodepool.document(TUNED), ["tuned"])
    assert nodepool.read_nodepool(path) == TUNED
    spec = yaml.safe_load(path.read_text(encoding="utf-8"))["spec"]
    disruption = spec["disruption"]  # patterns of karpenter.sh_nodepools.yaml, 1.15.0
    assert re.fullmatch(r"(([0-9]+(s|m|h))+|Never)", disruption["consolidateAfter"])
    assert re.fullmatch(r"((100|[0-9]{1,2})%|[0-9]+)", disruption["budgets"][0]["nodes"])
    assert {"group", "kind", "name"} == set(spec["template"]["spec"]["nodeClassRef"])
    assert "--batch-idle-duration 5s --batch-max-duration 15s" in path.read_text(encoding="utf-8")
    nodepool.write_nodepool(path, nodepool.document(replace(TUNED, consolidate_after_s=None)))
    assert nodepool.read_nodepool(path).consolidate_after_s is None


def test_all_else_that_a_nodepool_says_is_kept(tmp_path, caplog):
    path = tmp_path / "mine.yaml"
    path.write_text(
        "apiVersion: v1\nkind: ConfigMap\n---\napiVersion: karpenter.sh/v1\nkind: NodePool\nmetadata: {name: mine}\n"
        "spec:\n  limits: {cpu: 100}\n  template:\n    spec:\n      requirements:\n"
        "      - {key: karpenter.k8s.aws/instance-category, operator: In, values: [m]}\n"
        "      - {key: node.kubernetes.io/instance-type, operator: In, values: [general-8]}\n"
        "      - {key: node.kubernetes.io/instance-type, operator: NotIn, values: [general-48]}\n"
        "      nodeClassRef: {group: karpenter.k8s.aws, kind: EC2NodeClass, name: default}\n"
        "  disruption: {consolidateAfter: 1m30s, budgets: [{nodes: '3'}]}\n",
        encoding="utf-8",
    )
    found = nodepool.read_nodepool(path)
    assert (found.consolidate_after_s, found.budgets) == (90.0, ("3",))
    assert found.instance_types == ("general-8",)
    assert found.requirements == (Requirement("node.kubernetes.io/instance-type", "NotIn", ("general-48",)),)
    unknown = (
        "not modelled here: the requirement In on karpenter.k8s.aws/instance-category, interruptions of spot nodes"
    )
    assert f"{unknown}, limits" in caplog.text, "it says what it does not know"
    written = nodepool.document(TUNED, nodepool.load_nodepool(path))
    assert written["metadata"]["name"] == "mine"
    assert written["spec"]["template"]["spec"]["nodeClassRef"]["kind"] == "EC2NodeClass"
    assert [each["key"] for each in written["spec"]["template"]["spec"]["requirements"]] == [
        "karpenter.k8s.aws/instance-category", "node.kubernetes.io/instance-type", "node.kubernetes.io/instance-type",
    ]  # fmt: skip


def test_what_a_nodepool_forbids_at_times_and_of_types_stays_forbidden(tmp_path):
    """A freeze at night, of which the search plays nothing, and types that may not be bought."""
    path = tmp_path / "mine.yaml"
    path.write_text(
        "apiVersion: karpenter.sh/v1\nkind: NodePool\nmetadata: {name: mine}\nspec:\n"
        "  disruption: {budgets: [{nodes: 20%}, {nodes: '0', schedule: '@daily', duration: 8h}, "
        "{nodes: '1', reasons: [Drifted]}]}\n"
        "  template: {spec: {requirements: [{key: node.kubernetes.io/instance-type, operator: In, minValues: 2,"
        " values: [general-2, general-4, general-8, general-16]}]}}\n",
        encoding="utf-8",
    )
    own, base = nodepool.read_nodepool(path), nodepool.load_nodepool(path)
    space = SetupSpace(
        Space.of_size(KubeSchedulerConfig(), 4), own, shipped_catalogue(own.labels), nodepool.least_values(base)
    )
    rng, parents, lists = np.random.default_rng(1), space.beginnings(), set()
    for _ in range(300):
        child = space.child(parents, rng)
        written = nodepool.document(child.pool, base)
        assert written["spec"]["disruption"]["budgets"][-2:] == [
            {"nodes": "0", "schedule": "@daily", "duration": "8h"}, {"nodes": "1", "reasons": ["Drifted"]},
        ]  # fmt: skip
        nodepool.write_nodepool(tmp_path / "tuned.yaml", written)
        assert nodepool.read_nodepool(tmp_path / "tuned.yaml").budgets == child.pool.budgets
        (requirement,) = written["spec"]["template"]["spec"]["requirements"]
        assert set(requirement["values"]) <= set(own.instance_types)
        assert len(requirement["values"]) >= requirement["minValues"] == 2
        lists.add(tuple(requirement["values"]))
    assert len(lists) > 1


@pytest.mark.parametrize(
    ("label", "values"), [("karpenter.kwok.sh/instance-family", 4), ("karpenter.kwok.sh/instance-cpu", 6)]
)
def test_min_values_of_any_label_are_left(tmp_path, label, values):
    """Karpenter buys nothing from a NodePool that lets fewer be bought."""
    path = tmp_path / "mine.yaml"
    path.write_text(
        "apiVersion: karpenter.sh/v1\nkind: NodePool\nspec:\n  template: {spec: {requirements: ["
        f"{{key: {label}, operator: Exists, minValues: {values}}}]}}}}\n",
        encoding="utf-8",
    )
    own, base = nodepool.read_nodepool(path), nodepool.load_nodepool(path)
    sold = shipped_catalogue()
    space = SetupSpace(Space.of_size(KubeSchedulerConfig(), 4), own, sold, nodepool.least_values(base))
    rng, parents, lists = np.random.default_rng(1), space.beginnings(), set()
    for _ in range(300):
        lists.add(space.child(parents, rng).pool.instance_types)
    for names in lists - {()}:
        assert len(frozenset[str]().union(*(sold[name].described[label].listed for name in names))) >= values
    assert len(lists) > 1


def test_types_stay_where_nobody_knows_the_values_of_a_label(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(
        "apiVersion: karpenter.sh/v1\nkind: NodePool\nspec:\n  template: {spec: {requirements: ["
        "{key: karpenter.k8s.aws/instance-family, operator: Exists, minValues: 3}]}}\n",
        encoding="utf-8",
    )
    own, base = nodepool.read_nodepool(path), nodepool.load_nodepool(path)
    least = nodepool.least_values(base)
    space = SetupSpace(Space.of_size(KubeSchedulerConfig(), 4), own, shipped_catalogue(), least)
    rng, parents = np.random.default_rng(1), space.beginnings()
    assert {space.child(parents, rng).pool.instance_types for _ in range(100)} == {()}


def test_types_are_those_that_every_requirement_allows(tmp_path):
    path = tmp_path / "nodepool.yaml"

    def of(*lists: str) -> Path:
        rows = "".join(
            f"      - {{key: node.kubernetes.io/instance-type, operator: In, values: [{each}]}}\n" for each in lists
        )
        head = "apiVersion: karpenter.sh/v1\nkind: NodePool\nspec:\n  template:\n    spec:\n      requirements:\n"
        path.write_text(head + rows, encoding="utf-8")
        return path

    assert nodepool.read_nodepool(of("a, b, c", "c, b")).instance_types == ("b", "c")
    written = nodepool.document(nodepool.read_nodepool(path), nodepool.load_nodepool(path))
    assert written["spec"]["template"]["spec"]["requirements"] == [
        {"key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["b", "c"]}
    ]
    with pytest.raises(UserError, match=r"instance-type: \['c'\] is not accepted; expected values among \['a', 'b'\]"):
        nodepool.read_nodepool(of("a, b", "c"))


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("disruption: {consolidateAfter: 15}", "spec.disruption.consolidateAfter: 15 is not"),
        ("disruption: {consolidationPolicy: Sometimes}", "consolidation_policy"),
        ("disruption: {budgets: [{nodes: 200%}]}", "budgets"),
        ("disruption: [1]", "spec.disruption"),
    ],
)
def test_what_karpenter_would_refuse_is_a_line(tmp_path, spec, said):
    path = tmp_path / "nodepool.yaml"
    path.write_text(f"apiVersion: karpenter.sh/v1\nkind: NodePool\nspec:\n  {spec}\n", encoding="utf-8")
    with pytest.raises(UserError, match=said) as error:
        nodepool.read_nodepool(path)
    assert "\n" not in str(error.value)


def test_pairs_that_are_searched_are_ones_that_karpenter_takes():
    space = SetupSpace(Space.of_size(KubeSchedulerConfig(), 20), KarpenterSettings(), shipped_catalogue())
    rng, parents = np.random.default_rng(1), space.beginnings()
    children = [space.child(parents, rng) for _ in range(200)]
    for child in children:
        assert child.pool.batch_idle_duration_s <= child.pool.batch_max_duration_s
        shipped_catalogue().meeting(child.pool.labels)
    assert len({child.pool for child in children}) > 50


def test_the_command_says_what_is_paid_and_refuses_tasks_whose_nodes_stay(tmp_path, capsys):
    short = "--generations 1 --population 2 --episodes 2 --seeds 1000..1001 --workers 1"
    assert run("search bill", f"--task bill --nodes 3 {short} --out {tmp_path}".split()) == 0
    assert "against kube-scheduler-packing: bill_per_core_hour" in capsys.readouterr().out
    assert run("search bill", f"--task compress --out {tmp_path}".split()) == 2
    assert "whose nodes are provisioned" in capsys.readouterr().err
    assert run("search bill", f"--metric decisions --out {tmp_path / 'other'}".split()) == 2
    assert "metric of bill: 'decisions' is not accepted" in capsys.readouterr().err
    assert (
        run("evaluate", f"--task compress --policies kube-scheduler+{tmp_path}/none.yaml --out {tmp_path}".split()) == 2
    )
    assert "none.yaml" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.25, "250ms"), (0.0626, "63ms"), (1.0, "1s"), (2.5, "2.5s"), (90.0, "90s"), (1234.567, "1234.567s")],
)
def test_batches_are_durations_of_go_to_the_millisecond(tmp_path, seconds, text):
    path = tmp_path / "nodepool.yaml"
    pool = replace(TUNED, batch_idle_duration_s=seconds, batch_max_duration_s=max(seconds, 2.0))
    nodepool.write_nodepool(path, nodepool.document(pool))
    assert f"--batch-idle-duration {text} " in path.read_text(encoding="utf-8")
    assert nodepool.read_nodepool(path).batch_idle_duration_s == pytest.approx(seconds, abs=5e-4)
