"""Whom preemption takes together: one pod, or all pods of a group that is disrupted as a whole.

As `Victim` of kube-scheduler 1.37 (pkg/scheduler/framework/preemption).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf

from aaml.cluster.objects import DisruptionBudget, Pod
from aaml.cluster.selectors import matches_labels
from aaml.cluster.state import ClusterState, Placement
from aaml.scheduling.pod_groups import placed_of


def priority_of(pod: Pod) -> int:
    """Return what a placed pod counts for: its group's priority, or its own."""
    return pod.priority if pod.group is None or not pod.group.seen else pod.group.priority


@dataclass(frozen=True, slots=True)
class Unit:
    """Placed pods that leave together or stay together, on one node or on several."""

    placements: tuple[Placement, ...]

    @property
    def priority(self) -> int:
        """Who has a higher one may take its room."""
        return priority_of(self.placements[0].pod)

    @property
    def importance(self) -> tuple[int, int, int, float]:
        """The sort key by which more important units come first.

        Priority, a group's pods before others, more pods, and who has run longer; what has not started counts as if it
        started now.
        """
        rank = 1 if self.placements[0].pod.group is None else 2
        earliest = min(placement.pod.started_s or inf for placement in self.placements)
        return -self.priority, -rank, -len(self.placements), earliest

    def take_out(self, state: ClusterState) -> None:
        """Take its pods out of a state."""
        for placement in self.placements:
            state.remove_pod(placement.pod.uid)

    def put_back(self, state: ClusterState) -> None:
        """Place those of its pods again that were taken out."""
        for placement in self.placements:
            if placement.pod.uid not in state.placements:
                state.assume(placement.pod, placement.node_name, placement.gpus, placement.since_s)


def units_of(state: ClusterState, uids: Iterable[str]) -> list[Unit]:
    """Return the units that placed pods belong to, each once, in the order in which the pods are given."""
    found: dict[str, Unit] = {}
    for uid in uids:
        placement = state.placements[uid]
        group = placement.pod.group
        if group is None or not group.whole:
            found[uid] = Unit((placement,))
        elif placement.pod.group_key not in found:
            found[placement.pod.group_key] = Unit(tuple(placed_of(state, placement.pod.group_key)))
    return list(found.values())


def split_by_budget(
    units: Iterable[Unit], budgets: Sequence[DisruptionBudget]
) -> tuple[list[tuple[Unit, int]], list[Unit]]:
    """Return the units whose leaving breaks a budget, with the number of pods that break one, and the others.

    Each in the order given, in which budgets are used up. A pod that breaks one uses up none of those behind it.
    """
    left = [budget.disruptions_allowed for budget in budgets]
    breaking: list[tuple[Unit, int]] = []
    others: list[Unit] = []
    for unit in units:
        count = sum(_breaks(placement.pod, budgets, left) for placement in unit.placements)
        if count:
            breaking.append((unit, count))
        else:
            others.append(unit)
    return breaking, others


def _breaks(pod: Pod, budgets: Sequence[DisruptionBudget], left: list[int]) -> bool:
    for number, budget in enumerate(budgets):
        if not pod.labels or budget.namespace != pod.namespace or pod.name in budget.disrupted:
            continue
        if budget.selector is None or not budget.selector.requirements:
            continue
        if matches_labels(budget.selector, pod.labels):
            left[number] -= 1
            if left[number] < 0:
                return True
    return False
