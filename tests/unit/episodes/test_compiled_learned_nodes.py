"""Compiled episodes in which a learned policy buys nodes, against the simulator: the same bits."""

import math
from dataclasses import replace
from functools import cache, partial

import numpy as np
import pytest

from aaml.episodes.formulas import FormulaEpisodes
from aaml.episodes.plan import Plan
from aaml.nodes.budgets import PodBudget
from aaml.nodes.commitments import Commitments, Reservation, SavingsPlan
from aaml.nodes.node_policy import NodePolicy
from aaml.nodes.settings import KarpenterSettings, NodeTimes
from aaml.policies.formulas.policy import Formula
from aaml.policies.formulas.program import assemble
from aaml.policies.formulas.text import parse
from aaml.scheduling.queue_sort import QueueSort
from aaml.sim.bill import BILL_TASKS
from support.bills import (
    BILL,
    OPENB,
    ROWS,
    SHOWN,
    Guarded,
    by_chance,
    every_second_kept,
    fullest,
    hastened,
    labelled,
    naming_models,
    not_always_where_it_fits,
    play,
)

COMMITTED = Commitments(
    savings_plans=(
        SavingsPlan(dollars_per_hour=0.2, discount=0.3, discounts={"compute": 0.4}),
        SavingsPlan(dollars_per_hour=0.1, discount=0.5, families=("memory", "lean")),
    ),
    reservations=(Reservation(instance_type="general-1", count=3, dollars_per_hour=0.02),),
)


@pytest.mark.slow
@pytest.mark.parametrize("autoscaler", ["bill", "bill-cluster-autoscaler", NodePolicy(), NodePolicy(margin=0.05)])
def test_bills_with_commitments_are_the_simulators_to_the_bit(autoscaler):
    made = BILL_TASKS[autoscaler].autoscaler if isinstance(autoscaler, str) else autoscaler
    task = replace(BILL, autoscaler=made, commitments=COMMITTED)
    metrics, alone = play(task, seed=60), play(replace(task, commitments=None), seed=60)
    assert all(each["bill"] != other["bill"] for each, other in zip(metrics, alone, strict=True))
    if isinstance(autoscaler, str):
        assert all(each["evicted"] == other["evicted"] for each, other in zip(metrics, alone, strict=True))


def test_beside_episodes_with_fewer_commitments_they_are_the_same():
    tasks = [replace(BILL, autoscaler=NodePolicy(), commitments=each) for each in (COMMITTED, None, COMMITTED)]
    plans = [Plan.of_cluster(task.build(seed, 4)) for seed, task in enumerate(tasks)]
    formula = Formula(parse("pair.cpu_after"), SHOWN)
    program = assemble(formula.expression)
    together = FormulaEpisodes(plans, SHOWN).play(program)
    for ended, plan in zip(together, plans, strict=True):
        (alone,) = FormulaEpisodes([plan], SHOWN).play(program)
        np.testing.assert_equal(dict(ended.metrics), dict(alone.metrics))


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {"autoscaler": NodePolicy()},
        {"autoscaler": NodePolicy(patience_s=50.0, idle_s=15.0, eviction_dollars=0.001, margin=0.05, horizon_s=2000.0)},
        {
            "autoscaler": NodePolicy(patience_growth=0.7, size_power=0.1, empty_s=15.0, most_at_once=1.0, margin=0.1),
            "times": NodeTimes(grace_s=3.0),
        },
        {"autoscaler": NodePolicy(spare_value=0.6, largest_share=0.1, job_times=0.0), "fixed_prices": True},
        {"autoscaler": NodePolicy(wait_p99_s=45.0, wait_mean_s=9.0, evictions_per_pod_hour=2.0, spare_swing=1.0)},
    ],
)
@pytest.mark.parametrize("choose", [by_chance, fullest])
def test_learned_nodes_are_the_simulators_to_the_bit(settings, choose):
    metrics = play(replace(BILL, **settings), choose, seed=30, spec=SHOWN)
    assert all(each["nodes_bought"] > 10 for each in metrics)
    assert sum(each["evicted"] for each in metrics) > 10


