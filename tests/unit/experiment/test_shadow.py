"""Shadow lines and their report, on a cluster small enough to work out by hand."""

import io
import json
from dataclasses import replace

import pytest

from aaml.cluster.filters import feasible
from aaml.cluster.objects import Node, Pod
from aaml.cluster.quantity import CPU, MEMORY, PODS
from aaml.cluster.state import ClusterState
from aaml.errors import UserError
from aaml.experiment.shadow import Shadow, read_report
from aaml.scheduling.observation import Featurizer
from aaml.scheduling.registry import make_policy


class Watched:
    def __init__(self) -> None:
        size = {CPU: 1000, MEMORY: 1000, PODS: 10}
        self.state = ClusterState([Node("a", size), Node("b", size)])

    def feasible(self, pod):
        return feasible(self.state, pod).mask


def placed(name: str, node: str, **more) -> Pod:
    return Pod(name, uid=name, requests={CPU: 500, MEMORY: 500}, node_name=node, **more)


@pytest.fixture
def lines():
    cluster, log = Watched(), io.StringIO()
    shadow = Shadow(make_policy("least-allocated"), Featurizer(), cluster, "default-scheduler", log)
    for pod in (placed("p1", "a"), placed("p2", "a")):
        shadow.compare(pod)
        assert pod.uid not in cluster.state.placements, "looking on leaves the state as it is"
        cluster.state.upsert_pod(pod)
    shadow.compare(placed("other", "a", scheduler_name="somebody-else"))
    shadow.compare(replace(placed("p3", "a"), node_name="gone"))
    return [json.loads(line) for line in log.getvalue().splitlines()]


def test_both_choices_are_judged_from_the_same_state(lines) -> None:
    assert [line["pod"] for line in lines] == ["default/p1", "default/p2"]
    second = lines[1]
    assert (second["policy_node"], second["chosen_node"], second["agree"]) == ("b", "a", False)
    assert second["feasible_nodes"] == 2
    # Half used on each node: variance 0. All of a, none of b: mean 1/2, variance 1/4.
    assert second["objectives"]["variance"] == {"policy": 0.0, "chosen": 0.25}
    assert second["objectives"]["empty_nodes"] == {"policy": 0.0, "chosen": 1.0}


def test_report(lines, tmp_path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in [*lines, lines[1]]))
    found = read_report(path)
    assert found.pods == 2, "a pod counts once"
    assert found.expected_agreement == 0.5
    ours, theirs, difference = found.objectives["empty_nodes"]
    assert (ours, theirs, difference.mean) == (0.5, 1.0, -0.5)
    assert "least-allocated" in str(found)


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
