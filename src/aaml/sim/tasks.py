"""Tasks: what to schedule where, and what counts as good: the presets that agents are trained and judged on."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

import numpy as np

from aaml.cluster.objects import CONTROL_PLANE_LABEL, Node, Pod, Taint
from aaml.cluster.quantity import CPU, MEMORY, PODS
from aaml.errors import bad_value
from aaml.sim.cluster import QueueSettings, SimCluster
from aaml.workload import traces
from aaml.workload.model import Workload
from aaml.workload.synthetic import DeploymentSpec, PodShape, WorkloadSpec
from aaml.workload.synthetic_gpu import synthetic_nodes, synthetic_pods

GIB = 1 << 30
_EXPECTED_SEED = 20_231  # of the pods that fragments are weighed by: a fixed sample, not the pods to come
_EXPECTED_PODS = 2_000
Nodes = tuple[Node, ...]


@dataclass(frozen=True)
class Task:
    """A problem: nodes, a workload, a reward that fits it and the metric (of `SimCluster.metrics`) that judges it.

    `draw(nodes, pods, rng)` makes the workload; `pods_per_node` times the number of nodes is how many pods an episode
    has unless told otherwise. A `continuing` task's pods come and go: it is cut off at the last arrival, so that
    emptying the cluster counts for nobody; the others end when nothing can happen any more. `also`: further metrics,
    and how much each counts besides `metric` where policies are searched and judged in training.
    """

    name: str
    summary: str
    metric: str
    higher_is_better: bool
    reward: str
    nodes: int
    pods_per_node: float
    make_nodes: Callable[[int], Nodes]
    draw: Callable[[Nodes, int, np.random.Generator], Workload]
    lookahead: int = 0
    continuing: bool = True
    trace_nodes: bool = False  # with a trace its nodes too are taken
    also: Mapping[str, float] = field(default_factory=dict)

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
        count = self.nodes if nodes is None else nodes
        if count < 1:
            raise bad_value("nodes", count, "at least 1")
        rng = np.random.default_rng(seed)
        fleet = _trace_fleet(count) if trace and self.trace_nodes else self.make_nodes(count)
        total = max(1, round(self.pods_per_node * count)) if pods is None else pods
        if total < 1:
            raise bad_value("pods", total, "at least 1")
        workload = self.arrivals(fleet, total, rng, trace)
        if pods is not None:
            workload = replace(workload, pods=tuple(islice(workload.pods, pods)))
        until_s = workload.duration_s if self.continuing else float("inf")
        return SimCluster(fleet, workload, until_s=until_s, queue=QueueSettings(), invariants=invariants)

    def arrivals(self, nodes: Nodes, pods: int, rng: np.random.Generator, trace: str | None = None) -> Workload:
        """Draw the workload of an episode on these nodes; see `build`."""
        workload = self.draw(nodes, pods, rng)
        return _replay(workload, traces.load_pods(trace), rng) if trace else workload

    def expected(self, trace: str | None = None) -> Sequence[Pod]:
        """Return pods like those to come, by which fragments are weighed: the trace's, or a fixed sample."""
        if trace:
            return traces.load_pods(trace)
        rng = np.random.default_rng(_EXPECTED_SEED)
        return self.draw(self.make_nodes(self.nodes), _EXPECTED_PODS, rng).pods


def kwok_nodes(count: int) -> Nodes:
    """Return nodes as the container platform's KWOK cluster has them: 64 CPU, 256Gi, 110 pods each."""
    return _equal_nodes("kwok-std-node", count, 64_000, 256)


def _equal_nodes(prefix: str, count: int, cpu_milli: int, gib: int) -> Nodes:
    allocatable = {CPU: cpu_milli, MEMORY: gib * GIB, PODS: 110}
    return tuple(Node(f"{prefix}-{i}", allocatable) for i in range(count))


def with_control_plane(nodes: Nodes) -> Nodes:
    """Return the nodes after a tainted control plane, as the container platform's cluster has it."""
    control = Node(
        "kwok-ctl-node-0",
        {CPU: 64_000, MEMORY: 256 * GIB, PODS: 110},
        labels={CONTROL_PLANE_LABEL: ""},
        taints=(Taint(CONTROL_PLANE_LABEL),),
    )
    return (control, *nodes)


def _shape(name: str, weight: float, cpu_milli: int, gib: float, lifetime_s: float | None = None) -> PodShape:
    return PodShape(name, {CPU: cpu_milli, MEMORY: int(gib * GIB)}, weight, lifetime_s)


MIXED = WorkloadSpec(
    shapes=(
        _shape("small", 4.0, 500, 1),
        _shape("web", 3.0, 2_000, 4),
        _shape("cache", 2.0, 1_000, 24),
        _shape("compute", 2.0, 8_000, 8),
        _shape("database", 1.0, 4_000, 32),
        _shape("batch", 1.0, 12_000, 24, lifetime_s=300.0),
    ),
    lifetime_s=900.0,
    name="mixed",
)
SEED_C = WorkloadSpec(
    shapes=(_shape("small", 3.0, 250, 1), _shape("medium", 2.0, 500, 2), _shape("large", 1.0, 1_000, 4)),
    burst=2.0,
    lifetime_s=300.0,
    name="seedc",
)
GPU_DEMAND = 1.3  # pods arrive until this multiple of the devices was asked for


