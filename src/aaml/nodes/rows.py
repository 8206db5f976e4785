"""The memory of node rules: a cluster at one moment as arrays, which compiled rules read and write.

A compiled episode holds these arrays for as long as it runs (`aaml.episodes.supply_rows`); `LearnedNodes` makes them
of an `Observed`. A node is its *number*, a type its place in the catalogue, a pod its place among the pods. K types, R
resources, L node numbers, T pods, G devices of a node.

What a rule takes as `own` is a `Seen`:

================  ==================  ==================================================================================
at                record              `STATE`: how far the autoscaler is
terms             record              `TERMS`: what it is configured to do
nodes             int32 [NODE, L]     columns of `NODE`
node_times        float64 [.., L]     columns of `NODE_TIME`
pods              int32 [POD, T]      columns of `POD`
pod_times         float64 [.., T]     columns of `POD_TIME`
traits            int32 [TRAIT, T]    columns of `TRAIT`
kept_s            float64 [T]         for how long on a node a pod may not be evicted, inf: for good
evicting          float64 [T]         what it counts to evict a pod (`aaml.nodes.karpenter.eviction`)
shapes            int64 [S, ..]       what pods ask for: `SHAPE_COLUMNS`, and from `SHAPE_REQUEST` on each resource
shape_of          int64 [T]           a pod's row in `shapes`
allocatable       int64 [rows, R]     what nodes offer that are in a row
requested         int64 [rows, R]     what their pods ask for
type_allocatable  int64 [K, R]        what pods can have of each type, cheapest first
offers            float64 [OFFER, K]  columns of `OFFER`
corners           float64 [C, 2]      of the fluid bound; a third column are GPUs
budgets           int64 [2, U]        how many nodes may go at once, and whether that is a percentage
names             int64 [L]           by what nodes' names are ordered
devices           int64 [K, G]        thousandths of each GPU of a type
gpu_left          int64 [rows, G]     thousandths that are left of each GPU
paid              float64 [L]         dollars an hour of each node
plan_types        int8 [K]            as what a node may be bought that takes the place of others: `PLAN_NO` and on
may               bool [T, K + L]     which types and nodes a pod's node selector and GPU models allow, or [T, K]
on_sale           bool [K]            which types can be had
blocked           bool [T]            whether a disruption budget keeps a pod from being evicted now
stuck             bool [T]            whether one never lets it go
stays             bool [L]            which nodes stay, whatever runs there
amounts           float64 [A]         what was committed to (`aaml.nodes.commitments.Book`), over a pool for each type
steps             float64 [A K, 3]    in which order that pays for nodes
================  ==================  ==================================================================================

Those from `may` to `stays` have no elements where there is nothing to tell: no selectors, all on sale, no budgets, none
that stays.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from aaml.cluster.kernels import Reference, columns, inlined, outlined, referent
from aaml.nodes.node_policy import NodePolicy
from aaml.policies.gpu.arrays import SHAPE_COLUMNS
from aaml.scheduling.costs import is_released

Array = npt.NDArray[Any]
Record = Any
"""A record of numbers (`record`), whose fields compiled code knows by name."""
Number = int | np.integer[Any]
SHAPE_TOLERANCE, SHAPE_PICKY = len(SHAPE_COLUMNS), len(SHAPE_COLUMNS) + 1  # of `shapes`, after `SHAPE_COLUMNS`
SHAPE_REQUEST = SHAPE_PICKY + 1  # from here on what the shape asks of each resource

OFFER = columns(("price", "worst", "watts_idle", "watts_per_core", "powered", "spot", "spot_worst"))
"""Of each type: what a launch costs, at most; what a node draws without pods, and more for each core.

`spot`, `spot_worst`: what a launch as spot costs, at most; inf where there is none.

