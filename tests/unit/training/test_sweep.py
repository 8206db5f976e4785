"""Sweeps: spaces are read or refused in one line; the same study for any workers and after an interruption; pruning."""

import math
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from functools import partial

import optuna
import pytest
import yaml

from aaml.cli import run
from aaml.errors import UserError
from aaml.learning.config import AGENTS, LIVE
from aaml.parallel.pool import open_pool
from aaml.settings import changed
from aaml.training.settings import TrainConfig
from aaml.training.sweep import cutoff, distribution, sweep
from aaml.training.sweep_report import importances, summary, trial_table, write_report
from aaml.training.sweep_space import Categorical, Range, SweepConfig, parse_space

BASE = TrainConfig(agent=AGENTS["dqn"], steps=400, method="rewards")
SPACE = ("learning_rate=1e-5..1e-1:log", "hidden_size=8,16,32", "gamma=0.0..0.9")


def config(**others):
    return SweepConfig(BASE, SPACE, **{"trials": 12, "batch": 4, **others})


def distance(training, _path, rung):
    """How far the learning rate is from 1e-3, in magnitudes; all get better with the decisions."""
    agent = training.agent
    return abs(math.log10(agent.learning_rate) + 3) + 0.01 * agent.gamma + 10 / rung


def always(score, _training, _path, _rung):
    return score


def table(study):
    return [(t.number, t.state.name, t.params, t.intermediate_values, t.value) for t in study.trials]


class Threads:
    """Two jobs at once, the last first; results as they come."""

    size = 2

    def run(self, function, jobs):
        with ThreadPoolExecutor(2) as executor:
            futures = {executor.submit(function, *job): i for i, job in reversed(list(enumerate(jobs)))}
            for future in as_completed(futures):
                yield futures[future], future.result()


@pytest.fixture
def here():
    with open_pool(1) as pool:
        yield pool


def test_spaces_are_read_by_the_types_of_their_settings():
    space = parse_space(("learning_rate=1e-4..1e-2:log", "n_step=1..5", "gamma=0..0.9", "hidden_size=16,32",
                         "scale_rewards=true,false", "agent=dqn,gnn", "teacher_steps=0,500"), BASE)  # fmt: skip
    assert space == {
        "learning_rate": Range(1e-4, 1e-2, log=True), "n_step": Range(1, 5), "gamma": Range(0.0, 0.9),
        "hidden_size": Categorical((16, 32)), "scale_rewards": Categorical((True, False)),
        "agent": Categorical(("dqn", "gnn")), "teacher_steps": Categorical((0, 500)),
    }  # fmt: skip
    assert isinstance(distribution(space["n_step"]), optuna.distributions.IntDistribution)
    assert isinstance(distribution(space["gamma"]), optuna.distributions.FloatDistribution)


@pytest.mark.parametrize("method", ["group", "rewards"])
@pytest.mark.parametrize("agent", LIVE)
def test_the_usual_space_of_an_agent_is_one_that_it_reads(agent, method):
    study = SweepConfig(TrainConfig(agent=AGENTS[agent], method=method))
    assert len(study.domains) >= 5
    assert study.present.keys() == study.domains.keys()  # so that the first trial is the usual training


def test_group_rollouts_are_searched_by_what_matters_to_them():
    value, policy = (parse_space((), TrainConfig(agent=AGENTS[agent])) for agent in ("gnn", "acdqn"))
    assert {"n_step", "buffer_size"} == set(value) - set(policy)
    assert {"ent_coef", "clip_range"} == set(policy) - set(value)
    assert value["learning_rate"] == policy["learning_rate"] == Range(3e-4, 3e-3, log=True)


def test_trials_learn_by_group_rollouts_where_one_process_can_whatever_the_workers():
    assert SweepConfig(TrainConfig(workers="2")).training_of({"learning_rate": 1e-4}).method == "group"
    assert SweepConfig(TrainConfig(reward="balance=1,compress=1")).base.method == "rewards"


