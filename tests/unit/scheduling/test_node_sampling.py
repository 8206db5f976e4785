"""How many nodes are scored, by the figures of kube-scheduler's own documentation and tests, and which."""

import numpy as np
import pytest

from aaml.scheduling.node_sampling import NodeSampling


@pytest.mark.parametrize(
    ("nodes", "percentage", "enough"),
    [
        (10, 0, 10), (10, 40, 10), (1000, 0, 420), (1000, 40, 400), (6000, 0, 300), (6000, 40, 2400),
        (5000, 0, 500), (125, 0, 100), (50, 0, 50), (1000, 100, 1000),
    ],
)  # fmt: skip
def test_as_many_as_kube_scheduler_scores(nodes, percentage, enough):
    assert NodeSampling(percentage).enough(nodes) == enough


def test_nodes_take_turns_and_those_that_are_not_feasible_are_passed_over():
    mask = np.ones(200, dtype=bool)
    mask[[50, 150]] = False
    sampling = NodeSampling(50)
    first, second, third = (sampling.node_indices(mask).tolist() for _ in range(3))
    assert first == [*range(50), *range(51, 101)]
    assert second == [*range(101, 150), *range(151, 200), 0, 1]
    assert third[0] == 2


def test_a_cluster_with_few_feasible_nodes_is_scored_whole():
    mask = np.zeros(1000, dtype=bool)
    mask[[3, 700]] = True
    assert NodeSampling(0).node_indices(mask).tolist() == [3, 700]
