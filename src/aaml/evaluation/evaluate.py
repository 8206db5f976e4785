"""Evaluation: policies on a task over seeds, the same episodes for each, one row a run.

A row has task, nodes, policy, seed, every metric of `SimCluster.metrics`, the number of decisions and the latency of a
decision (observe and choose) at the 50th and 99th percentile: see `aaml.sim.metrics`.
"""

import copy
import logging
import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import FunctionType
from typing import Any

import cloudpickle
import numpy as np

from aaml.cluster.objects import Pod
from aaml.errors import UserError, bad_value
from aaml.evaluation.identity import IDENTITY, identity, with_identity
from aaml.evaluation.policies import frozen, is_model, kind_of_model, load, model_file, needs_expected_pods
from aaml.evaluation.results import Results
from aaml.parallel.pool import open_pool
from aaml.parallel.workers import Workers, parse_workers
from aaml.policies.heuristics import PolicyOptions, ScorePolicy
from aaml.policies.registry import make_policy
from aaml.progress import progress_bar
from aaml.scheduling.play import play
from aaml.scheduling.ports import Agent, Policy
from aaml.settings import Count, Natural, take
from aaml.sim.cluster import SimCluster
from aaml.sim.task import Task
from aaml.sim.tasks import find_task

SEEDS = range(1000, 1020)
"""Of the episodes that policies are judged on unless told otherwise: no training or validation has them."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Contestant:
    """A policy by name or `FILE.py:NAME`, a model file, or a policy object; `label` is what tables call it."""

    spec: str | Policy
    label: str = ""

    @property
    def name(self) -> str:
        """The label, or else the policy's name; a model file's stem."""
        if not isinstance(self.spec, str):
            return self.label or self.spec.name
        return self.label or (Path(self.spec).stem if self.learned else self.spec)

    @property
    def learned(self) -> bool:
        """Whether this is a model file, or an agent."""
        return is_model(self.spec) if isinstance(self.spec, str) else isinstance(self.spec, Agent)

    def policy(self, task: Task, seed: int) -> Policy:
        """Return the policy for one episode. A model, which remembers nothing of an episode, is read once a process."""
        if not isinstance(self.spec, str):
            return self.spec if isinstance(self.spec, Agent) else copy.deepcopy(self.spec)
        if not self.learned:
            return make_policy(self.spec, PolicyOptions(seed=seed, expected=Expected(task)))
        path = Path(self.spec)
        return _model(path, path.stat().st_mtime_ns, Expected(task))


Job = tuple[Contestant, Task, int, int | None, int | None]
"""One run: a policy on a task, the seed, the nodes and the pods, None for the task's own."""
Policies = str | Path | Policy | Contestant
"""A policy's name or `LABEL=NAME`, a model file, a policy object, or a function that scores a context."""


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
) -> Results:
    """Run every policy on every seed and cluster size, the same episodes for each, without learning.

    Parameters
    ----------
    policies
        One or several: a name such as "kube-scheduler", `FILE.py:NAME`, a model file, a policy object, or a function
        that scores a context; with labels of your own as `LABEL=NAME`, or as a mapping from labels.
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

    Returns
    -------
    Results
        The rows in a fixed order; it prints as a table.

    Raises
    ------
    UserError
        For what is no policy, task, seed or number of workers, before anything runs.

    """
    found = find_task(task) if isinstance(task, str) else task
    entered, drawn = contestants(policies), _seeds(seeds, found)
    sizes = _sizes(nodes) or found.sizes or (None,)
    for contestant in entered:
        check(contestant, found, travels=parse_workers(workers) != Workers())
    origin = {contestant.name: identity(found, pods, contestant.spec) for contestant in entered}
    jobs = [(contestant, found, seed, size, pods) for size in sizes for seed in drawn for contestant in entered]
    rows = {} if known is None else _known(known, jobs, origin)
    missing = [position for position in range(len(jobs)) if position not in rows]
    with ExitStack() as stack:
        for contestant in entered:
            stack.enter_context(frozen(contestant.spec))
        pool = stack.enter_context(open_pool(workers))
        bar = progress_bar(f"evaluate {found.name}", len(jobs), "run", enabled=progress, at=len(rows))
        stack.enter_context(bar)
        for index, played in pool.run(run_episode, [jobs[position] for position in missing]):
            rows[missing[index]] = row = {**played, **origin[played["policy"]]}
            bar.update()
            if on_row is not None:
                on_row(row)
    learned = (contestant.name for contestant in entered if contestant.learned)
    from aaml.evaluation.replay import Recipe

    return Results.of((rows[position] for position in sorted(rows)), learned, Recipe.of(found, entered, pods))


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
        (contestant.name, task.name, seed, size, *(str(value) for value in origin[contestant.name].values()))
        for contestant, task, seed, size, _ in jobs
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
    """Return the cluster sizes. Raises `UserError` for what is none."""
    several = tuple(nodes) if isinstance(nodes, Iterable) and not isinstance(nodes, str) else (nodes,)
    return tuple(take("nodes", size, Count) for size in several)


