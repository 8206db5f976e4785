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
from aaml.evaluation.program import program_sha256
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
from aaml.study.judgment import PACKING, STOCK, TUNED, Judgment, judged
from aaml.study.page import write_page
from aaml.study.pareto import ranked
from aaml.study.problem import Limit, Problem
from aaml.study.study import Study, exists, from_now
from aaml.tuning.bill_space import Setup, SetupSpace, judge_setups
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


@dataclass(frozen=True)
class BillTuning:
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
    def told_by(self) -> tuple[Path, ...]:
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
            raise bad_value("task", self.task.name, "a bill whose nodes Karpenter buys")
        return found

    def to_dict(self) -> dict[str, Any]:
        """Return what makes a search another one, as JSON-able values."""
        return {
            "nodes": list(self.task.sizes), "pods": self.task.pods, "metric": self.metric,
            "limits": [self.limits.wait_p99_more_s, self.limits.evicted_times],
            "population": self.population, "episodes": self.episodes,
            "seed": self.seed, "program": program_sha256(),
        }  # fmt: skip

    def inputs(self) -> dict[str, str]:
        """Return the task and what one has, by contents."""
        files = {"nodepool": () if self.nodepool is None else (self.nodepool,)}
        return inputs([self.task], {"scheduler": self.scheduler}, files)


@dataclass(frozen=True)
class TunedBill:
    """What a search has come to, with all runs on held-out episodes. `files` are empty where nothing was gained."""

    found: Setup
    results: Results
    judgment: Judgment
    files: tuple[Path, ...]
    generations: int


def tune(asked: BillTuning, *, resume: bool = False, stopped: Callable[[], bool] = lambda: False) -> TunedBill:
    """Search, choose, judge and write.

    The same settings give the same files, for any number of workers. Once `stopped` says so the best pair so far is
    judged and written. With `resume` a search that was cut off goes on. Raises `UserError` for settings that nothing
    can be done with, and `StoppedError` where it was stopped before anything was known, or after the search.
    """
    bill_of(asked.task).check_metric(asked.metric)
    check_seeds(asked.task, asked.seeds, asked.episodes, asked.episodes)
    with output_folder(asked.out):
        files = (asked.out / name for name in _FILES)
        refuse_overwriting(files, asked.told_by, going_on=exists(asked.folder))
        return _tune(asked, resume, stopped)


def _tune(asked: BillTuning, resume: bool, stopped: Callable[[], bool]) -> TunedBill:
    start = read_profile(asked.scheduler).config if asked.scheduler else KubeSchedulerConfig()
    largest = max(asked.task.sizes, default=asked.task.nodes)
    own = asked.pool
    sold = replace(bill_of(asked.task), autoscaler=own).sold
    least = {} if asked.nodepool is None else nodepool.least_values(nodepool.load_nodepool(asked.nodepool))
    space = SetupSpace(replace(Space.of_size(start, largest), backs_off=True), own, sold.meeting(own.labels), least)
    limits = asked.limits.list()
    with Study(asked.folder, asked.to_dict(), asked.inputs(), resume=resume) as study, open_pool(asked.workers) as pool:
        bred = breed(study, asked, space, _problem(asked), pool, elite=_ELITE, name="bill", stopped=stopped)
        stopped = from_now(stopped)
        configs, means, violations = bred.validated(_problem(asked, "validation"), pool, stopped)
        chosen = configs[int(ranked(means, violations)[0])]
        results = _judge(asked, chosen, stopped)
        judgment = judged(results, asked.metric, limits)
        told = (*judgment.first, *judgment.lines)
        files = _write(asked, chosen, told) if judgment.gained else ()
        write_page(
            study,
            f"A bill: {asked.task.name}",
            told,
            {"task": asked.task.name, **asked.to_dict()},
            (asked.metric,),
            files,
        )
    return TunedBill(chosen, results, judgment, files, bred.generations)


def _problem(asked: BillTuning, part: str = "training") -> Problem[Setup]:
    return Problem(
        asked.task, seeds_of(asked.task, part, asked.episodes), asked.task.sizes or (None,), judge_setups,
        (asked.metric,), relative=True, limits=asked.limits.list(),
    )  # fmt: skip


def _judge(asked: BillTuning, chosen: Setup, stopped: Callable[[], bool]) -> Results:
    """Play the held-out episodes as `aaml evaluate` does it, with the files that are to be written."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        scheduler, pool = _files(asked, chosen, folder)
        own = f"+{asked.nodepool}" if asked.nodepool else ""
        policies = {
            STOCK: (asked.scheduler or STOCK) + own,
            PACKING: PACKING + own,
            TUNED: f"{PREFIX}{scheduler}{_profile_of(asked)}+{pool}",
        }
        return evaluate(policies, asked.task, asked.seeds, workers=asked.workers, stopped=stopped)


def _profile_of(asked: BillTuning) -> str:
    return f"#{read_profile(asked.scheduler).scheduler_name}" if asked.scheduler else ""


def _files(asked: BillTuning, found: Setup, folder: Path, notes: tuple[str, ...] = ()) -> tuple[Path, Path]:
    """Write a pair as a KubeSchedulerConfiguration and a NodePool."""
    scheduler, pool = (folder / name for name in _FILES)
    write_configuration(scheduler, document(found.scheduler, asked.scheduler), notes)
    base = nodepool.load_nodepool(asked.nodepool) if asked.nodepool else None
    nodepool.write_nodepool(pool, nodepool.document(found.pool, base), notes)
    return scheduler, pool


def _write(asked: BillTuning, found: Setup, lines: tuple[str, ...]) -> tuple[Path, ...]:
    head = (
        f"tuned for {asked.task.name} (aaml search bill), as a pair; on held-out episodes, intervals together at 95%:"
    )
    return _files(asked, found, asked.out, (head, *lines))
