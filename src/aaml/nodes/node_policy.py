"""A policy of nodes as a file: the numbers by which the autoscaler `learned` provisions, drains and replaces nodes.

A YAML file with `apiVersion: aaml.dev/v1`, `kind: NodePolicy` and the numbers under `spec`. It is read as plain values.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from math import nan
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from aaml.errors import UserError
from aaml.files import write_text
from aaml.schema import convert
from aaml.settings import Fraction, NotNegative, Positive, Settings, changed, plain
from aaml.yaml_text import yaml_text

API_VERSION, KIND = "aaml.dev/v1", "NodePolicy"
Signed = Annotated[float, Meta(ge=-1, le=1)]


@dataclass(frozen=True)
class Promise(Settings):
    """What a cluster promises its pods. `learned` nodes keep it by feedback, at the least price."""

    wait_p99_s: Positive | None = None
    """promise: at most one of a hundred pods waits longer than so many seconds for a node; none: no promise"""
    wait_mean_s: Positive | None = None
    """promise: pods wait at most so many seconds on average; none: no promise"""
    evictions_per_pod_hour: NotNegative | None = None
    """promise: so many evictions for each hour that a pod runs, at most; none: no promise"""

    @property
    def promised(self) -> dict[str, float]:
        """What is promised, by the names of these fields."""
        values = {each.name: getattr(self, each.name) for each in fields(Promise)}
        return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True)
class NodePolicy(Promise):
    """What the autoscaler `learned` decides by (`aaml.nodes.learned`)."""

    idle_s: NotNegative = 8.0
    """nodes are provisioned once no further pod has come for so many seconds"""
    patience_s: NotNegative = 28.0
    """or once a pod has waited for so long"""
    patience_growth: Signed = -0.2
    """how much shorter both are for each unit of growth of the load, and longer where the load falls"""
    spare_value: Fraction = 0.3
    """what room on a new node is worth that no pod needs yet, as a share of its price"""
    spare_growth: NotNegative = 0.2
    """how much more it is worth for each unit of growth of the load, and less where the load falls"""
    spare_swing: NotNegative = 4.0
    """room beyond so many times what the load changes in a minute is worth little; 0: all is worth the same"""
    size_power: Signed = -0.1
    """below 0 large types are preferred: the value of a type is divided by its cores to this power"""
    largest_share: Fraction = 0.5
    """a node is worth at most this share of all that pods ask for, unless they fit no smaller one"""
    look_s: Positive = 3.0
    """seconds between two looks for nodes that may go"""
    empty_s: NotNegative = 0.0
    """seconds for which a node stays that has no pods"""
    horizon_s: NotNegative = 400.0
    """seconds for which the price of a node that goes counts as saved"""
    eviction_dollars: NotNegative = 0.007
    """what moving a pod counts"""
    job_times: NotNegative = 2.0
    """as how many pods a job counts that is moved, for it begins anew"""
    margin: Fraction = 0.4
    """least share of a price that a replacement saves"""
    most_at_once: Fraction = 0.3
    """share of the nodes that may be on their way out at once"""

    def terms(self) -> dict[str, float]:
        """Return its numbers for compiled rules, NaN for what is not promised."""
        return {name: nan if value is None else value for name, value in asdict(self).items()}


class _File(msgspec.Struct, forbid_unknown_fields=True):
    apiVersion: str  # noqa: N815  (the file's name for it)
    kind: str
    spec: dict[str, Any]
    metadata: dict[str, Any] = {}


def read_node_policy(content: Mapping[str, Any], source: str) -> NodePolicy:
    """Return the policy of a decoded file. Raises `UserError` for names and values that are none of it."""
    spec = convert(content, _File, source).spec
    try:
        return changed(NodePolicy(), spec)
    except UserError as error:
        raise UserError(f"{source}: {error}") from error


def write_node_policy(path: Path, policy: NodePolicy, notes: Sequence[str] = ()) -> None:
    """Write a policy, with `notes` as comments on top."""
    content = {"apiVersion": API_VERSION, "kind": KIND, "spec": plain(policy)}
    text = "".join(f"# {note}\n" for note in notes) + yaml_text(content)
    write_text(path, text, field="out")
