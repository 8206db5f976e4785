"""Optimisers by name, the batches of their steps, and one step."""

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from aaml.errors import UserError
from aaml.learning.buffers import Seen
from aaml.learning.collate import Batch
from aaml.learning.config import NetworkAgent, OptimizerName


def make_optimizer(name: OptimizerName, network: nn.Module, rate: float) -> torch.optim.Optimizer:
    """Build the optimiser called `name` with the learning rate `rate`."""
    kinds: dict[str, type[torch.optim.Optimizer]] = {
        "Adam": torch.optim.Adam,
        "AdamW": torch.optim.AdamW,
        "RMSprop": torch.optim.RMSprop,
        "SGD": torch.optim.SGD,
    }
    return kinds[name](list(network.parameters()), lr=rate)  # type: ignore[call-arg]


def anneal(optimizer: torch.optim.Optimizer, rate: float, left: float) -> None:
    """Let the learning rate `rate` fall to 0 in a training of which the share `left` is to come."""
    for group in optimizer.param_groups:
        group["lr"] = rate * left


def step_size(seen: Seen, config: NetworkAgent) -> int:
    """Return the decisions of a step: a batch, or as many as have `max_batch_rows` nodes in all."""
    widest = seen.mask.shape[1] if isinstance(seen, Batch) else max((len(each.mask) for each in seen.items), default=1)
    return max(1, min(config.batch_size, config.max_batch_rows // widest))


def minibatches(seen: Seen, config: NetworkAgent, generator: torch.Generator | None = None) -> Iterator[Tensor]:
    """Yield all rows of what was seen, int64, in parts of about a step's size; shuffled by a generator."""
    count, size = len(seen), step_size(seen, config)
    if generator is None:
        order = torch.arange(count)
    else:
        order = torch.randperm(count, generator=generator, device=generator.device)
    yield from torch.tensor_split(order, -(-count // size))


class Descent(NamedTuple):
    """One step of an optimiser: the loss, and the norm of its gradient before it was clipped."""

    loss: float
    grad_norm: float


def descend(loss: Tensor, network: nn.Module, optimizer: torch.optim.Optimizer, max_norm: float) -> Descent:
    """Take one step down the gradient of `loss`, clipped to `max_norm`.

    Raises `UserError` when the loss or its gradient is no finite number: the weights stay as they were.
    """
    optimizer.zero_grad(set_to_none=True)
    loss.backward()  # type: ignore[no-untyped-call]
    norm, value = float(nn.utils.clip_grad_norm_(network.parameters(), max_norm)), float(loss.detach())
    if not (math.isfinite(norm) and math.isfinite(value)):
        optimizer.zero_grad(set_to_none=True)
        raise UserError(
            f"training has diverged: the loss is {value:g}, its gradient {norm:g}; the weights from before this update "
            "are kept; try a smaller learning_rate or rewards of a smaller size"
        )
    optimizer.step()
    return Descent(value, norm)
