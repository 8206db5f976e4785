"""What a search for formulas is told."""

from collections.abc import Collection
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from aaml.errors import bad_value
from aaml.extras import lazily
from aaml.files import in_a_name
from aaml.settings import Count, Natural, RemainingLifetimes, Settings
from aaml.training.settings import TEACHERS

if TYPE_CHECKING:
    from aaml.policies import formula_file
    from aaml.sim import tasks
    from aaml.sim.task import Task
    from aaml.training import compilable
    from aaml.workload import traces
else:  # numba, which the help of a command does without
    formula_file = lazily("aaml.policies.formula_file")
    tasks, traces = lazily("aaml.sim.tasks"), lazily("aaml.workload.traces")
    compilable = lazily("aaml.training.compilable")

OPENB = "openb"
FREE = ("generations", "workers")  # what a search may be gone on with


@dataclass(frozen=True)
class EvolveConfig(Settings):
    """A search for formulas."""

    task: tuple[str, ...] = ("balance",)
    """tasks with the same metric; each has the same weight. openb: the GPU-sharing benchmark, by features of GPUs"""
    traces: tuple[str, ...] = ()
    """traces that a search for openb sees. Default: eight of the published ones; the front is evaluated on all of
    them"""
    nodes: tuple[Count, ...] = ()
    """numbers of nodes of the episodes. Default: the tasks'"""
    pods: Count | None = None
    """pods of an episode. Default: the tasks'"""
    episodes: Count = 64
    """training episodes, the same for every formula"""
    validation_episodes: Count = 64
    """held-out episodes on which the front is evaluated at the end"""
    population: Count = 100
    """formulas in the population of an island"""
    islands: Count = 2
    """populations that evolve apart; there is no work for more processes than islands"""
    generations: Count = 50
    """generations"""
    migrate_every: Count = 5
    """generations between two migrations of the best formulas to the next island"""
    size: Count = 31
    """most constants, features and operators of a formula"""
    tuned: Natural = 2
    """formulas whose constants an evolution strategy tunes in a generation"""
    reference: str = ""
    """policy that losses are relative to. Default: the tasks' usual rule"""
    remaining_lifetimes: RemainingLifetimes = "nothing"
    """what formulas observe of remaining lifetimes: nothing, an estimate learned from pods that ended, or the truth"""
    start: tuple[Path, ...] = ()
    """formulas in the first generation, besides random ones"""
    seed: Natural = 0
    """seed of the search"""
    workers: str = "1"
    """a number of processes, ray (a Ray cluster of this machine) or ray:HOST:PORT"""

    @cached_property
    def tasks(self) -> "tuple[Task, ...]":
        """The tasks. Raises `UserError` for none, and for such as are evaluated differently."""
        found = tuple(tasks.find_task(name) for name in self.task)
        if not found or len({task.name for task in found}) < len(found):
            raise bad_value("task", ", ".join(self.task), "at least one task, each once")
        if len({(task.metric, task.higher_is_better) for task in found}) > 1:
            raise bad_value("task", ", ".join(self.task), "tasks with the same metric")
        return found

    @property
    def is_openb(self) -> bool:
        """Whether the cases are runs of the GPU-sharing benchmark."""
        return self.task == (OPENB,)

    def check(self) -> None:
        """Raise `UserError` for tasks, traces and formulas that are none, and for settings that do not go together."""
        for path in self.start:
            formula_file.load_formula(path)
        if not self.is_openb:
            if self.traces:
                raise bad_value("traces", ", ".join(self.traces), f"none, but with task {OPENB}")
            if not self.tasks:
                raise bad_value("task", "", "at least one task")
            self._check_tasks()
            return
        there = traces.trace_names()
        for name in self.traces:
            if name not in there:
                raise bad_value("traces", name, f"of {', '.join(there)}")
        plain = EvolveConfig()
        for field in ("nodes", "pods", "reference", "remaining_lifetimes"):
            if getattr(self, field) != getattr(plain, field):
                raise bad_value(field, getattr(self, field), f"nothing, with task {OPENB}")

    def _check_tasks(self) -> None:
        for name in self.task:
            if why := compilable.why_no_task(name):
                raise bad_value("task", name, f"a task that formulas can be played on ({why})")

    @property
    def metric(self) -> str:
        """The metric that formulas are compared by."""
        return "allocation" if self.is_openb else self.tasks[0].metric

    @property
    def is_ratio(self) -> bool:
        """Whether losses are logarithms of ratios to the reference; otherwise they are differences."""
        return not self.is_openb and not self.tasks[0].higher_is_better

    @property
    def label(self) -> str:
        """The tasks as file names have them."""
        return "-".join(map(in_a_name, self.task))

    @property
    def reference_policy(self) -> str:
        """The policy that losses are relative to."""
        if self.is_openb:
            return "fgd"
        return self.reference or TEACHERS.get(self.tasks[0].metric, "least-allocated")

    @property
    def measure(self) -> str:
        """What a loss stands for, in words."""
        if self.is_openb:
            return f"the loss against {self.reference_policy} (below 0 is better)"
        if self.is_ratio:
            return f"{self.metric} divided by that of {self.reference_policy} (below 1 is better)"
        return f"how far {self.metric} is below that of {self.reference_policy} (below 0 is better)"

    def going_on(self, asked: "EvolveConfig", said: Collection[str] | None = None) -> "EvolveConfig":
        """Return this search with the generations and the processes that are asked for now.

        `said` are the settings that a person named, None for all. Raises `UserError` for another of them that is not
        that of this search.
        """
        named = [each.name for each in fields(self) if said is None or each.name in said]
        for name in named:
            now, known = getattr(asked, name), getattr(self, name)
            if name not in FREE and now != known:
                raise bad_value(name, now, f"{known!r}, with which the search was begun, or another folder")
        return replace(self, **{name: getattr(asked, name) for name in FREE if name in named})

    def looked_at(self, asked: "EvolveConfig", said: Collection[str]) -> "EvolveConfig":
        """Return this search with the numbers of nodes that are asked for now, for a look at what it found.

        `said` are the settings that a person named. Raises `UserError` for another of them that is not that of this
        search.
        """
        for name in (each.name for each in fields(self) if each.name in said and each.name != "nodes"):
            now, known = getattr(asked, name), getattr(self, name)
            if name in FREE:
                raise bad_value(name, now, "nothing with --look, which does not search")
            if now != known:
                raise bad_value(name, now, f"{known!r}, with which the search was made, or another folder")
        return replace(self, nodes=asked.nodes or self.nodes)
