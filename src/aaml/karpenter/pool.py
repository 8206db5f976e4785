"""Karpenter's configuration: a NodePool with its class, and the environment of its process."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from aaml.errors import UserError, bad_value
from aaml.karpenter.changes import SPEEDS
from aaml.nodes.nodepool import document, load_nodepool, read_nodepool
from aaml.nodes.settings import KarpenterSettings, NodeTimes

NAME = "default"
"""The node class's name."""
_CLASS = {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": NAME}
_CONSTANTS = ("poll_s", "validation_s")


@dataclass(frozen=True)
class Pool:
    """A NodePool, by the simulator's settings, so that both can be given the same.

    `base` is a NodePool of your own (`karpenter.sh/v1`): what the settings do not say is taken from it, its limits and
    requirements too, but for its class, which is KWOK's. `speed`: how many times faster everything goes; the settings
    are those of a clock that is not faster. Karpenter takes whole seconds of `consolidate_after_s` and of the
    registration delay, after the division.
    """

    settings: KarpenterSettings = field(default_factory=KarpenterSettings)
    base: Mapping[str, Any] | None = None
    registration_delay_s: float = NodeTimes().registration_delay_s
    speed: int = 1

    def __post_init__(self) -> None:
        if self.speed not in SPEEDS:
            raise bad_value("speed", self.speed, f"one of {', '.join(map(str, SPEEDS))}")
        for name in _CONSTANTS:
            value, constant = getattr(self.settings, name), getattr(KarpenterSettings(), name)
            if value != constant:
                raise bad_value(name, value, f"{constant:g}, which is a constant of the real Karpenter")
        for name, seconds in (
            ("registration_delay_s", self.registration_delay_s),
            ("consolidate_after_s", self.settings.consolidate_after_s),
        ):
            if seconds is not None and seconds % self.speed:
                raise UserError(f"{name}: {seconds:g} is not accepted; expected a multiple of {self.speed} s")

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a NodePool of a YAML file, for instance of `aaml search bill`. Raises `UserError` for one without."""
        return cls(read_nodepool(path), load_nodepool(path))

    def node_class(self) -> dict[str, Any]:
        """Return the class: how long nodes take to join the cluster."""
        delay = f"{self.registration_delay_s / self.speed:.0f}s"
        kind = {"apiVersion": f"{_CLASS['group']}/v1alpha1", "kind": _CLASS["kind"], "metadata": {"name": NAME}}
        return {**kind, "spec": {"nodeRegistrationDelay": delay}}

    def node_pool(self) -> dict[str, Any]:
        """Return the NodePool."""
        after = self.settings.consolidate_after_s
        settings = replace(self.settings, consolidate_after_s=None if after is None else after / self.speed)
        found = document(settings, self.base)
        found["spec"]["template"]["spec"]["nodeClassRef"] = _CLASS
        return found

    def environment(self) -> dict[str, str]:
        """Return the flags that it takes from the environment."""
        settings = self.settings
        spot = str(settings.spot_to_spot_consolidation).lower()
        return {
            "BATCH_IDLE_DURATION": f"{settings.batch_idle_duration_s / self.speed:g}s",
            "BATCH_MAX_DURATION": f"{settings.batch_max_duration_s / self.speed:g}s",
            "FEATURE_GATES": f"SpotToSpotConsolidation={spot}",
        }
