"""Tuning kube-scheduler's configuration and a NodePool together for a bill, with limits on waits and evictions.

Nothing that is told of the result was seen by the search. What gains nothing on episodes held out is not written.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt

from aaml.errors import bad_value
from aaml.evaluation.evaluate import evaluate
from aaml.evaluation.identity import inputs
from aaml.evaluation.results import Results
from aaml.nodes import nodepool
from aaml.nodes.settings import KarpenterSettings
from aaml.outputs import output_folder, refuse_overwriting
from aaml.parallel.pool import open_pool
from aaml.policies.kube_scores import KubeSchedulerConfig
from aaml.policies.kube_scores.document import document, write_configuration
from aaml.policies.kube_scores.profile import PREFIX, profile_file, read_profile
from aaml.sim.recorded_bill import bill_of
from aaml.sim.task import Task
from aaml.study.held_out import PACKING, STOCK, TUNED, HeldOut, on_held_out
from aaml.study.page import write_page
from aaml.study.pareto import ranked
from aaml.study.problem import Limit, Problem
from aaml.study.study import Study, exists, from_now
from aaml.tuning.bill_space import Setup, SetupSpace, evaluate_setups
from aaml.tuning.episodes import check_seeds, seeds_of
from aaml.tuning.genetic import breed
from aaml.tuning.space import Space

FloatArray = npt.NDArray[np.float64]
_ELITE = 8
_FILES = ("kube-scheduler.yaml", "nodepool.yaml")


@dataclass(frozen=True)
class Limits:
    """What waits and evictions may come to, against kube-scheduler's own configuration with the NodePool one has."""

    wait_p99_more_s: float = 10.0
    evicted_times: float = 1.0

    def list(self) -> tuple[Limit, ...]:
        """Return them as the search takes them."""
        return Limit("waiting_p99_s", slack=self.wait_p99_more_s), Limit("evicted", self.evicted_times)


class BillSearch:
    """What searches for a smaller bill have in common: what makes one another than the next."""

    task: Task
    metric: str
    limits: Limits
    population: int
    episodes: int
    seed: int

    def to_dict(self) -> dict[str, Any]:
        """Return what makes a search another one, as JSON-able values."""
        return {
            "nodes": list(self.task.sizes), "pods": self.task.pods, "metric": self.metric,
            "limits": [self.limits.wait_p99_more_s, self.limits.evicted_times],
            "population": self.population, "episodes": self.episodes,
            "seed": self.seed,
        }  # fmt: skip


@dataclass(frozen=True)
class BillTuning(BillSearch):
    """What to tune: `task` is a bill. `scheduler` is a policy (`kube-scheduler:FILE`), empty for the defaults.

    `nodepool` is the one that one has; None for the task's own, which is Karpenter then.
    """

    task: Task
    out: Path
    metric: str = "bill_per_core_hour"
    limits: Limits = Limits()
    scheduler: str = ""
    nodepool: Path | None = None
    generations: int = 20
    population: int = 16
    episodes: int = 32
    seeds: tuple[int, ...] | None = None
    seed: int = 0
    workers: int | str = 1

    @property
    def folder(self) -> Path:
        """Where the study is kept."""
        return self.out

    @property
    def own_files(self) -> tuple[Path, ...]:
        """The files that one has."""
        scheduler = (profile_file(self.scheduler),) if self.scheduler else ()
        return scheduler if self.nodepool is None else (*scheduler, self.nodepool)

    @property
    def pool(self) -> KarpenterSettings:
        """The NodePool that the search begins at. Raises `UserError` for a task that is no bill of Karpenter's."""
        if self.nodepool is not None:
            return nodepool.read_nodepool(self.nodepool)
        found = bill_of(self.task).autoscaler
        if not isinstance(found, KarpenterSettings):
            raise bad_value("task", self.task.name, "a bill whose nodes Karpenter provisions")
        return found

    def inputs(self) -> dict[str, str]:
        """Return the task and what one has, by contents."""
        files = {"nodepool": () if self.nodepool is None else (self.nodepool,)}
        return inputs([self.task], {"scheduler": self.scheduler}, files, besides=[STOCK])


@dataclass(frozen=True)
class TunedBill:
    """What a search has come to, with all runs on held-out episodes. `files` are empty where nothing was gained."""

    found: Setup
    results: Results
    held_out: HeldOut
    files: tuple[Path, ...]
    generations: int


