"""What is played, by contents: rows are pooled, and work goes on where it was cut off, where all of it agrees.

A row of results has what the run was besides its task, size, policy and seed:

==============  =======================================================================================================
pods            pods of an episode where a number was asked for, empty for the task's own
task_sha256     of the task's own file, of all files of a trace, or of a task that a program made; empty for ours. Of
                training jobs it is also that of their record, and of how gangs are placed
code_sha256     of the program that plays episodes and decides, by what it plays (`aaml.evaluation.program`)
policy_sha256   of the policy: its file or model with the profile or name that is meant, and who provisions its nodes;
                empty for ours by its own name, and for an object of a program. Of kube-scheduler it is also that of
                its default spreading, where a task's pods have siblings to spread among
==============  =======================================================================================================

A label is no identity: of a label's runs on the same episodes those of the last policy that had it count
(`latest`). The hash of a file stands for what it says itself, not for what it imports; a bill has what can be
provisioned too. Results that were written before these columns were there have none of them: they are of an unknown
program, and pooled with one another alone.

What a command goes on with by `--resume` names its `inputs` in the same way, and refuses others (`same_inputs`).
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cloudpickle
import pandas as pd

from aaml.errors import UserError
from aaml.evaluation.policies import is_model, policy_file, split_nodes
from aaml.evaluation.program import gangs_sha256, program_sha256, spreading_sha256
from aaml.evaluation.zoo import model_file
from aaml.nodes.file import named_file
from aaml.policies.kube_scores.siblings import owner_selector
from aaml.policies.registry import reward_terms
from aaml.sim.bill import BillTask
from aaml.sim.task import Task
from aaml.sim.tasks import find_task
from aaml.sim.training_jobs import TrainTask
from aaml.telemetry.provenance import digest
from aaml.workload.philly import record_file
from aaml.workload.trace.windows import read_windows

if TYPE_CHECKING:
    from aaml.cluster.objects import Pod

IDENTITY = ("pods", "task_sha256", "code_sha256", "policy_sha256")
EPISODE = IDENTITY[:3]
"""Those that say which episodes a run was one of, whoever decided."""
AS_TEXT = dict.fromkeys(IDENTITY, "str")
"""For `pandas.read_csv`: a hash may look like a number, as 348e03769402 does, and the zeros of 0042... count."""
VERSION = "version of AAML"
"""The name of the program among the inputs of what goes on: it plays, decides or learns otherwise than it did."""
_SHOWN = 12  # characters of a hash: enough to tell files apart
_KUBE_SCHEDULER = "kube-scheduler"  # how the names of its profiles begin, ours and those of files
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")  # of a function in this process


def identity(task: Task, pods: int | None = None, policy: object = "", label: str = "") -> dict[str, Any]:
    """Return the columns of this module for runs of a policy (as `aaml.evaluate` takes it) on a task."""
    episode_pods = task.pods if pods is None else pods
    values = (
        "" if episode_pods is None else episode_pods,
        _task_sha256(task),
        program_sha256(),
        _policy_sha256(policy, label, task),
    )
    return dict(zip(IDENTITY, values, strict=True))


def inputs(
    tasks: Iterable[Task] = (),
    specs: Mapping[str, str] | None = None,
    files: Mapping[str, Iterable[Path]] | None = None,
    reward: str = "",
    *,
    besides: Iterable[str] = (),
) -> dict[str, str]:
    """Return by the name of a setting what it stands for, by contents: tasks, policies, files, a reward.

    `besides` are policies that are played without a setting that names them. Where a kube-scheduler is among the
    policies, its default spreading is an input too. Moving a file changes nothing, a changed byte does. Raises
    `UserError` for a file that cannot be read.
    """
    played = list(tasks)
    found = {"task": " ".join(_task_sha256(task) + _name_of(task) for task in played)}
    found |= {name: _spec_sha256(spec) or spec for name, spec in (specs or {}).items()}
    hashes = [_spec_sha256(term) for term in reward_terms(reward)]
    found["reward"] = " ".join(hashes) if any(hashes) else reward
    found |= {name: _sha256(map(_digest, paths)) for name, each in (files or {}).items() if (paths := list(each))}
    found["default spreading"] = max(
        (_spreading(spec, task) for spec in (*(specs or {}).values(), *besides) for task in played), default=""
    )
    return {name: text for name, text in found.items() if text}


def same_inputs(now: Mapping[str, str], before: Mapping[str, str] | None, where: Path) -> None:
    """Raise `UserError` where work that is to go on in `where` was begun with other inputs, naming them.

    `before` is None where that was not kept.
    """
    if before is None:
        return
    other = sorted(name for name in {*now, *before} if now.get(name) != before.get(name))
    if other:
        raise UserError(
            f"resume: {where} was begun with another {', '.join(other)}: what is there now has other contents; "
            "choose another folder or file, or bring back what it was"
        )


def changed_since(run: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return which columns of a run are other ones `now`: that of the task, and that of the policy.

    None for a run of an unknown program, which has no columns of this module.
    """
    if not run["code_sha256"]:
        return []
    return [name for name in ("task_sha256", "policy_sha256") if run[name] != now[name]]


