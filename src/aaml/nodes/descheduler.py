"""The descheduler's HighNodeUtilization (0.36) beside an autoscaler: it empties nodes, which the autoscaler terminates.

It evicts and does no more: where the pods go is the scheduler's choice, so it is meant to stand beside `MostAllocated`.
The rule is compiled (`aaml.nodes.descheduler_rules`); compiled episodes ask it about their own arrays. What it does
that is not here: extended resources, namespaces, label selectors, `nodeFit`, `minReplicas`, `minPodAge`, thresholds of
priority, local storage (pods here tell of none).
"""

from collections.abc import Mapping, Sequence
from copy import copy, deepcopy
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

import numpy as np

from aaml.cluster.kernels import called
from aaml.cluster.objects import Pod
from aaml.cluster.quantity import CPU, MEMORY, PODS
from aaml.nodes import descheduler_rules as rules
from aaml.nodes.arrays import Array, Sold, memory, pods_of
from aaml.nodes.catalogue import Catalogue
from aaml.nodes.ports import Autoscaler, Command, Evict, Observed
from aaml.nodes.rows import EVICTS, STATE, TERMS, TRAIT, RuleWork, Seen
from aaml.nodes.settings import HighNodeUtilizationSettings

_CRITICAL = 2_000_000_000  # least priority of pods that are critical for the system (utils/priority.go)
_NEVER_EVICTED = frozenset({"", "DaemonSet", "Node"})  # owners: none, a DaemonSet, a node whose static pod it is
_NO_LIMIT = 1 << 62
TRAITS = (TRAIT.descheduled, TRAIT.priority, TRAIT.qos)
"""The columns of what the descheduler looks at of pods: `traits_of`."""


class _Round(NamedTuple):
    """A round: the cluster when it began, memory to work in, and pods by their numbers."""

    own: Seen
    work: RuleWork
    pods: Sequence[Pod]


@dataclass
class HighNodeUtilization:
    """Evicts the pods of nodes below the thresholds, once in an interval; all else is what `beside` orders.

    `first_look_s`: when it first looks at the cluster. It does not know Karpenter's `do-not-disrupt`, and evicts such
    pods as others, unless the settings say that they carry its own annotation too. The order of pods that are alike is
    random in the descheduler; here it is that in which they were bound.
    """

    settings: HighNodeUtilizationSettings
    beside: Autoscaler
    catalogue: Catalogue
    first_look_s: float = 0.0
    _round: _Round | None = field(default=None, init=False, repr=False)
    _at: np.void = field(init=False, repr=False)
    _terms: np.void = field(init=False, repr=False)
    _sold: Sold = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._at, self._terms, self._sold = np.zeros(1, STATE)[0], np.zeros(1, TERMS)[0], Sold.of(self.catalogue)
        self._at["round_s"] = self.first_look_s
        for name, value in round_terms(self.settings, self.catalogue.resources.index(PODS)).items():
            self._terms[name] = value

    @property
    def next_s(self) -> float:
        """The next round, or when the autoscaler wants to be asked."""
        return min(float(self._at["round_s"]), self.beside.next_s)

    def copy(self) -> "HighNodeUtilization":
        """Return an independent copy."""
        twin: HighNodeUtilization = copy(self)
        twin.beside, twin._at, twin._round = self.beside.copy(), deepcopy(self._at), deepcopy(self._round)
        return twin

    def act(self, seen: Observed) -> Sequence[Command]:
        """Evict one pod after the other when it is time, each as the last eviction left the cluster, then the rest."""
        self._at["now_s"] = seen.now_s
        if self._round is None and rules.is_due(self._at):
            own, there = self._sold.seen(seen, self._at, self._terms), pods_of(seen)
            own.traits[[*TRAITS]] = traits_of(there, self.settings)
            self._round = _Round(own, memory(own), there)
        if self._round is not None:
            own, work, pods = self._round
            own.blocked[:] = [pod.uid in seen.blocked for pod in pods]
            orders, number = called(rules.decide, own, work)
            if orders == EVICTS:
                return [Evict(pods[number].uid)]
            self._round = None
        return self.beside.act(seen)


def traits_of(pods: Sequence[Pod], settings: HighNodeUtilizationSettings) -> Array:
    """Return int64 [3, T], the columns of `TRAITS`."""
    found = [(_is_evictable(pod, settings), pod.priority, _class(pod)) for pod in pods]
    return np.array(found, dtype=np.int64).reshape(-1, len(TRAITS)).T


def round_terms(
    settings: HighNodeUtilizationSettings | None, pods_column: int, first_round_s: float = inf
) -> Mapping[str, float]:
    """Return the numbers of the descheduler's settings in `aaml.nodes.rows.TERMS`; None: there is none."""
    known = settings or HighNodeUtilizationSettings()
    limits = known.max_no_of_pods_to_evict_per_node, known.max_no_of_pods_to_evict_total
    of_node, of_round = (_NO_LIMIT if limit is None else limit for limit in limits)
    return {
        "pods_column": pods_column, "number_of_nodes": known.number_of_nodes, "most_of_node": of_node,
        "most_of_round": of_round, "descheduling_interval_s": known.descheduling_interval_s,
        "first_round_s": first_round_s,
        **{f"low_{name}": known.percent.get(name, inf) for name in (CPU, MEMORY, PODS)},
    }  # fmt: skip


def _is_evictable(pod: Pod, settings: HighNodeUtilizationSettings) -> bool:
    """Whether the default evictor lets a pod go (Filter of pkg/framework/plugins/defaultevictor)."""
    modes, spared = settings.eviction_modes, settings.no_eviction_policy == "Mandatory"
    return not (
        pod.owner.partition("/")[0] in _NEVER_EVICTED
        or pod.priority >= _CRITICAL
        or (spared and pod.do_not_disrupt)
        or ("OnlyThresholdingResources" in modes and not settings.percent.keys() & pod.requests.keys())
    )


def _class(pod: Pod) -> int:
    """Return the place of a pod's quality-of-service class: BestEffort, Burstable, Guaranteed."""
    if pod.qos == "Guaranteed":
        return 2
    return int(any(pod.requests.get(name) for name in (CPU, MEMORY)))
