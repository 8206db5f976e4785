"""What Kueue knows: flavors of nodes, ClusterQueues and cohorts with their quotas, and the workloads in the queues."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from aaml.cluster.objects import NO_AFFINITY, Affinity, Pod, Taint, Toleration
from aaml.errors import UserError, bad_value

How = Literal["required", "preferred", "unconstrained"]
FlavorResource = tuple[str, str]
"""A flavor and a resource: what a quota is of."""


@dataclass(frozen=True)
class TopologyRequest:
    """How the pods of a pod set are to be near each other.

    "required": in one domain of `level`, a label of nodes. "preferred": in as few domains as can be, of `level` or of
    levels above it. "unconstrained": wherever there is room.
    """

    how: How
    level: str = ""


@dataclass(frozen=True)
class PodSet:
    """Pods that are alike: `count` of them, each of which requests so much, with the rules for its nodes.

    `topology` None: topology plays no part, unless all flavors of the ClusterQueue have one.
    """

    count: int
    requests: Mapping[str, int]
    topology: TopologyRequest | None = None
    node_selector: Mapping[str, str] = field(default_factory=dict)
    affinity: Affinity = NO_AFFINITY
    tolerations: tuple[Toleration, ...] = ()
    name: str = "main"

    @classmethod
    def of(cls, pod: Pod, count: int, requests: Mapping[str, int], topology: TopologyRequest | None) -> "PodSet":
        """Return a set of so many pods like this one, each of which requests so much."""
        return cls(count, requests, topology, pod.node_selector, pod.affinity, pod.tolerations)

    def __post_init__(self) -> None:
        if self.count < 1:
            raise bad_value("count", self.count, "at least 1 pod")


@dataclass(frozen=True)
class Workload:
    """A job that waits to be admitted in a ClusterQueue, by `priority`, then by when it was made, then by `uid`."""

    name: str
    queue: str
    pod_sets: tuple[PodSet, ...]
    priority: int = 0
    created_s: float = 0.0
    uid: str = ""

    def __post_init__(self) -> None:
        if not self.pod_sets:
            raise bad_value("podSets", [], f"at least one of workload {self.name}")
        if not self.uid:
            object.__setattr__(self, "uid", self.name)


@dataclass(frozen=True)
class Flavor:
    """A ResourceFlavor: nodes with `node_labels`, and the levels of its Topology, from wide to narrow; () without."""

    name: str
    node_labels: Mapping[str, str] = field(default_factory=dict)
    levels: tuple[str, ...] = ()
    taints: tuple[Taint, ...] = ()
    tolerations: tuple[Toleration, ...] = ()


@dataclass(frozen=True)
class Quota:
    """How much of a resource in a flavor there is, may be borrowed from the cohort, and is lent; None: no limit."""

    nominal: int
    borrowing_limit: int | None = None
    lending_limit: int | None = None


@dataclass(frozen=True)
class ResourceGroup:
    """Resources that come from one flavor together: the first of `flavors` that fits."""

    resources: tuple[str, ...]
    flavors: tuple[str, ...]


@dataclass(frozen=True)
class Cohort:
    """ClusterQueues, and cohorts, that borrow from each other, with quotas of its own besides."""

    name: str
    parent: str = ""
    quotas: Mapping[FlavorResource, Quota] = field(default_factory=dict)


@dataclass(frozen=True)
class ClusterQueue:
    """A queue with quotas.

    `strategy` "BestEffortFIFO": workloads that cannot be admitted now are passed over; "StrictFIFO": the oldest holds
    all others up. `borrow_first`: borrowing in a flavor goes before the next flavor (`whenCanBorrow: MayStopSearch`).
    """

    name: str
    groups: tuple[ResourceGroup, ...]
    quotas: Mapping[FlavorResource, Quota]
    cohort: str = ""
    strategy: Literal["BestEffortFIFO", "StrictFIFO"] = "BestEffortFIFO"
    borrow_first: bool = True

    def __post_init__(self) -> None:
        if self.strategy not in ("BestEffortFIFO", "StrictFIFO"):
            raise bad_value("queueingStrategy", self.strategy, "one of BestEffortFIFO, StrictFIFO")
        named = [resource for group in self.groups for resource in group.resources]
        if twice := {resource for resource in named if named.count(resource) > 1}:
            raise bad_value("coveredResources", sorted(twice), f"each resource in one group of {self.name}")
        for (flavor, resource), quota in self.quotas.items():
            for name, limit in (("borrowingLimit", quota.borrowing_limit), ("lendingLimit", quota.lending_limit)):
                if limit is not None and not self.cohort:
                    raise bad_value(name, limit, f"none of {flavor}, {resource} in {self.name}, which has no cohort")

    def group_of(self, resource: str) -> ResourceGroup | None:
        """Return the resource group that covers a resource, None without one."""
        return next((group for group in self.groups if resource in group.resources), None)

    @property
    def flavors(self) -> frozenset[str]:
        """The names of its flavors."""
        return frozenset(flavor for group in self.groups for flavor in group.flavors)


def refuse(queue: str, asks_for: str) -> UserError:
    """Return what says in one line that something of Kueue is not played."""
    return UserError(f"queue {queue}: {asks_for} is not played; Kueue itself does it: `aaml cluster up --queue kueue`")
