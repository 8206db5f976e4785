"""Warm start: an agent learns from a teacher's decisions before it makes its own."""

from collections.abc import Sequence
from itertools import chain

import numpy as np

from aaml.learning.agent import LearnedAgent, PolicyAgent, ValueAgent
from aaml.scheduling.ports import Transition

MARGIN_WEIGHT = 1.0


def imitate(agent: LearnedAgent, pieces: Sequence[Sequence[Transition]], passes: int = 4) -> float:
    """Learn from trajectories of any policy, each in order, `passes` times; returns the last loss.

    A DQN learns their returns and ranks the teacher's choice first by a margin (Hester et al. 2018), the steps stay in
    its buffer; an actor clones the choices (behaviour cloning), its critic learns their returns.
    """
    for step in chain.from_iterable(pieces):
        agent.scale.add(step.reward)
    if isinstance(agent, PolicyAgent):
        return agent.learner.imitate(pieces, passes, agent.rng)
    if not isinstance(agent, ValueAgent):
        raise TypeError(f"{type(agent).__name__} cannot imitate")
    for piece in pieces:
        agent.keep(piece)
    count = sum(len(piece) for piece in pieces)
    loss = float("nan")
    for update in range(max(1, passes * count // agent.config.batch_size)):
        loss = agent.learner.update(agent.replay, MARGIN_WEIGHT)["2. Loss/Train"]
        if update % 50 == 0:
            agent.learner.sync_target()
    agent.learner.sync_target()
    return loss


def agreement(agent: LearnedAgent, steps: Sequence[Transition]) -> float:
    """Return the share of steps in which the agent's best choice is the one that was made."""
    return float(np.mean([agent.greedy(step.observation) == step.action for step in steps]))
