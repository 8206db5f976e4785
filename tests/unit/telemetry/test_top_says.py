"""What `aaml cluster top` says is true: every number, counted here from the API's own objects by other means."""

import json
import random
import re
import statistics
from fractions import Fraction

import pytest
import yaml

from aaml.cli import run
from aaml.cluster.objects import CONTROL_PLANE_LABEL
from support.scripted_api import HANG, ScriptedApi, listing, node, pod

UNITS = {"": 1, "m": Fraction(1, 1000), "Ki": 1024, "Mi": 1024**2, "Gi": 1024**3, "M": 10**6}


def amount(text):
    number, unit = re.fullmatch(r"([\d.]+)([A-Za-z]*)", text).groups()
    return Fraction(number) * UNITS[unit]


class Cluster:
    """Workers, a tainted control plane, one that takes pods as kind's does; pods that run, wait, or have ended."""

    def __init__(self, seed, workers, pods):
        draw = random.Random(seed)
        self.nodes = [self.node(f"worker-{i}", draw.choice(["4", "7500m", "64"]), draw) for i in range(workers)]
        master = self.node("kind-control-plane", "8", draw)
        master["metadata"]["labels"] = {CONTROL_PLANE_LABEL: ""}
        self.hidden = self.node("tainted-control-plane", "8", draw)
        self.hidden["metadata"]["labels"] = {CONTROL_PLANE_LABEL: ""}
        self.hidden["spec"] = {"taints": [{"key": CONTROL_PLANE_LABEL, "effect": "NoSchedule"}]}
        self.nodes.append(master)
        names = [each["metadata"]["name"] for each in (*self.nodes, self.hidden)]
        self.pods = [self.pod(f"p{i}", draw.choice([*names, ""]), draw) for i in range(pods)]

    @staticmethod
    def node(name, cpu, draw):
        made = node(name, cpu=cpu)
        made["status"]["allocatable"]["memory"] = draw.choice(["8Gi", "16000Mi", "33554432Ki"])
        return made

    @staticmethod
    def pod(name, where, draw):
        made = pod(name, 1, where)
        requests = {
            "cpu": draw.choice(["1m", "10m", "25m", "0.1"]),
            "memory": draw.choice(["1Mi", "64Mi", "100M", "0"]),
        }
        made["spec"]["containers"] = [{"name": "c", "resources": {"requests": requests}}]
        made["status"] = {"phase": "Running" if where else "Pending"}
        return made

    def on(self, name):
        return [each for each in self.pods if each["spec"].get("nodeName") == name]

    def asked(self, name, what):
        return sum(
            (amount(each["spec"]["containers"][0]["resources"]["requests"][what]) for each in self.on(name)),
            Fraction(0),
        )

    @property
    def pending(self):
        return sum(not each["spec"].get("nodeName") for each in self.pods)


def look(cluster, tmp_path, *argv):
    document = {
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}], "users": [{"name": "u", "user": {}}],
    }  # fmt: skip
    with ScriptedApi() as api:
        document["clusters"] = [{"name": "c", "cluster": {"server": api.server}}]
        (tmp_path / "kubeconfig").write_text(yaml.safe_dump(document))
        api.on_list("/api/v1/nodes", listing(*cluster.nodes, cluster.hidden))
        api.on_list("/api/v1/pods", listing(*cluster.pods))
        for path in ("/api/v1/nodes", "/api/v1/pods"):
            api.on_watch(path, [HANG])
        assert run("cluster top", ["--once", "--kubeconfig", str(tmp_path / "kubeconfig"), *argv]) == 0


