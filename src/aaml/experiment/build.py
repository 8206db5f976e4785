"""Composition root: which cluster, policy, reward and recorders a run is put together from."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from aaml.cluster.objects import CONTROL_PLANE_LABEL, HOSTNAME_LABEL, Node, Taint
from aaml.cluster.quantity import CPU, MEMORY, PODS, amount
from aaml.errors import bad_value

if TYPE_CHECKING:
    from aaml.scheduling.ports import Cluster, Recorder
    from aaml.sim.live import LiveCluster
    from aaml.workload.player import Sink

ClusterKind = Literal["kube", "sim"]
DEFAULT_REWARD = "balance"


@dataclass(frozen=True)
class Folders:
    """Where a run writes, relative to the working directory unless absolute."""

    curves: Path = Path("tlogs")
    models: Path = Path("models")
    logs: Path = Path("logs")
    data: Path = Path("data")
    deployments: Path = Path("deployment_data")


def standard_nodes(
    count: int = 10, *, cpu: str = "64", memory: str = "256Gi", pods: int = 110, labels: Sequence[tuple[str, str]] = ()
) -> list[Node]:
    """Return the in-process twins of the nodes that `aaml nodes` makes: a tainted control plane and `count` workers."""
    if count < 1:
        raise bad_value("nodes", count, "a whole number of at least 1")
    size = {CPU: amount(CPU, cpu), MEMORY: amount(MEMORY, memory), PODS: pods}
    control = Node(
        "kwok-ctl-node-0",
        size,
        {CONTROL_PLANE_LABEL: "", HOSTNAME_LABEL: "kwok-ctl-node-0"},
        (Taint(CONTROL_PLANE_LABEL),),
    )
    workers = (f"kwok-std-node-{index}" for index in range(count))
    return [control, *(Node(name, size, {HOSTNAME_LABEL: name, **dict(labels)}) for name in workers)]


def in_process_cluster(nodes: int = 10) -> "LiveCluster":
    """Return an empty in-process cluster of standard nodes, for a scheduler and a simulator in threads."""
    from aaml.sim.live import LiveCluster

    return LiveCluster(standard_nodes(nodes))


def kube_cluster(scheduler_name: str, kubeconfig: Path | None = None, *, dry_run: bool = False) -> "Cluster":
    """Connect to a Kubernetes API as the scheduler of that name; raises `UserError` in one line when it cannot."""
    from aaml.kube.cluster import KubeCluster, LiveOptions

    return KubeCluster.connect(scheduler_name, kubeconfig=kubeconfig, options=LiveOptions(dry_run=dry_run))


@contextmanager
def background_policy(cluster: "LiveCluster", policy: str) -> Iterator[None]:
    """Schedule on an in-process cluster by a named policy, in a thread, until the block ends."""
    from aaml.scheduling.cycle import SchedulingCycle
    from aaml.scheduling.loop import SchedulerLoop
    from aaml.scheduling.observation import Featurizer
    from aaml.scheduling.registry import make_policy, make_reward

    stop = threading.Event()
    loop = SchedulerLoop(
        SchedulingCycle(cluster, make_reward(DEFAULT_REWARD), Featurizer()), make_policy(policy), learn=False
    )
    thread = threading.Thread(target=loop.run, args=(stop.is_set,), name=f"policy-{policy}", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def workload_sink(
    cluster: "LiveCluster | None", scheduler_name: str, kubeconfig: Path | None = None, namespace: str = "default"
) -> "Sink":
    """Return the way by which a workload gets onto a cluster; None is the one of the kubeconfig."""
    if cluster is not None:
        from aaml.sim.live import LiveSink

        return LiveSink(cluster, scheduler_name)
    from aaml.kube.submit import KubeSink

    return KubeSink.connect(scheduler_name, kubeconfig=kubeconfig, namespace=namespace)


def run_recorder(
    folders: Folders, name: str, stem: str, hyperparameters: dict[str, bool | int | float | str]
) -> "Recorder":
    """Return the recorder of a run: TensorBoard's files in tlogs/<name>, every decision in logs/<stem>.jsonl."""
    from aaml.telemetry.curves import CLUSTER_VARIANCE, CUMULATIVE_REWARD, LAYOUT
    from aaml.telemetry.recorder import JsonLinesRecorder, Recorders, TensorBoardRecorder

    board = TensorBoardRecorder(folders.curves / name)
    board.layout(LAYOUT)
    board.hyperparameters(hyperparameters, [CUMULATIVE_REWARD, CLUSTER_VARIANCE])
    return Recorders(board, JsonLinesRecorder(folders.logs / f"{stem}.jsonl"))
