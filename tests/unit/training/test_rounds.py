"""Q-table and linear scorer: curves, the best kept, killed and resumed to the same result, stopped cleanly."""

import json

import numpy as np
import pytest

from aaml.errors import UserError
from aaml.evaluation.policies import load_policy
from aaml.learning.config import AGENTS
from aaml.settings import changed
from aaml.sim.tasks import find_task
from aaml.training.qtable import QTableLearner
from aaml.training.rollouts import EnvConfig, EnvFactory
from aaml.training.run import open_run
from aaml.training.settings import TrainConfig
from aaml.training.trainer import run_training
from aaml.training.validation import Validation, _ratio


def small(agent, **others):
    settings = {"task": "seedc", "pods": 20, "steps": 300, "validate_every": 100, "validation_episodes": 1, "seed": 3}
    settings |= {"envs": 1}
    if agent == "linear":
        settings |= {"steps": 3000, "validate_every": 800}  # 800 decisions a generation
    return TrainConfig(agent=AGENTS[agent], **{**settings, **others})


def train(config, path, *, resume=False, stop=lambda: False):
    config, folder = open_run(config, path, resume=resume)
    try:
        progress = run_training(config, folder, stop, progress=False)
    finally:
        folder.close()
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    return progress, [(line["name"], line["step"], line["value"]) for line in lines], folder.model_path()


@pytest.mark.parametrize("agent", ["qtable", "linear"])
def test_a_killed_run_goes_on_to_the_same_curve_and_model(agent, tmp_path):
    progress, curve, model = train(small(agent), tmp_path / "whole")
    points = [step for name, step, _ in curve if name == "Validation/mean_variance"]
    assert points[0] == 0
    assert len(points) >= 4
    scores = [value for name, _, value in curve if name == "Validation/Score"]
    assert progress.best == min(scores[1:])
    assert json.loads((tmp_path / "whole/summary.json").read_text())["reference"] == "least-variance"

    class KilledError(Exception):
        pass

    checks = []

    def kill():
        checks.append(0)
        if len(checks) == (12 if agent == "qtable" else 70):  # beyond the first validation
            raise KilledError
        return False

    with pytest.raises(KilledError):
        train(small(agent), tmp_path / "cut", stop=kill)
    again, other, copy = train(small(agent), tmp_path / "cut", resume=True)
    assert (again, other) == (progress, curve)
    assert copy.read_text() == model.read_text()
    policy = load_policy(str(model))
    assert policy.name in {"qtable", model.stem}


@pytest.mark.parametrize("agent", ["qtable", "linear"])
def test_a_run_that_is_stopped_leaves_a_model_and_goes_on(agent, tmp_path):
    checks = []

    def stop():
        checks.append(0)
        return len(checks) > (30 if agent == "qtable" else 70)

    progress, _, model = train(small(agent, steps=10_000), tmp_path / "run", stop=stop)
    assert 0 < progress.step < 10_000
    assert model.exists()
    checks.clear()
    later, _, _ = train(small(agent, steps=10_000), tmp_path / "run", resume=True, stop=stop)
    assert later.step > progress.step


def test_a_run_that_has_more_decisions_than_asked_for_says_so(tmp_path, caplog):
    progress, _, _ = train(small("qtable", steps=400), tmp_path / "run")
    assert not caplog.messages
    train(small("qtable", steps=400), tmp_path / "run", resume=True)
    done = f"{tmp_path / 'run'} has learned from {progress.step} decisions already: --steps 400 asks for no more"
    assert caplog.messages == [done]


def test_the_best_model_stays_and_patience_ends_the_run(tmp_path, monkeypatch):
    scores = iter((0.5, 3.0, 1.0, 2.0, 2.5, 0.1))  # the first is that of an empty table
    monkeypatch.setattr(
        "aaml.training.validation.Validation.__call__",
        lambda _self, _policy, _judge: {"Validation/Score": next(scores)},
    )
    saved = []
    monkeypatch.setattr(QTableLearner, "save", lambda _self, _folder: saved.append(0))
    config, folder = open_run(small("qtable", steps=5_000, patience=2), tmp_path / "run", resume=False)
    progress = run_training(config, folder, progress=False)
    folder.close()
    assert (progress.best, progress.validations, len(saved)) == (1.0, 4, 2)


