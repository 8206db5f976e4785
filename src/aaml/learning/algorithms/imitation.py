"""Imitation: a network learns to choose as a teacher did, or begins as a heuristic exactly."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from aaml.learning.buffers import Seen
from aaml.learning.losses import entropy, imitation_loss, margin_loss, select, value_loss
from aaml.learning.networks import Network, NodeScorer
from aaml.learning.optim import descend

RATE, LARGEST_BATCH, MAX_GRAD_NORM = 3e-3, 128, 10.0  # telling the best from the second best takes steep scores
_MARGIN, _MARGIN_OF_RETURNS = 0.1, 0.8  # by which a teacher's choice is to be worth more than any other
_SHARP = 100.0  # what the weights of a heuristic are multiplied by
_SHOWN, _OPEN, _LEAST_FACTOR = 2_000, 0.8, 1e-3  # decisions; share of the largest entropy; of the logits


@dataclass(frozen=True)
class Demonstration:
    """M decisions of a teacher: what it saw and did, int64 [M], and where they are known the returns, float [M]."""

    seen: Seen
    action: Tensor
    returns: Tensor | None = None


def imitate(
    network: Network,
    shown: Sequence[Demonstration],
    passes: int,
    generator: torch.Generator,
    critic: Network | None = None,
    *,
    batch_size: int = LARGEST_BATCH,
) -> float:
    """Pass over a teacher's decisions in batches of `batch_size`, 128 at most; returns the last loss.

    An actor clones the choices (behaviour cloning), action values rank them first by a margin (Hester et al. 2018) and
    learn their returns where these are known, as a `critic` does. Demonstrations are mixed: of one after the other only
    the last would be kept.
    """
    optimizers = [torch.optim.Adam(each.parameters()) for each in (network, critic) if each is not None]
    latest, size = 0.0, min(batch_size, LARGEST_BATCH)
    for step in range(passes):
        for optimizer in optimizers:
            optimizer.param_groups[0]["lr"] = RATE * (1.0 - step / passes)
        pieces = [
            (each, rows)
            for each in shown
            for rows in torch.split(torch.randperm(len(each.action), generator=generator), size)
        ]
        for number in torch.randperm(len(pieces), generator=generator).tolist():
            each, rows = pieces[number]
            batch, action = each.seen.take(rows), each.action[rows]
            returns = None if each.returns is None else each.returns[rows]
            scores = network(batch)
            if network.spec.head == "actor":
                loss = imitation_loss(scores, batch.mask, action)
            elif returns is None:
                loss = margin_loss(scores, batch.mask, action, _MARGIN)
            else:
                ranked = margin_loss(scores, batch.mask, action, _MARGIN_OF_RETURNS)
                loss = ranked + value_loss(select(scores, action), returns)
            latest = descend(loss, network, optimizers[0], MAX_GRAD_NORM).loss
            if critic is not None and returns is not None:
                descend(value_loss(critic(batch), returns), critic, optimizers[1], MAX_GRAD_NORM)
    return latest


@torch.no_grad()
def init_from(network: Network, heuristic: Mapping[str, float]) -> None:
    """Let an actor score nodes by a weighted sum of pair features alone; what is learned is added to it."""
    scorer = _scorer(network)
    scorer.out.weight.zero_()
    scorer.direct.weight.zero_()
    for name, weight in heuristic.items():
        scorer.direct.weight[0, network.spec.pair_features.index(name)] = _SHARP * weight


@torch.no_grad()
def fit_temperature(network: Network, shown: Sequence[Demonstration]) -> None:
    """Scale an actor's logits down until the policy is open: a sharp one would sample nothing but its best choices."""
    scorer = _scorer(network)
    for each in shown:
        batch = each.seen.take(torch.arange(min(len(each.action), _SHOWN)))
        wanted = _OPEN * batch.mask.sum(dim=1).clamp(min=1).log().mean()
        logits, factor = network(batch), 1.0
        while factor > _LEAST_FACTOR and entropy(factor * logits, batch.mask).mean() < wanted:
            factor *= 0.8
        for parameter in (scorer.out.weight, scorer.out.bias, scorer.direct.weight):
            parameter.mul_(factor)


def _scorer(network: Network) -> NodeScorer:
    if network.scorer is None:
        raise TypeError("a critic scores no nodes")
    return network.scorer
