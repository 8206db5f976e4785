"""Tuning a linear scorer for the GPU-sharing benchmark: first one row of weights for all pods, then one a pod group.

A candidate meets each trace once, on its own seed, and loses what `aaml.sim.openb.loss_against_fgd` says in the mean.
All candidates of a generation meet the same seeds, which lie far above those that results are reported on.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from aaml.errors import UserError, bad_value
from aaml.evaluation.identity import inputs
from aaml.outputs import output_file, refuse_overwriting
from aaml.parallel.pool import Pool, open_pool
from aaml.policies.gpu.scorer_file import ScorerModel, load_scorer, save_scorer
from aaml.policies.gpu_names import FEATURES, GROUPS
from aaml.sim.openb import SEARCH_SEEDS, TRAINING_TRACES, gains_over_fgd, loss_against_fgd
from aaml.study.page import write_page
from aaml.study.samplers import CmaEs
from aaml.study.study import Study, exists, folder_beside
from aaml.study.trial import Trial
from aaml.workload.traces import trace_files

FloatArray = npt.NDArray[np.float64]
# FGD's gradient with ties to the fuller node, after what a share takes from other shares.
_START = {"fragment_gain": 1.0, "cpu_left": -0.05, "gpu_left": -0.1, "rest_lost": -10.0, "model_load": -0.05}


@dataclass(frozen=True)
class Stage:
    """One search. `shared`: one row of weights for all pods."""

    shared: bool
    traces: tuple[str, ...]
    generations: int
    population: int
    deviation: float
    seed: int


STAGES = (
    Stage(True, TRAINING_TRACES, 60, 14, 0.04, 1),
    Stage(False, TRAINING_TRACES, 4, 20, 0.04, 11),
)


@dataclass(frozen=True)
class ScorerTuning:
    """What to tune: stages one after the other. `start` is a file to go on from; FGD's gradient without one."""

    out: Path
    stages: Sequence[Stage] = STAGES
    start: Path | None = None
    workers: int | str = 1

    @property
    def folder(self) -> Path:
        """Where the study is kept."""
        return folder_beside(self.out)

    def to_dict(self) -> dict[str, Any]:
        """Return what makes a search another one, as JSON-able values: the last stage may go on for longer."""
        stages = [asdict(stage) | {"traces": list(stage.traces)} for stage in self.stages]
        return {"stages": [*stages[:-1], stages[-1] | {"generations": 0}]}

    def inputs(self) -> dict[str, str]:
        """Return the start and the traces, by contents."""
        traces = [file for stage in self.stages for name in stage.traces for file in trace_files(name)]
        return inputs(files={"start": () if self.start is None else (self.start,), "traces": traces})


def mean_loss(weights: FloatArray, traces: Sequence[str], seed: int) -> float:
    """Return the mean loss of weights [F] or [groups, F]; trace i runs on `seed` + i."""
    return float(np.mean([loss_against_fgd(gains_over_fgd(name, seed + i, weights)) for i, name in enumerate(traces)]))


def matrix(vector: FloatArray) -> FloatArray:
    """Return weights [groups, F] of a vector [F] (the same for all groups) or [groups * F]."""
    if vector.size == len(FEATURES):
        return np.vstack([np.tile(vector, (len(GROUPS) - 1, 1)), np.zeros((1, len(FEATURES)))])
    return np.ascontiguousarray(vector.reshape(len(GROUPS), len(FEATURES)))


def read_start(path: Path | None) -> FloatArray:
    """Return a vector to begin with: features that count for nothing in a file begin as in a search without one."""
    usual = np.array([_START.get(name, 0.0) for name in FEATURES])
    if path is None:
        return usual
    weights = load_scorer(path).linear
    if weights is None or weights.shape != (len(GROUPS), len(FEATURES)):
        raise bad_value("start", path, "a file that `aaml search gpu` wrote, with weights for each group of pods")
    result = weights.copy()
    unknown = ~weights.any(axis=0)
    result[:-1, unknown] = usual[unknown]
    return result.ravel()


def tune(
    settings: ScorerTuning, *, resume: bool = False, stopped: Callable[[], bool] = lambda: False
) -> tuple[FloatArray, int]:
    """Run the stages one after another; return the weights [groups, F] and how many generations there were.

    The file (.npz) holds the latest mean after every generation. The same stages give the same weights, wherever the
    workers are. With `resume` a search that was cut off goes on.
    """
    if settings.out.suffix != ".npz":
        raise bad_value("out", str(settings.out), "a file that ends in .npz")
    for stage in settings.stages:
        if stage.population < 4 or stage.generations < 1:
            raise UserError("stage: expected a population of at least 4 and at least one generation")
    with output_file(settings.out):
        refuse_overwriting([settings.out], [settings.start] if settings.start else [], going_on=exists(settings.folder))
        vector, done = read_start(settings.start), 0
        told = [stage.generations for stage in settings.stages]
        with (
            Study(settings.folder, settings.to_dict(), settings.inputs(), resume=resume, length=told) as study,
            open_pool(settings.workers) as pool,
        ):
            for number, stage in enumerate(settings.stages, 1):
                name = f"stage {number} of {len(settings.stages)}"
                vector, generations = _stage(settings.out, stage, vector, study, pool, name, stopped)
                done += generations
                if generations < stage.generations:
                    break
            save_scorer(ScorerModel(linear=matrix(vector)), settings.out)
            if study.trials:
                write_page(
                    study, "A linear scorer for GPUs", (), settings.to_dict(), ("loss against FGD",), [settings.out]
                )
    return matrix(vector), done


def _stage(
    out: Path, stage: Stage, vector: FloatArray, study: Study, pool: Pool, name: str, stopped: Callable[[], bool]
) -> tuple[FloatArray, int]:
    """Run a stage and return its last mean, and how many generations it took."""
    if not stage.shared:
        vector = matrix(vector).ravel()
    sampler = CmaEs(vector, population=stage.population, deviation=stage.deviation, seed=stage.seed)
    loss = 0.0

    def evaluate(vectors: Sequence[FloatArray], number: int, _known: object) -> list[Trial[FloatArray]]:
        nonlocal loss
        seed = SEARCH_SEEDS.start + 1000 * stage.seed + 10 * number
        losses = dict(pool.run(mean_loss, [(_weights(each), stage.traces, seed) for each in vectors], stopped))
        loss = losses[len(vectors) - 1]
        return [Trial(each, (losses[place],)) for place, each in enumerate(vectors)]

    def after(_number: int) -> str:
        save_scorer(ScorerModel(linear=matrix(sampler.means[-1])), out)
        return f"mean={loss:.3f}"

    done = study.optimize(sampler, evaluate, stage.generations, name=name, stopped=stopped, after=after)
    return sampler.means[-1], done


def _weights(vector: FloatArray) -> FloatArray:
    return vector if vector.size == len(FEATURES) else matrix(vector)
