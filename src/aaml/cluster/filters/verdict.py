"""Feasibility: where a pod can go, and why not elsewhere, in kube-scheduler's words.

The filters run in kube-scheduler's order, and a node's reasons are those of the first one that rejects it.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from aaml.cluster.filters import (
    dynamic_resources,
    gpu_devices,
    inter_pod_affinity,
    node_affinity,
    node_declared_features,
    node_name,
    node_ports,
    node_resources,
    node_unschedulable,
    taint_toleration,
    topology_spread,
    volume_binding,
    volumes,
)
from aaml.cluster.filters.index import BoolArray, FilterIndex
from aaml.cluster.filters.plugin import Explain, Filter, one_reason
from aaml.cluster.objects import Pod

FILTERS: tuple[Filter, ...] = (
    node_unschedulable.FILTER,
    node_name.FILTER,
    taint_toleration.FILTER,
    node_affinity.FILTER,
    node_ports.FILTER,
    node_resources.FILTER,
    gpu_devices.FILTER,
    volumes.RESTRICTIONS,
    volumes.LIMITS,
    volume_binding.FILTER,
    volumes.ZONE,
    dynamic_resources.FILTER,
    topology_spread.FILTER,
    inter_pod_affinity.FILTER,
    node_declared_features.FILTER,
)
GATED = "Scheduling is blocked due to non-empty scheduling gates"
_NOT_NAMED = one_reason(f"node(s) didn't satisfy plugin(s) [{node_affinity.FILTER.name}]", unresolvable=True)


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Why nodes were rejected.

    `plugins`: those that rejected a node first. `reasons`: reason -> number of nodes. `unresolvable` [N]: nodes where
    preemption cannot help. `rejected_before`: why the pod can be on no node at all, "" when that is not so.
    `by_node`: [N] the reasons of each node, empty for the feasible ones. `plugin_by_node`: [N] which plugin gave them.
    """

    plugins: frozenset[str]
    reasons: Mapping[str, int]
    unresolvable: BoolArray
    by_node: tuple[tuple[str, ...], ...]
    plugin_by_node: tuple[str, ...]
    rejected_before: str = ""

    def message(self, preemption: str = "") -> str:
        """Return the text of a FailedScheduling event; `preemption` is what the try to preempt others said."""
        if not self.by_node:
            return "no nodes available to schedule pods"
        text = f"0/{len(self.by_node)} nodes are available:"
        if self.rejected_before:
            text += f" {self.rejected_before}."
        elif self.reasons:
            text += f" {', '.join(sorted(f'{count} {reason}' for reason, count in self.reasons.items()))}."
        return f"{text} preemption: {preemption}" if preemption else text


@dataclass(frozen=True)
class Feasibility:
    """The nodes a pod can go to, `mask` [N] (do not write to it), and on demand the reasons for the others.

    The reasons are worked out when they are asked for, which must be before the cluster state changes.
    """

    mask: BoolArray
    _index: FilterIndex = field(repr=False)
    _diagnose: Callable[[], Diagnosis] = field(repr=False)
    _generation: int = field(repr=False)

    @cached_property
    def diagnosis(self) -> Diagnosis:
        """Why nodes were rejected. Raises RuntimeError when the state has changed since."""
        if self._index.state.generation != self._generation:
            raise RuntimeError("the cluster state has changed since these nodes were filtered")
        return self._diagnose()

    @property
    def plugins(self) -> frozenset[str]:
        """The plugins that rejected a node: what `SchedulingQueue.requeue` wants to know."""
        return self.diagnosis.plugins

    def message(self, preemption: str = "") -> str:
        """Return the text of a FailedScheduling event, such as "0/2 nodes are available: 2 Insufficient cpu."."""
        return self.diagnosis.message(preemption)


def rejection_of_all(index: FilterIndex, pod: Pod) -> tuple[str, str]:
    """Return (plugin, reason) when the pod can be on no node whatever the nodes are, else ("", "")."""
    if pod.gates:
        return "SchedulingGates", GATED
    for each in FILTERS:
        reason = each.rejects_all(index, pod) if each.rejects_all is not None else ""
        if reason:
            return each.name, reason
    return "", ""


def diagnose(index: FilterIndex, pod: Pod, candidates: BoolArray | None = None) -> Diagnosis:
    """Run the filters one after the other on the candidates [N] (all nodes by default) and keep what each rejects."""
    size = len(index.state)
    plugin, reason = rejection_of_all(index, pod)
    if reason:
        everywhere = np.ones(size, dtype=np.bool_)
        return Diagnosis(frozenset({plugin}), {}, everywhere, ((reason,),) * size, (plugin,) * size, reason)
    plugins: set[str] = set()
    reasons: Counter[str] = Counter()
    unresolvable = np.zeros(size, dtype=np.bool_)
    by_node: list[tuple[str, ...]] = [()] * size
    plugin_by_node = [""] * size
    for name, explain, rejected in _rejections(index, pod, candidates):
        rejection = explain(index, pod, rejected)
        plugins.add(name)
        unresolvable |= rejection.unresolvable
        for reason, where in rejection.reasons:
            hit = np.flatnonzero(where)
            if hit.size:
                reasons[reason] += hit.size
                for node_index in hit:
                    by_node[node_index] = (*by_node[node_index], reason)
                    plugin_by_node[node_index] = name
    return Diagnosis(frozenset(plugins), reasons, unresolvable, tuple(by_node), tuple(plugin_by_node))


def rejecting(index: FilterIndex, pod: Pod) -> frozenset[str]:
    """Return the plugins that `diagnose` names, without the reasons, which take most of its time."""
    plugin, reason = rejection_of_all(index, pod)
    return frozenset({plugin} if reason else (name for name, _, _ in _rejections(index, pod)))


def _rejections(
    index: FilterIndex, pod: Pod, candidates: BoolArray | None = None
) -> Iterator[tuple[str, Explain, BoolArray]]:
    """Yield each plugin that rejects some of the candidates (all nodes by default), what tells why, and those [N]."""
    alive = np.ones(len(index.state), dtype=np.bool_) if candidates is None else candidates.copy()
    named = node_affinity.named_nodes(pod)
    if named is not None:
        # The other nodes are not looked at by any filter.
        others = alive.copy()
        others[[index.state.index[name] for name in named if name in index.state.index]] = False
        if others.any():
            yield node_affinity.FILTER.name, _NOT_NAMED, others
            alive &= ~others
    for each in FILTERS:
        if not alive.any():
            return
        mask = each.passes(index, pod)
        if mask is None:
            continue
        rejected = alive & ~mask
        if rejected.any():
            yield each.name, each.explain, rejected
            alive &= mask
