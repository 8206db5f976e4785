"""Whole episodes in one compiled call, for searches: the scorer inside lockstep.

A scorer is a named tuple of arrays, and `choose` says which node it takes. Metrics are those of `SimCluster` under the
policy that stands beside each.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from aaml.cluster.gpu import DEVICE_MILLI
from aaml.cluster.kernels import by_class, inlined, without_refcount
from aaml.cluster.state import CPU_COLUMN, MEMORY_COLUMN, PODS_COLUMN
from aaml.episodes.lockstep import begin, bind, expected_s, next_decision, remain, show
from aaml.episodes.random_bits import draw
from aaml.episodes.rows import (
    BatchSettings,
    BoolArray,
    Env,
    EpisodePool,
    IntArray,
    Nodes,
    Rows,
    View,
    Work,
    env_of,
)
from aaml.episodes.spreading import Spreading, spread
from aaml.episodes.supply_rows import Owned, Supply, owned_of
from aaml.nodes.rows import SHAPE_REQUEST, Number
from aaml.policies.formulas.expression import FIRST_COST, FIRST_PAIR, FIRST_POD
from aaml.policies.formulas.program import best_of, run_program
from aaml.policies.fragmentation import FragmentTables
from aaml.policies.gpu.arrays import SHAPE_COUNT, SHAPE_MILLI
from aaml.policies.heuristics.linear import cost_score, gpu_score, life_score, plain_score, weigh_into
from aaml.policies.kube_scores.config import MAX_SCORE
from aaml.scheduling.lifetimes import LifetimeTable
from aaml.scheduling.observation import NODE_FEATURES, mean_size

LEAST, MOST, RATIO = range(3)  # strategies of NodeResourcesFit
GPU_COLUMN = -1  # in place of a resource's: thousandths of GPUs
_HALF = MAX_SCORE // 2


class LinearScorer(NamedTuple):
    """A `LinearPolicy` of use and lifetimes: `weights` float64 [terms, F].

    Working memory are `total` [F] and `measured` float64 [2].
    """

    weights: Any
    total: Any
    measured: Any


class WideScorer(NamedTuple):
    """A `LinearPolicy` with its features of GPUs and costs too, which it looks at as formulas do."""

    linear: LinearScorer


class FormulaScorer(NamedTuple):
    """A `FormulaPolicy`: a `Program`, and `registers` float64 [.., N].

    Features are those that networks see (`lockstep.show`). To compute only those that a formula reads was tried: it is
    slower at ten nodes, and at most twice as fast at a hundred.
    """

    wanted: Any
    constants: Any
    code: Any
    registers: Any


class KubeScorer(NamedTuple):
    """A `KubeScheduler`, but for its draws among equals. Working memory are `start`, `totals` and `found` [N].

    `resources` int64 [R, 3]: the column of each resource that counts, `GPU_COLUMN` for thousandths of GPUs, its weight,
    and whether it counts for pods that request none.

    `wanted` int64 [N + 1]: of how many feasible nodes the search is content, by how many nodes there are. `random`: the
    state of the draws, which begin with `seed`.
    """

    strategy: int
    resources: Any
    line: Any
    fit_weight: int
    balance_weight: int
    wanted: Any
    order: Any
    random_ties: bool
    seed: Any
    random: Any
    start: Any
    totals: Any
    found: Any


class SpreadingKubeScorer(NamedTuple):
    """A `KubeScorer` that spreads the pods that have siblings, too."""

    scorer: KubeScorer
    spreading: Spreading


class Sight(NamedTuple):
    """What a row of a batch looks at besides its environment."""

    settings: BatchSettings
    tables: Any
    lives: Any
    work: Work
    mask: Any
    nodes: Any
    pairs: Any
    pod: Any


@without_refcount
def play_episodes(
    pool: EpisodePool, rows: Rows, supply: Supply | None, view: View, tables: FragmentTables | None,
    lives: LifetimeTable | None, settings: BatchSettings, work: Work, which: IntArray, scorer: Any,
) -> None:  # fmt: skip
    """Play the episodes of the rows `which` int64 [n] to their ends."""
    for b in which:
        env = env_of(pool, rows, b)
        owned = owned_of(supply, env, b)
        begin(pool, rows, env, owned, b)
        at, mask = env.at, view.mask[b]
        sight = Sight(settings, tables, lives, work, mask, view.nodes[b], view.pairs[b], view.pod[b])
        while next_decision(env, owned, settings, work, mask):
            at.steps += 1
            pod = env.queue.ready[at.cursor]
            bind(env, owned, pod, choose(scorer, env, owned, sight, pod))
        at.over, at.alive = 1, 0


def _choose_linear(scorer: LinearScorer, env: Env, owned: Owned | None, sight: Sight, pod: int) -> int:
    return _highest(scorer, env, owned, sight, sight.lives, None, pod)


def _choose_wide(scorer: WideScorer, env: Env, owned: Owned | None, sight: Sight, pod: int) -> int:
    n = env.at.nodes
    mask, nodes, pairs = sight.mask[:n], sight.nodes[:n], sight.pairs[:n]
    show(env, owned, sight.settings, sight.tables, sight.lives, sight.work, True, mask, nodes, pairs, sight.pod)
    return _highest(scorer.linear, env, owned, sight, sight.lives, (nodes, pairs), pod)


@inlined
def _highest(
    scorer: LinearScorer, env: Env, owned: Owned | None, sight: Sight, lives: LifetimeTable | None, wide: Any, pod: int
) -> int:
    """Return the node with the highest score, of equal ones the first; `wide` are features of nodes and pairs."""
    at, nodes, n = env.at, env.nodes, env.at.nodes
    mean_cpu, mean_memory = env.episode.mean_cpu, env.episode.mean_memory
    if owned is not None:
        mean_cpu, mean_memory = mean_size(nodes.allocatable, nodes.capacity)
    empty_s = sight.work.empty_s[:n]
    shape, remaining_s = env.shapes[env.pods.shape[pod]], expected_s(env, owned, lives, pod)
    cpu, memory = shape[SHAPE_REQUEST + CPU_COLUMN], shape[SHAPE_REQUEST + MEMORY_COLUMN]
    weigh_into(scorer.weights, cpu / mean_cpu, memory / mean_memory, remaining_s, scorer.total)
    if lives is not None:
        same = scorer.measured[0] == at.now_s and scorer.measured[1] == at.departed
        if owned is not None or at.steps == 1 or not same:
            remain(env, owned, lives, sight.work.load[:n, :0], empty_s)
            scorer.measured[0], scorer.measured[1] = at.now_s, at.departed
    best, chosen = -np.inf, -1
    for i in range(n):
        if sight.mask[i]:
            cpu_after = (nodes.requested[i, CPU_COLUMN] + cpu) / max(nodes.allocatable[i, CPU_COLUMN], 1)
            memory_after = (nodes.requested[i, MEMORY_COLUMN] + memory) / max(nodes.allocatable[i, MEMORY_COLUMN], 1)
            score = plain_score(scorer.total, cpu_after, memory_after, nodes.requested[i, PODS_COLUMN])
            if lives is not None:
                score += life_score(scorer.total, remaining_s, empty_s[i], nodes.requested[i, PODS_COLUMN])
            if wide is not None:
                longer_s = remaining_s - empty_s[i] if lives is not None else 0.0
                score += _wide_score(scorer, owned is not None and sight.settings.costs, shape, wide, i, longer_s)
            if chosen < 0 or score > best:
                best, chosen = score, i
    if lives is not None:
        empty_s[chosen] = max(empty_s[chosen], remaining_s)
    return chosen


@inlined
def _wide_score(scorer: LinearScorer, costs: bool, shape: IntArray, wide: Any, i: int, longer_s: float) -> float:
    """Return what costs and GPUs add to a node's score."""
    score = 0.0
    if costs:
        score += cost_score(scorer.total, wide[0][i, len(NODE_FEATURES) :], longer_s)
    if shape[SHAPE_COUNT] > 0:
        score += gpu_score(scorer.total, wide[1][i])
    return score


