"""Tuning kube-scheduler's configuration for a task: search on training episodes, choose on validation, report others.

Nothing that is told of the result was seen by the search. A configuration that gains nothing there is not written.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt

from aaml.cluster.quantity import CPU, MEMORY
from aaml.errors import bad_value
from aaml.evaluation.evaluate import evaluate
from aaml.evaluation.identity import inputs
from aaml.evaluation.results import Results
from aaml.evaluation.statistics import Interval, Paired, paired, together
from aaml.outputs import output_file, refuse_overwriting
from aaml.parallel.pool import Pool, open_pool
from aaml.policies.kube_scores import DEFAULT_WEIGHTS, KubeSchedulerConfig
from aaml.policies.kube_scores.document import document, write_configuration
from aaml.policies.kube_scores.profile import PREFIX, profile_file, read_profile
from aaml.sim.metrics import find_metric
from aaml.sim.task import Task
from aaml.study.looks import Look
from aaml.study.page import write_page
from aaml.study.pareto import survivors
from aaml.study.problem import Problem
from aaml.study.study import Study, exists, folder_beside, from_now
from aaml.tuning.episodes import check_seeds, evaluate_configurations, is_compiled, seeds_of
from aaml.tuning.genetic import Bred, breed
from aaml.tuning.space import BALANCED, FIT, SAMPLED_FROM, Space

_log = logging.getLogger(__name__)
_ELITE = 12
_FRONT = 5  # configurations of a front that are written
STOCK = "kube-scheduler"
FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class KubeSchedulerTuning:
    """What to tune. `start` is a policy (`kube-scheduler:FILE`), empty for kube-scheduler's own defaults."""

    task: Task
    out: Path
    metrics: tuple[str, ...] = ()
    start: str = ""
    plugins: tuple[str, ...] = (FIT, BALANCED)
    generations: int = 40
    population: int = 32
    episodes: int = 64
    seeds: tuple[int, ...] | None = None
    relative: bool = False
    seed: int = 0
    workers: int | str = 1

    @property
    def reported_metrics(self) -> tuple[str, ...]:
        """The metrics that the result is reported by."""
        return self.metrics or (self.task.metric,)

    @property
    def folder(self) -> Path:
        """Where the study is kept."""
        return folder_beside(self.out)

    def to_dict(self) -> dict[str, Any]:
        """Return what makes a search another one, as JSON-able values."""
        return {
            "nodes": list(self.task.sizes), "pods": self.task.pods,
            "metrics": list(self.metrics), "plugins": list(self.plugins),
            "relative": self.relative, "population": self.population, "episodes": self.episodes, "seed": self.seed,
        }  # fmt: skip

    def inputs(self) -> dict[str, str]:
        """Return the task and the start, by contents."""
        return inputs([self.task], {"start": self.start}, besides=[STOCK])


@dataclass(frozen=True)
class Gain:
    """What a configuration gains at a size by a metric, on episodes held out: both means, and the paired comparison.

    `ratio` has it as a multiple, each episode counting alike, where that is how configurations were evaluated.
    """

    nodes: int
    metric: str
    stock: float
    tuned: float
    against: Paired
    ratio: Interval | None = None

    @classmethod
    def of(
        cls, nodes: int, metric: str, stock: FloatArray, tuned: FloatArray, *, relative: bool, comparisons: int = 1
    ) -> "Gain":
        """Compare values of the same episodes, each [n]; one of so many comparisons that hold together at 95%."""
        better, means = find_metric(metric).better, (float(stock.mean()), float(tuned.mean()))
        confidence = together(comparisons)
        against = paired(tuned, stock, better, confidence=confidence)
        if not relative or against.ratio is None:
            return cls(nodes, metric, *means, against)
        by_ratio = paired(np.log(tuned), np.log(stock), better, confidence=confidence)
        return cls(nodes, metric, *means, by_ratio, against.ratio)

    def __str__(self) -> str:
        if self.ratio is not None:
            how = f"x {self.ratio}"
        else:
            share = f" ({100.0 * (self.tuned / self.stock - 1.0):+.1f}%)" if self.stock else ""
            how = f"{self.tuned:.4g} instead of {self.stock:.4g}{share}, difference {self.against.difference:+}"
        count, verdict = self.against.difference.count, self.against.verdict
        return f"{self.nodes} nodes, {self.metric}: {how} over {count} episodes: {verdict}"


