"""Bounds are bounds: on random small instances no packing, schedule or policy is better than what is told as one."""

import json
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from aaml.cluster.objects import GpuRequest, Node, Pod
from aaml.errors import UserError
from aaml.evaluation.bound_bill import bound_bill
from aaml.evaluation.entries import PolicyEntry
from aaml.evaluation.episode import run_episode
from aaml.nodes.catalogue import Catalogue
from aaml.nodes.nodepool import read_nodepool
from aaml.nodes.settings import KarpenterSettings, Prices
from aaml.optimum.clairvoyant import intervals_of, offline_packing
from aaml.optimum.packing import best_packing
from aaml.optimum.placement import best_placement
from aaml.optimum.relaxation import fluid_bill, relaxed
from aaml.policies.heuristics import PolicyOptions
from aaml.policies.registry import make_policy
from aaml.scheduling.play import play
from aaml.sim.bill import BILL_TASKS
from aaml.sim.recorded_bill import under
from aaml.workload.model import Workload
from support.nodes_to_buy import GIB, kind, partitions, pod

HOUR_S, PRICES = 3600.0, Prices()
EXACT = 1.0 + 1e-9


def drawn(seed: int, most: int = 5) -> tuple[list[Pod], Catalogue, float]:
    """Draw pods, of which some fit no type, end before they begin to count, or come after the end."""
    rng = np.random.default_rng(seed)
    cores = sorted(rng.choice([1, 2, 3, 4, 6, 8], size=int(rng.integers(1, 4)), replace=False).tolist())
    types = [kind(f"t{n}", n, float(n * rng.uniform(0.03, 0.3)), gib=float(n * rng.uniform(0.5, 8))) for n in cores]
    until_s = float(rng.choice([60.0, 600.0, 7200.0]))
    pods = [
        pod(
            f"p{i}", float(rng.integers(1, 21)) / 2 if rng.random() < 0.2 else float(rng.integers(1, 6)) / 2,
            gib=float(rng.uniform(0.0, 6.0)), created_s=float(rng.uniform(-0.1, 1.3) * until_s),
            lifetime_s=None if rng.random() < 0.3 else float(rng.uniform(0.0, 1.0) * until_s),
            owner=str(rng.choice(["ReplicaSet/a", "Job/b", ""], p=[0.6, 0.3, 0.1])),
        )
        for i in range(int(rng.integers(1, most + 1)))
    ]  # fmt: skip
    return pods, Catalogue(tuple(types)), until_s


def cheapest(pods: Sequence[Pod], begins_s: Sequence[float], catalogue: Catalogue, until_s: float) -> float:
    """Return the least dollars of nodes for pods that begin at given times and never move, of all packings."""
    spans = [
        (max(at, 0.0), until_s if each.lifetime_s is None else min(at + each.lifetime_s, until_s))
        for each, at in zip(pods, begins_s, strict=True)
    ]
    there = [i for i, (begin, end) in enumerate(spans) if begin < end]

    def node(group: Sequence[int]) -> float:
        least = np.inf
        for each in catalogue.types:
            room = dict(each.allocatable)
            if all(
                sum(pods[i].requests[name] for i in group if spans[i][0] <= spans[at][0] < spans[i][1]) <= room[name]
                for at in group
                for name in ("cpu", "memory")
            ):
                least = min(least, each.cheapest.price)
        return least * (max(spans[i][1] for i in group) - min(spans[i][0] for i in group)) / HOUR_S

    return min(sum(map(node, part)) for part in partitions(there))


def fit(pods: Sequence[Pod], catalogue: Catalogue) -> list[Pod]:
    return [
        each
        for each in pods
        if any(
            all(each.requests[name] <= dict(found.allocatable)[name] for name in ("cpu", "memory"))
            for found in catalogue.types
        )
    ]


