"""Compiled episodes in which nodes are bought and given back, against the simulator: the same bits."""

import math
from dataclasses import replace
from functools import partial
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
from aaml.nodes.catalogue_file import openb_catalogue, shipped_catalogue
from aaml.nodes.commitments import Commitments, Reservation, SavingsPlan
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

BILL = BILL_TASKS["bill"]
NODES = (3, 5, 4)
SHOWN = ObservationSpec(costs=True)


def by_chance(context, rng):
    return int(rng.choice(np.flatnonzero(context.mask)))


def fullest(context, _rng):
    used = context.state.requested[:, 0] / context.state.allocatable[:, 0]
    return int(np.argmax(np.where(context.mask, used, -1.0)))


def not_always_where_it_fits(context, rng):
    return by_chance(context, rng) if rng.random() < 0.9 else len(context.mask)


def play(task, choose=by_chance, seed=0, nodes=4, spec=None, reward="bill", sort=None):
    """Play an episode of three rows beside the simulator's; return the metrics of its episodes."""
    spec = spec or ObservationSpec()
    seeds = range(seed, seed + len(NODES))
    batch = BatchedEnv(
        lambda row, _number: Plan.of_cluster(task.build(seeds[row], nodes), spec.lifetime_model), len(NODES),
        observation_spec=spec, reward=reward, restart=False, threads=1, queue_sort=sort,
    )  # fmt: skip
    batch.reset()
    cycles = [SchedulingCycle(task.build(each, nodes), make_reward(reward, RewardOptions()), spec) for each in seeds]
    for cycle in cycles:
        cycle.cluster.sort_queue(sort)
    contexts = [next_context(cycle) for cycle in cycles]
    rng = np.random.default_rng(seed)
    metrics = {}
    while batch.alive.any():
        going, actions = np.flatnonzero(batch.alive), np.zeros(len(NODES), dtype=int)
        for row in going:
            same(batch, row, contexts[row], cycles[row].cluster)
            actions[row] = min(choose(contexts[row], rng), batch.seen.mask.shape[1] - 1)
        step = batch.step(actions)
        ended = {each.row: each for each in step.ended}
        for row in going:
            context = contexts[row]
            fits = actions[row] < len(context.mask) and context.mask[actions[row]]
            outcome = cycles[row].finish(context, Decision(int(actions[row]) if fits else None))
            assert step.reward[row] == (outcome.reward if fits else -1.0)
            contexts[row] = next_context(cycles[row])
            assert (contexts[row] is None) == (row in ended)
            if row in ended:
                metrics[row] = cycles[row].cluster.metrics()
                np.testing.assert_equal(dict(ended[row].metrics), dict(metrics[row]))
    return [metrics[row] for row in range(len(NODES))]


def next_context(cycle):
    while (pod := cycle.cluster.next_pod()) is not None:
        context = cycle.begin(pod)
        if context is not None:
            return context
    return None


def same(batch, row, context, cluster):
    assert (batch.now_s[row], batch.pending[row]) == (cluster.now_s(), cluster.pending_count())
    n, seen, shown = len(context.mask), batch.seen, context.observation
    assert batch.nodes[row] == n
    for name in ("nodes", "pairs", "mask"):
        array = getattr(seen, name)[row]
        np.testing.assert_array_equal(array[:n], getattr(shown, name), name, strict=True)
        assert not array[n:].any(), name
    np.testing.assert_array_equal(seen.pod[row], shown.pod, "pod", strict=True)


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


COMMITTED = Commitments(
    savings_plans=(
        SavingsPlan(dollars_per_hour=0.2, discount=0.3, discounts={"compute": 0.4}),
        SavingsPlan(dollars_per_hour=0.1, discount=0.5, families=("memory", "lean")),
    ),
    reservations=(Reservation(instance_type="general-1", count=3, dollars_per_hour=0.02),),
)


