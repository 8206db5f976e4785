"""Training in lockstep: it learns, goes on to the same weights after a stop, and says where it cannot be done."""

import hashlib

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util import tensor_util

from aaml.cli import run as command
from aaml.errors import UserError
from aaml.evaluation.policies import load
from aaml.learning.config import AGENTS, Dqn, GroupConfig
from aaml.settings import changed
from aaml.training.group_learner import GroupLearner
from aaml.training.rollouts import EnvFactory
from aaml.training.run import open_run
from aaml.training.settings import TrainConfig
from aaml.training.trainer import run_training
from aaml.training.validation import Validation
from support.training import train as run_of

ALL = ("dqn", "gnn", "acdqn", "acgnn")


def small(agent="acdqn", **others):
    settings = {
        "task": "balance", "nodes": (3, 4), "pods": 40, "steps": 1_200, "envs": 2, "teacher_steps": 200,
        "teacher_passes": 2, "validate_every": 500, "validation_episodes": 2, "seed": 3, "group_size": 4,
        "sampled": 0.5, "batch_size": 64,
    }  # fmt: skip
    if isinstance(AGENTS[others.get("agent", agent)], Dqn):
        settings["n_step"] = 10
    if agent == "qtable":
        del settings["batch_size"]
    return changed(TrainConfig(agent=AGENTS[agent]), {**settings, **others})


def train(config, path, **how):
    run, curve = run_of(config, path, **how)
    return run.progress, curve, run.folder


class KilledError(Exception):
    pass


@pytest.mark.slow
def test_the_readmes_learning_rate_changes_what_the_usual_training_does(tmp_path):
    """What is said of an agent counts whatever method trains it."""
    said, usual = (small("gnn", steps=1, validate_every=10**6, **told) for told in ({"learning_rate": 3e-4}, {}))
    assert said.resolved_method == "group"
    runs = [train(config, tmp_path / str(number)) for number, config in enumerate((said, usual))]
    first, second = (torch.load(folder.model_path(), weights_only=True)["states"]["optimizer"] for *_, folder in runs)
    assert [each["param_groups"][0]["lr"] for each in (first, second)] == [3e-4, 1e-3]


@pytest.mark.slow
@pytest.mark.parametrize("agent", ALL)
def test_a_killed_run_goes_on_to_the_same_weights_and_curve(agent, tmp_path):
    progress, curve, folder = train(small(agent), tmp_path / "whole")
    assert next(step for name, step, _ in curve if name == "Validation/Score") == 0
    assert progress.validations >= 3
    calls = []

    def kill():
        calls.append(0)
        if len(calls) > 100:
            raise KilledError
        return False

    with pytest.raises(KilledError):
        train(small(agent), tmp_path / "cut", stop=kill)
    again, other, copy = train(small(agent), tmp_path / "cut", resume=True)
    assert (again, other) == (progress, curve)
    whole, cut = (torch.load(each.model_path(), weights_only=True)["states"]["model"] for each in (folder, copy))
    for name, value in whole.items():
        assert torch.equal(value, cut[name]), name


@pytest.mark.slow
@pytest.mark.parametrize(("agent", "method"), [("acgnn", "group"), ("dqn", "group"), ("acdqn", "rewards")])
def test_a_run_may_go_on_from_the_weights_of_a_model(agent, method, tmp_path):
    first = train(small(agent, method=method, steps=500, validate_every=300), tmp_path / "first")[2]
    config = small(agent, method=method, steps=500, validate_every=300, start=tmp_path / "first")
    assert not config.imitates
    curve = train(config, tmp_path / "second")[1]
    began = next(value for name, step, value in curve if (name, step) == ("Validation/Score", 0))
    factory = EnvFactory(config.env_config)
    judged = Validation(factory, config.sizes, config.validation_episodes, config.reference)(load(first.model_path()))
    assert began == pytest.approx(judged["Validation/Score"])


