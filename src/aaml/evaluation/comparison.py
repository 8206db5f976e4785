"""A comparison of policies for programs and notebooks: it prints as a table, and draws itself on request."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pandas as pd

from aaml.evaluation.ranking import Ranking, numbers
from aaml.evaluation.tables import html_section, text_section
from aaml.extras import lazily

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from aaml.evaluation import figures
else:  # matplotlib: only who draws waits for it
    figures = lazily("aaml.evaluation.figures")


@dataclass(frozen=True, slots=True, repr=False)
class Comparison:
    """Policies against a reference, on every task and size that they were run on.

    Intervals are 95% intervals over the seeds (see `aaml.evaluation.statistics`); differences are paired by seed, and
    below five seeds nothing is decided. Printed it is a table, in a notebook too.
    """

    rankings: tuple[Ranking, ...]

    def __iter__(self) -> Iterator[Ranking]:
        return iter(self.rankings)

    def __repr__(self) -> str:
        return "\n\n".join(map(text_section, self))

    def _repr_html_(self) -> str:
        return "\n".join(map(html_section, self))

    def frame(self) -> pd.DataFrame:
        """Return the numbers, a row a policy on a task at a size; those of the comparison are NaN for the reference."""
        return numbers(self)

    def to_json(self) -> str:
        """Return the rows of `frame` as JSON, null for what the reference has none of."""
        return str(self.frame().to_json(orient="records", indent=2, double_precision=15))

    def plot(self) -> "Figure":
        """Draw the interval of each policy, a panel a task and size."""
        return figures.interval_figure(*self)
