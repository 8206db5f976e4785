"""The front of a search, evaluated on episodes that the search never saw; and counted looks at the sealed ones.

A look is one formula evaluated on the leaderboard's episodes of a task at a size, by `aaml search formula --look` or by
`aaml bench leaderboard` with a file of the run folder, or on a trace's published seeds by `aaml bench openb`. Intervals
of looks are Bonferroni's: of k looks in a run folder, each has a confidence of 1 - 0.05 / k, so that all k hold
together at 95%. The more looks, the wider.
"""

import math
import time
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from aaml.evaluation.leaderboard.protocol import PROTOCOL
from aaml.evaluation.statistics import Interval, mean_interval, together
from aaml.evolve.cases import check, validation
from aaml.evolve.races import EpisodeRaces, Races
from aaml.evolve.settings import EvolveConfig
from aaml.evolve.state import read_front_rows
from aaml.files import JsonLines, whole_lines
from aaml.policies.formulas.expression import parts, terms
from aaml.policies.formulas.program import assemble
from aaml.policies.formulas.text import parse, to_latex
from aaml.progress import progress_bar
from aaml.study.looks import FIRST_LOOK, Look
from aaml.study.study import exists

LOOKS = "looks.jsonl"


@dataclass(frozen=True)
class Evaluated:
    """A formula of the front: its loss in training, and its losses on validation episodes.

    Of so many comparisons (`compared`), those of later looks too, all intervals hold together at 95%.
    """

    text: str
    training_loss: float
    losses: tuple[float, ...]
    compared: int = 1

    @property
    def interval(self) -> Interval:
        """Its mean loss on validation episodes, with its interval."""
        return mean_interval(self.losses, confidence=together(self.compared))

    @property
    def size(self) -> int:
        """How many constants, features and operators it has."""
        return parts(parse(self.text))

    @property
    def terms(self) -> int:
        """How many constants and features it has."""
        return terms(parse(self.text))

    @property
    def loss(self) -> float:
        """Its mean loss on validation episodes."""
        return float(np.mean(self.losses))

    def row(self, *, ratio: bool) -> dict[str, Any]:
        """Return what a table says of it; `ratio`: losses are logarithms of ratios to the reference."""
        return {
            "size": self.size,
            "terms": self.terms,
            "training": shown(Interval(self.training_loss, self.training_loss, self.training_loss, 1), ratio=ratio)
            .split(" ")[0],
            "validation [95% interval]": shown(self.interval, ratio=ratio),
            "formula": self.text,
        }  # fmt: skip

    def facts(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {**asdict(self), "size": self.size, "terms": self.terms, "latex": to_latex(parse(self.text))}


def shown(loss: Interval, *, ratio: bool) -> str:
    """Return a loss as a ratio to the reference (below 1 is better), or as what is lost on it (below 0 is better)."""
    if ratio:
        values = (math.exp(loss.mean), math.exp(loss.low), math.exp(loss.high))
        return f"{values[0]:.3f} [{values[1]:.3f}, {values[2]:.3f}]"
    return f"{loss.mean:+.4f} [{loss.low:+.4f}, {loss.high:+.4f}]"


def evaluate_front(
    config: EvolveConfig, found: Iterable[tuple[str, float]], look: Look = FIRST_LOOK, *, progress: bool = True
) -> tuple[list[Evaluated], Races]:
    """Evaluate (text, training loss) of formulas on validation episodes; return them by size, and the episodes."""
    entered, evaluated = list(found), []
    with progress_bar("validate", 1 + len(entered), "policy", enabled=progress) as bar:
        races = validation(config)  # plays the reference
        bar.update()
        for text, loss in entered:
            losses = races.play(assemble(parse(text)), range(races.count))
            evaluated.append(Evaluated(text, loss, tuple(losses.tolist()), look.comparisons(len(entered))))
            bar.update()
    return sorted(evaluated, key=lambda each: (each.size, each.loss)), races


def chosen(front: Sequence[Evaluated]) -> Evaluated:
    """Return the shortest formula that is within a standard error of the best one on validation, paired by episode.

    The one-standard-error rule of Breiman, Friedman, Olshen and Stone: Classification and Regression Trees (1984).
    """
    best = min(front, key=lambda each: each.loss)

    def is_near(each: Evaluated) -> bool:
        behind = np.array(each.losses) - np.array(best.losses)
        return bool(behind.mean() <= behind.std() / math.sqrt(max(len(behind) - 1, 1)))

    return min(filter(is_near, front), key=lambda each: (each.size, each.loss))


def not_better(front: Sequence[Evaluated], reference: str) -> str:
    """Return in words that the best of a front is no better than the reference; empty where it is."""
    best = min(front, key=lambda each: each.loss).interval
    if best.high < 0.0:
        return ""
    how = "worse than" if best.low > 0.0 else "not known to be better than"
    return f"on validation episodes the best formula is {how} {reference}"


def undominated(front: Sequence[Evaluated]) -> list[Evaluated]:
    """Return the formulas that none of at most their size beats on validation."""
    kept: list[Evaluated] = []
    for each in sorted(front, key=lambda each: (each.size, each.loss)):
        if not kept or each.loss < kept[-1].loss:
            kept.append(each)
    return kept


@dataclass(frozen=True)
class SealedLook:
    """A formula's loss on the leaderboard's episodes of a task at a size."""

    task: str
    nodes: int
    loss: Interval


def look(config: EvolveConfig, folder: Path, text: str, episodes: int) -> tuple[list[SealedLook], int]:
    """Evaluate a formula on so many of the leaderboard's episodes of each task and size.

    Returns what was seen, and the looks that this folder has had. Looks are written down before they are made.
    """
    kinds = [(task, size) for task in config.tasks for size in config.nodes or task.sizes or (task.nodes,)]
    check(config, {"look": range(PROTOCOL.first_seed, PROTOCOL.first_seed + episodes)})
    count = note_looks(folder, text, [(task.name, size, episodes) for task, size in kinds])
    races = EpisodeRaces(config, PROTOCOL.first_seed, episodes * len(kinds))
    losses = races.play(assemble(parse(text)), range(races.count))
    seen = [
        SealedLook(task.name, size, mean_interval(losses[number :: len(kinds)], confidence=together(count)))
        for number, (task, size) in enumerate(kinds)
    ]
    return seen, count


def note_looks(
    folder: Path, text: str, kinds: Iterable[tuple[str, int, int]], *, first_seed: int = PROTOCOL.first_seed
) -> int:
    """Write down that a formula is about to meet sealed episodes of (task, nodes, so many); return all looks so far."""
    with closing(JsonLines(folder / LOOKS)) as lines:
        for task, nodes, episodes in kinds:
            about = {"task": task, "nodes": nodes, "first_seed": first_seed, "episodes": episodes}
            lines.add({"time_s": time.time(), "formula": text, **about})
    return looks(folder)


def searched_in(file: Path) -> Path | None:
    """Return the folder of the search that a formula's file lies in, None for a file elsewhere."""
    folder = file.absolute().parent.parent
    return folder if file.suffix == ".formula" and exists(folder) else None


def looks(folder: Path) -> int:
    """Return how many looks at sealed episodes formulas of a run have had."""
    path = folder / LOOKS
    return len(whole_lines(path).splitlines()) if path.is_file() else 0


def read_front(folder: Path) -> list[Evaluated]:
    """Read the front that a search left in its folder. Raises `UserError` for one that is missing or damaged."""
    rows = read_front_rows(folder / "front.json")
    return [Evaluated(each.text, each.training_loss, tuple(each.losses), each.compared or len(rows)) for each in rows]
