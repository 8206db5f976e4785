"""What the API server fills into a pod that a person wrote, as far as scheduling reads it.

Sources: `SetDefaults_Pod` of Kubernetes 1.37 (pkg/apis/core/v1/defaults.go), its admission plugin Priority.
"""

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from aaml.cluster.quantity import CPU, MEMORY
from aaml.errors import bad_value
from aaml.kube.objects import strict, wire
from aaml.kube.objects.requests import container_requests


class PriorityClasses:
    """Classes of priority, with the system's. `unknown`: the names of others that pods asked for."""

    def __init__(self, classes: Iterable[strict.PriorityClass] = ()) -> None:
        self.unknown: set[str] = set()
        system = [
            strict.PriorityClass(metadata=wire.Metadata(name=name), value=value)
            for name, value in strict.SYSTEM_PRIORITIES.items()
        ]
        self._by_name = {each.metadata.name: each for each in (*classes, *system)}
        defaults = [each for each in self._by_name.values() if each.global_default]
        self._default = min(defaults, key=lambda each: each.value, default=None)

    def applied(self, spec: wire.PodSpec) -> wire.PodSpec:
        """Return what a pod is like by the class that it names, or by the one that counts where none is named."""
        name = spec.priority_class_name
        found = self._by_name.get(name) if name else self._default
        if found is None and name:
            self.unknown |= {name}
            return spec
        value, policy = (0, None) if found is None else (found.value, found.preemption_policy)
        if spec.priority not in (None, value):
            raise bad_value(
                "spec.priority", spec.priority, f"none, or {value}, as {name or 'no'} priorityClassName has it"
            )
        if spec.preemption_policy not in (None, "", policy or "PreemptLowerPriority"):
            of_class = policy or "PreemptLowerPriority"
            raise bad_value(
                "spec.preemptionPolicy", spec.preemption_policy, f"none, or {of_class}, as its class has it"
            )
        if found is None:
            return spec
        return replace(spec, priority=found.value, preemption_policy=spec.preemption_policy or found.preemption_policy)

    def of_group(self, spec: wire.PodGroupSpec) -> wire.PodGroupSpec:
        """Return what a group is like by the class that it names, or by the one that counts where none is named."""
        name = spec.priority_class_name
        found = self._by_name.get(name) if name else self._default
        if found is None:
            self.unknown |= {name} if name else set()
            return spec
        return replace(
            spec, priority=found.value,
            preemption_policy=spec.preemption_policy or found.preemption_policy or "PreemptLowerPriority",
        )  # fmt: skip


def with_defaults(pod: wire.PodObject, classes: PriorityClasses) -> wire.PodObject:
    """Return a pod whose requests are its limits where it has none, and whose ports are the host's on its network.

    Raises `UserError` for an impossible quantity.
    """
    spec = classes.applied(pod.spec)
    filled = replace(
        pod,
        spec=replace(
            spec, containers=_filled(spec.containers, spec), init_containers=_filled(spec.init_containers, spec)
        ),
    )
    if spec.resources is None or not spec.resources.limits:
        return filled
    asked = {name: amount for name, amount in container_requests(filled).items() if name in (CPU, MEMORY)}
    requests = {**spec.resources.limits, **asked, **(spec.resources.requests or {})}
    return replace(filled, spec=replace(filled.spec, resources=replace(spec.resources, requests=requests)))


def _filled(containers: Sequence[wire.Container] | None, spec: wire.PodSpec) -> list[wire.Container]:
    return [
        replace(
            each,
            resources=each.resources and replace(each.resources, requests=_requests(each.resources)),
            ports=[
                replace(port, host_port=port.host_port or (port.container_port if spec.host_network else 0))
                for port in each.ports or ()
            ],
        )
        for each in containers or ()
    ]


def _requests(needs: wire.ResourceNeeds) -> wire.Quantities:
    return {**(needs.limits or {}), **(needs.requests or {})}
