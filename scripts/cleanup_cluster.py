#!/usr/bin/env python3
"""cleancluster: back to zero pods; nodes and Kubernetes' own namespaces stay."""

import sys

from aaml.cli import script
from aaml.commands.clean import Args, run

if __name__ == "__main__":
    sys.exit(script(__file__, Args, run, __doc__))
