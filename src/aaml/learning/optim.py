"""Optimisers by name, and one step of them."""

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from aaml.errors import UserError
from aaml.learning.config import OptimizerName


def make_optimizer(name: OptimizerName, parameters: Iterable[nn.Parameter], rate: float) -> torch.optim.Optimizer:
    """Build the optimiser called `name` with the learning rate `rate`."""
    kinds: dict[str, type[torch.optim.Optimizer]] = {
        "Adam": torch.optim.Adam,
        "AdamW": torch.optim.AdamW,
        "RMSprop": torch.optim.RMSprop,
        "SGD": torch.optim.SGD,
    }
    return kinds[name](list(parameters), lr=rate)  # type: ignore[call-arg]


def descend(loss: Tensor, network: nn.Module, optimizer: torch.optim.Optimizer, max_norm: float) -> float:
    """Take one step down the gradient of `loss`, clipped to `max_norm`; return the loss.

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
    return value
