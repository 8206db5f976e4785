"""The lifetime model: hand-made histories, censored and truncated runs, deadlines, heavy tails, files."""

import json
from dataclasses import replace

import numpy as np
import pytest

from aaml.cluster.objects import GpuRequest, Pod
from aaml.scheduling.lifetimes import LONGEST_S, UNKNOWN_S, KnownLifetimes, LifetimeModel

JOB, WEB = "Job/etl-28391234", "ReplicaSet/web-5d4f8c9b7d"


def pod(name: str = "p", **more) -> Pod:
    return Pod(name, requests={"cpu": 1000}, **more)


def learned(lifetimes_s, owner: str = JOB, **more) -> LifetimeModel:
    model = LifetimeModel()
    for number, lifetime_s in enumerate(lifetimes_s):
        model.learn(pod(f"p{number}", owner=owner, **more), lifetime_s)
    return model


def test_a_pod_of_which_nothing_is_known_is_expected_to_run_by_the_lomax_law():
    model, stranger = LifetimeModel(), pod()
    assert model.survival(stranger, 0.0, UNKNOWN_S) == pytest.approx(0.5, rel=0.01)
    # Half of those that have run for a day run for another day and ten minutes.
    assert model.survival(stranger, 86_400.0, 86_400.0 + UNKNOWN_S) == pytest.approx(0.5, rel=0.01)
    assert model.certainty(stranger) < 0.15  # quartiles of 200 s and 1,800 s


def test_in_a_band_the_share_that_lives_on_is_counted():
    """Of ten runs that come to be 64 s old four end before the next edge, and two are lost sight of halfway to it."""
    next_s = 2.0**6.5
    middle_s = 0.5 * (64.0 + next_s)
    model = learned([middle_s] * 4 + [1000.0] * 4)
    for number in range(2):
        model.learn(pod(f"lost{number}", owner=JOB), middle_s, ended=False)
    # 4 ended, 4 and twice a half passed: 5/9 lived on, and in each of the four classes one run more as the one around.
    lives_on = (UNKNOWN_S + 64.0) / (UNKNOWN_S + next_s)
    for _ in range(4):
        lives_on = (5.0 + lives_on) / 10.0
    assert model.survival(pod(owner=JOB), 64.0, next_s - 64.0) == pytest.approx(lives_on, rel=1e-9)


def test_runs_that_all_take_as_long_are_expected_to_take_as_long():
    model, job = learned([75.0] * 2_000), pod(owner=JOB)
    assert model.remaining_s(job) == pytest.approx(75.0, rel=0.1)
    assert model.certainty(job) > 0.8


@pytest.mark.parametrize("mean_s", [3.0, 300.0, 30_000.0])
def test_runs_without_memory_are_expected_to_go_on_for_their_mean_at_any_age(mean_s):
    rng = np.random.default_rng(1)
    model, job = learned(rng.exponential(mean_s, 20_000)), pod(owner=JOB)
    for age_s in (0.0, 0.5 * mean_s, 2.0 * mean_s):
        assert model.remaining_s(job, age_s) == pytest.approx(mean_s, rel=0.1)
    assert model.certainty(job) == pytest.approx(np.log(4 / 3) / np.log(4), rel=0.1)


def test_runs_that_nobody_saw_end_count_for_as_long_as_they_were_watched():
    """Exponential lifetimes of mean 1,000 s cut off at 500 s: the mean of what was seen would be 393 s."""
    rng, model, job = np.random.default_rng(2), LifetimeModel(), pod(owner=JOB)
    for number, lifetime_s in enumerate(rng.exponential(1000.0, 20_000)):
        model.learn(pod(f"p{number}", owner=JOB), min(lifetime_s, 500.0), ended=lifetime_s <= 500.0)
    assert model.survival(job, 0.0, 500.0) == pytest.approx(np.exp(-0.5), rel=0.02)


def test_runs_that_were_found_running_say_nothing_of_the_time_before():
    """A snapshot holds long runs more often than short ones; counted from their birth they would seem eternal."""
    rng, model, job = np.random.default_rng(3), LifetimeModel(), pod(owner=JOB)
    lifetimes_s, ages_s = rng.exponential(1000.0, 20_000), rng.uniform(0.0, 4000.0, 20_000)
    for lifetime_s, age_s in zip(lifetimes_s.tolist(), ages_s.tolist(), strict=True):
        if lifetime_s > age_s:  # it still runs when we begin to watch
            model.learn(job, lifetime_s, from_s=age_s)
    assert model.remaining_s(job, 0.0) == pytest.approx(1000.0, rel=0.1)


def test_a_history_cuts_off_what_still_runs_and_what_ran_before():
    pods = [pod("old", created_s=-100.0, lifetime_s=150.0), pod("long", lifetime_s=1e6), pod("last", created_s=80.0)]
    told = LifetimeModel()
    told.learn(pods[0], 150.0, from_s=100.0)
    told.learn(pods[1], 80.0, ended=False)
    told.learn(pods[2], 0.0, ended=False)
    assert LifetimeModel.of_history(pods) == told


