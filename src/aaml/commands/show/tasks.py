"""List the tasks, or some of them by name: what each is about, its metric, and how many nodes it has."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import tyro

from aaml.commands.kinds import Flag
from aaml.settings import Settings

if TYPE_CHECKING:
    from aaml.sim.task import Task


@dataclass(frozen=True)
class Args(Settings):
    """`aaml show tasks`."""

    names: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """tasks, in any form that --task takes; all by name when none is given"""
    json: Flag = False
    """print them as JSON"""


def run(args: Args) -> int:
    """Print the tasks."""
    import json

    from aaml.sim.tasks import ALL_TASKS, find_task

    chosen: dict[str, Task] = {name: find_task(name) for name in args.names} or dict(ALL_TASKS)
    if args.json:
        tasks = {
            name: {"goal": task.summary, "metric": task.metric, "higher_is_better": task.higher_is_better,
                   "nodes": task.nodes}
            for name, task in chosen.items()
        }  # fmt: skip
        print(json.dumps(tasks, indent=2))
        return 0
    width = max(map(len, chosen))
    for name, task in chosen.items():
        better = "higher" if task.higher_is_better else "lower"
        print(f"{name:<{width}}  {task.summary} ({task.metric}, {better} is better; {task.nodes} nodes)")
    if not args.names:
        print("a trace by its folder, or as compress@FOLDER; one's own as FILE.py:NAME")
    return 0
