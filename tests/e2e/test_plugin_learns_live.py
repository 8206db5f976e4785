"""Each of the four agents learns inside the real kube-scheduler, which needs none of them to go on."""

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from aaml.kube.provision import KwokCluster
from aaml.learning.config import NetworkAgent
from aaml.live.settings import Folders
from aaml.plugin.build import build
from aaml.plugin.cluster import PluginCluster
from aaml.plugin.configuration import ProfileOptions
from aaml.plugin.export import ExportOptions, export
from aaml.plugin.learn import LearnRun
from aaml.plugin.settings import LearnSettings
from aaml.threads import Background
from plugin_process import PluginProcess
from support.kwok import pod, pods, until
from support.learners import InThisProcess, small
from support.processes import AAML

NAME = "learning"


@pytest.fixture(scope="module")
def plugin(kwok: KwokCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PluginProcess]:
    """A plugin at work that tells what it decides at `learn.sock` in its folder."""
    folder = tmp_path_factory.mktemp("plugin")
    module = export("varied-acdqn", folder / "plugin", ExportOptions(ProfileOptions(learn=str(folder / "learn.sock"))))
    build(module, progress=False)
    with PluginProcess(module, kwok.kubeconfig, folder, scheduler_name=NAME) as process:
        yield process


def count(plugin: PluginProcess, name: str) -> float:
    """Return a counter of the plugin's."""
    found = re.search(rf"^aaml_plugin_{name} (\S+)$", plugin.ask("/metrics"), re.MULTILINE)
    assert found, name
    return float(found[1])


def in_force(plugin: PluginProcess) -> str:
    """Return the hash of the weights that decide."""
    (line,) = (each for each in plugin.ask("/metrics").splitlines() if each.startswith("aaml_plugin_weights_info{"))
    return line


def place(kwok: KwokCluster, namespace: str, prefix: str, number: int) -> None:
    """Create pods, and wait until kube-scheduler has bound all there are."""
    api = kwok.api()
    for each in range(number):
        made = pod(f"{prefix}-{each}", schedulerName=NAME)
        api.request("POST", f"/api/v1/namespaces/{namespace}/pods", made)
    until(lambda: all(each["spec"].get("nodeName") for each in pods(api, namespace)), "all pods bound")


@pytest.mark.parametrize(
    "agent",
    [
        small("dqn"), replace(small("dqn"), encoder="gnn"),
        replace(small("acdqn"), segment=8), replace(small("acdqn"), segment=8, encoder="gnn"),
    ],
    ids=["dqn", "gnn", "acdqn", "acgnn"],
)  # fmt: skip
def test_an_agent_learns_while_kube_scheduler_schedules_and_its_weights_decide(
    agent: NetworkAgent, plugin: PluginProcess, kwok: KwokCluster, namespace: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("aaml.live.learner.LearnerProcess", InThisProcess)
    weights, socket = plugin.module.weights, plugin.log.parent / "learn.sock"
    weights.unlink()  # it begins from nothing
    settings = LearnSettings(agent=agent, socket=socket, weights=weights, save_every_s=0.0)
    folders = Folders(tmp_path / "tlogs", tmp_path / "models", tmp_path / "logs")
    seen, told = in_force(plugin), count(plugin, "choices_sent_total")
    with closing(PluginCluster(socket)) as cluster:
        run = LearnRun(settings, cluster, folders=folders)
        learner = Background(run.run, "learner")
        try:
            until(lambda: count(plugin, "learner_there") == 1 and in_force(plugin) != seen, "a learner and its weights")
            begun = in_force(plugin)
            place(kwok, namespace, agent.name, 60)
            until(lambda: run.agent.updates > 0 and in_force(plugin) != begun, "learned weights in force")
        finally:
            run.stop()
        stats = learner.result()
    assert count(plugin, "choices_sent_total") - told == stats.decisions == stats.binds["bound"] == 60
    assert run.saved
    placed = {each["metadata"]["name"]: each["spec"]["nodeName"] for each in pods(kwok.api(), namespace)}
    (log,) = (tmp_path / "logs").glob("*.log")
    decided = re.findall(r"decision \d+: \S+/(\S+) -> (\S+) \(", log.read_text())
    assert dict(decided) == placed  # what is recorded is what is on the cluster
    assert count(plugin, "decisions_total") >= 60


def test_pods_are_placed_while_the_learner_is_away_killed_or_comes_back(
    plugin: PluginProcess, kwok: KwokCluster, namespace: str, tmp_path: Path
) -> None:
    until(lambda: count(plugin, "learner_there") == 0, "no learner")
    untold, told = count(plugin, "choices_dropped_total"), count(plugin, "choices_sent_total")
    place(kwok, namespace, "alone", 5)
    assert (count(plugin, "choices_dropped_total"), count(plugin, "choices_sent_total")) == (untold + 5, told)
    where = ["--socket", str(plugin.log.parent / "learn.sock"), "--weights", str(plugin.module.weights)]
    plugin.module.weights.unlink(missing_ok=True)
    line = [AAML, "learn", "acdqn", *where, "--update-steps", "8", "--segment", "8"]
    started = subprocess.Popen(line, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        until(lambda: count(plugin, "learner_there") == 1, "a learner", 120.0)
        seen = in_force(plugin)
        place(kwok, namespace, "with", 30)
        until(lambda: in_force(plugin) != seen, "learned weights in force", 120.0)
    finally:
        started.send_signal(signal.SIGKILL)
        started.communicate()
    until(lambda: count(plugin, "learner_there") == 0, "no learner")
    kept = in_force(plugin)
    place(kwok, namespace, "after", 5)
    assert in_force(plugin) == kept
    assert count(plugin, "choices_dropped_total") == untold + 10
    assert os.path.lexists(plugin.log.parent / "learn.sock")  # the one that follows takes it over