@pytest.mark.slow
@pytest.mark.parametrize("choose", [by_chance, fullest])
@pytest.mark.parametrize("autoscaler", ["bill", "bill-cluster-autoscaler", NodePolicy(), NodePolicy(margin=0.05)])
def test_bills_with_commitments_are_the_simulators_to_the_bit(autoscaler, choose):
    made = BILL_TASKS[autoscaler].autoscaler if isinstance(autoscaler, str) else autoscaler
    task = replace(BILL, autoscaler=made, commitments=COMMITTED)
    metrics, alone = play(task, choose, seed=60), play(replace(task, commitments=None), choose, seed=60)
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


def test_a_reservation_of_a_zone_among_several_is_refused():
    ways = tuple(Offering(0.1, zone=zone) for zone in ("a", "b"))
    types = Catalogue(tuple(replace(each, offerings=ways) for each in shipped_catalogue({}).types[:1]))
    name = types.types[0].name
    reserved = Reservation(instance_type=name, count=1, dollars_per_hour=0.1, zone="a")
    task = replace(BILL, catalogue=types, fixed_prices=True, commitments=Commitments(reservations=(reserved,)))
    with pytest.raises(UserError, match=f"{name}: it is launched in several ways at one price"):
        Plan.of_cluster(task.build(0, 4))


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
    metrics = play(replace(BILL, **settings), choose, seed=40, spec=SHOWN)
    assert all(each["nodes_bought"] > 10 for each in metrics)
    assert sum(each["evicted"] for each in metrics) > 10


@pytest.mark.slow
@pytest.mark.parametrize(
    "times",
    [
        NodeTimes(join_step_s=0.1),
        NodeTimes(failed_try_s=0.02),
        NodeTimes(failed_try_s=0.7, join_step_s=3.0, grace_s=3.0, recreate_s=0.0),
    ],
)
@pytest.mark.parametrize("autoscaler", [KarpenterSettings(consolidate_after_s=15.0), NodePolicy()])
@pytest.mark.parametrize("sort", [None, QueueSort(50.0, -20.0, 90.0)])
def test_nodes_join_in_steps_and_tries_take_time_as_in_the_simulator(times, autoscaler, sort):
    task = replace(BILL, times=times, autoscaler=autoscaler)
    metrics = play(task, not_always_where_it_fits, seed=40, spec=SHOWN, sort=sort)
    usual = play(replace(task, times=replace(times, join_step_s=0.0, failed_try_s=0.0)), seed=40, spec=SHOWN, sort=sort)
    assert all(each != other for each, other in zip(metrics, usual, strict=True)), "the times count"


@pytest.mark.slow
@pytest.mark.parametrize("promise", [{"wait_p99_s": 45.0}, {"wait_mean_s": 10.0}])
def test_a_promise_moves_as_pods_are_placed_where_tries_take_time(promise):
    task = replace(BILL, times=NodeTimes(failed_try_s=0.02), autoscaler=NodePolicy(**promise))
    for seed in (100, 103, 106, 109):
        play(task, by_chance, seed=seed, spec=SHOWN, nodes=3)


class Guarded:
    """A task of bills, of which some pods are protected by budgets."""

    def __init__(self, task, *budgets):
        self.task, self.budgets = task, budgets

    def build(self, seed, nodes):
        cluster = self.task.build(seed, nodes)
        cluster.supply.budgets = self.budgets
        return cluster


class Rows:
    """A task for each row of a batch, by the seeds from `seed` on."""

    def __init__(self, *tasks, seed):
        self.tasks, self.seed = tasks, seed

    def build(self, seed, nodes):
        return self.tasks[seed - self.seed].build(seed, nodes)


