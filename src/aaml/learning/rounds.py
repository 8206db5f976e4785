"""What is kept of a round of episodes in lockstep, and how its decisions are put together to be learned from."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from aaml.errors import UserError
from aaml.learning.collate import Batch, collate, joined
from aaml.learning.copies import Choice, Compared
from aaml.learning.losses import discounted_sums, relative_to_copies, typical_difference
from aaml.scheduling.ports import Transition

Generator = torch.Generator


def make_generator(seed: int) -> Generator:
    """Return torch's generator of a seed."""
    return torch.Generator().manual_seed(seed)


def stars(
    nodes: npt.NDArray[np.float32], pairs: npt.NDArray[np.float32], pod: npt.NDArray[np.float32],
    mask: npt.NDArray[np.bool_], counts: npt.NDArray[np.int64],
) -> Batch:  # fmt: skip
    """Return arrays of B clusters as a batch that shares their memory; their graphs are stars of `counts` [B] nodes."""
    tensor = torch.from_numpy
    return Batch(tensor(nodes), tensor(pairs), tensor(pod), tensor(mask), counts=tensor(counts))


def demonstrated(steps: Sequence[Transition]) -> tuple[Batch, Tensor]:
    """Return what a teacher saw and did on clusters of one size."""
    plain = collate([step.observation for step in steps], graphs=False)
    counts = torch.full((len(steps),), plain.mask.shape[1])
    seen = Batch(plain.nodes, plain.pairs, plain.pod, plain.mask, counts=counts)
    return seen, torch.tensor([step.action for step in steps])


class Record:
    """What a round's rows saw, did and earned, a moment at a time.

    copies: neighbours that see the same arrivals
    ahead: decisions after which is kept what was seen then, 0: it is not needed
    keep: share of the drawn choices that are learned from
    """

    def __init__(self, copies: int, ahead: int, keep: float) -> None:
        self.decisions = 0
        self._copies, self._ahead = copies, ahead
        self._keep = keep
        self._seen: list[Batch] = []
        self._following: list[Batch] = []
        self._choices: list[Choice] = []
        self._kept: list[Tensor] = []
        self._going: list[Tensor] = []
        self._earned: list[Tensor] = []

    def see(self, seen: Batch, choice: Choice, going: npt.NDArray[np.bool_], generator: Generator) -> None:
        """Keep a share of what the rows that go on see and do, and what those of `ahead` moments before see now."""
        self.decisions += int(going.sum())
        self._going.append(torch.from_numpy(going))
        kept = choice.drawn & self._going[-1] & (torch.rand(len(going), generator=generator) < self._keep)
        self._kept.append(kept)
        self._seen.append(seen.take(kept))
        self._choices.append(choice.take(kept))
        if self._ahead and len(self._kept) > self._ahead:
            self._following.append(seen.take(self._kept[-1 - self._ahead] & self._going[-1]))

    def earn(self, reward: npt.NDArray[np.float64]) -> None:
        """Take down the rewards [B] of what was done."""
        self._earned.append(torch.where(self._going[-1], torch.from_numpy(reward), 0.0))

    def compare(self, gamma: float) -> Compared:
        """Put the decisions kept together with what they came to. Raises `UserError` when there are none."""
        kept, going, ahead = torch.stack(self._kept), torch.stack(self._going), self._ahead
        if not kept.any():
            raise UserError("sampled: no choice of a whole round was sampled; raise sampled, envs or copies")
        returns = discounted_sums(torch.stack(self._earned), gamma)
        advantage = relative_to_copies(returns, self._copies)
        typical = typical_difference(advantage, self._copies)
        n_step, goes_on = advantage, torch.zeros_like(kept)
        if ahead and ahead < len(kept):
            n_step = discounted_sums(relative_to_copies(torch.stack(self._earned), self._copies), gamma, ahead)
            goes_on[:-ahead] = going[ahead:]

        def unit(values: Tensor) -> Tensor:
            return (values / typical).to(torch.float32)[kept]

        return Compared(
            joined(self._seen),
            torch.cat([each.action for each in self._choices]),
            torch.cat([each.log_prob for each in self._choices]),
            unit(advantage),
            unit(returns),
            unit(n_step),
            joined(self._following) if goes_on[kept].any() else None,
            goes_on[kept],
            gamma**ahead,
        )
