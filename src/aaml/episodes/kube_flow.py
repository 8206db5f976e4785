"""Whole episodes under kube-scheduler's scores in one compiled call, for searches over its configuration.

Nodes stay, or Karpenter buys and gives them back. Metrics are those of `SimCluster` under a `KubeScheduler` of this
configuration: the same integers, the same sampling of nodes, the same queue. Only what draws among equals is another
generator.
"""

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from aaml.cluster.kernels import inlined, without_refcount
from aaml.cluster.quantity import CPU, MEMORY
from aaml.cluster.state import CPU_COLUMN, MEMORY_COLUMN
from aaml.episodes.batch import BatchedEnv
from aaml.episodes.lockstep import begin, bind, next_decision
from aaml.episodes.plan import Plan
from aaml.episodes.ports import Beginning
from aaml.episodes.random_bits import BitState, draw
from aaml.episodes.refusals import check_kube_scheduler, check_zones
from aaml.episodes.rows import BatchSettings, BoolArray, EpisodePool, Nodes, Rows, View, Work, env_of
from aaml.episodes.supply_rows import Supply, owned_of
from aaml.errors import UserError
from aaml.nodes.rows import SHAPE_REQUEST, Number
from aaml.policies.kube_scores.config import MAX_SCORE, KubeSchedulerConfig
from aaml.policies.kube_scores.resources import by_shape
from aaml.policies.kube_scores.sampling import nodes_to_find, zone_order
from aaml.scheduling.lifetimes import LifetimeTable

IntArray = npt.NDArray[np.int64]
_LEAST, _RATIO = 0, 2
_STRATEGIES = {"LeastAllocated": _LEAST, "MostAllocated": 1, "RequestedToCapacityRatio": _RATIO}
_HALF = MAX_SCORE // 2


class KubeFlow:
    """An episode that `play` runs as often as asked."""

    def __init__(self, plan: Plan) -> None:
        self._plan, state = plan, plan.fleet.state
        self._columns = {name: state.resource_index[name] for name in state.resources}
        self._order = zone_order(state.nodes)
        self._batch = BatchedEnv(lambda _group, _number: plan, 1, threads=1, restart=False)
        self._batch.lay_out()

    @classmethod
    def of(cls, cluster: Beginning) -> "KubeFlow":
        """Take over a cluster at its beginning.

        Raises `UserError` for pods and nodes that compiled episodes do not know, and for those that other plugins than
        NodeResourcesFit and NodeResourcesBalancedAllocation tell apart.
        """
        check_kube_scheduler(cluster.state.nodes, cluster.workload.pods)
        plan = Plan.of_cluster(cluster)
        check_zones(set() if plan.supply is None else plan.supply.zones)
        return cls(plan)

    @staticmethod
    def knows(config: KubeSchedulerConfig) -> bool:
        """Whether `play` takes a configuration: no ties in the order of a heap, CPU and memory to balance."""
        return config.ties != "heap" and set(config.balanced_resources) == {CPU, MEMORY}

    def play(self, config: KubeSchedulerConfig, seed: int = 0) -> Mapping[str, float]:
        """Run the episode and return its metrics; `seed` is that of the draws among equals.

        Raises `UserError` for a configuration that it does not know.
        """
        if not self.knows(config):
            raise UserError("compiled episodes of kube-scheduler balance CPU and memory, and take no heap for ties")
        known = [(self._columns[name], weight) for name, weight in config.resources if name in self._columns]
        resources = np.array(known, dtype=np.int64).reshape(-1, 2)
        per_cent = np.arange(MAX_SCORE + 1)
        line = by_shape(config.shape)(per_cent, np.full_like(per_cent, MAX_SCORE))
        weights = [config.weights.get(name, 0) for name in ("NodeResourcesFit", "NodeResourcesBalancedAllocation")]
        random = np.array([seed], dtype=np.uint64)

        def played(
            pool: EpisodePool, rows: Rows, supply: Supply | None, view: View, lives: LifetimeTable | None,
            settings: BatchSettings, work: Work,
        ) -> None:  # fmt: skip
            if config.backoff_s is not None:
                first_s, most_s = map(float, config.backoff_s)
                settings = settings._replace(initial_backoff_s=first_s, max_backoff_s=most_s)
            size = self._batch.most_nodes
            order = self._order if supply is None else np.arange(size)
            wanted = np.array([nodes_to_find(n, config.percentage_of_nodes_to_score) for n in range(size + 1)])
            random[:] = seed
            play: Callable[..., None] = _play
            play(
                pool, rows, supply, view, lives, settings, work,
                _STRATEGIES[config.strategy], resources, line, *weights, wanted, order, config.ties == "random", random,
                *np.empty((2, size), dtype=np.int64),
            )  # fmt: skip

        return self._batch.run(self._plan, None, played).metrics


@without_refcount
def _play(  # noqa: C901
    pool: EpisodePool, rows: Rows, supply: Supply | None, view: View, _lives: LifetimeTable | None,
    settings: BatchSettings, work: Work, strategy: int, resources: IntArray, line: IntArray, fit_weight: int,
    balance_weight: int, wanted: IntArray, order: IntArray, random_ties: bool, random: BitState, totals: IntArray,
    found: IntArray,
) -> None:  # fmt: skip
    """Play the first row's episode to its end; `totals` and `found` [N] are overwritten.

    `wanted` int64 [N + 1]: of how many feasible nodes the search is content, by how many nodes there are.
    """
    env = env_of(pool, rows, 0)
    owned = owned_of(supply, env, 0)
    begin(pool, rows, env, owned, 0)
    at, start = env.at, 0
    while next_decision(env, owned, settings, work, view.mask[0]):
        at.steps += 1
        pod = env.queue.ready[at.cursor]
        shape = env.shapes[env.pods.shape[pod]]
        count, start = _sample(view.mask[0], order[: at.nodes], start, wanted[at.nodes], found)
        best, ties = np.int64(-1), 0
        if count > 1:
            for i in range(count):
                row = found[i]
                total = np.int64(0)
                if fit_weight:
                    total += fit_weight * _fit(env.nodes, row, shape, strategy, resources, line)
                if balance_weight:
                    total += balance_weight * _balanced(env.nodes, row, shape)
                totals[i] = total
                if ties == 0 or total > best:
                    best, ties = total, 1
                elif total == best:
                    ties += 1
        nth = draw(random) % ties if random_ties and ties > 1 else 0
        chosen = found[0]
        for i in range(count):
            if ties and totals[i] == best:
                if nth == 0:
                    chosen = found[i]
                    break
                nth -= 1
        bind(env, owned, pod, chosen)
    at.over, at.alive = 1, 0


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
        column, weight = resources[k, 0], resources[k, 1]
        amount, there = shape[SHAPE_REQUEST + column], nodes.allocatable[row, column]
        if there == 0 or (amount == 0 and column > MEMORY_COLUMN):
            continue
        used = nodes.requested[row, column] + amount
        if strategy == _RATIO:
            score = line[MAX_SCORE] if used > there else line[used * MAX_SCORE // there]
            if score == 0:
                continue
        elif strategy == _LEAST:
            score = np.int64(0) if used > there else (there - used) * MAX_SCORE // there
        else:
            score = min(used, there) * MAX_SCORE // there
        total += score * weight
        weights += weight
    if weights == 0:
        return np.int64(0)
    if strategy == _RATIO:
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
