"""Explanations in a scheduler's log, and the command that finds them."""

import json

import pytest

from aaml.cli import run
from aaml.errors import UserError
from aaml.live.explaining import logged
from aaml.live.observers.explanations import Explanations
from aaml.policies.registry import make_policy
from aaml.scheduling.play import play
from aaml.scheduling.ports import Observer
from aaml.sim.cluster import SimCluster
from aaml.telemetry.writers import JsonLinesWriter
from support import make


@pytest.fixture
def log(tmp_path):
    """The log of two pods on two nodes of 4 CPU: the second is explained with the first on its node."""
    path = tmp_path / "run.explained.jsonl"
    policy = make_policy("least-allocated")
    cluster = SimCluster(make.nodes(2), [make.pod("first", 1000), make.pod("second", 1000)])
    observer = Explanations(JsonLinesWriter(path), policy)
    play(cluster, policy, observers=[observer])
    observer.close()
    return path


def test_a_decision_is_found_by_its_number_and_by_its_pod(log):
    assert logged(log, 1).pod == logged(log, "second").pod == logged(log, "default/second").pod == "default/second"
    assert (logged(log, 0).node, logged(log, 1).node) == ("n0", "n1")
    assert logged(log, 1).margin > 0, "the state is that before the pod was placed: n0 holds the first one alone"
    assert set(logged(log, 1).seconds) == {"filters and features", "policy", "carrying it out"}


def test_the_newest_decision_is_in_the_log_while_the_scheduler_goes_on(tmp_path):
    path, policy = tmp_path / "run.explained.jsonl", make_policy("least-allocated")
    observer, found = Explanations(JsonLinesWriter(path), policy), []

    class Reader(Observer):
        def on_decision(self, context, decision, outcome):
            found.append(logged(path, context.pod.name).node)

    play(SimCluster(make.nodes(2), [make.pod("first"), make.pod("second")]), policy, observers=[observer, Reader()])
    assert found == ["n0", "n1"]


def test_what_is_not_in_a_log_is_told_in_one_line(log, tmp_path, capsys):
    with pytest.raises(UserError, match="pod: 'third' is not accepted; expected a pod or the number of a decision"):
        logged(log, "third")
    (empty := tmp_path / "empty.jsonl").write_text('{"kind": "decision"}\n')
    with pytest.raises(UserError, match="run the scheduler with --explain"):
        logged(empty, 0)
    assert run("explain", ["3", "--run", str(tmp_path)]) == 2
    assert "expected a folder of `aaml evaluate` or `aaml train`" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "name", "what"),
    [
        (["--task", "balance"], "task", "a live pod"),
        (["--seed", "0"], "seed", "a live pod"),
        (["--run", "a.jsonl", "--policy", "random"], "policy", "the log of a scheduler"),
        (["--run", "runs", "--expected-pods", "nope.csv"], "expected_pods", "a decision of a run"),
        (["--run", "runs", "--kubeconfig", "nope"], "kubeconfig", "a decision of a run"),
    ],
)
def test_a_flag_that_cannot_count_is_refused(capsys, flags, name, what):
    assert run("explain", ["1", *flags]) == 2
    assert f"{name}: is of no use for {what}; leave it out" in capsys.readouterr().err


def test_the_command_prints_text_and_json(log, capsys):
    assert run("explain", ["second", "--run", str(log)]) == 0
    assert "default/second" in capsys.readouterr().out
    assert run("explain", ["1", "--run", str(log), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["node"] == "n1"
