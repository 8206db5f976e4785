"""Episodes that configurations are evaluated on: compiled where an episode allows it, else in the simulator."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from aaml.episodes.kube_flow import KubeFlow
from aaml.errors import UserError
from aaml.evaluation.evaluate import SEEDS
from aaml.evaluation.held_out import check_held_out
from aaml.policies.kube_scores import KubeScheduler, KubeSchedulerConfig
from aaml.scheduling.play import play
from aaml.sim.cluster import SimCluster
from aaml.sim.recorded import TRAINING_SEEDS, VALIDATION_SEEDS, TraceTask
from aaml.sim.task import Task
from aaml.workload.trace.windows import read_windows

FloatArray = npt.NDArray[np.float64]
_KEPT = 64  # compiled episodes of a process: to lay one out takes a tenth of what a generation plays it


def seeds_of(task: Task, part: str, count: int) -> list[int]:
    """Return seeds of training or validation episodes; of a trace no more than it has windows for that."""
    if isinstance(task, TraceTask):
        windows = read_windows(task.folder).part("training" if part == "training" else "validation")
        count = min(count, len(windows))
    first = TRAINING_SEEDS if part == "training" else VALIDATION_SEEDS
    return list(range(first, first + count))


def check_seeds(task: Task, seeds: Sequence[int] | None, training: int, validation: int) -> None:
    """Raise `UserError` where a result would be told by episodes that the search plays, so many of each part."""
    played = {"training": seeds_of(task, "training", training), "validation": seeds_of(task, "validation", validation)}
    check_held_out(seeds or task.episodes or SEEDS, played, task)


def evaluate_configurations(
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
