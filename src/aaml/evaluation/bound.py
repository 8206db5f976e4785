"""What an optimum allows, as rows beside those of policies: the best placement of a task's pods, and its bound."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aaml.errors import bad_value
from aaml.evaluation.bound_bill import bound_bill
from aaml.evaluation.bound_names import SOLVED, SOLVER
from aaml.evaluation.episode import episode_row
from aaml.evaluation.identity import IDENTITY, identity
from aaml.evaluation.results import KEYS
from aaml.optimum.placement import GOALS, Optimum, Place, best_placement
from aaml.progress import progress_bar
from aaml.scheduling.observation import Context
from aaml.scheduling.ports import Decision
from aaml.sim.bill import BILL_TASKS, BillTask
from aaml.sim.recorded_bill import RecordedBillTask
from aaml.sim.task import Task
from aaml.sim.tasks import TASKS

BOUNDED = tuple(name for name, task in TASKS.items() if task.metric in GOALS)
"""Tasks whose optimum can be asked for."""


@dataclass(frozen=True)
class Planned:
    """A policy that knows where each pod goes, by uid; pods without a place are left pending."""

    places: Mapping[str, Place]
    name: str = SOLVED

    def act(self, context: Context) -> Decision:
        """Place the pod where the solver placed it."""
        return Decision(*self.places.get(context.pod.uid, (None, None)))


def bound_rows(
    task: Task,
    seed: int,
    nodes: int | None = None,
    pods: int | None = None,
    *,
    limit_s: float = 20.0,
    stopped: Callable[[], bool] = lambda: False,
) -> tuple[Optimum, list[dict[str, Any]]]:
    """Return the optimum of an episode and its rows in the format of `aaml evaluate`: cp-sat and cp-sat-bound.

    The placement is carried out in the simulator, where every pod has to pass the filters. The bound's row holds the
    metric alone. Neither has a latency: the pods are decided all at once.
    """
    cluster = task.build(seed, nodes, pods=pods, invariants=True)
    optimum = best_placement(cluster.state.nodes, cluster.workload.pods, task.metric, limit_s=limit_s, stopped=stopped)
    row = episode_row(task.name, seed, cluster, Planned(optimum.places), SOLVED)
    if not math.isclose(row[task.metric], optimum.value, rel_tol=1e-9, abs_tol=1e-12):
        raise AssertionError(f"{task.metric} is {row[task.metric]} in the simulator, {optimum.value} to the solver")
    row |= dict.fromkeys(("latency_p50_ms", "latency_p99_ms"), math.nan) | identity(task, pods)
    bound = dict.fromkeys(row, math.nan) | {key: row[key] for key in (*KEYS, *IDENTITY)}
    bound |= {"policy": SOLVER, task.metric: optimum.bound}
    return optimum, [row, bound]


def bound_task(
    task: Task,
    seeds: Sequence[int],
    nodes: int | None = None,
    pods: int | None = None,
    *,
    limit_s: float = 20.0,
    stopped: Callable[[], bool] = lambda: False,
) -> Iterator[dict[str, Any]]:
    """Yield the rows of `bound_rows` seed by seed, each told in a line, until `stopped()`."""
    with progress_bar(f"solve {task.name}", len(seeds), "seed") as bar:
        for seed in seeds:
            optimum, rows = bound_rows(task, seed, nodes, pods, limit_s=limit_s, stopped=stopped)
            if stopped():  # the solver was cut short
                return
            yield from rows
            how = "proven" if optimum.proven else f"not proven in {limit_s:g} s"
            bar.write(f"seed {seed}: {task.metric} {optimum.value:.6g}, bound {optimum.bound:.6g} ({how})")
            bar.update()


def check_bounded(task: Task) -> None:
    """Raise `UserError` for a task whose optimum is not known how to find."""
    if not isinstance(task, BillTask | RecordedBillTask) and task.name not in BOUNDED:
        raise bad_value("task", task.name, f"one of {', '.join((*BOUNDED, *BILL_TASKS))}, bill@FOLDER, with --bound")


def bounds(
    task: Task,
    seeds: Sequence[int],
    sizes: Sequence[int | None],
    pods: int | None = None,
    *,
    others: Sequence[Task] = (),
    limit_s: float = 20.0,
    stopped: Callable[[], bool] = lambda: False,
) -> Iterator[dict[str, Any]]:
    """Yield the rows of an optimum for each size and seed, each told in a line, until `stopped()`.

    `others` are the same bill with who else provisions nodes: no policy of theirs is below the bounds either.
    A task whose pods stay is solved by CP-SAT (rows `cp-sat` and `cp-sat-bound`), a bill by `bound_bill`. Raises
    `UserError` for other tasks, and without ortools where that is needed.
    """
    check_bounded(task)
    for nodes in sizes:
        if isinstance(task, BillTask | RecordedBillTask):
            yield from bound_bill(task, seeds, nodes, pods, others=others, limit_s=limit_s, stopped=stopped)
        else:
            yield from bound_task(task, seeds, nodes, pods, limit_s=limit_s, stopped=stopped)
