"""Who takes part in an evaluation: policies as a person names them, a model file, or an object of a program."""

import copy
import logging
import pickle
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any

import cloudpickle

from aaml.cluster.objects import Pod
from aaml.errors import OtherSizeError, UserError, bad_value, failure_of
from aaml.evaluation.bound_names import BOUND_ROWS
from aaml.evaluation.policies import (
    is_model,
    kind_of_model,
    load,
    load_policy,
    needs_expected_pods,
    policy_file,
    split_nodes,
)
from aaml.evaluation.zoo import model_file
from aaml.extras import lazily
from aaml.nodes.file import find_autoscaler
from aaml.policies.heuristics import ScorePolicy
from aaml.scheduling.play import play
from aaml.scheduling.ports import Agent, Policy
from aaml.sim.recorded_bill import under
from aaml.sim.task import Task
from aaml.sim.tasks import find_task

if TYPE_CHECKING:
    from aaml.sim import sb3
else:  # an extra
    sb3 = lazily("aaml.sim.sb3")

_log = logging.getLogger(__name__)
_TRIED = 5  # pods


@dataclass(frozen=True, slots=True)
class PolicyEntry:
    """A policy by name or `FILE.py:NAME`, a model file, or a policy object; `label` is what tables call it.

    `nodes` says who provisions the nodes of a bill (`aaml.nodes.file`), a file or a word; empty: the task's own.
    """

    spec: str | Policy
    label: str = ""
    nodes: str = ""

    @property
    def whole(self) -> str | Policy:
        """The policy and who provisions its nodes as one writes it, POLICY+FILE."""
        return f"{self.spec}+{self.nodes}" if self.nodes else self.spec

    @property
    def name(self) -> str:
        """The label, or else the policy's name; a model file's stem."""
        if not isinstance(self.spec, str):
            return self.label or self.spec.name
        return self.label or (Path(self.spec).stem if self.learned else self.spec) + (
            f"+{Path(self.nodes).stem}" if self.nodes else ""
        )

    @property
    def learned(self) -> bool:
        """Whether this is a model file, or an agent."""
        return is_model(self.spec) if isinstance(self.spec, str) else isinstance(self.spec, Agent)

    def task(self, task: Task) -> Task:
        """Return the task with who provisions nodes for this one. Raises `UserError` for a task whose nodes stay."""
        return under(task, find_autoscaler(self.nodes)) if self.nodes else task

    def policy(self, task: Task, seed: int) -> Policy:
        """Return the policy for one episode. A model, which remembers nothing of an episode, is read once a process."""
        if not isinstance(self.spec, str):
            return self.spec if isinstance(self.spec, Agent) else copy.deepcopy(self.spec)
        if not self.learned:
            return load_policy(self.spec, seed=seed, expected=Expected(task))
        path = Path(self.spec)
        return _model(path, path.stat().st_mtime_ns, Expected(task))


Policies = str | Path | Policy | PolicyEntry
"""A policy's name or `LABEL=NAME`, a model file, a policy object, or a function that scores a context.

A name or file may end in `+FILE`, `+learned` or `+high-node-utilization`, which says who provisions the nodes of a
bill, or stands beside who does."""


def policy_entries(
    policies: Policies | Iterable[Policies] | Mapping[str, str | Path | Policy],
) -> tuple[PolicyEntry, ...]:
    """Read what `evaluate` takes. Raises `UserError` when it is none, or names one twice."""
    if isinstance(policies, Mapping):
        result = tuple(_called(each, str(label)) for label, each in policies.items())
    elif isinstance(policies, Iterable) and not isinstance(policies, str):
        result = tuple(map(_entry, policies))
    else:
        result = (_entry(policies),)
    names = [entry.name for entry in result]
    if not names:
        raise UserError("policies: none given; expected names such as least-allocated, or model files")
    for name in names:
        if not name.isprintable():
            raise bad_value("policies", name, "labels of characters that can be printed, such as NAME=SPEC")
        if name in BOUND_ROWS:
            raise bad_value("policies", name, "another label: results of --bound have this one")
    if len(set(names)) != len(names):
        raise UserError(
            f"policies: {', '.join(names)} holds a name twice; give labels: NAME=SPEC, or in Python {{'mine': policy}}"
        )
    return result


def _entry(policy: Policies) -> PolicyEntry:
    if isinstance(policy, PolicyEntry):
        return policy
    if isinstance(policy, str) and "=" in policy and not _is_file(policy):
        label, _, spec = policy.partition("=")
        return _called(spec, label)
    return _called(policy)


def _is_file(policy: str) -> bool:
    """Whether the whole names a file that is there, or the folder of a training."""
    spec, _ = split_nodes(policy)
    return ((file := policy_file(spec)) is not None and file.exists()) or Path(spec).is_dir()


