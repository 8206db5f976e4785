"""Run Karpenter in the foreground on any cluster of KWOK nodes, as the compose stack does, until it is stopped."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from aaml.errors import UserError
from aaml.settings import Port, Settings

if TYPE_CHECKING:
    from aaml.karpenter.pool import Pool
    from aaml.nodes.catalogue import Catalogue
    from aaml.nodes.requirements import Labels


@dataclass(frozen=True)
class Args(Settings):
    """`aaml cluster autoscaler`."""

    kubeconfig: Path | None = None
    """kubeconfig of the cluster. Default: $KUBECONFIG, ~/.kube/config or the service account"""
    instance_types: Path | None = None
    """what Karpenter can provision: a file as its KWOK provider reads it; by default the made-up types that ship"""
    nodepool: Path | None = None
    """a YAML file with a NodePool, for instance of `aaml search bill`; Karpenter's defaults without it"""
    health_port: Port = 0
    """port of /healthz and /readyz on 127.0.0.1; 0 takes a free one"""


def run(args: Args) -> int:
    """Say which cluster it is, and become Karpenter."""
    from aaml.karpenter.process import become
    from aaml.kube.place import Place
    from aaml.kube.transport import Transport

    pool, types = pool_and_types(args.nodepool, args.instance_types)
    api = Transport(args.kubeconfig)
    place = Place.look(api, args.kubeconfig)
    if not place.ours:
        raise UserError(f"kubeconfig: {place}; expected a cluster of KWOK nodes alone")
    print(place, flush=True)
    become(api, pool, types, kubeconfig=args.kubeconfig, health_port=args.health_port)


def pool_and_types(nodepool: Path | None, instance_types: Path | None) -> "tuple[Pool, Catalogue]":
    """Return the NodePool of a file, and what a file offers; by default Karpenter's, and what ships.

    All ways to buy a type stay, also those that the NodePool does not allow: other NodePools and `aaml autoscale` may
    ask for them, and Karpenter's KWOK provider crashes at a claim for one that it does not have. Raises `UserError`
    where the NodePool allows none.
    """
    from aaml.cluster.objects import ARCH_LABEL, OS_LABEL
    from aaml.karpenter.pool import Pool
    from aaml.nodes.catalogue_file import read_catalogue, shipped_catalogue

    pool = Pool.read(nodepool) if nodepool else Pool()

    def offered(labels: "Labels") -> "Catalogue":
        return read_catalogue(instance_types, labels) if instance_types else shipped_catalogue(labels)

    labels = pool.settings.labels
    offered(labels)
    return pool, offered({key: labels[key] for key in (ARCH_LABEL, OS_LABEL) if key in labels})
