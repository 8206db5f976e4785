"""Fleets of nodes alike: the nodes of a KWOK cluster, their twins in the process and the nodes of the tasks.

A fleet is one tainted control plane and workers that offer the same. `registered` adds what a kubelet tells of itself.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from aaml.cluster.objects import CONTROL_PLANE_LABEL, HOSTNAME_LABEL, Node, Taint
from aaml.cluster.quantity import CPU, MEMORY, PODS, amount
from aaml.errors import bad_value
from aaml.settings import Count, Natural, Settings, take

CONTROL_PLANE = "kwok-ctl-node-0"
WORKER = "kwok-std-node"  # workers are kwok-std-node-0, kwok-std-node-1, ...


@dataclass(frozen=True)
class NodeShape(Settings):
    """What a node offers: Kubernetes quantities, a number of pods, labels, and GPUs of one model."""

    cpu: str = "64"
    """CPU of a node"""
    memory: str = "256Gi"
    """memory of a node"""
    pods: Count = 110
    """pods that a node takes"""
    labels: tuple[str, ...] = ()
    """labels of the workers, as key=value"""
    gpus: Natural = 0
    """GPUs of a node"""
    gpu_model: str = ""
    """model of the GPUs, for instance V100M16"""

    def allocatable(self) -> dict[str, int]:
        """Return the amounts in milli-cores, bytes and pods.

        Raises `UserError` for a shape that an API server would refuse or that can run nothing.
        """
        amounts = {CPU: amount(CPU, self.cpu), MEMORY: amount(MEMORY, self.memory), PODS: self.pods}
        for name, text in ((CPU, self.cpu), (MEMORY, self.memory)):
            if amounts[name] <= 0:
                raise bad_value(name, text, "an amount above 0")
        if self.gpu_model and not self.gpus:
            raise bad_value("gpu_model", self.gpu_model, "a model only together with gpus of 1 or more")
        return amounts


STANDARD = NodeShape()


def parse_labels(texts: Iterable[str]) -> dict[str, str]:
    """Return {"zone": "a"} for ["zone=a"]; raise `UserError` for anything else."""
    labels: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise bad_value("labels", text, "key=value")
        labels[key] = value
    return labels


def node(name: str, shape: NodeShape = STANDARD) -> Node:
    """Return one node of that shape; raise `UserError` where `NodeShape.allocatable` does."""
    return Node(name, shape.allocatable(), parse_labels(shape.labels), gpu_count=shape.gpus, gpu_model=shape.gpu_model)


def workers(count: int, shape: NodeShape = STANDARD, *, prefix: str = WORKER) -> tuple[Node, ...]:
    """Return `count` nodes alike with the names `prefix`-0, `prefix`-1 and so on.

    Raises `UserError` for a count below 1, and where `NodeShape.allocatable` does.
    """
    take("nodes", count, Count)
    first = node(f"{prefix}-0", shape)
    return tuple(replace(first, name=f"{prefix}-{index}") for index in range(count))


def control_plane() -> Node:
    """Return a control plane of the standard shape, whose taint keeps the workload away."""
    return replace(node(CONTROL_PLANE), labels={CONTROL_PLANE_LABEL: ""}, taints=(Taint(CONTROL_PLANE_LABEL),))


def registered(node: Node) -> Node:
    """Return the node with the labels that it has once its (played) kubelet has registered it."""
    role = "control-plane" if node.is_control_plane else "agent"
    labels = {
        "type": "kwok",
        HOSTNAME_LABEL: node.name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        "beta.kubernetes.io/os": "linux",
        "beta.kubernetes.io/arch": "amd64",
        "kubernetes.io/role": role,
        f"node-role.kubernetes.io/{role}": "",
    }
    return replace(node, labels=labels | dict(node.labels))


def standard_nodes(count: int, shape: NodeShape = STANDARD) -> list[Node]:
    """Return the nodes that `aaml cluster up` and `aaml cluster nodes` make: a control plane, and `count` workers."""
    return [registered(each) for each in (control_plane(), *(workers(count, shape) if count else ()))]
