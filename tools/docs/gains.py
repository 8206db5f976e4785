"""What a policy gains over another on the GPU-sharing benchmark, run by run: paired by trace and seed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd
from matplotlib.figure import Figure

from aaml.errors import UserError, bad_value
from aaml.evaluation.statistics import Interval, Paired, mean_interval, paired
from aaml.sim.openb import COLUMNS

_COLOURS = ("#c44e52", "#da8bc3", "#64b5cd", "#ccb974")


@dataclass(frozen=True, eq=False)
class Gains:
    """GPU allocation of a policy and of its reference on the same traces and seeds, in percent of the capacity.

    Both frames have the index (workload, seed) and the columns 0 ... 130, percent of the capacity that has arrived.
    """

    policy: str
    reference: str
    ours: pd.DataFrame
    theirs: pd.DataFrame

    @property
    def points(self) -> pd.DataFrame:
        """The paired differences, in points."""
        return self.ours - self.theirs

    @property
    def ends(self) -> Mapping[str, float]:
        """The policy's mean allocation of each trace when all has arrived."""
        return {
            str(trace): float(mean) for trace, mean in self.ours[COLUMNS - 1].groupby(level="workload").mean().items()
        }

    def at(self, column: int) -> Mapping[str, Paired]:
        """Return how the policy stands to its reference on each trace, over its seeds. Raises `UserError`."""
        if column not in self.ours.columns:
            raise bad_value("at", str(column), f"one of {', '.join(map(str, self.ours.columns))}")
        theirs = self.theirs[column]
        return {
            str(trace): paired(group.to_numpy(), theirs.loc[group.index].to_numpy(), "higher")
            for trace, group in self.ours[column].groupby(level="workload", sort=False)
        }

    def mean(self, column: int) -> Interval:
        """Return the mean difference over the traces, with its interval over the seeds."""
        return mean_interval(self.points[column].groupby(level="seed").mean().to_numpy())


def gains(allocation: pd.DataFrame, policy: str, reference: str) -> Gains:
    """Pair the runs of two policies in the table `allocation` (see `read_table`).

    Raises `UserError` when one of them is missing, or was run on other traces or seeds than the other.
    """
    ours, theirs = (_curves(allocation, name) for name in (policy, reference))
    if not ours.index.is_unique or set(ours.index) != set(theirs.index):
        raise UserError(f"{policy} and {reference} were run on different traces or seeds: only paired runs count")
    return Gains(policy, reference, ours, theirs.loc[ours.index])


def _curves(allocation: pd.DataFrame, policy: str) -> pd.DataFrame:
    rows = allocation[allocation["policy"] == policy]
    if rows.empty:
        raise bad_value("policy", policy, f"one of {', '.join(sorted(set(allocation['policy'])))}")
    return rows.set_index(["workload", "seed"])[[str(x) for x in range(COLUMNS)]].rename(columns=int)


def difference_figure(gains: Gains, title: str, axis: str, named: Sequence[str] = ()) -> Figure:
    """Draw paired differences over arrived demand: a thin line a trace, a thick one for all.

    Lines are means over seeds; traces in `named` stand out.
    """
    figure = Figure(figsize=(7.0, 3.6), layout="constrained")
    axes = figure.subplots()
    means = gains.points.groupby(level="workload", sort=False).mean()
    x = means.columns.to_numpy(dtype=float)
    for trace, row in means.iterrows():
        if trace not in named:
            axes.plot(x, row, color="#adb5bd", linewidth=0.8)
    for name, colour in zip(named, _COLOURS * len(named), strict=False):
        axes.plot(x, means.loc[name], color=colour, linewidth=1.5, label=name)
    axes.plot(x, means.mean(), color="#0b6e4f", linewidth=2.5, label=f"mean of {len(means)} traces")
    axes.axhline(0.0, color="black", linewidth=0.8)
    axes.set(xlim=(60, x[-1]), xlabel="arrived demand (% of the cluster's GPUs)", ylabel=axis)
    axes.set_title(title, loc="left", fontsize=11)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
    return figure
