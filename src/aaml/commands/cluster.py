"""Real Kubernetes clusters on this machine: KWOK plays the kubelets, every other part is Kubernetes' own program."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from aaml.cluster.fleet import STANDARD, NodeShape
from aaml.errors import UserError
from aaml.kube.provision import (
    ClusterOptions,
    KwokCluster,
    Owner,
    cluster_of,
    count_nodes,
    end_orphans,
    ensure_programs,
    records,
)
from aaml.kube.provision.binaries import programs_dir, versions
from aaml.settings import Count, Port, Positive, Settings

if TYPE_CHECKING:
    from aaml.karpenter.pool import Pool
    from aaml.nodes.catalogue import Catalogue


@dataclass(frozen=True)
class OfCluster(Settings):
    """Which cluster is meant."""

    name: str = "aaml"
    """the cluster's name"""


@dataclass(frozen=True)
class Up(OfCluster):
    """Start a cluster, add its nodes and wait until pods can be placed on them.

    On a cluster of which a part has stopped, only what is missing is started: everything on it is kept.
    """

    nodes: Count | None = None
    """number of worker nodes, by default 10; with an autoscaler none, because it buys them"""
    shape: NodeShape = STANDARD
    disable_scheduler: bool = False
    """leave the default kube-scheduler out"""
    scheduler_config: Path | None = None
    """a KubeSchedulerConfiguration for the default scheduler, for instance with an extender"""
    scheduler: str = ""
    """a policy inside kube-scheduler: the folder of `aaml export`, or a model; without it the stock kube-scheduler"""
    autoscaler: Literal["none", "karpenter"] = "none"
    """who buys nodes for pods that wait, and gives back nodes that can be emptied: nobody, or the real Karpenter"""
    instance_types: Path | None = None
    """what Karpenter can buy: a file as its KWOK provider reads it, by default the made-up catalogue that ships"""
    nodepool: Path | None = None
    """a YAML file with a NodePool, for instance of `aaml tune bill`; Karpenter's defaults without it"""
    runtime: Literal["binary", "docker"] = "binary"
    """plain processes, or KWOK's all-in-one image"""
    port: Port = 0
    """port of the API server on 127.0.0.1; 0 takes a free one"""
    wait_s: Positive = 180.0
    """how long each step of the start may take without coming further, in seconds"""
    owner: int = 0
    """id of a process that the cluster belongs to: `aaml cluster list` ends it once that is gone; 0 for none"""


@dataclass(frozen=True)
class Status(OfCluster):
    """Show a cluster: its server, nodes, processes and files. Exit status 1 when a part of it is down."""

    json: bool = False
    """print JSON"""


@dataclass(frozen=True)
class Down(OfCluster):
    """Stop a cluster of `aaml cluster up` and remove its files: everything on it is gone."""

    dry_run: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """say what would go, and stop nothing"""


@dataclass(frozen=True)
class Kubeconfig(OfCluster):
    """Print the kubeconfig of a cluster, or only where it is."""

    path: bool = False
    """print the path of the file"""


@dataclass(frozen=True)
class Kubectl(OfCluster):
    """Run the kubectl that belongs to a cluster: `aaml cluster kubectl -- get nodes`."""

    arguments: tyro.conf.Positional[tuple[str, ...]] = ()
    """what to hand to kubectl"""


@dataclass(frozen=True)
class Build:
    """Build the programs into the cache, without starting anything (about 11 minutes on two cores, once)."""

    autoscaler: bool = False
    """Karpenter too (about 3 minutes of one core more)"""


@dataclass(frozen=True)
class Autoscale(Settings):
    """Run Karpenter in the foreground on any cluster of KWOK nodes, as the compose stack does, until it is stopped."""

    kubeconfig: Path | None = None
    """kubeconfig of the cluster. Default: $KUBECONFIG, ~/.kube/config or the service account"""
    instance_types: Path | None = None
    """what Karpenter can buy: a file as its KWOK provider reads it, by default the made-up catalogue that ships"""
    nodepool: Path | None = None
    """a YAML file with a NodePool, for instance of `aaml tune bill`; Karpenter's defaults without it"""
    health_port: Port = 0
    """port of /healthz and /readyz on 127.0.0.1; 0 takes a free one"""


@dataclass(frozen=True)
class List:
    """List the clusters of this machine and what is down of each; end those whose owner is gone."""


