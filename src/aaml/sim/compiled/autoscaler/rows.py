"""The memory of autoscalers in a batch: what can be bought in an episode, and what an environment has bought.

Sizes have the letters of `aaml.sim.compiled.rows`, and L nodes bought in an episode, E events to come, D ends of pods
to come, K types, U budgets, V corners of the fluid bound, H hours of carbon. A node is its *number*: the how-manieth
that was bought. It has a row while it is in the cluster.
"""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, NamedTuple

import numpy as np

from aaml.cluster.kernels import columns, named
from aaml.nodes.node_policy import NodePolicy
from aaml.sim.compiled.autoscaler.heap import Heap

TERMS = np.dtype(
    [(name, np.int64) for name in ("kinds", "corners", "hours", "budgets", "policy", "learned")]
    + [
        (name, np.float64)
        for name in (
            "consolidate_after_s", "batch_idle_duration_s", "batch_max_duration_s", "poll_s", "validation_s",
            "first_look_s", "registration_delay_s", "initialization_s", "initialization_spread_s", "min_drain_s",
            "grace_s", "recreate_s", "pod_event_s", "cpu_s", "memory_s", "larger_s", "rest", "work",
            "wait_target_s", "wait_per_hour", "eviction", "quiet_s", *(each.name for each in fields(NodePolicy)),
        )
    ]
)  # fmt: skip
"""What an episode's autoscaler is told (`aaml.nodes.settings`), and the order of waiting pods.

`consolidate_after_s`: NaN where no node ever goes. `learned`: whether nodes are bought by a `NodePolicy`, whose numbers
are here too, and not by Karpenter.
"""
STATE = np.dtype(
    [
        (name, np.int64)
        for name in (
            "alive", "bought", "sequence", "events", "ends", "method", "planned", "replaces", "used", "batch", "firsts",
            "noted", "cpu_milli", "memory_bytes", "ready", "released", "replaced", "replaced_too",
        )
    ]
    + [
        (name, np.float64)
        for name in (
            "opened_s", "latest_s", "due_s", "again_s", "state_s", "multi_s", "single_s", "changed_s", "metered_s",
            "price", "watts", "dollars", "fluid_dollars", "core_hours", "node_hours", "kwh", "co2_g", "slower",
            "loaded_s", "load", "fast_load", "slow_load", "cpu_worth", "memory_worth", "drained_s", "nothing_s",
            "replaced_s",
        )
    ]
)  # fmt: skip
"""How far an environment's autoscaler is, and its meter (`aaml.nodes.meter`).

`alive`: nodes that are paid. `batch`: the number of the batch of pods. `planned`: nodes of the plan that is to be
looked at once more; `replaces`: whether one takes their place. `firsts`: pods that had a node once. `noted`: pods that
were found to fit nowhere. `multi_s`, `single_s`: the state of the cluster in which these methods found nothing.

Of `aaml.nodes.learned`: `opened_s` is since when the pod waits that has waited longest of those that ask,
`due_s` the next look. `replaced`, `replaced_too`: the nodes that go once what was bought at `replaced_s` is ready, -1
for none. `nothing_s`, `released`: the state in which no node could go.
"""
OFFER = columns(("price", "worst", "watts_idle", "watts_per_core", "powered"))
"""Of each type: what a launch costs, at most; what a node draws without pods, and more for each core.

`powered`: what the type's value is divided by, the price times its cores to the policy's power.
"""
TRAIT = columns(("rank", "owned", "anew", "next_late"))
"""Of each pod: the place of its uid among all, and whether its owner makes it again, makes it from the start, and
makes it only once it has gone."""
NODE_TIME = columns(("launched_s", "initialized_s", "last_event_s", "nominated_s", "again_s", "draining_s"))
NODE = columns(
    ("kind", "row", "deleting", "asked", "first", "last", "pods", "kept", "awhile", "replaced", "next_replaced",
     "alive", "by_name", "plan", "used", "in_row")
)  # fmt: skip
"""Of each number a node, and lists of numbers.

`kind`: its type. `row`: -1 before it is in the cluster. `asked`: in which batch it asked for one. `first` and `last`:
the ends of the list of its pods, `pods`: how many these are, `kept`: how many of them may not be evicted, now or once,
`awhile`: how many of these may be after a time. `replaced`: the first of the nodes that go once it is ready,
`next_replaced`: the one after it. `alive`: those that are paid, in the order of purchase, `by_name` the same by name.
`plan`: those that may go, `used`: those that their pods had room on. `in_row`: that of each row.
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


class SupplyPool(NamedTuple):
    """What can be bought, and of whom: one a slot. See `aaml.sim.compiled.autoscaler.plan`."""

    terms: Any
    offers: Any
    prices: Any
    corners: Any
    carbon: Any
    budgets: Any
    names: Any
    spreads: Any
    pods: Any
    kept_s: Any


class SupplyRows(NamedTuple):
    """What environments have bought, one a row."""

    states: Any
    node_times: Any
    nodes: Any
    pod_times: Any
    pods: Any
    event_s: Any
    events: Any
    end_s: Any
    ends: Any
    plan_types: Any


class SupplyWork(NamedTuple):
    """Working memory of one thread.

    `free` and `left` are the room on nodes before and while pods are packed, whose numbers are `numbers`; `sizes`,
    `counts`, `order` and `fits` are the claims. `base`: pods that need room anyway. `held`: which of `packed` run.
    `paid`: what features of costs are made of. `inverse` is 1 over what nodes offer, `worth` what pods are worth,
    `rows` where they were placed, `bought` and `chosen` are types.
    """

    free: Any
    left: Any
    numbers: Any
    quiet: Any
    used: Any
    sizes: Any
    counts: Any
    order: Any
    fits: Any
    base: Any
    packed: Any
    held: Any
    candidates: Any
    weights: Any
    trial: Any
    paid: Any
    inverse: Any
    worth: Any
    rows: Any
    bought: Any
    chosen: Any


class Supply(NamedTuple):
    """The memory of all."""

    pool: SupplyPool
    rows: SupplyRows


class Owned(NamedTuple):
    """An environment's nodes and who buys them, as views.

    `moment` is the environment's `PROGRESS`; `shapes`, `shape_of`, `allocatable` and `requested` are its own. Columns
    of the other arrays are those above; `room` int64 [K, R] is what pods can have of each type, cheapest first.
    """

    at: Any
    terms: Any
    moment: Any
    shapes: Any
    shape_of: Any
    allocatable: Any
    requested: Any
    room: Any
    offers: Any
    corners: Any
    carbon: Any
    budgets: Any
    names: Any
    spreads: Any
    traits: Any
    kept_s: Any
    node_times: Any
    nodes: Any
    pod_times: Any
    pods: Any
    events: Heap
    ends: Heap
    plan_types: Any


@named
def owned_of(supply, env, b):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """Return what the environment in row `b` has bought."""
    pool, rows, w = supply.pool, supply.rows, env.at.slot
    return Owned(
        rows.states[b], pool.terms[w], env.at, env.shapes, env.pods.shape, env.nodes.allocatable, env.nodes.requested,
        pool.offers[w], pool.prices[w], pool.corners[w], pool.carbon[w], pool.budgets[w], pool.names[w],
        pool.spreads[w], pool.pods[w], pool.kept_s[w], rows.node_times[b], rows.nodes[b], rows.pod_times[b],
        rows.pods[b], Heap(rows.event_s[b], rows.events[b]), Heap(rows.end_s[b], rows.ends[b]), rows.plan_types[b],
    )  # fmt: skip


_F, _I, _S, _B = np.float64, np.int64, np.int32, np.bool_
SUPPLY_LAYOUT: Mapping[str, Mapping[str, tuple[Any, str]]] = {
    "SupplyPool": {
        "terms": (TERMS, "W"), "offers": (_I, "WKR"), "prices": (_F, "W5K"), "corners": (_F, "WV2"),
        "carbon": (_F, "WH"), "budgets": (_I, "W2U"), "names": (_I, "WL"), "spreads": (_F, "WL"), "pods": (_S, "W4T"),
        "kept_s": (_F, "WT"),
    },
    "SupplyRows": {
        "states": (STATE, "B"), "node_times": (_F, "B6L"), "nodes": (_S, "BnL"), "pod_times": (_F, "B4T"),
        "pods": (_S, "B8T"), "event_s": (_F, "BE"), "events": (_S, "B3E"), "end_s": (_F, "BD"), "ends": (_S, "B3D"),
        "plan_types": (_B, "BK"),
    },
    "SupplyWork": {
        "free": (_I, "LR"), "left": (_I, "LR"), "numbers": (_S, "L"), "quiet": (_B, "L"), "used": (_B, "L"),
        "sizes": (_I, "TR"), "counts": (_S, "T"), "order": (_S, "T"), "fits": (_B, "TK"), "base": (_S, "T"),
        "packed": (_S, "T"), "held": (_B, "T"), "candidates": (_S, "L"), "weights": (_F, "L"), "trial": (_B, "K"),
        "paid": (_F, "pN"), "inverse": (_F, "L2"), "worth": (_F, "T"), "rows": (_S, "T"), "bought": (_S, "T"),
        "chosen": (_S, "T"),
    },
}  # fmt: skip
"""As in `aaml.sim.compiled.rows`; `n`: the columns of `NODE`, `p`: those of `PAID`."""
NODE_COLUMNS = 16
