"""Recordings of what a scheduler did: a CSV line a placement, with the use of every node just before it.

====================  =================================================================================================
pod_name              namespace/name
action                the node, as its place among the node columns
reward                by the reward that the recorder was given
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

from pathlib import Path

import numpy as np

from aaml.cluster.objects import Pod
from aaml.cluster.quantity import CPU, MEMORY, PODS, format_bytes, format_cpu
from aaml.cluster.state import ClusterState
from aaml.workload.table import TableWriter

COLUMNS = ("pod_name", "action", "reward", "done", "cpu_request", "memory_request")
NODE_COLUMNS = ("name", "cpu", "memory", "pods")


def nodes_path(recording: Path) -> Path:
    """Return where the sizes of a recording's nodes are."""
    return recording.with_name(f"{recording.stem}.nodes.csv")


class RecordingWriter:
    """Writes a recording. A row is written when the next placement tells whether its deployment went on.

    The nodes are those that are there at the first placement; placements on others are counted in `skipped`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.written = 0
        self.skipped = 0
        self._table: TableWriter | None = None
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
        rows = [state.index[name] for name in self._names]
        request = state.request_vector(pod)
        before = state.requested[rows].copy()
        before[place] -= request
        allocatable = np.maximum(state.allocatable[rows], 1)
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
        sizes = TableWriter(nodes_path(self.path), NODE_COLUMNS)
        for name in self._names:
            node = state.nodes[state.index[name]]
            sizes.write(
                {
                    "name": name,
                    "cpu": format_cpu(node.allocatable.get(CPU, 0)),
                    "memory": format_bytes(node.allocatable.get(MEMORY, 0)),
                    "pods": node.allocatable.get(PODS, 0),
                }
            )
        sizes.close()
        wide = (f"{prefix}_{name}" for prefix in ("cpu", "memory", "pods") for name in self._names)
        self._table = TableWriter(self.path, (*COLUMNS, *wide))

    def _write_waiting(self, next_owner: str | None) -> None:
        if self._waiting is None or self._table is None:
            return
        owner, row = self._waiting
        done = int(next_owner is None or next_owner != owner)
        self._table.write({**row, "done": done})
        self.written += 1
        self._waiting = None
