"""Training as a product: warm start from a teacher, reinforcement learning in many simulated clusters, best model kept.

A run folder holds config.json (settings, git revision, versions, seeds), metrics.jsonl, tensorboard/, model/ (the best
so far by validation) and resume.pt. A run that was killed goes on from its last validation, and with the same weights
to the last bit as if it had never been: see `aaml.experiment.rollouts`.
"""

import dataclasses
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from tqdm import tqdm

from aaml.errors import UserError, bad_value
from aaml.experiment.collectors import collector
from aaml.experiment.rollouts import Actor, Arena, Collector, Setting, demonstrate
from aaml.experiment.runfolder import RunFolder
from aaml.experiment.validation import SCORE, VALIDATION_SEEDS, Progress, Validation, write_summary
from aaml.experiment.workers import parse_workers
from aaml.learning.config import AgentConfig, AgentKind, default_config
from aaml.learning.qtable import QTableConfig
from aaml.sim.search import SearchConfig
from aaml.sim.tasks import find_task

TEACHERS: Mapping[str, str] = {
    "balance": "least-variance",
    "compress": "most-allocated",
    "fragmentation": "fgd",
    "waiting": "least-variance",
    "seedc": "least-variance",
    "seedc-compress": "most-allocated",
    "seed-a": "least-variance",
}
# The rewards of balance and compress say of each placement what it was worth: a small discount leaves less noise.
_VALUE_TRAINING = {
    "learning_rate": 5e-4, "replay_buffer_size": 20_000, "batch_size": 128, "update_frequency": 16,
    "target_update_frequency": 400, "init_epsi": 0.1, "min_epsi": 0.02, "gamma": 0.5,
}  # fmt: skip
_POLICY_TRAINING = {
    "actor_learning_rate": 5e-4, "critic_learning_rate": 1e-3, "update_steps": 1024, "epochs": 3, "batch_size": 256,
    "entropy_weight": 0.0, "gamma": 0.5, "gae_lambda": 0.9,
}  # fmt: skip


@dataclass(frozen=True)
class _NoSettings:
    """What the linear scorer can be told beside the training's own settings."""


_SETTINGS: Mapping[str, type] = {"qtable": QTableConfig, "linear": _NoSettings}  # of agents without networks
Method = Literal["rewards", "expert"]


