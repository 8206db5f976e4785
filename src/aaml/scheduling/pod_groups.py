"""Pod groups as kube-scheduler 1.37 schedules them: one trial in each topology domain, and the best one's result.

The rules stand here once, for the simulator and for live clusters. A trial asks the policy for a node of the domain for
one pod after another, each assumed before the next is asked for, and ends where too few are left. It does not go back
on a choice. Where several domains have room the fullest one is taken, counted in CPU and memory, and a drawn one of
those that are as full. Sources: schedule_one_podgroup.go and the plugins GangScheduling, TopologyPlacementGenerator,
NodeResourcesFit and PodGroupPodsCount of kube-scheduler 1.37.2.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from aaml.cluster.filters.volume_binding import VolumePlan, plan_volumes
from aaml.cluster.objects import Pod, PodGroup
from aaml.cluster.quantity import CPU, MEMORY
from aaml.cluster.state import ClusterState, Placement
from aaml.scheduling.queue_entries import QueuedGroup

Mask = npt.NDArray[np.bool_]
Outcome = Literal["", "scheduled", "unschedulable", "error"]
_MOST = 100
_NOBODY: Mapping[str, None] = {}
NO_DOMAINS = "no feasible placements found"
UNSCHEDULABLE = "pod group is unschedulable"


class InvalidGroupError(Exception):
    """A group that cannot be tried; the message is that of its condition."""


# ---- who of a group has a node ---------------------------------------------------------------------------------------


class _Placed:
    """Uids of placed pods by group, kept current by the state."""

    def __init__(self, state: ClusterState) -> None:
        self.uids: dict[str, dict[str, None]] = {}
        self.topologies: dict[str, str] = {}  # the constraints of those groups that have one
        for placement in state.placements.values():
            self.note(placement.pod, placement.node_name, True)
        state.observe(self.note)

    def note(self, pod: Pod, _node_name: str, placed: bool) -> None:
        if pod.group is None:
            return
        uids = self.uids.setdefault(pod.group_key, {})
        if placed:
            uids[pod.uid] = None
            if pod.group.topology_key:
                self.topologies[pod.group_key] = pod.group.topology_key
        else:
            uids.pop(pod.uid, None)
            if not uids:
                del self.uids[pod.group_key]
                self.topologies.pop(pod.group_key, None)


_PLACED: WeakKeyDictionary[ClusterState, _Placed] = WeakKeyDictionary()


def placed_of(state: ClusterState, key: str) -> list[Placement]:
    """Return the placements of a group's pods, assumed ones included."""
    return [state.placements[uid] for uid in _uids(state, key)]


def count_placed(state: ClusterState, key: str) -> int:
    """Return how many pods of a group have a node."""
    return len(_uids(state, key))


def topology_of_placed(state: ClusterState) -> str:
    """Return the label by which most groups with placed pods are constrained, "" where none is."""
    named = Counter(_placed(state).topologies.values())
    return min(named, key=lambda key: (-named[key], key), default="")


def _placed(state: ClusterState) -> _Placed:
    known = _PLACED.get(state)
    if known is None:
        known = _PLACED[state] = _Placed(state)
    return known


def _uids(state: ClusterState, key: str) -> Mapping[str, None]:
    return _placed(state).uids.get(key, _NOBODY)


# ---- the rules -------------------------------------------------------------------------------------------------------


def check(group: PodGroup, pods: Sequence[Pod]) -> None:
    """Raise `InvalidGroupError` where pods of a group, placed or not, differ in what they have to have in common."""
    policies = {group.preemption_policy} - {""}
    for pod in pods:
        if pod.scheduler_name != pods[0].scheduler_name:
            raise InvalidGroupError(
                "all pods in a single pod group should have the same .spec.schedulerName set, got: "
                f'"{pod.scheduler_name}" and "{pods[0].scheduler_name}"'
            )
        if pod.priority != group.priority:
            raise InvalidGroupError(
                "all pods in a single pod group should have the same priority as the pod group's priority, got "
                f"{pod.priority} and {group.priority}"
            )
        policies.add(pod.preemption_policy)
        if len(policies) > 1:
            raise InvalidGroupError(
                "all pods in a single pod group should have the same preemption policy"
                f"{' as the pod group' if group.preemption_policy else ''}, got {' and '.join(sorted(policies))}"
            )


