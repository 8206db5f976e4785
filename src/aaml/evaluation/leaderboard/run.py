"""Running policies over the protocol: a file for every piece, so that a run which is cut off goes on where it was."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from aaml.errors import UserError, bad_value
from aaml.evaluation.entries import PolicyEntry, check, policy_entries, weighs_nothing
from aaml.evaluation.episode import episode_row
from aaml.evaluation.leaderboard.entry import BoardEntry, Code, Who, episode_sha256, joined_sha256
from aaml.evaluation.leaderboard.protocol import PROTOCOL, Piece, Protocol
from aaml.parallel.pool import open_pool
from aaml.policies.registry import POLICIES
from aaml.progress import progress_bar
from aaml.sim.task import Task

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


@dataclass(frozen=True, slots=True)
class Job:
    """A piece that a policy is to be run on, and the file for it."""

    piece: Piece
    entered: PolicyEntry
    who: Who
    path: Path

    def done(self, protocol: Protocol) -> bool:
        """Whether the file is there, for this protocol, policy and program. Raises `UserError` for a damaged one."""
        if not self.path.is_file():
            return False
        entry = BoardEntry.read(self.path)
        found, wanted = (entry.protocol, entry.policy), (protocol.version, self.who)
        return found == wanted and entry.code.episodes == Code.here().episodes


def plan(
    policies: Sequence[str],
    out: Path,
    *,
    tasks: Sequence[str] = (),
    nodes: Sequence[int] = (),
    protocol: Protocol = PROTOCOL,
) -> list[Job]:
    """Return the pieces to run, those that are done included; without policies each round's usual ones.

    Raises `UserError`, before anything runs, for what is no policy, task or size of the protocol, and for a scorer of
    GPUs on a task without.
    """
    named, jobs, checked = _entered(policies), list[Job](), set[tuple[str, Who]]()
    for piece in protocol.pieces(tasks, nodes):
        for entered, who in named or _entered(piece.round.usual):
            if (piece.round.task, who) not in checked:
                if weighs_nothing(entered, piece.task):
                    raise UserError(f"policy {who.name}: scores GPUs, and no pod of {piece.round.task} asks for one")
                check(entered, piece.task, travels=False)
                checked.add((piece.round.task, who))
            jobs.append(Job(piece, entered, who, out / who.name / f"{piece.name}.json"))
    return jobs


def carry_out(
    jobs: Sequence[Job], *, workers: int | str = 1, progress: bool = True, protocol: Protocol = PROTOCOL
) -> Iterator[BoardEntry]:
    """Play what is not done yet, and yield each piece as soon as its file is written.

    `workers` are processes, "ray" or "ray:HOST:PORT"; the values are the same for any.
    """
    left = [job for job in jobs if not job.done(protocol)]
    episodes = [(number, seed) for number, job in enumerate(left) for seed in job.piece.seeds]
    calls = [
        (left[number].entered, left[number].piece.task, seed, left[number].piece.nodes) for number, seed in episodes
    ]
    played: dict[int, dict[int, tuple[dict[str, Any], str]]] = {}
    with (
        open_pool(workers) as pool,
        progress_bar("leaderboard", len(calls), "run", enabled=progress) as bar,
    ):
        for position, result in pool.run(play_episode, calls):
            number, seed = episodes[position]
            mine = played.setdefault(number, {})
            mine[seed] = result
            bar.update()
            if len(mine) == len(left[number].piece.seeds):
                yield _write(left[number], played.pop(number), protocol)


def play_episode(entered: PolicyEntry, task: Task, seed: int, nodes: int) -> tuple[dict[str, Any], str]:
    """Run one episode and return its row, and the hash of its nodes and pods."""
    cluster = entered.task(task).build(seed, nodes)
    data = episode_sha256(cluster)
    return episode_row(task.name, seed, cluster, entered.policy(task, seed), entered.name), data


def _write(job: Job, played: dict[int, tuple[dict[str, Any], str]], protocol: Protocol) -> BoardEntry:
    piece, rows = job.piece, [played[seed][0] for seed in job.piece.seeds]
    data = joined_sha256([played[seed][1] for seed in piece.seeds])
    if Who.of(job.entered) != job.who:
        raise UserError(f"policy {job.who.name}: its file was changed while it ran; {job.path} is not written")
    entry = BoardEntry(
        protocol.version, piece.round.task, piece.nodes, job.who, Code.here(), data,
        tuple(piece.seeds), {name: tuple(float(row[name]) for row in rows) for name in piece.round.metrics},
    )  # fmt: skip
    entry.write(job.path)
    return entry


def _entered(policies: Sequence[str]) -> list[tuple[PolicyEntry, Who]]:
    """Return what a person named, each with a name that is good for a folder and belongs to nothing built in."""
    found = []
    for entered in policy_entries(policies) if policies else ():
        who = Who.of(entered)
        if not _NAME.fullmatch(who.name):
            raise bad_value("policy", who.name, "a name of letters, digits, dots and dashes: NAME=POLICY")
        if who.name in POLICIES.names() and who.spec != who.name:
            raise bad_value("policy", who.name, f"a name that is not that of a built-in policy for {who.spec}")
        found.append((replace(entered, label=who.name), who))
    names = [who.name for _, who in found]
    if len(set(names)) != len(names):
        raise UserError(f"policy: {', '.join(names)} holds a name twice; give labels such as NAME=SPEC")
    return found