@dataclass(frozen=True)
class TrainConfig:
    """A training run. `overrides` are fields of `AgentConfig`; empty strings and None take the task's own.

    `method` "expert" is expert iteration: `candidates`, `samples` and `horizon` are those of `SearchConfig`, `rollout`
    is the policy that goes on after a candidate ("": the teacher, "agent": the agent itself); every `validate_every`
    decisions of the expert, all of them so far are learned in `teacher_passes` passes.
    """

    agent: AgentKind | Literal["qtable", "linear"] = "gnn"
    task: str = "balance"
    steps: int = 60_000
    seed: int = 0
    envs: int = 8
    workers: str = "1"
    nodes: tuple[int, ...] = ()
    pods: int | None = None
    trace: str | None = None
    reward: str = ""
    teacher: str = ""
    teacher_steps: int = 6_000
    teacher_passes: int = 20
    chunk: int = 32
    validate_every: int = 8_192
    validation_episodes: int = 6
    patience: int = 0
    lifetimes: bool = False
    method: Method = "rewards"
    candidates: int = 3
    samples: int = 16
    horizon: int = 48
    rollout: str = ""
    overrides: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        find_task(self.task)
        parse_workers(self.workers)
        for name in ("envs", "chunk", "teacher_passes", "validate_every", "validation_episodes"):
            if getattr(self, name) < 1:
                raise bad_value(name, getattr(self, name), "a whole number of at least 1")
        for name in ("steps", "teacher_steps", "patience", "seed"):
            if getattr(self, name) < 0:
                raise bad_value(name, getattr(self, name), "a whole number of at least 0")
        if self.method not in get_args(Method):
            raise bad_value("method", self.method, f"one of {', '.join(get_args(Method))}")
        if self.method == "expert":
            _ = self.network_kind
        _ = self.agent_config, self.search

    @property
    def search(self) -> SearchConfig | None:
        """How the expert looks ahead, None without one."""
        search = SearchConfig(self.candidates, self.samples, self.horizon)
        return search if self.method == "expert" else None

    @property
    def actor(self) -> Actor:
        """Who acts in training: the agent, or the expert that searches from the agent's choices."""
        teacher = "" if self.teacher_name == "none" else self.teacher_name
        guide = teacher if self.agent_config.use_heuristic else ""
        rollout = "" if self.rollout == "agent" else self.rollout or teacher
        return Actor(self.network_kind, self.agent_config, guide, self.search, rollout)

    @property
    def network_kind(self) -> AgentKind:
        """The agent, when it is one of the four with networks. Raises `UserError` for the others."""
        if self.agent == "qtable" or self.agent == "linear":  # noqa: PLR1714  (narrows the type)
            raise bad_value("agent", self.agent, "dqn, gnn, acdqn or acgnn")
        return self.agent

    @property
    def sizes(self) -> tuple[int, ...]:
        """The cluster sizes that episodes are drawn from."""
        return self.nodes or (find_task(self.task).nodes,)

    @property
    def teacher_name(self) -> str:
        """The policy of the warm start (a name or a model file), "none" without one."""
        return self.teacher or TEACHERS.get(self.task, "none")

    @property
    def reference(self) -> str:
        """The policy that validation compares with: the teacher, or the task's usual one without."""
        return self.teacher_name if self.teacher_name != "none" else TEACHERS.get(self.task, "least-allocated")

    @property
    def setting(self) -> Setting:
        """What episodes are like."""
        task = find_task(self.task)
        return Setting(
            self.task, self.sizes, self.pods, self.trace, self.reward, task.lookahead, lifetimes=self.lifetimes,
            sorter="" if self.teacher_name == "none" else self.teacher_name,
        )  # fmt: skip

    @property
    def agent_config(self) -> AgentConfig:
        """The agent's settings: its defaults, those for training, the overrides. Raises `UserError` for others."""
        known = {field.name for field in dataclasses.fields(_SETTINGS.get(self.agent, AgentConfig))}
        for name in self.overrides:
            if name not in known:
                accepted = f"one of {', '.join(sorted(known))}" if known else "no setting: it has none"
                raise bad_value(f"setting of the {self.agent} agent", name, accepted)
        if self.agent in _SETTINGS:
            return AgentConfig()
        training: dict[str, Any] = dict(_VALUE_TRAINING if self.agent in {"dqn", "gnn"} else _POLICY_TRAINING)
        if self.agent in {"dqn", "gnn"}:
            low, high = training["min_epsi"], training["init_epsi"]
            training["epsi_decay"] = float((low / high) ** (2.0 / max(self.steps, 1)))
        return dataclasses.replace(default_config(self.network_kind), **{**training, **self.overrides})

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-able fields."""
        fields = dataclasses.asdict(self)
        return {**fields, "nodes": list(self.nodes), "overrides": dict(self.overrides)}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> "TrainConfig":
        """Read what `to_dict` wrote, or a person's file. Raises `UserError` for unknown settings."""
        known = [field.name for field in dataclasses.fields(cls)]
        for name in fields:
            if name not in known:
                raise bad_value("setting of a training", name, f"one of {', '.join(known)}")
        values = {**fields, "nodes": tuple(fields.get("nodes", ())), "workers": str(fields.get("workers", "1"))}
        return cls(**values)


