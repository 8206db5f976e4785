"""List the tasks by name: what each is about, its metric, and how many nodes it has."""

from dataclasses import dataclass

from aaml.commands.kinds import Flag
from aaml.settings import Settings


@dataclass(frozen=True)
class Args(Settings):
    """`aaml show tasks`."""

    json: Flag = False
    """print them as JSON"""


def run(args: Args) -> int:
    """Print the tasks."""
    import json

    from aaml.sim.tasks import ALL_TASKS

    if args.json:
        tasks = {
            name: {"goal": task.summary, "metric": task.metric, "higher_is_better": task.higher_is_better,
                   "nodes": task.nodes}
            for name, task in ALL_TASKS.items()
        }  # fmt: skip
        print(json.dumps(tasks, indent=2))
        return 0
    width = max(map(len, ALL_TASKS))
    for name, task in ALL_TASKS.items():
        better = "higher" if task.higher_is_better else "lower"
        print(f"{name:<{width}}  {task.summary} ({task.metric}, {better} is better; {task.nodes} nodes)")
    print("a trace by its folder, or as compress@FOLDER; one's own as FILE.py:NAME")
    return 0
