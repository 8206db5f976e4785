"""The tasks that are judged by dollars: as a command, and as a task of one's own."""

import csv
from dataclasses import replace
from pathlib import Path

import pytest

import aaml
from aaml.cli import run
from aaml.errors import UserError
from aaml.learning.linear import load_linear
from aaml.nodes.settings import KarpenterSettings, NodeTimes
from aaml.plugin.weights import weights
from aaml.policies.heuristics import PolicyOptions
from aaml.policies.heuristics.linear import FEATURES
from aaml.policies.registry import make_policy
from aaml.scheduling.play import play
from aaml.sim.tasks import find_task
from support.nodes_to_buy import CATALOGUE

RULES = Path(__file__).parents[3] / "examples" / "bill_rules.py"


def test_the_command_compares_policies_by_what_nodes_cost(tmp_path, capsys):
    out = tmp_path / "bill"
    arguments = f"--task bill --nodes 4 --seeds 1..5 --pods 60 --workers 1 --out {out}".split()
    assert run("evaluate", [*arguments, "--policies", "kube-scheduler", "kube-scheduler-packing"]) == 0
    said = capsys.readouterr().out
    assert "bill, 4 nodes, 60 pods" in said
    assert "cost" in said
    with (out / "results.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["nodes"] for row in rows} == {"4"}, "as many as were asked for, however many were bought"
    assert all(float(row["cost"]) >= float(row["bill"]) > 0.0 for row in rows)
    assert all(float(row["fluid_ratio"]) > 1.0 for row in rows), "nobody is cheaper than the bound"
    assert run("report compare", [str(out), "--metric", "bill_per_core_hour", "--out", str(tmp_path / "compared")]) == 0
    assert "bill_per_core_hour" in capsys.readouterr().out


def test_a_task_of_ones_own_says_what_is_bought_how_and_by_whom():
    class Nobody:
        next_s = float("inf")

        def act(self, _seen):
            return ()

        def copy(self):
            return self

    task = replace(aaml.task("bill"), catalogue=CATALOGUE, fixed_prices=True, times=NodeTimes(registration_delay_s=1.0))
    assert task.drawn_catalogue(5) is CATALOGUE
    cluster = task.build(1, 3, pods=40)
    play(cluster, make_policy("first-fit"))
    labels = {node.labels["node.kubernetes.io/instance-type"] for node in cluster.state.nodes}
    assert labels <= {"small", "medium", "large"}
    assert cluster.metrics()["waiting_p99_s"] < 20.0, "nodes are there after two seconds"
    cluster = replace(task, autoscaler=lambda _catalogue, _rng: Nobody()).build(1, 3, pods=40)
    play(cluster, make_policy("first-fit"))
    told = cluster.metrics()
    assert (told["bill"], told["bound"], told["pending"]) == (0.0, 0.0, 40.0)
    with pytest.raises(UserError, match=r"budgets: .* is not accepted"):
        KarpenterSettings(budgets=("a tenth",))
    with pytest.raises(UserError, match="consolidation_policy: 'Always' is not accepted; expected one of"):
        KarpenterSettings(consolidation_policy="Always")


def test_only_empty_nodes_go_with_when_empty_and_a_packing_scheduler_then_pays_less():
    bills = {}
    for policy in ("kube-scheduler", "kube-scheduler-packing"):
        told = []
        for seed in range(1, 5):
            cluster = find_task("bill-when-empty").build(seed, 8)
            play(cluster, make_policy(policy))
            told.append(cluster.metrics())
        assert sum(each["evicted"] for each in told) == 0
        bills[policy] = sum(each["bill"] for each in told)
    assert bills["kube-scheduler-packing"] < 0.95 * bills["kube-scheduler"]


def test_a_scorer_is_trained_on_what_nodes_cost_and_its_file_says_that_it_reads_it(tmp_path, capsys):
    episodes = "--task bill --nodes 3 --pods 20 --validation_episodes 1"
    assert run("train", f"--agent linear {episodes} --steps 1 --costs --out {tmp_path}".split()) == 0
    assert "of most-allocated's" in capsys.readouterr().out, "packing is where the search begins"
    (model,) = (tmp_path / "model").glob("*.json")
    scorer = load_linear(model)
    assert scorer.observation_spec.costs
    assert scorer.weights[:, FEATURES.index("disruption_order")].any()
    with pytest.raises(UserError, match="it reads what nodes cost, which kube-scheduler does not know"):
        weights(scorer)


@pytest.mark.parametrize(
    "rule",
    [
        "cheapest_first", "dearest_first", "oldest_first", "spare_the_next", "spare_the_first", "restarted_first",
        "kept_together", "CheapestExtension", "CheapestExtensionKnown",
    ],
)  # fmt: skip
def test_the_rules_of_the_example_place_pods_by_what_nodes_cost(rule):
    task = find_task("bill")
    policy = make_policy(f"{RULES}:{rule}", PolicyOptions(expected=task.expected()))
    cluster = task.build(1, 3, pods=20)
    assert play(cluster, policy).outcomes["assumed"] >= 20
