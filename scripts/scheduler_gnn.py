#!/usr/bin/env python3
"""rungnn: a scheduler that learns by DQN with a graph network and places the pods that ask for it."""

import sys

from aaml.cli import script
from aaml.commands.schedule import LEARNED, run_agent

__all__ = ["CustomSchedulerGNN"]

if __name__ == "__main__":
    sys.exit(script(__file__, LEARNED["gnn"], run_agent, __doc__))
else:  # a program that imports this file wants the class
    from aaml.live.agents import CustomSchedulerGNN