@pytest.fixture(autouse=True)
def nowhere(tmp_path, monkeypatch):
    """No log of a run in the folder."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("seed", range(5))
def test_the_table_in_a_pipe(tmp_path, capsys, seed):
    cluster = Cluster(seed, workers=8, pods=60)
    look(cluster, tmp_path)
    head, *lines = capsys.readouterr().out.splitlines()
    names = [each["metadata"]["name"] for each in cluster.nodes]
    offers = {each["metadata"]["name"]: each["status"]["allocatable"] for each in cluster.nodes}
    shares = [float(cluster.asked(name, "cpu") / amount(offers[name]["cpu"])) for name in names]
    facts = head.split("   ")
    assert facts[1:4] == [f"{len(names)} nodes", f"{sum(len(cluster.on(name)) for name in names)} pods",
                          f"{cluster.pending} pending"]  # fmt: skip
    assert facts[5] == f"variance of CPU use {statistics.pvariance(shares):.2g}", "whole, however long the line"
    for what, unit, scale in (("cpu", "cores", 1), ("memory", "GiB", 1024**3)):
        asked = sum(cluster.asked(name, what) for name in names) / scale
        offered = sum(amount(offers[name][what]) for name in names) / scale
        (line,) = [line for line in lines if line.startswith(what)]
        assert line.endswith(f"{float(asked / offered):6.1%}   {float(asked):,.1f} of {float(offered):,.0f} {unit}")
    for name in names:
        (line,) = [line for line in lines if line.startswith(name)]
        cpu, offered = float(cluster.asked(name, "cpu")), float(amount(offers[name]["cpu"]))
        assert f" {len(cluster.on(name))}/110 " in line
        assert f" {cpu:.1f}/{offered:.0f} {cpu / offered:.0%}" in line
    assert not any(line.startswith("tainted-control-plane") for line in lines)


def test_json_says_the_same(tmp_path, capsys):
    cluster = Cluster(7, workers=3, pods=40)
    look(cluster, tmp_path, "--json")
    said = json.loads(capsys.readouterr().out)
    assert said["pending"] == cluster.pending
    assert {each["name"] for each in said["nodes"]} == {each["metadata"]["name"] for each in cluster.nodes}
    for each in said["nodes"]:
        assert each["pods"] == len(cluster.on(each["name"]))
        assert each["cpu"] == pytest.approx(float(cluster.asked(each["name"], "cpu")))
        assert each["memory"] == pytest.approx(float(cluster.asked(each["name"], "memory") / 1024**3))


@pytest.mark.parametrize("width", [40, 61, 80, 110])
def test_at_a_narrow_terminal_a_number_is_whole_or_not_there(tmp_path, capsys, monkeypatch, width):
    cluster = Cluster(1, workers=4, pods=60)
    look(cluster, tmp_path)
    whole = set(capsys.readouterr().out.split())
    monkeypatch.setenv("COLUMNS", str(width))
    look(cluster, tmp_path)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= width
    for word in " ".join(lines).replace("\u2026", " ").split():
        assert word in whole or "http" in word, f"{word} is part of something longer"


def test_a_log_that_is_named_is_shown_with_its_scores_and_curves(tmp_path, capsys):
    log = tmp_path / "gnn.jsonl"
    events = [
        {"kind": "decision", "pod": "default/web", "node": "worker-1", "outcome": "assumed", "reward": 0.25,
         "feasible": 3, "value": 1.5},
        {"kind": "decision", "pod": "default/db", "node": "worker-2", "outcome": "assumed", "reward": -0.5,
         "feasible": 2, "by": "least-variance"},
        *({"kind": "scalar", "name": "1. CSR", "value": value, "step": 1} for value in (0.0, 2.0, 4.0)),
    ]  # fmt: skip
    log.write_text("".join(json.dumps(event) + "\n" for event in events))
    look(Cluster(1, workers=2, pods=5), tmp_path, "--log", str(log))
    said = capsys.readouterr().out
    assert "last decisions in gnn.jsonl" in said
    assert "default/web -> worker-1  score 1.5  reward 0.25  3 feasible" in said
    assert "default/db -> worker-2  reward -0.5  2 feasible  by least-variance" in said
    assert re.search(r"cumulative reward +4 +▁▅█", said)
