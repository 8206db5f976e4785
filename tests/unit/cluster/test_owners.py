"""Counts of an owner's pods, against counting them, while pods and nodes come and go."""

from dataclasses import replace

import numpy as np
import pytest

from aaml.cluster import owners
from aaml.cluster.objects import Node
from aaml.cluster.owners import OwnerIndex
from aaml.cluster.state import ClusterState
from support import make

OWNERS = ("", "ReplicaSet/a", "ReplicaSet/b", "Job/c")


def node(number: int) -> Node:
    return make.node(f"n{number}", 1_000_000, 1 << 40, 1000)


def counted(state: ClusterState, owner: str) -> list[int]:
    return [sum(pod.owner == owner for pod in pods.values()) for pods in state.node_pods]


@pytest.mark.parametrize("kept", [1, 64])
@pytest.mark.parametrize("seed", range(4))
def test_counts_are_those_of_looking_at_all_pods(monkeypatch, seed, kept):
    monkeypatch.setattr(owners, "_KEPT", kept)
    rng = np.random.default_rng(seed)
    state = ClusterState(node(i) for i in range(4))
    index, made = OwnerIndex.of(state), 0
    for _ in range(400):
        names, uids = list(state.names), list(state.placements)
        action = rng.choice(
            ["place", "remove", "add node", "lose node", "adopt", "look"], p=[0.4, 0.2, 0.04, 0.04, 0.12, 0.2]
        )
        if action == "place" and names:
            pod = make.pod(f"p{made}", 1, 0, owner=str(rng.choice(OWNERS)))
            made += 1
            if rng.random() < 0.5:
                state.assume(pod, str(rng.choice(names)))
            else:  # as the API tells it, on a node that may not be known
                state.upsert_pod(replace(pod, node_name=f"n{rng.integers(6)}"))
        elif action == "remove" and uids:
            state.remove_pod(str(rng.choice(uids)))
        elif action == "add node":
            state.upsert_node(node(int(rng.integers(6))))
        elif action == "lose node" and len(names) > 1:
            state.remove_node(str(rng.choice(names)))
        elif action == "adopt" and uids:
            placement = state.placements[str(rng.choice(uids))]
            state.upsert_pod(replace(placement.pod, node_name=placement.node_name, owner=str(rng.choice(OWNERS))))
        for owner in rng.choice(OWNERS[1:], size=2):
            np.testing.assert_array_equal(index.counts(str(owner)), counted(state, str(owner)))
    assert made > 100
    assert OwnerIndex.of(state) is index
    twin = state.fork()
    assert [OwnerIndex.of(twin).counts(owner).tolist() for owner in OWNERS[1:]] == [
        counted(state, owner) for owner in OWNERS[1:]
    ]
