"""An agent learns from the choices of the plugin, which a script plays, and its weights go back to the plugin."""

import hashlib
import json
import threading
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest

from aaml.cli import run as aaml
from aaml.errors import UserError
from aaml.learning.agents import load_agent
from aaml.learning.config import LIVE
from aaml.live.settings import Folders
from aaml.plugin.cluster import PluginCluster
from aaml.plugin.learn import LearnRun
from aaml.plugin.settings import LearnSettings
from support import make
from support.kwok import until
from support.learners import InThisProcess, small
from support.scripted_plugin import ScriptedPlugin

NODES = make.nodes(3, cpu=1_000_000, memory=1 << 45, pods=1000)


@pytest.fixture
def learner(monkeypatch, tmp_path):
    """A learner of some settings, with its cluster; it has its files in `tmp_path`."""
    monkeypatch.setattr("aaml.live.learner.LearnerProcess", InThisProcess)
    folders = Folders(*(tmp_path / name for name in ("tlogs", "models", "logs", "data", "deployment_data")))
    made = []

    def make_it(agent, **settings):
        told = LearnSettings(
            agent=agent, socket=tmp_path / "learn.sock", weights=tmp_path / "weights.json", tensorboard_name="inside",
            **settings,
        )  # fmt: skip
        cluster = PluginCluster(told.socket)
        made.append(cluster)
        return LearnRun(told, cluster, folders=folders)

    yield make_it
    for cluster in made:
        cluster.close()


def play_plugin(path, weights, count=60, first=0, **fields):
    """Choose nodes in turn for so many pods, bind them, and hang up."""
    with closing(ScriptedPlugin(path)) as plugin:
        plugin.hello(NODES)
        heard = plugin.heard()
        for number in range(first, first + count):
            pod = make.pod(f"p{number}", 60 + 10 * (number % 3), 1 << 26)
            plugin.choose(
                pod, f"n{number % 3}", weights=hashlib.sha256(weights.read_bytes().strip()).hexdigest(), **fields
            )
            plugin.bound(pod)
    return heard


def learn(run, count, *plays):
    """Let a run learn from what is played, in turn, until it has seen so many choices."""
    heard = []

    def played():
        until(run._weights.exists, "the first weights")
        heard.extend(each() for each in plays)

    thread = threading.Thread(target=played)
    thread.start()
    stats = run.run(count)
    thread.join()
    return stats, heard


@pytest.mark.slow
@pytest.mark.parametrize(
    ("agent", "by", "model"),
    [
        (small("dqn"), "any", "DQN_Model_inside.pth"),
        (replace(small("dqn"), encoder="gnn", use_heuristic=True), "least-requested", "GNN_Model_inside.pth"),
        (small("acdqn"), "softmax", "Actor_acdqn_inside.pth"),
        (replace(small("acdqn"), encoder="gnn"), "softmax", "Actor_acgnn_inside.pth"),
    ],
)
def test_each_agent_learns_from_the_choices_and_hands_its_weights_over(learner, tmp_path, agent, by, model):
    run, weights = learner(agent, explain=True), tmp_path / "weights.json"
    first = []

    def played():
        first.append(weights.read_bytes())
        return play_plugin(run._plugin.where, weights)

    stats, (heard,) = learn(run, 60, played)
    assert (stats.decisions, stats.binds["bound"]) == (60, 60)
    assert heard == {"type": "explore", "by": by, "chance": 1.0}  # at the first decision a DQN knows nothing
    assert run.agent.updates > 0
    assert weights.read_bytes() != first[0]
    saved = load_agent(tmp_path / "models" / model)
    assert (saved.decisions, saved.name) == (60, agent.name)
    mine, theirs = saved.weights()["network"], run.agent.weights()["network"]
    assert all(np.array_equal(mine[name], theirs[name]) for name in mine)
    name = f"{agent.name}_inside"
    assert list((tmp_path / "tlogs" / name).glob("events.*"))
    (log,) = (tmp_path / "logs").glob(f"{name}_*.log")
    events = [json.loads(line) for line in log.with_suffix(".jsonl").read_text().splitlines()]
    decided = [event for event in events if event["kind"] == "decision"]
    assert [event["node"] for event in decided] == [f"n{number % 3}" for number in range(60)]
    assert all(np.isfinite(event["reward"]) for event in decided)
    explained = [json.loads(line) for line in log.with_suffix(".explained.jsonl").read_text().splitlines()]
    assert [line["explanation"]["node"] for line in explained][:3] == ["n0", "n1", "n2"]


