"""What a workload on a cluster is made of: found and counted before it is deleted, by what made it."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import msgspec

from aaml.errors import UserError
from aaml.kube.objects import wire
from aaml.kube.submit import MANAGED_BY, MANAGER
from aaml.kube.transport import Transport

OURS = f"{MANAGED_BY}={MANAGER}"
"""The label of all that the workload simulator makes."""

# What a workload is made of, owners before what they own. Finalizers and namespaces are nobody's business here.
_KINDS = (
    "/apis/apps/v1/{}deployments",
    "/apis/apps/v1/{}statefulsets",
    "/apis/apps/v1/{}replicasets",
    "/apis/batch/v1/{}jobs",
    "/api/v1/{}replicationcontrollers",
    "/api/v1/{}pods",
)
_AGAIN_S = 2.0


@dataclass(frozen=True)
class WorkloadCounts:
    """How many objects of each kind are in each namespace: {"shop": {"deployments": 2, "pods": 7}}."""

    counts: Mapping[str, Mapping[str, int]]

    @property
    def pods(self) -> int:
        """How many pods it has."""
        return sum(kinds.get("pods", 0) for kinds in self.counts.values())

    @property
    def objects(self) -> int:
        """How many objects it has, pods included."""
        return sum(sum(kinds.values()) for kinds in self.counts.values())

    def __str__(self) -> str:
        """Return a line a namespace."""
        return "\n".join(
            f"  {namespace}: "
            + ", ".join(f"{count} {kind if count > 1 else kind[:-1]}" for kind, count in kinds.items())
            for namespace, kinds in sorted(self.counts.items())
        )


def is_system(namespace: str) -> bool:
    """Say whether a namespace is one of Kubernetes' own (kube-*)."""
    return namespace.startswith("kube-")


def workload(transport: Transport, namespaces: Collection[str] = (), label: str = "") -> WorkloadCounts:
    """Count the workload in `namespaces`, or in all but Kubernetes' own; with a `label` what carries it alone.

    Raises `UserError` for a namespace that is not there or is one of Kubernetes' own.
    """
    with transport.explained():
        there = {each.metadata.name for each in _listed(transport, "/api/v1/namespaces")}
        for name in namespaces:
            if name not in there or is_system(name):
                why = "is one of Kubernetes' own" if is_system(name) else "is not on the cluster"
                others = ", ".join(sorted(each for each in there if not is_system(each)))
                raise UserError(f"namespaces: {name!r} {why}; there are {others}")
        wanted = set(namespaces) or {name for name in there if not is_system(name)}
        counts: dict[str, dict[str, int]] = {}
        for kind in _KINDS:
            for found in _listed(transport, kind.format(""), label):
                namespace, name = found.metadata.namespace, kind.rpartition("}")[2]
                if namespace in wanted:
                    kinds = counts.setdefault(namespace, {})
                    kinds[name] = kinds.get(name, 0) + 1
    return WorkloadCounts(counts)


def delete(
    transport: Transport,
    namespaces: Collection[str],
    label: str,
    *,
    at_once: bool,
    timeout_s: float,
    wait: Callable[[float], object],
) -> None:
    """Delete the workload of `namespaces`, with a `label` what carries it alone, until there is none.

    `at_once` gives pods no time to end, which those that KWOK plays do not need. `wait(seconds)` is called between two
    looks. Raises `UserError` when some pods are left after `timeout_s`.
    """
    query = {"propagationPolicy": "Background", **({"labelSelector": label} if label else {})}
    if at_once:
        query["gracePeriodSeconds"] = "0"
    waited_s = 0.0
    with transport.explained():
        while True:
            for namespace in namespaces:
                for kind in _KINDS:
                    transport.request("DELETE", kind.format(f"namespaces/{namespace}/"), query=query)
            left = workload(transport, namespaces, label)
            if not left.objects:
                return
            if waited_s >= timeout_s:
                raise UserError(f"after {timeout_s:g} s there are left:\n{left}")
            pause_s = min(_AGAIN_S, 0.1 * 2**waited_s)
            wait(pause_s)
            waited_s += pause_s


def _listed(transport: Transport, path: str, label: str = "") -> list[wire.Named]:
    query = {"labelSelector": label} if label else None
    return msgspec.json.decode(transport.request("GET", path, query=query), type=wire.ListOf[wire.Named]).items or []
