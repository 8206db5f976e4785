"""Whole episodes under a linear scorer in one compiled call, for searches over weights: the scorer inside lockstep.

Metrics are those of `SimCluster` under a `LinearPolicy` of these weights and this order of waiting pods.
"""

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from aaml.cluster.kernels import without_refcount
from aaml.cluster.state import CPU_COLUMN, MEMORY_COLUMN, PODS_COLUMN
from aaml.episodes.batch import BatchedEnv
from aaml.episodes.lockstep import begin, bind, expected_s, next_decision, remain
from aaml.episodes.plan import Plan
from aaml.episodes.ports import Beginning
from aaml.episodes.refusals import check_linear
from aaml.episodes.rows import BatchSettings, EpisodePool, Rows, View, Work, env_of
from aaml.episodes.supply_rows import Supply, owned_of
from aaml.nodes.rows import SHAPE_REQUEST
from aaml.policies.heuristics.linear import FEATURES, life_score, plain_score, weigh_into
from aaml.scheduling.lifetimes import LifetimeModel, LifetimeTable
from aaml.scheduling.observation import ObservationSpec, mean_size
from aaml.scheduling.queue_sort import QueueSort

FloatArray = npt.NDArray[np.float64]
BY_ARRIVAL = QueueSort()


class Flow:
    """An episode of pods without GPUs, which `play` runs as often as asked."""

    def __init__(self, plan: Plan, lifetime_model: LifetimeModel | None = None) -> None:
        self._plan = plan
        self.arrival_s = plan.arrival_s
        """When each pod comes, float64 [T]."""
        observation_spec = ObservationSpec(lifetime_model=lifetime_model)
        self._batch = BatchedEnv(
            lambda _group, _number: plan,
            1,
            observation_spec=observation_spec,
            queue_sort=BY_ARRIVAL,
            threads=1,
            restart=False,
        )
        self._batch.lay_out()

    @classmethod
    def of(cls, cluster: Beginning, lifetime_model: LifetimeModel | None = None) -> "Flow":
        """Take over a cluster at its beginning; `lifetime_model` says how long pods are expected to run.

        Raises `UserError` for pods that compiled episodes do not know, and for those with GPUs.
        """
        check_linear(cluster.workload.pods)
        return cls(Plan.of_cluster(cluster, lifetime_model), lifetime_model)

    def play(self, weights: FloatArray, sort: QueueSort = BY_ARRIVAL) -> Mapping[str, float]:
        """Run the episode under the linear scorer `weights` [terms, F]; returns its metrics."""
        play: Callable[..., None] = _play
        total = np.empty(len(FEATURES))
        return self._batch.run(self._plan, sort, lambda *memory: play(*memory, weights, total)).metrics


@without_refcount
def _play(
    pool: EpisodePool, rows: Rows, supply: Supply | None, view: View, lives: LifetimeTable | None,
    settings: BatchSettings, work: Work, weights: FloatArray, total: FloatArray,
) -> None:  # fmt: skip
    """Play the first row's episode to its end; `total` [F] is overwritten."""
    env = env_of(pool, rows, 0)
    owned = owned_of(supply, env, 0)
    begin(pool, rows, env, owned, 0)
    shape_of, nodes, at = env.pods.shape, env.nodes, env.at
    mask, n = view.mask[0], at.nodes
    load, empty_s = work.load[:n, :0], work.empty_s[:n]
    mean_cpu, mean_memory = env.episode.mean_cpu, env.episode.mean_memory
    seen_s, departed = np.nan, 0  # of what `empty_s` was measured at
    while next_decision(env, owned, settings, work, mask):
        at.steps += 1
        if owned is not None:
            n, seen_s = at.nodes, np.nan
            load, empty_s = work.load[:n, :0], work.empty_s[:n]
            mean_cpu, mean_memory = mean_size(nodes.allocatable, nodes.capacity)
        pod = env.queue.ready[at.cursor]
        shape, remaining_s = env.shapes[shape_of[pod]], expected_s(env, owned, lives, pod)
        cpu, memory = shape[SHAPE_REQUEST + CPU_COLUMN], shape[SHAPE_REQUEST + MEMORY_COLUMN]
        weigh_into(weights, cpu / mean_cpu, memory / mean_memory, remaining_s, total)
        if lives is not None and (at.now_s != seen_s or at.departed != departed):
            remain(env, owned, lives, load, empty_s)
            seen_s, departed = at.now_s, at.departed
        best, row = -np.inf, -1
        for i in range(n):
            if mask[i]:
                cpu_after = (nodes.requested[i, CPU_COLUMN] + cpu) / max(nodes.allocatable[i, CPU_COLUMN], 1)
                memory_after = (nodes.requested[i, MEMORY_COLUMN] + memory) / max(
                    nodes.allocatable[i, MEMORY_COLUMN], 1
                )
                score = plain_score(total, cpu_after, memory_after, nodes.requested[i, PODS_COLUMN])
                if lives is not None:
                    score += life_score(total, remaining_s, empty_s[i], nodes.requested[i, PODS_COLUMN])
                if row < 0 or score > best:
                    best, row = score, i
        bind(env, owned, pod, row)
        if lives is not None:
            empty_s[row] = max(empty_s[row], remaining_s)
    at.over, at.alive = 1, 0
