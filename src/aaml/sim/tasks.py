"""Tasks by name: the presets that agents are trained and judged on, those of traces, and a person's own."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from aaml.cluster.fleet import NodeShape, control_plane, workers
from aaml.cluster.quantity import CPU, MEMORY
from aaml.errors import UserError, bad_value
from aaml.own_files import load_file
from aaml.settings import Count, take
from aaml.sim.bill import BILL_TASKS, BillTask
from aaml.sim.recorded import TraceTask, trace_task
from aaml.sim.recorded_bill import recorded_bill
from aaml.sim.task import Nodes, Task
from aaml.sim.training_jobs import TRAIN_TASKS
from aaml.workload.churn import Churn
from aaml.workload.load import Load, LoadRange, draw_load, read_load, take_load
from aaml.workload.model import Workload
from aaml.workload.synthetic import DeploymentSpec, PodShape, WorkloadSpec
from aaml.workload.synthetic_gpu import synthetic_nodes, synthetic_pods
from aaml.workload.trace.store import is_trace
from aaml.workload.trace.windows import Part
from aaml.workload.varied import Varied, varied_nodes

GIB = 1 << 30


def _cluster(count: int) -> Nodes:
    return (control_plane(), *workers(count))


def _shape(
    name: str, weight: float, cpu_milli: int, gib: float, lifetime_s: float | None = None, owner: str = ""
) -> PodShape:
    return PodShape(name, {CPU: cpu_milli, MEMORY: int(gib * GIB)}, weight, lifetime_s, owner)


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
SERVICES_AND_JOBS = WorkloadSpec(
    shapes=(
        _shape("web", 1.5, 2_000, 4, 7_200.0),
        _shape("api", 1.0, 4_000, 8, 10_800.0),
        _shape("cache", 0.5, 1_000, 24, 14_400.0),
        _shape("database", 0.5, 4_000, 32, 21_600.0),
        _shape("thumbnails", 16.0, 2_000, 4, 180.0, "Job/thumbnails"),
        _shape("tests", 12.0, 4_000, 8, 420.0, "Job/tests"),
        _shape("index", 4.0, 1_000, 24, 600.0, "Job/index"),
        _shape("report", 4.0, 4_000, 32, 300.0, "Job/report"),
        _shape("training", 3.0, 12_000, 24, 1_200.0, "Job/training"),
    ),
    lifetime="lognormal",
    uniform_bursts=True,
    name="services-and-jobs",
)  # an owner's name tells how long its pods run, what they ask for does not
GPU_DEMAND = 1.3  # pods arrive until this multiple of the devices was asked for


@dataclass(frozen=True)
class Mix:
    """Draws the pods of a mix so that they keep a fraction `load` of the nodes in use on average.

    `burst`: how many come at once on ten nodes, in proportion on others; None: as many as the mix says.
    """

    load: Load
    spec: WorkloadSpec = field(default=MIXED, hash=False)  # it holds mappings
    burst: float | None = None

    def __post_init__(self) -> None:
        take_load(self.load)

    def at(self, nodes: Nodes, rng: np.random.Generator) -> WorkloadSpec:
        """Return the mix of an episode on these nodes. Of a range its load is drawn."""
        spec = self.spec.at_load(draw_load(self.load, rng), nodes)
        return spec if self.burst is None else replace(spec, burst=self.burst * (len(nodes) / 10.0))

    def __call__(self, nodes: Nodes, pods: int, rng: np.random.Generator) -> Workload:
        """Draw a workload."""
        return self.at(nodes, rng).generate(pods, rng)


def _small_nodes(count: int) -> Nodes:
    return workers(count, NodeShape(cpu="8", memory="32Gi"), prefix="node")


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


TASKS: Mapping[str, Task] = {
    task.name: task
    for task in (
        Task(
            "balance", "mixed pods come and go; use every node equally", "mean_variance",
            reward="balance", nodes=10, pods_per_node=60, make_nodes=workers, draw=Mix(0.5),
        ),
        Task(
            "varied", "a mix of pods and nodes of its own for each episode; use every node equally", "mean_variance",
            reward="balance", nodes=10, pods_per_node=60, make_nodes=workers, draw=Varied(LoadRange(0.1, 0.9), MIXED),
            draw_nodes=varied_nodes,
        ),
        Task(
            "compress", "mixed pods come and go; keep as many nodes empty as possible", "mean_empty_fraction",
            reward="compress", nodes=10, pods_per_node=60, make_nodes=workers,
            draw=Mix(0.35),
        ),
        Task(
            "fragmentation", "pods share GPUs and stay; place as much GPU demand as possible", "final_gpu_allocation",
            reward="fragmentation", nodes=20, pods_per_node=12, make_nodes=synthetic_nodes,
            draw=_gpu_mix, trace_nodes=True, continuing=False,
        ),
        Task(
            "waiting", "bursts beyond capacity; let pods wait as little as possible", "waiting_mean_s",
            reward="waiting-time", nodes=10, pods_per_node=100, make_nodes=workers,
            draw=Mix(1.05, burst=25.0), also={"waiting_p99_s": 0.005},
        ),
        Task(
            "services-and-jobs", "services that run for hours, jobs for minutes; keep as many nodes empty as possible",
            "mean_empty_fraction", reward="compress", nodes=10, pods_per_node=200, make_nodes=workers,
            draw=Mix(0.35, SERVICES_AND_JOBS, burst=12.0),
        ),
        Task(
            "churn", "GPU pods of openb come and go near what there is; let as little GPU demand wait as possible",
            "mean_gpu_waiting", reward="fragmentation", nodes=20, pods_per_node=50, make_nodes=synthetic_nodes,
            draw=Churn(0.9), past=Churn(0.9, half=1),
        ),
        Task(
            "seedc", "three small nodes, a few pods seen ahead; use every node equally", "mean_variance",
            reward="balance", nodes=3, pods_per_node=60, make_nodes=_small_nodes,
            draw=Mix(0.5, SEED_C), lookahead=2,
        ),
        Task(
            "seedc-compress", "the pods of seedc; keep as many nodes empty as possible", "mean_empty_fraction",
            reward="compress", nodes=3, pods_per_node=60, make_nodes=_small_nodes,
            draw=Mix(0.5, SEED_C), lookahead=2,
        ),
        Task(
            "seed-a", "random deployments until a fifth of the cluster is used; even CPU use", "final_cpu_variance",
            reward="balance", nodes=10, pods_per_node=30,
            make_nodes=_cluster, draw=_deployments,
            continuing=False,
        ),
        Task(
            "balance-batch", "a batch of mixed pods that stay; use every node equally", "final_variance",
            reward="balance", nodes=5, pods_per_node=10, make_nodes=workers, draw=_batch,
            continuing=False,
        ),
        Task(
            "compress-batch", "a batch of mixed pods that stay; use as few nodes as possible", "final_empty_fraction",
            reward="compress", nodes=10, pods_per_node=5, make_nodes=workers, draw=_batch,
            continuing=False,
        ),
    )
}  # fmt: skip
"""The tasks whose nodes stay."""
ALL_TASKS: Mapping[str, Task] = {**TASKS, **BILL_TASKS, **TRAIN_TASKS}


def make_task(name: str, *, nodes: int | Sequence[int] = (), pods: int | None = None) -> Task:
    """Return a task: what to schedule, on clusters of which size, and what counts as good.

    Parameters
    ----------
    name
        "balance", "varied", "compress", "fragmentation", "waiting", "services-and-jobs", "churn", "seedc",
        "seedc-compress", "seed-a", "balance-batch" or "compress-batch"; "bill", "bill-when-empty",
        "bill-cluster-autoscaler" or "bill-openb", where nodes are provisioned and terminated; "train-philly" or
        "train-philly-kueue", whose jobs are fetched; `aaml show tasks` says what each is.
        "compress@0.5": at that load; "balance@0.1..0.6": at one that each episode draws.
    nodes
        One cluster size or several; the task's usual one when none is given.
    pods
        Pods of an episode; the task's usual number when not given.

    Raises
    ------
    UserError
        For a task that is not known, and for numbers that make no cluster.

    """
    sizes = (nodes,) if isinstance(nodes, int) else tuple(nodes)
    for size in sizes:
        take("nodes", size, Count)
    return replace(find_task(name), sizes=sizes, pods=take("pods", pods, Count | None))


def find_task(name: str) -> Task:
    """Return a task by name, at another load as NAME@LOAD, that of a trace by its folder, or a person's own.

    A load may be a range, as NAME@LOW..HIGH, of which each episode draws one. A trace's is one of `aaml.sim.recorded`;
    one's own is a `Task` in a file, as FILE.py:NAME. Raises `UserError`, which lists the names, when there is none.
    """
    if name in ALL_TASKS:
        return ALL_TASKS[name]
    path, colon, attribute = name.rpartition(":")
    if colon and path.endswith(".py"):
        own = getattr(load_file(Path(path), "task"), attribute, None)
        if not isinstance(own, Task):
            raise bad_value(f"task in {path}", attribute, "an aaml.Task that the file defines")
        return replace(own, name=name)
    if is_trace(_goal_and_folder(name)[1]):
        return find_trace_task(name)
    base, at, load = name.partition("@")
    if base in ALL_TASKS and at:
        if load.lstrip("+-.")[:1].isdecimal():
            return ALL_TASKS[base].at_load(read_load(load))
        raise bad_value(
            "task", name, f"{base} at a load (0.5, or 0.1..0.6), or on a trace: {load!r} is no folder with one"
        )
    if "/" in name and not name.endswith(".py"):
        folder = _goal_and_folder(name)[1]
        what = "is not there" if not Path(folder).exists() else "holds no trace"
        raise UserError(f"task: {folder!r} {what}; expected a folder that `aaml record` or `aaml trace convert` made")
    raise bad_value(
        "task",
        name,
        f"one of {', '.join(ALL_TASKS)}, one of them at a load (compress@0.5) or at loads of a range "
        "(compress@0.2..0.5), a trace's folder, or FILE.py:NAME",
    )


def find_trace_task(name: str, part: Part = "holdout") -> TraceTask:
    """Return the task of a trace: its folder, or GOAL@FOLDER for the goal of another task than *balance*.

    Raises `UserError` for a folder without a trace, and for a goal that is not known.
    """
    goal, folder = _goal_and_folder(name)
    judged = find_task(goal or "balance")
    if isinstance(judged, BillTask):
        return replace(recorded_bill(Path(folder), judged, part), name=name)
    return replace(trace_task(Path(folder), judged, part), name=name)


def _goal_and_folder(name: str) -> tuple[str, str]:
    """Return what GOAL@FOLDER or FOLDER stands for; the path of a trace may have an @ itself."""
    parts = [("", name), *((name[:place], name[place + 1 :]) for place, letter in enumerate(name) if letter == "@")]
    return next((each for each in parts if is_trace(each[1])), parts[-1])
