"""A result file of the leaderboard: one policy's values on one piece, and what made them, named by its SHA-256."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import msgspec

from aaml.cluster.objects import Node, Pod
from aaml.errors import UserError
from aaml.evaluation.entries import PolicyEntry
from aaml.evaluation.policies import origin, policy_file
from aaml.evaluation.program import program_sha256
from aaml.files import write_json
from aaml.nodes.file import named_file
from aaml.schema import of_json, read_bytes
from aaml.sim.cluster import SimCluster

FORMAT = "aaml-leaderboard"
_DIGITS_S = 3  # times of an episode count to the millisecond: the last bits of a logarithm are the machine's own


@dataclass(frozen=True, slots=True)
class Who:
    """A policy: what tables call it, what it is, its file (without folders) and that file's SHA-256.

    Built-in policies have no file: the code's hash stands for them. Who provisions its nodes follows after a plus;
    where that is a file, the hash is of both.
    """

    name: str
    kind: Literal["built-in", "own", "model"]
    spec: str
    sha256: str = ""

    @classmethod
    def of(cls, entered: PolicyEntry) -> "Who":
        """Return who takes part. Raises `UserError` for an object of a program, and where its file is missing."""
        if not isinstance(entered.spec, str):
            raise UserError(f"policy {entered.name}: is an object of a program; name it as FILE.py:NAME, or save it")
        kind, file, nodes = origin(entered.spec), policy_file(entered.spec), entered.nodes
        node_policy = f"+{Path(nodes).name}" if nodes else ""
        files = [each for each in (file, named_file(nodes)) if each is not None]
        spec = entered.spec if file is None else entered.spec.rpartition("/")[2]  # without folders
        name = entered.label or (spec.rpartition(":")[2] if kind == "own" and not nodes else entered.name)
        try:
            sha256 = _sha256(b"".join(each.read_bytes() for each in files)) if files else ""
            return cls(name, kind, spec + node_policy, sha256)
        except OSError as error:
            raise UserError(f"policy {entered.spec}: cannot be read: {error.strerror or error}") from error


@dataclass(frozen=True, slots=True)
class Code:
    """The version of AAML, a hash of its source files, and the program by what it plays, empty in older results."""

    version: str
    source: str
    episodes: str = ""

    @classmethod
    def here(cls) -> "Code":
        """Return that of the running program."""
        return cls(version("aaml"), _source(), program_sha256())


@dataclass(frozen=True, slots=True)
class BoardEntry:
    """The scores of one policy on one piece, by metric one for each seed.

    `data` is a hash of all that happens in the episodes whatever the policy does (nodes, and pods as they arrive),
    `protocol` the version of the protocol.
    """

    protocol: int
    task: str
    nodes: int
    policy: Who
    code: Code
    data: str
    seeds: tuple[int, ...]
    scores: Mapping[str, tuple[float, ...]]

    @property
    def piece(self) -> str:
        """What messages call the piece."""
        return f"{self.task}-{self.nodes}"

    def write(self, path: Path) -> None:
        """Write the file, whole or not at all; the last line is the hash of all the others."""
        content = json.loads(json.dumps({"format": FORMAT, **asdict(self)}))
        write_json(path, content | {"sha256": _digest(content)}, indent=1, field="result")

    @classmethod
    def read(cls, path: Path) -> "BoardEntry":
        """Read a file. Raises `UserError` for what is no result file, and for one that was changed by hand."""
        content = of_json(read_bytes(path, "result"), str(path), any_number=True)
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise UserError(f"{path}: is no result of `aaml bench leaderboard`")
        stored = content.pop("sha256", None)
        if stored != _digest(content):
            raise UserError(f"{path}: its sha256 is not that of its content: it was changed after it was written")
        try:
            entry = msgspec.convert({key: value for key, value in content.items() if key != "format"}, cls)
        except msgspec.ValidationError as error:
            raise UserError(f"{path}: {error}") from error
        for metric, values in entry.scores.items():
            if len(values) != len(entry.seeds):
                raise UserError(f"{path}: {metric} has {len(values)} values for {len(entry.seeds)} seeds")
        return entry


def episode_sha256(cluster: SimCluster) -> str:
    """Return a hash of a cluster at the beginning of an episode: its nodes, and the pods that will arrive."""
    whole = hashlib.sha256()
    for node in cluster.state.nodes:
        whole.update(_line(_of_node(node)))
    for pod in cluster.workload:
        whole.update(_line(_of_pod(pod)))
    return whole.hexdigest()


def joined_sha256(parts: list[str]) -> str:
    """Return a hash of hashes, in their order."""
    return _sha256("\n".join(parts).encode())


def _of_node(node: Node) -> list[Any]:
    return [node.name, sorted(node.allocatable.items()), node.gpu_count, node.gpu_model, sorted(node.labels.items())]


def _of_pod(pod: Pod) -> list[Any]:
    gpu, life = pod.gpu, pod.lifetime_s
    return [
        pod.key, sorted(pod.requests.items()), gpu.count, gpu.milli, sorted(gpu.models), pod.owner, pod.qos,
        pod.priority, round(pod.created_s, _DIGITS_S), None if life is None else round(life, _DIGITS_S),
    ]  # fmt: skip


def _line(values: list[Any]) -> bytes:
    return json.dumps(values).encode() + b"\n"


@cache
def _source() -> str:
    """Return a hash of the package's Python files: their names and contents."""
    root = Path(__file__).parents[2]
    return joined_sha256(
        [f"{path.relative_to(root).as_posix()} {_sha256(path.read_bytes())}" for path in sorted(root.rglob("*.py"))]
    )


def _digest(content: Mapping[str, Any]) -> str:
    return _sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode())


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
