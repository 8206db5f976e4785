"""Double dueling DQN with n-step returns over any encoder."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from aaml.learning.collate import collate
from aaml.learning.config import Dqn
from aaml.learning.losses import double_q_target, margin_loss, q_loss
from aaml.learning.networks import NetworkSpec, make_network
from aaml.learning.optim import descend, make_optimizer
from aaml.learning.replay import Experience, Replay, RewardScale
from aaml.scheduling.curves import ACTION_VALUE, VALUE_LOSS

if TYPE_CHECKING:
    from aaml.scheduling.observation import Observation


class DqnLearner:
    """The action values, their target network, and the update; knows nothing of exploration or of when to update."""

    def __init__(self, spec: NetworkSpec, config: Dqn, seed: int) -> None:
        self.config = config
        self.network = make_network(spec, seed)
        self.target = make_network(spec, seed)
        self.target.requires_grad_(False)
        self.optimizer = make_optimizer(config.optimizer, self.network.parameters(), config.learning_rate)
        self.scale = RewardScale()

    def update(self, replay: Replay, margin_weight: float = 0.0) -> dict[str, float]:
        """Learn from one batch of the buffer; returns the loss and the mean action value.

        `margin_weight` is that of the large-margin loss while the buffer holds nothing but a teacher's steps.
        """
        rows = len(replay.items[-1].observation.mask)
        size = max(8, min(self.config.batch_size, self.config.max_batch_rows // max(rows, 1)))
        items, places, weights = replay.sample(size)
        batch = collate([item.observation for item in items], self.network.needs_graphs)
        q = self.network(batch)
        action = torch.tensor([item.action for item in items])
        loss, error = q_loss(q, action, self._targets(items), torch.from_numpy(weights))
        if margin_weight > 0.0:
            loss = loss + margin_weight * margin_loss(q, batch.mask, action)
        value = descend(loss, self.network, self.optimizer, self.config.max_grad_norm)
        replay.reprioritize(places, error.numpy())
        return {VALUE_LOSS: value, ACTION_VALUE: float(q.detach().gather(1, action[:, None]).mean())}

    @torch.no_grad()
    def _targets(self, items: list[Experience]) -> Tensor:
        """Return [B], the double-DQN targets in units of the reward scale."""
        divisor = self.scale.divisor if self.config.scale_rewards else 1.0
        targets = torch.tensor([item.reward / divisor for item in items])
        following: list[Observation] = [item.next_observation for item in items if item.next_observation is not None]
        if following:
            goes_on = torch.tensor([item.next_observation is not None for item in items])
            discount = torch.tensor([item.discount for item in items])
            batch = collate(following, self.network.needs_graphs)
            targets[goes_on] = double_q_target(
                targets[goes_on], discount[goes_on], self.network(batch), self.target(batch), batch.mask
            )
        return targets

    def sync_target(self) -> None:
        """Copy the network to the target network."""
        self.target.load_state_dict(self.network.state_dict())
