"""The board: result files read together, held against each other, and shown as tables."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pandas as pd

from aaml.errors import UserError, bad_value
from aaml.evaluation.leaderboard.entry import BoardEntry, Who
from aaml.evaluation.leaderboard.protocol import PROTOCOL, Piece, Protocol, Round
from aaml.evaluation.ranking import Line, Ranking
from aaml.evaluation.results import Results
from aaml.evaluation.statistics import LEAST_SEEDS, Interval, share_of_gain
from aaml.sim.metrics import find_metric

_SHORT = 12  # characters of a hash that tables show


@dataclass(frozen=True)
class Board:
    """Entries that belong together: of one protocol, on the same episodes, with the same weights of each policy.

    `entries` are by piece and then by the policy's name, the pieces in the protocol's order.
    """

    protocol: Protocol
    entries: Mapping[str, Mapping[str, BoardEntry]]

    @classmethod
    def read(cls, *folders: Path | str, protocol: Protocol = PROTOCOL) -> "Board":
        """Read all result files of folders and their sub-folders.

        Raises `UserError`, in one line, for a folder without any, a file of another protocol, one that was changed
        after it was written, episodes, a program or weights that are not those of other files, and a piece that is
        there twice. Older files do not say their program; what they played is known by the hash of their episodes.
        """
        pieces = {piece.name: piece for piece in protocol.pieces()}
        found: dict[str, dict[str, BoardEntry]] = {name: {} for name in pieces}
        who: dict[str, tuple[Path, Who]] = {}
        data: dict[str, tuple[Path, str]] = {}
        programs: dict[str, Path] = {}
        for path in _files(map(Path, folders)):
            entry = BoardEntry.read(path)
            _fits(path, entry, protocol, pieces)
            name, here = entry.policy.name, found[entry.piece]
            first, known = data.setdefault(entry.piece, (path, entry.data))
            if known != entry.data:
                raise UserError(
                    f"{path}: data {entry.data[:_SHORT]} is not that of {first} ({known[:_SHORT]}): other episodes"
                )
            if program := entry.code.episodes:
                programs.setdefault(program, path)
                if len(programs) > 1:
                    raise UserError(
                        f"{path}: was played by another program ({program}) than {next(iter(programs.values()))} "
                        f"({next(iter(programs))}): run one of them again"
                    )
            other, same = who.setdefault(name, (path, entry.policy))
            if same != entry.policy:
                raise UserError(
                    f"{path}: policy {name} ({_named(entry.policy)}) is not that of {other} ({_named(same)})"
                )
            if name in here and here[name] != entry:
                raise UserError(f"{path}: {entry.piece} of {name} is there twice, with other values or of other code")
            here[name] = entry
        return cls(protocol, {name: policies for name, policies in found.items() if policies})

    @cached_property
    def policies(self) -> Mapping[str, Who]:
        """Every policy by its name, sorted."""
        found = {name: entry.policy for here in self.entries.values() for name, entry in here.items()}
        return dict(sorted(found.items()))

    def rounds(self, tasks: Sequence[str] = ()) -> list[Round]:
        """Return the rounds of tasks, of all that the files hold where none is named. Raises `UserError` for others."""
        shown = {piece.round.task for piece in self.protocol.pieces() if piece.name in self.entries}
        there = [each for each in self.protocol.rounds if each.task in shown]
        for task in tasks:
            if task not in (names := [each.task for each in there]):
                raise bad_value("task", task, f"one of {', '.join(names)}")
        return [each for each in there if not tasks or each.task in shown]

    def results(self, task: str, nodes: int) -> Results:
        """Return the runs of one piece, to compare, show and save as any others."""
        rows = [
            {"task": task, "nodes": nodes, "policy": name, "seed": seed, **dict(zip(entry.scores, values, strict=True))}
            for name, entry in self.entries[f"{task}-{nodes}"].items()
            for seed, *values in zip(entry.seeds, *entry.scores.values(), strict=True)
        ]
        return Results.of(rows, (name for name, who in self.policies.items() if who.kind == "model"))

    def rankings(self, task: str, metric: str = "") -> list[Ranking]:
        """Return the rankings of a task, one a size, in a metric of the protocol. Raises `UserError` for other ones."""
        round_ = self.protocol.round(task)
        metric = metric or round_.metrics[0]
        if (task, metric) not in self._ranked:
            self._ranked[task, metric] = self._rank(round_, metric)
        return self._ranked[task, metric]

    @cached_property
    def _ranked(self) -> dict[tuple[str, str], list[Ranking]]:
        """The rankings that were requested: intervals of many policies take seconds."""
        return {}

    def _rank(self, round_: Round, metric: str) -> list[Ranking]:
        task = round_.task
        if metric not in round_.metrics:
            raise bad_value("metric", metric, f"one of {', '.join(round_.metrics)}")
        sizes = [size for size, _ in round_.sizes if f"{task}-{size}" in self.entries]
        for size in sizes:
            if round_.reference not in self.entries[f"{task}-{size}"]:
                raise UserError(
                    f"results: {task}-{size} is missing of {round_.reference}, which others are compared with; "
                    "add docs/results/leaderboard, or run it"
                )
        compared = [self.results(task, size).compare(round_.reference, metric) for size in sizes]
        return [ranking for comparison in compared for ranking in comparison]

    def shares(self, task: str, nodes: int, metric: str = "") -> dict[str, Interval]:
        """Return by policy how much of what the one that knows gains on the reference it gains itself, 1 being all.

        Empty where nobody knows more, and where knowing gains nothing that can be told from zero.
        """
        round_, here = self.protocol.round(task), self.entries[f"{task}-{nodes}"]
        metric = metric or round_.metrics[0]
        if not {round_.reference, round_.knows} <= here.keys():
            return {}
        base, best = (here[name].scores[metric] for name in (round_.reference, round_.knows))
        better = find_metric(metric).better
        found = {
            name: share_of_gain(entry.scores[metric], base, best, better)
            for name, entry in here.items()
            if name not in {round_.reference, round_.knows}
        }
        return {name: share for name, share in found.items() if share is not None}

    def table(self, task: str, metric: str = "", *, bold: bool = False) -> pd.DataFrame:
        """Return a task's table: a row a policy, the best at its first size first, with columns for each size.

        With `bold`, the best mean of each size is marked as Markdown does, of those that know no more than others.
        """
        round_ = self.protocol.round(task)
        metric = metric or round_.metrics[0]
        if round_.relative:
            return _in_terms(self.rankings(task, metric), bold=bold)
        rankings = self.rankings(task, metric)
        header, rows = ["policy"], dict[str, list[str]]()
        for ranking in rankings:
            shares, first = self.shares(task, ranking.nodes, metric), len(header) - 1
            header += [f"{ranking.nodes} nodes{_undecided(ranking)}", f"against {ranking.reference}"]
            header += [f"of {round_.knows}'s gain"] if shares else []
            best = next((line.policy for line in ranking.lines if line.policy != round_.knows), "") if bold else ""
            for line in ranking.scaled(round_.scale_of(metric)).lines:
                row = rows.setdefault(line.policy, [])
                row += [""] * (first - len(row)) + _cells(line, bold=line.policy == best)
                row += [f"{shares[line.policy]:.0%}" if line.policy in shares else ""] if shares else []
        width = len(header) - 1
        frame = [[name, *row, *[""] * (width - len(row))] for name, row in rows.items()]
        return pd.DataFrame(frame, columns=header)

    def entrants(self) -> pd.DataFrame:
        """Return a table of the policies: what each is, its file with its hash, and which code ran it."""
        rows = []
        for name, who in self.policies.items():
            mine = [here[name] for here in self.entries.values() if name in here]
            codes = dict.fromkeys(f"{each.code.version} {each.code.source[:_SHORT]}" for each in mine)
            rows.append(
                [name, who.kind, who.spec if who.sha256 else "", who.sha256[:_SHORT], ", ".join(codes), str(len(mine))]
            )
        return pd.DataFrame(rows, columns=["policy", "kind", "file", "SHA-256", "AAML, its source's SHA-256", "pieces"])


def _undecided(ranking: Ranking) -> str:
    return "" if ranking.seeds >= LEAST_SEEDS else f" ({ranking.seeds} episodes: undecided)"


def _in_terms(rankings: Sequence[Ranking], *, bold: bool) -> pd.DataFrame:
    """Return a row a policy with its ratio to the reference at each size, the best at the first size first."""
    columns = [_ratios(ranking, bold=bold) for ranking in rankings]
    header = ["policy", *(f"{each.nodes} nodes, of {each.reference}'s{_undecided(each)}" for each in rankings)]
    names = dict.fromkeys(name for column in columns for name in column)
    return pd.DataFrame([[name, *(column.get(name, "") for column in columns)] for name in names], columns=header)


def _ratios(ranking: Ranking, *, bold: bool) -> dict[str, str]:
    """Return each policy's ratio to the reference as text, the best first; what is worse is marked by the word."""
    sign = 1.0 if ranking.metric.better == "lower" else -1.0
    found = {line.policy: line.against.ratio for line in ranking.lines if line.against and line.against.ratio}
    found[ranking.reference] = Interval(1.0, 1.0, 1.0, ranking.seeds)
    texts: dict[str, str] = {}
    for name, ratio in sorted(found.items(), key=lambda each: sign * each[1].mean):
        worse = ratio.count >= LEAST_SEEDS and min(sign * (ratio.low - 1.0), sign * (ratio.high - 1.0)) > 0.0
        shown = "reference" if name == ranking.reference else f"{ratio}{' worse' if worse else ''}"
        texts[name] = f"**{shown}**" if bold and not texts else shown
    return texts


