"""What a search has come to, on episodes that it never saw: what it breaks or loses is told before what it gains.

All intervals of a result hold together at 95% (Bonferroni), so that of searches which gain nothing one in twenty is
told to gain something, however many sizes, metrics and references are compared, and however often
(`aaml.study.looks`).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from aaml.evaluation.results import Results
from aaml.evaluation.statistics import LEAST_SEEDS, Paired, paired, together
from aaml.sim.metrics import Direction, find_metric
from aaml.study.looks import FIRST_LOOK, Look
from aaml.study.problem import Limit

FloatArray = npt.NDArray[np.float64]
STOCK, PACKING, TUNED = "kube-scheduler", "kube-scheduler-packing", "tuned"
_DOLLARS = ("bill_per_core_hour", "bill", "cost")


def by_ratio(mine: FloatArray, others: FloatArray, better: Direction, confidence: float) -> Paired:
    """Compare by the logarithm, in which each episode counts alike, where all values are above zero."""
    if (mine > 0).all() and (others > 0).all():
        return paired(np.log(mine), np.log(others), better, confidence=confidence)
    return paired(mine, others, better, confidence=confidence)


@dataclass(frozen=True)
class HeldOut:
    """Whether something is gained on what one has, at one size at least; `first` is what has to be told before.

    `confidence` is that of each interval, with which all of all looks hold together.
    """

    gained: bool
    first: tuple[str, ...]
    lines: tuple[str, ...]
    confidence: float


def on_held_out(results: Results, metric: str, limits: Sequence[Limit], look: Look = FIRST_LOOK) -> HeldOut:
    """Compare what was tuned for a bill, against what one has (`STOCK`) and `MostAllocated`, in a look of a study."""
    frame, better = results.frame(), find_metric(metric).better
    metrics = tuple(dict.fromkeys((metric, *_DOLLARS)))
    sizes = {int(nodes): _runs(frame[frame["nodes"] == nodes]) for nodes in dict.fromkeys(frame["nodes"])}
    confidence = together(look.comparisons(len(sizes) * len(metrics) * 2))
    first, worse, lines, gained = list[str](), list[str](), list[str](), False
    for nodes, runs in sizes.items():
        own, stock = runs[TUNED], runs[STOCK]
        first += (f"{nodes} nodes: {told}" for told in broken(own, stock, limits))
        verdict = by_ratio(own[metric].to_numpy(), stock[metric].to_numpy(), better, confidence).verdict
        gained |= verdict == "better"
        if verdict == "worse":
            ratio = _ratio(own[metric].to_numpy(), stock[metric].to_numpy(), confidence)
            worse.append(f"{nodes} nodes: worse than {STOCK}, {metric} {ratio}")
        lines += _told(nodes, runs, metrics, confidence)
    if not gained:
        worse.append(f"nothing was gained on {metric} on held-out episodes")
    return HeldOut(gained, (*first, *worse), (*lines, str(look)), confidence)


def broken(own: pd.DataFrame, stock: pd.DataFrame, limits: Sequence[Limit]) -> Iterator[str]:
    """Yield in words each limit that is passed on these episodes."""
    for limit in limits:
        mine, theirs = float(own[limit.metric].mean()), float(stock[limit.metric].mean())
        most = limit.times * theirs + limit.slack
        if mine > most:
            allowed = f"where {most:.4g} is allowed ({STOCK}'s is {theirs:.4g})"
            yield f"a limit is broken: {limit.metric} is {mine:.4g}, {allowed}"


def _runs(frame: pd.DataFrame) -> Mapping[str, pd.DataFrame]:
    return {name: frame[frame["policy"] == name].sort_values("seed") for name in (TUNED, STOCK, PACKING)}


def _told(nodes: int, runs: Mapping[str, pd.DataFrame], metrics: Sequence[str], confidence: float) -> Iterator[str]:
    """Yield a line a reference: what is paid against it, with intervals; then one of what waits and evictions are."""
    own = runs[TUNED]
    for name in (STOCK, PACKING):
        ratios = [
            f"{metric} {_ratio(own[metric].to_numpy(), runs[name][metric].to_numpy(), confidence)}"
            for metric in metrics
        ]
        yield f"{nodes} nodes, against {name}: {', '.join(ratios)} over {len(own)} episodes"
    means = "; ".join(
        f"{name}: p99 {run['waiting_p99_s'].mean():.1f} s, mean {run['waiting_mean_s'].mean():.1f} s, "
        f"{run['evicted'].mean():.1f} evicted"
        for name, run in runs.items()
    )
    yield f"{nodes} nodes, waits and evictions: {means}"


def _ratio(mine: FloatArray, others: FloatArray, confidence: float) -> str:
    """Return how many times as much it is, with the interval where there are episodes enough for one."""
    ratio = paired(mine, others, "lower", confidence=confidence).ratio
    if ratio is None or ratio.count < LEAST_SEEDS:
        return f"{mine.mean() / others.mean():.3f}"
    return f"{ratio.mean:.3f} [{ratio.low:.3f}; {ratio.high:.3f}]"
