"""Whole episodes under a formula in one compiled call.

Decisions and metrics are those of `SimCluster` under a `FormulaPolicy`, to the bit.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from aaml.episodes.batch import BatchedEnv, Ended
from aaml.episodes.plan import Plan
from aaml.episodes.whole import FormulaScorer
from aaml.policies.formulas.program import Program
from aaml.policies.fragment_meter import FragmentMeter
from aaml.scheduling.observation import PLAIN, ObservationSpec

IntArray = npt.NDArray[np.int64]


class FormulaEpisodes:
    """Episodes that formulas play again and again: a plan each, of any sizes.

    Raises `UserError` for plans that compiled episodes do not know. Not for several threads at once.
    """

    def __init__(self, plans: Sequence[Plan], observation_spec: ObservationSpec = PLAIN) -> None:
        expected = observation_spec.fragmentation
        self._batch = BatchedEnv(
            lambda group, _number: plans[group],
            len(plans),
            observation_spec=observation_spec,
            expected=expected if isinstance(expected, FragmentMeter) else None,
            threads=1,
            restart=False,
        )
        self._batch.reset()
        self._registers = np.zeros((0, 0))

    def __len__(self) -> int:
        """Return how many episodes there are."""
        return len(self._batch)

    def play(self, program: Program, which: Sequence[int] | IntArray | None = None) -> list[Ended]:
        """Play episodes (by number; all of them) under a formula; return how each ended, with its metrics."""
        rows = np.arange(len(self)) if which is None else np.asarray(which, dtype=np.int64)
        return self._batch.play(rows, lambda size: FormulaScorer(*program, self._enough(program, size)))

    def _enough(self, program: Program, size: int) -> npt.NDArray[np.float64]:
        """Return registers for as many nodes as there may be."""
        rows, nodes = self._registers.shape
        if rows < program.registers or nodes < size:
            self._registers = np.zeros((max(rows, program.registers), size))
        return self._registers
