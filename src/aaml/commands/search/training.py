"""Search the settings of a training: trials drawn by Optuna, trained rung by rung, the worse ones pruned.

The same seed gives the same study whatever the number of workers. `--resume` goes on after an interruption.
"""

from dataclasses import dataclass
from pathlib import Path

from aaml.commands.kinds import Flag
from aaml.commands.search import going_on
from aaml.settings import Settings, SettingsFile
from aaml.training.sweep_space import SweepConfig


@dataclass(frozen=True)
class Args(Settings):
    """`aaml search training`."""

    sweep: SweepConfig = SweepConfig()
    storage: str = ""
    """database of the study as a URL (its name there is the out folder's); a journal in the folder when not given"""
    config: SettingsFile = None
    """YAML file with any of these settings (the space as NAME: VALUES too); a flag counts more than the file"""
    out: Path | None = None
    """folder of the study, on Ray on a file system that all nodes share; runs/search-training-AGENT-TASK-sSEED when not
    given"""
    resume: Flag = False
    """go on with the study in the folder, or to more --trials"""


def run(args: Args) -> int:
    """Run the study, and say which settings were best."""
    from dataclasses import replace

    from aaml.commands.signals import ends_at_once
    from aaml.parallel.pool import open_pool
    from aaml.training.sweep import sweep
    from aaml.training.sweep_report import summary, write_report

    config, base = args.sweep, args.sweep.training
    out = args.out or Path("runs") / f"search-training-{base.agent.name}-{base.label}-s{base.seed}"
    config = replace(config, trials=going_on(args, "trials", out, args.storage))
    try:
        with ends_at_once() as interruption, open_pool(base.workers) as pool:
            study = sweep(
                config, out, pool, resume=args.resume, storage=args.storage,
                on_batch=lambda study: write_report(study, config, out),
            )  # fmt: skip
    except KeyboardInterrupt:
        print(f"interrupted: {out} keeps what is done; go on with --resume")
        return interruption.status
    write_report(study, config, out)
    print(summary(study, config, out))
    return 0
