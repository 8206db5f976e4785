"""A sweep: trials of a training with other settings, each trained rung by rung, the worse ones pruned on the way.

Trials are drawn in batches by Optuna's TPE (Bergstra et al., NeurIPS 2011; trials still open count as bad ones). A
batch climbs the rungs together: of all trials that ever reached a rung, the best 1/reduction go on, to `reduction`
times the decisions (successive halving: Jamieson and Talwalkar, AISTATS 2016). What is drawn depends on the seed, the
trial's number and the batches before, so that the same seed gives the same study whatever the number of workers, and
an interrupted study goes on as if it had not been: the trials' run folders hold how far they came.
"""

import logging
import math
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from aaml.errors import UserError
from aaml.evaluation.identity import VERSION, inputs
from aaml.evaluation.program import version_with
from aaml.files import write_json
from aaml.outputs import output_folder
from aaml.parallel.pool import Pool
from aaml.schema import convert, of_json, read_bytes
from aaml.settings import changed
from aaml.study.pruner import climb
from aaml.study.samplers import Tpe
from aaml.study.study import Study
from aaml.study.trial import Trial
from aaml.training.records import RESUME, read_config
from aaml.training.run import inputs_of, open_run
from aaml.training.settings import TrainConfig
from aaml.training.sweep_space import Categorical, Range, SweepConfig
from aaml.training.trainer import run_training

if TYPE_CHECKING:
    import optuna
    from optuna.trial import FrozenTrial

Params = dict[str, Any]
TRIALS, RUNGS = "trials", "rungs.json"
_log = logging.getLogger(__name__)
Train = Callable[[TrainConfig, Path, int], float]


def distribution(domain: Range | Categorical) -> BaseDistribution:
    """Return Optuna's form of what a setting is chosen from."""
    if isinstance(domain, Categorical):
        return CategoricalDistribution(domain.values)
    if isinstance(domain.low, int) and isinstance(domain.high, int):
        return IntDistribution(domain.low, domain.high, log=domain.log)
    return FloatDistribution(domain.low, domain.high, log=domain.log)


def train_to(config: TrainConfig, path: Path, rung: int) -> float:
    """Train in a run folder up to `rung` decisions and return the best validation score so far.

    A rung that was reached is only looked up. Raises `UserError` when the folder holds another run.
    """
    stored = read_config(path)
    if stored is not None and changed(TrainConfig(), stored["training"]) != config.resolved:
        raise UserError(f"out: {path} holds a run with other settings; choose another folder")
    scores: dict[str, float] = {}
    if (path / RUNGS).exists():
        scores = convert(of_json(read_bytes(path / RUNGS, "out"), f"out: {path / RUNGS}"), dict[str, float], "out")
    if str(rung) in scores:
        return scores[str(rung)]
    if stored is not None and not (path / RESUME).exists():
        shutil.rmtree(path)  # it was killed before it was first saved
    _, folder = open_run(config, path, resume=(path / RESUME).exists())
    try:
        score = run_training(config, folder, until=rung, progress=False).best
    finally:
        folder.close()
    write_json(path / RUNGS, {**scores, str(rung): score}, field="out")
    return score


def sweep(
    config: SweepConfig,
    out: Path,
    pool: Pool,
    *,
    resume: bool = False,
    storage: str = "",
    train: Train = train_to,
    on_batch: Callable[["optuna.Study"], None] = lambda _study: None,
    progress: bool = True,
) -> "optuna.Study":
    """Run the trials that a study lacks and return it, as Optuna has it; finished trials are kept batch by batch.

    `storage` is a database's URL, a journal in `out` without one. `train` takes a training, its folder and a rung to a
    score, lower is better. With `resume` a study goes on, to more trials where it is told so.
    Raises `UserError` when the folder or the storage holds a study with other settings, or one that is not to go on.
    """
    _ = config.training.env_config  # a task that is not known is told before there is a folder
    sampler = Tpe(
        {name: distribution(domain) for name, domain in config.domains.items()},
        trials=config.trials, batch=config.batch, seed=config.training.seed, present=config.present,
    )  # fmt: skip
    if (one := config.whole_round) > (first := config.ladder[0]):
        _log.warning(
            "the first rung is after %d decisions, and a round takes about %d, which is played to its end: "
            "take more --steps, or fewer --rungs, --envs or --group_size", first, one,
        )  # fmt: skip
    name = f"sweep {config.training.agent.name} on {config.training.task}"
    begun = config.record(), inputs_of_study(config)
    with (
        output_folder(out),
        Study(out, *begun, resume=resume, storage=storage, length=config.trials) as study,
    ):

        def evaluate(asked: Sequence[Params], number: int, known: Sequence[Trial[Params]]) -> list[Trial[Params]]:
            first = number * config.batch + len(known)
            return [*known, *_climbed(config, asked[len(known) :], first, study.trials, out, pool, train)]

        def after(number: int) -> str:
            for trial in range(number * config.batch, len(study.trials)):
                (folder_of(out, trial) / RESUME).unlink(missing_ok=True)  # a finished trial goes on no more
            on_batch(study.optuna)
            return ""

        batches = math.ceil(config.trials / config.batch)
        study.optimize(sampler, evaluate, batches, name=name, unit="batch", after=after, progress=progress)
        return study.optuna


def inputs_of_study(config: SweepConfig) -> dict[str, str]:
    """Return what trials learn from besides their settings, by contents: the rewards that they choose from, too."""
    rewards = config.domains.get("reward")
    chosen = {f"reward {reward}": inputs(reward=reward)["reward"] for reward in (rewards.probes if rewards else ())}
    return {VERSION: version_with("learning", "training")} | inputs_of(config.base) | chosen


def _climbed(
    config: SweepConfig,
    asked: Sequence[Params],
    first: int,
    before: Sequence["FrozenTrial"],
    out: Path,
    pool: Pool,
    train: Train,
) -> list[Trial[Params]]:
    """Train trials from a number on, rung by rung, and return them in order."""
    scores: list[dict[int, float]] = [{} for _ in asked]
    place = out.resolve()

    def play(alive: Sequence[int], rung: int) -> None:
        jobs = [(config.training_of(asked[each]), folder_of(place, first + each), rung) for each in alive]
        for position, score in pool.run(train, jobs):
            scores[alive[position]][rung] = score

    def kept(alive: Sequence[int], rung: int) -> list[int]:
        there = [each.intermediate_values[rung] for each in before if rung in each.intermediate_values]
        bound = cutoff([*there, *(scores[each][rung] for each in alive)], config.reduction)
        return [each for each in alive if scores[each][rung] <= bound]

    reached = climb(len(asked), config.ladder, play, kept)
    return [
        Trial(params, (scores[each][reached[each]],), 0.0, reached[each] < config.ladder[-1], scores[each])
        for each, params in enumerate(asked)
    ]


def cutoff(scores: Sequence[float], reduction: int) -> float:
    """Return the score that the best 1/reduction of the scores (rounded up) are at or below."""
    return sorted(scores)[math.ceil(len(scores) / reduction) - 1]


def folder_of(out: Path, number: int) -> Path:
    """Return the run folder of a trial."""
    return out / TRIALS / f"{number:03d}"
