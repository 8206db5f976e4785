"""Double dueling DQN with n-step returns: the update of action values from a batch of a buffer.

Where the policy that sampled is known, the advantages are taken around their mean under it (`dueling_under`).
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from aaml.learning.buffers import Buffer, Transitions
from aaml.learning.config import Dqn
from aaml.learning.losses import double_q_target, dueling_under, log_policy, mean_of_choices, q_loss
from aaml.learning.networks import Network, NetworkSpec, make_network
from aaml.learning.optim import Descent, descend, make_optimizer
from aaml.scheduling.curves import ACTION_VALUE, GRAD_NORM, VALUE_LOSS

_SHARPNESS = 6.0  # of the policy that action values are sampled by: logits, in standard deviations of the values


class QLearning:
    """The network that learns, the target that it is bootstrapped from, and the optimiser.

    With `averaged` a running average of the weights acts and is the target (Polyak and Juditsky 1992): what a choice is
    worth drowns in what else happens. Else the network acts itself, and is copied to the target now and then.
    """

    def __init__(self, config: Dqn, spec: NetworkSpec, seed: int, *, averaged: bool = False) -> None:
        self.config = config
        self.network = make_network(spec, seed)
        self.target = make_network(spec, seed).requires_grad_(requires_grad=False)
        self.average = self.target if averaged else None
        self.optimizer = make_optimizer(config.optimizer, self.network, config.learning_rate)

    @property
    def acting(self) -> Network:
        """The network that ranks nodes."""
        return self.network if self.average is None else self.average

    @property
    def parts(self) -> Mapping[str, tuple[Network, Mapping[str, Any]]]:
        """What a model's file holds: name before the stem -> (the network that acts, further parts)."""
        name = "GNN_Model" if self.config.encoder == "gnn" else "DQN_Model"
        further = {"target": self.target} if self.average is None else {"online": self.network}
        return {name: (self.acting, {**further, "optimizer": self.optimizer})}

    def learn(
        self, buffer: Buffer, size: int, steps: int, generator: torch.Generator, *, follow: float = 0.0
    ) -> dict[str, float]:
        """Make `steps` updates from batches of `size`; an average moves by `follow` towards the weights of each."""
        taken, value = Descent(0.0, 0.0), 0.0
        for _ in range(steps):
            batch = buffer.sample(size, generator)
            taken, value, error = self.update(batch)
            buffer.reprioritize(error)
            if self.average is not None:
                for average, latest in zip(self.average.parameters(), self.network.parameters(), strict=True):
                    average.lerp_(latest.detach(), follow)
        return {VALUE_LOSS: taken.loss, ACTION_VALUE: value, GRAD_NORM: taken.grad_norm}

    def update(self, batch: Transitions) -> tuple[Descent, float, Tensor]:
        """Take one step of the optimiser; returns (the step, mean action value, temporal-difference errors [B])."""
        q = self.network(batch.seen)
        if batch.log_prob is not None:
            q = dueling_under(q, batch.log_prob, batch.seen.mask)
        loss, error = q_loss(q, batch.action, self._targets(batch), batch.weight)
        taken = descend(loss, self.network, self.optimizer, self.config.max_grad_norm)
        return taken, float(q.detach().gather(1, batch.action[:, None]).mean()), error

    @torch.no_grad()
    def _targets(self, batch: Transitions) -> Tensor:
        """Return [B], the double-DQN targets."""
        if batch.following is None:
            return batch.reward
        following, goes_on, targets = batch.following, batch.goes_on, batch.reward.clone()
        q = self.target(following)
        if batch.log_prob is not None:
            q = dueling_under(q, log_policy(sampling_logits(q, following.mask), following.mask), following.mask)
        online = self.network(following)
        targets[goes_on] = double_q_target(targets[goes_on], batch.discount[goes_on], online, q, following.mask)
        return targets

    def sync_target(self) -> None:
        """Copy the network to the target network."""
        self.target.load_state_dict(self.network.state_dict())


def sampling_logits(q: Tensor, mask: Tensor) -> Tensor:
    """Return [B, N], the logits that actions are sampled by: action values in units of their spread in each state."""
    spread = mean_of_choices((q - mean_of_choices(q, mask)) ** 2, mask).sqrt()
    return _SHARPNESS * q / (spread + 1e-6)
