"""A trial and who proposes it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from optuna.distributions import BaseDistribution

Params = TypeVar("Params")


@dataclass(frozen=True)
class Trial(Generic[Params]):
    """Parameters and what came of them.

    `values` are the objectives, lower is better; those of a pruned trial are of where it ended. `violation` is by how
    much limits are broken, 0 where all are kept. `intermediate` are values at the rungs that it reached.
    """

    params: Params
    values: tuple[float, ...]
    violation: float = 0.0
    pruned: bool = False
    intermediate: Mapping[int, float] = field(default_factory=dict)
    attrs: Mapping[str, Any] = field(default_factory=dict)


class Sampler(Protocol[Params]):
    """Proposes trials, a generation at a time. What it proposes depends on its seed and what it was told alone."""

    @property
    def space(self) -> Mapping[str, BaseDistribution]:
        """Optuna's form of what is chosen from, empty where parameters are none of Optuna's."""
        return {}

    def ask(self) -> Sequence[Params]:
        """Return the parameters of the next generation; none where there is nothing left to try."""
        ...

    def tell(self, trials: Sequence[Trial[Params]]) -> None:
        """Learn what came of them, in the order in which they were asked for."""
        ...

    def plain(self, params: Params) -> Any:
        """Return parameters as JSON-able values."""
        ...