class Trainer:
    """One training run in one folder."""

    def __init__(self, config: TrainConfig, folder: RunFolder, *, progress: bool = True) -> None:
        from aaml.learning.agent import make_agent, single_threaded
        from aaml.learning.imitation import Apprentice

        single_threaded()
        self.config = config
        self.folder = folder
        self.arena = Arena(config.setting)
        self.agent = make_agent(
            config.network_kind, config.agent_config, lookahead=config.setting.lookahead, seed=config.seed
        )
        self.agent.queue_sort = self.arena.queue_sort
        self.learner = self.agent if config.search is None else Apprentice(self.agent, config.teacher_passes)
        self.progress = Progress()
        self._bar = progress
        self.validation = Validation(self.arena, config.sizes, config.validation_episodes, config.reference)

    def run(self, stop: Callable[[], bool] = lambda: False) -> Progress:
        """Train until the steps are done, `stop()` is true or nothing improves; the folder then has the best model."""
        config, started = self.config, time.monotonic()
        # An expert thinks long about each decision: fewer at a time, so that a Ctrl-C is heard.
        chunk = config.chunk if config.search is None else 1
        with ExitStack() as stack:
            streams = stack.enter_context(
                collector(config.setting, config.actor, config.seed, config.envs, config.workers)
            )
            bar = stack.enter_context(
                tqdm(total=config.steps, desc=f"train {config.agent} on {config.task}", disable=not self._bar)
            )
            saved = self.folder.read_resume()
            if saved is not None:
                self._restore(saved, streams)
            else:
                self._warm_start()
                self._validate(streams, bar)
            validated = self.progress.step
            bar.update(validated - bar.n)
            while self.progress.step < config.steps and not self._settled() and not stop():
                before = self.progress.step
                for stream, step in streams.collect(self.agent.weights(), chunk):
                    self.learner.observe(step, stream)
                    self._record(self.learner.learn())
                    self.progress.step += 1
                bar.update(self.progress.step - before)
                if self.progress.step // config.validate_every > before // config.validate_every:
                    self._validate(streams, bar)
                    validated = self.progress.step
            if self.progress.step > validated:
                self._validate(streams, bar)
        self._finish(time.monotonic() - started)
        return self.progress

    def _settled(self) -> bool:
        return 0 < self.config.patience <= self.progress.since_best

    def _warm_start(self) -> None:
        from aaml.learning.imitation import agreement, imitate

        config = self.config
        if config.teacher_name == "none" or not config.teacher_steps:
            return
        pieces = demonstrate(self.arena, config.teacher_name, config.seed, config.teacher_steps)
        if not pieces:
            raise bad_value("teacher_steps", config.teacher_steps, "enough decisions for an episode, or 0")
        loss = imitate(self.agent, pieces, config.teacher_passes)
        shown = [step for piece in pieces for step in piece][-500:]
        facts = {"teacher": config.teacher_name, "loss": loss, "agreement": agreement(self.agent, shown)}
        self.folder.recorder.event("warm start", facts)

    def _record(self, scalars: Mapping[str, float]) -> None:
        for name, value in scalars.items():
            self.folder.recorder.scalar(name, value, self.progress.step)

    def _validate(self, streams: Collector, bar: "tqdm[Any]") -> None:
        """Judge the agent, keep it if it is the best so far, and save all that the run goes on from."""
        self._record(self.learner.flush())
        result = self.validation(self.agent)
        progress = self.progress
        if progress.judged(result):
            self.agent.save(str(self.folder.models), self.folder.stem)
        self._record(result)
        bar.set_postfix(score=f"{result[SCORE]:.3f}", best=f"{progress.best:.3f}")
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
        from aaml.scheduling.loop import SchedulerLoop

        SchedulerLoop(self.arena.cycle(cluster), agent, learn=False).run()
        return picture(cluster)


def open_run(config: TrainConfig, path: Path, *, resume: bool) -> tuple[TrainConfig, RunFolder]:
    """Open a run folder: a new one, or with `resume` one that is there, whose settings count but for `steps`.

    Raises `UserError` when the folder holds a run already and `resume` is not set.
    """
    known = RunFolder.read_config(path)
    if known is None:
        arena = Arena(config.setting)  # what cannot be made is told before there is a folder
        arena.reward()
        for spec in {config.reference, config.rollout} - {"", "agent"}:
            arena.policy(spec)
        stem = f"{config.agent}_{config.task}_s{config.seed}"
        return config, RunFolder.create(path, stem, {"training": config.to_dict()}, _hyperparameters(config))
    if not resume:
        raise UserError(f"out: {path} holds a run already; go on with --resume, or choose another folder")
    stored = TrainConfig.from_dict(known["training"])
    stored = dataclasses.replace(stored, steps=max(config.steps, stored.steps), workers=config.workers)
    return stored, RunFolder.open(path)


def _hyperparameters(config: TrainConfig) -> dict[str, bool | int | float | str]:
    plain = {name: value for name, value in config.to_dict().items() if isinstance(value, bool | int | float | str)}
    return plain | {f"agent.{name}": value for name, value in dataclasses.asdict(config.agent_config).items()}


__all__ = ["Progress", "TrainConfig", "Trainer", "Validation", "open_run"]
