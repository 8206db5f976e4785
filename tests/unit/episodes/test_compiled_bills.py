"""Compiled episodes in which nodes are bought and given back, against the simulator: the same bits."""

import math
from dataclasses import replace
from functools import cache, partial
from itertools import chain, zip_longest

import numpy as np
import pytest

from aaml.cluster.objects import Toleration
from aaml.episodes import batch as compiled_batch
from aaml.episodes.batch import BatchedEnv
from aaml.episodes.formulas import FormulaEpisodes
from aaml.episodes.plan import Plan
from aaml.errors import UserError
from aaml.nodes.budgets import PodBudget
from aaml.nodes.catalogue import Catalogue, Offering
from aaml.nodes.catalogue_file import shipped_catalogue
from aaml.nodes.commitments import Commitments, Reservation
from aaml.nodes.node_policy import NodePolicy
from aaml.nodes.settings import HighNodeUtilizationSettings, KarpenterSettings, NodeTimes, Prices
from aaml.policies.formulas.policy import Formula, FormulaPolicy
from aaml.policies.formulas.program import assemble
from aaml.policies.formulas.text import parse
from aaml.policies.registry import make_reward
from aaml.scheduling.cycle import SchedulingCycle
from aaml.scheduling.lifetimes import KnownLifetimes, LifetimeModel
from aaml.scheduling.observation import ObservationSpec
from aaml.scheduling.play import play as play_simulated
from aaml.scheduling.ports import Decision
from aaml.scheduling.queue_sort import QueueSort
from aaml.scheduling.rewards import RewardOptions
from aaml.sim.bill import BILL_TASKS, Descheduled
from aaml.workload.model import Workload
from support.bills import (
    BILL,
    SHOWN,
    Guarded,
    Rows,
    by_chance,
    every_second_kept,
    first,
    fullest,
    labelled,
    naming_models,
    next_context,
    not_always_where_it_fits,
    play,
)


@pytest.mark.parametrize("choose", [by_chance, fullest, not_always_where_it_fits])
@pytest.mark.parametrize("task", ["bill", "bill-when-empty"])
def test_bills_are_the_simulators_to_the_bit(task, choose):
    metrics = play(BILL_TASKS[task], choose)
    assert all(each["nodes_bought"] > 10 for each in metrics)
    assert (sum(each["evicted"] for each in metrics) > 10) == (task == "bill")


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {"autoscaler": KarpenterSettings(budgets=("100%", "3"), validation_s=0.0)},
        {"autoscaler": KarpenterSettings(consolidation_policy="Balanced", consolidate_after_s=5.0, budgets=("60%",))},
        {"autoscaler": KarpenterSettings(consolidate_after_s=None)},
        {"autoscaler": KarpenterSettings(instance_types=("memory-2", "compute-4")), "fixed_prices": True},
        {"autoscaler": KarpenterSettings(budgets=(), batch_idle_duration_s=5.0), "times": NodeTimes(grace_s=3.0)},
        {"times": NodeTimes(recreate_s=0.0, registration_delay_s=0.0, initialization_s=0.0, min_drain_s=0.0)},
        {"prices": Prices(1.0, 5.0, 0.02), "carbon_g_per_kwh": (310.0, 90.0)},
    ],
)
def test_so_they_are_whatever_the_autoscaler_is_told(settings):
    told = replace(BILL, **({"autoscaler": KarpenterSettings(consolidate_after_s=15.0)} | settings))
    play(told, seed=20)


def test_a_reservation_of_a_zone_among_several_is_refused():
    ways = tuple(Offering(0.1, zone=zone) for zone in ("a", "b"))
    types = Catalogue(tuple(replace(each, offerings=ways) for each in shipped_catalogue({}).types[:1]))
    name = types.types[0].name
    reserved = Reservation(instance_type=name, count=1, dollars_per_hour=0.1, zone="a")
    task = replace(BILL, catalogue=types, fixed_prices=True, commitments=Commitments(reservations=(reserved,)))
    with pytest.raises(UserError, match=f"{name}: it is launched in several ways at one price"):
        Plan.of_cluster(task.build(0, 4))


