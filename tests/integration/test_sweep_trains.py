"""A small real sweep: what it leaves trains again to the same model, TensorBoard compares its trials, a cut goes on."""

import csv
import json
from dataclasses import replace

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import plugin_data_pb2

from aaml.cli import run
from aaml.errors import UserError
from aaml.learning.config import AGENTS
from aaml.parallel.pool import open_pool
from aaml.settings import changed
from aaml.training.settings import TrainConfig
from aaml.training.sweep import sweep, train_to
from aaml.training.sweep_report import trial_table
from aaml.training.sweep_space import SweepConfig

STEPS = 240
FIXED = {"pods": 30, "teacher_steps": 0, "envs": 2, "validation_episodes": 1}
WAYS = {
    "rewards": ({"chunk": 16}, "learning_rate"),
    "group": ({"group_size": 2, "sampled": 0.5, "batch_size": 64}, "learning_rate"),  # two rounds of 2 x 2 episodes
}
YAML = """
agent: dqn
task: balance
nodes: [3]
steps: {steps}
trials: 3
batch: 2
rungs: 2
{flat}
space:
  {rate}: 1e-4..1e-2:log
  hidden_size: [8, 16]
"""


@pytest.fixture(scope="module", params=WAYS)
def method(request):
    return request.param


@pytest.fixture(scope="module")
def study(tmp_path_factory, method):
    folder = tmp_path_factory.mktemp("study")
    settings, rate = WAYS[method]
    flat = "\n".join(f"{name}: {value}" for name, value in {**FIXED, **settings, "method": method}.items())
    (folder / "sweep.yaml").write_text(YAML.format(steps=STEPS, flat=flat, rate=rate))
    assert run("search training", ["--config", str(folder / "sweep.yaml"), "--out", str(folder / "out")]) == 0
    return folder / "out"


def rows(path):
    with (path / "trials.csv").open() as file:
        return list(csv.DictReader(file))


def test_the_folder_holds_table_figures_and_small_trials(study):
    table = rows(study)
    assert [row["number"] for row in table] == ["0", "1", "2"]
    assert {row["state"] for row in table} == {"complete", "pruned"}
    assert {int(row["decisions"]) for row in table} == {STEPS // 2, STEPS}
    for name in ("history.png", "rungs.png", "importance.png"):
        assert (study / name).read_bytes().startswith(b"\x89PNG")
    assert not list(study.glob("trials/*/resume.pt"))


def test_the_best_settings_train_to_the_best_trials_model(study, tmp_path):
    assert run("train", ["--config", str(study / "best.yaml"), "--out", str(tmp_path / "run")]) == 0
    best = min((row for row in rows(study) if row["state"] == "complete"), key=lambda row: float(row["value"]))
    again = json.loads((tmp_path / "run/summary.json").read_text())
    assert again["best"] == pytest.approx(float(best["value"]), rel=1e-12)
    files = [
        next(path.glob("model/*.pth")) for path in (study / "trials" / f"{int(best['number']):03d}", tmp_path / "run")
    ]
    mine, theirs = (torch.load(file, weights_only=True)["states"] for file in files)
    assert_equal(mine, theirs)


def assert_equal(mine, theirs):
    assert type(mine) is type(theirs)
    if isinstance(mine, dict):
        assert mine.keys() == theirs.keys()
        for key in mine:
            assert_equal(mine[key], theirs[key])
    else:
        assert torch.equal(mine, theirs) if torch.is_tensor(mine) else mine == theirs


def test_tensorboard_compares_the_trials(study, method):
    groups, rate = set(), WAYS[method][1]
    for row in rows(study):
        events = EventAccumulator(str(study / "trials" / f"{int(row['number']):03d}" / "tensorboard"))
        events.Reload()
        content = events.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
        session = plugin_data_pb2.HParamsPluginData.FromString(content).session_start_info
        assert session.hparams[f"agent.{rate}"].number_value == float(row[rate])
        assert session.hparams["agent.hidden_size"].number_value == int(row["hidden_size"])
        assert "Validation/Score" in events.Tags()["tensors"]
        groups.add(session.group_name)
    assert len(groups) == 3


def base(method="rewards"):
    settings = {**FIXED, **WAYS[method][0], "task": "balance", "nodes": (3,), "steps": STEPS, "method": method}
    return changed(TrainConfig(agent=AGENTS["dqn"]), settings)


class CutError(Exception):
    """Stands for a kill."""


def test_a_study_cut_off_goes_on_to_the_same_trials_also_in_two_processes(study, method, tmp_path):
    space = (f"{WAYS[method][1]}=1e-4..1e-2:log", "hidden_size=8,16")
    config = SweepConfig(base(method), space, trials=3, batch=2, rungs=2)
    rungs = []

    def cut_off(*job):
        rungs.append(job)
        if len(rungs) == 3:  # both trials of the batch have reached the first rung
            raise CutError
        return train_to(*job)

    with open_pool(1) as pool, pytest.raises(CutError):
        sweep(config, tmp_path, pool, train=cut_off, progress=False)
    with open_pool(2 if method == "rewards" else 1) as pool:
        resumed = sweep(config, tmp_path, pool, resume=True, progress=False)
    (tmp_path / "trials.csv").write_text(trial_table(resumed).to_csv(index=False))
    assert rows(tmp_path) == rows(study)


def test_a_trial_killed_before_its_first_save_begins_anew(tmp_path, caplog):
    path = tmp_path / "000"
    score = train_to(base(), path, 120)
    for name in ("resume.pt", "rungs.json"):
        (path / name).unlink()
    (path / "left.txt").write_text("half-written")
    assert train_to(base(), path, 120) == score
    assert not (path / "left.txt").exists()
    assert "no run to go on with" not in caplog.text, "nobody asked for one"


def test_a_trials_folder_with_other_settings_is_left_alone(tmp_path):
    train_to(base(), tmp_path / "000", 120)
    with pytest.raises(UserError, match="other settings"):
        train_to(replace(base(), seed=9), tmp_path / "000", 240)