@dataclass(frozen=True)
class Tuned:
    """A configuration with what it gains; `file` is where it was written, None where it gains nothing."""

    config: KubeSchedulerConfig
    gains: tuple[Gain, ...]
    file: Path | None = None

    @property
    def better(self) -> bool:
        """Whether it is better by one metric at one size at least."""
        return any(gain.against.verdict == "better" for gain in self.gains)

    @property
    def worse(self) -> tuple[Gain, ...]:
        """What it loses."""
        return tuple(gain for gain in self.gains if gain.against.verdict == "worse")


@dataclass(frozen=True)
class TunedProfiles:
    """What a search has come to: configurations, best by the first metric first, and all runs on held-out episodes."""

    found: tuple[Tuned, ...]
    results: Results
    generations: int
    played: int
    look: Look
    confidence: float
    """Of each interval, with which all of all looks hold together."""


def tune(
    settings: KubeSchedulerTuning, *, resume: bool = False, stopped: Callable[[], bool] = lambda: False
) -> TunedProfiles:
    """Search, choose, evaluate and write.

    The same settings give the same files, for any number of workers. Once `stopped` says so the best configuration so
    far is evaluated and written. With `resume` a search that was cut off goes on. Raises `UserError` for settings that
    nothing can be done with, and `StoppedError` where it was stopped before anything was known, or after the search.
    """
    check_seeds(settings.task, settings.seeds, settings.episodes, settings.episodes)
    with output_file(settings.out):
        files = (settings.out, *(_file(settings, number, _FRONT) for number in range(_FRONT)))
        own_files = [profile_file(settings.start)] if settings.start else []
        refuse_overwriting(files, own_files, going_on=exists(settings.folder))
        return _tune(settings, resume, stopped)


def _tune(settings: KubeSchedulerTuning, resume: bool, stopped: Callable[[], bool]) -> TunedProfiles:
    space, problem = _space(settings), _problem(settings)
    if not is_compiled(settings.task, *problem.all[0]):
        _log.info("%s is played in the simulator: a decision takes a hundred times as long there", settings.task.name)
    objectives = len(settings.reported_metrics)
    with (
        Study(
            settings.folder,
            settings.to_dict(),
            settings.inputs(),
            resume=resume,
            objectives=objectives,
            length=settings.generations,
        ) as study,
        open_pool(settings.workers) as pool,
    ):
        bred = breed(
            study, space, problem, pool, generations=settings.generations, population=settings.population,
            elite=_ELITE, seed=settings.seed, name="kube-scheduler", stopped=stopped,
        )  # fmt: skip
        stopped = from_now(stopped)
        chosen = _choose(settings, bred, pool, stopped)
        look = study.look([space.to_dict(each) for each in chosen], settings.seeds)
        comparisons = look.comparisons(len(problem.sizes) * len(settings.reported_metrics) * len(chosen))
        found, results = _races(settings, chosen, comparisons, stopped)
        written = tuple(_write(settings, each, number, len(found), look) for number, each in enumerate(found))
        lines = [*(str(gain) for each in written for gain in (*each.worse, *each.gains)), str(look)]
        files = [each.file for each in written if each.file is not None]
        write_page(
            study,
            f"kube-scheduler for {settings.task.name}",
            lines,
            {"task": settings.task.name, **settings.to_dict()},
            settings.reported_metrics,
            files,
        )
    return TunedProfiles(written, results, bred.generations, bred.played, look, together(comparisons))