def test_a_model_that_does_not_fit_is_told_before_there_is_a_folder(tmp_path):
    train(small("dqn", steps=100, validate_every=100), tmp_path / "dqn")
    for settings, said in (
        ({"agent": "acdqn"}, "is a 'dqn' model; expected acdqn"),
        ({"agent": "dqn", "task": "seedc", "nodes": (3,)}, "look 0 pods ahead; expected 2"),
        ({"agent": "dqn", "hidden_size": 8}, "width 32"),
    ):
        with pytest.raises(UserError, match=said):
            open_run(small(**settings, start=tmp_path / "dqn"), tmp_path / "new", resume=False)
    assert not (tmp_path / "new").exists()
    with pytest.raises(UserError, match="agent: 'linear' is not accepted"):
        TrainConfig(agent=AGENTS["linear"], start=tmp_path / "dqn")


def test_a_run_that_is_stopped_within_a_round_forgets_the_round_and_keeps_a_model(tmp_path):
    calls = []

    def stop():
        calls.append(0)
        return len(calls) > 100

    progress, _, folder = train(small(steps=1_000_000), tmp_path / "run", stop=stop, page=True)
    assert 0 < progress.step < 1_000_000
    assert load(folder.model_path()).name == "acdqn"
    page = (folder.path / "report.html").read_text()
    model = hashlib.sha256(folder.model_path().read_bytes()).hexdigest()
    score = f"{progress.best:.4f} of least-variance"
    for words in (
        score,
        "<tr class=changed><td>pods</td><td>40</td>",
        model,
        "Validation/Score",
        "paired by episode",
        "torch",
    ):
        assert words in page, words
    board = EventAccumulator(str(folder.path / "tensorboard"), size_guidance={"tensors": 0, "images": 0})
    board.Reload()
    tags = board.Tags()
    assert tags["graph"]
    lapses = {f"Cluster/{name} of nodes (rows) over time" for name in ("CPU", "memory")}
    assert set(tags["images"]) == {*lapses, "Placement"}
    histograms = board.Tensors("4. Actions")
    assert len(histograms) == progress.validations
    chosen = tensor_util.make_ndarray(histograms[-1].tensor_proto)[:, 2].sum()
    assert chosen == 2 * 40  # both episodes of the first size
    beside = {path.name for path in folder.path.glob("validation.*")}
    assert beside == {"validation.png", "validation.svg", "validation.csv"}


@pytest.mark.parametrize(("origin", "best", "kept"), [("a teacher", 0.5, 1), ("a model", 0.5, 1), ("nothing", 1.0, 2)])
def test_what_a_run_begins_as_is_kept_until_learning_beats_it(origin, best, kept, tmp_path, monkeypatch):
    """Unless it knows nothing yet: a score of random weights is chance."""
    start = train(small(steps=0), tmp_path / "first")[2].path if origin == "a model" else None
    scores, saved = iter((0.5, 2.0, 1.0, 1.5)), []
    monkeypatch.setattr(Validation, "__call__", lambda *_: {"Validation/Score": next(scores)})
    monkeypatch.setattr(GroupLearner, "save", lambda *_: saved.append(0))
    config = small(start=start, teacher="none" if origin == "nothing" else "")
    folder = open_run(config, tmp_path / "run", resume=False)[1]
    progress = run_training(config, folder, progress=False)
    folder.close()
    assert (progress.best, len(saved)) == (best, kept)


@pytest.mark.slow
@pytest.mark.parametrize("agent", ["dqn", "acdqn"])
def test_an_agent_that_began_at_random_balances_better_than_it_began(agent, tmp_path):
    """From random weights, without a teacher, within 40,000 decisions."""
    config = small(
        agent, teacher="none", nodes=(4,), pods=80, steps=40_000, envs=4, group_size=8, sampled=0.2,
        validate_every=40_000, validation_episodes=10,
    )  # fmt: skip
    _, curve, _ = train(config, tmp_path / "run")
    first, *_, last = [value for name, _, value in curve if name == "Validation/Score"]
    assert last < 0.8 * first


