"""Training as a product: warm start from a teacher, reinforcement learning in many simulated clusters, best model kept.

A run folder holds config.json (settings, git revision, versions, seeds), metrics.jsonl, tensorboard/, model/ (the best
so far by validation) and resume.pt. A run that was killed goes on from its last validation, and with the same weights
to the last bit as if it had never been: see `aaml.experiment.rollouts`.
"""

import dataclasses
import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from tqdm import tqdm

from aaml.errors import UserError, bad_value
from aaml.experiment.rollouts import Actor, Arena, Collector, Setting, collector, demonstrate
from aaml.experiment.runfolder import RunFolder
from aaml.learning.config import AgentConfig, AgentKind, default_config
from aaml.sim.tasks import find_task

if TYPE_CHECKING:
    from aaml.learning.agent import LearnedAgent

VALIDATION_SEEDS = 1 << 30  # validation episodes have seeds from here on: apart from training's and from small ones
TEACHERS: Mapping[str, str] = {
    "balance": "least-variance",
    "compress": "most-allocated",
    "fragmentation": "fgd",
    "waiting": "best-fit",
    "seedc": "least-variance",
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
class TrainConfig:
    """A training run. `overrides` are fields of `AgentConfig`; empty strings and None take the task's own."""

    agent: AgentKind | Literal["qtable", "linear"] = "gnn"
    task: str = "balance"
    steps: int = 60_000
    seed: int = 0
    envs: int = 8
    workers: int = 1
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
    overrides: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        find_task(self.task)
        for name in ("envs", "workers", "chunk", "teacher_passes", "validate_every", "validation_episodes"):
            if getattr(self, name) < 1:
                raise bad_value(name, getattr(self, name), "a whole number of at least 1")
        for name in ("steps", "teacher_steps", "patience", "seed"):
            if getattr(self, name) < 0:
                raise bad_value(name, getattr(self, name), "a whole number of at least 0")
        _ = self.agent_config

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
    def setting(self) -> Setting:
        """What episodes are like."""
        task = find_task(self.task)
        return Setting(
            self.task, self.sizes, self.pods, self.trace, self.reward, task.lookahead, lifetimes=self.lifetimes
        )

    @property
    def agent_config(self) -> AgentConfig:
        """The agent's settings: its defaults, those for training, the overrides."""
        if self.agent in {"qtable", "linear"}:
            return AgentConfig()
        training: dict[str, Any] = dict(_VALUE_TRAINING if self.agent in {"dqn", "gnn"} else _POLICY_TRAINING)
        if self.agent in {"dqn", "gnn"}:
            low, high = training["min_epsi"], training["init_epsi"]
            training["epsi_decay"] = float((low / high) ** (2.0 / max(self.steps, 1)))
        known = {field.name for field in dataclasses.fields(AgentConfig)}
        for name in self.overrides:
            if name not in known:
                raise bad_value(f"setting of the {self.agent} agent", name, f"one of {', '.join(sorted(known))}")
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
        values = {**fields, "nodes": tuple(fields.get("nodes", ()))}
        return cls(**values)


@dataclass
class Progress:
    """Where a run is: decisions learned from, the best validation score and when it was reached."""

    step: int = 0
    best: float = float("inf")
    best_step: int = -1
    validations: int = 0
    since_best: int = 0


class Validation:
    """Judges an agent on fixed episodes, relative to the teacher: 1 is as good, below 1 is better."""

    def __init__(self, arena: Arena, sizes: Sequence[int], episodes: int, reference: str) -> None:
        self._arena = arena
        self._jobs = [(VALIDATION_SEEDS + index, size) for size in sizes for index in range(episodes)]
        self._task = arena.task
        self.reference = reference
        self._expected = self._values(arena.policy(reference))

    def __call__(self, agent: "LearnedAgent") -> dict[str, float]:
        """Return "score" (mean over sizes of the ratio to the reference, lower is better) and the mean metric."""
        learning, agent.learning = agent.learning, False
        values = self._values(agent)
        agent.learning = learning
        ratios = []
        for size, mine in values.items():
            theirs = float(np.mean(self._expected[size]))
            ratio = float(np.mean(mine)) / theirs if theirs else 1.0 + float(np.mean(mine))
            ratios.append(2.0 - ratio if self._task.higher_is_better else ratio)
        return {"score": float(np.mean(ratios)), "metric": float(np.mean(np.concatenate(list(values.values()))))}

    def _values(self, policy: Any) -> dict[int, np.ndarray]:
        values: dict[int, list[float]] = {}
        for seed, size in self._jobs:
            values.setdefault(size, []).append(self._arena.play(policy, seed, size)[self._task.metric])
        return {size: np.array(each) for size, each in values.items()}


class Trainer:
    """One training run in one folder."""

    def __init__(self, config: TrainConfig, folder: RunFolder, *, progress: bool = True) -> None:
        from aaml.learning.agent import make_agent, single_threaded

        single_threaded()
        self.config = config
        self.folder = folder
        self.arena = Arena(config.setting)
        self.agent = make_agent(
            config.network_kind, config.agent_config, lookahead=config.setting.lookahead, seed=config.seed
        )
        self.progress = Progress()
        self._bar = progress
        reference = config.teacher_name if config.teacher_name != "none" else "least-allocated"
        self.validation = Validation(self.arena, config.sizes, config.validation_episodes, reference)

    def run(self, stop: Callable[[], bool] = lambda: False) -> Progress:
        """Train until the steps are done, `stop()` is true or nothing improves; the folder then has the best model."""
        config, started = self.config, time.monotonic()
        actor = Actor(config.network_kind, config.agent_config, self._guide())
        with ExitStack() as stack:
            streams = stack.enter_context(collector(config.setting, actor, config.seed, config.envs, config.workers))
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
                for stream, step in streams.collect(self.agent.weights(), config.chunk):
                    self.agent.observe(step, stream)
                    self._record(self.agent.learn())
                    self.progress.step += 1
                bar.update(self.progress.step - before)
                if self.progress.step // config.validate_every > before // config.validate_every:
                    self._validate(streams, bar)
                    validated = self.progress.step
            if self.progress.step > validated:
                self._validate(streams, bar)
        self._finish(time.monotonic() - started)
        return self.progress

    def _guide(self) -> str:
        name = self.config.teacher_name
        return name if self.config.agent_config.use_heuristic and name != "none" else ""

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
        self._record(self.agent.flush())
        result = self.validation(self.agent)
        progress = self.progress
        progress.validations += 1
        progress.since_best += 1
        if result["score"] < progress.best:
            progress.best, progress.best_step, progress.since_best = result["score"], progress.step, 0
            self.agent.save(str(self.folder.models), self.folder.stem)
        self._record({f"Validation/{self.arena.task.metric}": result["metric"], "Validation/Score": result["score"]})
        bar.set_postfix(score=f"{result['score']:.3f}", best=f"{progress.best:.3f}")
        streams.cut()
        self.agent.cut()
        state = {"progress": dataclasses.asdict(progress), "agent": self.agent.state(), "streams": streams.state()}
        self.folder.write_resume(state)

    def _restore(self, saved: Mapping[str, Any], streams: Collector) -> None:
        try:
            self.progress = Progress(**saved["progress"])
            self.agent.restore(saved["agent"])
            streams.restore(saved["streams"])
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise UserError(f"{self.folder.path}: cannot go on from resume.pt ({error}); train anew") from error

    def _finish(self, seconds: float) -> None:
        summary = {
            **dataclasses.asdict(self.progress),
            "seconds": round(seconds, 1),
            "task": self.config.task,
            "reference": self.validation.reference,
        }
        (self.folder.path / "summary.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
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
