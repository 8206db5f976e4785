"""The live table of a cluster, as text.

There is a line for each node while they fit the terminal. When there are more, it shows the racks, or else quantiles of
the nodes and the extremes. A number is shown whole or not at all: columns that do not fit are left out.
"""

import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from rich.table import Table
from rich.text import Text

from aaml.cluster.objects import RACK_LABEL, Node, Pod
from aaml.cluster.quantity import CPU, MEMORY, PODS
from aaml.cluster.state import ClusterState
from aaml.telemetry.console import Rate
from aaml.telemetry.run_tail import curve_label, sparkline
from aaml.telemetry.tables import plain

if TYPE_CHECKING:
    from rich.console import RenderableType

    from aaml.telemetry.run_tail import RunTail

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

    `pending` is the number of pods that wait, `bound` that of placements since `watch`, and `recent` the latest of
    these. `price(node)` returns dollars an hour, None where unknown. `promise` is a line about what learned nodes
    promise. `clock` gives seconds.
    """

    title: str
    price: Callable[[Node], float | None] = lambda _node: None
    clock: Callable[[], float] = time.monotonic
    promise: str = ""
    pending: int = 0
    bound: int = 0
    recent: deque[tuple[str, str]] = field(default_factory=lambda: deque(maxlen=_RECENT))
    rate: Rate = field(default_factory=Rate)
    _left: str = ""

    def watch(self, state: ClusterState) -> None:
        """Count every placement from now on."""
        state.observe(self._placed)

    def _placed(self, pod: Pod, node_name: str, placed: bool) -> None:
        left, self._left = self._left, "" if placed else pod.uid
        if placed and pod.uid != left:  # a pod that is told anew, for it ends or has other labels, leaves and comes
            self.bound += 1
            self.recent.append((pod.key, node_name))
            self.rate.add(self.clock())


def takes_pods(state: ClusterState) -> npt.NDArray[np.bool_]:
    """Return [N], which nodes take pods: all but a control plane whose taint keeps the workload away.

    That of kind or k3s has no such taint.
    """
    shown = state.capacity.copy()
    for node_index in np.flatnonzero(~shown):
        shown[node_index] = all(taint.effect == "PreferNoSchedule" for taint in state.nodes[node_index].taints)
    return shown


def cpu_variance(state: ClusterState) -> float:
    """Return the variance of the requested fraction of CPU over the nodes that take pods."""
    used = _used_fraction(state, CPU)[takes_pods(state)]
    return float(used.var()) if len(used) else 0.0


def render(
    model: TopModel, state: ClusterState, run: "RunTail | None" = None, *, width: int = 100, height: int = 40
) -> str:
    """Return the table as at most `height` lines of at most `width` characters.

    `run` follows a scheduler's log, whose decisions and curves are shown below where the height allows.
    """
    height = max(height, _FEWEST_LINES)
    head, tail = _head(model, state, width), _tail(model, run) if height > _HEIGHT_FOR_RECENT else []
    body = plain(*_body(model, state, height - len(head) - len(tail))).splitlines()
    return "\n".join(_fit(line, width) for line in (*head, *body, *tail))


def dollars(model: TopModel, state: ClusterState) -> tuple[float | None, float | None]:
    """Return what the nodes cost an hour, and an hour of a core that is requested on them; None where not known."""
    prices = [model.price(node) for node in state.nodes]
    node_indices = [node_index for node_index, price in enumerate(prices) if price is not None]
    if not node_indices:
        return None, None
    total = sum(price for price in prices if price is not None)
    cores = float(state.requested[node_indices, state.resource_index[CPU]].sum()) / _UNITS[CPU]
    return total, total / cores if cores else None


def _fit(line: str, width: int) -> str:
    """Leave out what does not fit, by whole columns: half a number would be another number."""
    line = line.rstrip()
    if len(line) <= width:
        return line
    kept = line[: width - 1]
    gap = kept.rfind("  ")
    return (kept[:gap].rstrip() if kept[:gap].strip() else kept) + "\u2026"


def _wrapped(facts: Iterable[str], width: int) -> list[str]:
    """Return the facts in lines, each fact whole."""
    lines: list[str] = []
    for fact in facts:
        if lines and len(lines[-1]) + 3 + len(fact) <= width:
            lines[-1] += f"   {fact}"
        else:
            lines.append(fact)
    return lines


def _head(model: TopModel, state: ClusterState, width: int) -> list[str]:
    node_indices = takes_pods(state)
    nodes, cordoned = int(node_indices.sum()), int((state.unschedulable & node_indices).sum())
    an_hour, core = dollars(model, state)
    facts = [
        model.title,
        f"{nodes} nodes ({cordoned} cordoned: *)" if cordoned else f"{nodes} nodes",
        f"{int(state.requested[node_indices, state.resource_index[PODS]].sum())} pods",
        f"{model.pending} pending",
        f"{model.rate.per_s(model.clock()):.1f} placed/s",
        f"variance of CPU use {cpu_variance(state):.2g}",
        *([] if an_hour is None else [f"${an_hour:,.2f} an hour"]),
        *([] if core is None else [f"${core:.4f} for an hour of a requested core"]),
    ]
    lines = _wrapped(facts, width)
    if model.promise:
        lines += _wrapped(model.promise.split("; "), width)
    for resource in (CPU, MEMORY):
        column = state.resource_index[resource]
        offered = float(state.allocatable[node_indices, column].sum()) / _UNITS[resource]
        requested = float(state.requested[node_indices, column].sum()) / _UNITS[resource]
        share = requested / offered if offered else 0.0
        unit = "GiB" if resource == MEMORY else "cores"
        lines.append(f"{resource:<7} {_bar(share, 30)} {share:6.1%}   {requested:,.1f} of {offered:,.0f} {unit}")
    devices = int(state.gpu_count[node_indices].sum())
    if devices:
        share = 1.0 - float(state.gpu_free[node_indices].sum()) / (1000.0 * devices)
        lines.append(f"{'gpu':<7} {_bar(share, 30)} {share:6.1%}   {share * devices:,.1f} of {devices} devices")
    return [*lines, ""]


def _tail(model: TopModel, run: "RunTail | None") -> list[str]:
    """Return the latest decisions and the curves of a scheduler's log, or what was placed last."""
    if run is None or not (run.decisions or run.curves):
        placed = [f"  {pod} -> {node}" for pod, node in reversed(model.recent)]
        return ["", "last placed", *placed] if placed else []
    lines = ["", f"last decisions in {run.path.name}", *(f"  {each}" for each in reversed(run.decisions))]
    shown = {curve_label(name): tuple(values) for name, values in run.curves.items()}
    width = max(map(len, shown), default=0)
    curves = [f"  {name:<{width}}  {values[-1]:<10.4g}  {sparkline(values)}" for name, values in shown.items()]
    return lines + (["", "curves", *curves] if curves else [])


