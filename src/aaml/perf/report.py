"""The results of several schedulers on the same scenarios, side by side."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from aaml.perf.player import PlayResult
from aaml.perf.scenarios import Play
from aaml.perf.schedulers import REAL
from aaml.perf.session import PlayJob


@dataclass(frozen=True)
class SideBySide:
    """One workload as those schedulers played it that honour it, in the order of the rounds."""

    play: Play
    outcomes: Mapping[str, Sequence[PlayResult]]

    @property
    def agrees(self) -> bool:
        """Whether all schedulers left the same pods bound, pending and preempted, and none got stuck."""
        every = [outcome for outcomes in self.outcomes.values() for outcome in outcomes]
        return len({outcome.sure for outcome in every}) == 1 and not any(outcome.stuck for outcome in every)

    @property
    def note(self) -> str:
        """Whether the schedulers agree in words, or why the workload could not be played, or not to its end."""
        if not self.outcomes:
            return f"not played: {self.play.unplayed}" if self.play.unplayed else f"not honoured: {self.play.refused}"
        stuck = [f"{name}: {each.stuck}" for name, outcomes in self.outcomes.items() for each in outcomes if each.stuck]
        if stuck:
            return "; ".join(dict.fromkeys(stuck))
        return "agrees" if self.agrees else "differs"


def compare(plays: Iterable[Play], outcomes: Mapping[PlayJob, PlayResult]) -> list[SideBySide]:
    """Return a comparison for each workload that was played, or cannot be."""
    played: dict[Play, dict[str, list[PlayResult]]] = {}
    for job, outcome in outcomes.items():
        played.setdefault(job.play, {}).setdefault(job.scheduler, []).append(outcome)
    return [SideBySide(play, played.get(play, {})) for play in plays if play in played or play.refused]


def header(schedulers: Sequence[str]) -> list[str]:
    """Return the names of the columns of `rows`."""
    columns = [(f"{each}: bound/pending/preempted", f"{each}: pods/s") for each in schedulers]
    return ["scenario", "nodes", *(name for pair in columns for name in pair), "note"]


def rows(comparisons: Iterable[SideBySide], schedulers: Sequence[str]) -> list[list[str]]:
    """Return a row for each comparison. A rate is the median of the rounds, with the least and the most."""
    return [
        [
            each.play.name, str(each.play.nodes),
            *(cell for name in schedulers for cell in _cells(each.outcomes.get(name, ()))), each.note,
        ]
        for each in comparisons
    ]  # fmt: skip


def _cells(outcomes: Sequence[PlayResult]) -> tuple[str, str]:
    if not outcomes:
        return "", ""
    counts = ", ".join(dict.fromkeys(str(outcome.all) for outcome in outcomes))
    rates = [outcome.pods_s for outcome in outcomes]
    spread = f" ({min(rates):.0f} to {max(rates):.0f})" if len(rates) > 1 else ""
    return counts, f"{statistics.median(rates):.0f}{spread}"


def summary(comparisons: Sequence[SideBySide]) -> str:
    """Return the sum in a line."""
    played = [each for each in comparisons if each.outcomes]
    refused = len(comparisons) - len(played)
    agree = sum(each.agrees for each in played)
    verdict = f"{agree} of {len(played)} workloads agree with {REAL}" if played else "nothing was played"
    return verdict + (f"; {refused} are not honoured, or not played" if refused else "")
