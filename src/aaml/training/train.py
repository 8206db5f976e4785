"""Training as a product: warm start from a teacher, reinforcement learning in many simulated clusters, best model kept.

A run folder holds config.json (settings, git revision, versions, seeds), metrics.jsonl, tensorboard/, model/ (the best
so far by validation) and resume.pt. A run that was killed goes on from its last validation, and with the same weights
to the last bit as if it had never been: see `aaml.training.rollouts`.
"""

import dataclasses
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from aaml.errors import UserError, bad_value
from aaml.learning.config import AGENTS, NetworkAgent
from aaml.progress import progress_bar
from aaml.scheduling.play import play
from aaml.settings import plain
from aaml.training.collectors import collector
from aaml.training.rollouts import Arena, Collector, demonstrate
from aaml.training.runfolder import RunFolder
from aaml.training.settings import TrainConfig
from aaml.training.validation import VALIDATION_SEEDS, Progress, Validation, write_summary

if TYPE_CHECKING:
    from tqdm import tqdm


class Trainer:
    """One training run in one folder."""

    def __init__(self, config: TrainConfig, folder: RunFolder, *, progress: bool = True) -> None:
        from aaml.learning.agent import first_agent, single_threaded
        from aaml.learning.imitation import Apprentice

        single_threaded()
        self.config = config
        self.folder = folder
        self.arena = Arena(config.setting)
        self.agent = first_agent(config.network, config.begins_with, sees=self.arena.sees, seed=config.seed)
        self.agent.queue_sort = self.arena.queue_sort
        self.learner = self.agent if config.expert is None else Apprentice(self.agent, config.teacher_passes)
        self.progress = Progress()
        self._bar = progress
        self.validation = Validation(self.arena, config.sizes, config.validation_episodes, config.reference)

    def run(self, stop: Callable[[], bool] = lambda: False, *, until: int | None = None) -> Progress:
        """Train until the steps are done, or `until` so many, `stop()` is true or nothing improves.

        The folder then has the best model.
        """
        from aaml.learning.graph import network_graph

        config, started = self.config, time.monotonic()
        end = config.last_step(until)
        # An expert thinks long about each decision: fewer at a time, so that a Ctrl-C is heard.
        chunk = config.chunk if config.expert is None else 1
        with ExitStack() as stack:
            streams = stack.enter_context(
                collector(config.setting, config.actor, config.seed, config.envs, config.workers)
            )
            name, teacher = f"{config.agent.name} on {config.task}", config.teacher_name
            first = f"{name}: imitate {teacher}" if config.imitates else f"{name}: train"
            bar = stack.enter_context(progress_bar(first, config.steps, "decision", enabled=self._bar))
            saved = self.folder.read_resume()
            if saved is not None:
                self._restore(saved, streams)
            else:
                self.folder.graph(network_graph(self.agent.scorer))
                self._warm_start()
                self._validate(streams, bar)
            validated = self.progress.step
            bar.set_description(f"{name}: train")
            bar.update(validated - bar.n)
            while self.progress.step < end and not self._settled() and not stop():
                before = self.progress.step
                for stream, step in streams.collect(self.agent.weights(), chunk):
                    self.learner.observe(step, stream)
                    self._record(self.learner.learn())
                    self.progress.step += 1
                bar.total = max(config.steps, self.progress.step)  # a chunk is played to its end
                bar.update(self.progress.step - before)
                if self.progress.step // config.validate_every > before // config.validate_every:
                    self._validate(streams, bar)
                    validated = self.progress.step
            bar.set_description(f"{name}: judge and save")
            if self.progress.step > validated:
                self._validate(streams, bar)
        self._finish(time.monotonic() - started)
        return self.progress

    def _settled(self) -> bool:
        return 0 < self.config.patience <= self.progress.since_best

    def _warm_start(self) -> None:
        from aaml.learning.imitation import agreement, imitate

        config = self.config
        if not config.imitates:
            return
        pieces = demonstrate(self.arena, config.teacher_name, config.seed, config.teacher_steps)
        if not pieces:
            raise bad_value("teacher_steps", config.teacher_steps, "enough decisions for an episode, or 0")
        loss = imitate(self.agent, pieces, config.teacher_passes)
        shown = [step for piece in pieces for step in piece][-500:]
        facts = {"teacher": config.teacher_name, "loss": loss, "agreement": agreement(self.agent, shown)}
        self.folder.writer.event("warm start", facts)

    def _record(self, scalars: Mapping[str, float]) -> None:
        for name, value in scalars.items():
            self.folder.writer.scalar(name, value, self.progress.step)

    def _validate(self, streams: Collector, bar: "tqdm[Any]") -> None:
        """Judge the agent, keep it if it is the best so far, and save all that the run goes on from."""
        self._record(self.learner.flush())
        result = self.validation(self.agent)
        progress = self.progress
        if progress.judged(result):
            self.agent.save(str(self.folder.models), self.folder.stem)
        self._record(result)
        self.folder.show(self.validation.glimpse.rows, self.validation.glimpse.lapse, progress.step)
        bar.set_postfix(progress.facts(result))
        streams.cut()
        self.learner.cut()
        state = {"progress": dataclasses.asdict(progress), "agent": self.learner.state(), "streams": streams.state()}
        self.folder.write_resume(state)

    def _restore(self, saved: Mapping[str, Any], streams: Collector) -> None:
        try:
            self.progress = Progress(**saved["progress"])
            self.learner.restore(saved["agent"])
            streams.restore(saved["streams"])
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise UserError(f"{self.folder.path}: cannot go on from resume.pt ({error}); train anew") from error

    def _finish(self, seconds: float) -> None:
        write_summary(self.folder.path, self.progress, self.config.task, self.config.reference, seconds)
        self.folder.picture(self._last_placement(), self.progress.step)

    def _last_placement(self) -> np.ndarray:
        """Return the best agent's placement of one validation episode as a picture, uint8 [H, W, 3]."""
        from aaml.learning.agent import load_agent
        from aaml.sim.render import picture

        agent = load_agent(self.folder.model_path(), learn=False)
        cluster = self.arena.build(VALIDATION_SEEDS, self.config.sizes[0])
        play(cluster, agent)
        return picture(cluster)


