"""What this machine remembers of its clusters: one private folder for each, found again by the cluster's name."""

import json
import re
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

from aaml.errors import UserError, bad_value
from aaml.kube.provision.nodes import NodeShape
from aaml.kube.provision.paths import private_dir, state_dir, write_private

Runtime = Literal["binary", "docker"]
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")
_FILE = "aaml.json"


@dataclass(frozen=True)
class ClusterOptions:
    """What a new cluster is like. `port` 0 takes a free one; `wait_s` bounds each step of the start, in seconds."""

    nodes: int = 10
    shape: NodeShape = field(default_factory=NodeShape)
    scheduler: bool = True
    scheduler_config: Path | None = None
    port: int = 0
    wait_s: float = 180.0


@dataclass(frozen=True)
class Record:
    """The facts of a cluster that outlive the command that made it."""

    name: str
    runtime: Runtime
    kubernetes: str
    server: str
    nodes: int
    scheduler: bool


def cluster_dir(name: str) -> Path:
    """Return the folder of cluster `name`, there or not; raise `UserError` for a name that makes no folder."""
    if not _NAME.fullmatch(name):
        raise bad_value("name", name, "1 to 40 lower-case letters, digits and inner hyphens")
    return state_dir() / "clusters" / name


def kubeconfig_path(name: str) -> Path:
    """Return where the kubeconfig of cluster `name` is."""
    return cluster_dir(name) / "aaml.kubeconfig"


def save(record: Record) -> None:
    """Remember a cluster."""
    folder = private_dir(cluster_dir(record.name))
    write_private(folder / _FILE, json.dumps(asdict(record), indent=2) + "\n")


def load(name: str) -> Record:
    """Return what is known of cluster `name`; raise `UserError` with the known names when there is none."""
    file = cluster_dir(name) / _FILE
    try:
        return Record(**json.loads(file.read_text(encoding="utf-8")))
    except FileNotFoundError:
        known = ", ".join(names()) or "none yet: start one with `aaml cluster up`"
        raise UserError(f"name: there is no cluster {name!r}; known: {known}") from None
    except (ValueError, TypeError) as error:
        raise UserError(f"{file}: is damaged; remove the cluster with `aaml cluster down --name {name}`") from error


def names() -> list[str]:
    """Return the names of the clusters that were started and not taken down."""
    return sorted(file.parent.name for file in (state_dir() / "clusters").glob(f"*/{_FILE}"))


def forget(name: str) -> None:
    """Remove everything that is kept of cluster `name`."""
    shutil.rmtree(cluster_dir(name), ignore_errors=False)
