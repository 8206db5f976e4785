"""Train an agent in the simulator: warm start from a heuristic, then reinforcement learning; the best model is kept."""

import os
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from aaml.commands.signals import ends_by
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


class _Stop:
    """What training asks whether it is to end. Until it first asks, nothing is there that could be saved."""

    def __init__(self) -> None:
        self.wanted = False
        self._interrupted = False

    def __call__(self) -> bool:
        self._interrupted = True
        return self.wanted

    def signalled(self) -> None:
        """Let training end as soon as it asks; at once where it never did, as it loads and imitates its teacher."""
        first, self.wanted = not self.wanted, True
        if not self._interrupted and first:
            raise KeyboardInterrupt
        # Nothing buffered is written to, for the signal may come amid a write.
        os.write(2, b"\nending as soon as the run can go on from here; Ctrl-C again ends at once\n")


def run(args: Args) -> int:
    """Train, and say where the model is and how it compares."""
    stop, again = _Stop(), ""
    with ends_by(stop.signalled) as interruption:  # from here on, for torch alone takes seconds to import
        try:
            from aaml.training.run import carry_out, open_run, run_folder

            path = args.out or run_folder(args.training)
            config, folder = open_run(args.training, path, resume=args.resume, said=args.said)
            again = f"go on with: aaml train --out {folder.path} --resume --steps {config.steps}"
            with closing(folder):
                progress = carry_out(config, folder, stop)
        except KeyboardInterrupt:  # whoever is that impatient, or that early, goes on from what was saved before
            print(f"\nended; {again or 'nothing was begun, the same command begins'}")
            return interruption.status
    if progress.best_step < 0:
        print(f"ended before the first validation; {again}")
        return interruption.status
    print(
        f"best validation score {progress.best:.3f} of {config.reference}'s (below 1 is better), "
        f"after {progress.best_step} of {progress.step} decisions"
    )
    unfinished = interruption.signal and progress.step < config.steps
    report = folder.path / "report.html"
    print(f"model: {folder.model_path()}" + (f"\nreport: {report}" if report.exists() else ""))
    print(f"next: aaml evaluate --task {config.task} --models {folder.path}")
    if progress.best_step == 0 < progress.step:
        more = f"try more decisions: aaml train --out {folder.path} --resume --steps {2 * progress.step}"
        print(f"{config.nothing_better}; {again if unfinished else more}")
    elif unfinished:
        print(again)
    return interruption.status