def with_identity(frame: pd.DataFrame) -> pd.DataFrame:
    """Return rows with all columns of this module, as text: empty where they have none."""
    whole = frame.copy()
    for name in IDENTITY:
        values = frame[name] if name in frame.columns else pd.Series("", index=frame.index)
        whole[name] = [_text(value) for value in values]
    return whole


def latest(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the policy that had a label last, on each task and size, of all that had it."""
    whole = with_identity(frame)
    last = whole.groupby(["task", "nodes", "policy", *EPISODE], sort=False)["policy_sha256"].transform("last")
    return frame[whole["policy_sha256"] == last]


def _text(value: Any) -> str:
    if value is None or value != value:  # noqa: PLR0124  (NaN is not)
        return ""
    return str(int(value)) if isinstance(value, float) else str(value)


def _task_sha256(task: Task) -> str:
    own = _own_sha256(task)
    if not isinstance(task, TrainTask):
        return own
    return _sha256([_of(own.encode()), _digest(record_file()), _of(gangs_sha256().encode())])


def _own_sha256(task: Task) -> str:
    path, colon, _ = task.name.rpartition(":")
    folder = getattr(task, "folder", None)
    if folder is not None:
        files = [_digest(path) for path in sorted(folder.iterdir()) if path.is_file() and path.name[0] != "."]
        return _sha256([*files, *_offered(getattr(task, "bill", None))])
    if not _is_known(task):
        return _sha256([_of(cloudpickle.dumps(_plain(task)))])
    return _sha256([_digest(Path(path)), *_offered(task)]) if colon else ""


def _is_known(task: Task) -> bool:
    """Whether the name of a task is that of one of ours, or of a file that has it so."""
    try:
        return find_task(task.name) == _plain(task)
    except UserError:
        return False


def _offered(bill: Task | None) -> list[bytes]:
    """Return a digest of who provisions nodes, from what: a task's file may have read it from others."""
    if not isinstance(bill, BillTask):
        return []
    told = replace(_plain(bill), name=bill.name.rpartition("/")[2])  # wherever its file is
    return [_of(_ADDRESS.sub("", repr(told)).encode())]


def _name_of(task: Task) -> str:
    """Return what a task is called apart from where its file or folder is."""
    if getattr(task, "folder", None) is not None:
        return f" {task.name.rpartition('@')[0]}"
    return f" {task.name.rpartition('/')[2]}"


def _plain(task: Task) -> Task:
    """Return a task without its sizes and pods, which have columns of their own."""
    return replace(task, sizes=(), pods=None)


def _policy_sha256(policy: object, label: str, task: Task) -> str:
    if not isinstance(policy, str | Path):
        return ""
    spec = str(policy)
    own = _spec_sha256(spec) or ("" if label in ("", spec) else _sha256([_of(spec.encode())]))
    spreading = _spreading(spec, task)
    return _sha256([_of(own.encode()), _of(spreading.encode())]) if spreading else own


def _spreading(whole: str, task: Task) -> str:
    """Return the name of default spreading where a policy may be a kube-scheduler and a task's pods have siblings."""
    spec, _ = split_nodes(whole)
    may = spec.startswith(_KUBE_SCHEDULER) or ".py:" in spec
    return spreading_sha256() if may and _has_siblings(task) else ""


def _has_siblings(task: Task) -> bool:
    folder = getattr(task, "folder", None)
    if folder is not None:
        pods: Iterable[Pod] = (life.pod for life in read_windows(folder).trace.lives.values())
    elif ":" not in task.name and _is_known(task):
        return False
    else:
        pods = task.build(task.episodes[0] if task.episodes else 0).workload.pods
    return any(owner_selector(pod) is not None for pod in pods)


def _spec_sha256(whole: str) -> str:
    """Return a digest of what a policy, a reward or the like stands for, empty where no file is part of it."""
    spec, nodes = split_nodes(whole)
    named, by = policy_file(spec), named_file(nodes)
    if named is None and by is None:
        return ""
    parts = [_digest(model_file(file)) for file in (named, by) if file is not None]
    word = "" if by is not None else nodes
    if named is None:
        text = spec
    elif is_model(spec):
        text = word
    else:
        text = spec.rpartition("#")[2] if "#" in spec else spec.rpartition(":")[2] if ".py:" in spec else ""
        text = json.dumps([text, word]) if word or text.startswith("[") else text
    return _sha256([*parts, *([_of(text.encode())] if text else [])])


def _digest(path: Path) -> bytes:
    try:
        return bytes.fromhex(digest(path))
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from error


def _of(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()


def _sha256(digests: Iterable[bytes]) -> str:
    return hashlib.sha256(b"".join(digests)).hexdigest()[:_SHOWN]
