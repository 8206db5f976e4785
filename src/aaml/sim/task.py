"""Task: what to schedule where, and what counts as good."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass, replace
from itertools import islice
from typing import Annotated, Any

import numpy as np
from msgspec import Meta

from aaml.cluster.objects import Node, Pod
from aaml.errors import bad_value
from aaml.scheduling.queue import QueueSettings
from aaml.settings import take
from aaml.sim.cluster import SimCluster
from aaml.sim.metrics import BILLED, DECIDING, METRICS, OF_JOBS, find_metric
from aaml.workload import traces
from aaml.workload.load import Load
from aaml.workload.model import Workload

_Nodes, _Pods = Annotated[int, Meta(ge=1, le=100_000)], Annotated[int, Meta(ge=1, le=10_000_000)]

_EXPECTED_SEED = 20_231  # of the pods that fragments are weighed by: a fixed sample, not the pods to come
_EXPECTED_PODS = 2_000
Nodes = tuple[Node, ...]


@dataclass(frozen=True)
class Task:
    """A problem: nodes, a workload, a reward that fits it and the metric (of `SimCluster.metrics`) that judges it.

    `draw(nodes, pods, rng)` makes the workload; `pods_per_node` times the number of nodes is how many pods an episode
    has unless told otherwise. A `continuing` task's pods come and go: it is cut off at the last arrival, so that
    emptying the cluster counts for nobody; the others end when nothing can happen any more. `also`: further metrics,
    and how much each counts besides `metric` where policies are searched and judged in training. `sizes` are the
    cluster sizes to train and judge on, `pods` the pods of an episode, where they differ from the usual ones.
    `episodes` are the seeds that there are to judge on, where not every number is one. `past` draws what has been seen
    before (see `expected`), where that is not what `draw` draws. `draw_nodes` makes the nodes of an episode where they
    are not those of `make_nodes`, which stand for the usual ones.
    """

    name: str
    summary: str
    metric: str
    reward: str
    nodes: int
    pods_per_node: float
    make_nodes: Callable[[int], Nodes]
    draw: Callable[[Nodes, int, np.random.Generator], Workload]
    lookahead: int = 0
    continuing: bool = True
    trace_nodes: bool = False  # with a trace its nodes too are taken
    also: Mapping[str, float] = field(default_factory=dict, hash=False)
    sizes: tuple[int, ...] = ()
    pods: int | None = None
    episodes: tuple[int, ...] = ()
    past: Callable[[Nodes, int, np.random.Generator], Workload] | None = None
    draw_nodes: Callable[[int, np.random.Generator], Nodes] | None = None

    def __post_init__(self) -> None:
        if len(set(self.sizes)) < len(self.sizes):  # its episodes would count twice
            raise bad_value("nodes", list(self.sizes), "each size once")

    def __str__(self) -> str:
        better = "higher" if self.higher_is_better else "lower"
        nodes = ", ".join(map(str, self.sizes)) or self.nodes
        return f"Task({self.name!r}: {self.summary}; {self.metric}, {better} is better; {nodes} nodes)"

    __repr__ = __str__

    @property
    def unit(self) -> str:
        """What its episodes are: each is that of a seed."""
        return "seed"

    @property
    def higher_is_better(self) -> bool:
        """Whether more of `metric` is better."""
        return find_metric(self.metric).better == "higher"

    @property
    def metrics(self) -> tuple[str, ...]:
        """Metrics that all its episodes have."""
        return tuple(name for name in METRICS if name not in (*BILLED, *OF_JOBS, *DECIDING))

    def check_metric(self, name: str) -> None:
        """Raise `UserError` for what is no metric of its episodes."""
        find_metric(name)
        if name not in self.metrics:
            raise bad_value(f"metric of {self.name}", name, f"one of {', '.join(self.metrics)}")

    def value(self, metrics: Mapping[str, float]) -> float:
        """Return what training is judged by: `metric`, and `also`."""
        return metrics[self.metric] + sum(weight * metrics[name] for name, weight in self.also.items())

    def build(
        self,
        seed: int,
        nodes: int | None = None,
        *,
        pods: int | None = None,
        trace: str | None = None,
        invariants: bool = False,
    ) -> SimCluster:
        """Return a cluster at the beginning of an episode; the same seed gives the same episode.

        `trace` (a pod list of openb by short name) takes the place of the synthetic pods: a random sample, in random
        order. Raises `UserError` for numbers that make no cluster.
        """
        count, total = self.size(nodes, pods)
        pods = self.pods if pods is None else pods
        rng = np.random.default_rng(seed)
        if trace and self.trace_nodes:
            fleet = _trace_fleet(count)
        elif self.draw_nodes is None:
            fleet = self.make_nodes(count)
        else:
            fleet = self.draw_nodes(count, np.random.default_rng([seed, count]))
        workload = self.arrivals(fleet, total, rng, trace)
        if pods is not None:
            workload = replace(workload, pods=tuple(islice(workload.pods, pods)))
        until_s = workload.duration_s if self.continuing else float("inf")
        return SimCluster(fleet, workload, until_s=until_s, queue=QueueSettings(), invariants=invariants)

    def at_load(self, load: Load) -> "Task":
        """Return this task with pods that ask for another fraction of the cluster on average.

        Raises `UserError` for a task without a load.
        """
        name = f"{self.name}@{load:g}" if isinstance(load, float) else f"{self.name}@{load}"
        draw: Any = self.draw
        has_load = is_dataclass(draw) and hasattr(draw, "load")
        if not has_load:
            raise bad_value("task", name, f"{self.name}: it has no load to change")
        return replace(self, name=name, draw=replace(draw, load=load))

    def size(self, nodes: int | None = None, pods: int | None = None) -> tuple[int, int]:
        """Return how many nodes an episode has, and how many pods are drawn.

        Raises `UserError` for less than one, and for more than 100,000 nodes or 10,000,000 pods.
        """
        count = (self.sizes or (self.nodes,))[0] if nodes is None else nodes
        pods = self.pods if pods is None else pods
        take("nodes", count, _Nodes)
        return count, take("pods", max(1, round(self.pods_per_node * count)) if pods is None else pods, _Pods)

    def arrivals(self, nodes: Nodes, pods: int, rng: np.random.Generator, trace: str | None = None) -> Workload:
        """Draw the workload of an episode on these nodes; see `build`."""
        workload = self.draw(nodes, pods, rng)
        return _replay(workload, traces.load_pods(trace), rng) if trace else workload

    def expected(self, trace: str | None = None) -> Sequence[Pod]:
        """Return pods like those to come, the trace's or a fixed sample: what a policy knows of the past.

        Fragments are weighed by them, and lifetimes learned from them.
        """
        if trace:
            return traces.load_pods(trace)
        rng = np.random.default_rng(_EXPECTED_SEED)
        return (self.past or self.draw)(self.make_nodes(self.nodes), _EXPECTED_PODS, rng).pods


def _trace_fleet(count: int) -> Nodes:
    """Return `count` nodes spread evenly over the trace's node list."""
    nodes = traces.load_nodes()
    if count > len(nodes):
        raise bad_value("nodes", count, f"at most {len(nodes)} with a trace")
    return tuple(nodes[i * len(nodes) // count] for i in range(count))


def _replay(workload: Workload, pods: Sequence[Pod], rng: np.random.Generator) -> Workload:
    """Return the workload's arrivals and lifetimes with requests sampled from the pods of a trace."""
    chosen = rng.integers(len(pods), size=len(workload))
    replaced = tuple(
        replace(
            pods[pick], name=f"{pods[pick].name}-{number}", uid="", created_s=pod.created_s, lifetime_s=pod.lifetime_s
        )
        for number, (pick, pod) in enumerate(zip(chosen.tolist(), workload.pods, strict=True))
    )
    return replace(workload, pods=replaced)
