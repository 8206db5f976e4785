"""Where the policy of a run comes from."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from aaml.evaluation.zoo import model_file

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from aaml.scheduling.ports import Policy
    from aaml.telemetry.writers import Scalar

Origin = Literal["built-in", "own", "model", "new"]
"""Ours by name, a person's file, a model file, or an agent that knows nothing yet."""


@dataclass(frozen=True)
class PolicySource:
    """How a policy is made and what is known of it beforehand.

    `origin` decides how its fallback works (`aaml.live.fallback`).
    """

    make: "Callable[[], Policy]"
    """Makes the policy, each time a new one; raises `UserError` when it cannot."""
    origin: Origin = "own"
    named: str = ""
    """What a person named: a policy, FILE.py:NAME, a model file or what stands for one; "" for what has no name."""
    parameters: "Mapping[str, Scalar]" = field(default_factory=dict)
    """Its settings on TensorBoard's page of hyperparameters; without any its name stands there."""

    @property
    def models(self) -> tuple[Path, ...]:
        """The model that the policy comes from, as it was named; empty for another policy."""
        return (Path(self.named),) if self.origin == "model" and self.named else ()

    @property
    def file(self) -> str:
        """The file that the policy comes from; "" for one of ours, and for a new agent."""
        if self.origin == "own":
            return self.named
        return "".join(str(model_file(path)) for path in self.models)
