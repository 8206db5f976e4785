"""Search the settings of a training: trials drawn by Optuna, trained rung by rung, the worse ones pruned.

The same seed gives the same study whatever the number of workers. After an interruption the same command goes on.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal


@dataclass(frozen=True)
class Args:
    """`aaml sweep`."""

    agent: Literal["gnn", "dqn", "acdqn", "acgnn"] = "dqn"
    """GNN or MLP by DQN, MLP or GNN by actor-critic"""
    task: str = "balance"
    """balance, compress, fragmentation, waiting, seedc or seed-a"""
    nodes: tuple[int, ...] = ()
    """cluster sizes that episodes are drawn from; the task's own when none is given"""
    steps: int = 16_000
    """decisions that a whole trial learns from, after the warm start"""
    seed: int = 0
    """of the search and of every trial"""
    space: tuple[str, ...] = ()
    """what to choose, as NAME=LOW..HIGH, NAME=LOW..HIGH:log or NAME=A,B,C: settings of the agent
    (aaml.learning.config.AgentConfig), agent, envs, chunk, reward, teacher_steps, teacher_passes or lifetimes; the
    agent's usual ones when none is given"""
    set: tuple[str, ...] = ()
    """settings that all trials have, as NAME=VALUE: any of `aaml train` or of the agent"""
    trials: int = 20
    """trials of the study in all; more of them go on with a study that is there"""
    batch: int = 4
    """trials drawn at once; at most so many can run at once"""
    rungs: int = 3
    """times that trials are compared, the last at the end; 1: none is pruned"""
    reduction: int = 2
    """of all trials at a rung the best 1/N go on, to N times the decisions"""
    workers: str = "1"
    """processes, or ray, or ray:HOST:PORT; on Ray the out folder must be on a file system that all nodes share"""
    storage: str | None = None
    """database of the study as a URL (its name there is the out folder's); study.db in the out folder when not given"""
    config: Path | None = None
    """YAML file with any of these settings (space and set as NAME: VALUE too); it counts before the flags"""
    out: Path | None = None
    """folder of the study; runs/sweep-AGENT-TASK-sSEED when not given"""


def run(args: Args) -> int:
    """Run the study, and say which settings were best."""
    from aaml.commands.signals import ends_by
    from aaml.experiment.settings import parse_settings, with_settings
    from aaml.experiment.sweep import SweepConfig, sweep
    from aaml.experiment.sweep_report import summary, write_report
    from aaml.experiment.sweep_space import parse_space
    from aaml.experiment.train import TrainConfig
    from aaml.experiment.workers import open_pool

    if args.config is not None:
        args = _with_file(args, args.config)
    base = TrainConfig(agent=args.agent, task=args.task, nodes=args.nodes, steps=args.steps, seed=args.seed)
    base = with_settings(base, parse_settings(args.set))
    space = parse_space(args.space, base)
    config = SweepConfig(base, space, args.trials, args.batch, args.rungs, args.reduction)
    out = args.out or Path("runs") / f"sweep-{base.agent}-{base.task}-s{base.seed}"
    try:
        with ends_by(_interrupt) as interruption, open_pool(args.workers) as pool:
            study = sweep(
                config, out, pool, storage=args.storage, on_batch=lambda study: write_report(study, config, out)
            )
    except KeyboardInterrupt:
        print(f"interrupted: {out} keeps what is done, and the same command goes on from there")
        return interruption.status
    write_report(study, config, out)
    print(summary(study, config, out))
    return 0


def _interrupt() -> None:
    """End at once: trials are saved at every rung, and a pool that is left ends its processes."""
    raise KeyboardInterrupt


def _with_file(args: Args, path: Path) -> Args:
    """Return the settings with those of a YAML file, in which lists and mappings may stand for the flags' text."""
    from dataclasses import replace
    from typing import get_type_hints

    from aaml.commands.train import read_yaml
    from aaml.errors import bad_value
    from aaml.experiment.settings import read_value

    kinds = {name: kind for name, kind in get_type_hints(Args).items() if name != "config"}
    values: dict[str, Any] = {}
    for name, value in read_yaml(path).items():
        if name not in kinds:
            raise bad_value(f"setting of {path}", name, f"one of {', '.join(kinds)}")
        if name not in {"space", "set"}:
            values[name] = read_value(name, _text(value), kinds[name])
        elif isinstance(value, Mapping):
            values[name] = tuple(f"{key}={_text(each)}" for key, each in value.items())
        else:
            values[name] = tuple(map(str, value if isinstance(value, list) else [value]))
    if "out" in values:
        values["out"] = Path(values["out"])
    return replace(args, **values)


def _text(value: object) -> str:
    """Return what a flag would say for a value of a YAML file."""
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(_text, value)) if isinstance(value, list) else str(value)
