"""Learning from somebody else's decisions: a teacher's before one's own, or an expert's all along."""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

from aaml.learning.agent import LearnedAgent, PolicyAgent, ValueAgent
from aaml.learning.storage import Experience, pack, unpack
from aaml.scheduling.curves import AGREED_AFTER, AGREED_BEFORE, VALUE_LOSS
from aaml.scheduling.ports import Transition

MARGIN_WEIGHT = 1.0
_SHOWN = 500  # decisions that an agreement is measured on


def imitate(agent: LearnedAgent, pieces: Sequence[Sequence[Transition]], passes: int = 4) -> float:
    """Learn from trajectories of any policy, each in order, `passes` times; returns the last loss.

    A DQN learns their returns and ranks the teacher's choice first by a margin (Hester et al. 2018); its buffer holds
    these steps alone then. An actor clones the choices (behaviour cloning), its critic learns their returns.
    """
    for step in chain.from_iterable(pieces):
        agent.scale.add(step.reward)
    if isinstance(agent, PolicyAgent):
        return agent.learner.imitate(pieces, passes, agent.rng)
    if not isinstance(agent, ValueAgent):
        raise TypeError(f"{type(agent).__name__} cannot imitate")
    agent.replay.clear()
    for piece in pieces:
        agent.keep(piece)
    count = sum(len(piece) for piece in pieces)
    loss = float("nan")
    for update in range(max(1, passes * count // agent.config.batch_size)):
        loss = agent.learner.update(agent.replay, MARGIN_WEIGHT)[VALUE_LOSS]
        if update % 50 == 0:
            agent.learner.sync_target()
    agent.learner.sync_target()
    return loss


def agreement(agent: LearnedAgent, steps: Sequence[Transition]) -> float:
    """Return the share of steps in which the agent's best choice is the one that was made."""
    return float(np.mean([agent.greedy(step.observation) == step.action for step in steps]))


class Apprentice:
    """An agent that learns what an expert chooses, not what its own choices lead to, behind an agent's methods.

    Anthony, Tian, Barber: Thinking Fast and Slow with Deep Learning and Tree Search (2017). The expert searches ahead
    from the apprentice's policy (`aaml.sim.search`); `flush` distils all that it has chosen so far into the network.
    """

    def __init__(self, agent: LearnedAgent, passes: int) -> None:
        self.agent = agent
        self._passes = passes
        self._pieces: list[list[Transition]] = []
        self._open: dict[int, list[Transition]] = {}
        self._new: list[Transition] = []

    def observe(self, transition: Transition, stream: int = 0) -> None:
        """Keep one step of the expert."""
        self._new.append(transition)
        if stream not in self._open:
            self._open[stream] = []
            self._pieces.append(self._open[stream])
        self._open[stream].append(transition)
        if transition.terminated or transition.truncated:
            del self._open[stream]

    def learn(self) -> Mapping[str, float]:
        """Return nothing: `flush` learns."""
        return {}

    def flush(self) -> Mapping[str, float]:
        """Learn all of the expert's choices; returns the loss and how many of the latest were the agent's already."""
        if not self._new:
            return {}
        before = agreement(self.agent, self._new[-_SHOWN:])
        loss = imitate(self.agent, self._pieces, self._passes)
        after = agreement(self.agent, self._new[-_SHOWN:])
        self._new = []
        return {VALUE_LOSS: loss, AGREED_BEFORE: before, AGREED_AFTER: after}

    def cut(self) -> None:
        """End every trajectory here."""
        self._open.clear()
        self.agent.cut()

    def state(self) -> dict[str, Any]:
        """Return what learning goes on from, as `LearnedAgent.state` does; call `flush` and `cut` first."""
        steps = [_packed(step) for step in chain.from_iterable(self._pieces)]
        return {**self.agent.state(), "expert": pack(steps), "lengths": [len(piece) for piece in self._pieces]}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned."""
        self.agent.restore(state)
        steps = iter(unpack(state["expert"]))
        self._pieces = [[_transition(next(steps)) for _ in range(length)] for length in state["lengths"]]


def _packed(step: Transition) -> Experience:
    return Experience(step.observation, step.action, step.reward, float(not step.terminated), step.next_observation)


def _transition(item: Experience) -> Transition:
    terminated = item.discount == 0.0
    truncated = item.next_observation is None and not terminated
    return Transition(item.observation, item.action, item.reward, item.next_observation, terminated, truncated)
