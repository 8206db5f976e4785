"""The rule of the descheduler's HighNodeUtilization, compiled: `aaml.nodes.descheduler` says what it is for.

Names of files are those below pkg of its source.
"""

import numpy as np

from aaml.cluster.kernels import inlined, referent, without_refcount
from aaml.cluster.state import CPU_COLUMN, MEMORY_COLUMN
from aaml.nodes.rows import (
    EVICTS,
    NODE,
    NODE_TIME,
    NOTHING,
    POD,
    SHAPE_REQUEST,
    TRAIT,
    Number,
    Record,
    RuleReference,
    RuleWork,
    Seen,
)


@without_refcount
def is_due(at: Record) -> bool:
    """Whether a round begins now."""
    return bool(at.round_s <= at.now_s)


@without_refcount
def decide(ref: RuleReference) -> tuple[int, int]:
    """Begin a round when it is time, else go on with it; returns `EVICTS` and a pod, `NOTHING` once none is left.

    `work.base`, `work.packed` and `work.candidates` are to stay as they are between the evictions of a round.
    """
    own, work = referent(ref)
    if is_due(own.at):
        own.at.round_s = own.at.now_s + own.terms.descheduling_interval_s
        _begin_round(own, work)
    pod = _next_pod(own, work)
    return EVICTS if pod >= 0 else NOTHING, int(pod)


@inlined
def _begin_round(own: Seen, work: RuleWork) -> None:
    """Tell nodes that are used too little from the others (Balance of nodeutilization/highnodeutilization.go)."""
    at, pods, low, some_stay = own.at, own.terms.pods_column, 0, False
    at.candidates, at.tried, at.evicted_now = 0, 0, 0
    at.room_cpu, at.room_memory, at.room_pods = 0, 0, 0
    for i in range(at.alive):
        number = own.nodes[NODE.alive, i]
        work.candidates[number] = 0
        if np.isnan(own.node_times[NODE_TIME.initialized_s, number]):
            continue
        if _is_low(own, number):
            _insert_node(own, work, low, number)
            low += 1
            continue
        # Autoscalers taint nodes that go, and do not cordon them: they count as room, but no pod tolerates the taint.
        some_stay |= own.nodes[NODE.deleting, number] == 0
        row = own.nodes[NODE.row, number]
        at.room_cpu += own.allocatable[row, CPU_COLUMN] - own.requested[row, CPU_COLUMN]
        at.room_memory += own.allocatable[row, MEMORY_COLUMN] - own.requested[row, MEMORY_COLUMN]
        at.room_pods += own.allocatable[row, pods] - own.requested[row, pods]
    if low > own.terms.number_of_nodes and some_stay:
        for k in range(low):
            _list_pods(own, work, work.numbers[k])


@inlined
def _next_pod(own: Seen, work: RuleWork) -> Number:
    """Return the next pod of a round, -1 once there is none (evictPods of nodeutilization.go).

    A pod that a disruption budget protects is passed over, and tried again in the next round.
    """
    at, terms, found = own.at, own.terms, np.int64(-1)
    while (
        found < 0
        and at.tried < at.candidates
        and at.evicted_now < terms.most_of_round
        and min(at.room_cpu, at.room_memory, at.room_pods) > 0
    ):
        pod, number = work.base[at.tried], work.packed[at.tried]
        at.tried += 1
        blocked = own.blocked.shape[0] > 0 and own.blocked[pod]
        if not blocked and work.candidates[number] < terms.most_of_node:
            shape = own.shapes[own.shape_of[pod]]
            at.room_cpu -= shape[SHAPE_REQUEST + CPU_COLUMN]
            at.room_memory -= shape[SHAPE_REQUEST + MEMORY_COLUMN]
            at.room_pods -= shape[SHAPE_REQUEST + terms.pods_column]
            work.candidates[number] += 1
            at.evicted_now += 1
            found = np.int64(pod)
    return found


@inlined
def _is_low(own: Seen, number: Number) -> bool:
    """Whether no resource with a threshold is used by more than that."""
    row, terms = own.nodes[NODE.row, number], own.terms
    low: bool = (
        _percent(own, row, CPU_COLUMN) <= terms.low_cpu
        and _percent(own, row, MEMORY_COLUMN) <= terms.low_memory
        and _percent(own, row, terms.pods_column) <= terms.low_pods
    )
    return low


@inlined
def _percent(own: Seen, row: Number, column: Number) -> float:
    offered = own.allocatable[row, column]
    return 100.0 * (own.requested[row, column] / max(offered, 1)) if offered != 0 else 0.0


@inlined
def _insert_node(own: Seen, work: RuleWork, count: int, number: Number) -> None:
    """Put a node into `work.numbers`, the least used first, and then by name."""
    row, place = own.nodes[NODE.row, number], count
    used = (
        own.requested[row, CPU_COLUMN] + own.requested[row, MEMORY_COLUMN] + own.requested[row, own.terms.pods_column]
    )
    while place > 0:
        other, others = work.numbers[place - 1], work.weights[place - 1]
        if others < used or (others == used and own.names[other] < own.names[number]):
            break
        work.numbers[place], work.weights[place] = other, others
        place -= 1
    work.numbers[place], work.weights[place] = number, used


@inlined
def _list_pods(own: Seen, work: RuleWork, number: Number) -> None:
    """List the pods of a node that may go: the lowest priority first, then the lowest class (pod/pods.go)."""
    at, pod = own.at, own.nodes[NODE.first, number]
    begin = at.candidates
    while pod >= 0:
        if own.traits[TRAIT.descheduled, pod] and not own.pods[POD.stopping, pod]:
            place = at.candidates
            while place > begin and _goes_before(own, pod, work.base[place - 1]):
                work.base[place] = work.base[place - 1]
                place -= 1
            work.base[place], work.packed[at.candidates] = pod, number
            at.candidates += 1
        pod = own.pods[POD.after, pod]


@inlined
def _goes_before(own: Seen, pod: Number, other: Number) -> bool:
    mine, its = own.traits[TRAIT.priority, pod], own.traits[TRAIT.priority, other]
    lower: bool = own.traits[TRAIT.qos, pod] < own.traits[TRAIT.qos, other]
    return bool(mine < its) or (bool(mine == its) and lower)