def _called(policy: str | Path | Policy, label: str = "") -> PolicyEntry:
    """Return who is meant by an object, a name, a file, or the folder of a training, by which its model is called."""
    if not isinstance(policy, str | Path):
        return PolicyEntry(_own(policy, label), label)
    spec, nodes = split_nodes(str(policy))
    path = Path(spec)
    if not is_model(spec) or (file := model_file(path)) == path:
        return PolicyEntry(spec, label, nodes)
    return PolicyEntry(str(file), label or (path.resolve().name + (f"+{Path(nodes).stem}" if nodes else "")), nodes)


def _own(policy: Any, label: str) -> Policy:
    if any(cls.__module__.startswith("stable_baselines3.") for cls in type(policy).__mro__):
        return sb3.sb3_policy(policy, label)
    if isinstance(policy, FunctionType):
        return ScorePolicy(policy.__name__, policy)
    if isinstance(policy, type):
        raise bad_value("policy", policy, f"an object, not its class: {policy.__name__}(...)")
    if not callable(getattr(policy, "act", None)):
        raise bad_value(
            "policy", policy, "a name, FILE.py:NAME, a model file, a function score(context), a model of "
            "Stable-Baselines3, or an object with act(context)"
        )  # fmt: skip
    if not label and not isinstance(getattr(policy, "name", None), str):
        raise UserError(f"policy: {policy!r} has no name; give it a `name`, or a label as in {{'mine': policy}}")
    own: Policy = policy
    return own


def check(entry: PolicyEntry, task: Task, *, travels: bool, nodes: int | None = None) -> None:
    """Raise `UserError` for what is no policy, or cannot be sent to the process that it is to run in.

    A policy of FILE.py plays a few decisions first, on so many nodes or those of the task: what fails there is told in
    a line, with its place in the file.
    """
    entry.task(task)
    if not isinstance(entry.spec, str):
        if travels:
            try:
                cloudpickle.dumps(entry.spec)
            except (pickle.PicklingError, AttributeError, TypeError) as error:
                raise UserError(
                    f"policy {entry.name}: cannot be sent to another process ({error}); "
                    "use one worker, or name it as FILE.py:NAME"
                ) from error
    elif weighs_nothing(entry, task):
        _log.warning(
            "%s weighs fragments of GPUs, and no pod of %s asks for one: it scores nearly every node alike",
            entry.name, task.name,
        )  # fmt: skip
    elif ".py:" in entry.spec:
        _try_out(entry, task, nodes)


def check_live(spec: str, nodes: int | None = None) -> None:
    """Try a policy of FILE.py before it decides in a live cluster, of so many nodes, or of a number not known yet.

    Raises `UserError` as `check` does. Where the number is not known, what a network for another number of nodes may
    raise is only told.
    """
    if ".py:" not in spec:
        return
    entry, task = PolicyEntry(spec), find_task("balance")
    entry.policy(task, 0)
    try:
        _try_out(entry, task, nodes)
    except UserError as reason:
        if nodes is not None or not _may_be_of_size(reason, entry):
            raise
        _log.warning("on %d nodes, where it was tried: %s", task.nodes, reason)


def _may_be_of_size(reason: UserError, entry: PolicyEntry) -> bool:
    """Whether a policy of a person's file may have failed because it knows clusters of another number of nodes."""
    cause, file = reason.__cause__, _own_file(entry)
    in_its_lines = isinstance(cause, (ValueError, RuntimeError)) and failure_of(cause, file) != failure_of(cause)
    return isinstance(reason, OtherSizeError) or in_its_lines


def _own_file(entry: PolicyEntry) -> Path:
    return Path(str(entry.spec).rpartition(":")[0]).resolve()


def _try_out(entry: PolicyEntry, task: Task, nodes: int | None) -> None:
    """Let a policy of a person's file decide on a few pods of an episode. Raises `UserError` where that fails."""
    seed = task.episodes[0] if task.episodes else 0
    cluster = entry.task(task).build(seed, nodes, pods=_TRIED)
    try:
        play(cluster, entry.policy(task, seed), max_decisions=_TRIED)
    except UserError:
        raise
    except Exception as error:
        why = failure_of(error, _own_file(entry))
        raise UserError(
            f"policy {entry.spec}: {why}; expected score(context) -> [N], a number for each node, "
            "or a class with act(context) -> Decision"
        ) from error


def weighs_nothing(entry: PolicyEntry, task: Task) -> bool:
    """Whether a policy with a name or a file weighs fragments of GPUs on a task in which no pod requests a GPU."""
    if not isinstance(entry.spec, str):
        return False
    if entry.learned and kind_of_model(Path(entry.spec)) not in {"scorer", "formula"}:
        return False
    return needs_expected_pods(entry.policy(task, 0))


@dataclass(frozen=True, slots=True)
class Expected(Sequence[Pod]):
    """The pods that a task lets policies expect, drawn at the first access: most policies never need them."""

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
