"""Training runs in tests."""

import json

from aaml.experiment.train import Trainer, open_run


def train(config, path, *, resume=False, stop=lambda: False):
    """Train in a folder and return (trainer, its curve as (name, step, value) in order)."""
    config, folder = open_run(config, path, resume=resume)
    trainer = Trainer(config, folder, progress=False)
    trainer.run(stop)
    folder.close()
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    return trainer, [(line["name"], line["step"], line["value"]) for line in lines if line["kind"] == "scalar"]
