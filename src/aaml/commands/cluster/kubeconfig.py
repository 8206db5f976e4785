"""Print the kubeconfig of a cluster, or only where it is."""

from dataclasses import dataclass

from aaml.commands.cluster import OfCluster
from aaml.kube.provision import records


@dataclass(frozen=True)
class Args(OfCluster):
    """`aaml cluster kubeconfig`."""

    path: bool = False
    """print the path of the file"""


def run(args: Args) -> int:
    """Print it, or where it is."""
    records.load(args.name)
    path = records.kubeconfig_path(args.name)
    print(path if args.path else path.read_text(encoding="utf-8"), end="\n" if args.path else "")
    return 0
