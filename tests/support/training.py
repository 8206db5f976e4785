"""Training runs in tests."""

import json
from contextlib import nullcontext
from dataclasses import dataclass
from unittest import mock

import torch

from aaml.learning.agents import load_agent
from aaml.learning.config import AGENTS
from aaml.settings import changed, fields
from aaml.training.run import carry_out, open_run
from aaml.training.runfolder import RunFolder
from aaml.training.settings import TrainConfig
from aaml.training.validation import Progress


def agent(name, **settings):
    """Return the agent of that name with those of the settings that it has."""
    known = {row.name for row in fields(AGENTS[name])}
    return changed(AGENTS[name], {name: value for name, value in settings.items() if name in known})


def train(config, path, *, resume=False, stop=lambda: False, page=False):
    """Train in a folder and return (the run, its curve as (name, step, value) in order).

    The run's page is left out unless it is asked for: to draw it takes as long as all the rest.
    """
    config, folder = open_run(config, path, resume=resume)
    drawn = nullcontext() if page else mock.patch("aaml.training.run.write_training_report")
    try:
        with drawn:
            progress = carry_out(config, folder, stop, progress=False)
    finally:
        folder.close()
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    curve = [(line["name"], line["step"], line["value"]) for line in lines if line["kind"] == "scalar"]
    return Run(config, folder, progress), curve


@dataclass(frozen=True)
class Run:
    """A training that has ended."""

    config: TrainConfig
    folder: RunFolder
    progress: Progress

    @property
    def agent(self):
        """The best agent."""
        return load_agent(self.folder.model_path())

    @property
    def weights(self):
        """The latest weights, the target's and the state of the optimiser."""
        return self.folder.read_resume()["learner"]["agent"]["parts"]


def assert_equal(mine, theirs):
    """Compare states of any depth to the last bit."""
    assert type(mine) is type(theirs)
    if isinstance(mine, dict):
        assert mine.keys() == theirs.keys()
        for key in mine:
            assert_equal(mine[key], theirs[key])
    elif isinstance(mine, list):
        assert len(mine) == len(theirs)
        for one, other in zip(mine, theirs, strict=True):
            assert_equal(one, other)
    else:
        assert torch.equal(mine, theirs) if torch.is_tensor(mine) else mine == theirs
