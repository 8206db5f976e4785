#!/usr/bin/env python3
"""Creates KWOK nodes: a tainted control plane, kwok-ctl-node-0, and the workers kwok-std-node-0, -1, ..."""

import sys

from aaml.cli import script
from aaml.commands.cluster.nodes import Args, run

if __name__ == "__main__":
    sys.exit(script(__file__, Args, run, __doc__))
