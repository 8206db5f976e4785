"""The weights that ship: a name stands where a model file may stand."""

import json
import subprocess
from pathlib import Path

import pytest

import aaml
from aaml.cli import run
from aaml.errors import UserError
from aaml.evaluation.entries import policy_entries
from aaml.evaluation.policies import is_model, kind_of_model, load_policy
from aaml.evaluation.zoo import models_folder, zoo
from aaml.learning.config import AGENTS
from aaml.policies.registry import POLICIES
from aaml.sim.tasks import find_task

ROOT = Path(__file__).parents[3]


def test_every_tracked_weights_file_has_a_name_and_every_name_a_file():
    tracked = subprocess.run(
        ["git", "ls-files", "models"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    weights = {Path(path).name for path in tracked if Path(path).suffix in {".pth", ".json", ".npz", ".formula"}}
    named = {model.path.name for model in zoo().values()}
    critics = {name.replace("Actor_", "Critic_") for name in named if name.startswith("Actor_")}
    assert weights == named | critics


def test_a_name_says_what_the_command_trained():
    for name, model in zoo().items():
        if model.path.suffix in {".npz", ".formula"}:  # a search made them: `aaml search gpu`, `aaml search formula`
            continue
        assert name == f"{model.task}-{model.agent}"
        assert model.agent in AGENTS
        assert f"--agent {model.agent} " in model.command
        assert f"--task {model.task}" in model.command
        assert find_task(model.task).metric


def test_no_name_is_a_policy_or_a_task_too():
    assert not set(zoo()) & {*POLICIES.names(), *AGENTS}


@pytest.mark.parametrize("name", ["varied-acdqn", "balance-gnn", "compress-linear"])
def test_a_shipped_model_is_loaded_by_its_name_from_any_folder(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert aaml.load(name).name == aaml.load(zoo()[name].path).name
    assert is_model(name)
    assert load_policy(name).name
    assert kind_of_model(zoo()[name].path) == ("linear" if name.endswith("linear") else "network")


def test_a_file_of_ones_own_by_that_name_comes_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("varied-acdqn").write_bytes(zoo()["compress-linear"].path.read_bytes())
    assert type(aaml.load("varied-acdqn")) is type(aaml.load("compress-linear"))


def test_a_table_calls_a_shipped_model_by_its_name():
    (entry,) = policy_entries(["varied-acdqn"])
    assert entry.name == "varied-acdqn"


def test_a_name_that_is_none_is_answered_with_what_there_is():
    with pytest.raises(UserError, match=r"model: 'varied-acdqm' .* a name that `aaml show models` lists"):
        aaml.load("varied-acdqm")


def test_the_command_lists_all_with_task_metric_command_and_hash(capsys):
    assert run("show models", ["--json"]) == 0
    cards = json.loads(capsys.readouterr().out)
    assert list(cards) == list(zoo())
    card = cards["compress-linear"]
    assert card["metric"] == "mean_empty_fraction, higher is better"
    assert card["command"].startswith("aaml train --agent linear --task compress")
    told = subprocess.run(
        ["sha256sum", models_folder() / "Linear_linear_compress_s1.json"], capture_output=True, text=True, check=True
    )
    assert card["sha256"] == told.stdout.split()[0]


def test_the_command_shows_one_card_and_refuses_a_name_that_is_none(capsys):
    assert run("show models", ["varied-acdqn"]) == 0
    assert "aaml train --agent acdqn --task varied" in capsys.readouterr().out
    assert run("show models", ["varied-acdqm"]) == 2
    assert "did you mean varied-acdqn?" in capsys.readouterr().err


def test_a_card_names_models_as_an_installed_package_has_them_and_no_page_of_the_repository(capsys):
    for name in zoo():
        assert run("show models", [name]) == 0
        lines = capsys.readouterr().out.splitlines()
        (command,) = [line for line in lines if line.startswith("  command")]
        assert "models/" not in command
        assert [line for line in lines if "docs/" in line] == []


def test_the_leaderboard_judged_the_very_weights_that_ship():
    judged = {
        entry["policy"]["sha256"]
        for path in (ROOT / "docs/results/leaderboard").glob("*/*.json")
        if (entry := json.loads(path.read_text()))["policy"]["kind"] == "model"
    }
    networks = {name: model.sha256 for name, model in zoo().items() if model.path.suffix == ".pth"}
    assert {name for name, sha256 in networks.items() if sha256 not in judged} == set()
