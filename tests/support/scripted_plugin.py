"""What the plugin inside kube-scheduler would say to its learner, said by a test."""

import base64
import json
import socket
from dataclasses import replace
from typing import Any, Self

import numpy as np

from aaml.cluster.objects import Node, Pod
from aaml.kube.objects.convert import node_to_json, pod_to_json


def pod_json(pod: Pod) -> dict[str, Any]:
    """Return a pod as the API has it, with its uid and its node."""
    told = pod_to_json(pod)
    told["metadata"]["uid"] = pod.uid
    if pod.node_name:
        told["spec"]["nodeName"] = pod.node_name
    return told


class ScriptedPlugin:
    """Connects to a learner and tells it what a test says; nodes have the numbers in which they were first told."""

    def __init__(self, path: Any) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.connect(str(path))
        self.socket.settimeout(60.0)
        self.numbers: dict[str, int] = {}

    def say(self, kind: str, **fields: Any) -> None:
        """Say one message."""
        self.socket.sendall(json.dumps({"type": kind, **fields}).encode() + b"\n")

    def hello(self, nodes: list[Node], pods: list[Pod] = [], version: int = 1) -> Self:  # noqa: B006
        """Begin anew: all nodes, and the pods that have one."""
        self.say("hello", version=version)
        self.changes(nodes, pods)
        return self

    def changes(
        self, nodes: list[Node] = [], pods: list[Pod] = [], gone_nodes: list[str] = [], gone_pods: list[str] = []  # noqa: B006
    ) -> None:  # fmt: skip
        """Tell what changed."""
        gone = [self.numbers.pop(name) for name in gone_nodes]
        for node in nodes:
            free = next(number for number in range(1000) if number not in self.numbers.values())
            self.numbers.setdefault(node.name, free)
        told = [{"number": self.numbers[node.name], "node": node_to_json(node)} for node in nodes]
        self.say("changes", nodes=told, pods=list(map(pod_json, pods)), goneNodes=gone, gonePods=gone_pods)

    def choose(self, pod: Pod, node: str, among: list[str] | None = None, **fields: Any) -> None:
        """Choose a node for a pod, of all nodes or those given."""
        bits = np.zeros(max(self.numbers.values()) + 1, dtype=bool)
        bits[[self.numbers[name] for name in (self.numbers if among is None else among)]] = True
        mask = base64.b64encode(np.packbits(bits, bitorder="little").tobytes()).decode()
        # At this point kube-scheduler has written the node into its copy of the pod.
        told = pod_json(replace(pod, node_name=node))
        self.say("choice", pod=told, node=self.numbers[node], mask=mask, **fields)

    def bound(self, *pods: Pod, failed: str = "") -> None:
        """Tell what became of choices."""
        for pod in pods:
            self.say("bind", uid=pod.uid, failed=failed)

    def heard(self) -> dict[str, Any]:
        """Return the next thing that the learner says."""
        with self.socket.makefile("rb", buffering=0) as lines:
            return json.loads(lines.readline())

    def gone(self) -> bool:
        """Wait until the learner hangs up."""
        while self.socket.recv(4096):
            pass
        return True

    def close(self) -> None:
        """Be killed."""
        self.socket.close()
