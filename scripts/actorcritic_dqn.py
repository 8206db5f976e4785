#!/usr/bin/env python3
"""runacdqn: a scheduler that learns by actor-critic with MLPs and places the pods that ask for it."""

import sys

from aaml.cli import script
from aaml.commands.schedule import ActorCriticArgs, run_agent
from aaml.experiment.schedulers import ActorCriticDQN

__all__ = ["ActorCriticDQN"]

if __name__ == "__main__":
    sys.exit(script(__file__, ActorCriticArgs, run_agent, __doc__))