Command = (
    Annotated[Up, tyro.conf.subcommand("up")]
    | Annotated[Status, tyro.conf.subcommand("status")]
    | Annotated[Down, tyro.conf.subcommand("down")]
    | Annotated[Kubeconfig, tyro.conf.subcommand("kubeconfig")]
    | Annotated[Kubectl, tyro.conf.subcommand("kubectl")]
    | Annotated[Build, tyro.conf.subcommand("build")]
    | Annotated[Autoscale, tyro.conf.subcommand("autoscale")]
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
    cluster = cluster_of(args.name, args.runtime)
    owner = Owner.of(args.owner) if args.owner else None
    autoscaler = _starter(args)
    nodes = args.nodes or (0 if autoscaler else ClusterOptions.nodes)
    options = ClusterOptions(
        nodes, args.shape, not args.disable_scheduler, args.scheduler_config, args.port, args.wait_s, owner
    )
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as aside:
        if args.scheduler:
            options = _with_plugin(args, options, Path(aside))
        restarted = cluster.up(options, progress=sys.stderr.isatty())
    if autoscaler and not restarted:
        autoscaler()
    record, ready = records.load(args.name), count_nodes(cluster.api()).schedulable
    print(
        f"cluster {args.name} is up after {time.monotonic() - started:.1f} s: Kubernetes {record.kubernetes} "
        f"at {record.server}, {ready} nodes ready"
    )
    if restarted:
        print(f"started again: {', '.join(restarted)}; what is on the cluster is kept, flags of a new one are not used")
    print(f"export KUBECONFIG={cluster.kubeconfig}")
    return 0


def _starter(args: Up) -> Callable[[], None] | None:
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
    pool, types = _purchases(args.nodepool, args.instance_types)
    ensure_programs()  # first, because Karpenter shares some of what they compile
    build()

    def begin() -> None:
        cluster = KwokCluster(args.name)
        try:
            start(cluster, pool, types, wait_s=args.wait_s)
        except BaseException:
            cluster.down()
            raise

    return begin


def _purchases(nodepool: Path | None, instance_types: Path | None) -> "tuple[Pool, Catalogue]":
    """Return the NodePool of a file, and what it may buy of a file; by default Karpenter's, and what ships."""
    from aaml.karpenter.pool import Pool
    from aaml.nodes.catalogue_file import read_catalogue, shipped_catalogue

    pool = Pool.read(nodepool) if nodepool else Pool()
    labels = pool.settings.labels
    return pool, read_catalogue(instance_types, labels) if instance_types else shipped_catalogue(labels)


def _autoscale(args: Autoscale) -> int:
    from aaml.karpenter.process import become
    from aaml.kube.place import Place
    from aaml.kube.transport import Transport

    pool, types = _purchases(args.nodepool, args.instance_types)
    api = Transport(args.kubeconfig)
    place = Place.look(api, args.kubeconfig)
    if not place.ours:
        raise UserError(f"kubeconfig: {place}; expected a cluster of KWOK nodes alone")
    print(place, flush=True)
    become(api, pool, types, kubeconfig=args.kubeconfig, health_port=args.health_port)


def _with_plugin(args: Up, options: ClusterOptions, aside: Path) -> ClusterOptions:
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
    module = plugin_of(args.scheduler)
    ensure_programs()  # first: with what they compiled the plugin takes seconds
    program = build(module)
    configuration = write_configuration(module, Path(), aside / "scheduler.yaml")
    return replace(options, scheduler_config=configuration, scheduler_program=program)


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
        kwok = KwokCluster(args.name)
        facts["kubectl"] = str(kwok.kubectl)
        components = kwok.components()
        facts["processes"] = {name: component.pid() for name, component in components.items()}
        if (scheduler := components.get("kube-scheduler")) and (port := scheduler.flag("secure-port")):
            facts["metrics"] = f"https://127.0.0.1:{port}/metrics"
    cluster = cluster_of(args.name, record.runtime)
    up = cluster.running()
    try:
        count = count_nodes(cluster.api())
        facts["nodes"] = {"workers": count.workers, "schedulable": count.schedulable}
    except UserError as error:
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
    runtime: records.Runtime = "binary"
    what = f"cluster {args.name}"
    try:
        record = records.load(args.name)
        runtime, what = record.runtime, f"cluster {args.name} at {record.server}, {record.nodes} nodes"
    except UserError:
        if not records.cluster_dir(args.name).exists():
            raise  # else its record is missing or damaged: what is there goes
    if args.dry_run:
        print(f"{what}, would be taken down with everything on it")
        return 0
    with records.locked(args.name):  # another process may start it right now
        cluster_of(args.name, runtime).down()
    print(f"{what}, is down")
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


def _build(args: Build) -> int:
    print(f"Kubernetes {versions().kubernetes} and KWOK {versions().kwok} are in {ensure_programs()}")
    if args.autoscaler:
        from aaml.karpenter.build import build, version

        print(f"Karpenter {version()} is in {build().parent}")
    return 0


def _list(_: List) -> int:
    for record in end_orphans():
        owner = record.owner.pid if record.owner else 0
        print(f"cluster {record.name} is ended: process {owner} that it belonged to is gone", file=sys.stderr)
    for name in records.names():
        try:
            record = records.load(name)
        except UserError as damaged:  # or taken down right now
            print(f"{name:<20} {damaged}")
            continue
        print(
            f"{name:<20} {record.runtime:<7} Kubernetes {record.kubernetes}  {_nodes(record):>5} nodes  "
            f"{record.server}  {_state(record)}"
        )
    return 0


def _nodes(record: records.Record) -> int:
    """Return how many nodes a cluster has now; where it does not say, how many it was made with."""
    try:
        return count_nodes(cluster_of(record.name, record.runtime).api()).workers
    except UserError:
        return record.nodes


def _state(record: records.Record) -> str:
    cluster = cluster_of(record.name, record.runtime)
    try:
        return "up" if cluster.running() else f"down: {', '.join(cluster.stopped()) or 'every part'}"
    except UserError as error:  # no container engine answers
        return str(error)


_HANDLERS: dict[type, Callable[[Any], int]] = {
    Up: _up, Status: _status, Down: _down, Kubeconfig: _kubeconfig, Kubectl: _kubectl, Build: _build,
    Autoscale: _autoscale, List: _list,
}  # fmt: skip
