"""A round of episodes in lockstep, played by groups: what is chosen, and what is kept to be learned from.

The members of a group see the same arrivals, so that what one earns more than the others is due to its choices. Nearly
all choices are the agent's best; a few are sampled, and only these are to blame: the fewer there are, the less each
drowns in what the others did, and the fewer have to be learned from.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from aaml.errors import UserError, bad_value
from aaml.learning.advantages import GroupReturns, compared
from aaml.learning.algorithms.dqn import sampling_logits
from aaml.learning.algorithms.imitation import Demonstration
from aaml.learning.algorithms.ppo import Rollout
from aaml.learning.buffers import Transitions
from aaml.learning.collate import Batch, collate, joined, widened
from aaml.learning.losses import log_policy, mask_scores, select
from aaml.learning.networks import Network
from aaml.scheduling.ports import Transition

Generator = torch.Generator


def make_generator(seed: int, device: str = "cpu") -> Generator:
    """Return torch's generator of a seed, whose numbers are made on a device."""
    return torch.Generator(device).manual_seed(seed)


def pinned(shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[np.generic]:
    """Return a zeroed array in memory that a GPU reads without a copy in between."""
    kind = torch.from_numpy(np.zeros(0, dtype=dtype)).dtype
    return np.asarray(torch.zeros(shape, dtype=kind, pin_memory=True).numpy())


def check_device(device: str) -> None:
    """Raise `UserError` for a device that PyTorch does not see here."""
    if device == "cuda" and not torch.cuda.is_available():
        raise bad_value("device", device, "cpu: PyTorch sees no GPU here (`aaml doctor` says more)")


def stars(
    nodes: npt.NDArray[np.float32], pairs: npt.NDArray[np.float32], pod: npt.NDArray[np.float32],
    mask: npt.NDArray[np.bool_], counts: npt.NDArray[np.int64], device: str = "cpu",
) -> Batch:  # fmt: skip
    """Return arrays of B clusters as a batch on a device; their graphs are stars of `counts` [B] nodes.

    On the CPU the batch shares their memory.
    """
    tensors = (torch.from_numpy(each).to(device, non_blocking=True) for each in (nodes, pairs, pod, mask, counts))
    nodes_, pairs_, pod_, mask_, counts_ = tensors
    return Batch(nodes_, pairs_, pod_, mask_, counts=counts_)


def demonstrations(steps: Sequence[Transition], device: str = "cpu") -> dict[int, Demonstration]:
    """Return what a teacher saw and did in clusters that are stars, by their size, on a device."""
    by_size: dict[int, list[Transition]] = {}
    for step in steps:
        by_size.setdefault(len(step.observation.mask), []).append(step)
    shown = {}
    for size, same in sorted(by_size.items()):
        plain = collate([step.observation for step in same], graphs=False)
        nodes, pairs, pod, mask = (each.to(device) for each in (plain.nodes, plain.pairs, plain.pod, plain.mask))
        seen = Batch(nodes, pairs, pod, mask, counts=torch.full((len(same),), size, device=device))
        shown[size] = Demonstration(seen, torch.tensor([step.action for step in same], device=device))
    return shown


@dataclass(frozen=True)
class Choice:
    """What is done in B rows: `action` int64 [B], `sampled` bool [B], and the `log_prob` [B, N] of sampling each."""

    action: Tensor
    sampled: Tensor
    log_prob: Tensor


@torch.no_grad()
def choose(network: Network, seen: Batch, share: float, generator: Generator) -> Choice:
    """Take the best node for each pod, and in a share of them a sample: of the actor's policy, or by action values."""
    scores, mask = network(seen), seen.mask
    logits = scores if network.spec.head == "actor" else sampling_logits(scores, mask)
    log_prob = log_policy(logits, mask)
    # The largest of logits plus Gumbel noise is a sample of the softmax (Gumbel 1954).
    noise = -torch.empty_like(logits).exponential_(generator=generator).log()
    sampled = torch.rand(len(logits), generator=generator, device=logits.device) < share
    action = torch.where(sampled, mask_scores(logits + noise, mask).argmax(dim=1), log_prob.argmax(dim=1))
    return Choice(action, sampled, log_prob)


@torch.no_grad()
def best(network: Network, seen: Batch) -> Tensor:
    """Return int64 [B], the best node for each pod."""
    return mask_scores(network(seen), seen.mask).argmax(dim=1)


def agreement(network: Network, shown: Demonstration) -> float:
    """Return the share of a teacher's decisions in which the best choice is the one that was made."""
    chosen = best(network, shown.seen.take(torch.arange(len(shown.action))))
    return float((chosen == shown.action).float().mean())


class RolloutRecorder:
    """What a round's rows saw, did and earned, a moment at a time.

    group_size: neighbours that see the same arrivals
    n_step: decisions after which is kept what was seen then, 0: it is not needed
    keep: share of the sampled choices that are learned from
    """

    def __init__(self, group_size: int, n_step: int, keep: float) -> None:
        self.decisions = 0
        self._group_size, self._n_step, self._keep = group_size, n_step, keep
        self._seen: list[Batch] = []
        self._following: list[Batch] = []
        self._action: list[Tensor] = []
        self._log_prob: list[Tensor] = []
        self._kept: list[Tensor] = []
        self._going: list[Tensor] = []
        self._earned: list[Tensor] = []

    def see(self, seen: Batch, choice: Choice, going: npt.NDArray[np.bool_], generator: Generator) -> None:
        """Keep a share of what the rows that go on see and do, and what those of `n_step` moments before see now."""
        self.decisions += int(going.sum())
        device = choice.action.device
        self._going.append(torch.from_numpy(going).to(device))
        chance = torch.rand(len(going), generator=generator, device=device)
        kept = choice.sampled & self._going[-1] & (chance < self._keep)
        self._kept.append(kept)
        self._seen.append(seen.take(kept))
        self._action.append(choice.action[kept])
        self._log_prob.append(choice.log_prob[kept])
        if self._n_step and len(self._kept) > self._n_step:
            self._following.append(seen.take(self._kept[-1 - self._n_step] & self._going[-1]))

    def earn(self, reward: npt.NDArray[np.float64]) -> None:
        """Take down the rewards [B] of what was done."""
        going = self._going[-1]
        self._earned.append(torch.where(going, torch.from_numpy(reward).to(going.device), 0.0))

    def rollout(self, gamma: float) -> Rollout:
        """Return the decisions kept and how they compare. Raises `UserError` when there are none."""
        kept, came_to = self._compare(gamma)
        action = torch.cat(self._action)
        log_prob = select(self._log_probs(), action)
        return Rollout(joined(self._seen), action, log_prob, came_to.advantage[kept], came_to.returns[kept])

    def transitions(self, gamma: float) -> Transitions:
        """Return the decisions kept, and what follows n steps later. Raises `UserError` when there are none."""
        kept, came_to = self._compare(gamma)
        goes_on = torch.zeros_like(kept)
        if 0 < self._n_step < len(kept):
            goes_on[: -self._n_step] = torch.stack(self._going)[self._n_step :]
        goes_on = goes_on[kept]
        action, following = torch.cat(self._action), joined(self._following) if goes_on.any() else None
        discount = torch.full((len(action),), gamma**self._n_step, device=action.device)
        log_prob = self._log_probs()
        return Transitions(
            joined(self._seen), action, came_to.n_step[kept], discount, goes_on, following, log_prob=log_prob
        )

    def _log_probs(self) -> Tensor:
        """Return the log probabilities of all choices kept, [K, N]; there may have been fewer nodes at first."""
        most = max(each.shape[1] for each in self._log_prob)
        return torch.cat([widened(each, most) for each in self._log_prob])

    def _compare(self, gamma: float) -> tuple[Tensor, GroupReturns]:
        kept = torch.stack(self._kept)
        if not kept.any():
            raise UserError("sampled: no choice of a whole round was sampled; raise sampled, envs or group_size")
        return kept, compared(torch.stack(self._earned), self._group_size, gamma, self._n_step)
