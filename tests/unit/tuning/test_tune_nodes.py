"""Tuning a policy of nodes: what is searched, that it repeats, and what is told of it."""

from dataclasses import replace

import numpy as np
import pytest

from aaml.cli import run
from aaml.nodes.file import read_autoscaler
from aaml.nodes.node_policy import NodePolicy
from aaml.policies.heuristics import PolicyOptions
from aaml.policies.registry import make_policy
from aaml.scheduling.play import play
from aaml.sim.recorded_bill import under
from aaml.sim.tasks import find_task
from aaml.tuning.nodes import RANGES, NodePolicyTuning, evaluate_nodes, of_vector, to_vector, tune


def test_a_vector_stands_for_a_policy_within_the_ranges():
    start = NodePolicy(idle_s=5.0, patience_s=25.0, margin=0.25)
    assert of_vector(to_vector(start), start) == start
    far = of_vector(np.full(len(RANGES), 7.0), start)
    assert {name: getattr(far, name) for name in RANGES} == {name: high for name, (_, high) in RANGES.items()}
    middle = of_vector(np.full(len(RANGES), 0.5), start)
    assert middle.margin == 0.3
    assert middle.patience_s == pytest.approx(120**0.5, abs=1e-3)  # halfway by its logarithm


@pytest.mark.parametrize("name", ["first-come-packing", "kube-scheduler-packing", "best-fit"])
def test_candidates_are_judged_as_the_simulator_plays_them(name):
    task, policy, metrics = find_task("bill"), NodePolicy(patience_s=20.0), ("bill", "evicted", "waiting_p99_s")
    cluster = under(task, policy).build(1, 4)
    play(cluster, make_policy(name, PolicyOptions(seed=1)))
    expected = [cluster.metrics()[metric] for metric in metrics]
    assert evaluate_nodes(task, 1, 4, [(name, policy)], metrics)[0] == pytest.approx(expected, rel=1e-12)


def test_the_same_search_writes_the_same_file_which_says_what_it_pays(tmp_path):
    asked = NodePolicyTuning(
        replace(find_task("bill"), sizes=(2,)), tmp_path / "one.yaml", generations=1, population=4, episodes=1,
        seeds=(1000, 1001),
    )  # fmt: skip
    found = tune(asked)
    again = tune(replace(asked, out=tmp_path / "two.yaml"))
    assert again.policy == found.policy == read_autoscaler(asked.out)
    assert all(line in asked.out.read_text(encoding="utf-8") for line in found.held_out.lines)
    assert "against kube-scheduler-packing" in "".join(found.held_out.lines)


def test_the_command_refuses_what_is_no_policy_to_start_with(tmp_path, capsys):
    assert run("search nodes", f"--start {tmp_path}/none.yaml --out {tmp_path}/out.yaml".split()) == 2
    said = capsys.readouterr().err
    assert f"start: '{tmp_path}/none.yaml' is not accepted; expected a policy of nodes, as `aaml search nodes`" in said
    assert "NodePool" not in said