def test_the_objective_decides_what_is_learned_and_judged(tmp_path):
    """The same pods, the other objective: a table that learned to compress leaves more nodes empty."""
    settings = {"pods": 60, "steps": 4_000, "validate_every": 4_000}
    _, curve, balance = train(small("qtable", **settings), tmp_path / "balance")
    _, other, compress = train(small("qtable", **settings, task="seedc-compress"), tmp_path / "compress")
    assert "Validation/mean_variance" in {name for name, _, _ in curve}
    assert "Validation/mean_empty_fraction" in {name for name, _, _ in other}
    factory = EnvFactory(EnvConfig("seedc-compress", (3,), lookahead=2))
    evaluate = Validation(factory, (3,), episodes=3, reference="most-allocated")
    empty = [evaluate(factory.policy(str(model)))["Validation/mean_empty_fraction"] for model in (balance, compress)]
    assert empty[1] > 2 * empty[0]


@pytest.mark.parametrize("task", ["seedc", "seedc-compress", "waiting", "balance"])
def test_a_table_learns_in_lockstep_what_it_learns_in_the_simulator(task, tmp_path):
    """To the bit: the same episodes, choices, rewards and bins; with several clusters at once it goes on by turns."""
    tables = []
    for method in ("auto", "rewards"):
        _, _, model = train(small("qtable", task=task, pods=60, steps=400, method=method), tmp_path / method)
        tables.append(json.loads(model.read_text())["table"])
    assert tables[0] == tables[1]
    assert len(tables[0]) > 20
    _, _, model = train(small("qtable", task=task, pods=60, nodes=(3, 5), envs=4, steps=400), tmp_path / "four")
    without = len(tables[0][0][0]) - find_task(task).nodes
    assert {len(key) - without for key, _ in json.loads(model.read_text())["table"]} == {3, 5}


def test_a_reward_of_ones_own_is_learned_from_in_the_simulator(tmp_path):
    own = tmp_path / "own.py"
    own.write_text("def zero(state, pod, node):\n    return 0.0\n")
    config = small("qtable", reward=f"{own}:zero")
    assert config.resolved_method == "rewards"


def test_cluster_sizes_are_drawn_from_those_given(tmp_path):
    config, folder = open_run(small("qtable", nodes=(2, 4), steps=200), tmp_path / "run", resume=False)
    run_training(config, folder, progress=False)
    folder.close()
    table = load_policy(str(folder.model_path()))
    assert {len(key) - 3 for key in table.table} == {2, 4}


def test_what_cannot_be_made_is_told_before_there_is_a_folder(tmp_path):
    with pytest.raises(UserError, match="batch_size"):
        changed(small("qtable"), {"batch_size": 5})
    for wrong in ({"reward": "riches"}, {"teacher": "nobody"}, {"teacher": "none.json"}):
        with pytest.raises(UserError, match=next(iter(wrong.values()))):
            open_run(small("qtable", **wrong), tmp_path / "run", resume=False)
    assert not (tmp_path / "run").exists()


def test_each_episode_counts_alike_in_a_score_of_positive_values():
    values, reference = np.array([1.0, 400.0]), np.array([2.0, 100.0])
    assert _ratio(values, reference, alike=True) == pytest.approx(2**0.5)
    assert _ratio(values, reference, alike=False) == pytest.approx(401 / 102)
    assert _ratio(np.array([0.0, 1.0]), np.array([1.0, 1.0]), alike=True) == 0.5
    assert _ratio(np.array([0.5]), np.array([0.0]), alike=True) == 1.5
