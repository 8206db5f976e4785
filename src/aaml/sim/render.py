"""A simulated cluster for the eye: a table of bars, and a picture."""

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from aaml.cluster.gpu import DEVICE_MILLI
from aaml.cluster.metrics import usage, use_of_nodes
from aaml.cluster.objects import Pod
from aaml.cluster.quantity import CPU, MEMORY, format_bytes, format_cpu
from aaml.cluster.state import PODS_COLUMN
from aaml.extras import lazily
from aaml.sim.cluster import SimCluster

if TYPE_CHECKING:
    from matplotlib import figure as figures
    from matplotlib.axes import Axes
    from matplotlib.backends import backend_agg
else:  # only who draws waits for it
    figures, backend_agg = map(lazily, ("matplotlib.figure", "matplotlib.backends.backend_agg"))

_BARS = {"CPU": "#2f6f9f", "memory": "#b5652b"}
_BAR = 20
_MOST_LINES = 40
_DPI = 100
_MOST_BARS = 60  # beyond it nodes become cells of a map


def text(cluster: SimCluster, pod: Pod | None = None) -> str:
    """Return a table, one line a node: use of CPU, memory and devices, pods; then the pod that waits."""
    state = cluster.state
    width = max([4, *map(len, state.names[:_MOST_LINES])])
    lines = [_headline(cluster), f"{'node':<{width}}  {'CPU':<{_BAR + 5}}  {'memory':<{_BAR + 5}}  pods  GPUs"]
    for node_index, name in enumerate(state.names[:_MOST_LINES]):
        cpu, memory = (state.requested[node_index, r] / max(state.allocatable[node_index, r], 1) for r in range(2))
        pods = state.requested[node_index, PODS_COLUMN]
        devices = "".join(_device(free) for free in state.gpu_free[node_index, : state.gpu_count[node_index]])
        cordoned = "  cordoned" if state.unschedulable[node_index] else ""
        lines.append(f"{name:<{width}}  {_bar(cpu)}  {_bar(memory)}  {pods:>4}  {devices}{cordoned}".rstrip())
    if len(state) > _MOST_LINES:
        lines.append(f"... and {len(state) - _MOST_LINES} more nodes")
    if pod is not None:
        lines.append(f"next: {describe(pod)}")
    return "\n".join(lines)


def describe(pod: Pod) -> str:
    """Return a pod in a few words: name and what it requests."""
    words = [pod.name, format_cpu(pod.request(CPU)), format_bytes(pod.request(MEMORY))]
    if pod.gpu.count:
        words.append(f"{pod.gpu.count} x {pod.gpu.milli}/{DEVICE_MILLI} GPU")
    return "  ".join(words)


def picture(cluster: SimCluster, pod: Pod | None = None) -> npt.NDArray[np.uint8]:
    """Return uint8 [H, W, 3]: bars of CPU and memory per node and squares for its devices; a map for large clusters."""
    state = cluster.state
    large = len(state) > _MOST_BARS
    height = 4.8 if large else max(2.4, 1.2 + 0.22 * len(state))
    has_gpus = bool(state.gpu_count.any()) and not large
    figure = figures.Figure(figsize=(9.0 if has_gpus else 7.2, height), dpi=_DPI, layout="constrained")
    canvas: Any = backend_agg.FigureCanvasAgg(figure)
    panels: Any = figure.subplots(1, 3 if has_gpus else 2, sharey=not large)
    used = use_of_nodes(state)
    draw = _draw_map if large else _draw_bars
    for axes, use, (name, color) in zip(panels, used.T, _BARS.items(), strict=False):
        draw(axes, use, f"{name} requested", color, state.names)
    if has_gpus:
        _draw_devices(panels[-1], state.gpu_free, state.gpu_count)
    title = _headline(cluster) + (f"\nnext: {describe(pod)}" if pod is not None else "\n")
    figure.suptitle(title, fontsize=9, x=0.01, ha="left")
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()


def _headline(cluster: SimCluster) -> str:
    now = usage(cluster.state)
    return (
        f"t = {cluster.now_s():.0f} s   {len(cluster.state.placements)} pods run, {cluster.pending_count()} wait   "
        f"variance {now.variance:.5f}   {now.empty_nodes} of {now.nodes} nodes empty"
    )


def _bar(fraction: float) -> str:
    full = min(round(fraction * _BAR), _BAR)
    return f"{'#' * full}{'.' * (_BAR - full)} {100 * fraction:3.0f}%"


def _device(free_milli: int) -> str:
    """Return one character per device: free, shared by how much (1 to 9 tenths), full."""
    tenths = (DEVICE_MILLI - int(free_milli)) * 10 // DEVICE_MILLI
    return "." if free_milli >= DEVICE_MILLI else "#" if free_milli <= 0 else str(max(tenths, 1))


def _draw_bars(axes: "Axes", used: npt.NDArray[np.float64], title: str, color: str, names: list[str]) -> None:
    rows = np.arange(len(used))
    axes.barh(rows, np.ones(len(used)), color="#eceff1", height=0.8)
    axes.barh(rows, np.minimum(used, 1.0), color=color, height=0.8)
    axes.axvline(float(used.mean()) if len(used) else 0.0, color="#222222", linewidth=0.8, linestyle=":")
    axes.set_xlim(0, 1)
    axes.set_ylim(len(used) - 0.4, -0.6)
    axes.set_yticks(rows, names, fontsize=7)
    axes.tick_params(axis="x", labelsize=7)
    axes.set_title(title, fontsize=8)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)


def _draw_devices(axes: "Axes", free: npt.NDArray[np.int64], count: npt.NDArray[np.int64]) -> None:
    there = np.arange(free.shape[1]) < count[:, None]
    values = np.where(there, 1.0 - free / DEVICE_MILLI, np.nan)
    axes.imshow(values, cmap="Greens", vmin=-0.1, vmax=1.0, aspect="auto", interpolation="nearest")
    axes.set_xticks(range(free.shape[1]), [str(g) for g in range(free.shape[1])], fontsize=7)
    axes.set_xticks(np.arange(free.shape[1] + 1) - 0.5, minor=True)
    axes.set_yticks(np.arange(len(free) + 1) - 0.5, minor=True)
    axes.grid(which="minor", color="white", linewidth=1.5)
    axes.tick_params(which="both", length=0)
    axes.set_title("GPU devices", fontsize=8)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _draw_map(axes: "Axes", used: npt.NDArray[np.float64], title: str, _color: str, _names: list[str]) -> None:
    side = int(np.ceil(np.sqrt(len(used))))
    cells = np.full(side * side, np.nan)
    cells[: len(used)] = used
    image = axes.imshow(cells.reshape(side, side), cmap="viridis", vmin=0.0, vmax=1.0, interpolation="nearest")
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_title(title, fontsize=8)
    axes.figure.colorbar(image, ax=axes, shrink=0.7).ax.tick_params(labelsize=7)
