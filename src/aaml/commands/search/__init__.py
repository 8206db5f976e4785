"""Searches: settings of a training, what a cluster is set to, and formulas that schedule well."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from aaml.commands.signals import Interruption, ends_by
from aaml.errors import StoppedError

Outcome = TypeVar("Outcome")


def next_line(task: str, nodes: Sequence[int], policies: str) -> str:
    """Return the line with the command that compares what was found, at the same sizes."""
    sizes = f" --nodes {' '.join(map(str, nodes))}" if nodes else ""
    return f"next: aaml evaluate --task {task}{sizes} --policies {policies}"


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
