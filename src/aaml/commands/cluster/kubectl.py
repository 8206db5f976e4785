"""Run the kubectl that belongs to a cluster: `aaml cluster kubectl -- get nodes`."""

import os
import subprocess
from dataclasses import dataclass

import tyro

from aaml.commands.cluster import OfCluster
from aaml.kube.provision import ensure_programs, records
from aaml.kube.provision.binaries import minor, programs_dir


@dataclass(frozen=True)
class Args(OfCluster):
    """`aaml cluster kubectl`."""

    arguments: tyro.conf.Positional[tuple[str, ...]] = ()
    """what to hand to kubectl"""


def run(args: Args) -> int:
    """Run it, and return its exit status."""
    kubernetes = minor(records.load(args.name).kubernetes)
    environment = os.environ | {"KUBECONFIG": str(records.kubeconfig_path(args.name))}
    command = [str(programs_dir(kubernetes) / "kubectl"), *args.arguments]
    ensure_programs(kubernetes)
    return subprocess.run(command, env=environment, check=False).returncode  # noqa: S603  (the user's own arguments)
