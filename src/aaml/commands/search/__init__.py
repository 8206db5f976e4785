"""Searches: settings of a training, what a cluster is set to, and formulas that schedule well."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from aaml.commands.signals import Interruption, ends_by
from aaml.errors import StoppedError
from aaml.settings import Settings, rows, take

Outcome = TypeVar("Outcome")


def next_line(task: str, nodes: Sequence[int], policies: str) -> str:
    """Return the line with the command that compares what was found, at the same sizes."""
    sizes = f" --nodes {' '.join(map(str, nodes))}" if nodes else ""
    return f"next: aaml evaluate --task {task}{sizes} --policies {policies}"


def going_on(args: Settings, name: str, folder: Path, storage: str = "") -> Any:
    """Return how long a search is to go on, by the setting `name`; what its study knows where `--resume` says nothing.

    Raises `UserError` for a study that cannot be read.
    """
    said = next(row for row in rows(args) if row.name == name)
    if not getattr(args, "resume", False) or name in args.said:
        return said.value
    from aaml.study.study import length

    kept = length(folder, storage)
    return said.value if kept is None else take(name, kept, said.kind)


def stoppable(search: Callable[[Callable[[], bool]], Outcome], folder: Path) -> tuple[Outcome | None, Interruption]:
    """Run a search that Ctrl-C or SIGTERM stops: what it has come to then, None where that is nothing yet."""
    stop: list[bool] = []
    with ends_by(lambda: stop.append(True)) as interruption:
        try:
            return search(lambda: bool(stop)), interruption
        except StoppedError:
            goes_on = "; --resume goes on" if any(folder.glob("study.jsonl")) else ""
            print(f"stopped: nothing is written{goes_on}")
            return None, interruption