@pytest.mark.slow
def test_a_plugin_that_goes_and_comes_back_is_learned_from_on(learner, tmp_path):
    run, weights = learner(small("acdqn"), records=False), tmp_path / "weights.json"
    half = lambda first: lambda: play_plugin(run._plugin.where, weights, 30, first)  # noqa: E731
    stats, _ = learn(run, 60, half(0), half(30))
    assert stats.decisions == 60
    assert stats.binds["bound"] == 60
    assert run.agent.updates > 0


@pytest.mark.slow
@pytest.mark.parametrize("agent", [replace(small("acdqn"), segment=8), small("dqn")], ids=["acdqn", "dqn"])
def test_a_learner_that_starts_again_goes_on_from_what_it_kept_beside_the_weights(learner, tmp_path, caplog, agent):
    weights = tmp_path / "weights.json"
    first = learner(agent)
    learn(first, 60, lambda: play_plugin(first._plugin.where, weights))
    first._plugin.close()
    again = learner(agent)  # no model is named, though weights are there
    assert again.agent.updates == first.agent.updates > 0
    for mine, theirs in zip(again.agent.network.parameters(), first.agent.network.parameters(), strict=True):
        np.testing.assert_array_equal(mine.detach().numpy(), theirs.detach().numpy())
    assert "which an earlier start kept" not in caplog.text
    learn(again, 1, lambda: play_plugin(again._plugin.where, weights, 1, first=60))
    kept = {"acdqn": "Actor_acdqn_weights.pth", "dqn": "DQN_Model_dqn_weights.pth"}[agent.name]
    assert f"goes on from {tmp_path / kept}, which an earlier start kept" in caplog.text


def test_who_chose_in_the_networks_place_is_in_the_log(learner, tmp_path, caplog):
    run, weights = learner(small("acdqn"), log_scrolling=True, records=False), tmp_path / "weights.json"
    learn(run, 4, lambda: play_plugin(run._plugin.where, weights, 4, by="kube-scheduler"))
    assert "decision 3: default/p3 -> n0 (3 feasible" in caplog.text
    assert ", by kube-scheduler)" in caplog.text


def test_a_plugin_that_reads_another_weights_file_is_told_of(learner, tmp_path, caplog, monkeypatch):
    monkeypatch.setattr("aaml.plugin.learn._STRANGE_S", 0.0)
    run, other = learner(small("acdqn"), records=False), tmp_path / "other.json"
    other.write_text("{}")
    learn(run, 4, lambda: play_plugin(run._plugin.where, other, 4))
    assert f"decides by other weights than those of {tmp_path / 'weights.json'}" in caplog.text


def test_weights_that_are_there_are_not_overwritten_by_an_agent_that_knows_nothing(learner, tmp_path):
    (tmp_path / "weights.json").write_text("{}")
    with pytest.raises(UserError, match="expected the model that the plugin was exported from"):
        learner(LIVE["dqn"])


def test_the_command_says_in_a_line_where_it_cannot_listen(tmp_path, capsys):
    (tmp_path / "taken").mkdir()
    arguments = ["--socket", str(tmp_path / "taken"), "--weights", str(tmp_path / "w.json")]
    assert aaml("learn", ["acdqn", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "socket" in error
    assert not (tmp_path / "w.json").exists()
