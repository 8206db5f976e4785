"""Evaluation: policies on a task over seeds, the same episodes for each, one row a run.

A row has task, nodes, policy, seed, every metric of `SimCluster.metrics`, the number of decisions and the latency of a
decision (observe and choose) at the 50th and 99th percentile: see `aaml.sim.metrics`.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from aaml.errors import UserError, bad_value
from aaml.evaluation.entries import Policies, PolicyEntry, check, policy_entries
from aaml.evaluation.episode import run_episode
from aaml.evaluation.identity import IDENTITY, identity, with_identity
from aaml.evaluation.policies import frozen
from aaml.evaluation.results import Results
from aaml.evaluation.run_spec import RunSpec
from aaml.parallel.pool import open_pool
from aaml.parallel.workers import Workers, parse_workers
from aaml.progress import progress_bar
from aaml.scheduling.ports import Policy
from aaml.settings import Count, Natural, take
from aaml.sim.task import Task
from aaml.sim.tasks import find_task

SEEDS = range(1000, 1020)
"""Of the episodes that policies are evaluated on by default: no training or validation has them."""
MOST_SEEDS = 1_000_000
"""More episodes than anyone plays."""
_SEED_DIGITS = 18  # of a seed: it has 64 bits


Job = tuple[PolicyEntry, Task, int, int | None, int | None]
"""One run: a policy on a task, the seed, the nodes and the pods, None for the task's own."""


def evaluate(
    policies: Policies | Iterable[Policies] | Mapping[str, str | Path | Policy],
    task: str | Task = "balance",
    seeds: Iterable[int] | None = None,
    nodes: int | Sequence[int] = (),
    *,
    pods: int | None = None,
    workers: int | str = 1,
    progress: bool = True,
    known: Results | None = None,
    on_row: Callable[[dict[str, Any]], None] | None = None,
    stopped: Callable[[], bool] = lambda: False,
) -> Results:
    """Run every policy on every seed and cluster size, the same episodes for each, without learning.

    Parameters
    ----------
    policies
        One or several: a name such as "kube-scheduler", `FILE.py:NAME`, a model file, a policy object, a model of
        Stable-Baselines3, or a function that scores a context; with labels of your own as `LABEL=NAME`, or as a mapping
        from labels. On bills a name or file may end in `+FILE`: a NodePool, or a policy of nodes, that provisions the
        nodes in place of the task's own, or a DeschedulerPolicy beside it; or in `+learned` or
        `+high-node-utilization`.
    task
        What the episodes are like, by name or as `aaml.task` makes it.
    seeds
        One episode each; 1000 to 1019 when not given, or all windows of a trace's holdout. Those of training and
        validation lie above a thousand million.
    nodes
        Cluster sizes; the task's own when none is given.
    pods
        Pods of an episode; the task's own number when not given.
    workers
        Processes, "ray" or "ray:HOST:PORT". The results are the same for any, apart from the times of decisions. With
        more than one a program needs `if __name__ == "__main__":`, as always with Python's processes.
    progress
        Show a progress bar.
    known
        Runs from an evaluation that was cut off: those of the same episodes by the same policies, files and program are
        taken as they are and not made again.
    on_row
        Is called with each row as it arrives, so that a run which is cut off keeps what it had.
    stopped
        Is asked now and then; once it says so the evaluation ends.

    Returns
    -------
    Results
        The rows in a fixed order; it prints as a table.

    Raises
    ------
    UserError
        For what is no policy, task, seed or number of workers, before anything runs.
    StoppedError
        Where `stopped` said so.

    """
    found = find_task(task) if isinstance(task, str) else task
    entered, drawn = policy_entries(policies), _seeds(seeds, found)
    sizes = _sizes(nodes) or found.sizes or (None,)
    for size in sizes:
        found.size(size, pods)
    for entry in entered:
        check(entry, found, travels=parse_workers(workers) != Workers(), nodes=sizes[0])
    origin = {entry.name: identity(found, pods, entry.whole, entry.name) for entry in entered}
    jobs = [(entry, found, seed, size, pods) for size in sizes for seed in drawn for entry in entered]
    rows = {} if known is None else _known(known, jobs, origin)
    missing = [position for position in range(len(jobs)) if position not in rows]
    with ExitStack() as stack:
        for entry in entered:
            stack.enter_context(frozen(entry.spec))
        pool = stack.enter_context(open_pool(workers))
        bar = progress_bar(f"evaluate {found.name}", len(jobs), "run", enabled=progress, at=len(rows))
        stack.enter_context(bar)
        for index, played in pool.run(run_episode, [jobs[position] for position in missing], stopped):
            rows[missing[index]] = row = {**played, **origin[played["policy"]]}
            bar.update()
            if on_row is not None:
                on_row(row)
    learned = (entry.name for entry in entered if entry.learned)
    return Results.of((rows[position] for position in sorted(rows)), learned, RunSpec.of(found, entered, pods))