def test_the_judgement_in_lockstep_is_that_of_the_simulator(tmp_path):
    config = small("gnn")
    config, folder = open_run(config, tmp_path / "run", resume=False)
    factory = EnvFactory(config.env_config)
    learner = GroupLearner(config, factory, folder.writer)
    validation = Validation(factory, config.sizes, 3, "least-variance")
    fast, slow = validation(learner.policy, learner.evaluate), validation(learner.policy)
    folder.close()
    for name, value in slow.items():
        # Equal nodes may be told apart by the last bit of a float32: a few pods go to another one of them.
        np.testing.assert_allclose(fast[name], value, rtol=0.1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "settings"),
    [("fragmentation", {"pods": 30}), ("waiting", {"pods": 60}), ("compress", {}), ("seedc", {"nodes": (3,)})],
)
def test_other_tasks_train_in_lockstep_too(task, settings, tmp_path):
    progress, curve, folder = train(small("dqn", task=task, steps=600, **settings), tmp_path / "run")
    assert progress.step >= 600
    assert all(np.isfinite(value) for _, _, value in curve)
    assert folder.model_path().exists()


@pytest.mark.slow
@pytest.mark.parametrize("agent", ["dqn", "acdqn", "gnn", "acgnn"])
def test_agents_that_are_shown_costs_and_lifetimes_learn_by_group_rollouts(agent, tmp_path):
    shown = {"costs": True, "lifetimes": True, "remaining_lifetimes": "known"}
    config = small(agent, task="bill-when-empty", steps=100, nodes=(3,), **shown)
    assert config.resolved_method == "group"
    progress, _, folder = train(config, tmp_path / "run")
    assert progress.step >= 100
    assert load(str(folder.model_path())).observation_spec.costs


def test_auto_goes_by_group_rollouts_where_it_can_and_one_line_says_why_it_cannot(tmp_path):
    assert small().resolved_method == "group"
    assert small(workers="2").resolved_method == "rewards"
    assert small(remaining_lifetimes="learned").resolved_method == "group"
    assert small(reward="balance + rack-spread").resolved_method == "rewards"
    assert small(reward="compress").resolved_method == "group"
    assert small(method="expert").resolved_method == "expert"
    with pytest.raises(UserError, match="one process; use --method rewards"):
        train(small(method="group", workers="2"), tmp_path / "run")


def test_a_round_in_which_nothing_is_drawn_is_told(tmp_path):
    config = small(sampled=1e-9)
    assert isinstance(config.group, GroupConfig)
    with pytest.raises(UserError, match="no choice of a whole round was sampled"):
        train(config, tmp_path / "run")


def test_a_training_that_ended_before_it_learned_says_how_to_go_on(tmp_path, capsys):
    few = ["--agent=acdqn", "--nodes=3", "--pods=9", "--teacher=none", "--validation-episodes=1", "--steps=0"]
    assert command("train", [*few, f"--out={tmp_path / 'run'}"]) == 0
    assert f"go on with: aaml train --out {tmp_path / 'run'} --resume --steps 0" in capsys.readouterr().out


def test_a_reward_of_ones_own_is_learned_from_in_groups_where_it_can_be_compiled(tmp_path, caplog):
    (tmp_path / "mine.py").write_text(
        "def cheap(context, row):\n    return -float(context.state.requested[row, 0])\n\n\n"
        "def by_name(context, row):\n    return float(len(context.pod.name))\n"
    )
    assert small(reward=f"{tmp_path / 'mine.py'}:cheap").resolved_method == "group"
    named = small(reward=f"{tmp_path / 'mine.py'}:by_name")
    assert named.resolved_method == "rewards"
    _, folder = open_run(named, tmp_path / "by_name", resume=False)
    folder.close()
    assert "by_name is not compiled (Unknown attribute 'pod'" in caplog.text
    assert "a cluster at a time, some hundred times slower" in caplog.text
    progress, *_ = train(small(reward=f"{tmp_path / 'mine.py'}:cheap", steps=500), tmp_path / "cheap")
    assert progress.best_step >= 0


def test_a_device_that_is_not_there_or_does_not_go_with_the_method_is_refused_in_a_line(tmp_path):
    if not torch.cuda.is_available():
        with pytest.raises(UserError, match="device: 'cuda' is not accepted; expected cpu: PyTorch sees no GPU here"):
            train(small(device="cuda"), tmp_path / "run")
        assert not (tmp_path / "run").exists()
    with pytest.raises(UserError, match="device: 'cuda' is not accepted; expected cpu, where the method is rewards"):
        small(device="cuda", method="rewards").check_method()
