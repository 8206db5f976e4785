"""Train an agent in the simulator: warm start from a heuristic, then reinforcement learning; the best model is kept."""

from dataclasses import dataclass
from pathlib import Path

from aaml.settings import Settings, SettingsFile
from aaml.training.settings import TrainConfig


@dataclass(frozen=True)
class Args(Settings):
    """`aaml train`."""

    training: TrainConfig = TrainConfig()
    config: SettingsFile = None
    """YAML file with any of these settings; a flag counts more than the file"""
    out: Path | None = None
    """run folder; runs/AGENT-TASK-sSEED when not given"""
    resume: bool = False
    """go on with the run in the folder"""


def run(args: Args) -> int:
    """Train, and say where the model is and how it compares."""
    from contextlib import closing

    from aaml.commands.signals import ends_by
    from aaml.training.run import carry_out, run_folder
    from aaml.training.train import open_run

    config, folder = open_run(args.training, args.out or run_folder(args.training), resume=args.resume)
    stopped: list[bool] = []
    with closing(folder), ends_by(lambda: stopped.append(True)) as interruption:
        progress = carry_out(config, folder, lambda: bool(stopped))
    if progress.best_step < 0:
        again = f"aaml train --out {folder.path} --resume --steps {config.steps}"
        print(f"ended before anything was learned and judged; go on with: {again}")
        return interruption.status
    print(
        f"best validation score {progress.best:.3f} of {config.reference}'s (below 1 is better), "
        f"after {progress.best_step} of {progress.step} decisions"
    )
    print(f"model: {folder.model_path()}\nreport: {folder.path / 'report.html'}")
    print(f"next: aaml evaluate --task {config.task} --models {folder.path}")
    return interruption.status
