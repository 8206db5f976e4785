"""`aaml bench chaos` in short: a few faults on real KWOK with few pods. docs/reliability.md has the long form."""

import csv
import json
import os
from dataclasses import replace

import pytest

from aaml.chaos.faults import FAULTS
from aaml.chaos.runs import run_fault
from aaml.chaos.settings import ChaosSettings
from aaml.chaos.site import LIMITED
from aaml.chaos.workload import shape_for
from aaml.kube.provision import ClusterOptions, KwokCluster, Owner, binaries
from support.processes import AAML, Process

SETTINGS = ChaosSettings(pods=60, nodes=5, runs=1, scheduler="least-allocated", wait_s=120.0)


@pytest.fixture(scope="module")
def site():
    """A cluster of the module's own, for it is broken on purpose."""
    if not binaries.built():
        pytest.fail("the programs of the KWOK cluster are not built: run `aaml cluster build` (about 11 minutes, once)")
    cluster = KwokCluster(f"faults-{os.getpid()}")
    options = ClusterOptions(5, shape_for(60, 5), scheduler=False, owner=Owner.this_process(), arguments=LIMITED)
    cluster.up(options, progress=False)
    try:
        yield cluster
    finally:
        cluster.down()


@pytest.mark.parametrize(
    ("name", "scheduler"),
    [
        ("scheduler-killed", "least-allocated"),
        ("nodes-change", "least-allocated"),
        ("pods-deleted", "least-allocated"),
        ("history-compacted", "least-allocated"),
        ("server-overloaded", "least-allocated"),
        ("learner-killed", "gnn"),
        ("disk-full", "dqn"),
        ("leader-killed", "plugin:varied-acdqn"),
    ],
)
def test_nothing_is_lost(site, name, scheduler):
    run = run_fault(site, FAULTS[name], replace(SETTINGS, scheduler=scheduler))
    assert (run.lost, run.doubled, run.wrong) == (0, 0, ())
    nodes = [each["spec"] for each in json.loads(site.api().request("GET", "/api/v1/nodes"))["items"]]
    closed = [each.get("unschedulable") or any(t["key"] == "chaos" for t in each.get("taints", ())) for each in nodes]
    assert not any(closed), "it leaves all as it was"
    assert run.pods == 60 or name in {"pods-deleted", "nodes-change"}  # else some are deleted, by us or with their node
    assert run.restarts == (1 if name == "scheduler-killed" else 0) or (name == "leader-killed" and run.restarts)


def test_the_command_tells_each_run_and_writes_the_table(tmp_path):
    out = tmp_path / "chaos.csv"
    few = ("--pods", "20", "--nodes", "5", "--runs", "1", "--scheduler", "least-allocated", "--faults", "nothing")
    with Process([AAML, "bench", "chaos", *few, "--out", str(out)], tmp_path / "log") as process:
        assert process.process.wait(300) == 0, process.output()
    assert "nothing: 20 pods, 0 lost, 0 doubled" in process.output()
    (row,) = csv.DictReader(out.read_text().splitlines())
    assert (row["fault"], row["scheduler"], row["pods"], row["lost"], row["wrong"]) == (
        "nothing", "least-allocated", "20", "0", "",
    )  # fmt: skip
    with Process([AAML, "bench", "chaos", *few, "--out", str(out)], tmp_path / "again") as process:
        assert process.process.wait(60) == 0, process.output()
    assert "0 lost" not in process.output()
    assert len(out.read_text().splitlines()) == 2