def _body(model: TopModel, state: ClusterState, room: int) -> "list[RenderableType]":
    """Return the tables for so many lines."""
    node_indices = [int(node_index) for node_index in np.flatnonzero(takes_pods(state))]
    used = {resource: _used_fraction(state, resource) for resource in _RESOURCES}
    prices = [model.price(state.nodes[node_index]) for node_index in range(len(state))]
    if len(node_indices) + 1 <= room:
        return [_grid("NODE", [_node(state, used, node_index, prices) for node_index in node_indices])]
    racks: dict[str, list[int]] = {}
    for node_index in node_indices:
        racks.setdefault(state.nodes[node_index].labels.get(RACK_LABEL, ""), []).append(node_index)
    if 1 < len(racks) <= room - 1:
        names = sorted(racks, key=natural)
        return [_grid("RACK", [_group(state, name or "(none)", racks[name], prices) for name in names])]
    quantiles = []
    for quantile, name in _QUANTILES:
        shares = [float(np.quantile(used[resource][node_indices], quantile)) for resource in _RESOURCES]
        quantiles.append((name, *(f"{_bar(share)} {share:6.1%}" for share in shares)))
    parts: list[RenderableType] = [_grid(f"OF {len(node_indices)} NODES", quantiles[: room - 1])]
    left = room - len(quantiles) - 3  # less the two titles and the line between
    if left > 1:
        order = sorted(node_indices, key=lambda node_index: (-used[CPU][node_index], state.names[node_index]))
        top = (left + 1) // 2
        shown = (*order[:top], *order[len(order) - (left - top) :])
        parts += [
            "",
            _grid("MOST AND LEAST CPU USED", [_node(state, used, node_index, prices) for node_index in shown]),
        ]
    return parts


def _grid(title: str, rows: Iterable[tuple[str, ...]]) -> Table:
    """Return rows of (name, pods, CPU, memory, dollars an hour or "") under a title."""
    rows = list(rows)
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    grid.add_column(title, no_wrap=True, width=_NAME_WIDTH, overflow="crop")
    for resource in ("PODS", "CPU", "MEMORY (GiB)"):
        grid.add_column(resource, no_wrap=True)
    if any(row[4:] and row[4] for row in rows):
        grid.add_column("$ AN HOUR", no_wrap=True, justify="right")
    else:
        rows = [row[:4] for row in rows]
    for row in rows:
        grid.add_row(*map(Text, row))
    return grid


def _node(
    state: ClusterState, used: dict[str, npt.NDArray[np.float64]], node_index: int, prices: Sequence[float | None]
) -> tuple[str, ...]:
    name = state.names[node_index] + (" *" if state.unschedulable[node_index] else "")
    return _cells(
        state, name, [node_index], {resource: float(values[node_index]) for resource, values in used.items()}, prices
    )


def _group(state: ClusterState, name: str, node_indices: list[int], prices: Sequence[float | None]) -> tuple[str, ...]:
    shares = {}
    for resource in _RESOURCES:
        column = state.resource_index[resource]
        offered = int(state.allocatable[node_indices, column].sum())
        shares[resource] = int(state.requested[node_indices, column].sum()) / offered if offered else 0.0
    return _cells(state, f"{name} ({len(node_indices)} nodes)", node_indices, shares, prices)


def _cells(
    state: ClusterState, name: str, node_indices: list[int], shares: dict[str, float], prices: Sequence[float | None]
) -> tuple[str, ...]:
    cells = []
    for resource in _RESOURCES:
        column = state.resource_index[resource]
        requested = float(state.requested[node_indices, column].sum()) / _UNITS[resource]
        offered = float(state.allocatable[node_indices, column].sum()) / _UNITS[resource]
        if resource == PODS:
            cells.append(f"{_bar(shares[resource])} {requested:.0f}/{offered:.0f}")
        else:
            cells.append(f"{_bar(shares[resource])} {requested:.1f}/{offered:.0f} {shares[resource]:.0%}")
    known = [price for node_index in node_indices if (price := prices[node_index]) is not None]
    return (name, *cells, f"{sum(known):.3f}" if known else "")


def natural(name: str) -> list[tuple[bool, int, str]]:
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
