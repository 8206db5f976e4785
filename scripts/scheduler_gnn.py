#!/usr/bin/env python3
"""rungnn: a scheduler that learns by DQN with a graph network and places the pods that ask for it."""

import sys

from aaml.cli import script
from aaml.commands.schedule import GnnArgs, run_agent
from aaml.experiment.schedulers import CustomSchedulerGNN

__all__ = ["CustomSchedulerGNN"]

if __name__ == "__main__":
    sys.exit(script(__file__, GnnArgs, run_agent, __doc__))
