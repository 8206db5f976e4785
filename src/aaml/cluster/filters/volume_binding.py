"""VolumeBinding: whether a node can use the pod's bound volumes, and which volumes its other claims would get there.

A claim that waits for its first consumer gets, in this order: the volume that is meant for it, the smallest free volume
that suits it and that the node can use, a new one. The smallest claim chooses first. As in kube-scheduler 1.37
(pkg/scheduler/framework/plugins/volumebinding, component-helpers/storage/volume). Volumes of the same size are chosen
by name, where kube-scheduler takes any.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import cast

import numpy as np

from aaml.cluster.filters.index import BoolArray, FilterIndex, IntArray
from aaml.cluster.filters.node_affinity import term_mask
from aaml.cluster.filters.plugin import Filter, Rejection
from aaml.cluster.objects import LabelSelector, NodeSelectorTerm, Pod, UnboundClaim
from aaml.cluster.selectors import matches_labels
from aaml.cluster.state import ClusterState
from aaml.cluster.storage import Volume

_NODE_CONFLICT = "node(s) didn't match PersistentVolume's node affinity"
_NO_MATCH = "node(s) didn't find available persistent volumes to bind"
_NO_SPACE = "node(s) did not have enough free storage"
_NOWHERE: IntArray = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class VolumePlan:
    """What the claims of a pod get on a node: `volumes` that are there, and new ones for the claims in `provision`."""

    volumes: tuple[tuple[UnboundClaim, str], ...] = ()
    provision: tuple[UnboundClaim, ...] = ()

    def reserve(self, state: ClusterState, node_name: str) -> None:
        """Note in the state what is decided, so that no other pod gets the same."""
        for claim, name in self.volumes:
            state.storage.reserve(name, claim)
        for claim in self.provision:
            state.storage.select(claim.key, node_name)

    def release(self, state: ClusterState) -> None:
        """Undo `reserve`; what the cluster has confirmed meanwhile stays."""
        for _, name in self.volumes:
            state.storage.release(name)
        for claim in self.provision:
            state.storage.deselect(claim.key)


def plan_volumes(state: ClusterState, pod: Pod, node_index: int) -> VolumePlan:
    """Return what the pod's unbound claims get on a node that has passed the filter."""
    choices = _Choices(FilterIndex.of(state), pod.volumes.unbound)
    volumes = tuple(
        (claim, choices.names[taken[node_index]]) for claim, taken in choices.taken if taken[node_index] >= 0
    )
    had = {claim.key for claim, _ in volumes}
    return VolumePlan(volumes, tuple(claim for claim in pod.volumes.unbound if claim.key not in had))


def storage_use(index: FilterIndex, claims: Iterable[UnboundClaim]) -> list[tuple[BoolArray, IntArray, IntArray]]:
    """Return for each class of storage on which nodes it counts, and what is asked of how much there, int64 [N] bytes.

    Where claims get volumes that are there, these count: their claims' sizes of theirs. Elsewhere new ones do, of the
    capacity that their driver tells.
    """
    choices = _Choices(index, claims)
    sizes = np.array([index.state.storage.volumes[name].size_bytes for name in choices.names] + [0])
    gets = [taken >= 0 for _, taken in choices.taken]
    static = np.logical_or.reduce(gets) if gets else np.zeros(len(index.state), dtype=np.bool_)
    found: dict[str, tuple[BoolArray, IntArray, IntArray]] = {}

    def add(claim: UnboundClaim, where: BoolArray, capacity: IntArray, *, more: bool) -> None:
        zero = np.zeros(len(where), dtype=np.int64)
        there, asked, held = found.get(claim.storage_class, (np.zeros_like(where), zero, zero))
        held = np.where(where, capacity + held * more, held)
        found[claim.storage_class] = there | where, asked + claim.size_bytes * where, held

    for (claim, taken), where in zip(choices.taken, gets, strict=True):
        add(claim, where, sizes[taken], more=True)
    for claim in choices.being_made:
        add(claim, *choices.capacity(claim, ~static), more=False)
    for (claim, _), where in zip(choices.taken, gets, strict=True):
        add(claim, *choices.capacity(claim, ~static & ~where), more=False)
    return list(found.values())


