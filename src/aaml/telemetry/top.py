"""The live table of a cluster.

There is a line for each node while they fit the terminal. When there are more, it shows the racks, or else quantiles of
the nodes and the extremes.
"""

import re
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from aaml.cluster.metrics import usage
from aaml.cluster.objects import RACK_LABEL, Pod
from aaml.cluster.quantity import CPU, MEMORY, PODS
from aaml.cluster.state import ClusterState
from aaml.telemetry.console import Rate
from aaml.telemetry.tables import plain

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

_GIB = 1024**3
_RESOURCES = (PODS, CPU, MEMORY)
_UNITS = {PODS: 1.0, CPU: 1000.0, MEMORY: float(_GIB)}
_QUANTILES = ((0.0, "least"), (0.1, "10 %"), (0.5, "median"), (0.9, "90 %"), (1.0, "most"))
_RECENT = 5
_BAR = 10
_NAME_WIDTH = 24
_FEWEST_LINES = 12  # below that a table says nothing
_HEIGHT_FOR_RECENT = 20  # lines of a terminal that has room for the latest placements too


@dataclass
class TopModel:
    """What the table shows beside the state.

    That is a `title`, how many pods are `pending`, how many were `bound` since `watch`, and the latest ones of these.
    `clock` gives seconds.
    """

    title: str
    clock: Callable[[], float] = time.monotonic
    pending: int = 0
    bound: int = 0
    recent: deque[tuple[str, str]] = field(default_factory=lambda: deque(maxlen=_RECENT))
    rate: Rate = field(default_factory=Rate)

    def watch(self, state: ClusterState) -> None:
        """Count every placement from now on."""
        state.observe(self._placed)

    def _placed(self, pod: Pod, node_name: str, placed: bool) -> None:
        if placed:
            self.bound += 1
            self.recent.append((pod.key, node_name))
            self.rate.add(self.clock())


def render(model: TopModel, state: ClusterState, *, width: int = 100, height: int = 40) -> str:
    """Return the table as at most `height` lines, each cut at `width` characters."""
    height = max(height, _FEWEST_LINES)
    head, tail = _head(model, state), _recent(model) if height > _HEIGHT_FOR_RECENT else []
    body = plain(*_body(state, height - len(head) - len(tail))).splitlines()
    return "\n".join(line[:width].rstrip() for line in (*head, *body, *tail))


def _head(model: TopModel, state: ClusterState) -> list[str]:
    rows = state.capacity
    nodes, cordoned = int(rows.sum()), int((state.unschedulable & rows).sum())
    facts = (
        model.title,
        f"{nodes} nodes ({cordoned} cordoned: *)" if cordoned else f"{nodes} nodes",
        f"{len(state.placements)} pods",
        f"{model.pending} pending",
        f"{model.rate.per_s(model.clock()):.1f} pods/s",
        f"variance of CPU use {usage(state).cpu_variance:.2g}",
    )
    lines = ["   ".join(facts)]
    for resource in (CPU, MEMORY):
        column = state.resource_index[resource]
        offered = float(state.allocatable[rows, column].sum()) / _UNITS[resource]
        asked = float(state.requested[rows, column].sum()) / _UNITS[resource]
        share = asked / offered if offered else 0.0
        unit = "GiB" if resource == MEMORY else "cores"
        lines.append(f"{resource:<7} {_bar(share, 30)} {share:6.1%}   {asked:,.1f} of {offered:,.0f} {unit}")
    devices = int(state.gpu_count[rows].sum())
    if devices:
        share = 1.0 - float(state.gpu_free[rows].sum()) / (1000.0 * devices)
        lines.append(f"{'gpu':<7} {_bar(share, 30)} {share:6.1%}   {share * devices:,.1f} of {devices} devices")
    return [*lines, ""]


def _recent(model: TopModel) -> list[str]:
    if not model.recent:
        return []
    return ["", "last placed", *(f"  {pod} -> {node}" for pod, node in reversed(model.recent))]


