"""Preemption: where less important pods make room for one that fits nowhere, and which of them have to leave.

The choices are those of the plugin DefaultPreemption of kube-scheduler 1.37, see
https://kubernetes.io/docs/concepts/scheduling-eviction/pod-priority-preemption/. Only pods of one node are victims, and
the rest of their groups where these are disrupted as a whole, so a constraint over pods of other nodes is hardly ever
met by it. Nothing is changed here: whoever asks deletes the victims
(gracefully, by the API) and nominates the pod to the node.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf

import numpy as np

from aaml.cluster.filters import Feasibility, FilterIndex, feasible
from aaml.cluster.filters.run import passing
from aaml.cluster.filters.verdict import diagnose
from aaml.cluster.objects import DisruptionBudget, Pod
from aaml.cluster.state import ClusterState
from aaml.scheduling.victims import Unit, priority_of, split_by_budget, units_of

NEVER = "not eligible due to preemptionPolicy=Never."
WAITING = "not eligible due to a terminating pod on the nominated node."
NOT_HELPFUL = "Preemption is not helpful for scheduling"
NO_VICTIMS = "No preemption victims found for incoming pod"
_MIN_CANDIDATES = 100
_CANDIDATE_PERCENTAGE = 10
_LOWEST_PRIORITY = -(2**31)


@dataclass(frozen=True, slots=True)
class Preemption:
    """The victims on a node, the most important first, who have to leave it.

    `violations` counts the victims whose leaving breaks a disruption budget. `withdrawn` are less important pods that
    were nominated to the node and lose that. For victims that are terminating already one only has to wait. `by` names
    who preempts where that is no single pod; the node is "cluster" then.
    """

    node_name: str
    victims: tuple[Pod, ...]
    violations: int = 0
    withdrawn: tuple[Pod, ...] = ()
    by: str = ""


@dataclass(frozen=True, slots=True)
class PreemptionAttempt:
    """What came of an attempt to make room; `message` says it for the FailedScheduling event."""

    preemption: Preemption | None
    message: str = ""


def plan(state: ClusterState, pod: Pod, budgets: Sequence[DisruptionBudget] = ()) -> Preemption | None:
    """Return how room can be made for a pod that fits nowhere, or None where it cannot or may not."""
    return attempt(state, pod, budgets).preemption


def attempt(
    state: ClusterState,
    pod: Pod,
    budgets: Sequence[DisruptionBudget] = (),
    verdict: Feasibility | None = None,
    offset: int = 0,
) -> PreemptionAttempt:
    """Look for the node on which making room does least harm.

    A pod that is nominated to a node waits while a less important one that was preempted leaves it; one that is deleted
    for another reason holds nobody up. `verdict` is what the filters said of the pod; without it they are run here. In
    a large cluster the search ends when a tenth of the nodes, and at least 100, would do. It starts at the `offset`-th
    node, which kube-scheduler draws at random.
    """
    diagnosis = (verdict or feasible(state, pod)).diagnosis
    if pod.preemption_policy == "Never":
        return PreemptionAttempt(None, NEVER)
    nominated = state.index.get(pod.nominated_node)
    if nominated is not None and not diagnosis.unresolvable[nominated]:
        others = state.node_pods[nominated].values()
        if any(other.preempted and priority_of(other) < pod.priority for other in others):
            return PreemptionAttempt(None, WAITING)
    rejected = np.array([bool(reasons) for reasons in diagnosis.by_node], dtype=np.bool_)
    potential = np.flatnonzero(rejected & ~diagnosis.unresolvable)
    reasons: Counter[str] = Counter({NOT_HELPFUL: len(state) - potential.size})
    candidates: list[Preemption] = []
    enough = min(max(potential.size * _CANDIDATE_PERCENTAGE // 100, _MIN_CANDIDATES), potential.size)
    if not any(priority_of(placement.pod) < pod.priority for placement in state.placements.values()):
        reasons[NO_VICTIMS] += potential.size  # nobody to be looked at, and no copy of the cluster to be made
        potential = potential[:0]
    imagined = state.fork() if potential.size else state
    for node_index in np.roll(potential, -offset):
        found = _victims_on(imagined, int(node_index), pod, budgets)
        if isinstance(found, Preemption):
            candidates.append(found)
            if len(candidates) >= enough and any(not each.violations for each in candidates):
                break
        else:
            reasons.update(found)
    if not candidates:
        listed = ", ".join(sorted(f"{count} {reason}" for reason, count in reasons.items() if count))
        return PreemptionAttempt(None, f"0/{len(state)} nodes are available: {listed}.")
    best = min(candidates, key=_harm)
    where = f"found a potential placement for pod on node {best.node_name}, preempting {len(best.victims)} victims"
    return PreemptionAttempt(best, where)


def nominee(state: ClusterState, pod: Pod) -> Pod:
    """Return the pod with the node that it is nominated to in `state`.

    The state may know more than the last news of the pod does.
    """
    known = state.nominated.get(pod.uid)
    name = known[1] if known is not None else ""
    return pod if pod.nominated_node == name else replace(pod, nominated_node=name)


def _harm(candidate: Preemption) -> tuple[float, ...]:
    """Return what is compared between nodes; the least is the best.

    It is the number of budgets broken, the highest priority among the victims, the sum of their priorities (shifted
    above zero, so that more victims are never better), their number, and how long the longest-running of the most
    important ones has run.
    """
    victims = candidate.victims
    highest = victims[0].priority
    total = sum(victim.priority - _LOWEST_PRIORITY for victim in victims)
    earliest = min(victim.started_s or inf for victim in victims if victim.priority == highest)
    return candidate.violations, highest, total, len(victims), -earliest


def _victims_on(
    imagined: ClusterState, node_index: int, pod: Pod, budgets: Sequence[DisruptionBudget]
) -> Preemption | tuple[str, ...]:
    """Return the fewest and least important pods whose leaving makes room, or the reasons why that is impossible.

    All less important pods are taken away, and then given back one by one while the pod still fits: first those whose
    leaving breaks a budget, and more important ones before others. The state is as before when this returns.
    """
    name = imagined.names[node_index]
    possible = [unit for unit in units_of(imagined, imagined.node_pods[node_index]) if unit.priority < pod.priority]
    if not possible:
        return (NO_VICTIMS,)
    for unit in possible:
        unit.take_out(imagined)
    try:
        if not _fits(imagined, node_index, pod):
            return _reasons(imagined, node_index, pod)
        possible.sort(key=lambda unit: unit.importance)
        protected, free = split_by_budget(possible, budgets)
        victims: list[Unit] = []
        violations = 0
        for unit, breaking in (*protected, *((unit, 0) for unit in free)):
            unit.put_back(imagined)
            if not _fits(imagined, node_index, pod):
                unit.take_out(imagined)
                victims.append(unit)
                violations += breaking
    finally:
        for unit in possible:
            unit.put_back(imagined)
    victims.sort(key=lambda unit: unit.importance)
    ordered = [placement.pod for unit in victims for placement in unit.placements]
    withdrawn = tuple(
        other for other, where in imagined.nominated.values() if where == name and other.priority < pod.priority
    )
    return Preemption(name, tuple(ordered), violations, withdrawn)


def _fits(imagined: ClusterState, node_index: int, pod: Pod) -> bool:
    if any(imagined.index.get(where) == node_index for _, where in imagined.nominated.values()):
        return bool(feasible(imagined, pod).mask[node_index])
    return bool(passing(FilterIndex.of(imagined), pod)[node_index])


def _reasons(imagined: ClusterState, node_index: int, pod: Pod) -> tuple[str, ...]:
    only = np.zeros(len(imagined), dtype=np.bool_)
    only[node_index] = True
    found = diagnose(FilterIndex.of(imagined), pod, only).by_node[node_index]
    # Only the pods nominated to the node are in the way then.
    return found or feasible(imagined, pod).diagnosis.by_node[node_index]
