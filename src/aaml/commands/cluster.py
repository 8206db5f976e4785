"""Real Kubernetes clusters on this machine: KWOK plays the kubelets, every other part is Kubernetes' own program."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from aaml.errors import UserError
from aaml.kube.provision import (
    ClusterOptions,
    KwokCluster,
    NodeShape,
    count_nodes,
    ensure_programs,
    parse_labels,
    records,
)
from aaml.kube.provision.api import ApiError
from aaml.kube.provision.binaries import programs_dir, versions
from aaml.kube.provision.docker import DockerCluster

Name = Annotated[str, tyro.conf.arg(help="the cluster's name")]


@dataclass(frozen=True)
class Up:
    """Start a cluster, add its nodes and wait until pods can be placed on them."""

    name: Name = "aaml"
    nodes: int = 10
    """number of worker nodes"""
    cpu: str = "64"
    """CPU of a node"""
    memory: str = "256Gi"
    """memory of a node"""
    pods: int = 110
    """pods that a node takes"""
    labels: tuple[str, ...] = ()
    """labels of the nodes, as key=value"""
    gpus: int = 0
    """GPUs of a node"""
    gpu_model: str = ""
    """model of the GPUs, for instance V100M16"""
    disable_scheduler: bool = False
    """leave the default kube-scheduler out"""
    scheduler_config: Path | None = None
    """a KubeSchedulerConfiguration for the default scheduler, for instance with an extender"""
    runtime: Literal["binary", "docker"] = "binary"
    """plain processes, or KWOK's all-in-one image"""
    port: int = 0
    """port of the API server on 127.0.0.1; 0 takes a free one"""
    wait_s: float = 180.0
    """how long each step of the start may take, in seconds"""


@dataclass(frozen=True)
class Status:
    """Show a cluster: its server, nodes, processes and files. Exit status 1 when a part of it is down."""

    name: Name = "aaml"
    json: bool = False
    """print JSON"""


@dataclass(frozen=True)
class Down:
    """Stop a cluster and remove its files."""

    name: Name = "aaml"


@dataclass(frozen=True)
class Kubeconfig:
    """Print the kubeconfig of a cluster, or only where it is."""

    name: Name = "aaml"
    path: bool = False
    """print the path of the file"""


@dataclass(frozen=True)
class Kubectl:
    """Run the kubectl that belongs to a cluster: `aaml cluster kubectl -- get nodes`."""

    arguments: tyro.conf.Positional[tuple[str, ...]] = ()
    """what to hand to kubectl"""
    name: Name = "aaml"


@dataclass(frozen=True)
class Build:
    """Build the programs into the cache, without starting anything (about 11 minutes on two cores, once)."""


@dataclass(frozen=True)
class List:
    """List the clusters of this machine."""


Command = (
    Annotated[Up, tyro.conf.subcommand("up")]
    | Annotated[Status, tyro.conf.subcommand("status")]
    | Annotated[Down, tyro.conf.subcommand("down")]
    | Annotated[Kubeconfig, tyro.conf.subcommand("kubeconfig")]
    | Annotated[Kubectl, tyro.conf.subcommand("kubectl")]
    | Annotated[Build, tyro.conf.subcommand("build")]
    | Annotated[List, tyro.conf.subcommand("list")]
)


@dataclass(frozen=True)
class Args:
    """Which of the commands, with its own flags."""

    command: tyro.conf.OmitSubcommandPrefixes[tyro.conf.OmitArgPrefixes[Command]]


def run(args: Args) -> int:
    """Do what the sub-command says and return the exit status."""
    command = args.command
    return int(_HANDLERS[type(command)](command))


def _up(args: Up) -> int:
    cluster = DockerCluster(args.name) if args.runtime == "docker" else KwokCluster(args.name)
    shape = NodeShape(args.cpu, args.memory, args.pods, parse_labels(args.labels), args.gpus, args.gpu_model)
    options = ClusterOptions(
        args.nodes, shape, not args.disable_scheduler, args.scheduler_config, args.port, args.wait_s
    )
    started = time.monotonic()
    cluster.up(options, progress=sys.stderr.isatty())
    record = records.load(args.name)
    print(
        f"cluster {args.name} is up after {time.monotonic() - started:.1f} s: Kubernetes {record.kubernetes} "
        f"at {record.server}, {args.nodes} nodes ready"
    )
    print(f"export KUBECONFIG={cluster.kubeconfig}")
    return 0


def _status(args: Status) -> int:
    record = records.load(args.name)
    facts: dict[str, Any] = {
        "name": record.name,
        "runtime": record.runtime,
        "kubernetes": record.kubernetes,
        "server": record.server,
        "kubeconfig": str(records.kubeconfig_path(args.name)),
    }
    if record.runtime == "binary":
        cluster = KwokCluster(args.name)
        facts["kubectl"] = str(cluster.kubectl)
        facts["processes"] = {name: component.pid() for name, component in cluster.components().items()}
        up = cluster.running()
    else:
        up = DockerCluster(args.name).running()
    try:
        count = count_nodes(KwokCluster(args.name).api())
        facts["nodes"] = {"workers": count.workers, "schedulable": count.schedulable}
    except (UserError, ApiError) as error:
        facts["nodes"], up = str(error), False
    if args.json:
        print(json.dumps(facts | {"up": up}, indent=2))
        return 0 if up else 1
    for key, value in facts.items():
        print(f"{key:<11} {_listed(value) if isinstance(value, dict) else value}")
    return 0 if up else 1


def _listed(amounts: dict[str, int | None]) -> str:
    return ", ".join(f"{name} {'stopped' if amount is None else amount}" for name, amount in amounts.items())


def _down(args: Down) -> int:
    docker = False
    try:
        docker = records.load(args.name).runtime == "docker"
    except UserError:
        if not KwokCluster(args.name).directory.exists():
            raise
    (DockerCluster(args.name) if docker else KwokCluster(args.name)).down()
    print(f"cluster {args.name} is down")
    return 0


def _kubeconfig(args: Kubeconfig) -> int:
    records.load(args.name)
    path = records.kubeconfig_path(args.name)
    print(path if args.path else path.read_text(encoding="utf-8"), end="\n" if args.path else "")
    return 0


def _kubectl(args: Kubectl) -> int:
    records.load(args.name)
    environment = os.environ | {"KUBECONFIG": str(records.kubeconfig_path(args.name))}
    command = [str(programs_dir() / "kubectl"), *args.arguments]
    ensure_programs()
    return subprocess.run(command, env=environment, check=False).returncode  # noqa: S603  (the user's own arguments)


def _build(_: Build) -> int:
    print(f"Kubernetes {versions().kubernetes} and KWOK {versions().kwok} are in {ensure_programs()}")
    return 0


def _list(_: List) -> int:
    for name in records.names():
        record = records.load(name)
        print(
            f"{name:<20} {record.runtime:<7} Kubernetes {record.kubernetes}  {record.nodes:>5} nodes  {record.server}"
        )
    return 0


_HANDLERS: dict[type, Callable[[Any], int]] = {
    Up: _up, Status: _status, Down: _down, Kubeconfig: _kubeconfig, Kubectl: _kubectl, Build: _build, List: _list,
}  # fmt: skip