`powered`: what the type's value is divided by, the price times its cores to the policy's power.
"""
WAY = columns(("kind", "price", "worst", "spot", "spot_worst"))
"""Of the types that a claim may be of, in the order in which they are offered: the number, and prices as in `OFFER`."""
TRAIT = columns(("rank", "owned", "anew", "next_late", "descheduled", "priority", "qos"))
"""Of each pod: the place of its uid among all, and whether its owner makes it again, makes it from the start, and
makes it only once it has gone. Where there is a descheduler, whether it may evict it, the priority and the class of
service, by which it orders pods."""
NODE_TIME = columns(
    ("launched_s", "initialized_s", "last_event_s", "nominated_s", "again_s", "draining_s", "unneeded_s")
)
NODE = columns(
    ("kind", "row", "deleting", "asked", "first", "last", "pods", "kept", "awhile", "replaced", "next_replaced",
     "alive", "by_name", "plan", "used", "in_row", "spot")
)  # fmt: skip
"""Of each number a node, and lists of numbers.

`kind`: its type. `row`: -1 before it is in the cluster. `asked`: in which batch it asked for one. `first` and `last`:
the ends of the list of its pods, `pods`: how many these are, `kept`: how many of them may not be evicted, now or once,
`awhile`: how many of these may be after a time. `replaced`: the first of the nodes that go once it is ready,
`next_replaced`: the one after it. `alive`: those that are paid, in the order of purchase, `by_name` the same by name.
`plan`: those that may go, `used`: those that their pods fitted on. `in_row`: that of each row.
"""
POD_TIME = columns(("created_s", "again_s", "released_s", "noted_s"))
"""Of each pod; `released_s`: when it may be evicted from the node that it is on. `noted_s`: when it was found to fit
nowhere."""
POD = columns(("after", "before", "noted", "waiting", "asked", "first", "stopping", "end"))
"""Of each pod, and a list of pods.

`after` and `before`: its neighbours in its node's list. `waiting`: those that were found to fit nowhere and still wait,
`noted`: a pod's place in that list, -1 for none. `asked`: in which batch it asked for a node. `first`: it was the
how-manieth to get a node for the first time. `end`: the number of its end to come, -1 without a node.
"""


def record(integers: Sequence[str], floats: Sequence[str]) -> np.dtype[np.void]:
    """Return the type of a record of int64 and float64 numbers."""
    return np.dtype([*((name, np.int64) for name in integers), *((name, np.float64) for name in floats)])


TERMS = record(
    (
        "kinds", "corners", "hours", "budgets", "policy", "spot_to_spot", "learned", "scans", "rule", "by_node",
        "least_waste", "max_empty_bulk_delete", "max_nodes_total", "commitments", "steps", "knows", "descheduler",
        "pods_column", "number_of_nodes", "most_of_node", "most_of_round",
    ),
    (
        "consolidate_after_s", "batch_idle_duration_s", "batch_max_duration_s", "poll_s", "validation_s",
        "first_look_s", "registration_delay_s", "initialization_s", "initialization_spread_s", "min_drain_s",
        "grace_s", "recreate_s", "retry_s", "join_step_s", "failed_try_s", "pod_event_s", "cpu_s", "memory_s",
        "larger_s", "rest", "work", "wait_target_s", "wait_per_hour", "eviction", "consolidatable_s", "scan_interval_s",
        "scale_down_utilization_threshold", "scale_down_unneeded_time_s", "scale_down_delay_after_add_s", "committed",
        "descheduling_interval_s", "first_round_s", "low_cpu", "low_memory", "low_pods",
        *(each.name for each in fields(NodePolicy)),
    ),
)  # fmt: skip
"""What an autoscaler is configured to do (`aaml.nodes.settings`, `NodePolicy`), and in episodes the order of waiting
pods.