def passes(index: FilterIndex, pod: Pod) -> BoolArray | None:
    """Return [N] nodes that admit the pod's bound volumes and have or get volumes for its other claims."""
    mask = _bound_mask(index, pod)
    if pod.volumes.unbound:
        choices = _Choices(index, pod.volumes.unbound)
        found = choices.matched & choices.space
        return found if mask is None else mask & found
    return mask


def rejects_all(_index: FilterIndex, pod: Pod) -> str:
    """Say why the pod's volumes cannot be resolved."""
    return pod.volumes.missing


def explain(index: FilterIndex, pod: Pod, candidates: BoolArray) -> Rejection:
    """Say which of the three reasons hold for each node; no preemption helps against any."""
    reasons: list[tuple[str, BoolArray]] = []
    mask = _bound_mask(index, pod)
    if mask is not None:
        reasons.append((_NODE_CONFLICT, candidates & ~mask))
    if pod.volumes.unbound:
        choices = _Choices(index, pod.volumes.unbound)
        reasons += [(_NO_MATCH, candidates & ~choices.matched), (_NO_SPACE, candidates & ~choices.space)]
    return Rejection(tuple(reasons), candidates)


FILTER = Filter("VolumeBinding", passes, explain, rejects_all)


def _bound_mask(index: FilterIndex, pod: Pod) -> BoolArray | None:
    if not pod.volumes.node_terms:
        return None
    mask = np.ones(len(index.state), dtype=np.bool_)
    for terms in pod.volumes.node_terms:
        mask &= _any_term(index, terms)
    return mask


