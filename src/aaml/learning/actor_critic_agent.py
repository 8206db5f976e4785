"""Actor-critic as an agent: learns from whole episodes of its own."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch

from aaml.learning.advantages import generalized
from aaml.learning.agent import NeuralAgent
from aaml.learning.algorithms.imitation import Demonstration, imitate
from aaml.learning.algorithms.ppo import Ppo, Rollout
from aaml.learning.buffers import Observations
from aaml.learning.config import ActorCritic
from aaml.learning.group_rollouts import RolloutRecorder
from aaml.learning.optim import anneal
from aaml.learning.policy import SCORED, SCORED_FROM
from aaml.learning.storage import Experience
from aaml.scheduling.curves import ADVANTAGE, CUMULATIVE_REWARD
from aaml.scheduling.node_sampling import next_feasible
from aaml.scheduling.observation import ObservationSpec
from aaml.scheduling.ports import Transition

MIN_UPDATE_STEPS = 8


class ActorCriticAgent(NeuralAgent):
    """Actor-critic: samples from the actor, an update per episode (or per `update_steps` of them)."""

    config: ActorCritic

    def __init__(self, config: ActorCritic, algorithm: Ppo, *, observation_spec: ObservationSpec, seed: int) -> None:
        super().__init__(config, algorithm, observation_spec=observation_spec, seed=seed, guide=None)
        self.algorithm = algorithm
        self._open: dict[int, list[Transition]] = {}
        self._ready: list[list[Transition]] = []

    @property
    def memory(self) -> int:
        """The steps since the last update, and those before it of an episode that goes on."""
        return sum(map(len, self._ready)) + sum(map(len, self._open.values()))

    def forget(self, old: Callable[[Experience], bool]) -> None:
        """Do nothing: an actor keeps no steps but those of its `memory`."""

    def gather(self, transition: Transition, stream: int = 0) -> None:
        """Keep a step until its episode has ended, as a choice among the nodes that were scored."""
        piece = self._open.setdefault(stream, [])
        chosen = _among_scored(transition)
        if piece and piece[-1].next_observation is transition.observation:
            piece[-1] = dataclasses.replace(piece[-1], next_observation=chosen.observation)
        piece.append(chosen)
        ends = transition.terminated or transition.truncated or transition.next_observation is None
        if ends or len(piece) >= self.config.segment:
            self._ready.append(piece)
            self._open[stream] = []

    def learn(self) -> dict[str, float]:
        """Update once whole episodes of at least `update_steps` decisions are there."""
        return self._update(self.config.update_steps)

    def flush(self) -> dict[str, float]:
        """Learn from all decisions gathered, episodes under way included, when there are enough for an advantage."""
        self._ready += [piece for piece in self._open.values() if piece]
        scalars = self._update(MIN_UPDATE_STEPS)
        self.cut()
        return scalars

    def _update(self, least: int) -> dict[str, float]:
        steps = [step for piece in self._ready for step in piece]
        if not self.learning or len(steps) < least:
            return {}
        advantage, returns, value = generalized(self._ready, self.algorithm, self.divisor)
        seen = Observations([step.observation for step in steps], self.algorithm.actor.needs_graphs)
        action = torch.tensor([step.action for step in steps])
        rollout = Rollout(seen, action, self.algorithm.log_prob(seen, action), advantage, returns, value)
        scalars = self.algorithm.update(rollout, self.generator)
        self._ready = []
        self.updates += 1
        return {CUMULATIVE_REWARD: self.reward_sum, ADVANTAGE: float(advantage.mean()), **scalars}

    def learn_group(
        self, record: RolloutRecorder, gamma: float, left: float, generator: torch.Generator
    ) -> Mapping[str, float]:
        """Update by a round. The critic has no part in it: it is what a live cluster, without groups, goes on with."""
        ppo, config = self.algorithm, self.config
        anneal(ppo.actor_optimizer, config.learning_rate, left)
        anneal(ppo.critic_optimizer, config.critic_learning_rate or config.learning_rate, left)
        return ppo.update(record.rollout(gamma), generator, critic_epochs=1)

    def forget_groups(self) -> None:
        """Do nothing: no round is kept."""

    def imitate(self, shown: Sequence[Demonstration], passes: int) -> float:
        """Clone the choices; the critic learns their returns."""
        algorithm, size = self.algorithm, self.config.batch_size
        return imitate(algorithm.actor, shown, passes, self.generator, algorithm.critic, batch_size=size)

    def cut(self) -> None:
        """Forget episodes under way and those not learned from yet."""
        self._open.clear()
        self._ready = []


def _among_scored(step: Transition) -> Transition:
    """Return a step as a choice among the nodes that were scored, whose chances alone led to it."""
    if SCORED not in step.info:
        return step
    seen = step.observation
    considered = next_feasible(seen.mask, int(step.info[SCORED_FROM]), int(step.info[SCORED]))
    return dataclasses.replace(
        step, observation=seen.of(considered), action=int(np.flatnonzero(considered == step.action)[0])
    )
