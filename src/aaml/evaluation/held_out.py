"""Checks, before a search begins, that the episodes which report its result are none that the search plays."""

from collections.abc import Container, Iterable, Mapping, Sequence

from aaml.errors import bad_value
from aaml.sim.recorded import TraceTask
from aaml.sim.task import Task

_SHOWN = 5


def check_held_out(
    seeds: Iterable[int], played: Mapping[str, Sequence[int]], task: Task | None = None, *, field: str = "seeds"
) -> None:
    """Raise `UserError` naming the `seeds` that are of the same episodes as some that are `played`, by what for.

    Seeds of a recorded trace stand for its windows, of which one may have several seeds.
    """
    wanted = {seed: episode_of(seed, task) for seed in seeds}
    both: dict[int, str] = {}
    for purpose, others in played.items():
        there: Container[int] = others
        if not isinstance(others, range) or isinstance(task, TraceTask):
            there = {episode_of(seed, task) for seed in others}
        both |= {seed: purpose for seed, episode in wanted.items() if episode in there}
    if both:
        more = f" and {len(both) - _SHOWN} more" if len(both) > _SHOWN else ""
        purposes = " and ".join(dict.fromkeys(both.values()))
        accepted = f"episodes that are held out: the search plays these for {purposes}"
        raise bad_value(field, ", ".join(map(str, [*both][:_SHOWN])) + more, accepted)


def episode_of(seed: int, task: Task | None) -> int:
    """Return what identifies a seed's episode: of a trace its window, which several seeds may name."""
    return task.number(seed) if isinstance(task, TraceTask) else seed
