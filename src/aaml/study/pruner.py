"""Successive halving: all trials play a part of what they are evaluated on, the better ones play on.

Jamieson and Talwalkar: Non-stochastic Best Arm Identification and Hyperparameter Optimization (AISTATS 2016).
"""

from collections.abc import Callable, Sequence
from typing import Generic

import numpy as np

from aaml.parallel.pool import Pool
from aaml.study.problem import FloatArray, Problem
from aaml.study.trial import Params, Trial

SHARES = (8, 4, 2, 1)
"""A rung ends with this part of the episodes; half of the trials reach the next."""


def climb(
    count: int,
    rungs: Sequence[int],
    play: Callable[[Sequence[int], int], None],
    kept: Callable[[Sequence[int], int], Sequence[int]],
) -> list[int]:
    """Let `count` trials climb rungs and return the last rung that each reached.

    `play` takes numbers of trials to a rung, `kept` says which of them go on from there.
    """
    reached, alive = [0] * count, list(range(count))
    for place, rung in enumerate(rungs):
        play(alive, rung)
        for number in alive:
            reached[number] = rung
        if place + 1 < len(rungs):
            alive = sorted(kept(alive, rung))
    return reached


class Race(Generic[Params]):
    """Evaluates a generation on the same episodes of a problem; the first generation plays them all.

    `start` [episodes, objectives and limits] are the values of what everything is measured by.
    """

    def __init__(
        self,
        problem: Problem[Params],
        start: FloatArray,
        pool: Pool,
        seed: int,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        self._problem, self._start, self._pool, self._seed, self._stopped = problem, start, pool, seed, stopped

    def __call__(self, params: Sequence[Params], number: int, _known: object = ()) -> list[Trial[Params]]:
        """Play them. Raises `StoppedError`."""
        whole = len(self._problem.all)
        order = np.random.default_rng([self._seed, number]).permutation(whole)
        values = np.zeros((len(params), whole, self._start.shape[-1]))  # in that order
        intermediate: list[dict[int, float]] = [{} for _ in params]
        begun = 0

        def play(alive: Sequence[int], until: int) -> None:
            nonlocal begun
            some = [params[each] for each in alive]
            values[alive, begun:until] = self._problem.play(
                self._pool, some, order[begun:until].tolist(), self._stopped
            )
            begun = until
            for each in alive:
                intermediate[each][until] = float(self._losses(values[[each]], order[:until])[0, 0])

        def kept(alive: Sequence[int], until: int) -> Sequence[int]:
            best = self._problem.order(values[alive, :until], self._start, order[:until])
            return [alive[place] for place in best[: (len(alive) + 1) // 2]]

        rungs = [whole] if number == 0 else sorted({max(1, whole // share) for share in SHARES})
        reached = climb(len(params), rungs, play, kept)
        return [
            Trial(
                each, tuple(self._losses(values[[place]], order[:until])[0].tolist()),
                float(self._problem.excess(values[[place], :until], self._start[order[:until]])[0]),
                until < whole, intermediate[place],
            )
            for place, (each, until) in enumerate(zip(params, reached, strict=True))
        ]  # fmt: skip

    def _losses(self, values: FloatArray, which: np.typing.NDArray[np.int64]) -> FloatArray:
        return self._problem.losses(values[:, : len(which)], self._problem.scale(self._start)[which])
