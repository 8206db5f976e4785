"""Nothing is deleted or written on a cluster without saying where, being told so, and being able to look first."""

import dataclasses
import re
import sys
import typing
from pathlib import Path

import pytest
import yaml

from aaml.cli import run
from aaml.commands.table import COMMANDS, GROUPS, module_of
from aaml.kube.provision import records
from support.scripted_api import ScriptedApi, listing, node, pod

WORKLOAD = ("deployments", "statefulsets", "replicasets", "jobs", "replicationcontrollers", "pods")
PATHS = {
    "deployments": "/apis/apps/v1/", "statefulsets": "/apis/apps/v1/", "replicasets": "/apis/apps/v1/",
    "jobs": "/apis/batch/v1/", "replicationcontrollers": "/api/v1/", "pods": "/api/v1/",
}  # fmt: skip


class Cluster:
    """An API server with nodes, of KWOK or real ones, and 2 pods of the simulator beside 3 of somebody else."""

    def __init__(self, api: ScriptedApi, folder, *, real: bool) -> None:
        self.api = api
        nodes = [node("n1"), node("n2")]
        for each in nodes if not real else nodes[1:]:
            each["metadata"]["annotations"] = {"kwok.x-k8s.io/node": "fake"}
        self.kubeconfig = folder / f"kubeconfig-{real}"
        document = {
            "apiVersion": "v1", "kind": "Config", "current-context": "prod",
            "clusters": [{"name": "c", "cluster": {"server": api.server}}], "users": [{"name": "u", "user": {}}],
            "contexts": [{"name": "prod", "context": {"cluster": "c", "user": "u"}}],
        }  # fmt: skip
        self.kubeconfig.write_text(yaml.safe_dump(document))
        api.on_list("/api/v1/nodes", listing(*nodes))
        api.on_list("/api/v1/namespaces", listing(*({"metadata": {"name": n}} for n in ("shop", "kube-system"))))
        self.pods = [pod(name, 1, "n1") for name in ("sim-1", "sim-2", "web", "db", "dns")]
        for each in self.pods:
            each["metadata"]["namespace"] = "shop"
        self.pods[-1]["metadata"]["namespace"] = "kube-system"
        for kind in WORKLOAD:
            api.on_list(PATHS[kind] + kind, listing())
        # Asked for by label, asked for without, and so on: the pods of the simulator, and all.
        api.on_list("/api/v1/pods", listing(*self.pods[:2]), listing(*self.pods), listing())
        for kind in WORKLOAD:
            api.on("DELETE", f"{PATHS[kind]}namespaces/shop/{kind}", (200, {}))

    def clean(self, *argv: str) -> int:
        return run("cluster clean", [*argv, "--kubeconfig", str(self.kubeconfig)])

    @property
    def written(self) -> list[tuple[str, str, dict[str, str]]]:
        """What was asked for besides reading, and besides asking what one may do."""
        asked = [each[:3] for each in self.api.requests if not each[1].endswith("selfsubjectaccessreviews")]
        return [each for each in asked if each[0] != "GET"]


@pytest.fixture
def cluster(tmp_path):
    with ScriptedApi() as api:
        yield Cluster(api, tmp_path, real=False)


@pytest.fixture
def production(tmp_path):
    with ScriptedApi() as api:
        yield Cluster(api, tmp_path, real=True)


def test_a_cluster_with_real_nodes_is_not_cleaned(production, capsys):
    assert production.clean("--yes") == 2
    assert production.written == []
    said = capsys.readouterr().err
    assert f"context prod at {production.api.server}, 2 nodes, 1 of them real (n1)" in said
    assert "expected a cluster of `aaml cluster up` or of KWOK nodes, or --real" in said
    assert production.clean("--yes", "--real", "--all") == 2, "what others made is not ours to delete there"
    assert production.written == []


def test_there_the_simulators_own_pods_go_when_somebody_says_so_and_have_their_time_to_end(production, capsys):
    assert production.clean("--yes", "--real") == 0
    assert "2 pods deleted, none left" in capsys.readouterr().out
    for method, _, query in production.written:
        assert method == "DELETE"
        assert query["labelSelector"] == "app.kubernetes.io/managed-by=aaml"
        assert "gracePeriodSeconds" not in query


def test_only_what_the_simulator_made_goes_unless_all_is_said(cluster, capsys):
    assert cluster.clean("--yes") == 0
    said = capsys.readouterr().out
    assert f"context prod at {cluster.api.server}, 2 nodes, none of them real" in said
    assert "2 pods stay, which the simulator did not make" in said
    assert "  shop: 2 pods" in said
    assert {query["labelSelector"] for _, _, query in cluster.written} == {"app.kubernetes.io/managed-by=aaml"}
    assert {path.split("/namespaces/")[1].split("/")[0] for _, path, _ in cluster.written} == {"shop"}


