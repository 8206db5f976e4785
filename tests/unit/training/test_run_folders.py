"""A run has its folder for itself: nobody else's model comes out of it, and no two trainings write into it at once."""

import subprocess
import sys

import pytest

import aaml
from aaml.cli import run as command
from aaml.training.records import read_metrics

QUICK = {"steps": 60, "validation_episodes": 1, "progress": False}
FLAGS = ["--task=seedc", "--pods=20", "--steps=60", "--validation-episodes=1"]


@pytest.fixture
def task():
    return aaml.task("seedc", pods=20)


def test_going_on_in_the_folder_of_another_training_is_refused(task, tmp_path):
    aaml.train(aaml.QTable(bins=4), task, out=tmp_path / "q", **QUICK)
    with pytest.raises(aaml.UserError, match=r"agent: 'linear' is not what .*q was begun with, 'qtable'"):
        aaml.train("linear", task, out=tmp_path / "q", resume=True, **QUICK)
    with pytest.raises(aaml.UserError, match=r"bins: 12 is not what .*q was begun with, 4"):
        aaml.train("qtable", task, out=tmp_path / "q", resume=True, **QUICK)
    other = aaml.task("seedc-compress", pods=20)
    with pytest.raises(aaml.UserError, match="task: 'seedc-compress' is not what"):
        aaml.train(aaml.QTable(bins=4), other, out=tmp_path / "q", resume=True, **QUICK)
    with pytest.raises(aaml.UserError, match="seed: 7 is not what"):
        aaml.train(aaml.QTable(bins=4), task, out=tmp_path / "q", resume=True, seed=7, **QUICK)


@pytest.mark.slow
def test_the_same_call_goes_on_to_more_decisions(task, tmp_path):
    aaml.train(aaml.QTable(bins=4), task, out=tmp_path / "q", **QUICK)
    table = aaml.train(aaml.QTable(bins=4), task, out=tmp_path / "q", resume=True, **{**QUICK, "steps": 120})
    assert table.config.bins == 4


