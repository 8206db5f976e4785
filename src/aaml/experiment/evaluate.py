"""Evaluation: policies on a task over seeds, the same episodes for each, one row a run.

A row has task, nodes, policy, seed, every metric of `SimCluster.metrics`, the number of decisions and the latency of a
decision (observe and choose) at the 50th and 99th percentile.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from aaml.errors import UserError, bad_value
from aaml.experiment.policies import is_model, load_policy
from aaml.experiment.workers import open_pool
from aaml.scheduling.cycle import SchedulingCycle
from aaml.scheduling.loop import SchedulerLoop
from aaml.scheduling.observation import Featurizer
from aaml.scheduling.ports import Policy
from aaml.scheduling.registry import make_reward
from aaml.sim.cluster import SimCluster
from aaml.sim.tasks import find_task

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class Contestant:
    """A policy by name or `file.py:name`, or a model file; `label` is what tables call it."""

    spec: str
    label: str = ""

    @property
    def name(self) -> str:
        """The label, or else the name; a model file's stem."""
        return self.label or (Path(self.spec).stem if self.learned else self.spec)

    @property
    def learned(self) -> bool:
        """Whether this is a model file."""
        return is_model(self.spec)


def parse_seeds(text: str, field: str = "seeds") -> tuple[int, ...]:
    """Read "42..51", "1,2,5" or a mixture, without doubles. Raises `UserError` naming `field`."""
    seeds: list[int] = []
    for part in text.split(","):
        first, dots, last = part.strip().partition("..")
        if not first.isdigit() or (dots and not last.isdigit()):
            raise bad_value(field, text, 'numbers and ranges such as "42..51" or "1,2,5"')
        seeds += range(int(first), int(last or first) + 1)
    if not seeds or len(set(seeds)) != len(seeds):
        raise bad_value(field, text, "at least one seed, each once")
    return tuple(seeds)


def run_episode(
    contestant: Contestant, task_name: str, seed: int, nodes: int | None = None, pods: int | None = None
) -> dict[str, Any]:
    """Run one episode without learning and return its row."""
    task = find_task(task_name)
    policy, featurizer = load_policy(contestant.spec, seed=seed, expected=task.expected(), lookahead=task.lookahead)
    cluster = task.build(seed, nodes, pods=pods)
    return episode_row(task_name, seed, cluster, policy, featurizer, contestant.name)


def episode_row(
    task: str, seed: int, cluster: SimCluster, policy: Policy, featurizer: Featurizer, name: str
) -> dict[str, Any]:
    """Run a policy on a cluster to its end, without learning, and return its row."""
    loop = SchedulerLoop(SchedulingCycle(cluster, make_reward("balance"), featurizer), policy, learn=False)
    stats = loop.run()
    latency_ms = 1000.0 * np.asarray(stats.latency_s or [np.nan])
    return {
        "task": task,
        "nodes": int(cluster.state.capacity.sum()),
        "policy": name,
        "seed": seed,
        **cluster.metrics(),
        "decisions": stats.decisions,
        "latency_p50_ms": float(np.percentile(latency_ms, 50)),
        "latency_p99_ms": float(np.percentile(latency_ms, 99)),
    }


def evaluate(
    contestants: Sequence[Contestant],
    task: str,
    seeds: Sequence[int],
    sizes: Sequence[int | None] = (None,),
    *,
    pods: int | None = None,
    workers: int | str = 1,
    progress: bool = True,
    on_row: Callable[[dict[str, Any]], None] | None = None,
) -> "pd.DataFrame":
    """Run every contestant on every seed and size; rows in a fixed order, whatever the workers' order.

    `on_row` is called as each row arrives, so that a run which is cut off keeps what it had. `workers` is what
    `parse_workers` reads. Raises `UserError` for unknown names before anything runs.
    """
    import pandas as pd
    from tqdm import tqdm

    names = [contestant.name for contestant in contestants]
    if len(set(names)) != len(names):
        raise UserError(f"policies: {', '.join(names)} holds a name twice; give labels such as NAME=SPEC")
    found = find_task(task)
    for contestant in contestants:
        load_policy(contestant.spec, lookahead=found.lookahead)
    jobs = [(contestant, task, seed, size, pods) for size in sizes for seed in seeds for contestant in contestants]
    rows: dict[int, dict[str, Any]] = {}
    with (
        open_pool(workers) as pool,
        tqdm(total=len(jobs), desc=f"evaluate {task}", unit="run", disable=not progress) as bar,
    ):
        for position, row in pool.run(run_episode, jobs):
            rows[position] = row
            bar.update()
            if on_row is not None:
                on_row(row)
    return pd.DataFrame([rows[position] for position in sorted(rows)])


def parse_contestants(policies: Sequence[str], models: Sequence[str] = ()) -> tuple[Contestant, ...]:
    """Read "NAME", "LABEL=NAME", model files and "LABEL=FILE.pth". Raises `UserError` for a missing file."""
    result = []
    for text in (*policies, *models):
        label, equals, spec = text.partition("=")
        contestant = Contestant(spec if equals else text, label if equals else "")
        if contestant.learned and not Path(contestant.spec).is_file():
            raise bad_value("model", contestant.spec, "a model file that exists")
        result.append(contestant)
    if not result:
        raise UserError("policies: none given; expected names such as least-allocated, or model files")
    return tuple(result)