def _space(settings: KubeSchedulerTuning) -> Space:
    if not settings.plugins:
        raise bad_value("plugins", "none", f"some of {', '.join(DEFAULT_WEIGHTS)}")
    for plugin in settings.plugins:
        if plugin not in DEFAULT_WEIGHTS:
            raise bad_value("plugins", plugin, f"one of {', '.join(DEFAULT_WEIGHTS)}")
    for name in settings.metrics:
        settings.task.check_metric(name)
    start = read_profile(settings.start).config if settings.start else KubeSchedulerConfig()
    cluster = settings.task.build(
        seeds_of(settings.task, "training", settings.episodes)[0], (settings.task.sizes or (None,))[0]
    )
    others = {name for pod in cluster.workload.pods for name in pod.requests} - {CPU, MEMORY}
    scalar = tuple(sorted(name for name in others if "/" in name))  # devices and the like, as kube-scheduler has them
    largest = max(settings.task.sizes, default=settings.task.nodes)
    return Space(start, settings.plugins, (CPU, MEMORY, *scalar), largest >= SAMPLED_FROM)


def _problem(settings: KubeSchedulerTuning, part: str = "training") -> Problem[KubeSchedulerConfig]:
    sizes = settings.task.sizes or (None,)
    return Problem(
        settings.task,
        seeds_of(settings.task, part, settings.episodes),
        sizes,
        evaluate_configurations,
        settings.metrics,
        settings.relative,
    )


def _choose(
    settings: KubeSchedulerTuning, bred: Bred[KubeSchedulerConfig], pool: Pool, stopped: Callable[[], bool]
) -> list[KubeSchedulerConfig]:
    """Return the elite's best on the validation episodes; with several metrics a front, best by the first one first."""
    configs, means, _ = bred.validated(_problem(settings, "validation"), pool, stopped)
    order, ranks, _ = survivors(means, len(means))
    if not settings.metrics[1:]:
        return [configs[order[0]]]
    front = order[ranks == 0][:_FRONT]
    return [configs[place] for place in sorted(front, key=lambda place: means[place, 0])]


def _races(
    settings: KubeSchedulerTuning, chosen: Sequence[KubeSchedulerConfig], comparisons: int, stopped: Callable[[], bool]
) -> tuple[list[Tuned], Results]:
    """Play the held-out episodes as `aaml evaluate` does it, with the files that are to be written."""
    with TemporaryDirectory() as folder:
        policies = {STOCK: settings.start or STOCK}
        for number, config in enumerate(chosen):
            path = Path(folder) / f"{number}.yaml"
            write_configuration(path, document(config, settings.start))
            policies[_label(number, len(chosen))] = f"{PREFIX}{path}" + _profile_of(settings)
        results = evaluate(policies, settings.task, settings.seeds, workers=settings.workers, stopped=stopped)
    frame, found = results.frame(), []
    for number, config in enumerate(chosen):
        gains = []
        for nodes in dict.fromkeys(frame["nodes"]):
            here = frame[frame["nodes"] == nodes]
            for metric in settings.reported_metrics:
                stock, tuned = (
                    here[here["policy"] == name].sort_values("seed")[metric].to_numpy()
                    for name in (STOCK, _label(number, len(chosen)))
                )
                gains.append(
                    Gain.of(int(nodes), metric, stock, tuned, relative=settings.relative, comparisons=comparisons)
                )
        found.append(Tuned(config, tuple(gains)))
    return found, results


def _label(number: int, count: int) -> str:
    return "tuned" if count == 1 else f"tuned-{number + 1}"


def _profile_of(settings: KubeSchedulerTuning) -> str:
    return f"#{read_profile(settings.start).scheduler_name}" if settings.start else ""


def _file(settings: KubeSchedulerTuning, number: int, count: int) -> Path:
    """Return FILE, or FILE-1, FILE-2 ... of a front."""
    name = settings.out.stem + (f"-{number + 1}" if count > 1 else "")
    return settings.out.with_name(name + settings.out.suffix)


def _write(settings: KubeSchedulerTuning, tuned: Tuned, number: int, count: int, look: Look) -> Tuned:
    """Write a configuration that gains something."""
    if not tuned.better:
        return tuned
    path = _file(settings, number, count)
    reference = settings.start or "kube-scheduler's defaults"
    notes = [f"tuned for {settings.task.name} (aaml search scheduler); predicted, against {reference}:"]
    lines = sorted(tuned.gains, key=lambda gain: gain.against.verdict != "worse")
    write_configuration(path, document(tuned.config, settings.start), [*notes, *map(str, lines), str(look)])
    return replace(tuned, file=path)
