"""`aaml replay --on CLUSTER`: a made-up trace on a real API server, as many times as fast as it says."""

import pandas as pd
import pytest

from aaml.cli import run as command
from aaml.cluster.objects import Node, Pod, Taint, Toleration
from aaml.cluster.quantity import CPU, MEMORY, PODS
from aaml.kube.provision import count_nodes
from aaml.workload.trace.events import Began, Listed, NodeGone, NodeSeen, PodBound, PodEnded, PodSeen, Watched
from aaml.workload.trace.store import TraceWriter
from support.kwok import heal

SPEED = 10
GIB = 1 << 30


def node(name, cpu=8000, taints=()):
    return Node(name, {CPU: cpu, MEMORY: 16 * GIB, PODS: 110}, {"zone": name}, taints)


def life(name, at, node_name, until, **more):
    pod = Pod(name, uid=f"{name}-{at}", requests={CPU: 1000, MEMORY: GIB}, created_s=at, **more)
    return [PodSeen(at=at, pod=pod), PodBound(at=at, uid=pod.uid, node_name=node_name),
            PodEnded(at=until, uid=pod.uid, how="succeeded")]  # fmt: skip


@pytest.fixture
def trace(tmp_path):
    """Two minutes, of which the first is for training; b is fuller when the other begins."""
    events = [
        *life("here", 10, "b", 125, namespace="web", owner="ReplicaSet/web", priority=7),
        *life("first", 62, "a", 75, namespace="web", owner="ReplicaSet/web", priority=7),
        *life("second", 65, "a", 78),
        *life("second", 68, "a", 79),  # a name that comes again
        *life("only", 71, "c", 85, tolerations=(Toleration("gpu", "Exists"),), node_selector={"zone": "c"}),
        NodeSeen(at=66.0, node=node("c", taints=(Taint("gpu"),))),
        NodeGone(at=85.0, name="c"),
    ]
    writer = TraceWriter(tmp_path / "trace")
    nodes = [NodeSeen(at=0.0, node=node(name)) for name in ("a", "b")]
    for event in [Began(at=0.0), *nodes, Listed(at=0.0), *sorted(events, key=lambda each: each.at), Watched(at=120.0)]:
        writer.write(event)
    writer.close()
    assert command("trace", ["split", str(tmp_path / "trace"), "--window-s", "60", "--holdout", "0.5"]) == 0
    return tmp_path / "trace"


def test_a_window_runs_live_in_scaled_time_as_it_does_in_the_simulator(kwok, trace, capsys):
    """Packing: the fuller b takes all pods that may choose; c, which joins later, the one that asks for it."""
    heal(kwok)
    workers, out = count_nodes(kwok.api()).workers, trace.parent / "out"
    told = ["--policy", "most-allocated", "--on", kwok.name, "--speed", str(SPEED), "--out", str(out)]
    assert command("replay", [str(trace), *told]) == 0
    said = capsys.readouterr().out
    assert "window 1: 4 pods placed, 4 in the simulator, 4 on the same node" in said
    rows = pd.read_csv(out / "results.csv").set_index("policy")
    for policy in ("most-allocated", f"most-allocated on {kwok.name}"):
        assert tuple(rows.loc[policy, ["arrived", "bound", "departed", "pending"]]) == (4, 4, 4, 0), policy
    assert count_nodes(kwok.api()).workers == workers, "the cluster's own nodes are there again"