def test_a_first_rung_within_a_round_is_told(tmp_path, here, caplog):
    study = SweepConfig(changed(BASE, {"method": "group", "pods": 50, "envs": 2, "learning_rate": 0.1}), trials=1)
    assert study.whole_round == 2 * 16 * 50
    sweep(study, tmp_path / "out", here, train=lambda *_: 1.0, progress=False)
    assert "the first rung is after 100 decisions, and a round takes about 1600" in caplog.text


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--space", "gama=0..1"], ["space", "'gama'", "gamma"]),
        (["--space", "task=balance,compress"], ["space", "'task'", "one of"]),
        (["--space", "gamma=0.9..0.1"], ["gamma", "0.9..0.1", "LOW below HIGH"]),
        (["--space", "gamma=0.0..0.9:log"], ["gamma", "LOW above 0"]),
        (["--space", "gamma=low..0.9"], ["gamma", "'low'", "a number"]),
        (["--space", "gamma=0.0..nan"], ["gamma", "'nan'", "a number"]),
        (["--space", "gamma=0.5..1.5"], ["gamma", "1.5", "between 0 and 1"]),
        (["--space", "n_step=-1..3"], ["n_step", "-1", "at least 0"]),
        (["--space", "n_step=1.5..3"], ["n_step", "'1.5'", "a whole number"]),
        (["--space", "gamma=0.1..0.9:linear"], ["gamma", "0.1..0.9:linear"]),
        (["--space", "optimizer=Adam..SGD"], ["optimizer", "values such as"]),
        (["--space", "optimizer=Adam,Eve"], ["optimizer", "'Eve'", "AdamW"]),
        (["--space", "agent=dqn,qtable"], ["agent", "'qtable'", "acgnn"]),
        (["--space", "hidden_size=16"], ["hidden_size", "'16'", "two or more"]),
        (["--space", "gamma=0.1,0.2", "gamma=0.1..0.2"], ["gamma", "once"]),
        (["--space", "gamma"], ["space", "'gamma'", "NAME="]),
        (["--space", "agent=dqn,acdqn", "buffer_size=100..1000"], ["'buffer_size'", "dqn, acdqn", "gamma"]),
        (["--space", "n_epochs=1..3", "n_epochs=2..4"], ["n_epochs", "once"]),
        (["--method", "group", "--space", "ent_coef=0..0.1"], ["'ent_coef'", "dqn", "buffer_size"]),
        (["--method", "group", "--space", "agent=dqn,acgnn", "clip_range=0.1..0.3"], ["'clip_range'", "dqn, acgnn"]),
        (["--method", "group", "--space", "smapled=0.1..0.3"], ["'smapled'", "did you mean sampled? Expected one of"]),
        (["--space", "learning_rate=3e-4:log"], ["'3e-4:log'", "expected LOW..HIGH, ", "as in 1e-4..1e-2:log"]),
        (["--method", "group", "--space", "sampled=0.5..1.5"], ["sampled", "1.5", "at most 1"]),
        (["--method", "group", "--space", "reward=balance,balance=2"], ["reward", "not compiled", "--method rewards"]),
        (["--method", "group", "--reward", "balance=2"], ["reward", "not compiled", "--method rewards"]),
        (["--learning_rate", "fast"], ["learning_rate: 'fast'", "a number above 0"]),
        (["--agent", "qtable"], ["agent", "'qtable'", "acgnn"]),
        (["--task", "nothing"], ["task", "'nothing'", "balance"]),
        (["--trials", "0"], ["trials", "0", "at least 1"]),
        (["--reduction", "1"], ["reduction", "1", "at least 2"]),
        (["--steps", "3"], ["steps", "3", "at least 4"]),
        (["--workers", "many"], ["workers", "'many'", "ray"]),
        (["--storage", "nowhere://x"], ["storage", "nowhere://x"]),
        (["--config", "nothing.yaml"], ["config", "nothing.yaml", "readable"]),
    ],
)
def test_a_mistake_is_one_line(flags, words, tmp_path, capsys):
    method = [] if "--method" in flags else ["--method", "rewards"]
    assert run("search training", ["--out", str(tmp_path / "out"), *method, *flags]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    for word in words:
        assert word in err


def test_the_best_part_of_the_scores_goes_on():
    assert cutoff([5.0, 1.0, 3.0, 2.0], 2) == 2.0
    assert cutoff([5.0, 1.0, 3.0], 2) == 3.0
    assert cutoff([5.0, 1.0, 3.0, 2.0], 4) == 1.0
    assert cutoff([7.0], 3) == 7.0


def test_the_ladder_ends_with_the_whole_training_and_validates_at_every_rung():
    study = config(rungs=3, reduction=3)
    assert study.ladder == (44, 132, 400)
    assert study.training_of({"gamma": 0.1}).validate_every == 44
    assert config(rungs=1).ladder == (400,)


def test_the_study_is_the_same_for_any_workers(tmp_path, here):
    one = sweep(config(), tmp_path / "one", here, train=distance, progress=False)
    two = sweep(config(), tmp_path / "two", Threads(), train=distance, progress=False)
    assert table(one) == table(two)
    assert len(one.trials) == 12
    assert len({tuple(t.params.items()) for t in one.trials}) == 12


def test_another_seed_gives_another_study(tmp_path, here):
    other = replace(BASE, seed=1)
    one = sweep(config(trials=3), tmp_path / "one", here, train=distance, progress=False)
    two = sweep(SweepConfig(other, SPACE, 3), tmp_path / "two", here, train=distance, progress=False)
    assert [t.params for t in one.trials][1:] != [t.params for t in two.trials][1:]


@pytest.mark.slow
@pytest.mark.parametrize("calls", [0, 3, 9, 13])
def test_an_interrupted_study_goes_on_as_if_it_had_not_been(calls, tmp_path, here):
    whole = sweep(config(), tmp_path / "whole", here, train=distance, progress=False)
    made = []

    def cut_off(*job):
        if len(made) == calls:
            raise KeyboardInterrupt
        made.append(job)
        return distance(*job)

    with pytest.raises(KeyboardInterrupt):
        sweep(config(), tmp_path / "cut", here, train=cut_off, progress=False)
    resumed = sweep(config(), tmp_path / "cut", here, resume=True, train=distance, progress=False)
    assert table(resumed) == table(whole)


def test_more_trials_go_on_with_the_study(tmp_path, here):
    first = sweep(config(trials=8), tmp_path / "out", here, train=distance, progress=False)
    begun = table(first)
    more = sweep(config(trials=12), tmp_path / "out", here, resume=True, train=distance, progress=False)
    assert table(more)[:8] == begun
    assert table(more) == table(sweep(config(), tmp_path / "whole", here, train=distance, progress=False))


def test_a_batch_that_was_cut_short_is_filled(tmp_path, here):
    sweep(config(trials=6), tmp_path / "out", here, train=distance, progress=False)
    more = sweep(config(trials=8), tmp_path / "out", here, resume=True, train=distance, progress=False)
    whole = sweep(config(trials=8), tmp_path / "whole", here, train=distance, progress=False)
    assert [t.params for t in more.trials] == [t.params for t in whole.trials]


def test_a_study_may_be_in_a_database(tmp_path, here):
    storage = f"sqlite:///{tmp_path}/shared.db"
    sweep(config(trials=4), tmp_path / "out", here, storage=storage, train=distance, progress=False)
    found = sweep(config(), tmp_path / "out", here, resume=True, storage=storage, train=distance, progress=False)
    whole = sweep(config(), tmp_path / "whole", here, train=distance, progress=False)
    assert table(found) == table(whole)
    assert not (tmp_path / "out" / "study.jsonl").exists()


def test_other_settings_do_not_go_on_with_a_study(tmp_path, here):
    sweep(config(trials=2), tmp_path / "out", here, train=distance, progress=False)
    with pytest.raises(UserError, match="belongs to a study with another batch"):
        sweep(config(trials=2, batch=2), tmp_path / "out", here, resume=True, train=distance, progress=False)
    with pytest.raises(UserError, match="holds a study already; go on with --resume"):
        sweep(config(trials=4), tmp_path / "out", here, train=distance, progress=False)


def test_the_worse_are_pruned_and_the_best_trained_to_the_end(tmp_path, here):
    study = sweep(config(), tmp_path / "out", here, train=distance, progress=False)
    first = {t.number: t.intermediate_values[100] for t in study.trials if t.number < 4}
    for number, score in first.items():  # of the first four, two go on and one of them to the end
        reached = max(study.trials[number].intermediate_values)
        better = sum(other < score for other in first.values())
        assert reached == (400, 200, 100, 100)[better]
    assert study.best_trial.intermediate_values.keys() == {100, 200, 400}
    pruned = [t for t in study.trials if t.state.name == "PRUNED"]
    assert pruned
    assert all(t.intermediate_values[100] > study.best_trial.intermediate_values[100] for t in pruned)


def test_one_rung_prunes_nothing(tmp_path, here):
    study = sweep(config(rungs=1), tmp_path / "out", here, train=distance, progress=False)
    assert {t.state.name for t in study.trials} == {"COMPLETE"}


def test_the_first_trial_has_the_present_settings(tmp_path, here):
    study = sweep(config(trials=1), tmp_path / "out", here, train=distance, progress=False)
    agent = BASE.resolved.agent
    assert study.trials[0].params == {name: getattr(agent, name) for name in ("learning_rate", "hidden_size", "gamma")}


def test_of_one_trial_nothing_is_said_to_matter(tmp_path, here):
    study = sweep(config(trials=1), tmp_path, here, train=distance, progress=False)
    assert importances(study) == {}
    write_report(study, config(), tmp_path)
    assert not (tmp_path / "importance.png").exists()
    assert "importance" not in summary(study, config(), tmp_path)


@pytest.mark.parametrize(("score", "told"), [(1.2, True), (1.0, True), (0.9, False)])
def test_a_sweep_whose_best_is_no_better_than_the_reference_says_so_first(score, told, tmp_path, here):
    study = sweep(config(trials=2), tmp_path, here, train=partial(always, score), progress=False)
    said = summary(study, config(), tmp_path)
    assert said.startswith(f"no trial is better than {BASE.reference} on validation episodes") == told


@pytest.mark.slow
def test_the_report_names_the_parameter_that_matters(tmp_path, here):
    study = sweep(config(trials=40), tmp_path, here, train=distance, progress=False)
    assert next(iter(importances(study))) == "learning_rate"
    assert sum(importances(study).values()) == pytest.approx(1.0)
    write_report(study, config(), tmp_path)
    best = yaml.safe_load((tmp_path / "best.yaml").read_text())
    assert {name: best[name] for name in study.best_trial.params} == study.best_trial.params
    assert changed(TrainConfig(), best).agent.gamma == study.best_trial.params["gamma"]
    assert list(trial_table(study)["number"]) == list(range(40))
    assert (tmp_path / "trials.csv").read_text().startswith("number,state,value,decisions,learning_rate")
    for name in ("history.png", "importance.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
    page = (tmp_path / "report.html").read_text()
    for words in ("40, of which", f"trial {study.best_trial.number}", "best.yaml", "learning_rate", "git revision"):
        assert words in page
