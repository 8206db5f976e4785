"""Hashed names: nothing of a person's words is left, and everything that scheduling compares still compares alike."""

import re
import stat

import numpy as np

from aaml.cluster.filters import feasible
from aaml.cluster.objects import (
    Affinity,
    HostPort,
    LabelSelector,
    Node,
    NodeSelectorTerm,
    Pod,
    PodAffinityTerm,
    PodGroup,
    PreferredNode,
    Requirement,
    Taint,
    Toleration,
    TopologySpread,
    VolumeNeeds,
    WeightedPodAffinityTerm,
)
from aaml.cluster.state import ClusterState
from aaml.workload.trace.events import Began, NodeGone, NodeSeen, PodBound, PodEnded, PodSeen, to_line
from aaml.workload.trace.names import NameHasher, read_key

SECRET = "secret"
TERM = PodAffinityTerm("secret.corp/row", LabelSelector((Requirement("secret-app", "In", ("secret-web",)),)),
                       frozenset({"secret-space"}), LabelSelector((Requirement("secret-team", "Exists"),)))  # fmt: skip
FULL = Pod(
    "secret-web-0", "secret-space", uid="secret-uid", requests={"cpu": 100, "secret.corp/fpga": 1},
    labels={"secret-app": "secret-web", "pod-index": "3"}, scheduler_name="secret-scheduler",
    nominated_node="secret-node", node_selector={"secret-disk": "secret-ssd", "kubernetes.io/arch": "amd64"},
    affinity=Affinity(
        (NodeSelectorTerm((Requirement("secret-disk", "In", ("secret-ssd",)),),
                          (Requirement("metadata.name", "In", ("secret-node",)),)),),
        (PreferredNode(3, NodeSelectorTerm((Requirement("cores", "Gt", ("16",)),))),),
        (TERM,), (TERM,), (WeightedPodAffinityTerm(5, TERM),),
    ),
    tolerations=(Toleration("secret-taint", "Equal", "secret-value"),),
    spread=(TopologySpread(1, "topology.kubernetes.io/zone", TERM.selector),),
    host_ports=(HostPort(80, host_ip="10.9.8.7"),),
    volumes=VolumeNeeds(((NodeSelectorTerm((Requirement("secret-zone", "In", ("secret-a",)),)),),),
                        frozenset({("secret.csi", "secret-volume")}), frozenset({"secret-space/secret-claim"}),
                        "secret-claim not found"),
    images=("secret.registry/secret:1",), gates=("secret-gate",), owner="ReplicaSet/secret-web",
    group=PodGroup("secret-gang", 3, "secret.corp/row"),
)  # fmt: skip
NODE = Node("secret-node", {"cpu": 64_000, "pods": 110, "secret.corp/fpga": 2},
            {"secret-disk": "secret-ssd", "kubernetes.io/arch": "amd64", "cores": "64"},
            (Taint("secret-taint", "secret-value"), Taint("node.kubernetes.io/not-ready", effect="NoExecute")),
            images={"secret.registry/secret:1": 5}, volume_limits={"secret.csi": 3})  # fmt: skip


def test_no_word_of_a_person_is_left():
    names = NameHasher(b"key")
    events = [Began(at=1.0, source="https://secret:6443"), NodeSeen(at=1.0, node=NODE), PodSeen(at=1.0, pod=FULL),
              PodBound(at=1.0, uid="secret-uid", node_name="secret-node"), PodEnded(at=1.0, uid="secret-uid"),
              NodeGone(at=1.0, name="secret-node")]  # fmt: skip
    text = b"".join(to_line(names(event)) for event in events).decode()
    assert SECRET not in text
    assert "10.9.8.7" not in text
    for kept in ("kubernetes.io/arch", "topology.kubernetes.io/zone", "node.kubernetes.io/not-ready", '"16"', '"64"',
                 "ReplicaSet/x", "metadata.name", "64000"):  # fmt: skip
        assert kept in text


def test_the_same_nodes_are_feasible_as_with_names():
    nodes = [
        Node("a", {"cpu": 4000, "pods": 10}, {"disk": "ssd", "cores": "8"}),
        Node("b", {"cpu": 4000, "pods": 10}, {"disk": "ssd", "cores": "32"}, (Taint("mine", "x"),)),
        Node("c", {"cpu": 4000, "pods": 10}, {"disk": "hdd", "cores": "32"}),
        Node("d", {"cpu": 4000, "pods": 10}, {"disk": "ssd", "cores": "64"}),
    ]
    here = LabelSelector((Requirement("app", "In", ("db",)),))
    placed = Pod("db", "shop", labels={"app": "db"}, node_name="d")
    pods = [
        Pod("one", "shop", node_selector={"disk": "ssd"}),
        Pod("two", "shop", tolerations=(Toleration("mine", "Equal", "x"),), affinity=Affinity(
            (NodeSelectorTerm((Requirement("cores", "Gt", ("16",)),)),))),
        Pod("three", "shop", affinity=Affinity(required_anti_pods=(
            PodAffinityTerm("cores", here, frozenset({"shop"})),))),
        Pod("four", "shop", affinity=Affinity((NodeSelectorTerm((), (Requirement("metadata.name", "In", ("c",)),)),))),
    ]  # fmt: skip
    names = NameHasher(b"key")
    plain, hashed = ClusterState(nodes), ClusterState(map(names.node, nodes))
    plain.upsert_pod(placed)
    hashed.upsert_pod(names.pod(placed))
    expected = [[True, False, False, True], [False, True, True, True], [True, False, True, False],
                [False, False, True, False]]  # fmt: skip
    for pod, mask in zip(pods, expected, strict=True):
        assert feasible(plain, pod).mask.tolist() == mask
        assert np.array_equal(feasible(hashed, names.pod(pod)).mask, mask)


def test_the_key_is_kept_from_others_and_makes_the_same_names_again(tmp_path):
    path = tmp_path / "trace.key"
    first = NameHasher(read_key(path)).name("web")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert NameHasher(read_key(path)).name("web") == first
    assert re.fullmatch("x[0-9a-f]{16}", first)
    assert NameHasher(read_key(tmp_path / "other.key")).name("web") != first
