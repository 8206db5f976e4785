"""What a sweep is told, and what it chooses from: settings of a training and its agent, each with a range or values.

Written NAME=LOW..HIGH, NAME=LOW..HIGH:log or NAME=A,B,C; every value is checked by the settings it is for.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any

from msgspec import Meta

from aaml.errors import UserError, bad_value, did_you_mean
from aaml.learning.config import AGENTS, AgentConfig, Dqn
from aaml.settings import Count, Row, Settings, changed, plain, rows, take
from aaml.training.settings import TrainConfig

# Settings of a training that leave what its score is measured on and against alone. Those of agent and method all do.
SEARCHED = frozenset({"agent", "envs", "chunk", "reward", "teacher_steps", "teacher_passes", "lifetimes"})
_DQN = (
    "learning_rate=1e-4..5e-3:log", "hidden_size=16,32,64", "gamma=0.0..0.95", "n_step=1..5",
    "batch_size=64,128,256", "update_frequency=8,16,32",
)  # fmt: skip
_ACTOR_CRITIC = (
    "learning_rate=1e-4..3e-3:log", "critic_learning_rate=3e-4..5e-3:log", "hidden_size=16,32,64",
    "gamma=0.0..0.95", "gae_lambda=0.8..1.0", "clip_range=0.1..0.3", "n_epochs=1..5",
)  # fmt: skip
_GROUP = (
    "learning_rate=3e-4..3e-3:log", "sampled=0.03..1.0:log", "gamma=0.9,0.97,0.99,0.997", "group_size=8,16,32",
    "batch_size=256..4096:log", "n_epochs=1..8:log", "max_grad_norm=0.1..10.0:log", "hidden_size=16,32,64",
)  # fmt: skip
_DQN_GROUP = (*_GROUP, "n_step=0,10,30", "buffer_size=0,5000,50000")
_ACTOR_CRITIC_GROUP = (*_GROUP, "ent_coef=1e-4..1e-2:log", "clip_range=0.1..0.3")
_FORMS = "LOW..HIGH, LOW..HIGH:log or two or more values such as 16,32,64"


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, whole ones if both are; `log` spreads them evenly over magnitudes."""

    low: float
    high: float
    log: bool = False

    @property
    def probes(self) -> tuple[Any, ...]:
        """The values to check: what holds for the ends holds between them."""
        return self.low, self.high

    def __contains__(self, value: Any) -> bool:
        return isinstance(value, int | float) and self.low <= value <= self.high

    def __str__(self) -> str:
        return f"{self.low}..{self.high}{':log' if self.log else ''}"


@dataclass(frozen=True)
class Categorical:
    """One of some values."""

    values: tuple[Any, ...]

    @property
    def probes(self) -> tuple[Any, ...]:
        """The values to check: all."""
        return self.values

    def __contains__(self, value: Any) -> bool:
        return value in self.values

    def __str__(self) -> str:
        return ",".join(map(str, self.values))


Space = Mapping[str, Range | Categorical]


def usual_space(base: TrainConfig) -> tuple[str, ...]:
    """Return what is searched where nothing is said: what matters most."""
    dqn = isinstance(base.network, Dqn)
    if base.resolved_method == "group":
        return _DQN_GROUP if dqn else _ACTOR_CRITIC_GROUP
    return _DQN if dqn else _ACTOR_CRITIC


def parse_space(texts: Sequence[str], base: TrainConfig) -> dict[str, Range | Categorical]:
    """Read NAME=LOW..HIGH[:log] and NAME=A,B,C; without any, the usual space of the base.

    Raises `UserError` for a setting that one of the agents does not have or whose values cannot be compared, and for
    values that it does not take.
    """
    texts = texts or usual_space(base)
    agents = next((text.partition("=")[2].split(",") for text in texts if text.startswith("agent=")), [base.agent.name])
    bases = [changed(base, {"agent": take("space agent", name, AgentConfig)}) for name in agents]
    learners = ", ".join(each.network.name for each in bases)
    several = [{row.name for part in (each.agent, each.group, each.search) for row in rows(part)} for each in bases]
    searched = SEARCHED | set.intersection(*several)
    known = {row.name: row for row in rows(bases[0]) if row.name in searched}
    space: dict[str, Range | Categorical] = {}
    for text in texts:
        name, equals, domain = text.partition("=")
        if not equals or not domain:
            raise bad_value("space", text, f"NAME={_FORMS}, as in learning_rate=1e-4..1e-2:log")
        if name not in known:
            meant = did_you_mean(name, sorted(known))
            raise UserError(
                f"space: {name!r} cannot be searched for {learners}{f'{meant} Expected' if meant else '; expected'} "
                f"one of {', '.join(sorted(known))}"
            )
        if name in space:
            raise bad_value("space", text, f"each setting once, and {name} is there already")
        space[name] = _domain(known[name], domain)
    for agent, (name, domain_) in itertools.product(agents, space.items()):
        for value in domain_.probes:
            changed(base, {"agent": agent, name: value}).check_method()
    return space