def test_the_command_goes_on_by_the_folder_alone_and_refuses_what_it_was_not_begun_with(tmp_path, capsys):
    out = f"--out={tmp_path / 'q'}"
    assert command("train", ["--agent=qtable", "--bins=4", *FLAGS, out]) == 0
    assert command("train", [out, "--resume", "--steps=80"]) == 0
    assert command("train", [out, "--resume", "--agent=linear"]) == 2
    assert "agent: 'linear' is not what" in capsys.readouterr().err
    assert command("train", [out, "--resume", "--agent=qtable", "--bins=5"]) == 2
    assert "bins: 5 is not what" in capsys.readouterr().err
    assert command("train", [out, "--resume", "--steps=50"]) == 2
    assert "steps: 50 is not accepted; expected at least 60, for which" in capsys.readouterr().err


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """The folder of a Q-table's run, begun with other settings than the usual ones."""
    out = tmp_path_factory.mktemp("begun") / "q"
    assert command("train", ["--agent=qtable", "--seed=3", "--patience=2", *FLAGS, f"--out={out}"]) == 0
    return out


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        ("--agent=gnn", "agent: 'gnn' is not what the run in"), ("--task=balance", "task: 'balance' is not what"),
        ("--seed=0", "seed: 0 is not what"), ("--patience=0", "patience: 0 is not what"),
        ("--pods=none", "pods: None is not what"), ("--no-lifetimes", ""), ("--seed=3", ""), ("--workers=1", ""),
        ("--steps=1000000", "steps"), ("--validate_every=50_000", ""),
        ("--workers=2", "workers: '2' is not accepted; expected 1: one process"),
    ],
)  # fmt: skip
def test_what_is_typed_has_to_be_the_runs_own_though_it_is_the_usual_value(flag, said, begun, capsys, monkeypatch):
    class ResumedError(Exception):
        pass

    def carry_out(config, *_):
        raise ResumedError(config)

    monkeypatch.setattr("aaml.training.run.carry_out", carry_out)
    if said in {"", "steps"}:
        with pytest.raises(ResumedError) as resumed:
            command("train", [f"--out={begun}", "--resume", flag])
        (config,) = resumed.value.args
        assert (config.agent.name, config.seed, config.pods) == ("qtable", 3, 20)
        assert config.steps == (1_000_000 if said else 60), "those that were not typed are the run's"
        return
    assert command("train", [f"--out={begun}", "--resume", flag]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def test_what_a_file_says_counts_as_typed(begun, tmp_path, capsys):
    (tmp_path / "run.yaml").write_text("agent: gnn\n")
    argv = [f"--out={begun}", "--resume", f"--config={tmp_path / 'run.yaml'}"]
    assert command("train", argv) == 2
    assert "agent: 'gnn' is not what the run in" in capsys.readouterr().err
    (tmp_path / "run.yaml").write_text("steps: 50\n")
    assert command("train", argv) == 2
    assert "steps: 50 is not accepted; expected at least 60" in capsys.readouterr().err


def test_a_program_that_names_no_steps_goes_on_to_those_of_the_run(task, tmp_path, caplog):
    aaml.train("qtable", task, out=tmp_path / "q", **QUICK)
    quick = {name: value for name, value in QUICK.items() if name != "steps"}
    aaml.train("qtable", task, out=tmp_path / "q", resume=True, **quick)
    assert caplog.messages[0].endswith("--steps 60 asks for no more")


@pytest.mark.slow
def test_a_second_training_into_a_folder_in_use_is_refused(task, tmp_path):
    """Its process holds the folder until it ends, however it ends."""
    program = (
        "import sys, aaml; from aaml.training.settings import TrainConfig; from aaml.training.run import open_run\n"
        f"folder = open_run(TrainConfig(task='seedc'), __import__('pathlib').Path({str(tmp_path / 'run')!r}), "
        "resume=False)\n"
        "print('open', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout.readline() == "open\n"
        with pytest.raises(aaml.UserError, match=rf"run: process {other.pid} .* writes there"):
            aaml.train("gnn", "seedc", out=tmp_path / "run", resume=True, progress=False)
        other.kill()
    with pytest.raises(aaml.UserError, match="holds a run already"):
        aaml.train("gnn", "seedc", out=tmp_path / "run", progress=False)


def test_a_program_may_go_on_in_a_folder_that_it_left(task, tmp_path):
    for steps in (60, 90):
        aaml.train("qtable", task, out=tmp_path / "q", resume=steps == 90, **{**QUICK, "steps": steps})


@pytest.mark.parametrize("agent", ["linear", "qtable"])
def test_nothing_to_learn_from_is_told_before_there_is_a_folder(agent, task, tmp_path):
    with pytest.raises(aaml.UserError, match="steps: 0 is not accepted; expected at least 1"):
        aaml.train(agent, task, out=tmp_path / "run", **{**QUICK, "steps": 0})
    assert not (tmp_path / "run").exists()


def test_the_current_folder_is_no_run_folder(task, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(aaml.UserError, match="out: '' is not accepted; expected a folder of the run's own"):
        aaml.train("qtable", task, out="", **QUICK)
    assert command("train", ["--agent=qtable", *FLAGS, "--out="]) == 2
    assert "expected a folder of the run's own" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_metrics_that_were_lost_are_not_filled_up(task, tmp_path):
    aaml.train(aaml.QTable(bins=4), task, out=tmp_path / "q", **QUICK)
    (tmp_path / "q" / "metrics.jsonl").unlink()
    aaml.train(aaml.QTable(bins=4), task, out=tmp_path / "q", resume=True, **{**QUICK, "steps": 400})
    assert min(line["step"] for line in read_metrics(tmp_path / "q")) >= 200, "what comes after it is written as ever"
