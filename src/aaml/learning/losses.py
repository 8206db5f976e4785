"""Losses and targets as pure functions of tensors: B is the batch, N the nodes (padded), T the steps of a trajectory.

A mask is bool [B, N], True where a node may be chosen. It applies wherever an action is chosen or averaged over: the
greedy action, the policy's distribution, and the bootstrap target.
"""

import torch
from torch import Tensor
from torch.nn import functional


def check_rank(rank: int, **tensors: Tensor) -> None:
    """Raise ValueError unless every tensor has `rank` dimensions and all have the same shape."""
    shapes = {name: tuple(map(int, tensor.shape)) for name, tensor in tensors.items()}
    if any(len(shape) != rank for shape in shapes.values()) or len(set(shapes.values())) > 1:
        raise ValueError(f"expected tensors of rank {rank} and equal shapes, got {shapes}")


def mask_scores(scores: Tensor, mask: Tensor) -> Tensor:
    """Return [B, N] `scores` with the lowest finite number where a node may not be chosen."""
    check_rank(2, scores=scores, mask=mask)
    return scores.masked_fill(~mask, torch.finfo(scores.dtype).min)


def log_policy(logits: Tensor, mask: Tensor) -> Tensor:
    """Return [B, N] log-probabilities over the nodes that may be chosen; a forbidden one has a huge negative one."""
    return functional.log_softmax(mask_scores(logits, mask), dim=1)


def entropy(logits: Tensor, mask: Tensor) -> Tensor:
    """Return [B], the entropy in nats of the masked policy."""
    log_prob = log_policy(logits, mask)
    return -(log_prob.exp() * log_prob.masked_fill(~mask, 0.0)).sum(dim=1)


def select(scores: Tensor, action: Tensor) -> Tensor:
    """Return [B], the score of each chosen node; `scores` [B, N], `action` int64 [B]."""
    return scores.gather(1, action.unsqueeze(1)).squeeze(1)


def double_q_target(
    reward: Tensor, discount: Tensor, next_q_online: Tensor, next_q_target: Tensor, next_mask: Tensor
) -> Tensor:
    """Return [B], the n-step double-DQN target R + discount * Q_target(s', argmax_a Q_online(s', a)).

    van Hasselt, Guez, Silver: Deep Reinforcement Learning with Double Q-learning (2016). `reward` is the n-step return
    without the bootstrap (Sutton 1988), `discount` gamma^n, 0 where the episode was terminated. A row of `next_mask`
    without a choice gets no bootstrap.
    """
    check_rank(1, reward=reward, discount=discount)
    check_rank(2, next_q_online=next_q_online, next_q_target=next_q_target, next_mask=next_mask)
    best = mask_scores(next_q_online, next_mask).argmax(dim=1)
    value = select(next_q_target, best)
    return reward + torch.where(next_mask.any(dim=1), discount * value, torch.zeros_like(value))


