#!/usr/bin/env python3
"""runacdqn: a scheduler that learns by actor-critic with MLPs and places the pods that ask for it."""

import sys

from aaml.cli import script
from aaml.commands.schedule import LEARNED, run_agent

__all__ = ["ActorCriticDQN"]

if __name__ == "__main__":
    sys.exit(script(__file__, LEARNED["acdqn"], run_agent, __doc__))
else:  # a program that imports this file wants the class
    from aaml.live.agents import ActorCriticDQN
