"""What a run was besides its task, size, policy and seed: rows are pooled, and taken for done, where all of it agrees.

==============  =======================================================================================================
pods            pods of an episode where a number was asked for, empty for the task's own
task_sha256     of the task's own file, of all files of a trace, or of a task that a program made; empty for ours
code_sha256     of the program that plays episodes and decides, by what it plays (`aaml.evaluation.program`)
policy_sha256   of the policy's file or model, and of who buys its nodes; empty for ours, and for an object of a program
==============  =======================================================================================================

The hash of a file stands for what it says itself, not for what it imports. Results that were written before these
columns were there have none of them: they are of an unknown program, and pooled with one another alone.
"""

import hashlib
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import cloudpickle
import pandas as pd

from aaml.errors import UserError
from aaml.evaluation.policies import policy_file, split_nodes
from aaml.evaluation.program import program_sha256
from aaml.nodes.file import named_file
from aaml.sim.task import Task
from aaml.sim.tasks import find_task

IDENTITY = ("pods", "task_sha256", "code_sha256", "policy_sha256")
EPISODE = IDENTITY[:3]
"""Those that say which episodes a run was one of, whoever decided."""
AS_TEXT = dict.fromkeys(IDENTITY, "str")
"""For `pandas.read_csv`: a hash may look like a number, as 348e03769402 does, and the zeros of 0042... count."""
_SHOWN = 12  # characters of a hash: enough to tell files apart
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")  # of a function in this process


def identity(task: Task, pods: int | None = None, policy: object = "") -> dict[str, Any]:
    """Return the columns of this module for runs of a policy (as `aaml.evaluate` takes it) on a task."""
    asked = task.pods if pods is None else pods
    values = ("" if asked is None else asked, _task_sha256(task), program_sha256(), _policy_sha256(policy))
    return dict(zip(IDENTITY, values, strict=True))


def with_identity(frame: pd.DataFrame) -> pd.DataFrame:
    """Return rows with all columns of this module, as text: empty where they have none."""
    whole = frame.copy()
    for name in IDENTITY:
        values = frame[name] if name in frame.columns else pd.Series("", index=frame.index)
        whole[name] = [_text(value) for value in values]
    return whole


def _text(value: Any) -> str:
    if value is None or value != value:  # noqa: PLR0124  (NaN is not)
        return ""
    return str(int(value)) if isinstance(value, float) else str(value)


def _task_sha256(task: Task) -> str:
    path, colon, _ = task.name.rpartition(":")
    folder = getattr(task, "folder", None)
    if folder is not None:
        files = [path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()]
        bill = getattr(task, "bill", None)  # who buys nodes, from what
        return _sha256([*files, *([] if bill is None else [_ADDRESS.sub("", repr(bill)).encode()])])
    try:
        ours = find_task(task.name) == _plain(task)
    except UserError:
        ours = False
    if not ours:
        return _sha256([cloudpickle.dumps(_plain(task))])
    return _sha256([Path(path).read_bytes()]) if colon else ""


def _plain(task: Task) -> Task:
    """Return a task without its sizes and pods, which have columns of their own."""
    return replace(task, sizes=(), pods=None)


def _policy_sha256(policy: object) -> str:
    if not isinstance(policy, str | Path):
        return ""
    spec, nodes = split_nodes(str(policy))
    files = [file for file in (policy_file(spec), named_file(nodes)) if file is not None]
    return _sha256(file.read_bytes() for file in files) if files else ""


def _sha256(parts: Iterable[bytes]) -> str:
    whole = hashlib.sha256()
    for part in parts:
        whole.update(hashlib.sha256(part).digest())
    return whole.hexdigest()[:_SHOWN]
