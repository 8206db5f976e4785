"""Pods, nodes, clusters and contexts for tests: a test names what matters to it, the rest is usual and small."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from aaml.cluster.objects import Node, Pod
from aaml.cluster.state import ClusterState
from aaml.scheduling.observation import Context

GIB = 1 << 30


def node(
    name: str = "n", cpu: int = 4000, memory: int = 8 * GIB, pods: int = 110, *, gpus: int = 0, **fields: Any
) -> Node:
    """Return a node with `cpu` milli-cores, `memory` bytes and room for `pods` pods; `fields` are those of `Node`."""
    return Node(name, {"cpu": cpu, "memory": memory, "pods": pods}, gpu_count=gpus, **fields)


def nodes(count: int, cpu: int = 4000, memory: int = 8 * GIB, pods: int = 110, **fields: Any) -> list[Node]:
    """Return so many equal nodes with the names n0, n1 ..."""
    return [node(f"n{number}", cpu, memory, pods, **fields) for number in range(count)]


def pod(
    name: str = "p", cpu: int = 500, memory: int = GIB, *, at: float = 0.0, life: float | None = None, **fields: Any
) -> Pod:
    """Return a pod that asks for `cpu` milli-cores and `memory` bytes, is made at `at` and runs for `life` seconds."""
    return Pod(name, requests={"cpu": cpu, "memory": memory}, created_s=at, lifetime_s=life, **fields)


def cluster(nodes: Iterable[Node], used: Iterable[tuple[int, int, int]] = (), **placed: Sequence[Pod]) -> ClusterState:
    """Return the state of a cluster where pods run already.

    They are given as (node_index, milli-cores, bytes) in `used`, or as pods by the name of their node in `placed`.
    """
    state = ClusterState(nodes)
    for number, (node_index, cpu, memory) in enumerate(used):
        state.assume(pod(f"used{number}", cpu, memory), state.names[node_index])
    for name, pods in placed.items():
        for each in pods:
            state.upsert_pod(replace(each, node_name=name))
    return state


def context(state: ClusterState, pod: Pod, mask: Sequence[int] | None = None, **fields: Any) -> Context:
    """Return the decision of where `pod` goes; `mask` says which nodes are feasible, all of them by default."""
    feasible = np.ones(len(state), dtype=bool) if mask is None else np.array(mask, dtype=bool)
    return Context(state, pod, feasible, **fields)


class Clock:
    """A clock that a test sets."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now
