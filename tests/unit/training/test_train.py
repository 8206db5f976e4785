"""Training: same seed, same curve; killed and resumed, the same weights; many processes, the same experience."""

import json
from dataclasses import replace

import numpy as np
import pytest

from aaml.cli import run
from aaml.errors import UserError
from aaml.evaluation.entries import PolicyEntry
from aaml.evaluation.episode import episode_row, run_episode
from aaml.evaluation.policies import load
from aaml.learning.agents import load_agent
from aaml.learning.linear import save_linear
from aaml.policies.heuristics.linear import LinearPolicy
from aaml.scheduling.queue_sort import QueueSort
from aaml.settings import changed, plain
from aaml.sim.tasks import find_task
from aaml.training.linear import start_weights
from aaml.training.rollouts import EnvConfig, EnvFactory, Stream
from aaml.training.run import open_run
from aaml.training.settings import TrainConfig
from support.training import agent as make
from support.training import assert_equal, train

QUICK = {"batch_size": 32, "update_frequency": 32, "update_steps": 128, "n_epochs": 1}


def small(agent="dqn", **others):
    return TrainConfig(
        agent=make(agent, **QUICK), task="seedc", pods=40, envs=2, chunk=16, steps=256, teacher_steps=60,
        teacher_passes=1, validate_every=128, validation_episodes=1, seed=3, method="rewards", **others,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("agent", ["dqn", "acgnn"])
def test_the_same_seed_gives_the_same_curve_and_weights(agent, tmp_path):
    first, curve = train(small(agent), tmp_path / "a")
    second, other = train(small(agent), tmp_path / "b")
    assert curve == other
    assert len(curve) > 10
    assert_equal(first.weights, second.weights)


@pytest.mark.slow
@pytest.mark.parametrize("agent", ["dqn", "acgnn"])
def test_a_killed_run_goes_on_to_the_same_weights_and_curve(agent, tmp_path):
    whole, curve = train(small(agent), tmp_path / "whole")

    class KilledError(Exception):
        pass

    checks = []

    def kill():
        checks.append(0)
        if len(checks) == 7:  # beyond the validation at step 128, whose state is what is left
            raise KilledError
        return False

    with pytest.raises(KilledError):
        train(small(agent), tmp_path / "cut", stop=kill)
    resumed, other = train(small(agent), tmp_path / "cut", resume=True)
    assert other == curve
    assert_equal(whole.weights, resumed.weights)


def test_the_folder_holds_what_a_reader_asks_for(tmp_path):
    trainer, _ = train(small(), tmp_path / "run")
    config = json.loads((tmp_path / "run/config.json").read_text())
    assert config["training"]["seed"] == 3
    assert config["git_revision"]
    assert list((tmp_path / "run/tensorboard").glob("events.*"))
    assert (tmp_path / "run/placement.png").read_bytes().startswith(b"\x89PNG")
    agent = load(trainer.folder.model_path())
    assert (agent.name, agent.observation_spec.lookahead) == ("dqn", 2)
    assert json.loads((tmp_path / "run/summary.json").read_text())["validations"] == 3


def test_a_folder_with_a_run_is_not_written_over(tmp_path):
    train(small(), tmp_path / "run")
    with pytest.raises(UserError, match="holds a run already"):
        open_run(small(), tmp_path / "run", resume=False)


def test_early_stopping_ends_a_run_that_does_not_improve(tmp_path):
    config = changed(small(), {"steps": 100_000, "patience": 2, "learning_rate": 1e-12})
    trainer, _ = train(config, tmp_path / "run")
    assert trainer.progress.step < 2_000


def test_a_run_that_learned_nothing_better_says_so_in_its_last_line_and_on_its_page(tmp_path, capsys):
    out, settings = tmp_path / "run", {**plain(small()), "learning_rate": 1e-12}
    (tmp_path / "run.yaml").write_text(json.dumps(settings))
    assert run("train", ["--config", str(tmp_path / "run.yaml"), "--out", str(out)]) == 0
    said = "nothing learned beat the start: the kept weights are the warm start, a copy of least-variance"
    assert capsys.readouterr().out.splitlines()[-1].startswith(f"{said}; try more decisions: aaml train --out {out} ")
    assert said in (out / "report.html").read_text()


def test_a_typo_in_a_reward_of_ones_own_is_one_line_before_there_is_a_folder(tmp_path):
    (tmp_path / "mine.py").write_text("def mine(context, node):\n    return context.nodse[node]\n")
    wrong = rf"reward balance=1,{tmp_path}/mine.py:mine=0.5: line 2: AttributeError: .*'nodse'; expected a number from"
    with pytest.raises(UserError, match=wrong):
        open_run(small(reward=f"balance=1,{tmp_path}/mine.py:mine=0.5"), tmp_path / "run", resume=False)
    assert not (tmp_path / "run").exists()


def test_a_reward_of_ones_own_that_is_no_number_is_named_before_there_is_a_folder(tmp_path):
    (tmp_path / "mine.py").write_text("def mine(context, node):\n    return float('nan')\n")
    with pytest.raises(UserError, match=rf"reward {tmp_path}/mine.py:mine: nan is not accepted; expected a number"):
        open_run(small(reward=f"{tmp_path}/mine.py:mine"), tmp_path / "run", resume=False)
    assert not (tmp_path / "run").exists()


def test_a_folder_without_a_run_is_told_where_one_is_to_go_on(tmp_path, caplog):
    with caplog.at_level("WARNING"):
        open_run(small(), tmp_path / "mistyped", resume=True)[1].close()
    assert caplog.messages == [f"{tmp_path / 'mistyped'} holds no run to go on with: a new one begins"]


def test_a_model_file_is_a_teacher_too(tmp_path):
    save_linear(LinearPolicy(start_weights("least-allocated")), tmp_path / "scorer.json")
    trainer, _ = train(small(teacher=str(tmp_path / "scorer.json")), tmp_path / "first")
    assert trainer.config.reference == str(tmp_path / "scorer.json")
    model = str(trainer.folder.model_path())
    second, _ = train(small(agent="acdqn", teacher=model), tmp_path / "second")
    assert second.agent.name == "acdqn"
    with pytest.raises(UserError, match="lookahead of 0"):
        EnvFactory(EnvConfig("balance", (3,))).policy(model)


def test_the_teachers_order_of_waiting_pods_is_taken_over(tmp_path):
    sort = QueueSort(cpu_s=10.0, larger_s=500.0)
    save_linear(LinearPolicy(start_weights("least-variance"), queue_sort=sort), tmp_path / "sorting.json")
    config = replace(small(agent="acdqn", teacher=str(tmp_path / "sorting.json")), task="waiting", nodes=(2,), pods=120)
    trainer, _ = train(config, tmp_path / "run")
    path = str(trainer.folder.model_path())
    agent, again = load(path), load_agent(path)
    assert agent.queue_sort == again.queue_sort == sort
    row = run_episode(PolicyEntry(path), find_task("waiting"), 5, 2, 200)
    agent.queue_sort = None
    cluster = find_task("waiting").build(5, 2, pods=200)
    other = episode_row("waiting", 5, cluster, agent, "unsorted")
    assert row["rejected"] > 0
    assert row["waiting_mean_s"] != other["waiting_mean_s"]


@pytest.mark.parametrize("cut", [True, False])
def test_a_stream_comes_back_from_its_actions(cut):
    factory = EnvFactory(EnvConfig("balance", (4, 6), pods=25))
    policy = factory.policy("least-allocated")
    stream = Stream(factory, seed=1, index=2)
    for _ in range(37):
        stream.step(policy)
    if cut:
        stream.cut()
    twin = Stream(factory, seed=1, index=2)
    twin.restore(stream.state())
    for _ in range(30):
        mine, theirs = stream.step(policy), twin.step(policy)
        assert len(mine) == len(theirs)
        for own, other in zip(mine, theirs, strict=True):
            assert (own.action, own.reward) == (other.action, other.reward)
            np.testing.assert_array_equal(own.observation.nodes, other.observation.nodes)


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"envs": 0}, "envs"), ({"workers": 0}, "workers"), ({"gama": 1}, "gama"),
        ({"stepz": 4}, "stepz"), ({"agent": "magic"}, "acgnn"), ({"steps": "many"}, "steps"), ({"nodes": 0}, "nodes"),
    ],
)  # fmt: skip
def test_wrong_settings_are_named(settings, match):
    with pytest.raises(UserError, match=match):
        changed(TrainConfig(), settings)


def test_a_task_that_is_not_known_is_told_before_there_is_a_folder(tmp_path):
    with pytest.raises(UserError, match="task: 'nothing'"):
        open_run(replace(small(), task="nothing"), tmp_path / "run", resume=False)
    assert not (tmp_path / "run").exists()
