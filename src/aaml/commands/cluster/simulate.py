"""Put a workload on a cluster: random deployments until a load is reached, then again on a cleared cluster.

Every deployment is written to deployment_data/data_*.csv; `--playback` plays such a file. It waits until each
deployment is placed and says what stayed pending. With `--cluster sim` an in-process cluster takes the workload and
kube-scheduler's scoring places it; `scheduler_dqn.py --cluster sim` and its siblings bring a workload of their own.
It says which cluster that is; one with nodes that KWOK does not play is only taken with --real. Between two rounds it
deletes the deployments that it made itself, and no others.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from aaml.commands.kinds import Flag
from aaml.commands.signals import ends_by
from aaml.settings import Count, Natural, NotNegative, Positive, Settings, Share


@dataclass(frozen=True)
class Args(Settings):
    """Settings of the workload."""

    cpu_load: Share = 0.2
    """a round ends when the cluster's requested CPU reaches this fraction"""
    mem_load: Share = 0.2
    """... its memory"""
    pod_load: Share = 0.2
    """... its pods; whichever comes first"""
    cluster_resets: Natural = 2
    """how often the workload is deleted and put on anew; the last round's stays"""
    scheduler_name: str = "custom-scheduler"
    """schedulerName of the pods"""
    seed: Natural | None = None
    """same seed, same deployments; without it one is drawn and printed"""
    shapes: Path | None = None
    """mixture of pod shapes, a CSV file (see data/shapes_mixed.csv)"""
    playback: Path | None = None
    """play this file of deployments instead of random ones"""
    lifetime: Positive | None = None
    """seconds after which a placed deployment is deleted; without it they stay. Where they go as fast as they come no
    load is reached, and a round goes on until `max_deployments` or Ctrl-C"""
    interval: NotNegative = 0.0
    """seconds between deployments"""
    hold: NotNegative = 0.0
    """seconds that the loaded cluster stands before it is cleared"""
    at_once: Count = 1
    """deployments submitted together"""
    wait_s: Positive = 60.0
    """a round ends when pods have no node for so long"""
    max_deployments: Count | None = None
    """a round ends after so many deployments"""
    progress: Flag = False
    """show a progress bar"""
    cluster: Literal["kube", "sim"] = "kube"
    """a Kubernetes cluster, or one in this process"""
    dry_run: Flag = False
    """say what would be put where, and do nothing"""
    real: Flag = False
    """on a cluster with nodes that KWOK does not play too"""
    kubeconfig: Path | None = None
    """of the Kubernetes cluster; without it $KUBECONFIG and ~/.kube/config"""
    namespace: str = "default"
    """where the deployments go"""
    sim_nodes: Count = 10
    """nodes of the in-process cluster"""
    sim_policy: str = "kube-scheduler"
    """what places the workload there: a policy by name"""


def run(args: Args) -> int:
    """Play the workload and tell each round; exit status 1 when pods stayed pending."""
    from contextlib import nullcontext

    from aaml.live.in_process import background_policy, in_process_cluster
    from aaml.live.settings import Folders
    from aaml.live.table import KubeInfo
    from aaml.live.workload import WorkloadDeploymentSimulator
    from aaml.telemetry.console import run_log

    if args.cluster == "kube":
        _look(args)
    cluster = in_process_cluster(args.sim_nodes) if args.cluster == "sim" else None
    simulator = WorkloadDeploymentSimulator(
        args.cpu_load,
        args.mem_load,
        args.pod_load,
        args.scheduler_name,
        cluster=cluster,
        kubeconfig=args.kubeconfig,
        namespace=args.namespace,
        seed=args.seed,
        shapes=args.shapes,
        playback=args.playback,
        lifetime_s=args.lifetime,
        at_once=args.at_once,
        wait_s=args.wait_s,
        max_deployments=args.max_deployments,
        progress_indication=args.progress,
    )
    if args.dry_run:
        loads = f"{args.cpu_load:.0%} of CPU, {args.mem_load:.0%} of memory or {args.pod_load:.0%} of pods"
        print(
            f"deployments of seed {simulator.seed} for {args.scheduler_name} would be put into namespace "
            f"{args.namespace} until {loads} are requested, {args.cluster_resets + 1} times; before each time but the "
            f"first its own are deleted"
        )
        return 0
    placing = nullcontext() if cluster is None else background_policy(cluster, args.sim_policy)
    with run_log("simulator", Folders().logs), ends_by(simulator.stop) as interruption, placing:
        rounds = simulator.run(args.interval, args.hold, args.cluster_resets + 1)
        if cluster is not None:
            print(KubeInfo(cluster=cluster))
    pending = any(each.pending for each in rounds)
    return interruption.service_status or int(pending and not interruption.signal)


def _look(args: Args) -> None:
    """Say which cluster it is. Raises `UserError` for one that somebody may work on."""
    from contextlib import closing

    from aaml.kube.place import Place
    from aaml.kube.transport import Transport

    with closing(Transport(args.kubeconfig)) as api:
        place = Place.look(api, args.kubeconfig)
    place.check("real", confirmed=args.real or args.dry_run)
    print(place, flush=True)