def _mixed(load: float, *, burst: float = 1.0) -> Callable[[Nodes, int, np.random.Generator], Workload]:
    def draw(nodes: Nodes, pods: int, rng: np.random.Generator) -> Workload:
        spec = replace(MIXED.at_load(load, nodes), burst=burst * (len(nodes) / 10.0) if burst > 1 else 1.0)
        return spec.generate(pods, rng)

    return draw


def _small_nodes(count: int) -> Nodes:
    return _equal_nodes("node", count, 8_000, 32)


def _seed_c(nodes: Nodes, pods: int, rng: np.random.Generator) -> Workload:
    return SEED_C.at_load(0.5, nodes).generate(pods, rng)


def _deployments(nodes: Nodes, _pods: int, rng: np.random.Generator) -> Workload:
    return DeploymentSpec().generate(nodes, rng)


def _batch(_nodes: Nodes, pods: int, rng: np.random.Generator) -> Workload:
    return _staying(MIXED.generate(pods, rng))


def _staying(workload: Workload) -> Workload:
    return replace(workload, pods=tuple(replace(pod, lifetime_s=None) for pod in workload))


def _gpu_mix(nodes: Nodes, pods: int, rng: np.random.Generator) -> Workload:
    workload = _staying(Workload(synthetic_pods(pods, rng), "gpu-mix"))
    demand, goal = 0, GPU_DEMAND * 1000 * sum(node.gpu_count for node in nodes)
    for number, pod in enumerate(workload.pods):
        demand += pod.gpu.total_milli
        if demand > goal:
            return replace(workload, pods=workload.pods[:number])
    return workload


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


TASKS: Mapping[str, Task] = {
    task.name: task
    for task in (
        Task(
            "balance", "mixed pods come and go; use every node equally", "mean_variance", higher_is_better=False,
            reward="balance", nodes=10, pods_per_node=60, make_nodes=kwok_nodes, draw=_mixed(0.5),
        ),
        Task(
            "compress", "mixed pods come and go; keep as many nodes empty as possible", "mean_empty_fraction",
            higher_is_better=True, reward="compress", nodes=10, pods_per_node=60, make_nodes=kwok_nodes,
            draw=_mixed(0.35),
        ),
        Task(
            "fragmentation", "pods share GPUs and stay; place as much GPU demand as possible", "final_gpu_allocation",
            higher_is_better=True, reward="fragmentation", nodes=20, pods_per_node=12, make_nodes=synthetic_nodes,
            draw=_gpu_mix, trace_nodes=True, continuing=False,
        ),
        Task(
            "waiting", "bursts beyond capacity; let pods wait as little as possible", "waiting_mean_s",
            higher_is_better=False, reward="waiting-time", nodes=10, pods_per_node=100, make_nodes=kwok_nodes,
            draw=_mixed(1.05, burst=25.0), also={"waiting_p99_s": 0.005},
        ),
        Task(
            "seedc", "three small nodes, a few pods seen ahead; use every node equally", "mean_variance",
            higher_is_better=False, reward="balance", nodes=3, pods_per_node=60, make_nodes=_small_nodes,
            draw=_seed_c, lookahead=2,
        ),
        Task(
            "seedc-compress", "the pods of seedc; keep as many nodes empty as possible", "mean_empty_fraction",
            higher_is_better=True, reward="compress", nodes=3, pods_per_node=60, make_nodes=_small_nodes,
            draw=_seed_c, lookahead=2,
        ),
        Task(
            "seed-a", "random deployments until a fifth of the cluster is used; even CPU use", "final_cpu_variance",
            higher_is_better=False, reward="balance", nodes=10, pods_per_node=30,
            make_nodes=lambda count: with_control_plane(kwok_nodes(count)), draw=_deployments,
            continuing=False,
        ),
        Task(
            "balance-batch", "a batch of mixed pods that stay; use every node equally", "final_variance",
            higher_is_better=False, reward="balance", nodes=5, pods_per_node=10, make_nodes=kwok_nodes, draw=_batch,
            continuing=False,
        ),
        Task(
            "compress-batch", "a batch of mixed pods that stay; use as few nodes as possible", "final_empty_fraction",
            higher_is_better=True, reward="compress", nodes=10, pods_per_node=5, make_nodes=kwok_nodes, draw=_batch,
            continuing=False,
        ),
    )
}  # fmt: skip


def find_task(name: str) -> Task:
    """Return a task by name; `UserError` lists the names when there is none such."""
    if name not in TASKS:
        raise bad_value("task", name, f"one of {', '.join(TASKS)}")
    return TASKS[name]
