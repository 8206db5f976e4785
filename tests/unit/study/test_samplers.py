"""Samplers on functions with known optima; steps worked out by hand."""

import json
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pytest

from aaml.study.samplers import CmaEs, CrossEntropy
from aaml.study.trial import Trial

FloatArray = npt.NDArray[np.float64]
TARGET = np.array([1.0, -2.0, 0.5])
FAR, SCALES = np.array([1.0, -2.0, 0.5, 3.0]), np.array([1.0, 10.0, 0.1, 3.0])


def step(sampler: CmaEs | CrossEntropy, loss: Callable[[FloatArray], float]) -> list[FloatArray]:
    asked = sampler.ask()
    sampler.tell([Trial(each, (loss(each),)) for each in asked])
    return asked


def bowl(vector: FloatArray) -> float:
    return float(((vector - TARGET) ** 2).sum())


def stretched(vector: FloatArray) -> float:
    return float((((vector - FAR) * SCALES) ** 2).sum())


def test_the_evolution_strategy_finds_the_optimum_of_a_badly_scaled_bowl() -> None:
    sampler = CmaEs(np.zeros(4), population=12, deviation=1.0, seed=0)
    for _ in range(150):
        step(sampler, stretched)
    np.testing.assert_allclose(sampler.means[-1], FAR, atol=1e-3)


def test_noise_does_not_keep_it_from_the_neighbourhood() -> None:
    noise = np.random.default_rng(5)
    sampler = CmaEs(np.zeros(4), population=16, deviation=1.0, seed=1)
    for _ in range(120):
        step(sampler, lambda vector: stretched(vector) + 0.1 * noise.normal())
    assert stretched(sampler.means[-1]) < 0.5  # 418 at the start


def test_a_generation_ends_with_its_mean_and_a_single_number_may_be_searched() -> None:
    start = np.zeros(1)
    sampler = CmaEs(start, population=6, deviation=0.5, seed=2)
    for number in range(30):
        asked = step(sampler, lambda vector: float((vector[0] - 3.0) ** 2))
        assert len(asked) == 7
        assert {each.shape for each in asked} == {(1,)}
        assert asked[-1] == sampler.means[number]
    assert sampler.means[-1] == pytest.approx([3.0], abs=0.1)
    assert start == [0.0]


def test_the_cross_entropy_method_finds_the_bottom_of_a_bowl() -> None:
    sampler = CrossEntropy(np.zeros(3), population=40, elite=8, rng=np.random.default_rng(0))
    for _ in range(40):
        step(sampler, bowl)
    np.testing.assert_allclose(sampler.mean, TARGET, atol=0.03)
    assert sampler.best_value == bowl(sampler.best) < 1e-3
    assert (sampler.deviation >= 0.02).all()


def test_a_generation_moves_towards_the_mean_of_its_elite_as_far_as_the_smoothing_says() -> None:
    sampler = CrossEntropy(np.ones(2), population=4, elite=2, smoothing=0.5, floor=0.0, rng=np.random.default_rng(1))
    drawn: Sequence[FloatArray] = sampler.ask()
    sampler.tell([Trial(each, (float(place),)) for place, each in enumerate(drawn)])  # the elite: the first two
    np.testing.assert_array_equal(drawn[0], [1.0, 1.0])
    np.testing.assert_allclose(sampler.mean, 0.5 * (drawn[0] + drawn[1]) / 2 + 0.5)
    np.testing.assert_allclose(sampler.deviation, 0.5 * np.abs(drawn[1] - drawn[0]) / 2 + 0.5)


def test_it_goes_on_from_its_state_as_if_it_had_not_been_stopped() -> None:
    whole = CrossEntropy(np.zeros(3), rng=np.random.default_rng(3))
    for _ in range(3):
        step(whole, bowl)
    rng = np.random.default_rng()
    rng.bit_generator.state = whole._rng.bit_generator.state
    twin = CrossEntropy(np.ones(3), rng=rng)
    twin.restore(json.loads(json.dumps(whole.state())))
    for _ in range(3):
        step(whole, bowl)
        step(twin, bowl)
    assert whole.state() == twin.state()
    with pytest.raises(ValueError, match="elite 9"):
        CrossEntropy(np.zeros(3), population=8, elite=9, rng=rng)
