"""Load: the fraction of a cluster that pods request on average, a number or a range from which episodes draw."""

from dataclasses import dataclass

import numpy as np

from aaml.errors import UserError, bad_value
from aaml.settings import Positive, take
from aaml.workload import table

_read_number = table.number(0.01)


@dataclass(frozen=True)
class LoadRange:
    """Loads from `low` to `high`, of which each episode has one, drawn uniformly. Raises `UserError` for none."""

    low: float
    high: float

    def __post_init__(self) -> None:
        take("load", self.low, Positive)
        if not self.low < self.high < float("inf"):
            raise bad_value("load", str(self), "a range from the lower to the higher load, such as 0.1..0.6")

    def __str__(self) -> str:
        """0.1..0.6."""
        return f"{self.low:g}..{self.high:g}"

    def draw(self, rng: np.random.Generator) -> float:
        """Draw the load of an episode."""
        return float(rng.uniform(self.low, self.high))


Load = float | LoadRange


def take_load(load: Load) -> None:
    """Raise `UserError` for a load that is no positive number and no range."""
    if not isinstance(load, LoadRange):
        take("load", load, Positive)


def read_load(text: str) -> Load:
    """Return the load in a text: 0.5, or 0.1..0.6. Raises `UserError` for other texts."""
    low, dots, high = text.partition("..")
    try:
        ends = [_read_number("load", end) for end in ((low, high) if dots else (low,))]
    except UserError:
        raise bad_value("load", text, "a number of at least 0.01, or a range such as 0.1..0.6") from None
    return LoadRange(*ends) if dots else ends[0]


def draw_load(load: Load, rng: np.random.Generator) -> float:
    """Return the load of an episode. Nothing is drawn where there is only one."""
    return load.draw(rng) if isinstance(load, LoadRange) else load
