"""A solver (CP-SAT) at work in a thread, so that Ctrl-C is heard meanwhile."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from aaml.extras import lazily
from aaml.threads import Background

if TYPE_CHECKING:
    from ortools.sat.python import cp_model
else:  # an extra
    cp_model = lazily("ortools.sat.python.cp_model")

_LOOK_EVERY_S = 0.2


def solved(model: Any, limit_s: float, stopped: Callable[[], bool]) -> tuple[Any, str]:
    """Solve for at most `limit_s` seconds, or until `stopped()`; returns the solver and its status by name.

    Raises KeyboardInterrupt where it was stopped and has found nothing.
    """
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = limit_s
    solver.parameters.num_workers = 1
    solver.parameters.catch_sigint_signal = False
    # The solver does not hold the interpreter's lock: this thread hears of signals.
    with Background(lambda: solver.solve(model), "solver") as solving:
        while not solving.wait(_LOOK_EVERY_S):
            if stopped():
                solver.stop_search()
    status = str(solver.status_name(solving.result()))
    if status not in ("OPTIMAL", "FEASIBLE") and stopped():
        raise KeyboardInterrupt
    return solver, status
