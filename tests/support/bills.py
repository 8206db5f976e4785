"""Compiled episodes in which nodes are bought and given back, played beside the simulator."""

import os
from dataclasses import replace
from itertools import chain, zip_longest

import numpy as np

from aaml.episodes.batch import BatchedEnv
from aaml.episodes.plan import Plan
from aaml.nodes.catalogue_file import openb_catalogue
from aaml.nodes.settings import KarpenterSettings
from aaml.policies.registry import make_reward
from aaml.scheduling.cycle import SchedulingCycle
from aaml.scheduling.observation import ObservationSpec
from aaml.scheduling.ports import Decision
from aaml.scheduling.rewards import RewardOptions
from aaml.sim.bill import BILL_TASKS


def hastened(draw, times):
    """Draw the same pods, which come and go so many times as fast: autoscalers look the less often."""

    def drawn(count, rng):
        workload, until_s = draw(count, rng)
        pods = [replace(pod, created_s=pod.created_s / times, lifetime_s=pod.lifetime_s / times)
                for pod in workload.pods]  # fmt: skip
        return replace(workload, pods=tuple(pods)), until_s / times

    return drawn


BILL = replace(BILL_TASKS["bill"], rhythm=hastened(BILL_TASKS["bill"].rhythm, 5.0))
OPENB = BILL_TASKS["bill-openb"]
ROWS = int(os.environ.get("AAML_BILL_ROWS", "2"))
SHOWN = ObservationSpec(costs=True)


def by_chance(context, rng):
    return int(rng.choice(np.flatnonzero(context.mask)))


def fullest(context, _rng):
    used = context.state.requested[:, 0] / context.state.allocatable[:, 0]
    return int(np.argmax(np.where(context.mask, used, -1.0)))


def not_always_where_it_fits(context, rng):
    return by_chance(context, rng) if rng.random() < 0.9 else len(context.mask)


def play(task, choose=by_chance, seed=0, nodes=4, spec=None, reward="bill", sort=None):
    """Play some rows, each an episode, beside the simulator's; return the metrics of its episodes."""
    spec = spec or ObservationSpec()
    rows = len(task.tasks) if isinstance(task, Rows) else ROWS
    seeds = range(seed, seed + rows)
    batch = BatchedEnv(
        lambda row, _number: Plan.of_cluster(task.build(seeds[row], nodes), spec.lifetime_model), rows,
        observation_spec=spec, reward=reward, restart=False, threads=1, queue_sort=sort,
    )  # fmt: skip
    batch.reset()
    cycles = [SchedulingCycle(task.build(each, nodes), make_reward(reward, RewardOptions()), spec) for each in seeds]
    for cycle in cycles:
        cycle.cluster.sort_queue(None if sort is None else sort.knowing(spec.lifetime_model))
    contexts = [next_context(cycle) for cycle in cycles]
    rng = np.random.default_rng(seed)
    metrics = {}
    while batch.alive.any():
        going, actions = np.flatnonzero(batch.alive), np.zeros(rows, dtype=int)
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
    return [metrics[row] for row in range(rows)]


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


def every_second_kept(count, rng, seconds):
    """Draw the pods of a bill, of which every second one may not be disrupted for so long, and some others never."""
    workload, until_s = BILL.rhythm(count, rng)
    kept = [replace(pod, do_not_disrupt=True, do_not_disrupt_s=seconds) for pod in workload.pods[::2]]
    return replace(workload, pods=tuple(chain(*zip_longest(kept, workload.pods[1::2])))[: len(workload)]), until_s


def naming_models(count, rng):
    """Return pods of openb, of which those with GPUs name one or two models."""
    workload, until_s = OPENB.rhythm(count, rng)
    models = sorted({kind.gpu_model for kind in openb_catalogue().types} - {""})

    def named(number, pod):
        chosen = frozenset(models[(number + k) % len(models)] for k in range(1 + number % 2))
        return replace(pod, gpu=replace(pod.gpu, models=chosen)) if pod.gpu.count else pod

    pods = tuple(named(number, pod) for number, pod in enumerate(workload.pods))
    return replace(workload, pods=pods), until_s


def first(pods, task=OPENB, draw=None, until_s=2000.0, faster=40.0):
    """Return a task with its first pods alone, all so many times faster, and with other pods by `draw`."""

    def drawn(count, rng):
        workload, _ = hastened(draw or task.rhythm, faster)(count, rng)
        return replace(workload, pods=workload.pods[:pods]), until_s

    return replace(task, rhythm=drawn, autoscaler=KarpenterSettings(consolidate_after_s=5.0, budgets=("100%",)))
