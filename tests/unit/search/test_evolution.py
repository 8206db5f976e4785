"""The evolution strategy on functions with known optima."""

from collections.abc import Sequence

import numpy as np

from aaml.search.evolution import Generation, separable_cma

TARGET = np.array([1.0, -2.0, 0.5, 3.0])
SCALES = np.array([1.0, 10.0, 0.1, 3.0])


def bowl(vectors: Sequence[np.ndarray], _generation: int) -> list[float]:
    return [-float((((vector - TARGET) * SCALES) ** 2).sum()) for vector in vectors]


def test_it_finds_the_optimum_of_a_badly_scaled_bowl() -> None:
    found = separable_cma(
        bowl, np.zeros(4), generations=150, population=12, deviation=1.0, rng=np.random.default_rng(0)
    )
    np.testing.assert_allclose(found, TARGET, atol=1e-3)


def test_noise_does_not_keep_it_from_the_neighbourhood() -> None:
    noise = np.random.default_rng(5)

    def noisy(vectors: Sequence[np.ndarray], generation: int) -> list[float]:
        return [value + 0.1 * noise.normal() for value in bowl(vectors, generation)]

    found = separable_cma(
        noisy, np.zeros(4), generations=120, population=16, deviation=1.0, rng=np.random.default_rng(1)
    )
    assert -bowl([found], 0)[0] < 0.5  # 418 at the start


def test_the_same_seed_gives_the_same_result_and_the_search_ends_when_told() -> None:
    seen: list[Generation] = []

    def stop_at_five(generation: Generation) -> bool:
        seen.append(generation)
        return generation.number == 4

    def search(on_generation=lambda _generation: False, generations: int = 5) -> np.ndarray:
        rng = np.random.default_rng(3)
        return separable_cma(
            bowl, np.zeros(4), generations=generations, population=8, deviation=0.5, rng=rng,
            on_generation=on_generation,
        )  # fmt: skip

    assert np.array_equal(search(), search(stop_at_five, generations=50))
    assert [generation.number for generation in seen] == [0, 1, 2, 3, 4]
    assert seen[0].mean_value == bowl([np.zeros(4)], 0)[0]