def same_runs(known: Results, entered: Sequence[PolicyEntry], task: Task, pods: int | None, where: Path) -> None:
    """Raise `UserError` where known runs of these labels on a task of this name were of other policies or contents."""
    frame = with_identity(known.runs)
    for entry in entered:
        mine = identity(task, pods, entry.whole, entry.name)
        same = frame[(frame["policy"] == entry.name) & (frame["task"] == task.name)]
        same = same[(same["code_sha256"] == mine["code_sha256"]) & (same["pods"] == str(mine["pods"]))]
        for column, what in (("task_sha256", "task"), ("policy_sha256", f"policy {entry.name}")):
            if (others := set(same[column]) - {mine[column]}) and mine[column] not in set(same[column]):
                raise UserError(
                    f"resume: {where} has runs of {what} as it was before ({column} {min(others) or 'none'}, now "
                    f"{mine[column] or 'none'}): without --resume they are made again; or choose another label or --out"
                )


def _known(known: Results, jobs: Sequence[Job], origin: Mapping[str, Mapping[str, Any]]) -> dict[int, dict[str, Any]]:
    """Return the rows of jobs that were run before, by their position among all."""
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    frame = known.frame()
    identities = with_identity(frame)[list(IDENTITY)].itertuples(index=False)
    for row, same in zip(frame.to_dict("records"), identities, strict=True):
        own = {str(name): value for name, value in row.items()}
        for size in (None, own["nodes"]):  # a task that has no sizes says afterwards how many nodes there were
            rows[own["policy"], own["task"], own["seed"], size, *same] = own
    keys = (
        (entry.name, task.name, seed, size, *(str(value) for value in origin[entry.name].values()))
        for entry, task, seed, size, _ in jobs
    )
    return {position: rows[key] for position, key in enumerate(keys) if key in rows}


def _seeds(seeds: Iterable[int] | None, task: Task) -> tuple[int, ...]:
    """Return the seeds of the episodes. Raises `UserError` for none, for one twice, and for what is no seed."""
    accepted = "whole numbers of at least 0, each once, such as range(1000, 1020)"
    if seeds is None:
        return task.episodes or tuple(SEEDS)
    if not isinstance(seeds, Iterable) or isinstance(seeds, str):
        raise bad_value("seeds", seeds, accepted)
    drawn = tuple(take("seeds", seed, Natural) for seed in seeds)
    again = [seed for number, seed in enumerate(drawn) if seed in drawn[:number]]
    if again or not drawn:
        raise bad_value("seeds", again[0] if again else [], accepted)
    return drawn


def _sizes(nodes: int | Sequence[int]) -> tuple[int, ...]:
    """Return the cluster sizes. Raises `UserError` for what is none, and for one twice."""
    several = tuple(nodes) if isinstance(nodes, Iterable) and not isinstance(nodes, str) else (nodes,)
    sizes = tuple(take("nodes", size, Count) for size in several)
    if len(set(sizes)) < len(sizes):
        raise bad_value("nodes", list(sizes), "each size once")
    return sizes


def parse_seeds(text: str, field: str = "seeds") -> tuple[int, ...]:
    """Read "42..51", "1,2,5" or a mixture, without doubles. Raises `UserError` naming `field`."""
    ranges: list[range] = []
    for part in text.split(","):
        first, dots, last = (word.strip() for word in part.partition(".."))
        if not first.isdecimal() or (dots and not last.isdecimal()) or len(max(first, last, key=len)) > _SEED_DIGITS:
            meant = re.sub(r"(\d)[-:](\d)", r"\1..\2", text)
            hint = f"; did you mean {meant}?" if meant != text else ""
            raise bad_value(field, text, f'numbers and ranges such as "42..51" or "1,2,5"{hint}')
        if dots and int(last) < int(first):
            raise bad_value(field, text, f"ranges that rise, not {part.strip()}")
        ranges.append(range(int(first), int(last or first) + 1))
    if sum(map(len, ranges)) > MOST_SEEDS:
        raise bad_value(field, text, f"at most {MOST_SEEDS:,} seeds")
    seeds = [seed for each in ranges for seed in each]
    if not seeds or len(set(seeds)) != len(seeds):
        raise bad_value(field, text, "at least one seed, each once")
    return tuple(seeds)
