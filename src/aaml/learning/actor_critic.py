"""Actor-critic with generalised advantages: A2C at one pass over an episode, PPO with clipping at several."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from aaml.learning.collate import Batch, collate
from aaml.learning.config import ActorCritic
from aaml.learning.losses import (
    clipped_policy_loss,
    clipped_value_loss,
    entropy,
    generalized_advantage,
    imitation_loss,
    log_policy,
    normalize,
    select,
    value_loss,
)
from aaml.learning.networks import NetworkSpec, make_network
from aaml.learning.optim import descend, make_optimizer
from aaml.learning.replay import RewardScale
from aaml.scheduling.curves import ACTOR_LOSS, ADVANTAGE, CRITIC_LOSS, ENTROPY
from aaml.scheduling.observation import Observation
from aaml.scheduling.ports import Transition

IMITATION_RATE = 3e-3


class ActorCriticLearner:
    """An actor, a critic, and the update from pieces of trajectories."""

    def __init__(self, actor: NetworkSpec, critic: NetworkSpec, config: ActorCritic, seed: int) -> None:
        self.config = config
        self.actor = make_network(actor, seed)
        self.critic = make_network(critic, seed + 1)
        self.actor_optimizer = make_optimizer(config.optimizer, self.actor.parameters(), config.learning_rate)
        critic_rate = config.critic_learning_rate or config.learning_rate
        self.critic_optimizer = make_optimizer(config.optimizer, self.critic.parameters(), critic_rate)
        self.scale = RewardScale()

    def update(self, pieces: Sequence[Sequence[Transition]], rng: np.random.Generator) -> dict[str, float]:
        """Learn from pieces of trajectories, each in order; returns mean advantage, losses and entropy."""
        steps = [step for piece in pieces for step in piece]
        advantage, returns = self._advantages(pieces)
        observations = [step.observation for step in steps]
        action = torch.tensor([step.action for step in steps])
        batches = self._minibatches(observations)
        old = torch.cat([self._log_prob(batch, action[rows]).detach() for rows, batch in batches])
        old = old[torch.argsort(torch.cat([rows for rows, _ in batches]))]
        weight = normalize(advantage)
        results: list[tuple[float, float, float]] = []
        for epoch in range(self.config.n_epochs):
            if epoch > 0 and len(steps) > self.config.batch_size:
                batches = self._minibatches(observations, rng.permutation(len(steps)))
            results += [
                self._step(batch, action[rows], old[rows], weight[rows], returns[rows], (returns - advantage)[rows])
                for rows, batch in batches
            ]
        actor_loss, critic_loss, openness = np.mean(results, axis=0)
        return {
            ADVANTAGE: float(advantage.mean()),
            ACTOR_LOSS: float(actor_loss),
            CRITIC_LOSS: float(critic_loss),
            ENTROPY: float(openness),
        }

    def imitate(self, pieces: Sequence[Sequence[Transition]], passes: int, rng: np.random.Generator) -> float:
        """Clone the choices in a teacher's trajectories and fit the critic to their returns; returns the last loss."""
        steps = [step for piece in pieces for step in piece]
        observations = [step.observation for step in steps]
        action = torch.tensor([step.action for step in steps])
        # Telling the best node from the second best takes steep logits, which small steps would be long in reaching;
        # the optimisers' own averages are not to be filled with the teacher's gradients either.
        actor = make_optimizer("Adam", self.actor.parameters(), IMITATION_RATE)
        critic = make_optimizer("Adam", self.critic.parameters(), IMITATION_RATE)
        loss = float("nan")
        for _ in range(passes):
            _, returns = self._advantages(pieces)
            results = []
            for rows, batch in self._minibatches(observations, rng.permutation(len(steps))):
                clone = imitation_loss(self.actor(batch), batch.mask, action[rows])
                results.append(descend(clone, self.actor, actor, self.config.max_grad_norm))
                fit = value_loss(self.critic(batch), returns[rows])
                descend(fit, self.critic, critic, self.config.max_grad_norm)
            loss = float(np.mean(results))
        return loss

    def _step(
        self, batch: Batch, action: Tensor, old: Tensor, advantage: Tensor, returns: Tensor, old_value: Tensor
    ) -> tuple[float, float, float]:
        config = self.config
        logits = self.actor(batch)
        log_prob = select(log_policy(logits, batch.mask), action)
        openness = entropy(logits, batch.mask).mean()
        loss = clipped_policy_loss(log_prob, old, advantage, config.clip_range)
        descend(loss - config.ent_coef * openness, self.actor, self.actor_optimizer, config.max_grad_norm)
        value = self.critic(batch)
        clipped = config.clip_range_vf
        fit = clipped_value_loss(value, old_value, returns, clipped) if clipped else value_loss(value, returns)
        critic = descend(fit, self.critic, self.critic_optimizer, config.max_grad_norm)
        return float(loss.detach()), critic, float(openness.detach())

    def _minibatches(
        self, observations: Sequence[Observation], order: Sequence[int] | np.ndarray | None = None
    ) -> list[tuple[Tensor, Batch]]:
        """Split into (places, batch) of at most `batch_size` steps and `max_batch_rows` nodes."""
        places = np.arange(len(observations)) if order is None else np.asarray(order)
        rows = max(len(observation.mask) for observation in observations)
        size = max(1, min(self.config.batch_size, self.config.max_batch_rows // rows))
        graphs = self.actor.needs_graphs or self.critic.needs_graphs
        parts = np.array_split(places, -(-len(places) // size))
        return [(torch.from_numpy(part), collate([observations[i] for i in part], graphs)) for part in parts]

    @torch.no_grad()
    def _log_prob(self, batch: Batch, action: Tensor) -> Tensor:
        return select(log_policy(self.actor(batch), batch.mask), action)

    @torch.no_grad()
    def _advantages(self, pieces: Sequence[Sequence[Transition]]) -> tuple[Tensor, Tensor]:
        """Return (advantage [T], return [T]) over all pieces, in units of the reward scale."""
        divisor = self.scale.divisor if self.config.scale_rewards else 1.0
        seen: dict[int, Observation] = {}  # consecutive steps share observations: each is evaluated once
        for piece in pieces:
            for step in piece:
                seen[id(step.observation)] = step.observation
                if step.next_observation is not None:
                    seen[id(step.next_observation)] = step.next_observation
        values: dict[int, float] = {}
        keys, observations = list(seen), list(seen.values())
        for places, batch in self._minibatches(observations):
            values.update(zip([keys[i] for i in places], self.critic(batch).tolist(), strict=True))
        parts = []
        for piece in pieces:
            value = torch.tensor([values[id(step.observation)] for step in piece])
            # A step whose continuation nobody has seen is taken to go on as it was.
            following = [step.observation if step.next_observation is None else step.next_observation for step in piece]
            parts.append(
                generalized_advantage(
                    torch.tensor([step.reward / divisor for step in piece]),
                    value,
                    torch.tensor([values[id(observation)] for observation in following]),
                    torch.tensor([step.terminated for step in piece]),
                    torch.tensor([step.terminated or step.truncated for step in piece]),
                    self.config.gamma,
                    self.config.gae_lambda,
                )
            )
        return torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])
