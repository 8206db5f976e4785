"""A study in a folder: one loop for every search, whose journal (`study.jsonl`) holds its settings and trials.

The loop asks the sampler for a generation, has it evaluated, tells the sampler. To go on with a study is the same loop:
what the journal has is told without being evaluated again, so that a study comes to the same bits however often it
was cut off, and nothing but trials has to be kept.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, Self, TypeVar

import optuna
from optuna.distributions import BaseDistribution
from optuna.storages import JournalStorage
from optuna.trial import FrozenTrial, TrialState, create_trial
from sqlalchemy.exc import SQLAlchemyError

from aaml.errors import StoppedError, UserError, bad_value
from aaml.evaluation.identity import VERSION, same_inputs
from aaml.evaluation.program import program_sha256
from aaml.progress import progress_bar
from aaml.study.journal import Journal
from aaml.study.looks import Look, kept_looks, take_look
from aaml.study.trial import Params, Sampler, Trial

JOURNAL = "study.jsonl"
NAME = "study"
_LENGTH = "length"
_PARAMS, _VIOLATION, _ATTRS = "params", "violation", "attrs"  # what a trial has besides
Value = TypeVar("Value")
Evaluate = Callable[[Sequence[Params], int, Sequence[Trial[Params]]], Sequence[Trial[Params]]]
"""(parameters, number of the generation, those of its trials that the journal has) -> the trials of all parameters."""
_NO_JOURNAL = (KeyError, TypeError, ValueError, AttributeError, IndexError, AssertionError, RuntimeError, OverflowError)


def from_now(stopped: Callable[[], bool]) -> Callable[[], bool]:
    """Return what says whether a stop is asked for that was not before: a study's stop does not end its evaluation."""
    return (lambda: False) if stopped() else stopped


def folder_beside(file: Path) -> Path:
    """Return the folder of the study whose result is one file. Raises `UserError` for a path without a name."""
    if not file.name:
        raise bad_value("out", str(file), "a file, not a folder")
    return file.with_name(f"{file.name}.study")


def exists(folder: Path) -> bool:
    """Whether a folder has a study."""
    return (folder / JOURNAL).is_file()


def looked(folder: Path) -> Look:
    """Return the last look that the study of a folder has taken at held-out episodes."""
    with closing(Journal(folder / JOURNAL)) as journal:
        kept = kept_looks(optuna.load_study(study_name=NAME, storage=JournalStorage(journal)), folder / JOURNAL)
    return Look(len(kept), len(kept), sum(each.candidates for each in kept))


def length(folder: Path, storage: str = "") -> Any:
    """Return how long the study of a folder was last told to go on, None where there is none, or none that says so."""
    if storage:
        try:
            return optuna.load_study(study_name=_stored(folder), storage=storage).user_attrs.get(_LENGTH)
        except (KeyError, SQLAlchemyError, ImportError, *_NO_JOURNAL):
            return None  # to open it says what is wrong
    if not exists(folder):
        return None
    with closing(Journal(folder / JOURNAL)) as journal:
        try:
            return optuna.load_study(study_name=NAME, storage=JournalStorage(journal)).user_attrs.get(_LENGTH)
        except _NO_JOURNAL:
            return None


def _stored(folder: Path) -> str:
    """Return the name in a database of a folder's study."""
    return folder.resolve().name


