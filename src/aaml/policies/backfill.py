"""Backfill: a policy that holds room for the oldest gang that waits, and lets others use it only until then.

EASY backfill (Lifka, The ANL/IBM SP Scheduling System, 1995) with racks, and with expected ends in place of those that
users promise. The gang's reservation is the domain in which its pods have room first, by the expected rests of the pods
that run there, and the nodes which are free by then. Another pod is placed on these nodes only where it is expected to
end before. Whoever is expected to end late, and has no other node, waits.

A gang that has waited for `PATIENCE_S` keeps its domain, and nobody is let in: it starts once the pods that run there
have ended, whatever was expected of them. So none waits for ever.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from aaml.cluster.gpu import DEVICE_MILLI
from aaml.cluster.objects import Pod
from aaml.cluster.state import ClusterState
from aaml.policies.heuristics import racks
from aaml.policies.heuristics.scored import PolicyOptions, ScorePolicy
from aaml.scheduling.cycle import spec_of
from aaml.scheduling.lifetimes import KnownLifetimes, LifetimeModel
from aaml.scheduling.observation import Context
from aaml.scheduling.pod_groups import count_placed
from aaml.scheduling.ports import Decision, Policy, shown
from aaml.scheduling.queue_sort import QueueSort

BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.int64]
PATIENCE_S = 4 * 3600.0
_MANY = 1 << 40
_LOOKS_AT = 512  # waiting pods among which the oldest gang is found
_MEDIAN = 0.5  # as many pods run longer than is expected here as do not


@dataclass(frozen=True)
class Reservation:
    """Where a gang is to start, and when; `nodes` bool [N]."""

    domain: str
    at_s: float
    nodes: BoolArray


class Backfill:
    """Narrows the nodes from which `inner` chooses.

    Pods wait in the order in which they came, and are tried again after a second: a gang that backs off for long, and
    then stands behind all newcomers, would not find the room that is held for it.
    """

    __repr__ = shown
    queue_sort = QueueSort()
    backoff_s = (1.0, 1.0)

    def __init__(self, name: str, inner: Policy, lifetimes: LifetimeModel, patience_s: float = PATIENCE_S) -> None:
        self.name = name
        self.inner, self.lifetimes, self.patience_s = inner, lifetimes, patience_s
        spec = spec_of(inner)
        self.observation_spec = replace(spec, lookahead=max(spec.lookahead, _LOOKS_AT))
        self._since_s: dict[str, float] = {}  # by gang: when it was first seen waiting
        self._kept: dict[str, str] = {}  # by gang: the domain that it keeps
        self._latest: tuple[object, Reservation | None] = (None, None)

    def act(self, context: Context) -> Decision:
        """Choose among the nodes that are not held for somebody else."""
        held = self._held(context)
        if held is None:
            return self.inner.act(context)
        mask = context.mask & ~held.nodes
        if not mask.any():
            return Decision(None)
        return self.inner.act(replace(context, mask=mask))

    def _held(self, context: Context) -> Reservation | None:
        """Return the reservation that this pod has to heed."""
        oldest = self._oldest(context)
        if oldest is None:
            return None
        members, waited_s = oldest
        key = members[0].group_key
        patient = waited_s < self.patience_s
        held = self._reservation(context, members, "" if patient else self._kept.get(key, ""))
        if held is None:
            return None
        if not patient:
            self._kept[key] = held.domain
            return held
        ends_s = context.now_s + self.lifetimes.remaining_at_s(context.pod, 0.0, _MEDIAN)
        return held if ends_s > held.at_s else None

    def _oldest(self, context: Context) -> tuple[Sequence[Pod], float] | None:
        """Return the waiting pods of the oldest gang and for how long it has waited; None where the pod is of it."""
        waiting: dict[str, list[Pod]] = {}
        for pod in (context.pod, *context.upcoming):
            if pod.group is not None and pod.group.seen and not pod.gates:
                waiting.setdefault(pod.group_key, []).append(pod)
        self._since_s = {key: self._since_s.get(key, context.now_s) for key in waiting}
        self._kept = {key: domain for key, domain in self._kept.items() if key in waiting}
        if not waiting:
            return None
        key = min(waiting, key=lambda each: (-waiting[each][0].priority, waiting[each][0].created_s))
        if key == context.pod.group_key or waiting[key][0].priority < context.pod.priority:
            return None
        return waiting[key], context.now_s - self._since_s[key]

    def _reservation(self, context: Context, members: Sequence[Pod], domain: str) -> Reservation | None:
        state, pod = context.state, members[0]
        wanted = max(pod.group.least - count_placed(state, pod.group_key), 1) if pod.group is not None else 1
        known = (pod.group_key, wanted, domain, context.now_s, len(state.placements), state.generation)
        if self._latest[0] != known:
            self._latest = known, reservation(state, pod, wanted, self.lifetimes, context.now_s, domain)
        return self._latest[1]


def reservation(
    state: ClusterState, pod: Pod, wanted: int, lifetimes: LifetimeModel, now_s: float, domain: str = ""
) -> Reservation | None:
    """Return where so many pods like this one have room first, in `domain` where one is named; None: nowhere.

    What a node has room for is counted in its resources and in whole GPUs.
    """
    key = pod.group.topology_key if pod.group is not None else ""
    rooms: dict[str, list[tuple[float, int, int]]] = {}  # by domain: when, on which node, room for so many more
    for node_index, node in enumerate(state.nodes):
        where = node.labels.get(key, "") if key else ""
        if (key and not where) or (domain and where != domain) or node.unschedulable:
            continue
        rooms.setdefault(where, []).extend(_rooms(state, node_index, pod, lifetimes, now_s))
    best: Reservation | None = None
    for where, entries in rooms.items():
        entries.sort()
        found, nodes = 0, np.zeros(len(state), dtype=np.bool_)
        for at_s, node_index, count in entries:
            nodes[node_index] = True
            found += count
            if found >= wanted:
                if best is None or at_s < best.at_s:
                    best = Reservation(where, at_s, nodes)
                break
    return best


def _rooms(
    state: ClusterState, node_index: int, pod: Pod, lifetimes: LifetimeModel, now_s: float
) -> list[tuple[float, int, int]]:
    """Return when a node is expected to have room for one more pod, and for how many more."""
    ends = []
    for uid in state.node_pods[node_index]:
        placement = state.placements[uid]
        rest_s = lifetimes.remaining_at_s(placement.pod, max(0.0, now_s - placement.since_s), _MEDIAN)
        ends.append((now_s + rest_s, placement))
    ends.sort(key=lambda each: each[0])
    free, devices = state.allocatable[node_index] - state.requested[node_index], state.gpu_free[node_index].copy()
    asked = state.request_vector(pod)
    rooms, before = [], _count(pod, asked, free, devices)
    if before:
        rooms.append((now_s, node_index, before))
    for at_s, placement in ends:
        free = free + state.request_vector(placement.pod)
        for device in placement.gpus:
            devices[device] = min(devices[device] + placement.pod.gpu.milli, DEVICE_MILLI)
        room = _count(pod, asked, free, devices)
        if room > before:
            rooms.append((at_s, node_index, room - before))
            before = room
    return rooms


def _count(pod: Pod, asked: IntArray, free: IntArray, devices: IntArray) -> int:
    """Return how many pods like this one have room in what is free of each resource [R] and each device [G]."""
    counted = asked > 0
    count = int((free[counted] // asked[counted]).min(initial=_MANY))
    if pod.gpu.total_milli:
        per_pod = pod.gpu.count if pod.gpu.milli == DEVICE_MILLI else 1
        count = min(count, int((devices >= pod.gpu.milli).sum()) // per_pod)
    return max(count, 0)


def rack_packing_backfill(options: PolicyOptions) -> Backfill:
    """Return rack-packing that holds room for the oldest gang, by lifetimes learned from the expected pods."""
    return _over_rack_packing("rack-packing-backfill", LifetimeModel.of_history(options.expected), options)


def clairvoyant_rack_packing_backfill(options: PolicyOptions) -> Backfill:
    """Return the same with the true lifetimes, which nobody knows."""
    return _over_rack_packing("clairvoyant-rack-packing-backfill", KnownLifetimes(), options)


def _over_rack_packing(name: str, lifetimes: LifetimeModel, options: PolicyOptions) -> Backfill:
    return Backfill(name, ScorePolicy(name, racks.rack_packing, replace(options, expected=())), lifetimes)
