"""NSGA-II: ranks, crowding, who survives; numbers by hand."""

import numpy as np

from aaml.study.pareto import crowding, fronts, survivors

#        0       1       2       3       4
POINTS = np.array([[1.0, 4.0], [2.0, 2.0], [4.0, 1.0], [3.0, 3.0], [5.0, 5.0]])


def test_points_are_ranked_by_who_dominates_them():
    assert [front.tolist() for front in fronts(POINTS)] == [[0, 1, 2], [3], [4]]


def test_equal_points_do_not_dominate_each_other():
    assert [front.tolist() for front in fronts(np.array([[1.0, 1.0], [1.0, 1.0]]))] == [[0, 1]]


def test_a_point_is_as_crowded_as_its_neighbours_are_near():
    assert crowding(POINTS[:3]).tolist() == [np.inf, 3 / 3 + 3 / 3, np.inf]
    four = np.array([[0.0, 10.0], [1.0, 9.0], [2.0, 5.0], [10.0, 0.0]])
    assert crowding(four).tolist() == [np.inf, 0.2 + 0.5, 0.9 + 0.9, np.inf]


def test_those_in_thin_places_survive():
    four = np.array([[0.0, 10.0], [1.0, 9.0], [2.0, 5.0], [10.0, 0.0], [11.0, 11.0]])
    kept, ranks, distances = survivors(four, 3)
    assert sorted(kept.tolist()) == [0, 2, 3]
    assert ranks.tolist() == [0, 0, 0]
    assert np.isinf(distances[:2]).all()
    assert sorted(survivors(four, 5)[0].tolist()) == [0, 1, 2, 3, 4]