class Study:
    """The trials of a search; it goes on where `resume` is set.

    `settings` make a study another one, `inputs` are what it plays, by contents (`aaml.evaluation.identity.inputs`);
    the version of AAML is one of them in every study.
    `length` is how long it is to go on, a JSON-able value, which is kept for who goes on and does not say.
    The trials are in a journal in the folder, or in a database of Optuna's (`storage`, a URL; the study has the name
    of the folder there).

    Raises `UserError` where there is another study, one that is not to go on, or none to go on with.
    """

    def __init__(
        self,
        folder: Path,
        settings: Mapping[str, Any],
        inputs: Mapping[str, str],
        *,
        resume: bool = False,
        objectives: int = 1,
        storage: str = "",
        length: Any = None,
    ) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.folder, self.path, self._told = folder, folder / JOURNAL, 0
        if resume and not (self.path.is_file() or storage):
            raise bad_value("resume", str(self.path), "a study that was begun with this --out")
        self._journal = None if storage else Journal(self.path)
        self.optuna = self._opened(storage, objectives, resume=resume)
        played = {VERSION: program_sha256(), **inputs}
        begun = json.loads(json.dumps({"settings": settings, "inputs": played}))
        if self.known("begun", lambda: begun) != begun:
            self._refuse(**begun)
        if length is not None and self.optuna.user_attrs.get(_LENGTH) != length:
            self.optuna.set_user_attr(_LENGTH, length)

    def _opened(self, storage: str, objectives: int, *, resume: bool) -> optuna.Study:
        try:
            where = storage if self._journal is None else JournalStorage(self._journal)
            name = _stored(self.folder) if storage else NAME
            if name in optuna.get_all_study_names(where):  # to look at one writes nothing
                study = optuna.load_study(study_name=name, storage=where)
                if study.trials and not resume:
                    raise UserError(
                        f"out: {self.folder} holds a study already; go on with --resume, or choose another --out"
                    )
                if resume and len(study.directions) == objectives:
                    return study
                if resume:
                    raise ValueError(f"it has {len(study.directions)} objectives, not {objectives}")
                optuna.delete_study(study_name=name, storage=where)  # nothing was evaluated yet
            elif resume and storage:
                raise bad_value("storage", storage, f"with --resume a database that has the study {name}")
            return optuna.create_study(study_name=name, storage=where, directions=["minimize"] * objectives)
        except (SQLAlchemyError, ImportError, *_NO_JOURNAL) as error:
            said = f"storage: {storage}" if storage else f"out: {self.path}"
            raise UserError(f"{said} cannot be used: {' '.join(str(error).split())}") from error

    def _refuse(self, settings: Mapping[str, Any], inputs: Mapping[str, str]) -> None:
        """Raise `UserError` that names what the study was begun with besides these settings and inputs."""
        try:
            before, played = (dict(self.optuna.user_attrs["begun"][name]) for name in ("settings", "inputs"))
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"out: {self.path} cannot be used: what it was begun with is damaged") from error
        names = sorted({*settings, *before})
        if other := [name for name in names if before.get(name) != settings.get(name)]:
            raise UserError(f"resume: {self.path} belongs to a study with another {', '.join(other)}")
        same_inputs(inputs, played, self.path)

    def close(self) -> None:
        """Close the journal."""
        if self._journal is not None:
            self._journal.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def trials(self) -> list[FrozenTrial]:
        """All trials that are kept, as Optuna has them."""
        found: list[FrozenTrial] = self.optuna.get_trials(deepcopy=False)
        return found

    def known(self, name: str, make: Callable[[], Value]) -> Value:
        """Return a JSON-able value that the study has once and for all; made the first time."""
        if name not in self.optuna.user_attrs:
            self.optuna.set_user_attr(name, make())
        value: Value = self.optuna.user_attrs[name]
        return value

    def look(self, candidates: Sequence[object], seeds: Sequence[int] | None = None) -> Look:
        """Note that JSON-able candidates are about to be evaluated on held-out episodes (None: the usual seeds)."""
        told = [[each, seeds and list(seeds)] for each in candidates]
        return take_look(self.optuna, told, self.path)

    def optimize(
        self,
        sampler: Sampler[Params],
        evaluate: Evaluate[Params],
        generations: int,
        *,
        name: str,
        unit: str = "generation",
        stopped: Callable[[], bool] = lambda: False,
        after: Callable[[int], str] = lambda _number: "",
        progress: bool = True,
    ) -> int:
        """Ask, evaluate and tell for so many generations, or until `stopped`; return how many were told.

        `after` is called with the number of each generation that is new, and returns what the progress bar says.
        """
        with progress_bar(name, generations, unit, enabled=progress) as bar:
            for number in range(generations):
                asked = list(sampler.ask())
                there = self.trials[self._told : self._told + len(asked)]
                trials = self._thawed(sampler, asked, there)
                new = len(there) < len(asked)
                if new:
                    if stopped():
                        return number
                    try:
                        trials = list(map(_comparable, evaluate(asked, number, trials)))
                    except StoppedError:
                        return number
                    self._keep(sampler, trials[len(there) :])
                sampler.tell(trials)
                self._told += len(asked)
                bar.update()
                if new:
                    bar.set_postfix_str(after(number))
        return generations

    def _keep(self, sampler: Sampler[Params], trials: Sequence[Trial[Params]]) -> None:
        for trial in trials:
            try:
                self.optuna.add_trial(_frozen(trial, sampler.plain(trial.params), sampler.space))
            except SQLAlchemyError as error:
                raise UserError(f"storage: a trial cannot be kept: {' '.join(str(error).split())}") from error

    def _thawed(
        self, sampler: Sampler[Params], asked: Sequence[Params], there: Sequence[FrozenTrial]
    ) -> list[Trial[Params]]:
        """Return trials of the journal as the sampler asked for them. Raises `UserError` where they are others."""
        try:
            for params, frozen in zip(asked, there, strict=False):
                if frozen.user_attrs.get(_PARAMS, frozen.params) != sampler.plain(params):
                    raise UserError(
                        f"resume: {self.path}: trial {frozen.number} is none of this study: another program made it"
                    )
            return [_thawed(params, frozen) for params, frozen in zip(asked, there, strict=False)]
        except _NO_JOURNAL as error:
            raise UserError(f"resume: {self.path}: holds a trial that is none ({error!r})") from error


def _comparable(trial: Trial[Params]) -> Trial[Params]:
    """Return a trial in which what is no number is worse than every number."""
    if not any(map(math.isnan, trial.values)):
        return trial
    return replace(trial, values=tuple(math.inf if math.isnan(each) else each for each in trial.values))


def _thawed(params: Params, frozen: FrozenTrial) -> Trial[Params]:
    return Trial(
        params,
        tuple(map(float, frozen.values)),
        float(frozen.user_attrs[_VIOLATION]),
        frozen.state == TrialState.PRUNED,
        dict(frozen.intermediate_values),
        frozen.user_attrs[_ATTRS],
    )


def _frozen(trial: Trial[Any], plain: Any, space: Mapping[str, BaseDistribution]) -> FrozenTrial:
    return create_trial(
        state=TrialState.PRUNED if trial.pruned else TrialState.COMPLETE,
        values=list(trial.values),
        params=plain if space else {},
        distributions=dict(space),
        intermediate_values=dict(trial.intermediate),
        user_attrs={_VIOLATION: trial.violation, _ATTRS: dict(trial.attrs), **({} if space else {_PARAMS: plain})},
    )
