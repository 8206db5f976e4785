"""ScorePolicy: a policy made of a score for each row, with a way to break ties and to truncate scores."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import get_args

import numpy as np
import numpy.typing as npt

from aaml.cluster.kernels import compiled
from aaml.cluster.objects import Pod
from aaml.errors import bad_value
from aaml.policies.fragment_meter import FragmentMeter
from aaml.policies.ties import TieBreak
from aaml.scheduling.observation import Context, ObservationSpec
from aaml.scheduling.ports import Decision, shown
from aaml.scheduling.queue_sort import QueueSort

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
Score = Callable[[Context], FloatArray]
"""A context -> float64 [N], higher is better. Entries of infeasible nodes have no meaning; NaN and -inf are never
chosen."""


@dataclass(frozen=True, slots=True)
class PolicyOptions:
    """What a policy is made with.

    `tie_break` says which of several rows with the same score is taken: the first one ("fixed"), that with the smallest
    node name ("name"), or any ("random"). None leaves it to the policy, which is "fixed" for all but kube-scheduler,
    where it is "random". With `truncate` scores are cut to whole numbers first, as those of Kubernetes are. `seed` is
    that of the policy's own generator. `expected` are pods like those to come, by which FGD weighs fragments; where
    none of them asks for a GPU it scores nearly every row alike.
    """

    tie_break: TieBreak | None = None
    truncate: bool = False
    seed: int = 0
    expected: Sequence[Pod] = ()

    def __post_init__(self) -> None:
        if self.tie_break not in (None, *get_args(TieBreak)):
            raise bad_value("tie_break", self.tie_break, f"one of {', '.join(get_args(TieBreak))}")


class ScorePolicy:
    """Takes the feasible row with the highest score; `queue_sort` is the order in which it wants waiting pods.

    A score function that reads `context.observation` may say what it looks at by an attribute `observation_spec`, an
    `ObservationSpec`. Without one it is shown plain features, with the growth of fragments where pods are expected.
    """

    __repr__ = shown

    def __init__(
        self,
        name: str,
        score: Score,
        options: PolicyOptions = PolicyOptions(),
        queue_sort: QueueSort | None = None,
    ) -> None:
        self.name = name
        self.queue_sort = queue_sort
        self.observation_spec: ObservationSpec = getattr(score, "observation_spec", None) or ObservationSpec(
            fragmentation=FragmentMeter.of(options.expected)
        )
        self._score = score
        self._options = options
        self._rng = np.random.default_rng(options.seed)

    def act(self, context: Context) -> Decision:
        """Choose a row. Raises ValueError when no feasible node has a score."""
        return Decision(self.pick(self.scores(context), context))

    def scores(self, context: Context) -> FloatArray:
        """Return [N] scores, higher is better. Raises ValueError when they have another shape."""
        scores = np.asarray(self._score(context), dtype=np.float64)
        if scores.shape != context.mask.shape:
            raise ValueError(f"policy {self.name}: the score has shape {scores.shape}, expected {context.mask.shape}")
        return scores

    def pick(self, scores: FloatArray, context: Context) -> int:
        """Return the best feasible row under the tie-break."""
        row, ties = best_row(scores, context.mask, self._options.truncate)
        if row < 0:
            raise ValueError(f"policy {self.name}: no feasible node has a score (NaN or -inf everywhere)")
        if ties > 1 and self._options.tie_break in ("name", "random"):
            if self._options.truncate:
                scores = np.trunc(scores)
            tied = np.flatnonzero(context.mask & (scores == scores[row]))
            if self._options.tie_break == "random":
                return int(tied[self._rng.integers(ties)])
            return int(min(tied, key=lambda each: context.state.names[each]))
        return int(row)


@compiled
def best_row(scores: FloatArray, mask: BoolArray, truncate: bool) -> tuple[int, int]:
    """Return the first row with the highest score, and how many feasible rows have that score.

    The row is -1 when no feasible node has a score.
    """
    best, row, ties = -np.inf, -1, 0
    for i in range(len(mask)):
        if mask[i]:
            score = np.trunc(scores[i]) if truncate else scores[i]
            if score > best:
                best, row, ties = score, i, 1
            elif score == best:
                ties += 1
    if row < 0:
        return row, 0
    return row, ties
