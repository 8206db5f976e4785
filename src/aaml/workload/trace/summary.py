"""A trace in numbers: nodes, pods, how long they ran and waited, who placed them, and gaps in the recording."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from aaml.cluster.quantity import CPU, MEMORY
from aaml.workload.trace.trace import Follower, Trace

_PERCENTILES = (50, 90, 99)
_DAY_S = 86_400.0


@dataclass(frozen=True)
class Summary:
    """The numbers of a trace; `load` is the requested fraction of the nodes, on average outside the gaps."""

    name: str
    source: str
    hashed: bool
    seconds: float
    unwatched_s: float
    nodes_at_most: int
    pods: int
    found: int
    never_placed: int
    running_at_the_end: int
    ends: Mapping[str, int]
    schedulers: Mapping[str, int]
    lifetime_s: Mapping[str, float]
    wait_s: Mapping[str, float]
    load: Mapping[str, float]

    def plain(self) -> dict[str, Any]:
        """Return the numbers as JSON has them."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    def __str__(self) -> str:
        def percentiles(values: Mapping[str, float]) -> str:
            return ", ".join(f"{name} {value:.4g} s" for name, value in values.items()) or "not known"

        def counts(values: Mapping[str, int]) -> str:
            return ", ".join(f"{name} {count}" for name, count in values.items()) or "none"

        rows = (
            ("trace", f"{self.name}, of {self.source or 'unknown'}{', names hashed' if self.hashed else ''}"),
            (
                "time",
                f"{self.seconds:.6g} s ({self.seconds / _DAY_S:.2f} days), {self.unwatched_s:.4g} s not watched",
            ),
            ("nodes", f"{self.nodes_at_most} at most"),
            ("pods", f"{self.pods}; {self.found} had their node before, {self.never_placed} got none"),
            ("placed by", counts(self.schedulers)),
            ("ends", f"{counts(self.ends)}; {self.running_at_the_end} ran on"),
            ("lifetimes", percentiles(self.lifetime_s)),
            ("waits", percentiles(self.wait_s)),
            ("load", ", ".join(f"{name} {share:.1%}" for name, share in self.load.items()) or "not known"),
        )
        return "\n".join(f"{name:<10} {text}" for name, text in rows)


def summarise(trace: Trace) -> Summary:
    """Return what is in a trace. Load is known where a trace says who ran where."""
    lives = list(trace.lives.values())
    waits = [life.bound_s - life.created_s for life in lives if life.bound_s is not None and not life.found]
    most, load = _follow(trace)
    return Summary(
        trace.name, trace.source, trace.hashed, trace.end_s, sum(until - since for since, until in trace.gaps), most,
        len(lives), sum(life.found for life in lives), sum(life.bound_s is None for life in lives),
        sum(life.ended_s is None for life in lives),
        dict(Counter(str(life.how) for life in lives if life.how).most_common()), dict(trace.schedulers.most_common()),
        _percentiles(trace.lifetimes_s), _percentiles(waits),
        load if any(life.bound_s is not None for life in lives) else {},
    )  # fmt: skip


def _percentiles(values: list[float]) -> dict[str, float]:
    return {f"p{each}": float(np.percentile(values, each)) for each in _PERCENTILES} if values else {}


def _follow(trace: Trace) -> tuple[int, dict[str, float]]:
    """Return the greatest number of nodes, and the mean load over time."""
    follower, most, now_s = Follower(), 0, 0.0
    used, offered = np.zeros(2), np.zeros(2)
    state = follower.state
    columns = [state.resource_index[CPU], state.resource_index[MEMORY]]

    def until(then_s: float) -> None:
        nonlocal used, offered, now_s
        if then_s > now_s and len(state):
            lasted_s = then_s - now_s - _overlap(trace.gaps, now_s, then_s)
            rows = state.capacity
            used += lasted_s * state.requested[rows][:, columns].sum(axis=0)
            offered += lasted_s * state.allocatable[rows][:, columns].sum(axis=0)
        now_s = max(now_s, then_s)

    for event in trace.events:
        until(event.at)
        follower.apply(event)
        most = max(most, len(state))
    until(trace.end_s)
    shares = np.divide(used, offered, out=np.zeros(2), where=offered > 0)
    return most, {CPU: float(shares[0]), MEMORY: float(shares[1])}


def _overlap(gaps: Iterable[tuple[float, float]], since_s: float, until_s: float) -> float:
    """Return how much of a span of time lies in gaps of the recording."""
    return sum(max(0.0, min(until_s, end_s) - max(since_s, begin_s)) for begin_s, end_s in gaps)
