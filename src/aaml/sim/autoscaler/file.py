"""Files that say who buys the nodes of a bill: a NodePool of Karpenter."""

from pathlib import Path

from aaml.sim.autoscaler.nodepool import read_nodepool
from aaml.sim.autoscaler.settings import KarpenterSettings


def read_autoscaler(path: Path) -> KarpenterSettings:
    """Return who buys nodes as a file says. Raises `UserError` for a file that is missing or says something else."""
    return read_nodepool(path)
