"""Episodes that configurations are judged on: compiled where an episode allows it, else in the simulator."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from aaml.errors import UserError
from aaml.policies.kube_scores import KubeScheduler, KubeSchedulerConfig
from aaml.scheduling.play import play
from aaml.sim.cluster import SimCluster
from aaml.sim.compiled.kube_flow import KubeFlow
from aaml.sim.task import Task

FloatArray = npt.NDArray[np.float64]
_KEPT = 64  # compiled episodes of a process: to lay one out takes a tenth of what a generation plays it


def judge(
    task: Task, seed: int, nodes: int | None, configs: Sequence[KubeSchedulerConfig], metrics: Sequence[str]
) -> FloatArray:
    """Return [configurations, metrics] of an episode under each configuration.

    Without `metrics` it is the task's value, one column.
    """
    flow = _flow(task, seed, nodes)
    played = []
    for config in configs:
        found = _played(flow, lambda: task.build(seed, nodes), config, seed)
        played.append([found[name] for name in metrics] if metrics else [task.value(found)])
    return np.array(played, dtype=np.float64)


def metrics_of(cluster: SimCluster, config: KubeSchedulerConfig, seed: int) -> Mapping[str, float]:
    """Return the metrics of a cluster's episode, from its beginning to its end; equal nodes are drawn from."""
    return _played(_compiled(cluster), lambda: cluster, config, seed)


def _played(
    flow: KubeFlow | None, build: Callable[[], SimCluster], config: KubeSchedulerConfig, seed: int
) -> Mapping[str, float]:
    config = replace(config, ties="random")
    if flow is not None and flow.knows(config):
        return flow.play(config, seed)
    cluster = build()
    play(cluster, KubeScheduler(np.random.default_rng(seed), config))
    return cluster.metrics()


def _compiled(cluster: SimCluster) -> KubeFlow | None:
    try:
        return KubeFlow.of(cluster)
    except UserError:
        return None  # it has what compiled episodes do not know, such as pods that run already


def is_compiled(task: Task, seed: int, nodes: int | None) -> bool:
    """Whether an episode is played in compiled code."""
    return _flow(task, seed, nodes) is not None


@lru_cache(maxsize=_KEPT)
def _flow(task: Task, seed: int, nodes: int | None) -> KubeFlow | None:
    return _compiled(task.build(seed, nodes))