@pytest.mark.parametrize(
    "ways",
    [
        (Offering(0.1, "spot"), Offering(0.1, "on-demand")),
        (Offering(0.2, "spot"), Offering(0.1, "reserved"), Offering(0.3, "on-demand")),
    ],
)
def test_nodes_are_launched_in_the_ways_of_the_simulator(ways):
    types = [
        replace(kind, offerings=tuple(replace(way, price=way.price * kind.cheapest.price) for way in ways))
        for kind in shipped_catalogue().types
    ]
    settings = KarpenterSettings(requirements=(), spot_to_spot_consolidation=True, budgets=("100%",))
    task = replace(BILL, catalogue=Catalogue(tuple(types)), autoscaler=settings, fixed_prices=True)
    assert all(each["nodes_bought"] > 5 for each in play(task, fullest, spec=SHOWN))


@pytest.mark.parametrize("choose", [by_chance, fullest, not_always_where_it_fits])
@pytest.mark.parametrize("seed", [0, 40])
@pytest.mark.parametrize("settings", [{}, {"expander": "price", "scale_down_utilization_threshold": 0.7}])
def test_the_cluster_autoscaler_is_the_simulators_to_the_bit(choose, seed, settings):
    task = BILL_TASKS["bill-cluster-autoscaler"]
    metrics = play(replace(task, autoscaler=replace(task.autoscaler, **settings)), choose, seed, spec=SHOWN)
    assert all(each["nodes_bought"] > 10 for each in metrics)
    assert sum(each["evicted"] for each in metrics) > 0


@pytest.mark.slow
def test_and_within_its_limits_and_those_of_pods():
    task = BILL_TASKS["bill-cluster-autoscaler"]
    told = {"max_nodes_total": 3}, {"max_empty_bulk_delete": 1, "scan_interval_s": 2.0}
    usual, few, quick = (
        play(replace(task, autoscaler=replace(task.autoscaler, **each)), seed=30) for each in ({}, *told)
    )
    assert usual != few != quick != usual
    graceful = replace(task, rhythm=labelled, times=NodeTimes(grace_s=3.0))
    assert play(Guarded(graceful, PodBudget({"app": "a"}, max_unavailable=0))) != play(Guarded(graceful))


BESIDE = {
    "when empty": KarpenterSettings("WhenEmpty", 15.0), "learned": NodePolicy(),
    "cluster autoscaler": BILL_TASKS["bill-cluster-autoscaler"].autoscaler,
}  # fmt: skip
LOW = ("cpu=60", "memory=70")


@pytest.mark.parametrize("beside", BESIDE.values(), ids=BESIDE)
@pytest.mark.parametrize("choose", [by_chance, fullest, not_always_where_it_fits])
def test_the_descheduler_is_the_simulators_to_the_bit(choose, beside):
    settings = HighNodeUtilizationSettings(thresholds=LOW, descheduling_interval_s=40.0)
    task = replace(BILL, autoscaler=Descheduled(settings, beside))
    metrics = play(task, choose, seed=30, spec=SHOWN)
    alone = play(replace(BILL, autoscaler=beside), choose, seed=30, spec=SHOWN)
    assert all(each["evicted"] > 10 for each in metrics)
    assert metrics != alone


@cache
def play_descheduled(settings, grace_s):
    return play(
        replace(
            BILL, times=NodeTimes(grace_s=grace_s), rhythm=partial(every_second_kept, seconds=math.inf),
            autoscaler=Descheduled(settings, BESIDE["when empty"]),
        ),
        fullest, 30,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    "told",
    [
        {"thresholds": ("pods=40",), "descheduling_interval_s": 20.0},
        {"max_no_of_pods_to_evict_per_node": 1},
        {"max_no_of_pods_to_evict_total": 2},
        {"number_of_nodes": 2},
        {"no_eviction_policy": "Mandatory"},
    ],
)
@pytest.mark.parametrize("grace_s", [0.0, 3.0])
def test_so_it_is_within_its_limits(told, grace_s):
    usual = HighNodeUtilizationSettings(thresholds=LOW, descheduling_interval_s=40.0)
    assert play_descheduled(usual, grace_s) != play_descheduled(replace(usual, **told), grace_s), "it counts"


