"""Stop a cluster of `aaml cluster up` and remove its files: everything on it is gone."""

from dataclasses import dataclass

from aaml.commands.cluster import OfCluster
from aaml.commands.cluster.list import nodes_of
from aaml.commands.kinds import Flag
from aaml.errors import UserError
from aaml.kube.provision import cluster_of, records


@dataclass(frozen=True)
class Args(OfCluster):
    """`aaml cluster down`."""

    dry_run: Flag = False
    """say what would go, and stop nothing"""


def run(args: Args) -> int:
    """Stop it, or say what would go."""
    runtime: records.Runtime = "binary"
    what = f"cluster {args.name}"
    try:
        record = records.load(args.name)
        runtime, what = record.runtime, f"cluster {args.name} at {record.server}, {nodes_of(record)} nodes"
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