def labelled(count, rng):
    """Draw the pods of a bill: in turn of two applications, and each third one of a tier of its own too."""
    workload, until_s = BILL.rhythm(count, rng)
    labels = [{"app": "ab"[i % 2]} | ({"tier": "front"} if i % 3 == 0 else {}) for i in range(len(workload))]
    pods = tuple(replace(pod, labels=own) for pod, own in zip(workload.pods, labels, strict=True))
    return replace(workload, pods=pods), until_s


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
    metrics = play(task, choose, seed=40, spec=SHOWN)
    alone = play(replace(BILL, autoscaler=beside), choose, seed=40, spec=SHOWN)
    assert all(each["evicted"] > 10 for each in metrics)
    assert metrics != alone


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
    usual = {"thresholds": LOW, "descheduling_interval_s": 40.0}
    task = replace(BILL, times=NodeTimes(grace_s=grace_s), rhythm=partial(every_second_kept, seconds=math.inf))
    found = [
        play(
            replace(task, autoscaler=Descheduled(HighNodeUtilizationSettings(**each), BESIDE["when empty"])),
            fullest,
            30,
        )
        for each in (usual, usual | told)
    ]
    assert found[0] != found[1], "it counts"


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


def every_second_kept(count, rng, seconds):
    """Draw the pods of a bill, of which every second one may not be disrupted for so long, and some others never."""
    workload, until_s = BILL.rhythm(count, rng)
    kept = [replace(pod, do_not_disrupt=True, do_not_disrupt_s=seconds) for pod in workload.pods[::2]]
    return replace(workload, pods=tuple(chain(*zip_longest(kept, workload.pods[1::2])))[: len(workload)]), until_s


@pytest.mark.slow
@pytest.mark.parametrize("autoscaler", [KarpenterSettings(consolidate_after_s=15.0), NodePolicy(eviction_dollars=0.15)])
def test_gpus_are_bought_and_shared_as_the_simulator_does(autoscaler):
    metrics = play(replace(BILL_TASKS["bill-openb"], autoscaler=autoscaler), fullest, seed=40, nodes=3, spec=SHOWN)
    assert all(each["mean_gpu_allocation"] > 0.1 for each in metrics)


def naming_models(count, rng):
    """Return pods of openb, of which those with GPUs name one or two models."""
    workload, until_s = BILL_TASKS["bill-openb"].rhythm(count, rng)
    models = sorted({kind.gpu_model for kind in openb_catalogue().types} - {""})

    def named(number, pod):
        chosen = frozenset(models[(number + k) % len(models)] for k in range(1 + number % 2))
        return replace(pod, gpu=replace(pod.gpu, models=chosen)) if pod.gpu.count else pod

    pods = tuple(named(number, pod) for number, pod in enumerate(workload.pods))
    return replace(workload, pods=pods), until_s


@pytest.mark.slow
@pytest.mark.parametrize("autoscaler", [KarpenterSettings(consolidate_after_s=15.0), NodePolicy()])
def test_pods_get_the_gpu_models_that_they_name_whatever_the_other_rows_can_buy(autoscaler):
    task = replace(BILL_TASKS["bill-openb"], autoscaler=autoscaler, rhythm=naming_models)
    sold = {len(task.drawn_catalogue(seed)) for seed in range(50, 50 + len(NODES))}
    assert len(sold) > 1, "the rows' catalogues differ in length"
    play(task, fullest, seed=50, nodes=3)


def first(pods, task=BILL_TASKS["bill-openb"], draw=None, until_s=2000.0, faster=40.0):
    """Return a task with its first pods alone, all so many times faster, and with other pods by `draw`."""

    def drawn(count, rng):
        workload, _ = (draw or task.rhythm)(count, rng)
        quick = [replace(pod, created_s=pod.created_s / faster, lifetime_s=pod.lifetime_s / faster)
                 for pod in workload.pods[:pods]]  # fmt: skip
        return replace(workload, pods=tuple(quick)), until_s

    return replace(task, rhythm=drawn, autoscaler=KarpenterSettings(consolidate_after_s=5.0, budgets=("100%",)))


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
