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

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import TrialState, create_trial
from sqlalchemy.exc import SQLAlchemyError

from aaml.errors import UserError
from aaml.evaluation.identity import inputs, same_inputs
from aaml.files import write_json
from aaml.outputs import output_folder
from aaml.parallel.pool import Pool
from aaml.progress import progress_bar
from aaml.schema import convert, of_json, read_bytes
from aaml.settings import changed, plain
from aaml.training.records import RESUME, read_config
from aaml.training.run import inputs_of, open_run
from aaml.training.settings import TrainConfig
from aaml.training.sweep_space import Categorical, Range, SweepConfig
from aaml.training.trainer import run_training

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import FrozenTrial
    from tqdm import tqdm

TRIALS, RUNGS = "trials", "rungs.json"
_STUDY = {"batch", "rungs", "reduction", "space"}  # what a study is besides its training
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
    _, folder = open_run(config, path, resume=True)
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
    storage: str | None = None,
    train: Train = train_to,
    on_batch: Callable[["Study"], None] = lambda _study: None,
    progress: bool = True,
) -> "Study":
    """Run the trials that a study lacks and return it; finished trials are kept in the storage, batch by batch.

    `storage` is a database's URL, a SQLite file in `out` without one. `train` takes a training, its folder and a
    rung to a score, lower is better.
    Raises `UserError` when the folder or the storage holds a study with other settings.
    """
    with output_folder(out):
        return _sweep(config, out, pool, storage, train, on_batch, progress=progress)


def _sweep(
    config: SweepConfig,
    out: Path,
    pool: Pool,
    storage: str | None,
    train: Train,
    on_batch: Callable[["Study"], None],
    *,
    progress: bool,
) -> "Study":
    study = open_study(config, out, storage)
    if (one := config.whole_round) > (first := config.ladder[0]):
        _log.warning(
            "the first rung is after %d decisions, and a round takes about %d, which is played to its end: "
            "take more --steps, or fewer --rungs, --envs or --group_size", first, one,
        )  # fmt: skip
    done = len(study.get_trials(deepcopy=False))
    name = f"sweep {config.training.agent.name} on {config.training.task}"
    with progress_bar(name, max(config.trials, done), "trial", enabled=progress, at=done) as bar:
        while done < config.trials:
            for trial in _batch(config, study.get_trials(), out.resolve(), pool, train, bar):
                _keep(study, trial)
            for number in range(done, done := len(study.get_trials(deepcopy=False))):
                (folder_of(out, number) / RESUME).unlink(missing_ok=True)  # a finished trial goes on no more
            on_batch(study)
    return study


def _keep(study: "Study", trial: "FrozenTrial") -> None:
    try:
        study.add_trial(trial)
    except SQLAlchemyError as error:
        raise UserError(f"storage: a trial cannot be kept: {' '.join(str(error).split())}") from error


def open_study(config: SweepConfig, out: Path, storage: str | None = None) -> "Study":
    """Open or make the study of a folder. Raises `UserError` when it cannot be, or was made with other settings."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    mine = config.record()
    _ = config.training.env_config  # a task that is not known is told before there is a folder
    try:
        (out / TRIALS).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"out: {out} cannot be written: {error.strerror or error}") from error
    url, name = (storage, out.resolve().name) if storage else (f"sqlite:///{out.resolve()}/study.db", "sweep")
    try:
        study = optuna.create_study(storage=url, study_name=name, load_if_exists=True)
    except (SQLAlchemyError, ImportError, ValueError, RuntimeError) as error:
        raise UserError(f"storage: {url} cannot be used: {' '.join(str(error).split())}") from error
    stored = study.user_attrs.get("settings", mine)
    theirs = stored | plain(changed(TrainConfig(), {name: stored[name] for name in stored if name not in _STUDY}))
    for key, value in theirs.items():
        if mine.get(key) != value:
            raise UserError(
                f"out: {out} holds a study with {key} {value!r}, not {mine.get(key)!r}; "
                f"go on with the same settings, or choose another folder"
            )
    played = inputs_of_study(config)
    same_inputs(played, study.user_attrs.get("inputs"), out)
    study.set_user_attr("settings", mine)
    study.set_user_attr("inputs", played)
    return study


def inputs_of_study(config: SweepConfig) -> dict[str, str]:
    """Return what trials learn from besides their settings, by contents: the rewards that they choose from, too."""
    rewards = config.domains.get("reward")
    chosen = {f"reward {reward}": inputs(reward=reward)["reward"] for reward in (rewards.probes if rewards else ())}
    return inputs_of(config.base) | chosen


def _batch(
    config: SweepConfig,
    trials: Sequence["FrozenTrial"],
    out: Path,
    pool: Pool,
    train: Train,
    bar: "tqdm[Any]",
) -> list["FrozenTrial"]:
    """Run the rest of the batch that comes next and return its trials, finished, in order."""
    begin = len(trials) - len(trials) % config.batch
    asked = ask(config, trials[:begin], min(config.batch, config.trials - begin))[len(trials) - begin :]
    numbers = range(len(trials), len(trials) + len(asked))
    params = dict(zip(numbers, asked, strict=True))
    scores: dict[int, dict[int, float]] = {number: {} for number in numbers}
    alive = list(numbers)
    for rung in config.ladder:
        jobs = [(config.training_of(params[number]), folder_of(out, number), rung) for number in alive]
        for index, score in pool.run(train, jobs):
            scores[alive[index]][rung] = score
        bound = math.inf
        if rung < config.ladder[-1]:
            there = [trial.intermediate_values[rung] for trial in trials if rung in trial.intermediate_values]
            bound = cutoff([*there, *(scores[number][rung] for number in alive)], config.reduction)
        bar.update(sum(scores[number][rung] > bound for number in alive))
        alive = [number for number in alive if scores[number][rung] <= bound]
    bar.update(len(alive))
    distributions = {name: distribution(domain) for name, domain in config.domains.items()}
    return [
        create_trial(
            state=TrialState.COMPLETE if number in alive else TrialState.PRUNED,
            value=scores[number][max(scores[number])],
            params=params[number],
            distributions=distributions,
            intermediate_values=scores[number],
        )
        for number in numbers
    ]


def ask(config: SweepConfig, history: Sequence["FrozenTrial"], count: int) -> list[dict[str, Any]]:
    """Return the next trials' parameters; the study's first are the present settings, where the space has them."""
    study = optuna.create_study()
    study.add_trials(history)
    distributions = {name: distribution(domain) for name, domain in config.domains.items()}
    if not history:
        study.enqueue_trial(config.present)
    params = []
    for number in range(len(history), len(history) + count):
        seed = int(np.random.SeedSequence([config.training.seed, number]).generate_state(1)[0])
        study.sampler = optuna.samplers.TPESampler(seed=seed, constant_liar=True)
        params.append(study.ask(distributions).params)
    return params


def cutoff(scores: Sequence[float], reduction: int) -> float:
    """Return the score that the best 1/reduction of the scores (rounded up) are at or below."""
    return sorted(scores)[math.ceil(len(scores) / reduction) - 1]


def folder_of(out: Path, number: int) -> Path:
    """Return the run folder of a trial."""
    return out / TRIALS / f"{number:03d}"
