"""What an optimum allows on a task, as rows beside those of policies: which tasks have one, and who finds it."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from aaml.errors import bad_value
from aaml.evaluation.bound import BOUNDED, bound_task
from aaml.evaluation.bound_bill import bound_bill
from aaml.sim.bill import BILL_TASKS, BillTask
from aaml.sim.recorded_bill import RecordedBillTask
from aaml.sim.task import Task


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
            yield from bound_task(task.name, seeds, nodes, pods, limit_s=limit_s, stopped=stopped)