def test_all_takes_what_others_made_too_but_nothing_of_kubernetes(cluster, capsys):
    cluster.api.on_list("/api/v1/pods", listing(*cluster.pods), listing(*cluster.pods), listing())
    assert cluster.clean("--yes", "--all") == 0
    assert "  shop: 4 pods" in capsys.readouterr().out
    assert all("labelSelector" not in query and "/namespaces/shop/" in path for _, path, query in cluster.written)


def test_without_a_terminal_it_wants_yes(cluster, capsys):
    assert cluster.clean() == 2
    assert "yes: is missing" in capsys.readouterr().err
    assert cluster.written == []


@pytest.mark.parametrize(("answer", "status"), [("n", 1), ("", 1), ("y", 0)])
def test_at_a_terminal_it_asks(cluster, monkeypatch, answer, status):
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda _: answer)
    assert cluster.clean() == status
    assert bool(cluster.written) == (status == 0)


def test_a_dry_run_says_what_would_go_and_deletes_nothing(cluster, production, capsys):
    for each in (cluster, production):
        assert each.clean("--dry-run") == 0
        assert "would be deleted" in capsys.readouterr().out
        assert each.written == []


@pytest.mark.parametrize(
    ("name", "why"), [("nowhere", "is not on the cluster"), ("kube-system", "one of Kubernetes' own")]
)
def test_a_namespace_that_may_not_be_cleaned_is_refused(cluster, capsys, name, why):
    assert cluster.clean("--yes", "--namespaces", name) == 2
    assert why in capsys.readouterr().err
    assert cluster.written == []


def test_nodes_and_workloads_are_not_put_on_a_cluster_with_real_nodes(production, capsys):
    for command, argv in (("cluster nodes", ["--node-count", "3"]), ("cluster simulate", [])):
        assert run(command, [*argv, "--kubeconfig", str(production.kubeconfig)]) == 2
        assert "1 of them real (n1)" in capsys.readouterr().err
        assert run(command, [*argv, "--dry-run", "--kubeconfig", str(production.kubeconfig)]) == 0
        assert "would be" in capsys.readouterr().out
    assert production.written == []


def test_a_cluster_that_is_gone_does_not_make_another_one_on_its_port_ours(production, tmp_path, monkeypatch, capsys):
    """A machine was switched off and its cluster is still remembered; then a kind cluster took the port."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    records.save(records.Record("old", "binary", "1.36.1", production.api.server, 2, scheduler=True))
    records.save(records.Record("damaged", "binary", "1.36.1", "x", 2, scheduler=True))
    (records.cluster_dir("damaged") / "aaml.json").write_text("{")
    assert records.names() == ["damaged", "old"]
    assert production.clean("--yes") == 2
    assert production.written == []
    assert "1 of them real (n1)" in capsys.readouterr().err


# ---- the table of docs/rights.md -------------------------------------------------------------------------------------


def written_down():
    """Return the rows of the table by command or group, and the commands that are said to write on no cluster."""
    text = (Path(__file__).parents[2] / "docs/rights.md").read_text()
    section = text.split("## What is written on a cluster")[1].split("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line[:3] == "| `"]
    assert "All others write on no cluster." in section
    table = {row[0].strip("`"): row for row in rows}
    return table, {name for name in COMMANDS if not {name, name.split()[0]} & set(table)}


def flags(kind):
    """Return the names of a command's flags, those of its sub-commands included."""
    if dataclasses.is_dataclass(kind):
        yield from (field.name for field in dataclasses.fields(kind))
        hints = typing.get_type_hints(kind, include_extras=False).values()
        for hint in hints:
            yield from flags(hint)
    for part in typing.get_args(kind):
        yield from flags(part)


def test_the_table_names_commands_and_groups_that_there_are():
    assert set(written_down()[0]) <= {*COMMANDS, *GROUPS}


@pytest.mark.parametrize("command", sorted(written_down()[0]))
def test_each_command_that_writes_has_the_flags_that_the_table_says(command):
    row = written_down()[0][command]
    there = {flag for name in COMMANDS if command in (name, name.split()[0]) for flag in flags(module_of(name).Args)}
    named = {name.replace("-", "_") for name in re.findall(r"--([a-z-]+)", " ".join(row))}
    assert named <= there
    assert named & {"dry_run", "list", "on", "apply"} or command == "serve", "there is a way to look first"


@pytest.mark.parametrize("command", sorted(written_down()[1]))
def test_a_command_that_is_said_to_write_on_no_cluster_sends_nothing_but_reads(command):
    """By what its module imports: nothing that creates, binds or deletes."""
    source = Path(module_of(command).__file__).read_text()
    for word in ("kube.submit", "kube.clean", "kube.provision.nodes", "create_nodes", "KubeSink", "SchedulerRun"):
        assert word not in source
