"""Training in rounds (an episode, a generation, episodes of many copies): the loop, and what learns in it.

After `validate_every` decisions the round is ended, the policy judged, the best kept and everything saved: a run that
was killed goes on from there to the same result.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np

from aaml.errors import UserError
from aaml.learning.config import NetworkAgent
from aaml.progress import progress_bar
from aaml.scheduling.ports import Policy, RunWriter
from aaml.training.rollouts import TRAINING_SEEDS, Arena
from aaml.training.runfolder import RunFolder
from aaml.training.settings import TrainConfig
from aaml.training.validation import Glimpse, Progress, Validation, write_summary

if TYPE_CHECKING:
    from aaml.learning.agent import LearnedAgent

Stop = Callable[[], bool]


class StoppedError(Exception):
    """A round was stopped before its end and is to be forgotten."""


class Learner(Protocol):
    """What learns in rounds."""

    @property
    def policy(self) -> Policy:
        """What was learned so far."""
        ...

    def begin(self) -> bool:
        """Do what comes before the first round; returns whether that left a model to keep."""
        ...

    def round(self, step: int, stop: Stop) -> int:
        """Learn for a while from decision number `step` on; returns the decisions. Raises `StoppedError`."""
        ...

    def judge(self, seeds: Sequence[int], nodes: int, glimpse: Glimpse | None) -> Sequence[Mapping[str, float]]:
        """Return the metrics of episodes that the policy plays, in the order of their seeds."""
        ...

    def save(self, folder: RunFolder) -> Path:
        """Write the model and return its path."""
        ...

    def state(self) -> dict[str, Any]:
        """Return what learning goes on from, as plain values."""
        ...

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned."""
        ...


def make_learner(config: TrainConfig, arena: Arena, writer: RunWriter) -> Learner:
    """Return what learns in rounds."""
    if config.agent.name == "qtable":
        from aaml.training.qtable import QTableLearner

        return QTableLearner(config, arena, writer)
    if config.agent.name == "linear":
        from aaml.training.linear import LinearLearner

        return LinearLearner(config, arena, writer)
    from aaml.training.copies import CopiesLearner

    return CopiesLearner(config, arena, writer)


def draw_episode(rng: np.random.Generator, sizes: Sequence[int]) -> tuple[int, int]:
    """Return (seed, number of nodes)."""
    return TRAINING_SEEDS + int(rng.integers(1 << 30)), sizes[int(rng.integers(len(sizes)))]


def train_in_rounds(
    config: TrainConfig,
    folder: RunFolder,
    stop: Stop = lambda: False,
    *,
    until: int | None = None,
    progress: bool = True,
) -> Progress:
    """Train until the steps are done, or `until` so many, `stop()` is true or nothing improves.

    The folder then has the best model. `until` changes nothing of how the training goes on from there.
    """
    arena, started = Arena(config.setting), time.monotonic()
    end = config.last_step(until)
    now, name = Progress(), f"{config.agent.name} on {config.task}"

    def validate(*, counts: bool = True) -> None:
        result = validation(learner.policy, learner.judge)
        if counts and now.judged(result):
            learner.save(folder)
        for name, value in result.items():
            folder.writer.scalar(name, value, now.step)
        folder.show(validation.glimpse.rows, validation.glimpse.lapse, now.step)
        bar.set_postfix(now.facts(result))
        folder.write_resume({"progress": asdict(now), "learner": learner.state()})

    with progress_bar(f"{name}: judge {config.reference}", config.steps, "decision", enabled=progress) as bar:
        validation = Validation(arena, config.sizes, config.validation_episodes, config.reference)
        learner = make_learner(config, arena, folder.writer)
        saved = folder.read_resume()
        if saved is None:
            if isinstance(config.agent, NetworkAgent):
                from aaml.learning.graph import network_graph

                folder.graph(network_graph(cast("LearnedAgent", learner.policy).scorer))
            if config.imitates and isinstance(config.agent, NetworkAgent):
                bar.set_description(f"{name}: begin as {config.teacher_name}")
            validate(counts=learner.begin())
        else:
            try:
                now = Progress(**saved["progress"])
                learner.restore(saved["learner"])
            except (KeyError, TypeError, ValueError) as error:
                raise UserError(f"{folder.path}: cannot go on from resume.pt ({error}); train anew") from error
        validated = now.step
        bar.set_description(f"{name}: train")
        bar.update(now.step)
        while now.step < end and not 0 < config.patience <= now.since_best and not stop():
            try:
                made = learner.round(now.step, stop)
            except StoppedError:
                break
            now.step += made
            bar.total = max(config.steps, now.step)  # a round is played to its end
            bar.update(made)
            if now.step // config.validate_every > validated // config.validate_every:
                validate()
                validated = now.step
        if now.step > validated:
            bar.set_description(f"{name}: judge and save")
            validate()
    write_summary(folder.path, now, config.task, config.reference, time.monotonic() - started)
    return now