def domains(state: ClusterState, group: PodGroup, placed: Sequence[Placement]) -> dict[str, Mask]:
    """Return the nodes [N] of each topology domain in which a group may be placed whole, by the domain's name.

    Without a constraint that is one domain of all nodes. Pods that are `placed` keep the others in their domain. Raises
    `InvalidGroupError` where these are in several, or in none.
    """
    if not group.topology_key:
        return {"": np.ones(len(state), dtype=np.bool_)}
    names = [node.labels.get(group.topology_key) for node in state.nodes]
    taken: dict[str, None] = {}
    for placement in placed:
        name = names[state.index[placement.node_name]]
        if name is None:
            raise InvalidGroupError(
                "cannot determine domain for already scheduled pods: no topology domain found for pod "
                f"{placement.pod.key}"
            )
        taken[name] = None
    if len(taken) > 1:
        raise InvalidGroupError(
            "cannot determine domain for already scheduled pods: more than 1 domain found for pod group: "
            f"{', '.join(taken)}"
        )
    found: dict[str, Mask] = {}
    for node_index, name in enumerate(names):
        if name is not None and (not taken or name in taken):
            found.setdefault(name, np.zeros(len(state), dtype=np.bool_))[node_index] = True
    return found


def progress(group: PodGroup, placed: int, remaining: int) -> tuple[Literal["success", "wait", "unschedulable"], str]:
    """Say what a trial has come to when so many pods have a node and so many are to be tried, with the message."""
    least = group.least
    counts = f"{placed} scheduled, {remaining} remaining"
    if placed + remaining < least:
        return "unschedulable", f"minCount ({least}) cannot be satisfied: {counts}"
    if placed < least:
        return "wait", f"minCount ({least}) is not yet satisfied: {counts}"
    return "success", ""