def q_loss(q: Tensor, action: Tensor, target: Tensor, weight: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return (mean Huber loss [], temporal-difference error [B]) of Q(s, a) towards `target`.

    Mnih et al.: Human-level control through deep reinforcement learning (2015), with the Huber loss (threshold 1) in
    place of the clipped error. `weight` [B] are importance weights of prioritised sampling (Schaul et al. 2016).
    """
    check_rank(1, action=action, target=target)
    error = select(q, action) - target.detach()
    loss = functional.huber_loss(error, torch.zeros_like(error), reduction="none")
    return (loss if weight is None else loss * weight).mean(), error.detach()


def mean_of_choices(values: Tensor, mask: Tensor) -> Tensor:
    """Return [B, 1], the mean of [B, N] over the nodes that may be chosen; 0 where there is none."""
    count = mask.sum(dim=1, keepdim=True).clamp(min=1)
    return values.masked_fill(~mask, 0.0).sum(dim=1, keepdim=True) / count


def dueling(value: Tensor, advantage: Tensor, mask: Tensor) -> Tensor:
    """Return [B, N], Q = V + A - mean of A over the nodes that may be chosen.

    Wang et al.: Dueling Network Architectures for Deep Reinforcement Learning (2016), eq. 9. `value` [B].
    """
    check_rank(2, advantage=advantage, mask=mask)
    return value.unsqueeze(1) + advantage - mean_of_choices(advantage, mask)


def generalized_advantage(
    reward: Tensor, value: Tensor, next_value: Tensor, terminated: Tensor, done: Tensor, gamma: float, lam: float
) -> tuple[Tensor, Tensor]:
    """Return (advantage [T], return [T]) of one trajectory, oldest step first.

    Schulman et al.: High-Dimensional Continuous Control Using Generalized Advantage Estimation (2016), eq. 16. `value`
    and `next_value` are the critic's for s_t and s_{t+1}; a terminated step does not bootstrap, a done one (terminated
    or truncated) ends the sum. The return is advantage + value, the critic's target.
    """
    check_rank(1, reward=reward, value=value, next_value=next_value, terminated=terminated, done=done)
    delta = reward + gamma * next_value * (~terminated) - value
    advantage = torch.zeros_like(delta)
    running = torch.zeros((), dtype=delta.dtype)
    for t in range(len(delta) - 1, -1, -1):
        running = delta[t] + gamma * lam * running * (~done[t])
        advantage[t] = running
    return advantage, advantage + value


def discounted_sums(reward: Tensor, gamma: float, steps: int | None = None) -> Tensor:
    """Return [T, B], the sum of `steps` discounted rewards from each step of B trajectories on (None: of all).

    `reward` is [T, B], 0 after a trajectory's end.
    """
    check_rank(2, reward=reward)
    result = torch.zeros_like(reward)
    running = torch.zeros_like(reward[0])
    for t in range(len(reward) - 1, -1, -1):
        running = reward[t] + gamma * running
        result[t] = running
    if steps is not None and steps < len(reward):
        result[:-steps] -= gamma**steps * result[steps:].clone()
    return result


def relative_to_group(values: Tensor, group_size: int) -> Tensor:
    """Return [T, B] values less their mean over the `group_size` neighbours that saw the same arrivals.

    What arrives is in both and drops out: an input-dependent baseline (Mao, Venkatakrishnan, Schwarzkopf, Alizadeh:
    Variance Reduction for Reinforcement Learning in Input-Driven Environments, 2019).
    """
    check_rank(2, values=values)
    grouped = values.reshape(len(values), -1, group_size)
    return (grouped - grouped.mean(dim=2, keepdim=True)).reshape(values.shape)


def dueling_under(q: Tensor, log_prob: Tensor, mask: Tensor) -> Tensor:
    """Return [B, N], dueling action values whose advantages have mean 0 under the policy that sampled, `log_prob`.

    Then V's error says nothing of A. With the mean over the nodes, which no policy has, whatever V does not see in a
    state is put down to its nodes (Robinson 1988; for advantages Pan et al.: Direct Advantage Estimation,
    2022).
    """
    return q + mean_of_choices(q, mask) - (log_prob.exp() * q).sum(dim=1, keepdim=True)


def typical_difference(advantage: Tensor, group_size: int) -> Tensor:
    """Return [1, B]: the root mean square of [T, B] over the moments and the `group_size` neighbours; 1 where it is 0.

    In its units an episode in which choices matter little, a nearly empty cluster, teaches as much as any other (the
    normalisation by groups of Shao et al., DeepSeekMath, 2024).
    """
    check_rank(2, advantage=advantage)
    grouped = advantage.reshape(len(advantage), -1, group_size)
    typical = grouped.square().mean(dim=(0, 2)).sqrt().repeat_interleave(group_size)
    return torch.where(typical > 0.0, typical, 1.0)[None]


def normalize(advantage: Tensor) -> Tensor:
    """Return [B] with mean 0 and standard deviation 1 (unchanged when there is a single one)."""
    if len(advantage) < 2:
        return advantage
    return (advantage - advantage.mean()) / (advantage.std() + 1e-8)


def clipped_policy_loss(log_prob: Tensor, old_log_prob: Tensor, advantage: Tensor, clip: float) -> Tensor:
    """Return [], -mean(min(r A, clip(r, 1 - clip, 1 + clip) A)) with r = pi / pi_old.

    Schulman et al.: Proximal Policy Optimization Algorithms (2017), eq. 7. At r = 1 its gradient is that of
    -mean(log pi A), so the first pass over fresh data is A2C (Mnih et al. 2016).
    """
    check_rank(1, log_prob=log_prob, old_log_prob=old_log_prob, advantage=advantage)
    ratio = (log_prob - old_log_prob.detach()).exp()
    advantage = advantage.detach()
    return -torch.minimum(ratio * advantage, ratio.clamp(1.0 - clip, 1.0 + clip) * advantage).mean()


def approx_kl(log_prob: Tensor, old_log_prob: Tensor) -> Tensor:
    """Return [], an estimate of KL(pi_old || pi) from actions of pi_old: the mean of (r - 1) - log r, r = pi / pi_old.

    Unbiased and never negative (Schulman: Approximating KL Divergence, 2020, estimator k3), as SB3 logs it.
    """
    check_rank(1, log_prob=log_prob, old_log_prob=old_log_prob)
    log_ratio = log_prob.detach() - old_log_prob.detach()
    return (log_ratio.exp() - 1.0 - log_ratio).mean()


def clip_fraction(log_prob: Tensor, old_log_prob: Tensor, clip: float) -> Tensor:
    """Return [], the share of decisions whose ratio pi / pi_old is further than `clip` from 1."""
    check_rank(1, log_prob=log_prob, old_log_prob=old_log_prob)
    ratio = (log_prob.detach() - old_log_prob.detach()).exp()
    return ((ratio - 1.0).abs() > clip).float().mean()


def explained_variance(value: Tensor, returns: Tensor) -> float:
    """Return 1 - Var[returns - value] / Var[returns]: 1 for a perfect critic, 0 for the mean; NaN without variance.

    `value` and `returns` are [M].
    """
    check_rank(1, value=value, returns=returns)
    variance = returns.detach().var(correction=0)
    return float(1.0 - (returns - value).detach().var(correction=0) / variance) if variance > 0 else float("nan")


def value_loss(value: Tensor, target: Tensor) -> Tensor:
    """Return [], the mean Huber loss of the critic towards its returns."""
    check_rank(1, value=value, target=target)
    return functional.huber_loss(value, target.detach())


def clipped_value_loss(value: Tensor, old_value: Tensor, target: Tensor, clip: float) -> Tensor:
    """Return [], the mean of the larger Huber loss: of a value, or of it moved from `old_value` by at most `clip`.

    What has moved farther towards its target has no gradient any more. As PPO's first implementation has it (Huang et
    al.: The 37 Implementation Details of Proximal Policy Optimization, 2022, detail 9); Andrychowicz et al.: What
    Matters in On-Policy Reinforcement Learning? (2021) found that it does not help.
    """
    check_rank(1, value=value, old_value=old_value, target=target)
    old, target = old_value.detach(), target.detach()
    near = old + (value - old).clamp(-clip, clip)
    return torch.maximum(*(functional.huber_loss(each, target, reduction="none") for each in (value, near))).mean()


def imitation_loss(logits: Tensor, mask: Tensor, action: Tensor) -> Tensor:
    """Return [], the mean cross-entropy of the teacher's action under the masked policy (behaviour cloning)."""
    return functional.nll_loss(log_policy(logits, mask), action)


def margin_loss(q: Tensor, mask: Tensor, action: Tensor, margin: float = 0.8) -> Tensor:
    """Return [], mean(max_a (Q(s, a) + margin [a != teacher's]) - Q(s, teacher's)), which ranks the teacher's first.

    Hester et al.: Deep Q-learning from Demonstrations (2018), eq. 1.
    """
    rest = torch.full_like(q, margin).scatter(1, action.unsqueeze(1), 0.0)
    return (mask_scores(q + rest, mask).max(dim=1).values - select(q, action)).mean()
