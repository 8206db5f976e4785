"""Observations made by hand or at random."""

from types import SimpleNamespace

import numpy as np
import pytest

from aaml.cluster.topology import Graph
from aaml.scheduling.observation import NODE_FEATURES, PAIR_FEATURES, POD_FEATURES, Observation

CAPACITY = NODE_FEATURES.index("capacity")


def star(n):
    rows, hub = np.arange(n), np.full(n, n)
    return Graph(n, np.stack([np.concatenate([rows, hub]), np.concatenate([hub, rows])]))


def two_racks(n):
    """Nodes under two racks, the racks under one root: vertices n (root), n+1, n+2."""
    pairs = [(row, n + 1 + row % 2) for row in range(n)] + [(n + 1, n), (n + 2, n)]
    forward = np.array(pairs).T
    return Graph(n, np.hstack([forward, forward[::-1]]), ("control-plane", "rack:a", "rack:b"))


def random_observation(n, seed, graph=None, feasible=0.7):
    rng = np.random.default_rng(seed)
    nodes = rng.random((n, len(NODE_FEATURES)), dtype=np.float32)
    nodes[:, CAPACITY] = rng.random(n) < 0.9
    mask = rng.random(n) < feasible
    mask[rng.integers(n)] = True
    return Observation(
        nodes,
        rng.random((n, len(PAIR_FEATURES)), dtype=np.float32),
        rng.random(len(POD_FEATURES), dtype=np.float32),
        mask,
        graph or star(n),
    )


def state(number, n=2, mask=None):
    """A state that is told by its number; rows are told apart by their first feature."""
    nodes = np.zeros((n, len(NODE_FEATURES)), dtype=np.float32)
    nodes[:, CAPACITY] = 1.0
    pairs = np.zeros((n, len(PAIR_FEATURES)), dtype=np.float32)
    pairs[np.arange(n), np.arange(n)] = 1.0
    pod = np.zeros(len(POD_FEATURES), dtype=np.float32)
    pod[number] = 1.0
    return Observation(nodes, pairs, pod, np.ones(n, dtype=bool) if mask is None else np.array(mask), star(n))


@pytest.fixture
def make():
    """The makers above, by name."""
    return SimpleNamespace(star=star, two_racks=two_racks, random=random_observation, state=state)