@pytest.mark.slow
@pytest.mark.parametrize("grace_s", [0.0, 3.0])
def test_budgets_hold_for_each_eviction_of_the_descheduler(grace_s):
    settings = HighNodeUtilizationSettings(thresholds=LOW, descheduling_interval_s=20.0)
    task = replace(
        BILL, autoscaler=Descheduled(settings, BESIDE["when empty"]), rhythm=labelled, times=NodeTimes(grace_s=grace_s)
    )
    evicted = [
        sum(each["evicted"] for each in play(Guarded(task, *budgets), fullest, seed=30, spec=SHOWN))
        for budgets in ((), (PodBudget({"app": "a"}, max_unavailable=1),), (PodBudget({}, max_unavailable=0),))
    ]
    assert evicted == sorted(set(evicted), reverse=True)
    assert evicted[-1] == 0


@pytest.mark.parametrize("beside", [BILL.autoscaler, BESIDE["cluster autoscaler"]], ids=["karpenter", "ca"])
def test_budgets_do_not_protect_pods_that_stop_on_nodes_which_stay(beside):
    settings = HighNodeUtilizationSettings(thresholds=LOW, descheduling_interval_s=20.0)
    task = replace(BILL, autoscaler=Descheduled(settings, beside), rhythm=labelled, times=NodeTimes(grace_s=30.0))
    budgets = PodBudget({"app": "a"}, max_unavailable=1), PodBudget({"app": "b"}, min_available="60%")
    assert all(each["evicted"] > 0 for each in play(Guarded(task, *budgets), fullest, seed=30, spec=SHOWN))


def test_rows_with_and_without_the_descheduler_share_a_batch():
    settings = HighNodeUtilizationSettings(thresholds=LOW, descheduling_interval_s=40.0)
    with_it = replace(BILL, autoscaler=Descheduled(settings, BILL.autoscaler))
    play(Rows(with_it, BILL, with_it, seed=30), fullest, seed=30)


def tolerant(count, rng):
    """Draw the pods of a bill, of which every second one tolerates whatever it is."""
    workload, until_s = BILL.rhythm(count, rng)
    pods = [replace(pod, tolerations=(Toleration(operator="Exists"),)) for pod in workload.pods[::2]]
    return replace(workload, pods=tuple(chain(*zip_longest(pods, workload.pods[1::2])))[: len(workload)]), until_s


def test_pods_that_tolerate_a_cordon_go_to_nodes_on_their_way_out_as_in_the_simulator():
    task = replace(BILL, rhythm=tolerant, autoscaler=KarpenterSettings(budgets=("100%",)), times=NodeTimes(grace_s=9.0))
    assert play(task, fullest, seed=30, spec=SHOWN) != play(replace(task, rhythm=BILL.rhythm), fullest, 30, spec=SHOWN)


ALL_STAY = PodBudget({}, max_unavailable=0)


@pytest.mark.parametrize(
    ("few", "many"),
    [
        (first(6, draw=naming_models), first(30)),
        (Guarded(first(6, BILL, faster=1.0), ALL_STAY), first(40, BILL, faster=1.0)),
    ],
)
def test_rows_are_what_they_are_alone_beside_one_of_fewer_pods_of_which_more_is_told(few, many):
    play(Rows(few, many, few, seed=30), fullest, seed=30)


def test_an_episode_goes_on_as_it_began_where_others_need_larger_arrays(monkeypatch):
    monkeypatch.setattr(compiled_batch, "_FIRST_SIZES", {"N": 2, "L": 2, "E": 16, "D": 16})
    monkeypatch.setattr(compiled_batch, "_OF_PODS", {"N": 4, "L": 4, "E": 1, "D": 2})
    rows = [[first(30)], [first(2), first(32, draw=naming_models), Guarded(first(34), ALL_STAY)]]

    def build(row, number):
        return rows[row][number % len(rows[row])].build(60 + 10 * row + number, 3)

    batch = BatchedEnv(lambda row, number: Plan.of_cluster(build(row, number)), 2, reward="bill", threads=1)
    batch.reset()
    ended = {}
    while ended.keys() < {(0, 0), (1, 0), (1, 1), (1, 2)}:
        ended |= {(each.row, each.number): each for each in batch.step(batch.seen.mask.argmax(axis=1)).ended}
    for (row, number), each in ended.items():
        cycle = SchedulingCycle(build(row, number), make_reward("bill", RewardOptions()), ObservationSpec())
        while (context := next_context(cycle)) is not None:
            cycle.finish(context, Decision(int(context.mask.argmax())))
        np.testing.assert_equal(dict(each.metrics), dict(cycle.cluster.metrics()))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 3])