def open_run(config: TrainConfig, path: Path, *, resume: bool, whole: bool = False) -> tuple[TrainConfig, RunFolder]:
    """Open a run folder: a new one, or with `resume` one that is there, whose settings count but for `steps`.

    Raises `UserError` when the folder holds a run already and `resume` is not set, or holds one with other settings
    than those of `config` that were changed from their defaults, or with `whole` than any of them.
    """
    from aaml.learning.agent import first_agent

    if path == Path():
        raise bad_value("out", "", "a folder of the run's own")
    known = RunFolder.read_config(path)
    if known is None:
        if config.steps == 0 and not isinstance(config.agent, NetworkAgent):
            raise bad_value("steps", 0, f"at least 1: {config.agent.name} begins with nothing")
        arena = Arena(config.setting)  # what cannot be made is told before there is a folder
        arena.reward()
        if config.start is not None:
            first_agent(config.network, config.begins_with, sees=arena.sees, seed=config.seed)
        for spec in {config.reference, config.rollout} - {"", "agent"}:
            arena.policy(spec)
        stem = f"{config.agent.name}_{config.label}_s{config.seed}"
        config = config.settled  # what it is made of stays, whatever other defaults come later
        return config, RunFolder.create(path, stem, {"training": plain(config)}, _hyperparameters(config))
    if not resume:
        raise UserError(f"out: {path} holds a run already; go on with --resume, or choose another folder")
    stored = TrainConfig.read(known["training"])
    _check_same(config, stored, path, whole=whole)
    stored = dataclasses.replace(stored, steps=max(config.steps, stored.steps), workers=config.workers)
    return stored, RunFolder.open(path)


def _check_same(config: TrainConfig, stored: TrainConfig, path: Path, *, whole: bool) -> None:
    """Raise `UserError` for a setting that is not that of the run; see `open_run`."""
    free = {"steps", "workers"}
    usual = plain(TrainConfig(agent=AGENTS[config.agent.name])) | {"agent": TrainConfig.agent.name}
    told, known = plain(config.settled if whole else config), plain(stored.settled)
    for name, value in told.items():
        counts = name not in free and (whole or value != usual.get(name))
        if counts and known.get(name) != value:
            raise UserError(
                f"{name}: {value!r} is not what the run in {path} was begun with, {known.get(name)!r}; "
                "choose another folder"
            )


_ALWAYS_SHOWN = {
    "agent", "task", "nodes", "seed", "steps", "agent.learning_rate", "agent.hidden_layers",
}  # fmt: skip


def _hyperparameters(config: TrainConfig) -> dict[str, bool | int | float | str]:
    """Return what tells runs apart: the settings that matter most, and those that were changed."""
    usual = _flat(TrainConfig(agent=AGENTS[config.agent.name], steps=config.steps, method=config.method))
    told = {name: value for name, value in _flat(config).items() if name in _ALWAYS_SHOWN or usual.get(name) != value}
    return {name: value for name, value in told.items() if isinstance(value, bool | int | float | str)}


def _flat(config: TrainConfig) -> dict[str, Any]:
    agent = plain(config.learner)
    training = {name: value for name, value in plain(config).items() if name not in agent}
    given = {**training, **{f"agent.{name}": value for name, value in agent.items()}}
    lists = {name: ", ".join(map(str, value)) for name, value in given.items() if isinstance(value, list)}
    return {**given, **lists, "nodes": ", ".join(map(str, config.sizes))}