def test_no_packing_of_a_thousand_small_instances_is_below_the_fluid_bill() -> None:
    told = 0
    for seed in range(1000):
        pods, catalogue, until_s = drawn(seed)
        optimum = cheapest(placed := fit(pods, catalogue), [each.created_s for each in placed], catalogue, until_s)
        bound, packing = fluid_bill(pods, catalogue, until_s), offline_packing(
            intervals_of(pods, catalogue, until_s), catalogue
        )  # fmt: skip
        least = relaxed(pods, catalogue, until_s, PRICES)
        assert 0.0 <= bound <= optimum * EXACT <= packing.dollars * EXACT**2, seed
        assert least.bill <= bound * EXACT, seed
        told += bound > 0.0
    assert told > 800, "most instances have something to bound"


def test_the_solver_is_never_above_the_optimum_with_requests_of_odd_bytes() -> None:
    pytest.importorskip("ortools", reason="the extra `solver`")
    for seed in range(25):
        pods, catalogue, until_s = drawn(seed, most=4)
        intervals = intervals_of(pods, catalogue, until_s)
        if not intervals:
            continue
        placed = fit(pods, catalogue)
        optimum = cheapest(placed, [each.created_s for each in placed], catalogue, until_s)
        known, fluid = offline_packing(intervals, catalogue), fluid_bill(pods, catalogue, until_s)
        found = best_packing(intervals, catalogue, known, fluid, limit_s=10.0)
        assert found.proven, seed
        assert found.bound <= optimum * EXACT, seed
        assert found.dollars == pytest.approx(optimum, rel=1e-9), seed


def test_two_pods_of_half_a_mebibyte_share_a_node_of_one() -> None:
    pytest.importorskip("ortools", reason="the extra `solver`")
    catalogue = Catalogue((kind("t", 4, 1.0, gib=1 / 1024),))
    pods = [pod(name, 1, gib=0.5 / 1024, created_s=0.0, lifetime_s=HOUR_S) for name in "ab"]
    intervals = intervals_of(pods, catalogue, HOUR_S)
    found = best_packing(intervals, catalogue, offline_packing(intervals, catalogue), 0.0)
    assert found.bound == pytest.approx(1.0, rel=1e-4)


@pytest.mark.parametrize("prices", [PRICES, Prices(wait_per_hour=0.05, wait_target_s=300.0), Prices(eviction=0.0)])
def test_no_choice_of_waits_is_below_the_relaxed_cost(prices: Prices) -> None:
    """Each pod begins at once, when waiting begins to cost, as late as it ends in time, half way, or never."""
    for seed in range(60):
        pods, catalogue, until_s = drawn(seed, most=3)
        here = [each for each in pods if each.created_s < until_s]
        able = fit(here, catalogue)
        unfit = sum(
            max(until_s - max(each.created_s, 0) - prices.wait_target_s, 0) for each in here if each not in able
        )
        choices = [
            sorted({
                each.created_s, min(max(each.created_s, 0.0) + prices.wait_target_s, until_s), until_s,
                min(max(each.created_s, until_s - (each.lifetime_s or 0.0)), until_s), (each.created_s + until_s) / 2,
            })
            for each in able
        ]  # fmt: skip
        best = min(
            cheapest(able, begins_s, catalogue, until_s)
            + prices.wait_per_hour / HOUR_S
            * (unfit + sum(
                max(at - max(each.created_s, 0.0) - prices.wait_target_s, 0.0)
                for each, at in zip(able, begins_s, strict=True)
            ))
            for begins_s in product(*choices)
        )  # fmt: skip
        assert relaxed(pods, catalogue, until_s, prices).cost <= best * EXACT + 1e-12, seed


def test_a_pod_that_fits_no_type_costs_its_wait_and_no_node() -> None:
    catalogue = Catalogue((kind("t", 4, 1.0),))
    pods = [pod("huge", 9, created_s=0.0), pod("late", 1, created_s=7300.0)]
    assert fluid_bill(pods, catalogue, 7200.0) == 0.0
    least = relaxed(pods, catalogue, 7200.0, PRICES)  # a dollar for each hour of the wait beyond 30 s
    assert (least.bill, least.cost) == (0.0, pytest.approx(7170 / 3600))
    # One core of the four for two hours; who waits 30 s saves those. An eviction every 30 s is cheaper than running.
    least = relaxed([pod("p", 1, created_s=0.0)], catalogue, 7200.0, PRICES)
    assert (least.bill, least.cost) == (pytest.approx(0.25 * 7170 / 3600), pytest.approx(0.001 * 7170 / 30))
    # A pod that is lost with an eviction costs no more than that.
    least = relaxed([pod("p", 1, created_s=0.0, owner="")], catalogue, 7200.0, PRICES)
    assert (least.bill, least.cost) == (0.0, 0.001)


