#!/usr/bin/env python3
"""runacgnn: a scheduler that learns by actor-critic with graph networks and places the pods that ask for it."""

import sys

from aaml.cli import script
from aaml.commands.schedule import LEARNED, run_agent

__all__ = ["ActorCriticGNN"]

if __name__ == "__main__":
    sys.exit(script(__file__, LEARNED["acgnn"], run_agent, __doc__))
else:  # a program that imports this file wants the class
    from aaml.live.agents import ActorCriticGNN
