"""What Karpenter is told by objects and flags: a NodePool with its class, and the environment of its process."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from aaml.cluster.objects import ARCH_LABEL, CAPACITY_TYPE_LABEL, OS_LABEL
from aaml.errors import UserError, bad_value
from aaml.karpenter.changes import SPEEDS
from aaml.sim.autoscaler.catalogue import CapacityType
from aaml.sim.autoscaler.settings import KarpenterSettings, NodeTimes

NAME = "default"
"""The NodePool's name, and its class'."""
_CONSTANTS = ("poll_s", "validation_s")


@dataclass(frozen=True)
class Pool:
    """A NodePool, under the names of the simulator's settings, so that both can be given the same.

    `speed`: how many times faster everything goes; the settings are those of a clock that is not. Karpenter takes whole
    seconds of `consolidate_after_s` and of the registration delay, after the division. `requirements` are further ones
    on instance types, as a NodePool has them: {"key": "node.kubernetes.io/instance-type", "operator": "In", "values":
    ["compute-4"]}. `limits`: how much there may be of a resource: {"cpu": "100"}.
    """

    settings: KarpenterSettings = field(default_factory=KarpenterSettings)
    registration_delay_s: float = NodeTimes().registration_delay_s
    capacity_types: Sequence[CapacityType] = ("on-demand",)
    arch: str = "amd64"
    os: str = "linux"
    requirements: Sequence[Mapping[str, Any]] = ()
    limits: Mapping[str, str] = field(default_factory=dict)
    speed: int = 1

    def __post_init__(self) -> None:
        if self.speed not in SPEEDS:
            raise bad_value("speed", self.speed, f"one of {', '.join(map(str, SPEEDS))}")
        for name in _CONSTANTS:
            said, constant = getattr(self.settings, name), getattr(KarpenterSettings(), name)
            if said != constant:
                raise bad_value(name, said, f"{constant:g}, which is a constant of the real Karpenter")
        self._whole_seconds("registration_delay_s", self.registration_delay_s)
        if self.settings.consolidate_after_s is not None:
            self._whole_seconds("consolidate_after_s", self.settings.consolidate_after_s)

    def manifests(self) -> list[dict[str, Any]]:
        """Return the class and the NodePool."""
        settings = self.settings
        after = settings.consolidate_after_s
        demands = {ARCH_LABEL: [self.arch], OS_LABEL: [self.os], CAPACITY_TYPE_LABEL: list(self.capacity_types)}
        requirements = [{"key": key, "operator": "In", "values": values} for key, values in demands.items()]
        pool = {
            "template": {"spec": {
                "requirements": [*requirements, *map(dict, self.requirements)],
                "nodeClassRef": {"name": NAME, "kind": "KWOKNodeClass", "group": "karpenter.kwok.sh"},
                "expireAfter": "Never",
            }},
            "disruption": {
                "consolidationPolicy": settings.consolidation_policy,
                "consolidateAfter": "Never" if after is None else self._whole_seconds("consolidate_after_s", after),
                "budgets": [{"nodes": budget} for budget in settings.budgets],
            },
        }  # fmt: skip
        if self.limits:
            pool["limits"] = dict(self.limits)
        delay = self._whole_seconds("registration_delay_s", self.registration_delay_s)
        return [
            {"apiVersion": "karpenter.kwok.sh/v1alpha1", "kind": "KWOKNodeClass", "metadata": {"name": NAME},
             "spec": {"nodeRegistrationDelay": delay}},
            {"apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": NAME}, "spec": pool},
        ]  # fmt: skip

    def environment(self) -> dict[str, str]:
        """Return the flags that it takes from the environment."""
        settings = self.settings
        spot = str(settings.spot_to_spot_consolidation).lower()
        return {
            "BATCH_IDLE_DURATION": f"{settings.batch_idle_duration_s / self.speed:g}s",
            "BATCH_MAX_DURATION": f"{settings.batch_max_duration_s / self.speed:g}s",
            "FEATURE_GATES": f"SpotToSpotConsolidation={spot}",
        }

    def _whole_seconds(self, name: str, seconds: float) -> str:
        whole, rest = divmod(seconds, self.speed)
        if rest:
            raise UserError(f"{name}: {seconds:g} is not accepted; expected a multiple of {self.speed} s")
        return f"{whole:.0f}s"
