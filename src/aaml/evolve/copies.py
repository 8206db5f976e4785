"""What came of distilling a network: formulas beside it, by size."""

from dataclasses import dataclass
from typing import Any

from aaml.evaluation.statistics import Interval, mean_interval, together
from aaml.evolve.front import shown
from aaml.policies.formulas.expression import parts, terms
from aaml.policies.formulas.text import parse
from aaml.study.looks import FIRST_LOOK, Look


@dataclass(frozen=True)
class Copy:
    """A formula beside the network: how often they choose alike on unseen states of the network, and what it is worth.

    `losses` are those of the metric on validation episodes, relative to the reference's. Of so many policies that are
    `compared` on these, later looks too, all intervals hold together at 95%.
    """

    text: str
    agreement: float
    losses: tuple[float, ...]
    compared: int = 1

    @property
    def interval(self) -> Interval:
        """Its mean loss on validation episodes, with its interval."""
        return mean_interval(self.losses, confidence=together(self.compared))

    def row(self, *, ratio: bool) -> dict[str, Any]:
        """Return what a table says of it."""
        expression = parse(self.text)
        return {
            "size": parts(expression), "terms": terms(expression), "agreement": f"{100.0 * self.agreement:.1f}%",
            "validation [95% interval]": shown(self.interval, ratio=ratio), "formula": self.text,
        }  # fmt: skip


@dataclass(frozen=True)
class Distilled:
    """What came of it: the network's own losses on validation episodes, and the front by size."""

    network: tuple[float, ...]
    front: list[Copy]
    look: Look = FIRST_LOOK

    @property
    def interval(self) -> Interval:
        """The network's mean loss, with an interval that holds together with those of the front."""
        return mean_interval(self.network, confidence=together(max((each.compared for each in self.front), default=1)))
