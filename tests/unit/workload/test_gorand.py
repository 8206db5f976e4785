"""Go's generator: draws that Go itself prints (go.dev/tour, gobyexample.com and the documentation of math/rand)."""

import pytest

from aaml.workload.gorand import GoRand


def test_draws_of_seed_1_are_those_of_an_unseeded_go_program() -> None:
    stream = GoRand(1)
    assert [stream.intn(100) for _ in range(10)] == [81, 87, 47, 59, 81, 18, 25, 40, 56, 0]
    assert GoRand(1).int63() == 5577006791947779410


def test_draws_of_seed_42_are_those_of_go_by_example() -> None:
    stream = GoRand(42)
    assert [stream.intn(100), stream.intn(100)] == [5, 87]


def test_perm_and_shuffle_are_permutations_and_repeat() -> None:
    assert sorted(GoRand(7).perm(50)) == list(range(50))
    first, second = list(range(50)), list(range(50))
    GoRand(7).shuffle(first)
    GoRand(7).shuffle(second)
    assert first == second != list(range(50))
    assert sorted(first) == list(range(50))


def test_seeds_equal_modulo_2_31_minus_1_are_one_seed() -> None:
    assert GoRand(5).uint64() == GoRand(5 + 2**31 - 1).uint64() == GoRand(5 - (2**31 - 1)).uint64()


@pytest.mark.parametrize("n", [0, -1, 2**31])
def test_a_bound_out_of_range_is_refused(n: int) -> None:
    with pytest.raises(ValueError, match="0 < n"):
        GoRand(1).intn(n)
