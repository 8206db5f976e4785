"""The loop of every training: learn a round, now and then validate, keep the best, save all that a run goes on from.

After `validate_every` decisions the round is ended, the policy evaluated, the best kept and everything saved: a run
that was killed goes on from there to the same bits.
"""

import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, cast

from aaml.errors import StoppedError, UserError
from aaml.learning.config import NetworkAgent
from aaml.learning.graph import network_graph
from aaml.progress import progress_bar
from aaml.scheduling.ports import RunWriter
from aaml.training.collectors import collector
from aaml.training.group_learner import GroupLearner
from aaml.training.learner import Learner, Stop
from aaml.training.linear import LinearLearner
from aaml.training.qtable import QTableLearner
from aaml.training.rewards import RewardsLearner
from aaml.training.rollouts import EnvFactory
from aaml.training.runfolder import RunFolder
from aaml.training.settings import TrainConfig
from aaml.training.validation import Progress, Validation, write_summary

if TYPE_CHECKING:
    from aaml.learning.agent import NeuralAgent

_log = logging.getLogger(__name__)


@contextmanager
def make_learner(config: TrainConfig, factory: EnvFactory, writer: RunWriter) -> Iterator[Learner]:
    """Yield what learns in a training, with what it gathers experience by. Raises `UserError` where it cannot."""
    if not isinstance(config.agent, NetworkAgent):
        if config.agent.name == "qtable":
            yield QTableLearner(config, factory, writer)
        else:
            yield LinearLearner(config, factory, writer)
    elif config.resolved_method == "group":
        yield GroupLearner(config, factory, writer)
    else:
        with collector(config.env_config, config.actor, config.seed, config.envs, config.workers) as streams:
            yield RewardsLearner(config, factory, writer, streams)


def run_training(  # noqa: C901
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
    factory, started = EnvFactory(config.env_config), time.monotonic()
    end = config.last_step(until)
    now, name = Progress(), f"{config.agent.name} on {config.task}"

    def validate(*, counts: bool = True) -> None:
        result = {**learner.settle(), **validation(learner.policy, learner.evaluate)}
        if counts and now.update(result):
            learner.save(folder)
        for curve, value in result.items():
            folder.writer.scalar(curve, value, now.step)
        folder.show(validation.snapshot.chosen, validation.snapshot.lapse, now.step)
        bar.set_postfix(now.facts(result))
        folder.write_resume({"progress": asdict(now), "learner": learner.state()})

    with ExitStack() as stack:
        bar = stack.enter_context(
            progress_bar(f"{name}: evaluate {config.reference}", config.steps, "decision", enabled=progress)
        )
        learner = stack.enter_context(make_learner(config, factory, folder.writer))
        validation = Validation(factory, config.sizes, config.validation_episodes, config.reference)
        saved = folder.read_resume()
        if saved is None:
            if isinstance(config.agent, NetworkAgent):
                folder.graph(network_graph(cast("NeuralAgent", learner.policy).network))
            if config.imitates and isinstance(config.agent, NetworkAgent):
                bar.set_description(f"{name}: begin as {config.teacher_name}")
            validate(counts=learner.begin())
        else:
            now = _restored(learner, saved, folder)
            if until is None and now.step >= end:
                _log.warning(
                    "%s has learned from %d decisions already: --steps %d asks for no more", folder.path, now.step, end
                )
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
            bar.set_description(f"{name}: evaluate and save")
            validate()
    write_summary(folder.path, now, config.task, config.reference, time.monotonic() - started)
    return now


def _restored(learner: Learner, saved: Mapping[str, Any], folder: RunFolder) -> Progress:
    """Let the learner go on from what was saved, and return how far it had come."""
    try:
        learner.restore(saved["learner"])
        return Progress(**saved["progress"])
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise UserError(f"{folder.path}: cannot go on from resume.pt ({error}); train anew") from error
