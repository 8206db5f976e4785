"""Start a cluster, add its nodes and wait until pods can be placed on them.

On a cluster of which a part has stopped, only what is missing is started: everything on it is kept.
"""

import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from aaml.cluster.fleet import STANDARD, NodeShape
from aaml.commands.cluster import OfCluster
from aaml.commands.cluster.autoscaler import pool_and_types
from aaml.errors import UserError, bad_value
from aaml.kube.provision import (
    ClusterOptions,
    KwokCluster,
    Owner,
    cluster_of,
    count_nodes,
    ensure_programs,
    records,
)
from aaml.kube.provision.binaries import release
from aaml.kube.provision.gates import checked, with_gates
from aaml.kube.provision.inventory import AnyCluster
from aaml.settings import Count, Port, Positive


@dataclass(frozen=True)
class Args(OfCluster):
    """`aaml cluster up`."""

    nodes: Count | None = None
    """number of worker nodes, by default 10; with an autoscaler none, because it provisions them"""
    shape: NodeShape = STANDARD
    kubernetes: str = ""
    """version of Kubernetes, 1.36 for instance; without it that of the plugin of --scheduler, or the newest"""
    gates: str = ""
    """what Kubernetes leaves off: gangs (PodGroups, Workloads and Jobs with `spec.scheduling`, from 1.37 on)"""
    disable_scheduler: bool = False
    """leave the default kube-scheduler out"""
    scheduler_config: Path | None = None
    """a KubeSchedulerConfiguration for the default scheduler, for instance with an extender"""
    scheduler: str = ""
    """a policy inside kube-scheduler: the folder of `aaml export`, or a model; without it the stock kube-scheduler"""
    autoscaler: Literal["none", "karpenter"] = "none"
    """what provisions nodes for pods that wait and terminates nodes that can be emptied; none: nothing does"""
    instance_types: Path | None = None
    """what Karpenter can provision: a file as its KWOK provider reads it; by default the made-up types that ship"""
    nodepool: Path | None = None
    """a YAML file with a NodePool, for instance of `aaml search bill`; Karpenter's defaults without it"""
    queue: Literal["none", "kueue"] = "none"
    """what admits Jobs and pods that name a queue; none: nothing does"""
    runtime: Literal["binary", "docker"] = "binary"
    """plain processes, or KWOK's all-in-one image"""
    port: Port = 0
    """port of the API server on 127.0.0.1; 0 takes a free one"""
    wait_s: Positive = 180.0
    """how long each step of the start may take without coming further, in seconds"""
    owner: int = 0
    """id of a process that the cluster belongs to: `aaml cluster list` ends it once that is gone; 0 for none"""


def run(args: Args) -> int:
    """Start it and say how it is reached."""
    if args.kubernetes and args.runtime != "binary":
        raise UserError(f"kubernetes: needs --runtime binary; the {args.runtime} image has its own")
    if args.gates and args.runtime != "binary":
        raise UserError(f"gates: needs --runtime binary; the {args.runtime} image has its own")
    release(args.kubernetes)  # before anything is built or begun
    cluster = cluster_of(args.name, args.runtime)
    owner = Owner.of(args.owner) if args.owner else None
    autoscaler, queue = _autoscaler(args), _queue(args)
    nodes = args.nodes or (0 if autoscaler else ClusterOptions.nodes)
    options = ClusterOptions(
        nodes, args.shape, not args.disable_scheduler, args.scheduler_config, args.port, args.wait_s, owner,
        kubernetes=args.kubernetes,
    )  # fmt: skip
    options = with_gates(options, args.gates)
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as aside:
        if args.scheduler:
            options = _with_plugin(args, options, Path(aside))
        restarted = cluster.up(options, progress=sys.stderr.isatty())
    for begin in filter(None, (autoscaler, queue)):
        if not restarted:
            _begin(begin, cluster)
    if "kueue" in restarted:
        from aaml.kueue.process import wait_ready

        wait_ready(KwokCluster(args.name), args.wait_s)
    record, ready = records.load(args.name), count_nodes(cluster.api()).schedulable
    print(
        f"cluster {args.name} is up after {time.monotonic() - started:.1f} s: Kubernetes {record.kubernetes} "
        f"at {record.server}, {ready} nodes ready"
    )
    if restarted:
        print(f"started again: {', '.join(restarted)}; what is on the cluster is kept, flags of a new one are not used")
    print(f"export KUBECONFIG={cluster.kubeconfig}")
    return 0


def _begin(begin: Callable[[], None], cluster: AnyCluster) -> None:
    """Start one more program on the new cluster, which ends where that does not start."""
    try:
        begin()
    except BaseException:
        cluster.down()
        raise


def _autoscaler(args: Args) -> Callable[[], None] | None:
    """Return what starts the autoscaler on the new cluster, whose program is built by then; None without one."""
    if args.autoscaler == "none":
        for field in ("instance_types", "nodepool"):
            if getattr(args, field):
                raise UserError(f"{field}: is for an autoscaler; add --autoscaler karpenter")
        return None
    from aaml.karpenter.build import build
    from aaml.karpenter.process import start

    if args.runtime != "binary":
        raise UserError(f"autoscaler: {args.autoscaler} needs --runtime binary")
    pool, types = pool_and_types(args.nodepool, args.instance_types)
    ensure_programs(args.kubernetes)  # first, because Karpenter shares some of what they compile
    build()
    return lambda: start(KwokCluster(args.name), pool, types, wait_s=args.wait_s)


def _queue(args: Args) -> Callable[[], None] | None:
    """Return what starts Kueue on the new cluster, built by then; None without it."""
    if args.queue == "none":
        return None
    from aaml.kueue.build import build
    from aaml.kueue.process import start

    if args.runtime != "binary":
        raise UserError(f"queue: {args.queue} needs --runtime binary")
    build(args.kubernetes)
    return lambda: start(KwokCluster(args.name), wait_s=args.wait_s)


def _with_plugin(args: Args, options: ClusterOptions, aside: Path) -> ClusterOptions:
    """Return the options of a cluster that a plugin schedules; compiles it where the cache has no program of it.

    `aside` takes its configuration, which kwokctl copies and fills the cluster's kubeconfig in.
    """
    from aaml.plugin.build import build
    from aaml.plugin.run import plugin_of, write_configuration

    for field in ("disable_scheduler", "scheduler_config"):
        if getattr(args, field):
            raise UserError(f"scheduler: {args.scheduler} and --{field} exclude each other")
    if args.runtime != "binary":
        raise UserError(f"scheduler: {args.scheduler} needs --runtime binary; the {args.runtime} image has its own")
    module = plugin_of(args.scheduler, args.kubernetes)
    kubernetes = release(args.kubernetes or module.kubernetes)
    checked(args.gates, kubernetes)
    if _numbers(module.kubernetes) > _numbers(kubernetes):
        raise bad_value(
            "kubernetes", args.kubernetes,
            f"{module.kubernetes} or newer: the plugin in {module.folder} is for that, and a kube-scheduler may be no "
            "newer than the API server",
        )  # fmt: skip
    ensure_programs(kubernetes)  # first: with what they compiled the plugin takes seconds
    program = build(module)
    configuration = write_configuration(module, Path(), aside / "scheduler.yaml")
    return replace(options, scheduler_config=configuration, scheduler_program=program, kubernetes=kubernetes)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")[:2]))