`kinds`, `corners`, `hours`, `budgets`: how many there are of each. `learned`: whether a `NodePolicy` says what is
provisioned, `scans`: whether the Cluster Autoscaler does, else Karpenter; `rule`: where its compiled `decide` is
(`call_at`). `by_node`: whether `may` tells nodes apart; else a node is allowed as its type is. `consolidate_after_s`:
NaN where no node ever goes. `commitments`, `steps`: how many there are, `committed`: what they cost, dollars an hour,
`knows`: whether learned nodes decide by them. `descheduler`: where what asks it is, 0 without one; what follows is
for it (`aaml.nodes.descheduler.round_terms`). `pods_column`: that of places for pods, among resources.
"""
STATE = record(
    (
        "alive", "planned", "replaces", "noted", "ready", "released", "replaced", "replaced_too", "bought", "sequence",
        "events", "ends", "method", "used", "batch", "firsts", "cpu_milli", "memory_bytes", "gpu_milli", "packer",
        "running", "candidates", "tried", "evicted_now", "room_cpu", "room_memory", "room_pods",
    ),
    (
        "now_s", "opened_s", "latest_s", "due_s", "again_s", "changed_s", "slower", "loaded_s", "load", "fast_load",
        "slow_load", "cpu_worth", "memory_worth", "gpu_worth", "drained_s", "nothing_s", "replaced_s", "state_s",
        "multi_s", "single_s", "added_s", "metered_s", "price", "watts", "dollars", "fluid_dollars", "core_hours",
        "node_hours", "pod_hours", "kwh", "co2_g", "launch_s", "lead_s", "patience_s", "evicted",
        "last_load", "variation", "off", "round_s", "wanted_cpu", "wanted_memory",
    ),
)  # fmt: skip
"""How far an autoscaler is at `now_s`; in episodes also the meter (`aaml.nodes.meter`) and what is to come.

`alive`: nodes that are paid; `noted`: pods that wait; `planned`: nodes of `NODE.plan`; `replaces`: whether a node takes
their place. `opened_s`, `latest_s`: when the batch of pods that ask for nodes was opened, and when one has asked last;
`due_s`: the next look, `again_s`: when a pod asks again, `changed_s`: when the cluster last changed.

Of learned nodes, `replaced` and `replaced_too`: the nodes that go once what was bought at `replaced_s` is ready, -1 for
none. `nothing_s`, `released`: the state in which no node could go. `load`: dollars an hour that pods are worth, by the
dual prices `cpu_worth`, `memory_worth` and `gpu_worth`; `wanted_cpu`, `wanted_memory`: what they ask for together.
`fast_load` and `slow_load` are averages of the load, `variation` the mean square of its changes for each second
(`last_load`: the one before), `slower` how many times as long as usual nodes are not bought. `launch_s`: how long nodes
take to come, `lead_s`: how much earlier than that before a promised second they are bought, `patience_s`: how long a
pod waits by a promised mean. `evicted`: pods that were, so far.

Of the Cluster Autoscaler, `added_s`: when a group last grew.

Of the descheduler, `round_s`: its next round. Of a round, `candidates`: pods of `work.base` that may go, of which so
many were `tried` and `evicted_now`; `room_cpu`, `room_memory`, `room_pods`: what is left on nodes that are used well.

Of Karpenter, `batch`: the number of the batch, `method`: the one whose turn it is, `state_s`: the cluster as
consolidation sees it, `multi_s` and `single_s`: the state in which these methods found nothing, `used`: nodes of
`NODE.used`. `packer`: the address of a function that packs pods which ask for more than resources, 0 for none.

