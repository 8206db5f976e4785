"""Training runs in tests."""

import json

from aaml.learning.config import AGENTS
from aaml.settings import changed, fields
from aaml.training.train import Trainer, open_run


def agent(name, **settings):
    """Return the agent of that name with those of the settings that it has."""
    known = {row.name for row in fields(AGENTS[name])}
    return changed(AGENTS[name], {name: value for name, value in settings.items() if name in known})


def train(config, path, *, resume=False, stop=lambda: False):
    """Train in a folder and return (trainer, its curve as (name, step, value) in order)."""
    config, folder = open_run(config, path, resume=resume)
    trainer = Trainer(config, folder, progress=False)
    trainer.run(stop)
    folder.close()
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    return trainer, [(line["name"], line["step"], line["value"]) for line in lines if line["kind"] == "scalar"]