@pytest.mark.parametrize("recreate_s", [0.0, 1.2])
@pytest.mark.parametrize("prices", [PRICES, Prices(eviction=0.0), Prices(wait_target_s=5.0)])
def test_who_evicts_a_pod_again_and_again_is_not_below_the_relaxed_cost(prices: Prices, recreate_s: float) -> None:
    """Each pod that is made again waits for free: who lets it run for no time at all pays for evictions alone."""
    catalogue, until_s = Catalogue((kind("t", 4, 40.0),)), 7200.0
    evictions = math.ceil((until_s - prices.wait_target_s) / (prices.wait_target_s + recreate_s))
    least = relaxed([pod("p", 4, created_s=0.0)], catalogue, until_s, prices, recreate_s)
    assert least.cost <= evictions * prices.eviction + 1e-12


INSTANCES = int(os.environ.get("AAML_BOUND_INSTANCES", "90"))
POLICIES = ("kube-scheduler", "first-fit", "random", "best-fit", "least-variance")
BUYERS = (
    KarpenterSettings(consolidate_after_s=15.0),
    KarpenterSettings(consolidation_policy="WhenEmpty", consolidate_after_s=0.0),
    BILL_TASKS["bill-cluster-autoscaler"].autoscaler,
)


@pytest.mark.slow
def test_no_policy_is_below_the_relaxed_cost_of_small_instances() -> None:
    below_bill = 0
    for seed in range(INSTANCES):
        pods, catalogue, until_s = drawn(seed)
        task = replace(
            BILL_TASKS["bill"], catalogue=catalogue, fixed_prices=True, autoscaler=BUYERS[seed % len(BUYERS)],
            rhythm=lambda _count, _rng, pods=pods, until_s=until_s: (Workload.of(pods, "drawn"), until_s),
        )  # fmt: skip
        cluster = task.build(seed)
        play(cluster, make_policy(POLICIES[seed % len(POLICIES)], PolicyOptions(seed=seed)))
        told, hours = cluster.metrics(), until_s / HOUR_S
        least = relaxed(pods, catalogue, until_s, task.prices, task.times.recreate_s)
        assert least.cost <= told["cost"] * hours * EXACT + 1e-12, seed
        assert not told["fluid_ratio"] < 1.0 - 1e-9, seed
        if told["waiting_max_s"] <= task.prices.wait_target_s:
            assert least.bill <= told["bill"] * hours * EXACT + 1e-12, seed
            below_bill += least.bill > 0.0
    assert below_bill > 10, "bills are compared too"


def batch(seed: int) -> tuple[list[Node], list[Pod]]:
    """Draw two or three nodes and up to five pods, with shares of GPUs or without."""
    rng = np.random.default_rng(seed)
    gpus = int(rng.integers(0, 2)) * 2
    room = {"cpu": 4000, "memory": 8 * GIB, "pods": int(rng.integers(2, 5))}
    nodes = [Node(name, room, gpu_count=gpus) for name in "abc"[: int(rng.integers(2, 4))]]
    pods = [
        Pod(
            f"p{i}",
            uid=f"p{i}",
            requests={"cpu": int(rng.integers(1, 6)) * 500, "memory": int(rng.integers(1, 5)) * GIB},
            gpu=GpuRequest(*((1, int(rng.integers(1, 5)) * 250) if rng.random() < 0.7 else (2, 1000)))
            if gpus
            else GpuRequest(0, 0),
        )
        for i in range(int(rng.integers(1, 6)))
    ]
    return nodes, pods


def placements(nodes: Sequence[Node], pods: Sequence[Pod]) -> Iterator[tuple[int | None, ...]]:
    """Yield all ways to put pods on nodes or to leave them out, by room alone; None: left out."""
    for rows in product([*range(len(nodes)), None], repeat=len(pods)):
        if all(has_room(node, [pods[i] for i, at in enumerate(rows) if at == row]) for row, node in enumerate(nodes)):
            yield rows


