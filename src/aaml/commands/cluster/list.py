"""List the clusters of this machine and what is down of each; end those whose owner is gone."""

import sys
from dataclasses import dataclass

from aaml.errors import UserError
from aaml.kube.provision import cluster_of, count_nodes, end_orphans, records
from aaml.settings import Settings


@dataclass(frozen=True)
class Args(Settings):
    """`aaml cluster list`."""


def run(_: Args) -> int:
    """Print a line a cluster."""
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
            f"{name:<20} {record.runtime:<7} Kubernetes {record.kubernetes}  {nodes_of(record):>5} nodes  "
            f"{record.server}  {_state(record)}"
        )
    return 0


def nodes_of(record: records.Record) -> int:
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
