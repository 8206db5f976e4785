#!/usr/bin/env python3
"""ktop: live table of nodes, pods, CPU, memory, what is pending and what was placed last."""

import sys

from aaml.cli import script
from aaml.commands.cluster.top import Args, run

__all__ = ["KubeInfo"]

if __name__ == "__main__":
    sys.exit(script(__file__, Args, run, __doc__))
else:  # a program that imports this file wants the class
    from aaml.live.table import KubeInfo