def test_the_older_a_heavy_tailed_run_the_longer_it_will_go_on():
    """Pareto lifetimes with S(t) = (60 / t)^1.5: one of age a is expected to run 2 a more."""
    rng = np.random.default_rng(4)
    lifetimes_s = 60.0 * (1.0 + rng.pareto(1.5, 40_000))
    model, job = learned(lifetimes_s), pod(owner=JOB)
    for age_s, within in ((100.0, 0.02), (1_000.0, 0.05), (10_000.0, 0.4)):  # 18,600, 590 and 18 come to be so old
        lived_on = (lifetimes_s > 2.0 * age_s).sum() / (lifetimes_s > age_s).sum()
        assert model.survival(job, age_s, age_s) == pytest.approx(lived_on, rel=within)
        assert age_s < model.remaining_s(job, age_s) < 4.0 * age_s


def test_an_owner_is_known_by_what_does_not_change_in_its_name():
    model = learned([100.0] * 50, JOB)
    model.learn(pod(owner=WEB), 90_000.0, ended=False)
    assert model.row(pod(owner="Job/etl-28391299")) == model.row(pod(owner=JOB))
    assert model.row(pod(owner="ReplicaSet/web-7c9d6b8f54")) == model.row(pod(owner=WEB))
    assert model.remaining_s(pod(owner=WEB)) > 10 * model.remaining_s(pod(owner=JOB))


def test_a_new_owner_counts_as_its_shape_and_a_new_shape_as_its_kind_of_owner():
    model = learned([100.0] * 4_000, JOB)
    for number in range(1_000):
        model.learn(pod(f"w{number}", owner=WEB), 5_000.0)
    known_s = model.remaining_s(pod(owner=JOB))
    assert model.remaining_s(pod(owner="Job/other-28391234")) == pytest.approx(known_s, rel=0.3)
    assert model.remaining_s(replace(pod(owner="Job/x"), gpu=GpuRequest(1, 1000))) == pytest.approx(known_s, rel=0.3)
    assert (
        model.remaining_s(replace(pod(owner="Job/x"), qos="LS")) > known_s
    )  # nothing known of that class: as of all pods


def test_few_runs_move_a_class_less_than_many():
    model = learned([100.0] * 500, "ReplicaSet/usual")
    rests_s = []
    for count in (1, 10, 100):
        for number in range(count):
            model.learn(pod(f"{count}-{number}", owner=f"ReplicaSet/new{count}"), 10_000.0)
        rests_s.append(model.remaining_s(pod(owner=f"ReplicaSet/new{count}")))
    assert 100.0 < rests_s[0] < rests_s[1] < rests_s[2] < 11_000.0


def test_a_declared_deadline_is_the_longest_that_a_pod_runs():
    model = learned([1e5] * 100)
    job = pod(owner=JOB, deadline_s=600.0)
    assert model.remaining_s(job) == pytest.approx(600.0, rel=0.05)
    assert model.remaining_s(job, 500.0) == pytest.approx(100.0, rel=0.05)
    assert (model.remaining_s(job, 700.0), model.survival(job, 0.0, 600.0), model.certainty(job, 700.0)) == (
        0.0,
        0.0,
        1.0,
    )
    assert model.certainty(job, 500.0) > 0.95  # what ends it is known


def test_what_a_deadline_ended_would_have_run_on():
    cut = LifetimeModel()
    for _ in range(100):
        cut.learn(pod(owner=JOB, deadline_s=600.0), 600.0)
    assert cut.survival(pod(owner=JOB), 0.0, 600.0) > 0.9


def test_a_clairvoyant_knows_to_the_second():
    known, job = KnownLifetimes(), pod(lifetime_s=300.0)
    assert known.remaining_s(job, 100.0) == pytest.approx(200.0, abs=1e-6)
    assert (known.survival(job, 100.0, 199.0), known.survival(job, 100.0, 200.0)) == (1.0, 0.0)
    assert (known.certainty(job, 100.0), known.remaining_s(pod())) == (1.0, LONGEST_S)
    assert known.remaining_s(replace(job, deadline_s=150.0), 100.0) == pytest.approx(50.0, abs=1e-6)


def test_a_model_goes_on_learning_after_it_was_asked():
    model = learned([100.0] * 20)
    before_s = model.remaining_s(pod(owner=JOB))
    for _ in range(200):
        model.learn(pod(owner=JOB), 1_000.0)
    assert model.remaining_s(pod(owner=JOB)) > 3 * before_s


def test_a_file_holds_what_was_learned():
    model = learned(np.random.default_rng(5).pareto(1.0, 300) * 50.0)
    model.learn(pod(owner=WEB, qos="LS"), 7_000.0, from_s=90.0, ended=False)
    back = LifetimeModel.from_dict(json.loads(json.dumps(model.to_dict())))
    assert back == model
    assert back.remaining_s(pod(owner=JOB), 77.0) == model.remaining_s(pod(owner=JOB), 77.0)
    assert LifetimeModel() != model


@pytest.mark.parametrize("around", [-1, 1, 7])
def test_a_file_whose_classes_do_not_lie_in_earlier_ones_is_refused(around):
    classes = [{"key": "", "around": -1, "bands": []}, {"key": "x", "around": around, "bands": []}]
    with pytest.raises(ValueError, match="does not stand before it"):
        LifetimeModel.from_dict({"classes": classes})
