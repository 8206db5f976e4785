"""The memory of autoscalers in a batch: what can be bought in an episode, and what an environment has bought.

Sizes have the letters of `aaml.episodes.rows`, and L nodes bought in an episode, E events to come, D ends of pods
to come, K types, U budgets of nodes, Q of pods, X pods that these may protect, V corners of the fluid bound, H hours
of carbon. A node is its *number*: the how-manieth
that was bought. It has a row while it is in the cluster.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from aaml.cluster.kernels import by_class, inlined
from aaml.episodes.heap import Heap
from aaml.episodes.rows import Env
from aaml.nodes.meter import hold
from aaml.nodes.rows import STATE, TERMS, WORK_LAYOUT, RuleWork, Seen


class SupplyPool(NamedTuple):
    """What can be bought, and of whom: one a slot. See `aaml.episodes.supply_plan`."""

    terms: Any
    offers: Any
    prices: Any
    corners: Any
    carbon: Any
    budgets: Any
    names: Any
    choices: Any
    spreads: Any
    endures: Any
    alike: Any
    pods: Any
    kept_s: Any
    evicting: Any
    protected: Any
    selected: Any
    limits: Any
    stuck: Any
    devices: Any
    models: Any
    may: Any
    on_sale: Any
    stays: Any
    amounts: Any
    steps: Any


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
    paid: Any
    plan_types: Any
    blocked: Any


class SupplyWork(NamedTuple):
    """Working memory of one thread: that of rules, and what features of costs are made of."""

    rule: RuleWork
    paid: Any


class Supply(NamedTuple):
    """The memory of all."""

    pool: SupplyPool
    rows: SupplyRows


class Owned(NamedTuple):
    """An environment's nodes and who provisions them, as views: a cluster as rules see it, and what is to come.

    `protected` [X]: the number of the budget that protects a pod, or what `aaml.nodes.budgets` says in its place;
    `selected` [Q, X]: of which pods each is; `limits` [Q, LIMIT]. `endures` [C]: which kinds of toleration allow a
    cordoned node. `alike` [K, 2]: in how many ways a type costs what a launch pays, and which of them are spot, as
    bits; `choices` [L]: by what a node takes one.
    """

    seen: Seen
    protected: Any
    selected: Any
    limits: Any
    endures: Any
    alike: Any
    choices: Any
    models: Any
    carbon: Any
    spreads: Any
    events: Heap
    ends: Heap


def _owned_of(supply: Any, env: Env, b: int) -> Owned | None:
    """Return what the environment in row `b` has bought, None where nodes stay."""
    pool, rows, w = supply.pool, supply.rows, env.at.slot
    seen = Seen(
        rows.states[b], pool.terms[w], rows.nodes[b], rows.node_times[b], rows.pods[b], rows.pod_times[b],
        pool.pods[w], pool.kept_s[w], pool.evicting[w], env.shapes, env.pods.shape, env.nodes.allocatable,
        env.nodes.requested, pool.offers[w], pool.prices[w], pool.corners[w], pool.budgets[w], pool.names[w],
        pool.devices[w], env.nodes.gpu_free, rows.paid[b], rows.plan_types[b], pool.may[w], pool.on_sale[w],
        rows.blocked[b], pool.stuck[w], pool.stays[w], pool.amounts[w], pool.steps[w],
    )  # fmt: skip
    return Owned(
        seen,
        pool.protected[w],
        pool.selected[w],
        pool.limits[w],
        pool.endures[w],
        pool.alike[w],
        pool.choices[w],
        pool.models[w],
        pool.carbon[w],
        pool.spreads[w],
        Heap(rows.event_s[b], rows.events[b]),
        Heap(rows.end_s[b], rows.ends[b]),
    )


def _none_owned(supply: Any, env: Env, b: int) -> Owned | None:  # noqa: ARG001
    return None


owned_of = by_class(0, {Supply: _owned_of, None: _none_owned})


@inlined
def run_meter(own: Owned, now_s: float) -> None:
    """Count what is as it was until now."""
    seen = own.seen
    hold(seen.at, seen.corners[: seen.terms.corners], own.carbon[: seen.terms.hours], now_s)


_F, _I, _S, _B = np.float64, np.int64, np.int32, np.bool_
SUPPLY_LAYOUT: Mapping[str, Mapping[str, tuple[Any, str]]] = {
    "SupplyPool": {
        "terms": (TERMS, "W"), "offers": (_I, "WKR"), "prices": (_F, "WoK"), "corners": (_F, "WV3"),
        "carbon": (_F, "WH"), "budgets": (_I, "W2U"), "names": (_I, "WL"), "choices": (_I, "WL"), "spreads": (_F, "WL"),
        "endures": (_B, "WC"), "alike": (_I, "WK2"), "pods": (_S, "WtT"), "kept_s": (_F, "WT"), "evicting": (_F, "WT"),
        "protected": (_S, "WX"), "selected": (_B, "WQX"), "limits": (_I, "WQ3"), "stuck": (_B, "WX"),
        "devices": (_I, "WKJ"), "models": (_I, "WK"), "may": (_B, "WYZ"), "on_sale": (_B, "W0"), "stays": (_B, "W0"),
        "amounts": (_F, "WA"), "steps": (_F, "WF3"),
    },
    "SupplyRows": {
        "states": (STATE, "B"), "node_times": (_F, "B7L"), "nodes": (_S, "BnL"), "pod_times": (_F, "B4T"),
        "pods": (_S, "B8T"), "event_s": (_F, "BE"), "events": (_S, "B3E"), "end_s": (_F, "BD"), "ends": (_S, "B3D"),
        "paid": (_F, "BL"), "plan_types": (np.int8, "BK"), "blocked": (_B, "BX"),
    },
    "RuleWork": WORK_LAYOUT,
}  # fmt: skip
"""As in `aaml.episodes.rows`; J: GPUs of a type; Y and Z: T and K where pods name GPU models, else 0; X: T where
budgets protect pods, else 0; A: commitments, F: steps in which they are used; `n`: the columns of `NODE`, `o`: of
`OFFER`, `t`: of `TRAIT`. Where a size is 0, nothing is told."""
