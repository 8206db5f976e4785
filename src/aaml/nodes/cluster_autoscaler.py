"""The Cluster Autoscaler's rule in short: groups of one type of node that grow for pods that wait and shrink when idle.

Every type of the catalogue is a group. (kubernetes/autoscaler, cluster-autoscaler/FAQ.md; expanders `least-waste` and
`price`.) What it does that is not here: least and most nodes of a group, failed launches, balancing of similar groups.
"""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from math import inf
from typing import NamedTuple

import numpy as np

from aaml.cluster.objects import NO_AFFINITY, Pod
from aaml.nodes.catalogue import Catalogue, InstanceType, all_columns
from aaml.nodes.fluid import Fluid
from aaml.nodes.packing import FreeCapacity, pack
from aaml.nodes.ports import Command, Delete, Observed, OwnedNode, Provision
from aaml.nodes.settings import ClusterAutoscalerSettings


class _Growth(NamedTuple):
    """How a group could grow: by so many nodes, for pods that ask for `request` [R] in all."""

    kind: InstanceType
    nodes: int
    pods: int
    waste: float
    price: float


@dataclass
class ClusterAutoscaler:
    """One group for each type of a catalogue. `first_look_s`: when it first looks at the cluster."""

    settings: ClusterAutoscalerSettings
    catalogue: Catalogue
    first_look_s: float = 0.0
    _due_s: float = field(init=False)
    _added_s: float = -inf
    _unneeded_s: dict[str, float] = field(default_factory=dict)  # by node: since when it could go
    _fluid: Fluid = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._due_s, self._fluid = self.first_look_s, Fluid(self.catalogue)

    @property
    def next_s(self) -> float:
        """The next look."""
        return self._due_s

    def copy(self) -> "ClusterAutoscaler":
        """Return an independent copy."""
        return deepcopy(self)

    def act(self, seen: Observed) -> Sequence[Command]:
        """Look at the cluster when it is time: one group grows for what waits, else nodes that are not needed go."""
        if seen.now_s < self._due_s:
            return ()
        self._due_s = seen.now_s + self.settings.scan_interval_s
        capacity = FreeCapacity.of(seen, self.catalogue, seen.nodes)
        if provisioned := self._grow(seen, capacity):
            self._added_s = seen.now_s
            return provisioned
        return self._shrink(seen, capacity)

    # ---- growing -----------------------------------------------------------------------------------------------------

    def _grow(self, seen: Observed, capacity: FreeCapacity) -> list[Command]:
        """Let the group grow that the expander prefers, for the pods without room on nodes there or in the making."""
        left = self._unplaced([each.pod for each in seen.waiting.values()], capacity)
        options = [growth for kind in self.catalogue.types if (growth := self._growth(kind, left)).pods]
        if not options:
            return []
        key = "waste" if self.settings.expander == "least-waste" else "price"
        best = min(options, key=lambda growth: getattr(growth, key))
        count = min(best.nodes, self.settings.max_nodes_total - len(seen.nodes))
        return [Provision((best.kind,))] * max(count, 0)

    def _unplaced(self, pods: list[Pod], capacity: FreeCapacity) -> list[Pod]:
        free, left = capacity.free.copy(), []
        for pod in sorted(pods, key=lambda pod: pod.created_s):
            request = self.catalogue.request(pod)
            fits = all_columns(free >= request)
            if fits.any():
                free[fits.argmax()] -= request
            else:
                left.append(pod)
        return left

    def _growth(self, kind: InstanceType, pods: list[Pod]) -> _Growth:
        """Pack the pods that fit on this type, and say how many nodes they take and what of them stays unused."""
        number = self.catalogue.numbers[kind.name]
        alone = Catalogue((kind,))
        fitting = [pod for pod in pods if self.catalogue.fits(pod, launched=True)[number]]
        nodes = len(pack(alone, _no_capacity(alone), map(_without_preferences, fitting)).claims)
        if not nodes:
            return _Growth(kind, 0, 0, inf, inf)
        requested = np.sum([self.catalogue.request(pod) for pod in fitting], axis=0)[:2]
        unused = 1.0 - requested / (nodes * self.catalogue.room[number][:2])
        worth = self._fluid.price(*requested.tolist())
        return _Growth(kind, nodes, len(fitting), float(unused.sum()), nodes * kind.cheapest.price / max(worth, 1e-12))

    # ---- shrinking ---------------------------------------------------------------------------------------------------

    def _shrink(self, seen: Observed, capacity: FreeCapacity) -> list[Command]:
        """Delete the empty nodes that were idle for long enough, else one whose pods have room elsewhere."""
        idle = [
            node for node in seen.nodes.values() if self._is_idle(seen, node) and self._can_move(seen, node, capacity)
        ]
        self._unneeded_s = {node.name: self._unneeded_s.get(node.name, seen.now_s) for node in idle}
        if seen.now_s - self._added_s < self.settings.scale_down_delay_after_add_s:
            return []
        ripe = [
            node.name
            for node in idle
            if seen.now_s - self._unneeded_s[node.name] >= self.settings.scale_down_unneeded_time_s
        ]
        empty = [name for name in ripe if not seen.pods_on(name)][: self.settings.max_empty_bulk_delete]
        names = tuple(empty or ripe[:1])
        return [Delete(names)] if names else []

    def _is_idle(self, seen: Observed, node: OwnedNode) -> bool:
        """Whether a node is ready, used below the threshold, and has no pod that must stay."""
        if node.initialized_s is None or node.deleting:
            return False
        pods = seen.pods_on(node.name)
        if any(seen.is_kept(pod) or not pod.owner or uid in seen.blocked for uid, pod in pods.items()):
            return False
        allocatable = self.catalogue.room[self.catalogue.numbers[node.type.name]][:2]
        requested = np.sum([self.catalogue.request(pod)[:2] for pod in pods.values()], axis=0) if pods else np.zeros(2)
        return float((requested / np.maximum(allocatable, 1)).max()) < self.settings.scale_down_utilization_threshold

    def _can_move(self, seen: Observed, node: OwnedNode, capacity: FreeCapacity) -> bool:
        """Whether all pods of a node have room on the others that are ready."""
        pods = list(map(_without_preferences, seen.pods_on(node.name).values()))
        packed = pack(self.catalogue, capacity, pods, {pod.uid for pod in pods}, (node.name,))
        return not packed.failed and not packed.claims


def _without_preferences(pod: Pod) -> Pod:
    """Return a pod that only asks for what it must have: unlike Karpenter, this one looks at no preference."""
    return replace(pod, affinity=NO_AFFINITY, spread=()) if pod.spread or pod.affinity is not NO_AFFINITY else pod


def _no_capacity(catalogue: Catalogue) -> FreeCapacity:
    """Return the free capacity of no nodes."""
    return FreeCapacity.of(Observed(0.0), catalogue, ())
