"""DQN as an agent: explores by a chance that falls, and learns from what it keeps."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from aaml.learning.agent import NeuralAgent
from aaml.learning.algorithms.dqn import QLearning
from aaml.learning.algorithms.imitation import Demonstration, imitate
from aaml.learning.buffers import LastRounds, NStep, Replay
from aaml.learning.config import Dqn
from aaml.learning.group_rollouts import RolloutRecorder
from aaml.learning.optim import anneal, step_size
from aaml.learning.policy import guide_of
from aaml.learning.storage import Experience
from aaml.scheduling.curves import CUMULATIVE_REWARD, EPSILON
from aaml.scheduling.observation import ObservationSpec
from aaml.scheduling.ports import Policy, Transition

USUAL_BUFFER = 20_000  # decisions kept where the settings say 0
_RECENT = 9.0  # it acts by the average of its weights over the last ninth of its rounds (Shamir and Zhang 2013)


class DqnAgent(NeuralAgent):
    """DQN: explores by a chance that falls, and learns from a replay buffer.

    `guide` is a policy whose choice exploration takes where the settings say `use_heuristic` (None: the feasible node
    with the least CPU and memory).
    """

    config: Dqn

    def __init__(
        self,
        config: Dqn,
        algorithm: QLearning,
        *,
        observation_spec: ObservationSpec,
        seed: int,
        guide: Policy | None,
    ) -> None:
        super().__init__(config, algorithm, observation_spec=observation_spec, seed=seed, guide=guide_of(config, guide))
        self.algorithm = algorithm
        self.replay = Replay(
            config.buffer_size or USUAL_BUFFER,
            prioritized=config.prioritized, graphs=algorithm.network.needs_graphs, divisor=lambda: self.divisor,
        )  # fmt: skip
        self._rounds = LastRounds(config.buffer_size, prioritized=config.prioritized)
        self._decay = config.decay()
        self._chains: dict[int, NStep] = {}
        self.epsilon = config.init_epsi

    def count(self, reward: float) -> None:
        """Count one step, after which there is less to explore."""
        super().count(reward)
        self.epsilon = self._chance()

    def _chance(self) -> float:
        """Return the chance to explore after so many decisions."""
        return max(self.config.min_epsi, self.config.init_epsi * self._decay**self.decisions)

    @property
    def memory(self) -> int:
        """What the replay buffer holds, and what waits for its n-step return."""
        return (self.config.buffer_size or USUAL_BUFFER) + self.config.n_step

    def gather(self, transition: Transition, stream: int = 0) -> None:
        """Keep a step in the replay buffer, once its n-step return is known."""
        if stream not in self._chains:
            self._chains[stream] = self.chain()
        for item in self._chains[stream].push(transition):
            self.replay.add(item)

    def chain(self) -> NStep:
        """Return what makes experience of the steps of one stream."""
        return NStep(self.config.n_step, self.config.gamma)

    def forget(self, old: Callable[[Experience], bool]) -> None:
        """Let go of the oldest items of the replay buffer for as long as they are `old`."""
        self.replay.forget(old)

    def learn(self) -> dict[str, float]:
        """Update every `update_frequency` decisions, once there is half a batch of experience."""
        config, due = self.config, self.decisions // self.config.update_frequency
        if not self.learning or due <= self.updates or 2 * len(self.replay) < config.batch_size:
            return {}
        widest = len(self.replay.items[-1].observation.mask)
        size = max(8, min(config.batch_size, config.max_batch_rows // max(widest, 1)))
        steps = max(1, config.n_epochs * config.update_frequency // size)
        scalars = self.algorithm.learn(self.replay, size, steps, self.generator)
        every = max(1, config.target_update_frequency // config.update_frequency)
        if due // every > self.updates // every:
            self.algorithm.sync_target()
        self.updates = due
        return {CUMULATIVE_REWARD: self.reward_sum, **scalars, EPSILON: self._chance()}

    @property
    def n_step(self) -> int:
        """Steps of the n-step return."""
        return self.config.n_step

    def learn_group(
        self, record: RolloutRecorder, gamma: float, left: float, generator: torch.Generator
    ) -> Mapping[str, float]:
        """Learn from the last rounds, as many decisions as this one has, `n_epochs` times."""
        played = record.transitions(gamma)
        self._rounds.add(played)
        anneal(self.algorithm.optimizer, self.config.learning_rate, left)
        size = step_size(played.seen, self.config)
        steps = max(1, self.config.n_epochs * len(played.action) // size)
        follow = _RECENT / (_RECENT + self.updates) / steps
        return self.algorithm.learn(self._rounds, size, steps, generator, follow=follow)

    def forget_groups(self) -> None:
        """Forget the rounds kept."""
        self._rounds.forget()

    def imitate(self, shown: Sequence[Demonstration], passes: int) -> float:
        """Rank the teacher's choices first, and learn what they were worth."""
        loss = imitate(self.algorithm.network, shown, passes, self.generator, batch_size=self.config.batch_size)
        self.algorithm.sync_target()
        return loss

    def cut(self) -> None:
        """Forget steps that wait for their n-step return."""
        self._chains.clear()

    def state(self, *, experience: bool = True) -> dict[str, Any]:
        """Return everything that learning goes on from, the replay buffer included."""
        return super().state() | ({"replay": self.replay.state()} if experience else {})

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned."""
        super().restore(state)
        if "replay" in state:
            self.replay.restore(state["replay"])

    def _take_fields(self, fields: Mapping[str, Any]) -> None:
        super()._take_fields(fields)
        self.epsilon = self._chance()
