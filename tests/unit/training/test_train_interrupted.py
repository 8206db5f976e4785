"""Whoever interrupts `aaml train` is told how to go on."""

import os
import signal

import pytest

from aaml.cli import run
from aaml.training.validation import Progress


@pytest.mark.parametrize(("signals", "status"), [(["SIGINT"], 130), (["SIGTERM"], 143), (["SIGINT", "SIGINT"], 130)])
@pytest.mark.parametrize("judged", [True, False])
def test_the_command_that_goes_on_is_named(tmp_path, monkeypatch, capsys, signals, status, judged):
    def interrupted(config, folder, stop):
        assert not stop()  # it is under way
        for name in signals:
            os.kill(os.getpid(), getattr(signal, name))
        assert stop()
        if judged:
            folder.models.mkdir(exist_ok=True)
            (folder.models / "DQN_Model.pth").touch()
        return Progress(step=300, best=0.9, best_step=200) if judged else Progress()

    monkeypatch.setattr("aaml.training.run.carry_out", interrupted)
    assert run("train", ["--agent", "dqn", "--steps", "500", "--out", str(tmp_path / "mine")]) == status
    assert f"go on with: aaml train --out {tmp_path / 'mine'} --resume --steps 500" in capsys.readouterr().out


def test_a_training_that_had_ended_has_nothing_to_go_on_with(tmp_path, monkeypatch, capsys):
    def ended(config, folder, stop):
        assert not stop()
        os.kill(os.getpid(), signal.SIGTERM)
        folder.models.mkdir(exist_ok=True)
        (folder.models / "DQN_Model.pth").touch()
        return Progress(step=512, best=0.9, best_step=200)

    monkeypatch.setattr("aaml.training.run.carry_out", ended)
    assert run("train", ["--agent", "dqn", "--steps", "500", "--out", str(tmp_path / "mine")]) == 143
    assert "go on with" not in capsys.readouterr().out


def test_a_warm_start_is_ended_at_once_for_nothing_of_it_could_be_saved(tmp_path, monkeypatch, capsys):
    def warming_up(config, folder, stop):
        os.kill(os.getpid(), signal.SIGTERM)
        pytest.fail("the warm start went on")

    monkeypatch.setattr("aaml.training.run.carry_out", warming_up)
    assert run("train", ["--agent", "dqn", "--steps", "500", "--out", str(tmp_path / "mine")]) == 143
    assert f"go on with: aaml train --out {tmp_path / 'mine'} --resume --steps 500" in capsys.readouterr().out
