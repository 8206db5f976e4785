#!/usr/bin/env python3
"""rundqn: a scheduler that learns by DQN with an MLP and places the pods that ask for it."""

import sys

from aaml.cli import script
from aaml.commands.schedule import LEARNED, run_agent

__all__ = ["CustomSchedulerDQN"]

if __name__ == "__main__":
    sys.exit(script(__file__, LEARNED["dqn"], run_agent, __doc__))
else:  # a program that imports this file wants the class
    from aaml.live.agents import CustomSchedulerDQN