def _files(folders: Iterable[Path]) -> Sequence[Path]:
    found: list[Path] = []
    for folder in folders:
        files = sorted(folder.rglob("*.json")) if folder.is_dir() else [folder]
        if not files or not files[0].is_file():
            raise bad_value("results", str(folder), "a folder that `aaml bench leaderboard` wrote, or one of its files")
        found += files
    if not found:
        raise UserError("results: none given; expected folders that `aaml bench leaderboard` wrote")
    return list(dict.fromkeys(found))


def _fits(path: Path, entry: BoardEntry, protocol: Protocol, pieces: Mapping[str, Piece]) -> None:
    """Raise `UserError` for an entry that is not of this protocol."""
    if entry.protocol != protocol.version:
        raise UserError(f"{path}: protocol {entry.protocol} is not accepted; expected {protocol.version}: run it again")
    if entry.piece not in pieces:
        raise UserError(f"{path}: {entry.piece} is no piece of protocol {protocol.version}")
    piece = pieces[entry.piece]
    if entry.seeds != tuple(piece.seeds) or tuple(entry.scores) != piece.round.metrics:
        raise UserError(f"{path}: its seeds or metrics are not those of {entry.piece} in protocol {protocol.version}")


def _named(who: Who) -> str:
    return f"{who.spec} {who.sha256[:_SHORT]}".strip()


def _cells(line: Line, *, bold: bool) -> list[str]:
    """Return a policy's value, and how it stands against the reference; what is worse is marked by the word."""
    value = f"**{line.value}**" if bold else str(line.value)
    if line.against is None:
        return [value, "reference"]
    return [value, f"{line.against.difference:+}{' worse' if line.against.verdict == 'worse' else ''}"]
