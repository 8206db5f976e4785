"""Judging a policy in compiled episodes in lockstep: all the episodes of a validation at once."""

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from aaml.sim.compiled.batch import Batch
from aaml.training.validation import Glimpse

Choose = Callable[[Batch], npt.NDArray[np.int64]]
"""What rows see now -> int64 [B], the node that takes each row's pod; what it says of a resting row counts nothing."""


def judge_in_lockstep(batch: Batch, choose: Choose, glimpse: Glimpse | None) -> list[Mapping[str, float]]:
    """Play an episode in each row to its end and return their metrics, by row; closes the batch.

    `glimpse` is told what was chosen, and sees the first row.
    """
    metrics: dict[int, Mapping[str, float]] = {}
    batch.reset()
    nodes = int(batch.nodes[0])
    while batch.alive.any():
        choice = choose(batch)
        if glimpse is not None:
            glimpse.rows += choice[batch.alive].tolist()
            if batch.alive[0]:
                glimpse.lapse.see(lambda: batch.seen.nodes[0, :nodes, :2])  # the fractions of CPU and memory
        metrics |= {each.row: each.metrics for each in batch.step(choice).ended}
    batch.close()
    return [metrics[row] for row in range(len(batch))]