def _choose_by_formula(scorer: FormulaScorer, env: Env, owned: Owned | None, sight: Sight, _pod: int) -> int:
    """Return the node with the highest value, of equal ones the first."""
    n = env.at.nodes
    mask, nodes, pairs, pod = sight.mask[:n], sight.nodes[:n], sight.pairs[:n], sight.pod
    show(env, owned, sight.settings, sight.tables, sight.lives, sight.work, True, mask, nodes, pairs, pod)
    for k in range(len(scorer.wanted)):
        number, out = scorer.wanted[k], scorer.registers[k]
        for i in range(n):
            if number < FIRST_PAIR:
                out[i] = nodes[i, number]
            elif number < FIRST_POD:
                out[i] = pairs[i, number - FIRST_PAIR]
            elif number < FIRST_COST:
                out[i] = pod[number - FIRST_POD]
            else:
                column = number - FIRST_COST + len(NODE_FEATURES)
                out[i] = nodes[i, column] if column < nodes.shape[1] else 0.0
    run_program(scorer.constants, scorer.code, len(scorer.wanted), scorer.registers, n)
    last = len(scorer.wanted) + len(scorer.constants) + len(scorer.code) - 1
    return best_of(scorer.registers[last], sight.mask, n)


def _choose_as_kube_scheduler(scorer: KubeScorer, env: Env, _owned: Owned | None, sight: Sight, pod: int) -> int:
    return _best(scorer, None, env, sight, pod)


def _choose_spreading(scorer: SpreadingKubeScorer, env: Env, _owned: Owned | None, sight: Sight, pod: int) -> int:
    return _best(scorer.scorer, scorer.spreading, env, sight, pod)


