"""The memory of autoscalers in a batch: what can be bought in an episode, and what an environment has bought.

Sizes have the letters of `aaml.episodes.rows`, and L nodes bought in an episode, E events to come, D ends of pods
to come, K types, U budgets, V corners of the fluid bound, H hours of carbon. A node is its *number*: the how-manieth
that was bought. It has a row while it is in the cluster.
"""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, NamedTuple

import numpy as np

from aaml.cluster.kernels import named, part
from aaml.episodes.heap import Heap
from aaml.nodes.meter import hold
from aaml.nodes.node_policy import NodePolicy
from aaml.nodes.rows import LEARNED_NUMBERS, LEARNED_TIMES, record

TERMS = record(
    ("kinds", "corners", "hours", "budgets", "policy", "learned"),
    (
        "consolidate_after_s", "batch_idle_duration_s", "batch_max_duration_s", "poll_s", "validation_s",
        "first_look_s", "registration_delay_s", "initialization_s", "initialization_spread_s", "min_drain_s",
        "grace_s", "recreate_s", "pod_event_s", "cpu_s", "memory_s", "larger_s", "rest", "work",
        "wait_target_s", "wait_per_hour", "eviction", "quiet_s", *(each.name for each in fields(NodePolicy)),
    ),
)  # fmt: skip
"""What an episode's autoscaler is told (`aaml.nodes.settings`), and the order of waiting pods.

`consolidate_after_s`: NaN where no node ever goes. `learned`: whether nodes are bought by a `NodePolicy`, whose numbers
are here too, and not by Karpenter.
"""
STATE = record(
    (
        *LEARNED_NUMBERS, "bought", "sequence", "events", "ends", "method", "used", "batch", "firsts", "cpu_milli",
        "memory_bytes", "gpu_milli",
    ),
    (
        *LEARNED_TIMES, "state_s", "multi_s", "single_s", "metered_s", "price", "watts", "dollars", "fluid_dollars",
        "core_hours", "node_hours", "kwh", "co2_g",
    ),
)  # fmt: skip
"""How far an environment's autoscaler is, and its meter (`aaml.nodes.meter`).

`batch`: the number of the batch of pods. `planned`: nodes of the plan that is to be looked at once more; `replaces`:
whether one takes their place. `firsts`: pods that had a node once. `multi_s`, `single_s`: the state of the cluster in
which these methods found nothing. The others are those of `aaml.nodes.rows`.
"""


class SupplyPool(NamedTuple):
    """What can be bought, and of whom: one a slot. See `aaml.episodes.supply_plan`."""

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

    `sizes`, `counts`, `order` and `fits` are the claims. `base`: pods that need room anyway. `held`: which of `packed`
    run. `paid`: what features of costs are made of. The others are those of `aaml.nodes.learned_rules`.
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
    gpu_free: None = None
    gpu_left: None = None


class Supply(NamedTuple):
    """The memory of all."""

    pool: SupplyPool
    rows: SupplyRows


class Owned(NamedTuple):
    """An environment's nodes and who buys them, as views: a cluster as `aaml.nodes.rows` has it, and what is to come.

    `moment` is the environment's `PROGRESS`.
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
    devices: None
    gpu_left: None
    paid: None
    may: None
    on_sale: None
    blocked: None
    stays: None


@named
def owned_of(supply, env, b):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """Return what the environment in row `b` has bought."""
    pool, rows, w = supply.pool, supply.rows, env.at.slot
    return Owned(
        rows.states[b], pool.terms[w], env.at, env.shapes, env.pods.shape, env.nodes.allocatable, env.nodes.requested,
        pool.offers[w], pool.prices[w], pool.corners[w], pool.carbon[w], pool.budgets[w], pool.names[w],
        pool.spreads[w], pool.pods[w], pool.kept_s[w], rows.node_times[b], rows.nodes[b], rows.pod_times[b],
        rows.pods[b], Heap(rows.event_s[b], rows.events[b]), Heap(rows.end_s[b], rows.ends[b]), rows.plan_types[b],
        None, None, None, None, None, None, None,
    )  # fmt: skip


@part
def run_meter(own, now_s):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """Count what is as it was until now."""
    hold(own.at, own.corners[: own.terms.corners], own.carbon[: own.terms.hours], now_s)


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
"""As in `aaml.episodes.rows`; `n`: the columns of `NODE`, `p`: those of `PAID`."""
NODE_COLUMNS = 16
