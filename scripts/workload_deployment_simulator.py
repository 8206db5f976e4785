#!/usr/bin/env python3
"""runsim: puts a workload on a cluster, deployment by deployment, until a load is reached; or plays one back."""

import sys

from aaml.cli import script
from aaml.commands.cluster.simulate import Args, run

__all__ = ["WorkloadDeploymentSimulator"]

if __name__ == "__main__":
    sys.exit(script(__file__, Args, run, __doc__))
else:  # a program that imports this file wants the class
    from aaml.live.workload import WorkloadDeploymentSimulator
