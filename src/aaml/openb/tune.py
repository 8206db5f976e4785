"""Tuning a linear scorer for the GPU-sharing benchmark: first one row of weights for all pods, then one a pod group.

A candidate is judged by how much more GPU capacity than FGD it allocates on the same seeds, over several traces. At
100% and at 130% of arrived demand: 0.7 of the mean gain, 0.3 of the mean of gains counted to 0.8 points at most, and
0.1 of the worst, so that no trace is given up for another. Being behind FGD, beyond 0.02 points, counts against it at
every column from 50% on: twice the mean over traces and columns, 0.3 of each trace's most, 0.1 of the most of all.
Judged at 100% and 130% alone, a search finds scorers that leave out the largest pods while there is room. Seeds lie
far above those that results are reported on.
"""

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from aaml.errors import UserError, bad_value
from aaml.files import JsonLines
from aaml.parallel.pool import open_pool
from aaml.policies.gpu.scorer_file import ScorerModel, save_scorer
from aaml.policies.gpu_names import FEATURES, GROUPS
from aaml.progress import progress_bar
from aaml.search.evolution import Generation, separable_cma
from aaml.sim.openb import AT_100_AND_130, SEARCH_SEEDS, TRAINING_TRACES, gains_over_fgd

if TYPE_CHECKING:
    from tqdm import tqdm

FloatArray = npt.NDArray[np.float64]
_ENOUGH, _SLACK = 0.8, 0.02  # points of allocation
# FGD's gradient with ties to the fuller node, after what a share takes from other shares.
_START = {"fragment_gain": 1.0, "cpu_left": -0.05, "gpu_left": -0.1, "rest_lost": -10.0, "model_load": -0.05}


@dataclass(frozen=True)
class Stage:
    """One search. `shared`: one row of weights for all pods. A candidate meets each trace once, on its own seed."""

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


def objective(weights: FloatArray, traces: Sequence[str], seed: int) -> tuple[float, FloatArray]:
    """Return the value of a candidate and its gains [traces, `SEARCH_COLUMNS`]; trace i runs on `seed` + i."""
    gains = np.array([gains_over_fgd(trace, seed + i, weights) for i, trace in enumerate(traces)])
    won, behind = gains[:, AT_100_AND_130], np.maximum(-gains - _SLACK, 0.0)
    value = 0.7 * won.mean() + 0.3 * np.minimum(won, _ENOUGH).mean() + 0.1 * won.min()
    return float(value - 2.0 * behind.mean() - 0.3 * behind.max(axis=1).mean() - 0.1 * behind.max()), gains


def _judge(weights: FloatArray, traces: tuple[str, ...], seed: int) -> float:
    return objective(weights, traces, seed)[0]


def matrix(vector: FloatArray) -> FloatArray:
    """Return weights [groups, F] of a vector [F] (the same for all groups) or [groups * F]."""
    if vector.size == len(FEATURES):
        return np.vstack([np.tile(vector, (len(GROUPS) - 1, 1)), np.zeros((1, len(FEATURES)))])
    return np.ascontiguousarray(vector.reshape(len(GROUPS), len(FEATURES)))


def going_on(weights: FloatArray) -> FloatArray:
    """Return weights [groups, F] to go on from: features that count for nothing in them begin as in a new search."""
    result = weights.copy()
    unknown = ~weights.any(axis=0)
    result[:-1, unknown] = np.array([_START.get(name, 0.0) for name in FEATURES])[unknown]
    return result


def tune(
    out: Path,
    stages: Sequence[Stage] = STAGES,
    *,
    start: FloatArray | None = None,
    workers: int | str = 2,
    stopped: Callable[[], bool] = lambda: False,
) -> FloatArray:
    """Run the stages one after another; `out` (.npz) holds the latest mean after every generation, beside it a log.

    `start` [groups, F] is what the first stage begins with, FGD's gradient where it is not given. The same stages give
    the same weights, wherever the workers are.
    """
    if out.suffix != ".npz":
        raise bad_value("out", str(out), "a file that ends in .npz")
    for stage in stages:
        if stage.population < 4 or stage.generations < 1:
            raise UserError("stage: expected a population of at least 4 and at least one generation")
    vector = np.array([_START.get(name, 0.0) for name in FEATURES]) if start is None else start.ravel()
    if not out.exists():
        out.with_suffix(".jsonl").unlink(missing_ok=True)  # of weights that are not there any more
    with open_pool(workers) as pool, closing(JsonLines(out.with_suffix(".jsonl"))) as log:
        for position, stage in enumerate(stages):
            if not stage.shared and vector.size == len(FEATURES):
                vector = matrix(vector).ravel()
            name = f"stage {position + 1} of {len(stages)}"
            with progress_bar(name, stage.generations, "generation") as bar:

                def judge(vectors: Sequence[FloatArray], number: int, stage: Stage = stage) -> list[float]:
                    seed = SEARCH_SEEDS.start + 1000 * stage.seed + 10 * number
                    jobs = [(_weights(each), stage.traces, seed) for each in vectors]
                    values = dict(pool.run(_judge, jobs))
                    return [values[position] for position in range(len(jobs))]

                def report(generation: Generation, stage: Stage = stage, bar: "tqdm[Any]" = bar) -> bool:
                    bar.update()
                    bar.set_postfix(mean=f"{generation.mean_value:.3f}", best=f"{generation.best_value:.3f}")
                    save_scorer(ScorerModel(linear=matrix(generation.mean)), out)
                    line = {key: value for key, value in asdict(generation).items() if key != "mean"}
                    log.write({"stage": asdict(stage), **line})
                    log.flush()
                    return stopped()

                vector = separable_cma(
                    judge, vector, generations=stage.generations, population=stage.population,
                    deviation=stage.deviation, rng=np.random.default_rng(stage.seed), on_generation=report,
                )  # fmt: skip
            if stopped():
                break
    return matrix(vector)


def _weights(vector: FloatArray) -> FloatArray:
    return vector if vector.size == len(FEATURES) else matrix(vector)