def fullness(state: ClusterState, nodes: Mask, pods: Sequence[Pod]) -> int:
    """Return how full these nodes [N] are in CPU and memory with the pods on them too, 0 to 100.

    So NodeResourcesFit scores a placement, whatever the strategy of its profile: by MostAllocated. Pods that request
    nothing count with the defaults, and resources of which there is nothing are left out.
    """
    scores = []
    for column, name in enumerate((CPU, MEMORY)):
        offered = state.allocatable[:, state.resource_index[name]] if name in state.resource_index else None
        if offered is None:
            continue
        counted = nodes & (offered > 0)
        capacity = int(offered[counted].sum())
        if capacity:
            asked = sum((pod.nonzero_containers or state.nonzero_request(pod))[column] for pod in pods)
            scores.append(min(asked + int(state.nonzero[counted, column].sum()), capacity) * _MOST // capacity)
    return sum(scores) // len(scores) if scores else 0


def placement_scores(fullnesses: Sequence[int], counts: Sequence[int]) -> list[int]:
    """Return the scores by which placements of one group are compared, from their fullness and their numbers of pods.

    The plugins NodeResourcesFit and PodGroupPodsCount have the same weight; `counts` holds pods placed before, too.
    """
    most = max(counts)
    return [full + count * _MOST // most for full, count in zip(fullnesses, counts, strict=True)]


# ---- a try -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Assignment:
    """A pod of a group and what it got in a trial."""

    pod: Pod
    node_name: str
    gpus: tuple[int, ...] | None = None
    volumes: VolumePlan | None = None


@dataclass(slots=True)
class _Trial:
    """What came of trying a group in one domain; `refused` says of pods without a node why, by uid."""

    domain: str
    assignments: list[Assignment] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    success: bool = False
    message: str = ""

    def copy(self) -> "_Trial":
        return replace(self, assignments=list(self.assignments), refused=dict(self.refused))


class GroupAttempt:
    """One try to place a group: whoever decides is asked for the `pod` at hand until `outcome` says what came of it.

    A decision is told by `place` or `skip`. In a trial the pods are assumed in the state; `turn`, once a trial is over,
    takes them out and goes on in the next domain. At a good end the pods of the best trial are assumed, and `placed`
    has them; at a bad end the state is as it was, and `message` says why. `ended` hands out the decisions of trials
    that are over: each pod, its node, and whether it was "tried", as the domain was one of several, or "failed".
    """

    def __init__(self, state: ClusterState, queued: QueuedGroup, rng: np.random.Generator) -> None:
        self.queued, self.group = queued, queued.group
        self._state, self._rng = state, rng
        self.outcome: Outcome = ""
        self.message = ""
        self.placed: tuple[Assignment, ...] = ()
        self.best: tuple[str, ...] = ()
        """The domains that suited the group equally, of which one was taken."""
        self.refused: Mapping[str, str] = {}
        self._trials: list[_Trial] = []
        self._ended: list[tuple[Pod, str, Literal["tried", "failed"]]] = []
        self._todo: list[Pod] = []
        self._over = False  # the trial under way is over, but its pods are still assumed
        self._pods = [each.pod for each in queued.waiting()]
        self._pods = [pod for pod in self._pods if not pod.terminating and pod.uid not in state.placements]
        before = placed_of(state, queued.pod.group_key)
        self._before = len(before)
        self._domains: dict[str, Mask] = {}
        self._domain = ""
        try:
            check(self.group, [*self._pods, *(placement.pod for placement in before)])
            self._domains = domains(state, self.group, before)
        except InvalidGroupError as error:
            self._end("error", str(error))
            return
        self._left = list(self._domains)
        if not self._pods:
            self._end("scheduled", "")
        elif self._left:
            self._begin()
        else:
            self._end("unschedulable", NO_DOMAINS)

    @property
    def state(self) -> ClusterState:
        """The state in which the group is tried."""
        return self._state

    @property
    def pods(self) -> Sequence[Pod]:
        """The pods that are tried, in their order."""
        return self._pods

    @property
    def pod(self) -> Pod | None:
        """The pod to be decided on; None where the try, or a trial of it, is over."""
        return None if self._over or self.outcome else self._todo[0]

    @property
    def domain(self) -> str:
        """The name of the domain of the trial under way, "" without a constraint."""
        return self._domain

    @property
    def todo(self) -> Sequence[Pod]:
        """The pods that are still to be tried in this trial, the one at hand first."""
        return () if self._over or self.outcome else self._todo

    def narrow(self, mask: Mask) -> Mask:
        """Return the feasible nodes [N] that are in the domain of this trial."""
        return mask if len(self._domains) == 1 and not self.group.topology_key else mask & self._domains[self._domain]

    def place(self, node_index: int, gpus: tuple[int, ...] | None, now_s: float) -> str:
        """Assume the pod at hand on a node, and return its name."""
        pod, state = self._todo.pop(0), self._state
        name, plan = state.names[node_index], None
        if pod.volumes.unbound:
            plan = plan_volumes(state, pod, node_index)
            plan.reserve(state, name)
        placement = state.assume(pod, name, gpus, now_s)
        self._trials[-1].assignments.append(Assignment(pod, name, placement.gpus or gpus, plan))
        self._judge()
        return name

    def skip(self, message: str) -> None:
        """Leave the pod at hand without a node in this trial."""
        self._trials[-1].refused[self._todo.pop(0).uid] = message
        self._judge()
        if self._over:
            self.turn(0.0)

    def turn(self, now_s: float) -> None:
        """Go on after a trial that is over: in the next domain, or with what is best. Else do nothing."""
        while self._over and not self.outcome:
            self._undo(self._trials[-1])
            self._over = False
            if self._left:
                self._begin()
            else:
                self._choose(now_s)

    def ended(self) -> list[tuple[Pod, str, Literal["tried", "failed"]]]:
        """Return the decisions that ended without a bind since the last call."""
        ended, self._ended = self._ended, []
        return ended

    def abandon(self) -> None:
        """End the try, whatever has come of it: the state is as it was, and the group may be tried again at once."""
        if not self.outcome:
            if self._trials and (self._over or self._todo):
                self._undo(self._trials[-1])
            self._over = False
            self._end("scheduled", "")

    def copy(self, state: ClusterState, queued: QueuedGroup, rng: np.random.Generator) -> "GroupAttempt":
        """Return an independent copy for a fork of the state and of the queue."""
        twin = object.__new__(GroupAttempt)
        twin.__dict__.update(self.__dict__)
        twin._state, twin.queued, twin._rng = state, queued, rng
        twin._trials = [trial.copy() for trial in self._trials]
        twin._ended, twin._todo, twin._left = list(self._ended), list(self._todo), list(self._left)
        return twin

    # ---- inside ------------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Begin with the next domain."""
        self._domain = self._left.pop(0)
        self._todo = list(self._pods)
        self._trials.append(_Trial(self._domain))
        status, message = progress(self.group, self._before, len(self._todo))
        if status == "unschedulable" or not self._todo:
            self._trials[-1].message = message or UNSCHEDULABLE
            self._over = True
            self.turn(0.0)

    def _judge(self) -> None:
        """See what a trial has come to after a pod."""
        trial, remaining = self._trials[-1], len(self._todo)
        status, trial.message = progress(self.group, self._before + len(trial.assignments), remaining)
        if status != "unschedulable" and remaining:
            return
        trial.success = status == "success" and bool(trial.assignments)
        self._over = True
        if trial.success and len(self._domains) == 1:
            self.best = (trial.domain,)
            self._take(trial)

    def _undo(self, trial: _Trial) -> None:
        several = len(self._domains) > 1
        for each in reversed(trial.assignments):
            self._state.forget(each.pod.uid)
            if each.volumes is not None:
                each.volumes.release(self._state)
        self._ended += [(each.pod, each.node_name, "tried" if several else "failed") for each in trial.assignments]

    def _choose(self, now_s: float) -> None:
        """Assume the best trial's pods again, or say that none was good."""
        good = [trial for trial in self._trials if trial.success]
        if not good:
            first = self._trials[0]
            why = f"{first.message or UNSCHEDULABLE}"
            said = f"0/{len(self._domains)} placements are available, first placement status: {why}"
            self.refused = first.refused
            self._end("unschedulable", f"{UNSCHEDULABLE}, {said}")
            return
        full = [
            fullness(self._state, self._domains[each.domain], [one.pod for one in each.assignments]) for each in good
        ]
        scores = placement_scores(full, [self._before + len(trial.assignments) for trial in good])
        best = [trial for trial, score in zip(good, scores, strict=True) if score == max(scores)]
        self.best = tuple(trial.domain for trial in best)
        chosen = best[int(self._rng.integers(len(best)))] if len(best) > 1 else best[0]
        for each in chosen.assignments:
            if each.volumes is not None:
                each.volumes.reserve(self._state, each.node_name)
            self._state.assume(each.pod, each.node_name, each.gpus, now_s)
        self._take(chosen)

    def _take(self, trial: _Trial) -> None:
        self.placed, self.refused = tuple(trial.assignments), trial.refused
        self._over = False
        self._end("scheduled", "")

    def _end(self, outcome: Outcome, message: str) -> None:
        self.outcome, self.message, self._todo = outcome, message, []
