"""Live table of a Kubernetes cluster: nodes, pods, CPU, memory, what is pending, what was placed last, pods a second.

A line a node while they fit the terminal; racks, or quantiles and the extremes, when there are more.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from aaml.commands.signals import ends_by


@dataclass(frozen=True)
class Args:
    """Settings of the table."""

    once: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """print one table and end"""
    every: float = 1.0
    """seconds between two looks"""
    kubeconfig: Path | None = None
    """of the Kubernetes cluster; without it $KUBECONFIG and ~/.kube/config"""


def run(args: Args) -> int:
    """Show the table until Ctrl-C, or once."""
    from aaml.experiment.observers import KubeInfo

    info = KubeInfo(kubeconfig=args.kubeconfig)
    if args.once:
        print(info)
        return 0
    with ends_by(info.stop):
        info.show(args.every)
    return 0  # Ctrl-C is the way out of it