def _domain(row: Row, text: str) -> Range | Categorical:
    field = f"space {row.name}"
    ends, colon, scale = text.partition(":")
    low, dots, high = ends.partition("..")
    if not dots:
        parts = [part.strip() for part in text.split(",")]
        if len(parts) < 2:
            raise bad_value(field, text, f"{_FORMS}{', as in 1e-4..1e-2:log' if row.is_number else ''}")
        values = tuple(part if row.named else take(field, part, row.kind, text=True) for part in parts)
        if len(set(values)) < len(values):
            raise bad_value(field, text, f"{_FORMS}, each once")
        return Categorical(values)
    if not row.is_number or (colon and scale != "log"):
        raise bad_value(field, text, _FORMS if row.is_number else "values such as A,B: no numbers")
    found = Range(take(field, low, row.kind, text=True), take(field, high, row.kind, text=True), bool(colon))
    if found.low >= found.high:
        raise bad_value(field, text, "LOW..HIGH with LOW below HIGH")
    if found.log and found.low <= 0:
        raise bad_value(field, text, "LOW above 0 for :log")
    return found


@dataclass(frozen=True)
class SweepConfig(Settings):
    """A study: the training that all trials begin from, what is chosen, and how trials are pruned."""

    training: TrainConfig = TrainConfig(agent=AGENTS["dqn"], steps=800_000)
    space: tuple[str, ...] = ()
    """what to choose, as NAME=LOW..HIGH, NAME=LOW..HIGH:log or NAME=A,B,C: the settings of the agent and of its method,
    agent, envs, reward, teacher_steps, teacher_passes or lifetimes; those that usually matter when none is given"""
    trials: Count = 20
    """trials of the study in all; a larger number continues a study"""
    batch: Count = 4
    """trials that are drawn, and may run, at once"""
    rungs: Count = 3
    """how often trials are compared, the last time at the end; 1: no pruning"""
    reduction: Annotated[int, Meta(ge=2)] = 2
    """the best 1/N of the trials at a rung continue, to N times the decisions"""

    def __post_init__(self) -> None:
        super().__post_init__()
        least = self.reduction ** (self.rungs - 1)
        if self.training.steps < least:
            raise bad_value("steps", self.training.steps, f"at least {least} for {self.rungs} rungs")
        if self.training.validate_every != TrainConfig.validate_every:
            raise bad_value("validate_every", self.training.validate_every, "none: trials are validated at their rungs")

    @cached_property
    def domains(self) -> Space:
        """What trials are drawn from, by setting. Raises `UserError` for what cannot be drawn."""
        return parse_space(self.space, self.base)

    @cached_property
    def base(self) -> TrainConfig:
        """What trials begin from: one process each, and all by one method.

        It is validated at every rung anyhow, so that pausing there changes nothing.
        """
        alone = replace(self.training, workers="1", validate_every=self.ladder[0])
        return replace(alone, method=alone.resolved_method)

    @property
    def whole_round(self) -> int:
        """The decisions, about, that a trial makes at least before it can be paused."""
        return self.base.round_steps if self.base.resolved_method == "group" else 1

    @property
    def ladder(self) -> tuple[int, ...]:
        """The decisions at which trials are compared; the last rung is the whole training."""
        first = self.training.steps // self.reduction ** (self.rungs - 1)
        return (*(first * self.reduction**rung for rung in range(self.rungs - 1)), self.training.steps)

    @property
    def present(self) -> dict[str, Any]:
        """The values that the training has now, as far as the space holds them."""
        now = plain(self.base.resolved)
        return {name: now[name] for name, domain in self.domains.items() if now[name] in domain}

    def training_of(self, params: Mapping[str, Any]) -> TrainConfig:
        """Return a trial's training."""
        return changed(self.base, params)

    def record(self) -> dict[str, Any]:
        """Return what makes a study the one it is, JSON-able; it may always have more trials."""
        study = {"batch": self.batch, "rungs": self.rungs, "reduction": self.reduction}
        space = {name: str(domain) for name, domain in self.domains.items()}
        return {**plain(self.base), **study, "space": space}
