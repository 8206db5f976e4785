"""What a sweep chooses from: settings of a training and of its agent, each with a range or a list of values.

Written NAME=LOW..HIGH, NAME=LOW..HIGH:log or NAME=A,B,C; every value is checked by the settings it is for.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aaml.errors import bad_value
from aaml.experiment.settings import read_pairs, read_value, setting_types, with_settings
from aaml.experiment.train import TrainConfig

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

# Settings of a training that leave what its score is measured on and against alone. Those of the agent all do.
SEARCHED = ("agent", "envs", "chunk", "reward", "teacher_steps", "teacher_passes", "lifetimes")
_VALUE_SPACE = (
    "learning_rate=1e-4..5e-3:log", "hidden_layers=16,32,64", "gamma=0.0..0.95", "n_step=1..5",
    "batch_size=64,128,256", "update_frequency=8,16,32",
)  # fmt: skip
_POLICY_SPACE = (
    "actor_learning_rate=1e-4..3e-3:log", "critic_learning_rate=3e-4..5e-3:log", "hidden_layers=16,32,64",
    "gamma=0.0..0.95", "gae_lambda=0.8..1.0", "clip=0.1..0.3", "epochs=1..5",
)  # fmt: skip
DEFAULT_SPACES = {"dqn": _VALUE_SPACE, "gnn": _VALUE_SPACE, "acdqn": _POLICY_SPACE, "acgnn": _POLICY_SPACE}
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

    def distribution(self) -> "BaseDistribution":
        """Return Optuna's form of it."""
        from optuna.distributions import FloatDistribution, IntDistribution

        if isinstance(self.low, int) and isinstance(self.high, int):
            return IntDistribution(self.low, self.high, log=self.log)
        return FloatDistribution(self.low, self.high, log=self.log)

    def __contains__(self, value: Any) -> bool:
        return isinstance(value, int | float) and self.low <= value <= self.high

    def __str__(self) -> str:
        return f"{self.low}..{self.high}{':log' if self.log else ''}"


@dataclass(frozen=True)
class Choice:
    """One of some values."""

    values: tuple[Any, ...]

    @property
    def probes(self) -> tuple[Any, ...]:
        """The values to check: all."""
        return self.values

    def distribution(self) -> "BaseDistribution":
        """Return Optuna's form of it."""
        from optuna.distributions import CategoricalDistribution

        return CategoricalDistribution(self.values)

    def __contains__(self, value: Any) -> bool:
        return value in self.values

    def __str__(self) -> str:
        return ",".join(map(str, self.values))


Space = Mapping[str, Range | Choice]


def parse_space(texts: Sequence[str], base: TrainConfig) -> dict[str, Range | Choice]:
    """Read NAME=LOW..HIGH[:log] and NAME=A,B,C; without any, the usual space of the base's agent.

    Raises `UserError` for a setting that is not there or cannot be compared, and for values that it does not take.
    """
    known = setting_types(SEARCHED)
    space = {
        name: _domain(name, text, known[name])
        for name, text in read_pairs("space", texts or DEFAULT_SPACES[base.network_kind], known, _FORMS)
    }
    for name, domain in space.items():
        for value in domain.probes:
            probe = with_settings(base, {name: value})
            _ = probe.network_kind, probe.agent_config
    return space


def present_values(base: TrainConfig, space: Space) -> dict[str, Any]:
    """Return the values that the base's settings have now, as far as the space holds them."""
    agent = base.agent_config
    now = {name: getattr(base if name in SEARCHED else agent, name) for name in space}
    return {name: value for name, value in now.items() if value in space[name]}


def _domain(name: str, text: str, kind: Any) -> Range | Choice:
    ends, colon, scale = text.partition(":")
    low, dots, high = ends.partition("..")
    if not dots:
        values = tuple(read_value(f"space {name}", part, kind) for part in text.split(","))
        if len(values) < 2 or len(set(values)) < len(values):
            raise bad_value(f"space {name}", text, f"{_FORMS}, each once")
        return Choice(values)
    if kind not in {int, float} or (colon and scale != "log"):
        raise bad_value(f"space {name}", text, _FORMS if kind in {int, float} else "values such as A,B: no numbers")
    found = Range(read_value(f"space {name}", low, kind), read_value(f"space {name}", high, kind), bool(colon))
    if found.low >= found.high:
        raise bad_value(f"space {name}", text, "LOW..HIGH with LOW below HIGH")
    if found.log and found.low <= 0:
        raise bad_value(f"space {name}", text, "LOW above 0 for :log")
    return found
