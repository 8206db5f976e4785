"""The cross-entropy method on a known optimum; linear scorers on disk."""

import json

import numpy as np
import pytest

from aaml.cluster.objects import Pod
from aaml.errors import UserError
from aaml.learning.linear import CrossEntropy, load_linear, save_linear
from aaml.policies.heuristics.linear import FEATURES, GPU, PLAIN, TERMS, LinearPolicy
from aaml.scheduling.lifetimes import KnownLifetimes, LifetimeModel
from aaml.scheduling.observation import ObservationSpec
from aaml.scheduling.queue_sort import QueueSort

TARGET = np.array([1.0, -2.0, 0.5])


def bowl(vectors):
    return [float(((vector - TARGET) ** 2).sum()) for vector in vectors]


def test_the_cross_entropy_method_finds_the_bottom_of_a_bowl():
    search = CrossEntropy(np.zeros(3), population=40, elite=8, rng=np.random.default_rng(0))
    for _ in range(40):
        search.step(bowl)
    np.testing.assert_allclose(search.mean, TARGET, atol=0.03)
    assert search.best_value == bowl([search.best])[0] < 1e-3
    assert (search.deviation >= 0.02).all()


def test_a_generation_moves_towards_the_mean_of_its_elite_as_far_as_the_smoothing_says():
    drawn = []

    def evaluate(vectors):
        drawn.extend(vectors)
        return range(len(vectors))  # the first two are the elite: the mean itself and the first one drawn

    search = CrossEntropy(np.ones(2), population=4, elite=2, smoothing=0.5, floor=0.0, rng=np.random.default_rng(1))
    search.step(evaluate)
    np.testing.assert_array_equal(drawn[0], [1.0, 1.0])
    np.testing.assert_allclose(search.mean, 0.5 * (drawn[0] + drawn[1]) / 2 + 0.5)
    np.testing.assert_allclose(search.deviation, 0.5 * np.abs(drawn[1] - drawn[0]) / 2 + 0.5)


def test_it_goes_on_from_its_state_as_if_it_had_not_been_stopped():
    whole = CrossEntropy(np.zeros(3), rng=np.random.default_rng(3))
    for _ in range(3):
        whole.step(bowl)
    rng = np.random.default_rng()
    rng.bit_generator.state = whole._rng.bit_generator.state
    twin = CrossEntropy(np.ones(3), rng=rng)
    twin.restore(json.loads(json.dumps(whole.state())))
    for _ in range(3):
        whole.step(bowl)
        twin.step(bowl)
    assert whole.state() == twin.state()
    with pytest.raises(ValueError, match="elite 9"):
        CrossEntropy(np.zeros(3), population=8, elite=9, rng=rng)


def test_a_scorer_comes_back_from_its_file(tmp_path):
    policy = LinearPolicy(np.linspace(-1, 1, len(TERMS) * len(FEATURES)).reshape(len(TERMS), -1))
    save_linear(policy, tmp_path / "a" / "scorer.json")
    other = load_linear(tmp_path / "a" / "scorer.json")
    assert other.name == "scorer"
    np.testing.assert_array_equal(other.weights, policy.weights)
    assert other.queue_sort is None
    sorting = LinearPolicy(policy.weights, queue_sort=QueueSort(1.5, -2.0, 1000.0))
    save_linear(sorting, tmp_path / "sorting.json")
    assert load_linear(tmp_path / "sorting.json").queue_sort == sorting.queue_sort
    spec = ObservationSpec(lifetime_model=LifetimeModel.of_history([Pod("p", lifetime_s=90.0)]))
    longest_last = LinearPolicy(policy.weights, queue_sort=QueueSort(rest=2.0), observation_spec=spec)
    save_linear(longest_last, tmp_path / "longest-last.json")
    read = load_linear(tmp_path / "longest-last.json").queue_sort
    assert (read, read.lifetime_model.remaining_s(Pod("q"))) == (
        QueueSort(rest=2.0),
        spec.lifetime_model.remaining_s(Pod("q")),
    )
    with pytest.raises(ValueError, match=r"shape \(3,\)"):
        LinearPolicy(np.zeros(3))


GOOD = {"format": "aaml-linear", "weights": dict.fromkeys(TERMS, dict.fromkeys(FEATURES, 1.0))}


@pytest.mark.parametrize(
    "content",
    [
        "", "[]", "3", "{}", '{"format": "aaml-linear", "weights": {"cpu": 1.0}}', '{"weights": {}}',
        json.dumps({"format": "aaml-linear", "weights": dict.fromkeys(TERMS, dict.fromkeys(FEATURES, "x"))}),
        json.dumps({"format": "other", "weights": dict.fromkeys(TERMS, dict.fromkeys(FEATURES, 1.0))}),
        json.dumps({"format": "aaml-linear", "weights": 5}),
        json.dumps({**GOOD, "queue_sort": 5}),
        json.dumps({**GOOD, "queue_sort": {"cpu_s": "soon"}}),
        json.dumps({**GOOD, "queue_sort": {"disk_s": 1.0}}),
        json.dumps({**GOOD, "queue_sort": {"lifetime_model": 1.0}}),
    ],
)  # fmt: skip
def test_damaged_files_are_told_in_one_line(tmp_path, content):
    path = tmp_path / "scorer.json"
    path.write_text(content)
    with pytest.raises(UserError, match=r"model .*scorer\.json: is not a linear scorer") as error:
        load_linear(path)
    assert "\n" not in str(error.value)
    with pytest.raises(UserError, match="a file that can be read"):
        load_linear(tmp_path / "none.json")


def test_a_file_of_before_lifetimes_were_features_is_read_as_it_was(tmp_path):
    rows = {term: dict.fromkeys((*PLAIN, *GPU), 0.5) for term in TERMS[:-1]}
    (tmp_path / "old.json").write_text(json.dumps({"format": "aaml-linear", "weights": rows}))
    weights = load_linear(tmp_path / "old.json").weights
    assert (weights[:-1, : len(PLAIN) + len(GPU)] == 0.5).all()
    assert weights.sum() == 0.5 * 3 * (len(PLAIN) + len(GPU))


def test_a_file_holds_what_is_expected_of_lifetimes(tmp_path):
    model = LifetimeModel.of_history([Pod(f"p{i}", created_s=float(i), lifetime_s=30.0) for i in range(99)])
    for each in (model, KnownLifetimes()):
        policy = LinearPolicy(
            np.ones((len(TERMS), len(FEATURES))), observation_spec=ObservationSpec(lifetime_model=each)
        )
        save_linear(policy, tmp_path / "new.json")
        assert load_linear(tmp_path / "new.json").observation_spec == policy.observation_spec
        assert type(load_linear(tmp_path / "new.json").observation_spec.lifetime_model) is type(each)
