#!/usr/bin/env python3
"""cleancluster: back to zero pods, whoever made them; only where nothing is real, see `aaml cluster clean`."""

import sys

from aaml.cli import script
from aaml.commands.cluster.clean import Args, run

if __name__ == "__main__":
    sys.exit(script(__file__, Args(all=True, yes=True), run, __doc__))
