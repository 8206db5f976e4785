"""What goes between a learner and who decides by it: an agent's whole state, and the weights that it acts by."""

from io import BytesIO
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from aaml.learning.agent import LearnedAgent
from aaml.learning.checkpoint import archived


def saved(agent: LearnedAgent, *, experience: bool) -> bytes:
    """Return an agent's state as bytes that `opened` reads."""
    return archived(agent.state(experience=experience))


def opened(state: bytes) -> dict[str, Any]:
    """Return what `saved` was given."""
    return dict(torch.load(BytesIO(state), weights_only=True))


def acting_weights(agent: LearnedAgent) -> npt.NDArray[np.float32]:
    """Return the parameters of the network that an agent acts by as one vector."""
    return np.concatenate([each.detach().numpy().reshape(-1) for each in agent.scorer.parameters()])


def take_acting_weights(agent: LearnedAgent, weights: npt.NDArray[np.float32]) -> None:
    """Write such a vector into an agent's network in place."""
    start = 0
    for each in agent.scorer.parameters():
        array = each.detach().numpy()
        array[...] = weights[start : start + array.size].reshape(array.shape)
        start += array.size
