#!/usr/bin/env python3
"""Records what a scheduler does, kube-scheduler by default, into data/sched_*.csv, to fill replay buffers from."""

import sys

from aaml.cli import script
from aaml.commands.record import Args, run

__all__ = ["SchedulerRecord"]

if __name__ == "__main__":
    sys.exit(script(__file__, Args, run, __doc__))
else:  # a program that imports this file wants the class
    from aaml.live.record import SchedulerRecord
