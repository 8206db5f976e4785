"""What this machine remembers of its clusters: one private folder for each, found again by the cluster's name."""

import re
import shutil
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import msgspec

from aaml.cluster.fleet import STANDARD, NodeShape
from aaml.errors import UserError, bad_value
from aaml.files import write_bytes
from aaml.folders import private_dir, state_dir
from aaml.kube.provision.owner import Owner
from aaml.kube.provision.paths import PRIVATE, exclusive

Runtime = Literal["binary", "docker"]
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")
_FILE = "aaml.json"


@dataclass(frozen=True)
class ClusterOptions:
    """What a new cluster is like.

    `port` 0 takes a free one, and `wait_s` bounds in seconds how long a step of the start may come no further. A
    cluster with an `owner` is ended by `aaml.kube.provision.end_orphans` once the owner is gone; one without stays
    until it is taken down.
    `kubernetes` is a version that `binaries.release` knows.
    `arguments` are further flags of a part: {"kube-apiserver": {"feature-gates": "A=true"}}. `scheduler_program` is a
    kube-scheduler in place of the stock one; its file has to be called that, too.
    """

    nodes: int = 10
    shape: NodeShape = STANDARD
    scheduler: bool = True
    scheduler_config: Path | None = None
    port: int = 0
    wait_s: float = 180.0
    owner: Owner | None = None
    arguments: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    scheduler_program: Path | None = None
    kubernetes: str = ""


@dataclass(frozen=True)
class Record:
    """The facts of a cluster that outlive the command that made it.

    While a cluster is made it belongs to the process that makes it, and from then on to the owner that it was given.
    """

    name: str
    runtime: Runtime
    kubernetes: str
    server: str
    nodes: int
    scheduler: bool
    owner: Owner | None = None

    @property
    def orphaned(self) -> bool:
        """Whether the cluster belongs to a process that is gone."""
        return self.owner is not None and not self.owner.alive()


def cluster_dir(name: str) -> Path:
    """Return the folder of cluster `name`, there or not; raise `UserError` for a name that makes no folder."""
    if not _NAME.fullmatch(name):
        raise bad_value("name", name, "1 to 40 lower-case letters, digits and inner hyphens")
    return state_dir() / "clusters" / name


def kubeconfig_path(name: str) -> Path:
    """Return where the kubeconfig of cluster `name` is."""
    return cluster_dir(name) / "aaml.kubeconfig"


def locked(name: str) -> AbstractContextManager[None]:
    """Return the lock under which cluster `name` is started or ended: one process at a time."""
    return exclusive(cluster_dir(name).with_suffix(".lock"), f"starts or ends cluster {name!r}")


def save(record: Record) -> None:
    """Remember a cluster."""
    folder = private_dir(cluster_dir(record.name))
    write_bytes(folder / _FILE, msgspec.json.format(msgspec.json.encode(record)) + b"\n", mode=PRIVATE)


def existing(name: str, runtime: Runtime) -> Record | None:
    """Return what is known of the cluster `name` that `runtime` runs, None when there is no cluster of that name.

    Raises `UserError` when the cluster is run by the other runtime.
    """
    record = find(name)
    if record is not None and record.runtime != runtime:
        raise UserError(f"name: cluster {name!r} runs as {record.runtime}; take it down or choose another name")
    return record


def find(name: str) -> Record | None:
    """Return what is known of cluster `name`, None when there is no such cluster.

    Raises `UserError` that says how to remove the cluster when its record is damaged.
    """
    file = cluster_dir(name) / _FILE
    try:
        return msgspec.json.decode(file.read_bytes(), type=Record)
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError as error:
        raise UserError(f"{file}: is damaged; remove the cluster with `aaml cluster down --name {name}`") from error


def load(name: str) -> Record:
    """Return what is known of cluster `name`; raise `UserError` with the known names when there is none."""
    record = find(name)
    if record is None:
        known = ", ".join(names()) or "none yet: start one with `aaml cluster up`"
        raise UserError(f"name: there is no cluster {name!r}; known: {known}")
    return record


def names() -> list[str]:
    """Return the names of the clusters that were started and not taken down."""
    return sorted(file.parent.name for file in (state_dir() / "clusters").glob(f"*/{_FILE}"))


def forget(name: str) -> None:
    """Remove everything that is kept of cluster `name`."""
    shutil.rmtree(cluster_dir(name), ignore_errors=False)
