"""Training jobs of the Philly record as a stream: how many GPUs, how long and for whom, at an offered load."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from aaml.cluster.objects import RACK_LABEL, Node
from aaml.errors import UserError, bad_value
from aaml.workload.gangs import JobShape
from aaml.workload.load import Load, draw_load, take_load
from aaml.workload.model import Workload
from aaml.workload.philly import Job, load_jobs, record_file

FloatArray = npt.NDArray[np.float64]
Part = Literal["training", "holdout", "whole"]
HEAVY: Mapping[int, float] = {2: 0.15, 4: 0.2, 8: 0.3, 16: 0.2, 32: 0.1, 64: 0.05}
"""Shares of jobs by their GPUs. In the record itself 0.4% ask for more than 8."""
_TRAINING = 0.7  # of the time of the record
_SHORTEST_S, _LONGEST_S = 60.0, 7 * 86_400.0
_MEAN_S = 3_600.0


@dataclass(frozen=True)
class TrainingJobs:
    """Draws jobs that ask for the fraction `load` of all GPUs from their first to their last arrival.

    `sizes` "heavy": GPUs as `HEAVY` says, each with the duration and virtual cluster of a drawn job of that size (of
    the next smaller one that there is); "record": jobs as they are. `arrivals` "poisson", or "record": with the pauses
    of consecutive jobs of the record, which are the jobs themselves where the sizes are the record's too. Durations are
    scaled so that a stream's mean is an hour; jobs of less than a minute are left out. `part`: of which time jobs are
    drawn, the first 70% ("training"), the rest ("holdout") or all. Jobs that the cluster cannot hold are not drawn, and
    of the heavy ones none that no rack can hold. Pods ask for GPUs, and beside each for so much CPU and memory.
    """

    load: Load = 0.9
    sizes: Literal["heavy", "record"] = "heavy"
    arrivals: Literal["poisson", "record"] = "poisson"
    part: Part = "holdout"
    cpu_milli_per_gpu: int = 0
    memory_per_gpu: int = 0

    def __post_init__(self) -> None:
        take_load(self.load)

    def __call__(self, nodes: tuple[Node, ...], jobs: int, rng: np.random.Generator) -> Workload:
        """Draw the pods of so many jobs."""
        gpus = [node.gpu_count for node in nodes if node.gpu_count]
        if not gpus:
            raise bad_value("nodes", len(nodes), "nodes with GPUs")
        racks: dict[str, int] = {}
        for node in nodes:
            if node.gpu_count and RACK_LABEL in node.labels:
                racks[node.labels[RACK_LABEL]] = racks.get(node.labels[RACK_LABEL], 0) + 1
        per_rack = max(racks.values(), default=0)
        shape = JobShape(min(gpus), per_rack, self.cpu_milli_per_gpu, self.memory_per_gpu)
        path = record_file()
        record = _record(path, self.part)
        largest = sum(count // shape.gpus_per_node for count in gpus) * shape.gpus_per_node
        if record.gpus.min() > largest:
            fewest = record.gpus.min()
            raise UserError(f"{path}: its jobs ask for {fewest} GPUs or more; expected some of at most {largest}")
        picks, asked, pauses_s = self._drawn(record, jobs, largest, (per_rack or len(gpus)) * shape.gpus_per_node, rng)
        lasts_s = record.durations_s[picks]
        lasts_s = np.maximum(lasts_s * (_MEAN_S / lasts_s.mean()), _SHORTEST_S)
        span_s = float((asked * lasts_s).sum()) / (draw_load(self.load, rng) * sum(gpus))
        arrivals_s = np.cumsum(pauses_s) * (span_s / len(picks))
        return Workload(
            tuple(
                pod
                for number, (pick, size, at_s, runs_s) in enumerate(
                    zip(picks.tolist(), asked.tolist(), arrivals_s.tolist(), lasts_s.tolist(), strict=True)
                )
                for pod in shape.pods(
                    f"{record.queues[pick]}-{size}gpu-{number:08d}", record.queues[pick], size, at_s, runs_s
                )
            ),
            "training jobs",
        )

    def _drawn(
        self, record: "_Record", jobs: int, largest: int, largest_of_rack: int, rng: np.random.Generator
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], FloatArray]:
        """Return which jobs of the record are drawn, their GPUs, and the pauses before them, 1 on average."""
        fits = np.flatnonzero(record.gpus <= largest)
        begin = int(rng.integers(max(len(fits) - jobs, 1)))
        window = fits[np.arange(begin, begin + jobs) % len(fits)]
        if self.arrivals == "record":
            pauses_s = np.maximum(np.diff(record.submitted_s[window], prepend=record.submitted_s[window[0]]), 0.0)
            pauses_s *= jobs / max(float(pauses_s.sum()), 1.0)
        else:
            pauses_s = rng.exponential(1.0, jobs)
        if self.sizes == "record":
            picks = window if self.arrivals == "record" else rng.choice(fits, jobs)
            return picks, record.gpus[picks], pauses_s
        sizes = np.array([size for size in HEAVY if size <= largest_of_rack])
        if not len(sizes):
            raise bad_value("nodes", largest_of_rack, f"racks of at least {min(HEAVY)} GPUs")
        shares = np.array([HEAVY[size] for size in sizes])
        asked = rng.choice(sizes, jobs, p=shares / shares.sum())
        picks = np.array([rng.choice(record.like(size)) for size in asked.tolist()])
        return picks, asked, pauses_s


class _Record(NamedTuple):
    """The jobs of a part of the record: arrays [J] in the order in which they came."""

    submitted_s: FloatArray
    durations_s: FloatArray
    gpus: npt.NDArray[np.int64]
    queues: Sequence[str]
    by_size: Mapping[int, npt.NDArray[np.int64]]

    def like(self, gpus: int) -> npt.NDArray[np.int64]:
        """Return the jobs of so many GPUs, or of the next smaller number that there is."""
        return self.by_size[max((size for size in self.by_size if size <= gpus), default=min(self.by_size))]


@lru_cache(maxsize=6)
def _record(path: Path, part: Part) -> _Record:
    every = load_jobs()
    if not every:
        raise UserError(f"{path}: has no jobs; expected a line each under its header")
    cut_s = every[0].submitted_s + _TRAINING * (every[-1].submitted_s - every[0].submitted_s)
    jobs: list[Job] = [
        job
        for job in every
        if job.duration_s >= _SHORTEST_S and (part == "whole" or (part == "holdout") == (job.submitted_s >= cut_s))
    ]
    if not jobs:
        where = {"training": "in the first 70% of its time", "holdout": "in the last 30% of its time"}.get(
            part, "in it"
        )
        raise UserError(f"{path}: no job {where} runs for {_SHORTEST_S:g} s; expected one at least")
    gpus = np.array([job.gpus for job in jobs])
    return _Record(
        np.array([job.submitted_s for job in jobs]),
        np.array([min(job.duration_s, _LONGEST_S) for job in jobs]),
        gpus,
        [job.queue for job in jobs],
        {size: np.flatnonzero(gpus == size) for size in np.unique(gpus).tolist()},
    )