def has_room(node: Node, pods: Sequence[Pod]) -> bool:
    if len(pods) > node.allocatable["pods"]:
        return False
    if any(sum(each.requests[name] for each in pods) > node.allocatable[name] for name in ("cpu", "memory")):
        return False
    shares = [each.gpu.milli for each in pods if each.gpu.count == 1 and each.gpu.milli < 1000]
    whole = sum(each.gpu.count for each in pods if each.gpu.milli == 1000)
    return any(
        whole + len(set(where)) <= node.gpu_count
        and all(sum(m for m, at in zip(shares, where, strict=True) if at == d) <= 1000 for d in set(where))
        for where in product(range(max(node.gpu_count, 1)), repeat=len(shares))
    )


def value(metric: str, nodes: Sequence[Node], pods: Sequence[Pod], rows: Sequence[int | None]) -> float:
    on = [[pods[i] for i, at in enumerate(rows) if at == row] for row in range(len(nodes))]
    if metric == "final_empty_fraction":
        return sum(not each for each in on) / len(nodes)
    if metric == "final_gpu_allocation":
        milli = sum(pods[i].gpu.count * pods[i].gpu.milli for i, at in enumerate(rows) if at is not None)
        return milli / max(1000 * sum(node.gpu_count for node in nodes), 1)
    use = np.array([
        [sum(each.requests[name] for each in here) / node.allocatable[name] for name in ("cpu", "memory")]
        for here, node in zip(on, nodes, strict=True)
    ])  # fmt: skip
    return float(use.var(axis=0).mean())


@pytest.mark.parametrize("metric", ["final_gpu_allocation", "final_variance", "final_empty_fraction"])
def test_the_best_placement_of_small_batches_is_the_best_of_all(metric: str) -> None:
    pytest.importorskip("ortools", reason="the extra `solver`")
    solved = 0
    for seed in range(40):
        nodes, pods = batch(seed)
        found = [
            value(metric, nodes, pods, rows)
            for rows in placements(nodes, pods)
            if metric == "final_gpu_allocation" or None not in rows
        ]
        if not found:
            with pytest.raises(UserError, match="does not exist"):
                best_placement(nodes, pods, metric)
            continue
        optimum = best_placement(nodes, pods, metric)
        assert optimum.value == optimum.bound, seed
        assert optimum.bound == pytest.approx((min if metric == "final_variance" else max)(found), abs=1e-12), seed
        solved += 1
    assert solved > 10


@pytest.mark.slow
def test_no_policy_is_below_the_bound_of_a_table_whatever_its_own_nodepool_allows(tmp_path: Path) -> None:
    """Spot and arm64 cost less than what the task's own NodePool allows."""
    task, pool = replace(BILL_TASKS["bill"], nodes=3), tmp_path / "pool.yaml"
    allowed = {"karpenter.sh/capacity-type": ["on-demand", "spot"], "kubernetes.io/arch": ["amd64", "arm64"]}
    requirements = [{"key": key, "operator": "In", "values": values} for key, values in allowed.items()]
    template = {"spec": {"nodeClassRef": {"group": "g", "kind": "k", "name": "n"}, "requirements": requirements}}
    pool.write_text(json.dumps({
        "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": "wide"},
        "spec": {"template": template},
    }))  # fmt: skip
    wide = under(task, read_nodepool(pool))
    for seed in (1, 2):
        mine = run_episode(PolicyEntry("kube-scheduler-packing"), wide, seed, 3, None)
        alone, together = (
            {row["policy"]: row for row in bound_bill(task, (seed,), 3, others=others, limit_s=1.0)}
            for others in ((), (task, wide))
        )
        assert together["fluid-bound"]["cost"] < alone["fluid-bound"]["cost"]
        assert together["fluid-bound"]["bill"] < mine["bill"]
        assert {name: row["bill"] for name, row in alone.items()} == {
            row["policy"]: row["bill"] for row in bound_bill(task, (seed,), 3, others=(task,), limit_s=1.0)
        }
