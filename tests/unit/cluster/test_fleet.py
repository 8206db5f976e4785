"""Fleets of nodes: the names, sizes and labels that the platform's clusters and tasks give their nodes."""

import pytest

from aaml.cluster.fleet import NodeShape, control_plane, standard_nodes, workers
from aaml.cluster.objects import Node, Taint
from aaml.errors import UserError

GIB = 1 << 30


def test_workers_are_alike_but_for_their_names():
    shape = NodeShape(cpu="7500m", memory="32Gi", pods=20, labels=("zone=a",), gpus=2, gpu_model="T4")
    offered = {"cpu": 7_500, "memory": 32 * GIB, "pods": 20}
    assert workers(2, shape, prefix="node") == tuple(
        Node(name, offered, {"zone": "a"}, gpu_count=2, gpu_model="T4") for name in ("node-0", "node-1")
    )


def test_the_tasks_nodes_carry_no_labels_but_the_control_planes_own():
    """Agents were trained on these: a label more would change what filters and scores see."""
    size = {"cpu": 64_000, "memory": 256 * GIB, "pods": 110}
    assert workers(1) == (Node("kwok-std-node-0", size),)
    role = "node-role.kubernetes.io/control-plane"
    assert control_plane() == Node("kwok-ctl-node-0", size, {role: ""}, (Taint(role),))


def test_a_registered_node_has_the_labels_of_a_kubelet_and_keeps_its_own():
    control, worker = standard_nodes(1, NodeShape(labels=("zone=a", "kubernetes.io/arch=arm64")))
    assert (control.is_control_plane, worker.is_control_plane) == (True, False)
    assert worker.labels["kubernetes.io/hostname"] == worker.name == "kwok-std-node-0"
    assert (worker.labels["zone"], worker.labels["kubernetes.io/arch"]) == ("a", "arm64")
    assert worker.labels["kubernetes.io/os"] == "linux"


@pytest.mark.parametrize("count", [0, -1])
def test_a_fleet_without_workers_is_refused(count):
    with pytest.raises(UserError, match=f"nodes: {count} is not accepted; expected a whole number of at least 1"):
        workers(count)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ({"cpu": "many"}, "cpu: 'many'"),
        ({"memory": "0"}, "memory: '0'"),
        ({"pods": 0}, "pods: 0"),
        ({"gpus": -1}, "gpus: -1"),
        ({"gpu_model": "V100"}, "gpu_model: 'V100'"),
        ({"labels": ["zone"]}, "labels: 'zone'"),
    ],
)
def test_impossible_nodes_are_refused_by_field(shape, message):
    with pytest.raises(UserError, match=message):
        standard_nodes(1, NodeShape(**shape))