@pytest.mark.parametrize("spot_to_spot", [False, True])
def test_spot_is_bought_where_a_nodepool_allows_it(spot_to_spot, seed):
    settings = KarpenterSettings(
        requirements=(), consolidate_after_s=5.0, spot_to_spot_consolidation=spot_to_spot, budgets=("50%",)
    )
    metrics = play(replace(BILL, autoscaler=settings), seed=seed, spec=SHOWN)
    assert all(each["nodes_bought"] > 5 for each in metrics)


@pytest.mark.slow
@pytest.mark.parametrize("task", ["bill", "bill-when-empty"])
@pytest.mark.parametrize("choose", [by_chance, fullest])
def test_policies_are_shown_the_same_costs(task, choose):
    told = BILL_TASKS[task]
    play(told, choose, seed=80, spec=replace(SHOWN, lifetime_model=LifetimeModel.of_history(told.expected())))


@pytest.mark.slow
@pytest.mark.parametrize("task", ["bill", "bill-when-empty"])
@pytest.mark.parametrize("spec", [ObservationSpec(lifetimes=True), ObservationSpec(lifetime_model=KnownLifetimes())])
def test_policies_are_told_the_same_of_how_long_pods_run(task, spec):
    metrics = play(BILL_TASKS[task], seed=90, spec=spec)
    assert (sum(each["evicted"] for each in metrics) > 10) == (task == "bill"), "what is left of an evicted pod's too"


def test_a_formula_reads_the_same_costs():
    formula = Formula(parse("node.disruption_order - 2 * node.price_for_size + node.quiet"), SHOWN)
    plan = Plan.of_cluster(BILL.build(81, 4))
    (ended,) = FormulaEpisodes([plan], SHOWN).play(assemble(formula.expression))
    cluster = BILL.build(81, 4)
    play_simulated(cluster, FormulaPolicy(formula), make_reward("bill", RewardOptions()))
    np.testing.assert_equal(dict(ended.metrics), dict(cluster.metrics()))


def test_pods_wait_in_a_policys_own_order():
    play(BILL, seed=40, spec=ObservationSpec(lookahead=2), reward="waiting-time", sort=QueueSort(50.0, -20.0, 90.0))


def test_what_comes_and_goes_gets_room_as_it_needs_it(monkeypatch):
    plenty = play(BILL, seed=60)
    monkeypatch.setattr(compiled_batch, "_FIRST_SIZES", {"N": 1, "L": 2, "E": 2, "D": 2})
    assert play(BILL, seed=60) == plenty


class Nobody:
    """An autoscaler of one's own, which provisions nothing."""

    next_s = math.inf


def test_what_is_not_compiled_is_refused():
    def plan(task):
        return Plan.of_cluster(task.build(0, 3))

    for own in (lambda _catalogue, _rng: Nobody(), Descheduled(HighNodeUtilizationSettings(), lambda *_: Nobody())):
        with pytest.raises(UserError, match="the Cluster Autoscaler, not Nobody"):
            plan(replace(BILL, autoscaler=own))
    by_truth = {"observation_spec": ObservationSpec(lifetime_model=KnownLifetimes()), "queue_sort": QueueSort(rest=1.0)}
    for options in (by_truth, {"reward": "seed-a"}):
        with pytest.raises(UserError, match="nodes are bought"):
            BatchedEnv(lambda _row, _number: plan(BILL), 1, **options).reset()
    with pytest.raises(UserError, match="at least one pod"):
        plan(replace(BILL, rhythm=lambda count, rng: (Workload(()), 60.0)))
    cluster = BILL.build(0, 3)
    cluster.workload = replace(cluster.workload, pods=(replace(cluster.workload[0], deadline_s=60.0),))
    with pytest.raises(UserError, match="it has a deadline"):
        Plan.of_cluster(cluster)
