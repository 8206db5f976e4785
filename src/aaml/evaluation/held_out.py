"""Episodes that a result is told by are none that a search has seen: checked before the search begins."""

from collections.abc import Container, Iterable, Mapping

from aaml.errors import bad_value
from aaml.sim.recorded import TraceTask
from aaml.sim.task import Task

_SHOWN = 5


def check_held_out(
    seeds: Iterable[int], played: Mapping[str, Iterable[int]], task: Task | None = None, *, field: str = "seeds"
) -> None:
    """Raise `UserError` naming the `seeds` that are of the same episodes as some that are `played`, by what for.

    Seeds of a recorded trace stand for its windows, of which one may have several seeds.
    """
    wanted = list(seeds)
    for purpose, others in played.items():
        there: Container[int] = others if isinstance(others, range) else set(others)
        if isinstance(task, TraceTask):
            there = {task.window(seed).index for seed in others}
        both = [seed for seed in wanted if (task.window(seed).index if isinstance(task, TraceTask) else seed) in there]
        if both:
            more = f" and {len(both) - _SHOWN} more" if len(both) > _SHOWN else ""
            told = ", ".join(map(str, both[:_SHOWN])) + more
            raise bad_value(field, told, f"episodes that are held out: the search plays these for {purpose}")