def tune(settings: BillTuning, *, resume: bool = False, stopped: Callable[[], bool] = lambda: False) -> TunedBill:
    """Search, choose, evaluate and write.

    The same settings give the same files, for any number of workers. Once `stopped` says so the best pair so far is
    evaluated and written. With `resume` a search that was cut off goes on. Raises `UserError` for settings that nothing
    can be done with, and `StoppedError` where it was stopped before anything was known, or after the search.
    """
    bill_of(settings.task).check_metric(settings.metric)
    check_seeds(settings.task, settings.seeds, settings.episodes, settings.episodes)
    with output_folder(settings.out):
        files = (settings.out / name for name in _FILES)
        refuse_overwriting(files, settings.own_files, going_on=exists(settings.folder))
        return _tune(settings, resume, stopped)


def _tune(settings: BillTuning, resume: bool, stopped: Callable[[], bool]) -> TunedBill:
    start = read_profile(settings.scheduler).config if settings.scheduler else KubeSchedulerConfig()
    largest = max(settings.task.sizes, default=settings.task.nodes)
    own = settings.pool
    sold = replace(bill_of(settings.task), autoscaler=own).sold
    least = {} if settings.nodepool is None else nodepool.least_values(nodepool.load_nodepool(settings.nodepool))
    space = SetupSpace(replace(Space.of_size(start, largest), backs_off=True), own, sold.meeting(own.labels), least)
    limits = settings.limits.list()
    with (
        Study(
            settings.folder, settings.to_dict(), settings.inputs(), resume=resume, length=settings.generations
        ) as study,
        open_pool(settings.workers) as pool,
    ):
        bred = breed(
            study, space, _problem(settings), pool, generations=settings.generations, population=settings.population,
            elite=_ELITE, seed=settings.seed, name="bill", stopped=stopped,
        )  # fmt: skip
        stopped = from_now(stopped)
        configs, means, violations = bred.validated(_problem(settings, "validation"), pool, stopped)
        chosen = configs[int(ranked(means, violations)[0])]
        look = study.look([space.to_dict(chosen)], settings.seeds)
        results = _races(settings, chosen, stopped)
        held_out = on_held_out(results, settings.metric, limits, look)
        lines = (*held_out.first, *held_out.lines)
        files = _write(settings, chosen, lines) if held_out.gained else ()
        write_page(
            study,
            f"A bill: {settings.task.name}",
            lines,
            {"task": settings.task.name, **settings.to_dict()},
            (settings.metric,),
            files,
        )
    return TunedBill(chosen, results, held_out, files, bred.generations)


def _problem(settings: BillTuning, part: str = "training") -> Problem[Setup]:
    return Problem(
        settings.task, seeds_of(settings.task, part, settings.episodes), settings.task.sizes or (None,),
        evaluate_setups, (settings.metric,), relative=True, limits=settings.limits.list(),
    )  # fmt: skip


def _races(settings: BillTuning, chosen: Setup, stopped: Callable[[], bool]) -> Results:
    """Play the held-out episodes as `aaml evaluate` does it, with the files that are to be written."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        scheduler, pool = _files(settings, chosen, folder)
        own = f"+{settings.nodepool}" if settings.nodepool else ""
        policies = {
            STOCK: (settings.scheduler or STOCK) + own,
            PACKING: PACKING + own,
            TUNED: f"{PREFIX}{scheduler}{_profile_of(settings)}+{pool}",
        }
        return evaluate(policies, settings.task, settings.seeds, workers=settings.workers, stopped=stopped)


def _profile_of(settings: BillTuning) -> str:
    return f"#{read_profile(settings.scheduler).scheduler_name}" if settings.scheduler else ""


def _files(settings: BillTuning, found: Setup, folder: Path, notes: tuple[str, ...] = ()) -> tuple[Path, Path]:
    """Write a pair as a KubeSchedulerConfiguration and a NodePool."""
    scheduler, pool = (folder / name for name in _FILES)
    write_configuration(scheduler, document(found.scheduler, settings.scheduler), notes)
    base = nodepool.load_nodepool(settings.nodepool) if settings.nodepool else None
    nodepool.write_nodepool(pool, nodepool.document(found.pool, base), notes)
    return scheduler, pool


def _write(settings: BillTuning, found: Setup, lines: tuple[str, ...]) -> tuple[Path, ...]:
    name = settings.task.name
    head = f"tuned for {name} (aaml search bill), as a pair; on held-out episodes, intervals together at 95%:"
    return _files(settings, found, settings.out, (head, *lines))
