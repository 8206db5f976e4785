"""The paper's two figures from the benchmark's tables: unallocated GPUs and fragments over arrived demand."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.figure import Figure

from aaml.files import write_whole
from aaml.openb.tables import TABLES, read_table
from aaml.sim.openb import COLUMNS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FloatArray = npt.NDArray[np.float64]
_X = [str(x) for x in range(COLUMNS)]
_NAMES = {
    "random": "Random", "dot-product": "DotProd", "gpu-clustering": "Clustering", "gpu-packing": "Packing",
    "best-fit": "BestFit", "fgd": "FGD",
}  # fmt: skip
_COLOURS = {
    "random": "#8c8c8c", "dot-product": "#937860", "gpu-clustering": "#dd8452", "gpu-packing": "#8172b3",
    "best-fit": "#55a868", "fgd": "#4c72b0",
}  # fmt: skip
_OTHER_COLOURS = ("#c44e52", "#da8bc3", "#64b5cd", "#ccb974")
_WIDTH, _HEIGHT, _MOST_COLUMNS = 6.4, 3.6, 4


def draw(folder: Path) -> tuple[Path, Path]:
    """Write allocation.png and fragmentation.png from the tables in a folder; returns their paths.

    Lines are medians over seeds, bands hold the middle half of them. A panel a trace.
    """
    tables = {name: read_table(folder, name) for name in TABLES}
    traces = list(dict.fromkeys(tables["allocation"]["workload"]))
    columns = min(len(traces), _MOST_COLUMNS)
    rows = -(-len(traces) // columns)
    width = _WIDTH * columns + 1.4
    figure = Figure(figsize=(width, _HEIGHT * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes, trace in zip(panels, traces, strict=False):
        _curves(axes, tables["allocation"], trace, lambda values: 100.0 - values)
        axes.plot([0, 100], [100, 0], ":", color="black", linewidth=1, label="ideal")
        axes.set(xlim=(75, 130), ylim=(0, 25), title=trace, ylabel="unallocated GPUs (%)")
    paths = folder / "allocation.png", folder / "fragmentation.png"
    _save(figure, panels.tolist(), len(traces), paths[0])

    figure = Figure(figsize=(width, 2 * _HEIGHT * rows), layout="constrained")
    ratio, amount = np.ravel(figure.subfigures(2, 1, squeeze=False))
    panels = ratio.subplots(rows, columns, squeeze=False).ravel()
    for axes, trace in zip(panels, traces, strict=False):
        _curves(axes, tables["frag_ratio"], trace)
        axes.set(xlim=(0, 130), ylim=(0, 100), title=trace, ylabel="fragments (% of free GPUs)")
    lower = amount.subplots(rows, columns, squeeze=False).ravel()
    for axes, trace in zip(lower, traces, strict=False):
        _curves(axes, tables["frag_amount"], trace)
        axes.set(xlim=(0, 130), ylim=(0, None), title=trace, ylabel="fragments (% of all GPUs)")
    _decorate(lower.tolist(), len(traces))
    _save(figure, panels.tolist(), len(traces), paths[1])
    return paths


def _curves(
    axes: "Axes", table: pd.DataFrame, trace: str, change: Callable[[FloatArray], FloatArray] | None = None
) -> None:
    rows = table[table["workload"] == trace]
    others = [name for name in dict.fromkeys(rows["policy"]) if name not in _NAMES]
    order = [name for name in _NAMES if name in set(rows["policy"])] + others
    for name in order:
        values = rows[rows["policy"] == name][_X].to_numpy(dtype=float)
        values = change(values) if change else values
        low, middle, high = np.nanpercentile(values, [25, 50, 75], axis=0)
        colour = _COLOURS.get(name) or _OTHER_COLOURS[others.index(name) % len(_OTHER_COLOURS)]
        x = np.arange(COLUMNS)
        axes.plot(x, middle, color=colour, label=_NAMES.get(name, name), linewidth=2.2 if name == "fgd" else 1.5)
        axes.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0)


def _decorate(panels: "Sequence[Axes]", used: int) -> None:
    for number, axes in enumerate(panels):
        axes.grid(alpha=0.3)
        axes.set_xlabel("arrived demand (% of the cluster's GPUs)")
        axes.set_visible(number < used)


def _save(figure: Figure, panels: "Sequence[Axes]", used: int, path: Path) -> None:
    _decorate(panels, used)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", frameon=False)
    write_whole(path, lambda file: figure.savefig(file, dpi=120, format="png"), field="out")