def _body(state: ClusterState, room: int) -> "list[RenderableType]":
    """Return the tables for so many lines."""
    rows = [int(row) for row in np.flatnonzero(state.capacity)]
    used = {resource: _used_fraction(state, resource) for resource in _RESOURCES}
    if len(rows) + 1 <= room:
        return [_grid("NODE", [_node(state, used, row) for row in rows])]
    racks: dict[str, list[int]] = {}
    for row in rows:
        racks.setdefault(state.nodes[row].labels.get(RACK_LABEL, ""), []).append(row)
    if 1 < len(racks) <= room - 1:
        names = sorted(racks, key=_natural)
        return [_grid("RACK", [_group(state, name or "(none)", racks[name]) for name in names])]
    quantiles = []
    for quantile, name in _QUANTILES:
        shares = [float(np.quantile(used[resource][rows], quantile)) for resource in _RESOURCES]
        quantiles.append((name, *(f"{_bar(share)} {share:6.1%}" for share in shares)))
    parts: list[RenderableType] = [_grid(f"OF {len(rows)} NODES", quantiles[: room - 1])]
    left = room - len(quantiles) - 3  # less the two titles and the line between
    if left > 1:
        order = sorted(rows, key=lambda row: (-used[CPU][row], state.names[row]))
        top = (left + 1) // 2
        shown = (*order[:top], *order[len(order) - (left - top) :])
        parts += ["", _grid("MOST AND LEAST CPU USED", [_node(state, used, row) for row in shown])]
    return parts


def _grid(title: str, rows: Iterable[tuple[str, ...]]) -> "Table":
    """Return rows of (name, pods, CPU, memory) under a title."""
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    grid.add_column(title, no_wrap=True, width=_NAME_WIDTH, overflow="crop")
    for resource in ("PODS", "CPU", "MEMORY (GiB)"):
        grid.add_column(resource, no_wrap=True)
    for row in rows:
        grid.add_row(*map(Text, row))
    return grid


def _node(state: ClusterState, used: dict[str, npt.NDArray[np.float64]], row: int) -> tuple[str, ...]:
    name = state.names[row] + (" *" if state.unschedulable[row] else "")
    return _cells(state, name, [row], {resource: float(values[row]) for resource, values in used.items()})


def _group(state: ClusterState, name: str, rows: list[int]) -> tuple[str, ...]:
    shares = {}
    for resource in _RESOURCES:
        column = state.resource_index[resource]
        offered = int(state.allocatable[rows, column].sum())
        shares[resource] = int(state.requested[rows, column].sum()) / offered if offered else 0.0
    return _cells(state, f"{name} ({len(rows)} nodes)", rows, shares)


def _cells(state: ClusterState, name: str, rows: list[int], shares: dict[str, float]) -> tuple[str, ...]:
    cells = []
    for resource in _RESOURCES:
        column = state.resource_index[resource]
        asked = float(state.requested[rows, column].sum()) / _UNITS[resource]
        offered = float(state.allocatable[rows, column].sum()) / _UNITS[resource]
        if resource == PODS:
            cells.append(f"{_bar(shares[resource])} {asked:.0f}/{offered:.0f}")
        else:
            cells.append(f"{_bar(shares[resource])} {asked:.1f}/{offered:.0f} {shares[resource]:.0%}")
    return (name, *cells)


def _natural(name: str) -> list[tuple[bool, int, str]]:
    """Sort key that puts rack-2 before rack-10."""
    return [(not part.isdigit(), int(part) if part.isdigit() else 0, part) for part in re.split(r"(\d+)", name)]


def _used_fraction(state: ClusterState, resource: str) -> npt.NDArray[np.float64]:
    """Return [N] requested over allocatable of one resource; 0 where a node offers none of it."""
    used = np.zeros(len(state))
    column = state.resource_index[resource]
    allocatable = state.allocatable[:, column]
    return np.divide(state.requested[:, column], allocatable, out=used, where=allocatable > 0)


def _bar(share: float, width: int = _BAR) -> str:
    filled = round(min(max(share, 0.0), 1.0) * width)
    return "#" * filled + "." * (width - filled)
