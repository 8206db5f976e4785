"""What a search for formulas is told."""

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from aaml.errors import bad_value
from aaml.extras import lazily
from aaml.settings import Count, Natural, RemainingLifetimes, Settings
from aaml.training.settings import TEACHERS

if TYPE_CHECKING:
    from aaml.sim import tasks
    from aaml.sim.task import Task
else:  # numba, which the help of a command does without
    tasks = lazily("aaml.sim.tasks")


@dataclass(frozen=True)
class EvolveConfig(Settings):
    """A search for formulas."""

    task: tuple[str, ...] = ("balance",)
    """tasks that a formula is to be good at, each as much as the others; all judged by the same metric"""
    nodes: tuple[Count, ...] = ()
    """cluster sizes of the episodes; the tasks' own when not given"""
    pods: Count | None = None
    """pods of an episode; the tasks' own number when not given"""
    episodes: Count = 64
    """training episodes that a formula is judged on, the same for all"""
    validation_episodes: Count = 64
    """episodes that the front is judged on at the end, which the search never sees"""
    population: Count = 100
    """formulas that an island keeps"""
    islands: Count = 2
    """populations that live apart; more processes than these find no work"""
    generations: Count = 50
    """generations"""
    migrate_every: Count = 5
    """generations after which an island's best formulas go to the next island too"""
    size: Count = 31
    """most constants, features and operators of a formula"""
    tuned: Natural = 2
    """formulas whose constants an evolution strategy tunes in a generation"""
    reference: str = ""
    """policy that losses are relative to; the tasks' usual rule when not given"""
    remaining_lifetimes: RemainingLifetimes = "nothing"
    """what formulas are told of how long pods run on: nothing, learned from past pods, or known (the truth)"""
    start: tuple[Path, ...] = ()
    """formulas that the search begins with, besides random ones"""
    seed: Natural = 0
    """seed of the search"""
    workers: str = "1"
    """processes (a number), ray for a Ray cluster of this machine, or ray:HOST:PORT for one that it is a node of"""

    @cached_property
    def tasks(self) -> "tuple[Task, ...]":
        """The tasks. Raises `UserError` for none, and for such as are judged differently."""
        found = tuple(tasks.find_task(name) for name in self.task)
        if not found or len({task.name for task in found}) < len(found):
            raise bad_value("task", ", ".join(self.task), "at least one task, each once")
        if len({(task.metric, task.higher_is_better) for task in found}) > 1:
            raise bad_value("task", ", ".join(self.task), "tasks with the same metric")
        return found

    @property
    def label(self) -> str:
        """The tasks in a name."""
        return "-".join(self.task)

    @property
    def judged_by(self) -> str:
        """The policy that losses are relative to."""
        return self.reference or TEACHERS.get(self.tasks[0].metric, "least-allocated")

    def same_search(self, other: "EvolveConfig") -> bool:
        """Whether another search is this one, for longer or with other processes."""
        return replace(self, generations=1, workers="1") == replace(other, generations=1, workers="1")
