"""How good a decision was: generalised advantages of single trajectories, or returns less their group's mean."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from aaml.learning.buffers import Observations
from aaml.learning.losses import discounted_sums, generalized_advantage, relative_to_group, typical_difference
from aaml.scheduling.ports import Transition

if TYPE_CHECKING:
    from aaml.learning.algorithms.ppo import Ppo
    from aaml.scheduling.observation import Observation


def generalized(pieces: Sequence[Sequence[Transition]], ppo: "Ppo", divisor: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return (advantage [M], return [M], value [M]) of all steps of pieces of trajectories, each in order.

    Rewards are divided by `divisor`; the critic of `ppo` bootstraps.
    """
    seen: dict[int, Observation] = {}  # consecutive steps share observations: each is evaluated once
    for piece in pieces:
        for step in piece:
            seen[id(step.observation)] = step.observation
            if step.next_observation is not None:
                seen[id(step.next_observation)] = step.next_observation
    expected = ppo.values(Observations(list(seen.values()), ppo.critic.needs_graphs)).tolist()
    values = dict(zip(seen, expected, strict=True))
    parts = []
    for piece in pieces:
        value = torch.tensor([values[id(step.observation)] for step in piece])
        # A step whose continuation nobody has seen is taken to go on as it was.
        following = [step.observation if step.next_observation is None else step.next_observation for step in piece]
        advantage, returns = generalized_advantage(
            torch.tensor([step.reward / divisor for step in piece]),
            value,
            torch.tensor([values[id(observation)] for observation in following]),
            torch.tensor([step.terminated for step in piece]),
            torch.tensor([step.terminated or step.truncated for step in piece]),
            ppo.config.gamma,
            ppo.config.gae_lambda,
        )
        parts.append((advantage, returns, value))
    advantages, returned, valued = zip(*parts, strict=True)
    return torch.cat(advantages), torch.cat(returned), torch.cat(valued)


def discounted_returns(pieces: Sequence[Sequence[Transition]], gamma: float, divisor: float) -> Tensor:
    """Return [M], the discounted rewards from each step to the end of its piece, divided by `divisor`."""
    rewards = (torch.tensor([[step.reward / divisor] for step in piece]) for piece in pieces)
    return torch.cat([discounted_sums(each, gamma)[:, 0] for each in rewards])


@dataclass(frozen=True)
class GroupReturns:
    """What each of T x B decisions came to, [T, B], in units of the typical difference between a group's episodes.

    ==========  ==================================================================================
    advantage   discounted rewards to the episode's end, less the group's mean
    returns     discounted rewards to the episode's end
    n_step      the first n discounted rewards, less the group's mean
    ==========  ==================================================================================
    """

    advantage: Tensor
    returns: Tensor
    n_step: Tensor


def compared(reward: Tensor, group_size: int, gamma: float, n_step: int = 0) -> GroupReturns:
    """Compare rewards [T, B] of neighbours that saw the same arrivals; `n_step` 0: to the episode's end."""
    returns = discounted_sums(reward, gamma)
    advantage = relative_to_group(returns, group_size)
    typical = typical_difference(advantage, group_size)
    first = advantage
    if 0 < n_step < len(reward):
        first = discounted_sums(relative_to_group(reward, group_size), gamma, n_step)
    return GroupReturns(*((each / typical).to(torch.float32) for each in (advantage, returns, first)))
