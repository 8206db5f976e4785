"""Preemption for a pod group that fits nowhere: which pods have to leave so that it fits whole.

As kube-scheduler 1.37 does it (podgrouppreemption.go): all less important pods of the cluster are imagined away, the
group is tried once in what is left, and then they are put back one after another, the more important ones first, while
all of the group's pods still fit where the try has put them. So the choice of the domain does not look at whom it costs
its room. Hard spread constraints of the group's own pods are kept exactly, which kube-scheduler does not always do, as
it knows the two emptiest domains only. Whoever asks runs the try, by `aaml.scheduling.pod_groups`, because the policy
chooses the nodes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from aaml.cluster.filters import FilterIndex, feasible, inter_pod_affinity
from aaml.cluster.objects import DisruptionBudget, Pod, PodGroup
from aaml.cluster.state import ClusterState
from aaml.scheduling.pod_groups import Assignment
from aaml.scheduling.preemption import NEVER
from aaml.scheduling.victims import Unit, priority_of, split_by_budget, units_of

ONGOING = "ongoing preemption on nominated nodes"
NO_VICTIMS = "No preemption victims found for incoming preemptor"


@dataclass(frozen=True, slots=True)
class GroupPreemption:
    """The pods that have to leave, the more important ones first, and where the group's pods are to go.

    `violations` counts the victims whose leaving breaks a disruption budget.
    """

    victims: tuple[Pod, ...]
    assignments: tuple[Assignment, ...]
    violations: int = 0

    @property
    def message(self) -> str:
        """What the conditions say of it."""
        return f"found a placement for podgroup, preempting {len(self.victims)} victims"


class Imagined:
    """A cluster without the pods that are less important than a group; `state` is where the group is to be tried.

    No node of it has images, as they score nothing there.

    `refusal` says why nobody is to be preempted, "" where a try may be worth it.
    """

    def __init__(self, state: ClusterState, group: PodGroup, pods: Sequence[Pod]) -> None:
        self.state, self.refusal = state, ""
        self._units: list[Unit] = []
        if "Never" in (group.preemption_policy, *(pod.preemption_policy for pod in pods)):
            self.refusal = NEVER
        elif any(_is_leaving(state, pod, group.priority) for pod in pods):
            self.refusal = ONGOING
        else:
            units = units_of(state, [uid for there in state.node_pods for uid in there])
            self._units = [unit for unit in units if unit.priority < group.priority]
            if not self._units:
                self.refusal = NO_VICTIMS
        if self._units:
            self.state = state.fork()
            for unit in self._units:
                unit.take_out(self.state)
            for node in state.nodes:  # kube-scheduler's copy of its copy has lost how many nodes have an image
                if node.images:
                    self.state.upsert_node(replace(node, images={}))

    def spare(self, assignments: Sequence[Assignment], budgets: Sequence[DisruptionBudget] = ()) -> GroupPreemption:
        """Put back whom the group leaves room for; its pods are assumed where a good try has put them."""
        state = self.state
        for each in assignments:
            state.forget(each.pod.uid)
        unasked = _unasked(state, assignments)
        ordered = sorted(self._units, key=lambda unit: unit.importance)
        protected, free = split_by_budget(ordered, budgets)
        victims: list[Unit] = []
        violations = 0
        for unit, breaking in (*protected, *((unit, 0) for unit in free)):
            unit.put_back(state)
            if not _all_fit(state, assignments, unasked):
                unit.take_out(state)
                victims.append(unit)
                violations += breaking
        for each in assignments:
            state.assume(each.pod, each.node_name, each.gpus)
        victims.sort(key=lambda unit: unit.importance)
        pods = tuple(placement.pod for unit in victims for placement in unit.placements)
        return GroupPreemption(pods, tuple(assignments), violations)


def _is_leaving(state: ClusterState, pod: Pod, priority: int) -> bool:
    """Whether a less important pod that was preempted is leaving the node that a pod is nominated to."""
    node_index = state.index.get(pod.nominated_node)
    if node_index is None:
        return False
    others = state.node_pods[node_index].values()
    return any(other.preempted and priority_of(other) < priority for other in others)


def _unasked(state: ClusterState, assignments: Sequence[Assignment]) -> frozenset[str]:
    """Return the uids of the pods for which kube-scheduler does not run InterPodAffinity when it puts pods back.

    It skips the plugin for a pod without terms that no placed pod wants to be away from. It finds that out in the try,
    where all that are put back later are imagined away, and does not look again.
    """
    found = set()
    for number, each in enumerate(assignments):
        affinity, index = each.pod.affinity, FilterIndex.of(state)
        index.sync()
        away = inter_pod_affinity.unwanted(index, each.pod)
        if not (affinity.required_pods or affinity.required_anti_pods) and (away is None or away.all()):
            found.add(each.pod.uid)
        if number < len(assignments) - 1:
            state.assume(each.pod, each.node_name, each.gpus)
    for each in assignments[:-1]:
        state.forget(each.pod.uid)
    return frozenset(found)


def _with_shared_volumes(pod: Pod) -> Pod:
    """Return a pod as kube-scheduler filters it when it puts pods back: without VolumeRestrictions.

    That too is skipped for a pod whose ReadWriteOncePod volumes nobody had in the try.
    """
    return replace(pod, volumes=replace(pod.volumes, exclusive=frozenset())) if pod.volumes.exclusive else pod


def _all_fit(state: ClusterState, assignments: Sequence[Assignment], unasked: frozenset[str]) -> bool:
    """Whether all pods of a try still fit on their nodes, each with those before it assumed."""
    assumed = []
    try:
        for each in assignments:
            verdict, node_index = feasible(state, _with_shared_volumes(each.pod)), state.index[each.node_name]
            if not verdict.mask[node_index]:
                # No filter behind this one looks at other pods, so that the pod passes them as it did in the try.
                by = verdict.diagnosis.plugin_by_node[node_index]
                if each.pod.uid not in unasked or by != inter_pod_affinity.FILTER.name:
                    return False
            state.assume(each.pod, each.node_name, each.gpus)
            assumed.append(each.pod.uid)
    finally:
        for uid in assumed:
            state.forget(uid)
    return True
