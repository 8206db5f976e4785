"""Live table of a Kubernetes cluster: nodes as bars, what is pending, placements a second, the latest with scores.

At a terminal: n c m g p d sort by name, CPU, memory, GPU, pods, dollars; / filters; Enter shows a node's pods; q quits.
In a pipe it is plain text: a line a node while they fit, racks, or quantiles and the extremes, when there are more;
below, the latest decisions and the curves of a scheduler's log. Dollars are shown where prices of nodes are known.
"""

from dataclasses import dataclass
from pathlib import Path

from aaml.commands.kinds import Flag
from aaml.commands.signals import ends_by
from aaml.settings import Positive, Settings


@dataclass(frozen=True)
class Args(Settings):
    """Settings of the table."""

    once: Flag = False
    """print one table and end"""
    json: Flag = False
    """print every node and decision as a line of JSON a look"""
    log: Path | None = None
    """log of a scheduler whose decisions and curves are shown; without it the newest of this cluster
    in logs/, of the last hour"""
    instance_types: Path | None = None
    """file with prices of nodes, as `aaml bill` takes it; without it nodes' labels and made-up types count"""
    every: Positive = 1.0
    """seconds between two looks"""
    kubeconfig: Path | None = None
    """of the Kubernetes cluster; without it $KUBECONFIG and ~/.kube/config"""


def run(args: Args) -> int:
    """Show the table until Ctrl-C, or once."""
    import json

    from aaml.errors import bad_value
    from aaml.live.table import KubeInfo
    from aaml.nodes.prices import PriceList

    if args.log is not None and not args.log.is_file():
        raise bad_value("log", str(args.log), "the log of a scheduler, such as logs/NAME.jsonl")
    info = KubeInfo(kubeconfig=args.kubeconfig, log=args.log, prices=PriceList.read(args.instance_types))
    if args.once:
        print(json.dumps(info.snapshot().to_dict()) if args.json else info)
        return 0
    with ends_by(info.stop):
        info.show(args.every, as_json=args.json)
    return 0  # Ctrl-C is the way out of it