Of episodes, `bought`: numbers given, `sequence`, `events` and `ends`: of what is to come, `firsts`: pods that had a
node once.
"""
NOTHING, BUYS, DELETES, DELETES_EACH, REPLACES, EVICTS = range(6)
"""What a rule orders: nothing; `work.bought`; that the nodes of the plan go at once, or one after the other;
`work.bought` first, and that they go once it is ready; or that a pod goes."""
PLAN_NO, PLAN_ANY, PLAN_SPOT = range(3)  # not at all; in whichever way is launched; as spot


class Seen(NamedTuple):
    """A cluster at one moment, with who buys its nodes."""

    at: Any
    terms: Any
    nodes: Array
    node_times: Array
    pods: Array
    pod_times: Array
    traits: Array
    kept_s: Array
    evicting: Array
    shapes: Array
    shape_of: Array
    allocatable: Array
    requested: Array
    type_allocatable: Array
    offers: Array
    corners: Array
    budgets: Array
    names: Array
    devices: Array
    gpu_left: Array
    paid: Array
    plan_types: Array
    may: Array
    on_sale: Array
    blocked: Array
    stuck: Array
    stays: Array
    amounts: Array
    steps: Array


class RuleWork(NamedTuple):
    """Working memory of a rule, for rows of nodes and lists of pods.

    ===================  ==============  ===========================================================================
    free, left           int64 [L, R]    what is left of the nodes of `numbers`, before and while pods are placed
    gpu_free, gpu_left   int64 [L, G]    the same of their devices
    numbers              int32 [L]       of rows; of a new node of a type its place in the catalogue, less K
    inverse              float64 [L, 2]  1 over the CPU and memory that they offer
    consolidatable       bool [L]        nodes that running pods may be moved to
    used, gone           bool [L]        nodes that were given pods, that go
    base, packed         int32 [T]       pods
    marked               bool [T]        learned: which of them still need a node; Karpenter: which of them run
    worth                float64 [T]     dollars an hour of the pods that were put in order last
    rows                 int32 [T]       where pods were placed, -1 for nowhere
    bought, chosen       int32 [T]       types
    candidates, weights  int32, float64  [L], nodes that may go, and by what they are ordered
    sizes                int64 [T, R]    what the pods of a claim ask for
    shares               int64 [T, G]    thousandths left of the GPUs of which its pods have something
    opened, counts       int32 [T]       how many GPUs these are, and how many pods it has
    fits                 bool [T, K]     which types are left
    order                int32 [T]       the claims, those with the fewest pods first
    trial                int8 [K]        as what a node may be bought that takes the place of others
    ways                 float64 [5, K]  columns of `WAY` of the claim that nodes are replaced by
    there, on_demand     float64 [K]     nodes of each type, and how many of them no commitment pays for
    unspent              float64 [A]     what is left of commitments
    adds, saves          float64 [K]     the share of its price that one more node adds, that one less saves
    """

    free: Array
    left: Array
    gpu_free: Array
    gpu_left: Array
    numbers: Array
    inverse: Array
    consolidatable: Array
    used: Array
    gone: Array
    base: Array
    packed: Array
    marked: Array
    worth: Array
    rows: Array
    bought: Array
    chosen: Array
    candidates: Array
    weights: Array
    sizes: Array
    shares: Array
    opened: Array
    counts: Array
    fits: Array
    order: Array
    trial: Array
    ways: Array
    there: Array
    on_demand: Array
    unspent: Array
    adds: Array
    saves: Array


RuleReference = Reference[tuple[Seen, RuleWork]]
"""What rules are asked about, as they hand it on."""
_F, _I, _S, _B = np.float64, np.int64, np.int32, np.bool_
WORK_LAYOUT: Mapping[str, tuple[Any, str]] = {
    "free": (_I, "LR"), "left": (_I, "LR"), "gpu_free": (_I, "LJ"), "gpu_left": (_I, "LJ"), "numbers": (_S, "L"),
    "inverse": (_F, "L2"), "consolidatable": (_B, "L"), "used": (_B, "L"), "gone": (_B, "L"), "base": (_S, "T"),
    "packed": (_S, "T"), "marked": (_B, "T"), "worth": (_F, "T"), "rows": (_S, "T"), "bought": (_S, "T"),
    "chosen": (_S, "T"), "candidates": (_S, "L"), "weights": (_F, "L"), "sizes": (_I, "TR"), "shares": (_I, "TJ"),
    "opened": (_S, "T"), "counts": (_S, "T"), "fits": (_B, "TK"), "order": (_S, "T"), "trial": (np.int8, "K"),
    "ways": (_F, "5K"), "there": (_F, "K"), "on_demand": (_F, "K"), "unspent": (_F, "A"), "adds": (_F, "K"),
    "saves": (_F, "K"),
}  # fmt: skip
"""Types and sizes of `RuleWork`: L rows of nodes, T pods, K types, R resources, J devices of a node, A commitments."""


@inlined
def _copy_rows(left: Array, gpu_left: Array, free: Array, gpu_free: Array, rows: int) -> None:
    """Write what the first `rows` have free over what is left of them."""
    for row in range(rows):
        for r in range(free.shape[1]):
            left[row, r] = free[row, r]
        copy_devices(gpu_left, row, gpu_free, row)


@inlined
def begin_to_place(work: RuleWork, rows: int) -> None:
    """Begin to place pods on the first `rows`."""
    _copy_rows(work.left, work.gpu_left, work.free, work.gpu_free, rows)


@inlined
def keep_places(work: RuleWork, rows: int) -> None:
    """Let the pods that were placed on the first `rows` have their places."""
    _copy_rows(work.free, work.gpu_free, work.left, work.gpu_left, rows)


@outlined
def measure_free(ref: RuleReference) -> tuple[int, int]:
    """Measure the nodes that are not on their way out, those that are ready first and then by name.

    Writes `work.numbers`, and what is left of them into `work.free` and `work.gpu_free`. Returns how many there are,
    and how many of them are ready.
    """
    own, work = referent(ref)
    at, count, ready = own.at, 0, 0
    for in_making in range(2):
        for i in range(at.alive):
            number = own.nodes[NODE.by_name, i]
            making = np.isnan(own.node_times[NODE_TIME.initialized_s, number])
            if own.nodes[NODE.deleting, number] or making != (in_making == 1):
                continue
            work.numbers[count] = number
            row = own.nodes[NODE.row, number]
            for r in range(own.type_allocatable.shape[1]):
                if row >= 0:
                    work.free[count, r] = own.allocatable[row, r] - own.requested[row, r]
                else:
                    work.free[count, r] = own.type_allocatable[own.nodes[NODE.kind, number], r]
            copy_devices(
                work.gpu_free,
                count,
                own.gpu_left if row >= 0 else own.devices,
                row if row >= 0 else own.nodes[NODE.kind, number],
            )
            count += 1
        if in_making == 0:
            ready = count
    return count, ready


@inlined
def copy_devices(into: Array, row: int, devices: Array, of: int) -> None:
    """Write one row of devices over another."""
    for device in range(into.shape[1]):
        into[row, device] = devices[of, device]


@inlined
def kept_pods(own: Seen, number: Number) -> int:
    """Return how many pods of a node may not be disrupted now: `Observed.is_kept`."""
    kept = own.nodes[NODE.kept, number]
    if own.nodes[NODE.awhile, number] > 0:
        pod = own.nodes[NODE.first, number]
        while pod >= 0:
            kept -= own.kept_s[pod] > 0.0 and is_released(own.pod_times[POD_TIME.released_s, pod], own.at.now_s)
            pod = own.pods[POD.after, pod]
    return kept


@inlined
def is_kept(own: Seen, pod: int) -> bool:
    """Whether a pod may not be disrupted now, as its annotations say: `Observed.is_kept`."""
    return own.kept_s[pod] > 0.0 and not is_released(own.pod_times[POD_TIME.released_s, pod], own.at.now_s)


@inlined
def blocked_pods(own: Seen, number: Number) -> int:
    """Return how many pods of a node a disruption budget keeps from being evicted now."""
    blocked, pod = 0, own.nodes[NODE.first, number]
    while pod >= 0 and own.blocked.shape[0] > 0:
        blocked += own.blocked[pod]
        pod = own.pods[POD.after, pod]
    return blocked