class _Choices:
    """What unbound claims get on every node.

    `matched` and `space`, [N]: False where claims find no volume and none can be made, or where there is no capacity to
    make it. `being_made`: claims for which a volume is made already. `taken`: for each other claim the number of its
    volume by node, int [N], -1 where it needs a new one; `names` are the volumes by number.
    """

    def __init__(self, index: FilterIndex, claims: Iterable[UnboundClaim]) -> None:
        self._index, self._storage = index, index.state.storage
        size = len(index.state)
        self._everywhere = np.arange(size)
        self._by_value: dict[str, dict[str, IntArray]] = {}
        self.names: list[str] = []
        self._numbers: dict[str, int] = {}
        self.taken: list[tuple[UnboundClaim, IntArray]] = []
        self.matched, self.space = np.ones(size, dtype=np.bool_), np.ones(size, dtype=np.bool_)
        self.being_made = [claim for claim in claims if self._storage.selected_node(claim)]
        waiting = sorted(
            (claim for claim in claims if not self._storage.selected_node(claim)), key=lambda claim: claim.size_bytes
        )
        for claim in self.being_made:
            node_index = index.state.index.get(self._storage.selected_node(claim))
            elsewhere = np.ones(size, dtype=np.bool_)
            if node_index is not None:
                elsewhere[node_index] = False
            self.matched &= ~elsewhere
        for claim in waiting:
            self.taken.append((claim, self._match(claim)))
        everywhere = np.ones(size, dtype=np.bool_)
        for claim in self.being_made:
            self._make(claim, everywhere)
        for claim, taken in self.taken:
            self._make(claim, taken < 0)

    def _match(self, claim: UnboundClaim) -> IntArray:
        taken = np.full(len(self.matched), -1, dtype=np.int64)
        meant = self._storage.meant_for(claim)
        if meant is not None:
            self._give(meant, taken)
            return taken
        left = len(taken)
        for volume in self._storage.fitting(claim):
            left -= self._give(volume, taken)
            if not left:
                break
        return taken

    def _give(self, volume: Volume, taken: IntArray) -> int:
        """Let a claim have the volume where it has `taken` none, and return on how many nodes that is."""
        nodes = self._usable_nodes(volume)
        number = self._numbers.get(volume.name)
        if len(nodes) == 1:  # a local volume: there may be thousands
            node_index = nodes[0]
            if taken[node_index] >= 0 or (
                number is not None and any(theirs[node_index] == number for _, theirs in self.taken)
            ):
                return 0
        else:
            nodes = nodes[taken[nodes] < 0]
            if number is not None:
                for _, theirs in self.taken:
                    nodes = nodes[theirs[nodes] != number]
            if not len(nodes):
                return 0
        if number is None:
            number = self._numbers[volume.name] = len(self.names)
            self.names.append(volume.name)
        taken[nodes] = number
        return len(nodes)

    def _make(self, claim: UnboundClaim, where: BoolArray) -> None:
        """Say on which of the nodes that need a new volume none can be made; the first claim's reason counts."""
        where = where & self.matched & self.space
        if not where.any():
            return
        kind = self._storage.classes.get(claim.storage_class)
        if kind is None or not kind.provisioner:
            self.matched &= ~where
            return
        if kind.topologies:
            reached = _any_term(self._index, kind.topologies)
            self.matched &= reached | ~where
            where = where & reached
        if kind.provisioner in self._storage.tracked:
            self.space &= self._capacity(claim)[0] | ~where

    def capacity(self, claim: UnboundClaim, where: BoolArray) -> tuple[BoolArray, IntArray]:
        """Return the nodes `where` a claim's driver tells how much it can still make, and how much, int64 [N] bytes."""
        kind = self._storage.classes.get(claim.storage_class)
        if kind is None or kind.provisioner not in self._storage.tracked:
            return np.zeros_like(where), np.zeros(len(where), dtype=np.int64)
        reached, size = self._capacity(claim)
        return where & reached, size

    def _capacity(self, claim: UnboundClaim) -> tuple[BoolArray, IntArray]:
        """Return [N] nodes that reach a capacity which holds the claim, and the whole of the first one."""
        mask, size = np.zeros(len(self.matched), dtype=np.bool_), np.zeros(len(self.matched), dtype=np.int64)
        for each in self._storage.capacities.values():
            enough = each.largest_bytes is not None and each.largest_bytes >= claim.size_bytes
            if enough and each.storage_class == claim.storage_class and each.nodes is not None:
                reached = _selected(self._index, each.nodes)
                size[reached & ~mask] = each.whole_bytes
                mask |= reached
        return mask, size

    def _usable_nodes(self, volume: Volume) -> IntArray:
        """Return the indices of the nodes that can use a volume."""
        terms = volume.node_terms
        if terms is None:
            return self._everywhere
        if len(terms) == 1 and not terms[0].fields and len(terms[0].labels) == 1:
            only = terms[0].labels[0]
            if only.operator == "In" and len(only.values) == 1:  # no mask for each: they would fill the cache
                return self._nodes_by_value(only.key).get(only.values[0], _NOWHERE)
        return np.flatnonzero(_any_term(self._index, terms))

    def _nodes_by_value(self, key: str) -> dict[str, IntArray]:
        """Return the indices of the nodes with each value that a label has."""
        found = self._by_value.get(key)
        if found is None:
            found = self._by_value[key] = _nodes_by_value(self._index, key)
        return found


def _any_term(index: FilterIndex, terms: tuple[NodeSelectorTerm, ...]) -> BoolArray:
    found = np.zeros(len(index.state), dtype=np.bool_)
    for term in terms:
        found |= term_mask(index, term)
    return found


def _selected(index: FilterIndex, selector: LabelSelector) -> BoolArray:
    def build() -> BoolArray:
        return np.array([matches_labels(selector, node.labels) for node in index.state.nodes], dtype=np.bool_)

    return cast("BoolArray", index.cached(("storage_nodes", selector), build))


def _nodes_by_value(index: FilterIndex, key: str) -> dict[str, IntArray]:
    def build() -> dict[str, IntArray]:
        nodes: dict[str, list[int]] = {}
        for node_index, node in enumerate(index.state.nodes):
            if key in node.labels:
                nodes.setdefault(node.labels[key], []).append(node_index)
        return {value: np.array(found, dtype=np.int64) for value, found in nodes.items()}

    return cast("dict[str, IntArray]", index.cached(("nodes_by_value", key), build))