@inlined
def _best(scorer: KubeScorer, spreading: Spreading | None, env: Env, sight: Sight, pod: int) -> int:
    """Return one of the nodes with the highest score, of those that were searched."""
    at, shape, found, totals = env.at, env.shapes[env.pods.shape[pod]], scorer.found, scorer.totals
    if at.steps == 1:
        scorer.start[0], scorer.random[0] = 0, scorer.seed[0]
    count, scorer.start[0] = _sample(
        sight.mask, scorer.order[: at.nodes], scorer.start[0], scorer.wanted[at.nodes], found
    )
    best, ties = np.int64(-1), 0
    if count > 1:
        if spreading is not None and spreading.group[pod] >= 0:
            spread(spreading, env, pod, found, count)
        for i in range(count):
            total = np.int64(0)
            if spreading is not None and spreading.group[pod] >= 0:
                total += spreading.weight * spreading.scores[i]
            if scorer.fit_weight:
                fit = _fit(env.nodes, found[i], shape, scorer.strategy, scorer.resources, scorer.line)
                total += scorer.fit_weight * fit
            if scorer.balance_weight:
                total += scorer.balance_weight * _balanced(env.nodes, found[i], shape)
            totals[i] = total
            if ties == 0 or total > best:
                best, ties = total, 1
            elif total == best:
                ties += 1
    nth = draw(scorer.random) % ties if scorer.random_ties and ties > 1 else 0
    return _nth(totals, found, count, best, nth) if ties else found[0]


@inlined
def _nth(totals: IntArray, found: IntArray, count: int, best: Number, nth: Number) -> int:
    """Return the node that is the `nth` with the best total."""
    for i in range(count):
        if totals[i] == best:
            if nth == 0:
                return found[i]
            nth -= 1
    return found[0]


_CHOICES: Mapping[type | None, Callable[..., int]] = {
    LinearScorer: _choose_linear, WideScorer: _choose_wide, FormulaScorer: _choose_by_formula,
    KubeScorer: _choose_as_kube_scheduler, SpreadingKubeScorer: _choose_spreading,
}  # fmt: skip
choose = by_class(0, _CHOICES)
"""The node that a scorer takes for the first ready pod; one fits."""


@inlined
def _sample(mask: BoolArray, order: IntArray, start: int, wanted: int, found: IntArray) -> tuple[int, int]:
    """Write the rows to score; returns how many and where the next search begins: `kube_scores.sampling.search`."""
    size, count = len(order), 0
    start %= size  # nodes may have gone
    for i in range(size):
        row = order[(start + i) % size]
        if mask[row]:
            if count == wanted:
                return count, (start + i) % size
            found[count] = row
            count += 1
    return count, start


@inlined
def _fit(nodes: Nodes, row: int, shape: IntArray, strategy: int, resources: IntArray, line: IntArray) -> Number:
    """Return NodeResourcesFit's score of a node: `kube_scores.resources.fit`."""
    total, weights = np.int64(0), np.int64(0)
    for k in range(resources.shape[0]):
        column, weight, native = resources[k, 0], resources[k, 1], resources[k, 2]
        if column == GPU_COLUMN:
            amount, there = shape[SHAPE_COUNT] * shape[SHAPE_MILLI], nodes.gpu_count[row] * DEVICE_MILLI
            used = there + amount
            for g in range(nodes.gpu_free.shape[1]):
                used -= nodes.gpu_free[row, g]
        else:
            amount, there = shape[SHAPE_REQUEST + column], nodes.allocatable[row, column]
            used = nodes.requested[row, column] + amount
        if there == 0 or (amount == 0 and not native):
            continue
        if strategy == RATIO:
            score = line[MAX_SCORE] if used > there else line[used * MAX_SCORE // there]
            if score == 0:
                continue
        elif strategy == LEAST:
            score = np.int64(0) if used > there else (there - used) * MAX_SCORE // there
        else:
            score = min(used, there) * MAX_SCORE // there
        total += score * weight
        weights += weight
    if weights == 0:
        return np.int64(0)
    if strategy == RATIO:
        return np.int64(np.floor(total / weights + 0.5))
    return total // weights


@inlined
def _balanced(nodes: Nodes, row: int, shape: IntArray) -> Number:
    """Return NodeResourcesBalancedAllocation's score of a node: `kube_scores.resources.balanced`."""
    cpu, memory = nodes.allocatable[row, CPU_COLUMN], nodes.allocatable[row, MEMORY_COLUMN]
    if cpu == 0 or memory == 0:
        return np.int64(_HALF + _HALF // 2)
    used_cpu, used_memory = nodes.requested[row, CPU_COLUMN], nodes.requested[row, MEMORY_COLUMN]
    before = _evenness(used_cpu / cpu, used_memory / memory)
    after = _evenness(
        (used_cpu + shape[SHAPE_REQUEST + CPU_COLUMN]) / cpu,
        (used_memory + shape[SHAPE_REQUEST + MEMORY_COLUMN]) / memory,
    )
    return np.int64(_HALF + (_HALF + after - before) // 2)


@inlined
def _evenness(cpu: float, memory: float) -> Number:
    return np.int64((1.0 - abs(min(cpu, 1.0) - min(memory, 1.0)) / 2.0) * MAX_SCORE)
