"""Shadow lines and their report, on a cluster small enough to work out by hand."""

import hashlib
import json
import resource
from statistics import fmean

import pytest

from aaml.cli import run
from aaml.cluster.filters import feasible
from aaml.cluster.objects import Node, Pod
from aaml.cluster.quantity import CPU, MEMORY, PODS
from aaml.cluster.state import ClusterState
from aaml.errors import UserError
from aaml.live.observers.shadow import Player, ShadowLog, pool_of
from aaml.live.shadow import read_records, read_report
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
    shadow = ShadowLog(str(path), cluster, Player("spread"))

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
    (found,) = read_report(path).players
    assert found.pods == 2, "a pod counts once"
    assert found.expected_agreement == 0.5
    empty = found.comparisons[1]
    assert (empty.objective, empty.policy, empty.chosen, empty.paired.difference.mean) == (
        "empty_nodes",
        0.5,
        1.0,
        -0.5,
    )
    assert run("report shadow", [str(path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["players"][0]["comparisons"][1]
    assert told["paired"]["difference"]["mean"] == -0.5


def line(uid, *, source="", sha256="", pool="", policy=(0.1, 2.0), chosen=(0.1, 2.0), **more):
    """A line of a log, with the variance and the empty nodes after both choices."""
    return {
        "uid": uid, "policy": "gnn", "source": source, "sha256": sha256, "scheduler": "default-scheduler",
        "chosen_pool": pool, "agree": policy == chosen, "feasible_nodes": 4, "chosen_feasible": True,
        "objectives": {name: {"policy": policy[place], "chosen": chosen[place]}
                       for place, name in enumerate(("variance", "empty_nodes"))}, **more,
    }  # fmt: skip


@pytest.fixture
def several(tmp_path):
    """Eight pods on two pools and two models of one kind: one spreads better on big nodes, one does nothing else."""
    path = tmp_path / "log.jsonl"
    logged = []
    for number in range(8):
        pool, gain = ("big", 0.02 + number / 1000) if number < 5 else ("small", 0.0)
        logged.append(line(f"u{number}", source="models/a.pth", sha256="aa", pool=pool,
                           policy=(0.1 - gain, 1.0), chosen=(0.1, 3.0)))  # fmt: skip
        logged.append(line(f"u{number}", source="models/b.pth", sha256="bb", pool=pool))
    path.write_text("".join(json.dumps(each) + "\n" for each in logged))
    return path, logged


def test_models_that_share_a_log_and_a_name_are_told_apart(several) -> None:
    path, _ = several
    first, second = read_report(path).players
    assert (first.player.source, first.pods, first.agreement) == ("models/a.pth", 8, 0.0)
    assert (second.player.source, second.pods, second.agreement) == ("models/b.pth", 8, 1.0)
    said = str(read_report(path))
    assert "gnn from models/a.pth (aa) beside default-scheduler: 8 pods" in said
    assert "gnn from models/b.pth (bb) beside default-scheduler: 8 pods" in said


def test_there_is_a_verdict_an_objective_and_pool_with_its_direction_in_words_and_its_unit(several) -> None:
    """Less variance is better; a model that leaves one empty node where the scheduler left three packs worse."""
    path, _ = several
    first, second = read_report(path).players
    said = str(first)
    assert "variance, lower is better, in fraction squared: variance of use over nodes" in said
    assert "empty_nodes, higher is better, in nodes: nodes without a pod" in said
    verdicts = {(each.objective, each.pool): each.paired.verdict for each in first.comparisons}
    assert verdicts["variance", "big"] == "better"
    assert verdicts["variance", ""] == "better"
    assert verdicts["empty_nodes", ""] == "worse"
    assert "all nodes, 8 pods: 1 against 3: " in said
    assert "less, worse" in said
    assert "pool small, 3 pods: 0.1 against 0.1" in said
    assert {each.paired.verdict for each in second.comparisons if not each.pool} == {"level"}


def test_each_number_is_that_of_the_raw_lines(several, capsys) -> None:
    path, logged = several
    assert run("report shadow", [str(path), "--json"]) == 0
    for told in json.loads(capsys.readouterr().out)["players"]:
        mine = [each for each in logged if each["source"] == told["player"]["source"]]
        assert told["pods"] == len(mine)
        assert told["agreement"] == sum(each["agree"] for each in mine) / len(mine)
        assert told["expected_agreement"] == 1 / 4
        for judged in told["comparisons"]:
            here = [each["objectives"][judged["objective"]] for each in mine
                    if judged["pool"] in ("", each["chosen_pool"])]  # fmt: skip
            assert judged["policy"] == pytest.approx(fmean(each["policy"] for each in here))
            assert judged["chosen"] == pytest.approx(fmean(each["chosen"] for each in here))
            difference = judged["paired"]["difference"]
            assert difference["mean"] == pytest.approx(fmean(each["policy"] - each["chosen"] for each in here))
            assert difference["count"] == len(here)


def test_who_looks_on_is_a_name_and_the_content_of_the_file_that_it_comes_from(tmp_path) -> None:
    (tmp_path / "mine.py").write_text("x = 1\n")
    (tmp_path / "m.pth").write_bytes(b"weights")
    assert Player.of("gnn", str(tmp_path / "m.pth")).sha256 == hashlib.sha256(b"weights").hexdigest()
    assert Player.of("mine", f"{tmp_path}/mine.py:mine").sha256 == hashlib.sha256(b"x = 1\n").hexdigest()
    assert Player.of("least-variance") == Player("least-variance", "", "")


def test_a_pool_is_what_a_nodes_labels_say() -> None:
    assert pool_of(Node("n", {}, {"cloud.google.com/gke-nodepool": "gpus"})) == "gpus"
    assert pool_of(Node("n", {}, {"node.kubernetes.io/instance-type": "m5", "eks.amazonaws.com/nodegroup": "x"})) == "x"
    assert pool_of(Node("n", {})) == ""


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


def test_a_full_disk_leaves_lines_out_and_the_log_can_be_read_and_goes_on(tmp_path, caplog):
    cluster, path = Watched(), tmp_path / "shadow.jsonl"

    def decide(shadow):
        context = Context(cluster.state, pod("p"), feasible(cluster.state, pod("p")).mask)
        cluster.state.assume(context.pod, "a")
        shadow.on_decision(context, Decision(0), Outcome("assumed", 0.0, "a"))
        cluster.state.forget("p")

    shadow = ShadowLog(str(path), cluster, Player("spread"))
    decide(shadow)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 40, before[1]))
    try:
        for _ in range(3):
            decide(shadow)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [record.message for record in caplog.records] == [
        f"{path} cannot be written (File too large): left out until they can"
    ]
    decide(shadow)
    shadow.close()
    assert len(read_records(path)) == 3, "the first that did not fit waited for room"
