"""A model of lifetimes that goes on learning from the cluster's own pods."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np

from aaml.cluster.objects import Pod
from aaml.scheduling.cycle import spec_of
from aaml.scheduling.lifetimes import EDGES_S, KnownLifetimes, LifetimeModel
from aaml.scheduling.ports import BindResult, Cluster, Observer, Policy

_EVERY_S = 1.0  # a model that has learned is solved again


@dataclass
class _Run:
    """A pod that runs: since when, and up to which age its run has been counted."""

    pod: Pod
    node_name: str
    since_s: float
    counted_s: float

    @property
    def next_edge_s(self) -> float:
        """The first edge of the model's bands of age that has not been counted."""
        place = int(np.searchsorted(EDGES_S, self.counted_s, side="right"))
        return float(EDGES_S[place]) if place < len(EDGES_S) else np.inf


class LifetimeWatch(Observer):
    """Fits `model` to the pods that `cluster` runs: to those that end, and to those that are still running.

    A pod that was found running is observed from its age then on. One that runs on counts for each age band that it
    passes, as it passes it. A pod whose node went away did not end by itself: its time counts, its end does not.
    """

    def __init__(self, model: LifetimeModel, cluster: Cluster) -> None:
        self._model, self._cluster = model, cluster
        self._runs: dict[str, _Run] = {}
        self._edges: list[tuple[float, str]] = []  # a heap: when a run passes its next edge
        self._gone: dict[str, float] = {}  # when runs were seen to leave that have not been counted
        self._next_s = -np.inf
        for placement in cluster.state.placements.values():
            self._on_change(placement.pod, placement.node_name, placed=True)
        self._end = cluster.state.observe(lambda pod, node_name, placed: self._on_change(pod, node_name, placed=placed))

    def close(self) -> None:
        """Stop observing."""
        self._end()

    def on_result(self, result: BindResult) -> None:
        """Forget a pod whose bind failed: it never ran."""
        if result.status != "bound" and result.pod.uid not in self._cluster.state.placements:
            self._runs.pop(result.pod.uid, None)
            self._gone.pop(result.pod.uid, None)

    def on_turn(self) -> None:
        """Learn from what happened, once in a second."""
        now_s = self._cluster.now_s()
        if now_s >= self._next_s:
            self._next_s = now_s + _EVERY_S
            self.learn(now_s)

    def learn(self, now_s: float) -> None:
        """Learn from all that happened up to now."""
        while self._edges and self._edges[0][0] <= now_s:
            _, uid = heappop(self._edges)
            run = self._runs.get(uid)
            if run is not None and uid not in self._gone and run.since_s + run.next_edge_s <= now_s:
                self._count(run, run.next_edge_s, ended=False)
                heappush(self._edges, (run.since_s + run.next_edge_s, uid))
        for uid, gone_s in self._gone.items():
            run = self._runs.pop(uid)
            self._count(run, gone_s - run.since_s, ended=run.node_name in self._cluster.state.index)
        self._gone.clear()

    def _count(self, run: _Run, to_s: float, *, ended: bool) -> None:
        self._model.learn(run.pod, max(to_s, run.counted_s), from_s=run.counted_s, ended=ended)
        run.counted_s = to_s

    def _on_change(self, pod: Pod, node_name: str, *, placed: bool) -> None:
        run, now_s = self._runs.get(pod.uid), self._cluster.now_s()
        if not placed:
            if run is not None:
                self._gone[pod.uid] = now_s
        elif run is not None:  # it is told again, with other labels, or on another node
            run.pod, run.node_name = pod, node_name
            self._gone.pop(pod.uid, None)
        else:
            since_s = self._cluster.state.placements[pod.uid].since_s
            run = self._runs[pod.uid] = _Run(pod, node_name, since_s, max(now_s - since_s, 0.0))
            heappush(self._edges, (since_s + run.next_edge_s, pod.uid))


@contextmanager
def watched_lifetimes(policy: Policy, cluster: Cluster) -> Iterator[tuple[LifetimeWatch, ...]]:
    """Yield the observers that fit the policy's own lifetime model: one if it has a model that learns, else none."""
    model = spec_of(policy).lifetime_model
    if model is None or isinstance(model, KnownLifetimes):
        yield ()
        return
    with closing(LifetimeWatch(model, cluster)) as watch:
        yield (watch,)
