"""Linear scorers on disk."""

import json

import numpy as np
import pytest

from aaml.cluster.objects import Pod
from aaml.errors import UserError
from aaml.learning.linear import load_linear, save_linear
from aaml.policies.heuristics.linear import FEATURES, GPU, PLAIN, TERMS, LinearPolicy
from aaml.scheduling.lifetimes import KnownLifetimes, LifetimeModel
from aaml.scheduling.observation import ObservationSpec
from aaml.scheduling.queue_sort import QueueSort


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
