"""Train the four agents briefly on the in-process cluster, judge them on unseen seeds, and leave a report.

Takes a few minutes on two cores. Writes runs/NAME (results.csv, figures, report.html), curves to tlogs/, models to
models/.
"""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Args:
    """`aaml demo`."""

    steps: int = 8_000
    """Decisions that each agent learns from, after the warm start."""
    episodes: int = 20
    """Unseen episodes that each policy is judged on."""
    nodes: int = 10
    """Nodes of the cluster."""
    workers: int = 2
    """Processes."""
    seed: int = 0
    """Of training; the episodes of the judgement are always the same."""
    out: Path | None = None
    """Folder; runs/demo_TIME when not given."""


def run(args: Args) -> int:
    """Run it and print the table and what to do next."""
    import sys
    import time

    from aaml.commands.signals import ends_by
    from aaml.errors import bad_value
    from aaml.experiment.demo import DemoConfig, next_commands, run_demo

    for name in ("steps", "episodes", "nodes", "workers"):
        if getattr(args, name) < 1:
            raise bad_value(name, getattr(args, name), "a whole number from 1")
    folder = args.out or Path("runs") / f"demo_{time.strftime('%Y%m%d-%H%M%S')}"
    if (folder / "results.csv").exists():
        raise bad_value("out", str(folder), "a folder without results.csv")
    config = DemoConfig(
        steps=args.steps,
        seeds=tuple(range(1000, 1000 + args.episodes)),
        nodes=args.nodes,
        workers=args.workers,
        seed=args.seed,
    )
    stopped: list[bool] = []
    with ends_by(lambda: stopped.append(True)) as interruption:
        result = run_demo(config, folder, stopped=lambda: bool(stopped))
    if result is None:
        print(f"stopped; what was trained so far is in {folder}", file=sys.stderr)
        return interruption.status
    for text in result.tables:
        print(f"\n{text}")
    print(f"\nreport: {result.report}\nmodels: {', '.join(map(str, result.models))}\n\nNext, try:")
    for command in next_commands(result.models[0]):
        print(f"  {command}")
    return 0