def contestants(
    policies: Policies | Iterable[Policies] | Mapping[str, str | Path | Policy],
) -> tuple[Contestant, ...]:
    """Read what `evaluate` takes. Raises `UserError` when it is none, or names one twice."""
    if isinstance(policies, Mapping):
        result = tuple(_called(each, str(label)) for label, each in policies.items())
    elif isinstance(policies, Iterable) and not isinstance(policies, str):
        result = tuple(map(_contestant, policies))
    else:
        result = (_contestant(policies),)
    names = [contestant.name for contestant in result]
    if not names:
        raise UserError("policies: none given; expected names such as least-allocated, or model files")
    if len(set(names)) != len(names):
        raise UserError(f"policies: {', '.join(names)} holds a name twice; give labels such as NAME=SPEC")
    return result


def _contestant(policy: Policies) -> Contestant:
    if isinstance(policy, Contestant):
        return policy
    if isinstance(policy, str) and "=" in policy:
        label, _, spec = policy.partition("=")
        return _called(spec, label)
    return _called(policy)


def _called(policy: str | Path | Policy, label: str = "") -> Contestant:
    """Return who is meant by an object, a name, a file, or the folder of a training, by which its model is called."""
    if not isinstance(policy, str | Path):
        return Contestant(_own(policy, label), label)
    path = Path(policy)
    if not is_model(str(policy)) or (file := model_file(path)) == path:
        return Contestant(str(policy), label)
    return Contestant(str(file), label or path.resolve().name)


def _own(policy: Policy, label: str) -> Policy:
    if isinstance(policy, FunctionType):
        return ScorePolicy(policy.__name__, policy)
    if isinstance(policy, type):
        raise bad_value("policy", policy, f"an object, not its class: {policy.__name__}(...)")
    if not callable(getattr(policy, "act", None)):
        raise bad_value("policy", policy, "a name, FILE.py:NAME, a model file, or an object with act(context)")
    if not label and not isinstance(getattr(policy, "name", None), str):
        raise UserError(f"policy: {policy!r} has no name; give it a `name`, or a label as in {{'mine': policy}}")
    return policy


def check(contestant: Contestant, task: Task, *, travels: bool) -> None:
    """Raise `UserError` for what is no policy, or cannot be sent to the process that it is to run in."""
    if not isinstance(contestant.spec, str):
        if travels:
            try:
                cloudpickle.dumps(contestant.spec)
            except (pickle.PicklingError, AttributeError, TypeError) as error:
                raise UserError(
                    f"policy {contestant.name}: cannot be sent to another process ({error}); "
                    "use one worker, or name it as FILE.py:NAME"
                ) from error
    elif contestant.learned:
        kind_of_model(Path(contestant.spec))
    elif needs_expected_pods(contestant.policy(task, 0)):
        _log.warning(
            "%s weighs fragments of GPUs, and no pod of %s asks for one: it scores nearly every node alike",
            contestant.name, task.name,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Expected(Sequence[Pod]):
    """The pods that a task lets policies expect, drawn when the first of them is asked for: most policies never do."""

    task: Task

    def __len__(self) -> int:
        return len(_expected(self.task))

    def __getitem__(self, index: Any) -> Any:
        return _expected(self.task)[index]


@lru_cache(maxsize=4)
def _expected(task: Task) -> Sequence[Pod]:
    return task.expected()


@lru_cache(maxsize=32)
def _model(path: Path, _changed_ns: int, expected: Expected) -> Policy:
    return load(path, expected=expected)


def run_episode(
    contestant: Contestant, task: Task, seed: int, nodes: int | None = None, pods: int | None = None
) -> dict[str, Any]:
    """Run one episode without learning and return its row."""
    cluster = task.build(seed, nodes, pods=pods)
    row = episode_row(task.name, seed, cluster, contestant.policy(task, seed), contestant.name)
    return row | {"nodes": task.nodes} if task.episodes else row  # a trace's nodes come and go, it is one cluster still


def episode_row(task: str, seed: int, cluster: SimCluster, policy: Policy, name: str) -> dict[str, Any]:
    """Run a policy on a cluster to its end, without learning, and return its row."""
    stats = play(cluster, policy)
    latency_ms = 1000.0 * np.asarray(stats.latency_s or [np.nan])
    return {
        "task": task,
        "nodes": int(cluster.state.capacity.sum()),
        "policy": name,
        "seed": seed,
        **cluster.metrics(),
        "decisions": stats.decisions,
        "latency_p50_ms": float(np.percentile(latency_ms, 50)),
        "latency_p99_ms": float(np.percentile(latency_ms, 99)),
    }


def parse_seeds(text: str, field: str = "seeds") -> tuple[int, ...]:
    """Read "42..51", "1,2,5" or a mixture, without doubles. Raises `UserError` naming `field`."""
    seeds: list[int] = []
    for part in text.split(","):
        first, dots, last = part.strip().partition("..")
        if not first.isdigit() or (dots and not last.isdigit()):
            raise bad_value(field, text, 'numbers and ranges such as "42..51" or "1,2,5"')
        seeds += range(int(first), int(last or first) + 1)
    if not seeds or len(set(seeds)) != len(seeds):
        raise bad_value(field, text, "at least one seed, each once")
    return tuple(seeds)
