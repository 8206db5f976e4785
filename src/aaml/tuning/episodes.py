"""Episodes that configurations are judged on: compiled where an episode allows it, else in the simulator."""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from aaml.errors import UserError
from aaml.policies.kube_scores import KubeScheduler, KubeSchedulerConfig
from aaml.scheduling.play import play
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
        if flow is not None:
            found = flow.play(config, seed)
        else:
            cluster = task.build(seed, nodes)
            play(cluster, KubeScheduler(np.random.default_rng(seed), replace(config, ties="random")))
            found = cluster.metrics()
        played.append([found[name] for name in metrics] if metrics else [task.value(found)])
    return np.array(played, dtype=np.float64)


def is_compiled(task: Task, seed: int, nodes: int | None) -> bool:
    """Whether an episode is played in compiled code."""
    return _flow(task, seed, nodes) is not None


@lru_cache(maxsize=_KEPT)
def _flow(task: Task, seed: int, nodes: int | None) -> KubeFlow | None:
    try:
        return KubeFlow.of(task.build(seed, nodes))
    except UserError:
        return None  # it has what compiled episodes do not know, such as pods that run already
