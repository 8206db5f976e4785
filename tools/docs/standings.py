"""Where learning stands, task by task: the best learned policy beside the best rule and who knows all."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pandas as pd

from aaml.errors import UserError, bad_value
from aaml.evaluation.leaderboard.board import Board
from aaml.evaluation.ranking import Ranking
from aaml.evaluation.statistics import Interval, share_of_gain
from aaml.openb.tables import read_table
from gains import gains

KUBE_SCHEDULER = "kube-scheduler"
KNOWS = "clairvoyant"
_ARRIVED = 100
"""Percent of the capacity that has arrived, at which the GPU-sharing benchmark stands here."""


@dataclass(frozen=True)
class Standing:
    """One task at one size; texts are means, empty where nothing is known.

    `gain` is the best learned policy's paired difference from the best rule, in percent of the rule's mean, above 0
    where the learned one is better; None where no learned policy ships.
    """

    label: str
    nodes: str
    learned: str
    rule: str
    kube_scheduler: str
    most: str
    share: str
    gain: Interval | None


@cache
def board_of(folders: tuple[Path, ...]) -> Board:
    """Return the board of these folders, read once: many blocks are drawn from the same files."""
    return Board.read(*folders)


def read(board: Path, pieces: tuple[tuple[str, str], ...], openb: Path, bound: Path) -> Iterator[Standing]:
    """Yield a standing for each piece of a leaderboard's files, and the last for the GPU-sharing benchmark.

    `pieces` are (label, TASK-NODES). `openb` is a folder of `aaml bench openb`, `bound` one with its
    `--bound`.
    """
    entries = board_of((board,))
    for label, piece in pieces:
        task, _, nodes = piece.rpartition("-")
        if piece not in entries.entries:
            raise bad_value("pieces", piece, f"one of {', '.join(entries.entries)}")
        yield _piece(entries, label or task, task, int(nodes))
    yield _openb(openb, bound)


def _piece(board: Board, label: str, task: str, nodes: int) -> Standing:
    round_ = board.protocol.round(task)
    (ranking,) = (each for each in board.rankings(task) if each.nodes == nodes)
    names = [line.policy for line in ranking.lines]
    if round_.relative:  # by the ratio to the reference, in which each episode counts alike
        ratios = {line.policy: line.against.ratio.mean for line in ranking.lines if line.against and line.against.ratio}
        shown = {**ratios, ranking.reference: 1.0}
        names = sorted(shown, key=lambda name: shown[name])
    else:
        shown = {line.policy: line.value.mean * round_.scale_of(round_.metrics[0]) for line in ranking.lines}
    models = [name for name in names if board.policies[name].kind == "model"]
    knows = [name for name in names if name.startswith(KNOWS)]
    rule = next(name for name in names if name not in models and name not in knows)

    def cell(name: str) -> str:
        return f"{shown[name]:#.3g}"

    learned = f"{cell(models[0])} ({models[0]})" if models else ""
    kube = cell(KUBE_SCHEDULER) if KUBE_SCHEDULER in shown else ""
    most, share = cell(knows[0]) if knows else "", None
    if models and knows:
        metric, here = ranking.metric, board.entries[f"{task}-{nodes}"]
        ours, base, best = (here[name].scores[metric.name] for name in (models[0], rule, knows[0]))
        share = share_of_gain(ours, base, best, metric.better)
    won = gain(board, ranking, models[0], rule, relative=round_.relative) if models else None
    said = f"{share:.0%}" if share else ""
    return Standing(label, str(nodes), learned, f"{cell(rule)} ({rule})", kube, most, said, won)


def gain(board: Board, ranking: Ranking, learned: str, rule: str, *, relative: bool) -> Interval | None:
    """Return by how many percent `learned` is better than `rule`, of the rule's mean or by the ratio of episodes."""
    (against,) = board.results(ranking.task, ranking.nodes).compare(rule, ranking.metric.name)
    lines = {line.policy: line for line in against.lines}
    paired, base = lines[learned].against, lines[rule].value.mean
    if paired is None:
        return None
    sign = 100.0 if ranking.metric.better == "higher" else -100.0
    if relative and paired.ratio:
        ratio = paired.ratio
        return signed(Interval(ratio.mean - 1.0, ratio.low - 1.0, ratio.high - 1.0, ratio.count), sign)
    return signed(paired.difference, sign / base)


def _openb(folder: Path, bound: Path) -> Standing:
    table = read_table(folder, "allocation")
    ours = next(name for name in dict.fromkeys(table["policy"]) if name != "fgd")
    found = gains(table, ours, "fgd")
    try:
        bounds = pd.read_csv(bound / "results.csv")
        # All traces have a bound on one seed, some on more: those on which all have one.
        at = bounds[(bounds["column"] == _ARRIVED) & (bounds["seed"] == bounds["seed"].min())]
        most, base = float(at["bound"].mean()), float(at["fgd"].mean())
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"{bound}: no results of aaml bench openb --bound: {error}") from error
    learned, fgd = float(found.ours[_ARRIVED].mean()), float(found.theirs[_ARRIVED].mean())
    won = found.mean(_ARRIVED)
    share = f"{won.mean / (most - base):.0%}"
    texts = (f"{learned:.1f} (linear scorer)", f"{fgd:.1f} (fgd)", "", f"{most:.1f}", share)
    return Standing("GPU sharing: % of GPUs allocated ↑", "1213", *texts, signed(won, 100.0 / fgd))


def signed(interval: Interval, factor: float) -> Interval:
    """Return an interval times a factor of either sign."""
    low, high = sorted((interval.low * factor, interval.high * factor))
    return Interval(interval.mean * factor, low, high, interval.count)
