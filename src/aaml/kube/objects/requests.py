"""A pod's effective request, as kube-scheduler counts it.

Containers add up; init containers run one after the other, so the largest counts, together with the sidecars started
before it; sidecars (init containers with `restartPolicy: Always`) stay and add up; pod-level resources replace the sum;
overhead comes on top. https://kubernetes.io/docs/concepts/workloads/pods/sidecar-containers/#resource-sharing-within-containers
"""

from collections.abc import Mapping
from fractions import Fraction
from functools import lru_cache
from math import ceil

from aaml.cluster.quantity import CPU, LARGEST, MEMORY, parse_quantity
from aaml.cluster.state import DEFAULT_CPU_MILLI, DEFAULT_MEMORY_BYTES
from aaml.errors import bad_value
from aaml.kube.objects import wire

Exact = int | Fraction
Amounts = dict[str, Exact]

_DEFAULTS: Mapping[str, Exact] = {CPU: DEFAULT_CPU_MILLI, MEMORY: DEFAULT_MEMORY_BYTES}


@lru_cache(maxsize=8192)
def exact(resource: str, quantity: str | float) -> Exact:
    """Return a quantity in milli-cores or the resource's base unit, not rounded: sums are rounded once, at the end."""
    value = parse_quantity(str(quantity), resource) * (1000 if resource == CPU else 1)
    if value < 0:
        raise bad_value(resource, quantity, "a quantity that is not negative")
    return int(value) if value.denominator == 1 else value


def _read(amounts: wire.Quantities) -> Amounts:
    return {name: exact(name, quantity) for name, quantity in (amounts or {}).items()}


def _add(into: Amounts, other: Mapping[str, Exact]) -> None:
    for name, value in other.items():
        into[name] = into.get(name, 0) + value


def _raise_to(into: Amounts, other: Mapping[str, Exact]) -> None:
    for name, value in other.items():
        into[name] = max(into.get(name, 0), value)


def _is_pod_level(resource: str) -> bool:
    return resource in {CPU, MEMORY} or resource.startswith("hugepages-")


def _pod_level(pod: wire.PodObject) -> Amounts:
    needs = pod.spec.resources
    return (
        {} if needs is None else {name: value for name, value in _read(needs.requests).items() if _is_pod_level(name)}
    )


def _statuses(*lists: list[wire.ContainerStatus] | None) -> dict[str, wire.ContainerStatus]:
    return {each.name: each for statuses in lists for each in statuses or () if each.resources is not None}


def _container(container: wire.Container, status: wire.ContainerStatus | None, *, infeasible: bool) -> Amounts:
    """One container's request; while it is resized in place the larger of what it wants and what it has counts."""
    wanted = _read(container.resources.requests) if container.resources is not None else {}
    if status is None or status.resources is None:
        return wanted
    allocated = _read(status.resources.requests)
    _raise_to(allocated, _read(status.allocated_resources))
    if not infeasible:
        _raise_to(allocated, wanted)
    return allocated


def _sum(pod: wire.PodObject, defaults: Mapping[str, Exact]) -> Amounts:
    status = pod.status
    known = _statuses(status.container_statuses, status.init_container_statuses)
    infeasible = bool(known) and any(
        each.type == "PodResizePending" and each.reason == "Infeasible" for each in status.conditions or ()
    )
    total: Amounts = {}
    for container in pod.spec.containers or ():
        _add(total, {**defaults, **_container(container, known.get(container.name), infeasible=infeasible)})
    sidecars: Amounts = {}
    peak: Amounts = {}
    for container in pod.spec.init_containers or ():
        is_sidecar = container.restart_policy == "Always"
        status_of = known.get(container.name) if is_sidecar else None
        needs = {**defaults, **_container(container, status_of, infeasible=infeasible)}
        if is_sidecar:
            _add(total, needs)
            _add(sidecars, needs)
            _raise_to(peak, sidecars)
        else:
            _add(needs, sidecars)
            _raise_to(peak, needs)
    _raise_to(total, peak)
    return total


def _finish(pod: wire.PodObject, total: Amounts) -> Amounts:
    total.update(_pod_level(pod))
    _add(total, _read(pod.spec.overhead))
    return total


def _whole(value: Exact) -> int:
    return min(ceil(value), LARGEST + 1)


def effective_requests(pod: wire.PodObject) -> dict[str, int]:
    """Return the request by resource, rounded up to whole units of `aaml.cluster.quantity.amount`.

    More than any node can offer is `LARGEST` + 1.
    """
    return {name: _whole(value) for name, value in _finish(pod, _sum(pod, {})).items()}


def container_requests(pod: wire.PodObject) -> dict[str, str]:
    """Return what its containers request in all, as quantities: without pod-level resources and overhead."""
    return {name: f"{_whole(value)}{'m' if name == CPU else ''}" for name, value in _sum(pod, {}).items()}


def nonzero_container_requests(pod: wire.PodObject) -> tuple[int, int] | None:
    """Return `nonzero_requests` as they were without pod-level resources, None when the pod has none.

    The score of NodeResourcesFit in kube-scheduler 1.37 takes a waiting pod's request from its containers only.
    """
    if not _pod_level(pod):
        return None
    total = _sum(pod, _DEFAULTS)
    _add(total, _read(pod.spec.overhead))
    return _whole(total.get(CPU, 0)), _whole(total.get(MEMORY, 0))


def nonzero_requests(pod: wire.PodObject) -> tuple[int, int]:
    """Return (cpu_milli, memory_bytes) as scores count them: every container that requests none counts with a default.

    With pod-level requests a default is only used for what nothing requests at all.
    """
    if _pod_level(pod):
        plain = _finish(pod, _sum(pod, {}))
        defaults = {name: value for name, value in _DEFAULTS.items() if name not in plain}
    else:
        defaults = dict(_DEFAULTS)
    total = _finish(pod, _sum(pod, defaults))
    return _whole(total.get(CPU, 0)), _whole(total.get(MEMORY, 0))