@cache
def play_at_once(task, sort):
    return play(task, seed=40, spec=SHOWN, sort=sort)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("times", "sort"),
    [
        (NodeTimes(join_step_s=0.1), None),
        (NodeTimes(failed_try_s=0.02), None),
        (NodeTimes(failed_try_s=0.7, join_step_s=3.0, grace_s=3.0, recreate_s=0.0), QueueSort(50.0, -20.0, 90.0)),
    ],
)
@pytest.mark.parametrize("autoscaler", [KarpenterSettings(consolidate_after_s=15.0), NodePolicy()])
def test_nodes_join_in_steps_and_tries_take_time_as_in_the_simulator(times, autoscaler, sort):
    task = replace(BILL, times=times, autoscaler=autoscaler)
    metrics = play(task, not_always_where_it_fits, seed=40, spec=SHOWN, sort=sort)
    usual = play_at_once(replace(task, times=replace(times, join_step_s=0.0, failed_try_s=0.0)), sort)
    assert all(each != other for each, other in zip(metrics, usual, strict=True)), "the times count"


@pytest.mark.slow
@pytest.mark.parametrize("promise", [{"wait_p99_s": 45.0}, {"wait_mean_s": 10.0}])
def test_a_promise_moves_as_pods_are_placed_where_tries_take_time(promise):
    task = replace(BILL, times=NodeTimes(failed_try_s=0.02), autoscaler=NodePolicy(**promise))
    for seed in (100, 103, 106, 109):
        play(task, by_chance, seed=seed, spec=SHOWN, nodes=3)


@pytest.mark.slow
@pytest.mark.parametrize("autoscaler", [KarpenterSettings(budgets=("100%",)), NodePolicy(eviction_dollars=0.0)])
@pytest.mark.parametrize("grace_s", [0.0, 3.0])
def test_disruption_budgets_keep_pods_as_in_the_simulator(autoscaler, grace_s):
    task = replace(BILL, autoscaler=autoscaler, times=NodeTimes(grace_s=grace_s))
    few, none = PodBudget({"app": "a"}, max_unavailable=2), PodBudget({"app": "a"}, max_unavailable=0)
    share, front = PodBudget({"app": "b"}, min_available="85%"), PodBudget({"tier": "front"}, min_available=1)
    evicted = [
        sum(each["evicted"] for each in play(Guarded(replace(task, rhythm=labelled), *budgets), seed=30, spec=SHOWN))
        for budgets in ((), (few,), (few, share), (none, share, front))
    ]
    assert len(set(evicted)) == len(evicted), "each budget counts"
    assert evicted[-1] < 0.2 * min(evicted[:-1]), "and few pods may go that several protect, or one for good"


@pytest.mark.slow
@pytest.mark.parametrize("autoscaler", [KarpenterSettings(consolidate_after_s=15.0), NodePolicy(eviction_dollars=0.15)])
def test_gpus_are_bought_and_shared_as_the_simulator_does(autoscaler):
    task = replace(OPENB, autoscaler=autoscaler, rhythm=hastened(OPENB.rhythm, 12.0))
    metrics = play(task, fullest, seed=40, nodes=3, spec=SHOWN)
    assert all(each["mean_gpu_allocation"] > 0.1 for each in metrics)


@pytest.mark.slow
@pytest.mark.parametrize("autoscaler", [KarpenterSettings(consolidate_after_s=15.0), NodePolicy()])
def test_pods_get_the_gpu_models_that_they_name_whatever_the_other_rows_can_buy(autoscaler):
    task = replace(OPENB, autoscaler=autoscaler, rhythm=hastened(naming_models, 12.0))
    sold = {len(task.drawn_catalogue(seed)) for seed in range(50, 50 + ROWS)}
    assert len(sold) > 1, "the rows' catalogues differ in length"
    play(task, fullest, seed=50, nodes=3)


@pytest.mark.slow
@pytest.mark.parametrize("grace_s", [0.0, 3.0])
def test_pods_that_may_not_be_disrupted_for_a_time_are_kept_for_that_time(grace_s):
    told = replace(
        BILL, autoscaler=KarpenterSettings(consolidate_after_s=5.0, budgets=("100%",)), times=NodeTimes(grace_s=grace_s)
    )
    spare = {"spare_value": 0.25, "spare_swing": 0.0}
    learned = replace(told, autoscaler=NodePolicy(eviction_dollars=0.001, margin=0.1, **spare))
    for bill in (told, learned):
        evicted = []
        for seconds in (30.0, 200.5, math.inf):
            task = replace(bill, rhythm=partial(every_second_kept, seconds=seconds))
            evicted.append(sum(each["evicted"] for each in play(task, seed=30, spec=SHOWN)))
        assert evicted == sorted(set(evicted), reverse=True), "the longer, the fewer"
