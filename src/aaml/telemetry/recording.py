"""Recordings of what a scheduler did: a CSV line a placement, with the use of every node just before it.

====================  =================================================================================================
pod_name              namespace/name
action                the node, as its place among the node columns
reward                by the reward that the record is made with
done                  1 at the last pod of a deployment (an episode), else 0
cpu_request           quantities ("250m", "512Mi")
memory_request
cpu_<node>            requested over allocatable, before the pod came; a column a node
memory_<node>         the same of memory
pods_<node>           pods on the node
====================  =================================================================================================

Nodes that are no capacity (the control plane) have no column. A file sched_X.nodes.csv beside sched_X.csv holds the
nodes' sizes: name, cpu, memory, pods.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from aaml.cluster.objects import Pod
from aaml.cluster.quantity import CPU, MEMORY, PODS, format_bytes, format_cpu
from aaml.cluster.state import ClusterState
from aaml.errors import UserError, bad_value
from aaml.extras import lazily
from aaml.files import RowWriter
from aaml.workload.table import Parser, any_text, number, quantity, read_lines, read_table, whole_number

if TYPE_CHECKING:
    import pandas as pd
else:  # only who asks for a table waits for it
    pd = lazily("pandas")

COLUMNS = ("pod_name", "action", "reward", "done", "cpu_request", "memory_request")
NODE_COLUMNS = ("name", "cpu", "memory", "pods")
PREFIXES = ("cpu", "memory", "pods")


def nodes_path(recording: Path) -> Path:
    """Return where the sizes of a recording's nodes are."""
    return recording.with_name(f"{recording.stem}.nodes.csv")


class RecordingWriter:
    """Writes a recording.

    A row is written when the next placement tells whether its deployment went on. The nodes are those that are there at
    the first placement, and placements on others are counted in `skipped`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.written = 0
        self.skipped = 0
        self._table: RowWriter | None = None
        self._names: list[str] = []
        self._places: dict[str, int] = {}
        self._waiting: tuple[str, dict[str, object]] | None = None

    def placed(self, state: ClusterState, pod: Pod, node_name: str, reward: float) -> None:
        """Take a placement; `state` holds the pod already."""
        if self._table is None:
            self._begin(state)
        place = self._places.get(node_name)
        if place is None or any(name not in state.index for name in self._names):
            self.skipped += 1
            return
        node_indices = [state.index[name] for name in self._names]
        request = state.request_vector(pod)
        before = state.requested[node_indices].copy()
        before[place] -= request
        allocatable = np.maximum(state.allocatable[node_indices], 1)
        columns = state.resource_index
        row: dict[str, object] = {
            "pod_name": pod.key,
            "action": place,
            "reward": f"{reward:.6g}",
            "cpu_request": format_cpu(pod.request(CPU)),
            "memory_request": format_bytes(pod.request(MEMORY)),
        }
        for prefix, resource in (("cpu", CPU), ("memory", MEMORY)):
            used = before[:, columns[resource]] / allocatable[:, columns[resource]]
            row |= {f"{prefix}_{name}": f"{share:.6g}" for name, share in zip(self._names, used, strict=True)}
        counts = before[:, columns[PODS]]
        row |= {f"pods_{name}": int(count) for name, count in zip(self._names, counts, strict=True)}
        self._write_waiting(pod.owner)
        self._waiting = (pod.owner, row)

    def close(self) -> None:
        """Write the last row and close the file; nothing is left behind when nothing was placed."""
        self._write_waiting(None)
        if self._table is not None:
            self._table.close()

    def _begin(self, state: ClusterState) -> None:
        self._names = [node.name for node in state.nodes if not node.is_control_plane]
        self._places = {name: place for place, name in enumerate(self._names)}
        sizes = RowWriter(nodes_path(self.path), NODE_COLUMNS)
        for name in self._names:
            node = state.nodes[state.index[name]]
            sizes.add(
                {
                    "name": name,
                    "cpu": format_cpu(node.allocatable.get(CPU, 0)),
                    "memory": format_bytes(node.allocatable.get(MEMORY, 0)),
                    "pods": node.allocatable.get(PODS, 0),
                }
            )
        sizes.close()
        wide = (f"{prefix}_{name}" for prefix in PREFIXES for name in self._names)
        self._table = RowWriter(self.path, (*COLUMNS, *wide))

    def _write_waiting(self, next_owner: str | None) -> None:
        if self._waiting is None or self._table is None:
            return
        owner, row = self._waiting
        done = int(next_owner is None or next_owner != owner)
        self._table.add({**row, "done": done})
        self.written += 1
        self._waiting = None


def read_recording(path: Path | str) -> "pd.DataFrame":
    """Read data/sched_*.csv as a table; `attrs["nodes"]` holds the nodes' sizes by name.

    Raises `UserError` naming file, line, column and value of the first mistake.
    """
    path = Path(path)
    rows = list(_rows(path))
    if not rows:
        raise UserError(f"{path}: has no placements, only a header")
    table = pd.DataFrame(rows)
    sizes = _sizes(nodes_path(path))
    if sizes is not None:
        table.attrs["nodes"] = sizes
    return table


def node_names(columns: Iterable[str]) -> list[str]:
    """Return the nodes that a recording with these columns has, in their order."""
    return [name.removeprefix("cpu_") for name in columns if name.startswith("cpu_") and name != "cpu_request"]


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    required: dict[str, Parser] = {
        "pod_name": any_text,
        "action": whole_number(0),
        "reward": number(float("-inf")),
        "done": _flag,
        "cpu_request": quantity(CPU),
        "memory_request": quantity(MEMORY),
    }
    try:
        with path.open(encoding="utf-8-sig") as file:
            header = [name.strip() for name in file.readline().split(",")]
    except (OSError, UnicodeDecodeError):
        header = []  # read_lines says what is wrong
    wide = {name: number(0.0) for name in header if name.startswith(tuple(f"{p}_" for p in PREFIXES))}
    names = node_names(header)
    for line, row in read_lines(path, required | {n: p for n, p in wide.items() if n not in required}):
        if row["action"] >= len(names):
            raise bad_value(
                f"{path}, line {line}, column action", row["action"], f"0 to {len(names) - 1}, a node's place"
            )
        yield row


def _flag(field: str, text: str) -> int:
    words = {"0": 0, "1": 1, "false": 0, "true": 1}
    if text.lower() not in words:
        raise bad_value(field, text, "0 or 1")
    return words[text.lower()]


def _sizes(path: Path) -> dict[str, dict[str, int]] | None:
    if not path.is_file():
        return None
    required: dict[str, Parser] = {
        "name": any_text,
        "cpu": quantity(CPU),
        "memory": quantity(MEMORY),
        "pods": whole_number(0),
    }
    return {
        row["name"]: {CPU: row["cpu"], MEMORY: row["memory"], PODS: row["pods"]} for row in read_table(path, required)
    }
