"""The seam between a cluster and its autoscaler: what that sees, and what it can order.

An `Autoscaler` knows neither the simulator nor Kubernetes. It is shown a moment (`Observed`), gives orders, and says
when it wants to be asked again. So it can be driven from recorded states, and a learned one can stand in its place.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt

from aaml.cluster.kernels import interpreted
from aaml.cluster.objects import HOSTNAME_LABEL, Pod, PodAffinityTerm
from aaml.nodes.catalogue import InstanceType, Offering
from aaml.nodes.requirements import Labels, labels_of
from aaml.scheduling.costs import is_released


@dataclass(slots=True)
class OwnedNode:
    """A node that was provisioned. It costs from `launched_s` on, takes pods from `initialized_s` on.

    `initialized_s` is None until then. `last_pod_event_s`: when a pod was last bound to it, or left it. `deleting`: it
    takes no pods any more, and goes when those that it has are gone.
    """

    name: str
    type: InstanceType
    offering: Offering
    launched_s: float
    initialized_s: float | None = None
    last_pod_event_s: float | None = None
    deleting: bool = False
    _requirements: Labels | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def requirements(self) -> Labels:
        """Its labels, as what pods ask for is compared with."""
        if self._requirements is None:
            self._requirements = labels_of({**self.type.labels(self.offering), HOSTNAME_LABEL: self.name})
        return self._requirements

    @property
    def price(self) -> float:
        """Dollars an hour."""
        return self.offering.price


@dataclass(frozen=True, slots=True)
class Waiting:
    """A pod that the scheduler has found no node for, and since when."""

    pod: Pod
    since_s: float


@dataclass(frozen=True, slots=True)
class KeptOut:
    """Where required anti-affinity of pods that run keeps those out that the `term` is about.

    `values` are the domains, of the term's label. `nodes` are the names of the nodes there. `all_new`: whether every
    node that is provisioned lies in one of them.
    """

    term: PodAffinityTerm
    values: frozenset[str]
    nodes: frozenset[str]
    all_new: bool = False


@dataclass(slots=True)
class Observed:
    """A cluster at one moment, as an autoscaler sees it.

    `nodes`: by name, those in the making and those on their way out too. `pods`: what runs on each node, by name and
    uid. `waiting`: by uid. `blocked`: uids of running pods that a disruption budget keeps from being evicted now.
    `stuck`: those of them that are never let go. `released_s`: by uid, when pods may be disrupted that may not be for a
    time after their start. `stopping`: uids of pods that are evicted and still on their node.
    `changed_s`: when a pod was last bound or went, or a node came, became ready or was marked. `namespace_labels` are
    those that selectors of namespaces look at. `known`: what an autoscaler has found out about pods, for good.
    `sold_out`: names of types that cannot be had now. `kept`: names of nodes that stay, whatever runs there.
    `evicted`: pods that were, so far; `pod_hours`: that pods have run.
    `kept_out`: by anti-affinity of running pods; pods with such terms of their own are taken to stay where they are.
    """

    now_s: float
    nodes: dict[str, OwnedNode] = field(default_factory=dict)
    pods: Mapping[str, Mapping[str, Pod]] = field(default_factory=dict)
    waiting: dict[str, Waiting] = field(default_factory=dict)
    blocked: frozenset[str] = frozenset()
    stuck: frozenset[str] = frozenset()
    released_s: Mapping[str, float] = field(default_factory=dict)
    stopping: set[str] = field(default_factory=set)
    gpu_free: Mapping[str, npt.NDArray[np.int64]] = field(default_factory=dict)
    changed_s: float = -inf
    namespace_labels: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    sold_out: frozenset[str] = frozenset()
    kept: frozenset[str] = frozenset()
    kept_out: Sequence[KeptOut] = ()
    evicted: float = 0.0
    pod_hours: float = 0.0
    known: dict[type, Any] = field(default_factory=dict, repr=False, compare=False)

    def pods_on(self, name: str) -> Mapping[str, Pod]:
        """Return the pods of a node by uid."""
        return self.pods.get(name, {})

    def is_kept(self, pod: Pod) -> bool:
        """Whether a pod may not be disrupted now, as its annotations say (Karpenter's utils/pod)."""
        return pod.do_not_disrupt and not interpreted(is_released)(self.released_s.get(pod.uid, inf), self.now_s)

    @property
    def released(self) -> int:
        """How many of the pods that were kept for a time may be disrupted now."""
        return sum(interpreted(is_released)(at_s, self.now_s) for at_s in self.released_s.values())


@dataclass(frozen=True, slots=True)
class Provision:
    """Provision a node of whichever of these types is cheapest."""

    types: tuple[InstanceType, ...]


@dataclass(frozen=True, slots=True)
class Delete:
    """Let nodes take no pods any more, evict those that they have, and terminate the nodes."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Replace:
    """Let nodes take no pods any more, provision one node, and delete the others as soon as that one is ready."""

    names: tuple[str, ...]
    types: tuple[InstanceType, ...]


@dataclass(frozen=True, slots=True)
class Evict:
    """Evict one pod, whose owner makes the next one. Refused, for good, where a disruption budget protects it."""

    uid: str


Command = Provision | Delete | Replace | Evict


class Autoscaler(Protocol):
    """Decides which nodes are provisioned and terminated."""

    @property
    def next_s(self) -> float:
        """When it wants to be asked again if nothing happens until then; inf: never."""
        ...

    def act(self, seen: Observed) -> Sequence[Command]:
        """Take a moment in and return the orders that follow. Asked again at the same moment, it has no more to say."""
        ...

    def copy(self) -> Self:
        """Return an independent copy that would do the same from here on."""
        ...
