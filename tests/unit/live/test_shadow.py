"""Shadow lines and their report, on a cluster small enough to work out by hand."""

import json

import pytest

from aaml.cli import run
from aaml.cluster.filters import feasible
from aaml.cluster.objects import Node, Pod
from aaml.cluster.quantity import CPU, MEMORY, PODS
from aaml.cluster.state import ClusterState
from aaml.errors import UserError
from aaml.live.observers.shadow import ShadowLog
from aaml.live.shadow import read_report
from aaml.scheduling.observation import Context
from aaml.scheduling.ports import Attempt, Decision, Outcome


class Watched:
    """A cluster of two nodes on which a scheduler puts everything on `a`."""

    scheduler_name = "default-scheduler"

    def __init__(self) -> None:
        size = {CPU: 1000, MEMORY: 1000, PODS: 10}
        self.state = ClusterState([Node("a", size), Node("b", size)])
        self.elsewhere = "a"

    def chosen(self, uid: str) -> str:
        return self.elsewhere


def pod(name: str, **fields) -> Pod:
    return Pod(name, uid=name, requests={CPU: 500, MEMORY: 500}, **fields)


@pytest.fixture
def lines(tmp_path):
    cluster, path = Watched(), tmp_path / "shadow.jsonl"
    shadow = ShadowLog(str(path), cluster, "spread")

    def decide(name: str, ours: str) -> None:
        context = Context(cluster.state, pod(name), feasible(cluster.state, pod(name)).mask)
        cluster.state.assume(context.pod, ours)
        before = cluster.state.requested.tolist()
        shadow.on_decision(context, Decision(cluster.state.index[ours]), Outcome("assumed", 0.0, ours))
        assert cluster.state.requested.tolist() == before, "looking on leaves the state as it is"
        cluster.state.forget(name)
        if cluster.elsewhere:
            cluster.state.upsert_pod(pod(name, node_name=cluster.elsewhere))

    decide("p1", "a")
    decide("p2", "b")
    cluster.elsewhere = ""
    decide("nobody-placed-it", "b")
    cluster.elsewhere = "a"
    shadow.on_attempt(Attempt(pod("p3"), Outcome("unschedulable"), 0.01))
    shadow.close()
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_both_choices_are_judged_from_the_same_state(lines) -> None:
    assert [line["pod"] for line in lines] == ["default/p1", "default/p2", "default/p3"]
    assert (lines[0]["policy_node"], lines[0]["chosen_node"], lines[0]["agree"]) == ("a", "a", True)
    assert (lines[0]["policy"], lines[0]["scheduler"]) == ("spread", "default-scheduler")
    second = lines[1]
    assert (second["policy_node"], second["chosen_node"], second["agree"]) == ("b", "a", False)
    assert second["feasible_nodes"] == 2
    # Half used on each node: variance 0. All of a, none of b: mean 1/2, variance 1/4.
    assert second["objectives"]["variance"] == {"policy": 0.0, "chosen": 0.25}
    assert second["objectives"]["empty_nodes"] == {"policy": 0.0, "chosen": 1.0}


def test_a_pod_that_our_filters_would_not_have_placed_there_is_told(lines) -> None:
    last = lines[2]
    assert (last["policy_node"], last["chosen_node"], last["agree"]) == ("", "a", False)
    assert (last["feasible_nodes"], last["chosen_feasible"]) == (0, False)


def test_report(lines, tmp_path, capsys) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in [*lines[:2], lines[1]]))
    found = read_report(path)
    assert found.pods == 2, "a pod counts once"
    assert found.expected_agreement == 0.5
    ours, theirs, difference = found.objectives["empty_nodes"]
    assert (ours, theirs, difference.mean) == (0.5, 1.0, -0.5)
    assert "spread" in str(found)
    assert run("shadow", [str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["objectives"]["empty_nodes"][2]["mean"] == -0.5


@pytest.mark.parametrize("text", ["", "nonsense\n", '{"uid": "u"}\n', "[]\n"])
def test_what_is_no_log_is_told_in_one_line(text: str, tmp_path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(text)
    with pytest.raises(UserError, match="report:") as refusal:
        read_report(path)
    assert "\n" not in str(refusal.value)


def test_a_log_that_is_missing(tmp_path) -> None:
    with pytest.raises(UserError, match="readable shadow log"):
        read_report(tmp_path / "missing.jsonl")
