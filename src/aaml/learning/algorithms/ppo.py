"""PPO: an actor and a critic, and their update from a batch of decisions with advantages; A2C at one epoch.

Schulman et al.: Proximal Policy Optimization Algorithms (2017). Where the advantages come from is not known here: see
`aaml.learning.advantages`.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from aaml.learning.buffers import Seen
from aaml.learning.config import ActorCritic
from aaml.learning.losses import (
    approx_kl,
    clip_fraction,
    clipped_policy_loss,
    clipped_value_loss,
    entropy,
    explained_variance,
    log_policy,
    normalize,
    select,
    value_loss,
)
from aaml.learning.networks import Network, NetworkSpec, make_network
from aaml.learning.optim import descend, make_optimizer, minibatches
from aaml.scheduling.curves import (
    ACTOR_LOSS,
    APPROX_KL,
    CLIP_FRACTION,
    CRITIC_LOSS,
    ENTROPY,
    EXPLAINED_VARIANCE,
    GRAD_NORM,
)


@dataclass(frozen=True)
class Rollout:
    """M decisions of the policy and what they came to.

    =========  ==============  ====================================================
    seen       Seen of M       what was seen
    action     int64 [M]       what was done
    log_prob   float [M]       of the action, under the policy that sampled it
    advantage  float [M]       how much better it was than expected
    returns    float [M]       what the critic is to expect
    value      float [M], None what the critic expected; None: it was not asked
    =========  ==============  ====================================================
    """

    seen: Seen
    action: Tensor
    log_prob: Tensor
    advantage: Tensor
    returns: Tensor
    value: Tensor | None = None


class Ppo:
    """An actor, a critic and their optimisers."""

    def __init__(self, config: ActorCritic, spec: NetworkSpec, seed: int) -> None:
        self.config = config
        self.actor = make_network(spec, seed)
        self.critic = make_network(replace(spec, head="critic"), seed + 1)
        self.actor_optimizer = make_optimizer(config.optimizer, self.actor, config.learning_rate)
        critic_rate = config.critic_learning_rate or config.learning_rate
        self.critic_optimizer = make_optimizer(config.optimizer, self.critic, critic_rate)

    @property
    def acting(self) -> Network:
        """The network that ranks nodes."""
        return self.actor

    @property
    def parts(self) -> Mapping[str, tuple[Network, Mapping[str, Any]]]:
        """What a model's files hold: name before the stem -> (network, further parts); the first acts."""
        return {
            "Actor": (self.actor, {"optimizer": self.actor_optimizer}),
            "Critic": (self.critic, {"optimizer": self.critic_optimizer}),
        }

    def update(
        self, rollout: Rollout, generator: torch.Generator, *, critic_epochs: int | None = None
    ) -> dict[str, float]:
        """Pass over the decisions `n_epochs` times; the critic learns in the first `critic_epochs`, None: in all.

        It ends at once where a minibatch is further than 1.5 `target_kl` from the policy that sampled. Returns means
        over its minibatches, by the name of the curve.
        """
        config, advantage = self.config, normalize(rollout.advantage)
        critic_epochs = config.n_epochs if critic_epochs is None else critic_epochs
        curves: dict[str, list[float]] = defaultdict(list)
        expected: list[tuple[Tensor, Tensor]] = []  # the critic's values of the first epoch, and the returns
        for epoch in range(config.n_epochs):
            for rows in minibatches(rollout.seen, config, generator):
                batch = rollout.seen.take(rows)
                logits = self.actor(batch)
                log_prob, sampled = select(log_policy(logits, batch.mask), rollout.action[rows]), rollout.log_prob[rows]
                curves[APPROX_KL].append(float(approx_kl(log_prob, sampled)))
                curves[CLIP_FRACTION].append(float(clip_fraction(log_prob, sampled, config.clip_range)))
                if config.target_kl is not None and curves[APPROX_KL][-1] > 1.5 * config.target_kl:
                    return _means(curves)
                loss = clipped_policy_loss(log_prob, sampled, advantage[rows], config.clip_range)
                bonus = entropy(logits, batch.mask).mean()
                objective = loss - config.ent_coef * bonus
                taken = descend(objective, self.actor, self.actor_optimizer, config.max_grad_norm)
                curves[GRAD_NORM].append(taken.grad_norm)
                curves[ACTOR_LOSS].append(float(loss.detach()))
                curves[ENTROPY].append(float(bonus.detach()))
                if epoch < critic_epochs:
                    value, returns = self.critic(batch), rollout.returns[rows]
                    if epoch == 0:
                        expected.append((value.detach(), returns))
                    if config.clip_range_vf and rollout.value is not None:
                        fit = clipped_value_loss(value, rollout.value[rows], returns, config.clip_range_vf)
                    else:
                        fit = value_loss(value, returns)
                    taken = descend(fit, self.critic, self.critic_optimizer, config.max_grad_norm)
                    curves[CRITIC_LOSS].append(taken.loss)
            if epoch == 0 and expected:
                values, returns = map(torch.cat, zip(*expected, strict=True))
                curves[EXPLAINED_VARIANCE].append(explained_variance(values, returns))
        return _means(curves)

    @torch.no_grad()
    def log_prob(self, seen: Seen, action: Tensor) -> Tensor:
        """Return [M], the log-probability of each action under the policy as it is."""
        parts = []
        for rows in minibatches(seen, self.config):
            batch = seen.take(rows)
            parts.append(select(log_policy(self.actor(batch), batch.mask), action[rows]))
        return torch.cat(parts)

    @torch.no_grad()
    def values(self, seen: Seen) -> Tensor:
        """Return [M], what the critic expects."""
        return torch.cat([self.critic(seen.take(rows)) for rows in minibatches(seen, self.config)])


def _means(curves: Mapping[str, Sequence[float]]) -> dict[str, float]:
    return {name: sum(each) / len(each) for name, each in curves.items()}
