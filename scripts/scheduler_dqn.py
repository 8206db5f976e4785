#!/usr/bin/env python3
"""rundqn: a scheduler that learns by DQN with an MLP and places the pods that ask for it."""

import sys

from aaml.cli import script
from aaml.commands.schedule import DqnArgs, run_agent
from aaml.experiment.schedulers import CustomSchedulerDQN

__all__ = ["CustomSchedulerDQN"]

if __name__ == "__main__":
    sys.exit(script(__file__, DqnArgs, run_agent, __doc__))
