"""The episodes of a task as plans, by their seeds: those of `Task.build`, without a `Pod` for every pod of a mix."""

from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING

import numpy as np

from aaml.episodes.plan import Fleet, Plan
from aaml.scheduling.lifetimes import KnownLifetimes, LifetimeModel
from aaml.sim.task import Task
from aaml.sim.tasks import Mix
from aaml.workload.model import Workload

if TYPE_CHECKING:
    from aaml.cluster.objects import Node


class TaskEpisodes:
    """Plans of a task; `pods` and `trace` as for `Task.build`, `lifetime_model` as for `Plan.of`."""

    def __init__(
        self, task: Task, pods: int | None = None, trace: str | None = None, lifetime_model: LifetimeModel | None = None
    ) -> None:
        self._task, self._pods, self._trace, self._lifetime_model = task, pods, trace, lifetime_model
        self._known: dict[int, tuple[tuple[Node, ...], Plan]] = {}  # by size: nodes, a plan of a pod a shape

    def plan(self, seed: int, nodes: int | None = None) -> Plan:
        """Return the episode of a seed on so many nodes, None: the task's own number."""
        task = self._task
        if not isinstance(task.draw, Mix) or self._trace or isinstance(self._lifetime_model, KnownLifetimes):
            return Plan.of_cluster(task.build(seed, nodes, pods=self._pods, trace=self._trace), self._lifetime_model)
        count, pods = task.size(nodes, self._pods)
        if count not in self._known:
            fleet, mix = task.make_nodes(count), task.draw.spec
            examples = Workload(tuple(mix.pod(kind, kind) for kind in range(len(mix.shapes))))
            self._known[count] = fleet, Plan.of(Fleet(fleet), examples, lifetime_model=self._lifetime_model)
        fleet, plan = self._known[count]
        rng = np.random.default_rng(seed)
        drawn = task.draw.at(fleet, rng).draw(pods, rng)
        return replace(
            plan,
            until_s=float(drawn.created_s[-1]) if task.continuing else inf,
            arrival_s=drawn.created_s,
            lifetime_s=drawn.lifetimes_s,
            owner=plan.owner[drawn.kinds],
            shape=plan.shape[drawn.kinds],
            kind=plan.kind[drawn.kinds],
            limit_s=plan.limit_s[drawn.kinds],
        )
